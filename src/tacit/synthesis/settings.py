"""What a synthetic corpus is made of, and at what price: checked before anything is read."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError, model_validator

from tacit.errors import DataError, UsageError
from tacit.files import require_file
from tacit.planning.plan import Plan, require_trainable
from tacit.privacy.certificates.documents import canonical_digest
from tacit.registry import did_you_mean
from tacit.training.settings import SettingsPart

VOTES_PER_NOISE = 0.5
"""Of a text that is kept, so many standard deviations of the noise are users who may vote for it.

Below that, what is chosen is chosen by the noise.
"""
PROMPTS = ("",)
_SERVED = ("users", "names", "users+names", "entities", "users+entities")
_OF_STEPS = ("records_per_step", "clip_quantile", "user_weight_cap", "selection_noise")

Prompts = tuple[str, ...] | dict[str, tuple[str, ...]]


class Synthesis(SettingsPart):
    """Everything that decides a synthetic corpus.

    Candidates never see private text, so what is kept depends on it through the plan's releases
    alone: a histogram of labels and lengths, and one sum of votes in each round.
    """

    corpus: str
    data: str | None = None
    mentions: Annotated[
        str | None, Field(description="What is sensitive: the file that `tacit detect` writes.")
    ] = None
    detect: Annotated[
        str | None, Field(description="Detectors to run if no file of mentions is given.")
    ] = None
    generator: Annotated[
        str,
        Field(
            description="A run of tacit, whose ledger is carried; a public start, package or "
            "folder; or a file of public texts to choose from."
        ),
    ] = "start:english"
    plan: Annotated[
        dict[str, Any], Field(description="Whom to protect, and at what price: a plan's fields.")
    ] = {}  # noqa: RUF012
    texts: Annotated[int, Field(ge=1, le=10**6, description="How many texts are wanted.")] = 1000
    candidates: Annotated[
        int, Field(ge=1, le=64, description="Candidates for each of them, to choose from.")
    ] = 4
    rounds: Annotated[
        int,
        Field(
            ge=1,
            le=16,
            description="Rounds of votes; before each but the first, the best candidates are "
            "varied.",
        ),
    ] = 1
    neighbours: Annotated[
        int, Field(ge=1, le=64, description="A record votes for so many nearest candidates.")
    ] = 4
    smooth: Annotated[
        float,
        Field(
            ge=0,
            le=64,
            description="Noisy votes are shared among candidates that are alike: by their cosine "
            "to this power; 0 for not at all.",
        ),
    ] = 4.0
    vary: Annotated[
        float,
        Field(ge=0, lt=1, description="A variation keeps this share of the words, the first ones."),
    ] = 0.5
    histogram: Annotated[
        bool,
        Field(description="Release a histogram of labels and lengths first, and keep to it."),
    ] = True
    lengths: Annotated[
        tuple[int, ...], Field(description="Of the histogram: where lengths are cut, in words.")
    ] = (8, 16, 32, 64)
    labels: Annotated[
        tuple[str, ...] | None, Field(description="Labels of the records, declared as public.")
    ] = None
    prompts: Annotated[
        Prompts,
        Field(
            description="What the generator goes on from: a list, or a list for each label. They "
            "are public, and no part of a text."
        ),
    ] = PROMPTS
    tokens: Annotated[int, Field(ge=1, description="Longest text, in the generator's tokens.")] = 64
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95
    stop: Annotated[tuple[str, ...], Field(description="A text ends before these.")] = ()
    space: Annotated[
        str,
        Field(description="Where texts are compared: static vectors or a sentence encoder."),
    ] = "wordllama"
    read: Annotated[
        int, Field(ge=2, le=4096, description="Tokens of a text that are compared.")
    ] = 128
    seed: Annotated[
        int | None,
        Field(ge=0, description="Experiment mode: a fixed seed. The text is not for release."),
    ] = None

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise UsageError(_explain(error)) from None

    @model_validator(mode="after")
    def _consistent(self) -> "Synthesis":
        for problem in _problems(self):
            raise UsageError(problem)
        return self

    def made_plan(self) -> Plan:
        """The plan: everybody votes in every round, and once for the histogram."""
        steps = self.rounds + self.histogram
        made = Plan(**{"protect": "users", "user_rate": 1.0, "steps": steps} | self.plan)
        for problem in _plan_problems(made, steps):
            raise UsageError(problem)
        require_trainable(made)
        return made

    def of_label(self, label: str | None) -> tuple[str, ...]:
        """The prompts of a label; those of all where they are not told apart."""
        if isinstance(self.prompts, dict):
            return self.prompts[str(label)]
        return self.prompts

    @property
    def labelled(self) -> bool:
        """Whether a candidate has its label from its prompt."""
        return isinstance(self.prompts, dict)

    def shareable(self) -> dict[str, Any]:
        """Every setting, without folders and files of this machine."""
        fields = self.model_dump(mode="json")
        for name in ("corpus", "data", "mentions"):
            fields[name] = None if fields[name] is None else "private"
        for name in ("generator", "space", "detect"):
            if fields[name] is not None and not fields[name].startswith("start:"):
                fields[name] = Path(fields[name]).name
        if fields["plan"].get("entity_list") is not None:
            fields["plan"]["entity_list"] = "private"
        return fields

    def digest(self) -> str:
        """A SHA-256 of `shareable`."""
        return canonical_digest(self.shareable())


def _problems(asked: Synthesis) -> Iterator[str]:
    if list(asked.lengths) != sorted(set(asked.lengths)) or min(asked.lengths, default=1) < 1:
        yield "lengths are numbers of words that rise, such as [8, 16, 32]."
    if asked.labels is not None and len(set(asked.labels)) < len(asked.labels):
        yield "labels names one label twice; name each once."
    if not isinstance(asked.prompts, dict):
        if not asked.prompts:
            yield 'prompts is empty; give at least one, such as [""].'
        return
    if asked.labels is None:
        yield "prompts for each label need labels, which are declared as public; give labels."
    elif set(asked.prompts) != set(asked.labels):
        odd = sorted(set(asked.prompts) ^ set(asked.labels))[0]
        yield f"prompts and labels do not agree on {odd!r}; give every label its prompts."
    for label, own in asked.prompts.items():
        if not own:
            yield f"The label {label!r} has no prompt; give at least one."


def _plan_problems(plan: Plan, steps: int) -> Iterator[str]:
    """What the plan of a corpus cannot be, beside what no plan can."""
    if plan.protect not in _SERVED:
        yield (
            f"protect={plan.protect} is about single records, and votes are those of users; "
            f"accepted: {', '.join(_SERVED)}."
        )
    if plan.mechanism == "flat":
        yield "mechanism=flat samples records, and votes are those of users; leave it out."
    if plan.adjacency == "by-degree":
        yield "adjacency=by-degree has no single price; leave it out."
    if plan.user_rate != 1:
        yield "Everybody votes in every round; leave user_rate out."
    if plan.steps != steps:
        yield f"plan.steps={plan.steps} is not the {steps} releases asked for; leave it out."
    if plan.about_names and plan.name_share > 0:
        yield (
            "name_share above 0 shows names, and a text that may be shared is chosen by texts "
            "without any; leave it out."
        )
    if plan.select == "best" or plan.precondition:
        yield "select and precondition are about the steps of a training; leave them out."
    for name in _OF_STEPS:
        if getattr(plan, name) is not None:
            yield f"{name} is about the steps of a training; leave it out."
    if plan.users is None:
        yield (
            "plan.users is missing: how many users there are, as known in advance; delta and what "
            "votes can tell are judged by it."
        )


def users_needed(settings: Synthesis, plan: Plan) -> int:
    """How many users it takes for votes to stand out from the noise of this plan."""
    noise = float(plan.noise_multiplier or 0)
    return round(VOTES_PER_NOISE * noise * settings.texts)


def require_enough_users(settings: Synthesis, plan: Plan) -> None:
    """Refuse to spend anything where the noise alone would choose."""
    needed = users_needed(settings, plan)
    if int(plan.users or 0) < needed:
        raise UsageError(
            f"{plan.users:,} users are too few to choose {settings.texts:,} texts at this epsilon: "
            f"it takes {needed:,}, or fewer texts, fewer rounds, or a larger epsilon."
        )


def read_settings(path: Path) -> Synthesis:
    """The settings of a YAML file."""
    return Synthesis(**read_fields(path))


def read_fields(path: Path) -> dict[str, Any]:
    """The settings of a YAML file, not yet checked."""
    try:
        fields = yaml.safe_load(require_file(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise DataError(f"{path} does not hold settings: `name: value` lines.")
    return {str(name): value for name, value in fields.items()}


def _explain(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_context=False)
    first = min(found, key=lambda one: one["type"] != "extra_forbidden")
    name = str(first["loc"][0]) if first["loc"] else "settings"
    if first["type"] == "extra_forbidden":
        known = list(Synthesis.model_fields)
        return f"{name!r} is not a setting of a synthetic corpus.{did_you_mean(name, known)}"
    if first["type"] == "missing":
        return f"A synthetic corpus needs {name}."
    if first["type"] == "value_error":
        return str(first["msg"]).removeprefix("Value error, ")
    reason = first["msg"][0].lower() + first["msg"][1:]
    return f"{name} is not accepted: {reason}."
