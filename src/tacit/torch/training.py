"""The engine for a model, an optimizer and a plan that somebody else brings.

What `tacit train` has from a run's settings comes as objects here; steps, ledger, checks,
checkpoints and prices are the same code.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit.errors import DataError, PrivacyRefused, UsageError
from tacit.files import write_text
from tacit.planning import pipeline
from tacit.planning.plan import Plan, calibrated, plan_yaml
from tacit.privacy.certificates.certificate import commitment, own_salt
from tacit.privacy.certificates.documents import canonical_digest
from tacit.privacy.certificates.scope import PublicInput, Scope
from tacit.privacy.ledger import Ledger, read_ledger
from tacit.python.planning import Planned
from tacit.torch.material import Ownership
from tacit.training.data.fingerprint import code_digest
from tacit.training.data.scope import entity_scope, scope_of_kinds
from tacit.training.data.training_data import TrainingData
from tacit.training.dp.random_source import RandomSource
from tacit.training.methods import METHODS
from tacit.training.methods.independence import Losses
from tacit.training.methods.method import Method, MethodInputs
from tacit.training.methods.noisy_sums import NoisySumMethod
from tacit.training.models.memory import keep_freed_memory
from tacit.training.models.weights import digest_of, trainable
from tacit.training.phases.budget_line import BudgetLine
from tacit.training.phases.checkpoints import read_place
from tacit.training.phases.divergence import Watch
from tacit.training.phases.local_inputs import require_small_delta_of
from tacit.training.phases.loop import Loop, OnProgress, Progress, Schedule
from tacit.training.phases.promising import allowed
from tacit.training.settings import MethodSettings, OptimizerSettings, Run

AnyPlan = Planned | Plan | Mapping[str, Any] | str | Path
LEDGER = "ledger.jsonl"
USERS = "whoever the caller named as a record's owner"
CALLERS = "start weights, loss, learning rates and order of calls in the caller's own loop"
_SERVED = ("users", "records", "entities", "users+entities")


def plan_of(plan: AnyPlan) -> Plan:
    """The plan with its noise, from whatever says it; what only `tacit train` does is refused."""
    if not isinstance(plan, Planned | Plan | Mapping | str | Path):
        raise UsageError(
            f"A {type(plan).__name__} is no plan; give what tacit.plan made, a tacit.Plan, its "
            "fields, or its file."
        )
    if isinstance(plan, Planned):
        made = plan.plan
    elif isinstance(plan, str | Path):
        made, _ = pipeline.read_plan_file(Path(plan))
    else:
        made = plan if isinstance(plan, Plan) else Plan(**plan)
    if made.protect not in _SERVED:
        raise UsageError(
            f"protect={made.protect} replaces text before it is tokenized, which is done by "
            f"tacit.train; in a loop of your own: {', '.join(_SERVED)}."
        )
    if made.select == "best":
        raise UsageError("select=best is done by tacit.train; leave it out of a loop of your own.")
    return calibrated(made)


def settings_of(model: nn.Module, optimizer: torch.optim.Optimizer, plan: Plan) -> dict[str, Any]:
    """What decides the result and may be shared; nothing in it was measured on a record."""
    groups = [
        {name: value for name, value in group.items() if isinstance(value, int | float | str)}
        for group in optimizer.param_groups
    ]
    return {
        "loop": "the caller's own",
        "model": type(model).__name__,
        "optimizer": {"name": type(optimizer).__name__, "groups": groups},
        "plan": plan.model_dump(mode="json"),
    }


@dataclass(eq=False)
class OwnTraining:
    """A model on its way through a plan, and the folder of its ledger."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    plan: Plan
    ownership: Ownership
    folder: Path
    randomness: RandomSource
    schedule: Schedule
    checkpoint_every: int | None = None
    """Steps between checkpoints; only at the end, or when it is left, if not given."""
    settings: dict[str, Any] = field(init=False)
    resumes: bool = field(init=False, default=False)
    """Whether it goes on from the checkpoint in its folder."""
    loop: Loop | None = field(init=False, default=None)
    stopped: str | None = field(init=False, default=None)
    """Why it ended before its last step."""
    budget: BudgetLine = field(init=False)

    def __post_init__(self) -> None:
        _require_weights(self.model, self.optimizer)
        self.spec.require_model(self.model)
        self.settings = settings_of(self.model, self.optimizer, self.plan)
        self.budget = BudgetLine.of(self.plan)
        keep_freed_memory()

    @property
    def spec(self) -> NoisySumMethod[MethodSettings]:
        """The method: DP-SGD, whatever optimizer goes on from its sums."""
        spec: Any = METHODS["dp-sgd"]
        return spec

    def run(
        self,
        data: TrainingData,
        losses: Losses,
        *,
        token_budget: int,
        on_progress: OnProgress | None = None,
    ) -> None:
        """All steps that are left: units are looked at, then drawn, clipped, charged, noised."""
        inputs = self._inputs(data, losses, token_budget)
        check = self.spec.unit_check(inputs)
        assert check is not None
        check.need(first=True)
        require_small_delta_of(self.plan, data)
        self._begin()
        with Ledger(
            self.folder / LEDGER, self._first_line(data), allows=allowed(self.plan)
        ) as ledger:
            self.loop = self._loop(self.spec.step(self._inputs(data, losses, token_budget, ledger)))
            self.loop.ledger = ledger
            self._go_on(self.loop)

            def told(at: Progress) -> None:
                if on_progress is not None:
                    on_progress(replace(at, epsilon=self.budget.epsilon(ledger.releases)))

            try:
                self.stopped = self.loop.run(told)
            except BaseException:  # left early: what was paid for is kept
                if self.loop.done:
                    self.loop.save()
                raise

    def spent(self) -> str:
        """`epsilon <= 1.23 of 8`, priced from the ledger."""
        path = self.folder / LEDGER
        released = read_ledger(path).releases() if path.exists() else {}
        return self.budget.line(released)

    def _inputs(
        self, data: TrainingData, losses: Losses, token_budget: int, ledger: Ledger | None = None
    ) -> MethodInputs:
        # The engine asks for no more of a run's settings than how much is to be done at once.
        run = Run.model_construct(
            method=self.spec.name, options=MethodSettings(), token_budget=token_budget,
            optimizer=OptimizerSettings(),
        )  # fmt: skip
        return MethodInputs(run, self.model, losses, data, self.randomness, self.plan, ledger)

    def _loop(self, method: Method) -> Loop:
        start = {name: tensor.clone() for name, tensor in trainable(self.model).items()}
        return Loop(
            self.model, method, self.optimizer, OptimizerSettings(), self.plan.steps,
            self.randomness, folder=self.folder, watch=Watch(start), schedule=self.schedule,
            checkpoint_every=self.checkpoint_every or self.plan.steps,
        )  # fmt: skip

    def _begin(self) -> None:
        """Write what a run keeps beside its ledger; one that was begun goes on if asked to."""
        path = self.folder / LEDGER
        begun = len(read_ledger(path).entries) if path.exists() else 0
        if begun and not self.resumes:
            raise UsageError(
                f"{path} holds {begun:,} releases already; call private.resume() to go on with "
                "them, or give a new folder."
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / "plan.yml", plan_yaml(self.plan))

    def _go_on(self, loop: Loop) -> None:
        """Go on where the checkpoint is, the learning rates with it."""
        if not self.resumes:
            return
        loop.resume()
        if loop.done:
            self.optimizer._opt_called = True  # type: ignore[attr-defined]  # it was, before
        for _ in range(loop.done):
            self.schedule.step()

    def _first_line(self, data: TrainingData) -> dict[str, Any]:
        """What is to be released, about whom, from what, by which code."""
        salt = own_salt()
        public = PublicInput(what=CALLERS, name=type(self.model).__name__)
        return {
            "plan": self.plan.digest(),
            "config": canonical_digest(self.settings),
            "data": commitment(_digest_of_owners(data), salt),
            "randomness": self.randomness.name,
            "code": code_digest("torch"),
            "scope": self._scope(salt).model_dump(mode="json"),
            "public": [public.model_dump(mode="json")],
            "frozen": commitment(_digest_of_frozen(self.model), salt),
        }

    def _scope(self, salt: bytes) -> Scope:
        graph = self.ownership.graph
        if graph is None:
            return Scope(users=USERS)
        found = entity_scope(graph.origin.provenance, self.plan.kinds, None, salt)
        if self.plan.adjacency == "fixed-graph":
            found = scope_of_kinds(found, graph.origin.provenance, set(graph.kinds))
        return Scope(users=USERS, entities=found)


