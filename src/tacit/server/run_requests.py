"""What a caller asks for, as the settings of a run; nothing in it can name a file.

A run's own settings name files and folders of the machine. Here they are names of datasets, lists
and models of the server, and every other string is a plain word.
"""

import json
import re
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from tacit.detection import DEFAULT as DEFAULT_DETECTORS
from tacit.detection.detector import DETECTORS
from tacit.errors import UsageError
from tacit.planning.plan import Plan
from tacit.privacy.events import NotPrivate
from tacit.privacy.ledger import Releases
from tacit.registry import Registry
from tacit.training.methods import DEFAULT_METHOD, METHODS
from tacit.training.models.registries import MODELS
from tacit.training.settings import OptimizerSettings, Run

Name = Annotated[str, StringConstraints(pattern=r"^[\w][\w .,()+@-]{0,98}$")]
Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]{1,40}$")]
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_+-]{1,60}$")]
Label = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,100}$")]


def offered(registry: Registry[Any], from_files: Set[str]) -> tuple[str, ...]:
    """What a request may name: ours and those of packages, but for what reads files first."""
    return tuple(name for name in registry if name not in from_files)


def _one_of(registry: Registry[Any], from_files: Set[str]) -> AfterValidator:
    def check(name: str) -> str:
        if name not in (names := offered(registry, from_files)):
            raise ValueError(f"{name!r} is not offered here; accepted: {', '.join(names)}")
        return name

    return AfterValidator(check)


DETECTORS_FROM_FILES = frozenset({"tagger", "spacy", "presidio", "stanza"})
_MODELS_FROM_FILES = frozenset({"folder", "features", "states"})
DetectorName = Annotated[Word, _one_of(DETECTORS, DETECTORS_FROM_FILES)]
ModelKind = Annotated[Word, _one_of(MODELS, _MODELS_FROM_FILES)]
Policy = Annotated[
    str,
    StringConstraints(pattern=r"^(digits|patterns|lists)(\+(digits|patterns|lists)){0,2}$"),
]

_WORD = re.compile(r"[A-Za-z0-9_+-]{1,60}")
_OWN_WORDS = {
    "plan.kinds": re.compile(r"[A-Z]+/[A-Z_]+"),
    "plan.shown_kinds": re.compile(r"[A-Z]+/[A-Z_]+"),
    "plan.public_entities": re.compile(r"[^\x00-\x1f\x7f]{1,100}"),
}
"""Fields whose words are not plain ones: kinds, and names that are compared and never opened."""
_DEEPEST = 4


