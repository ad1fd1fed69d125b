"""What a method is: all that settings, sessions, certificates, audits and pages ask of it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar, runtime_checkable

from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from tacit.corpus import Corpus
from tacit.detection.mentions import Mention
from tacit.planning.plan import Plan
from tacit.privacy.accounting.claims import PublishedPrice
from tacit.privacy.events import AnyEvent
from tacit.privacy.ledger import Ledger, Releases
from tacit.training.data.attributes import Attribute
from tacit.training.data.training_data import TrainingData
from tacit.training.dp.random_source import RandomSource
from tacit.training.methods.independence import Losses, UnitCheck
from tacit.training.models.registries import TASKS, TaskName
from tacit.training.settings import MethodSettings, Run
from tacit.training.tasks.tasks import Task

Standing = Literal["proved", "published", "heuristic"]
S = TypeVar("S", bound=MethodSettings)


@dataclass(frozen=True)
class StepStats:
    """What a step saw of the data: exact, hence not private.

    `records` counts passes through the model here, whoever the units are; 0 where others pass.
    `noise_std`, of the noise in each coordinate of the gradient, is public.
    """

    units: int
    clipped: int
    not_finite: int
    loss: float
    records: int = 0
    noise_std: float = 0.0


class Method(Protocol):
    """One step of training: a gradient for every trainable parameter."""

    def gradient(self, step: int) -> tuple[dict[str, Tensor], StepStats]:
        """The direction of the step, and what it saw."""
        ...


@runtime_checkable
class SequentialMethod(Protocol):
    """A step of several updates, each of which is carried out before the next is computed."""

    def gradients(self, step: int) -> Iterator[tuple[dict[str, Tensor], StepStats]]:
        """The directions one after the other, and what the step saw so far."""
        ...


@runtime_checkable
class StatefulMethod(Protocol):
    """A method that learns something beside the model, which only a checkpoint holds."""

    def extra_state(self) -> dict[str, Tensor]:
        """All that is needed to go on."""
        ...

    def load_extra_state(self, tensors: dict[str, Tensor]) -> None:
        """Go on with what `extra_state` gave."""
        ...


@runtime_checkable
class ReadingMethod(StatefulMethod, Protocol):
    """A method whose weights move after its releases, by steps that read nothing but these."""

    def afterwards(self) -> tuple[Method, int] | None:
        """These steps, and how many; None where they were done or nothing was released."""
        ...


@dataclass(frozen=True)
class MethodInputs:
    """What a method makes its steps from; `ledger` is None only where nothing is released."""

    run: Run
    model: nn.Module
    losses: Losses
    training_data: TrainingData
    randomness: RandomSource
    plan: Plan | None = None
    ledger: Ledger | None = None
    attribute: Attribute | None = None
    scales: Mapping[str, Tensor] | None = None
    """Factors of gradients before they are clipped: made of earlier releases and nothing else."""

    def need_plan(self) -> Plan:
        """The plan of a method that keeps one."""
        if self.plan is None:
            raise TypeError(f"method {self.run.method} was given no plan")
        return self.plan

    def need_ledger(self) -> Ledger:
        """The ledger that a release is written into first."""
        if self.ledger is None:
            raise TypeError(f"method {self.run.method} was given no ledger")
        return self.ledger


class MethodSpec(Generic[S]):
    """A training method. Subclass it, set the attributes, and register an instance.

    *Guarantee*: none of its own. What a method promises is priced from the events that its steps
    write into the ledger; `standing` says how far that price may be trusted, and only methods that
    keep a plan (`protects` is not empty) are certified as more than heuristic or published.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    """A few words for a form."""
    summary: ClassVar[str]
    """One line for a table."""
    standing: ClassVar[Standing] = "heuristic"
    protects: ClassVar[tuple[str, ...]] = ()
    """The units that its plan may protect; none where it keeps no plan."""
    plan_fields: ClassVar[Mapping[str, Any]] = {}
    """Fields of the plan that follow from the method."""
    settings: ClassVar[type[MethodSettings]] = MethodSettings
    """Its own section of a run's settings, under its name."""
    optimizer: ClassVar[Mapping[str, Any] | None] = None
    """Its default optimizer, where that is not the run's."""
    needs_entities: ClassVar[bool] = False
    """Whether it needs mentions whatever is protected."""
    changes_text: ClassVar[bool] = False
    """Whether `read` gives another text, in which mentions no longer stand where they did."""
    owner_graph: ClassVar[bool] = False
    """Whether it draws entities by itself, so that it needs the owner graph without a plan."""
    tasks: ClassVar[tuple[TaskName, ...]] = TASKS
    adapts_clip: ClassVar[bool] = False
    """Whether its clip norm can follow a quantile, as plan.clip_quantile asks."""
    tells_noise: ClassVar[bool] = False
    """Whether its steps say how much noise their gradients have, as dp-adam needs."""
    federated: ClassVar[bool] = False
    """Whether clients can compute its sums."""
    masked_phase: ClassVar[bool] = False
    """Whether training on masked text comes first; `settings` then has steps, batch, optimizer."""
    reads_masked: ClassVar[bool] = False
    """Whether its private steps read the masked text, too."""

    @property
    def planned(self) -> bool:
        """Whether it keeps a plan."""
        return bool(self.protects)

    @property
    def protects_tokens(self) -> bool:
        """Whether it protects the tokens that a policy marks, and nothing else."""
        return self.protects == ("tokens",)

    def takes(self, setting: str) -> bool:
        """Whether its own settings have a field of that name."""
        return setting in self.settings.model_fields

    def options(self, run: Run) -> S:
        """The method's own settings."""
        assert isinstance(run.options, self.settings)
        return run.options  # type: ignore[return-value]

    def problems(self, run: Run, plan: Plan | None) -> Iterator[str]:
        """What is wrong with settings that are each right by themselves."""
        yield from ()

    def read(self, part: Corpus, mentions: list[Mention]) -> Corpus:
        """The training text as the method reads it."""
        return part

    def hidden_attribute(self, run: Run) -> str | None:
        """The attribute of records that the method hides, where it hides one."""
        return None

    def losses(self, task: Task) -> Losses:
        """What records are asked for: the task's losses, unless a method sums something else."""
        return task.learnt_losses

    def prepare_model(self, run: Run, model: nn.Module) -> None:
        """Put into a new model what the method needs there."""

    def finish(self, inputs: MethodInputs, tokenizer: PreTrainedTokenizerBase) -> None:
        """Make of what was released what is to be used; nothing private may be read."""

    def require_model(self, model: nn.Module) -> None:
        """Refuse a model that the method could not train, before anything is charged."""

    def step(self, inputs: MethodInputs) -> Method | SequentialMethod:
        """The object that computes the steps."""
        raise NotImplementedError

    def unit_check(self, inputs: MethodInputs) -> UnitCheck | None:
        """The check that units do not depend on each other; None where nothing is promised."""
        return None

    def event(self, inputs: MethodInputs) -> AnyEvent | None:
        """What one step releases; None where nothing is promised."""
        return inputs.plan.event() if inputs.plan is not None else None

    def claim(self, inputs: MethodInputs, releases: Releases) -> PublishedPrice | None:
        """What a paper claims for these releases, where the method is a paper's."""
        return None

    def facts(self, run: Run) -> dict[str, Any]:
        """What the certificate says of the method beside its promise."""
        return {}