def folder_of(ledger: str | Path) -> Path:
    """The folder of a ledger, which has one name wherever it lies."""
    path = Path(ledger)
    if path.name != LEDGER:
        raise UsageError(
            f'ledger={path} is to end in {LEDGER}: the folder is the run\'s, as in "RUN/{LEDGER}".'
        )
    return path.parent


def require_checkpoint(folder: Path) -> None:
    """Refuse to go on where nothing was saved."""
    if read_place(folder) is None:
        raise DataError(f"{folder} holds no checkpoint to go on from; private.save() writes one.")


class Weights:
    """The trained weights as an update left them: nobody else may change them in between."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._left: dict[str, int] = {}

    def leave(self) -> None:
        """Remember them."""
        self._left = self._versions()

    def require_as_left(self) -> None:
        """Refuse weights that something else than a private step has changed."""
        now = self._versions()
        changed = [name for name, version in self._left.items() if now.get(name) != version]
        if changed:
            raise PrivacyRefused(
                f"'{changed[0]}' was changed between two private steps, so the next ones would "
                "build on what no ledger knows; leave the weights to private.step."
            )

    def _versions(self) -> dict[str, int]:
        return {n: p._version for n, p in self._model.named_parameters() if p.requires_grad}


def _require_weights(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Refuse weights that are nowhere, and an optimizer that is not about this model's."""
    for given, kind in ((model, nn.Module), (optimizer, torch.optim.Optimizer)):
        if not isinstance(given, kind):
            raise UsageError(
                f"A {type(given).__name__} is no {kind.__module__.split('.')[0]} "
                f"{kind.__name__.lower()}; make_private(model, optimizer, plan, ...) needs one."
            )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise UsageError(
            "The model has no weights yet: it lives on the device meta; load it first."
        )
    own = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    held = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    if held - own:
        raise UsageError(
            "The optimizer holds parameters that are not this model's; make it from "
            "model.parameters()."
        )
    if own - held:
        raise UsageError(
            "The optimizer lacks trainable parameters of the model; give it all of them, or freeze "
            "the others (requires_grad_(False))."
        )


def _digest_of_owners(data: TrainingData) -> str:
    """A SHA-256 over who may contribute which records."""
    sha = hashlib.sha256(str(len(data.examples)).encode())
    for rows in (data.rows, *data.rows_of_user):
        sha.update(f"{len(rows)} ".encode() + rows.tobytes())
    if data.owners is not None:
        sha.update(data.owners.digest().encode())
    return sha.hexdigest()


def _digest_of_frozen(model: nn.Module) -> str:
    """A SHA-256 over all that is not trained: whoever goes on must have the same."""
    frozen = [p for p in model.parameters() if not p.requires_grad]
    sha = hashlib.sha256()
    for tensor in (*frozen, *model.buffers()):
        sha.update(digest_of(tensor).encode())
    return sha.hexdigest()


def to_device(batch: Any, device: torch.device) -> Any:
    """A batch where the model lives, whatever it is made of."""
    if isinstance(batch, Tensor) or hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: to_device(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(value, device) for value in batch)
    return batch


Collate = Callable[[list[Any]], Any]