class RequestModel(BaseModel):
    """The body of a request: nothing in it is left unsaid or guessed."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


class ModelRequest(RequestModel):
    """A new network; to go on with a model of the server, give `continue_from` instead."""

    kind: ModelKind = "lstm"
    config: dict[Word, Any] = {}
    public_frequencies: bool = False
    lora_rank: Annotated[int, Field(ge=0, le=1024)] = 0


class TokenizerRequest(RequestModel):
    """Learned from public text that comes with the package, or words."""

    kind: Literal["bpe", "words"] = "bpe"
    size: Annotated[int, Field(ge=300, le=200_000)] = 4000
    public_text: Literal["generated"] | None = None
    min_count: Annotated[int | None, Field(ge=1, le=10**9)] = None
    punctuation: bool = False
    digits: bool = False


class PublicStartRequest(RequestModel):
    """Training on a public dataset first."""

    dataset: Id
    steps: Annotated[int, Field(ge=1, le=10**6)] = 300
    batch: Annotated[int, Field(ge=1, le=10**5)] = 32


class RunRequest(RequestModel):
    """A training run: how, whom to protect, and at what price."""

    name: Name = "run"
    method: Word = DEFAULT_METHOD
    """As `tacit methods` lists them."""
    recipe: Literal["auto"] | None = None
    """Choose what the request leaves open, from public facts; so it is, too, where a plan names
    neither steps nor a rate."""
    plan: dict[Word, Any] = Field(default={})
    """Whom to protect (`protect`: users, names, users+names, entities, users+entities or `both`,
    records, tokens), the targets, rates and caps: the fields of `tacit plan --schema`."""
    detectors: Annotated[tuple[DetectorName, ...], Field(max_length=9)] = ()
    """What finds entities and names; patterns, lists and names where the plan protects them."""
    entity_list: Id | None = None
    """Protect only what this list names."""
    policy: Policy | None = None
    """Which tokens are sensitive."""
    steps: Annotated[int | None, Field(ge=1, le=10**7)] = None
    batch: Annotated[int, Field(ge=1, le=10**5)] = 32
    task: Literal["next-word", "classification", "regression", "tagging"] = "next-word"
    labels: Annotated[tuple[Label, ...] | None, Field(max_length=10_000)] = None
    """Classes or tags, declared as public; counted ones end the promise."""
    model: ModelRequest = ModelRequest()
    tokenizer: TokenizerRequest = TokenizerRequest()
    context: Annotated[int, Field(ge=2, le=65_536)] = 128
    optimizer: OptimizerSettings | None = None
    method_settings: dict[Word, Any] = Field(default={})
    """The method's own settings."""
    public_start: PublicStartRequest | None = None
    continue_from: Id | None = None
    """Go on from this model; the promise then covers what it released, too."""
    token_budget: Annotated[int, Field(ge=64, le=10**7)] = 8192
    checkpoint_every: Annotated[int, Field(ge=1, le=10**6)] = 1
    keep_checkpoints: Annotated[int, Field(ge=0, le=50)] = 0
    seed: Annotated[int | None, Field(ge=0, le=2**31)] = None
    """Experiment mode: not for release."""


CORPUS_FILE, ENTITIES_FILE, PUBLIC_FILE = "corpus.jsonl", "entities.txt", "public.jsonl"
"""Where the things that a run names will lie in its folder."""
_PASSED_ON = {"method", "steps", "batch", "task", "labels", "context", "token_budget", "policy",
              "checkpoint_every", "keep_checkpoints", "seed"}  # fmt: skip


def _model_fields(asked: RunRequest, earlier: Path | None) -> dict[str, Any]:
    """A new model with its tokenizer, or one that goes on from an earlier one and has its own."""
    if earlier is None:
        return asked.model_dump(mode="json", include={"model", "tokenizer"})
    on = {"kind": "folder", "folder": str(earlier), "carry_ledger": True}
    return {"model": on | {"lora_rank": asked.model.lora_rank}}


def settings_of(asked: RunRequest, earlier: Path | None = None) -> Run:
    """The run that a request stands for; `earlier` is the folder of the model it goes on from."""
    method = METHODS[asked.method]
    plain = {"plan": asked.plan, "model.config": asked.model.config,
             "method_settings": asked.method_settings}  # fmt: skip
    for where, value in plain.items():
        for problem in _not_plain(where, value, 0):
            raise UsageError(problem)
    fields = asked.model_dump(mode="json", include=_PASSED_ON)
    plan, own = dict(asked.plan), dict(asked.method_settings)
    if "entity_list" in plan:
        raise UsageError("entity_list is a field of the request, not of the plan: give its id.")
    if plan.get("protect") == "both":
        plan["protect"] = "users+entities"
    if asked.entity_list is not None:
        # A method without a plan has the list among its own settings.
        in_section = not method.planned and method.takes("entity_list")
        (own if in_section else plan)["entity_list"] = ENTITIES_FILE
    fields |= {"corpus": CORPUS_FILE, "plan": plan}
    if asked.detectors:
        fields["detect"] = ",".join(asked.detectors)
    elif any(word in str(plan.get("protect")) for word in ("entities", "names")):
        fields["detect"] = DEFAULT_DETECTORS
    if asked.optimizer is not None:
        fields["optimizer"] = asked.optimizer
    if own and not method.settings.model_fields:
        raise UsageError(f"method={method.name} has no settings of its own; leave them out.")
    if own:
        fields[method.name] = own
    fields |= _model_fields(asked, earlier)
    if asked.public_start is not None:
        start = asked.public_start.model_dump(include={"steps", "batch"})
        fields["pretrain"] = {"corpus": PUBLIC_FILE, **start}
    if _by_recipe(asked):
        said = asked.model_fields_set | {"corpus", "plan", "detect", "pretrain", method.name}
        said |= {"model"} if earlier is not None else set()
        fields = {name: value for name, value in fields.items() if name in said}
        fields["recipe"] = "auto"
    return Run(**fields)


def _by_recipe(asked: RunRequest) -> bool:
    """Whether a recipe chooses: a plan that names no steps could not be carried out otherwise."""
    left_open = not {"steps", "user_rate", "record_rate"} & {*asked.plan, *asked.model_fields_set}
    served = asked.method == DEFAULT_METHOD and asked.continue_from is None
    return asked.recipe == "auto" or (served and left_open and bool(asked.plan))


def _not_plain(name: str, value: Any, depth: int) -> Iterator[str]:
    """What is wrong with a value that may be a number, a plain word, or a few of those."""
    if depth > _DEEPEST:
        yield f"{name} is nested too deeply."
    elif isinstance(value, dict):
        if len(value) > 100:
            yield f"{name} has too many fields."
        for key, item in value.items():
            if not _WORD.fullmatch(str(key)):
                yield f"{name} has a field whose name is not a plain word."
            else:
                yield from _not_plain(f"{name}.{key}", item, depth + 1)
    elif isinstance(value, list | tuple):
        if len(value) > 1000:
            yield f"{name} has too many values."
        for item in value:
            yield from _not_plain(name, item, depth + 1)
    elif isinstance(value, str):
        own = _OWN_WORDS.get(name)
        if not (_WORD.fullmatch(value) or (own is not None and own.fullmatch(value))):
            yield f"{name} is not a plain word."
    elif isinstance(value, int) and abs(value) > 10**15:
        yield f"{name} is too large a number."


def unproved_reason(run: Run) -> str | None:
    """Why nothing is proved about what a run releases; None where its plan's promise holds."""
    method = run.spec
    if method.standing != "proved":
        about = f"{method.standing}: {method.summary}"
        return f"Method {run.method} has no proved promise ({about})."
    if run.seed is not None:
        return "With a fixed seed the noise can be subtracted, so nothing is promised."
    from_corpus = run.tokenizer.kind == "words" and run.tokenizer.public_text is None
    if from_corpus and run.model.kind != "folder":
        return "Words counted from the private text are a leak that no epsilon covers."
    if run.task in ("classification", "tagging") and run.labels is None:
        return (
            "Labels counted from the private text are a leak that no epsilon covers; declare them."
        )
    return None


def shape_of(run: Run) -> str:
    """What a model's speed depends on, as a word to compare by."""
    config = run.model.model_dump(mode="json", include={"kind", "config", "lora_rank", "trained"})
    shape = [config, run.tokenizer.size, run.context, run.task]
    return json.dumps(shape, sort_keys=True, allow_nan=False)


def entities_of(run: Run, entity_list: str | None) -> str | None:
    """Which entities or names a run protects, as a word to compare by; None where it does none."""
    plan = run.made_plan()
    if plan is None or not ("entities" in plan.protect or plan.about_names):
        return None
    kinds = sorted(plan.kinds) if plan.kinds is not None else "all"
    what = [kinds, entity_list, run.detect]
    if plan.about_names:
        what += ["names", sorted(plan.public_entities)]
    return json.dumps(what, allow_nan=False)


def planned_releases(run: Run, plan: Plan | None) -> Releases:
    """Everything that a run may release, as it is to be charged."""
    if plan is not None:
        return plan.releases()
    return {NotPrivate(what=f"training by method {run.method}"): 1}
