"""What a run is: one YAML file, checked before anything is read.

corpus: dialogs.jsonl
mentions: mentions.jsonl
method: private
plan: {protect: users+entities, epsilon: 8, steps: 50, user_rate: 0.2}
model: {kind: lstm, hidden_size: 64, embedding_size: 64}
optimizer: {name: sgd, learning_rate: 2.0, momentum: 0.9}
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tacit.errors import DataError, UsageError
from tacit.files import require_file
from tacit.planning.plan import Plan
from tacit.presets import located
from tacit.privacy.certificates.documents import canonical_digest

METHODS = {
    "plain": ("heuristic", "training without protection; no epsilon"),
    "deidentify": (
        "heuristic",
        "entities replaced by their kind, then training without protection; no epsilon",
    ),
    "private": (
        "proved",
        "clipped sums with noise; the plan protects records, users, entities or users+entities",
    ),
    "fedavg": (
        "proved",
        "users train for some steps each, their whole update is clipped and noised; the plan "
        "protects users",
    ),
    "selective": (
        "proved",
        "plain tokens as they are, sensitive ones clipped and noised; the plan protects the tokens "
        "that a policy marks (LSTM)",
    ),
    "redact-then-private": (
        "proved",
        "first on text whose sensitive tokens are masked, then on the whole text with clipping and "
        "noise; the plan protects the tokens that a policy marks",
    ),
    "adversarial": (
        "heuristic",
        "a discriminator learns to tell the author from the last hidden state, the model to "
        "prevent it; no epsilon",
    ),
    "triplet": (
        "heuristic",
        "last hidden states of different authors drawn together, of one author driven apart; no "
        "epsilon",
    ),
    "uedp": (
        "published",
        "the user-entity algorithm as its paper prints it; the price that is proved stands beside",
    ),
}

PLANNED = ("private", "fedavg", "selective", "redact-then-private")
"""The methods that keep a plan."""

_SERVER = {"name": "sgd", "learning_rate": 1.0, "momentum": 0.0}
"""Methods whose users send updates add them up; nothing is left to scale."""

Cap = Annotated[int, Field(ge=1, le=10**9)]
Rate = Annotated[float, Field(gt=0, le=1)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelSettings(_Part):
    """Which network: `lstm`, `gpt2`, `bert` or `llama` from scratch, or a `folder` of weights."""

    kind: Literal["lstm", "awd-lstm", "gpt2", "bert", "llama", "folder"] = "lstm"
    folder: str | None = None
    config: dict[str, Any] = {}
    public_frequencies: Annotated[
        bool,
        Field(description="A new model begins by knowing how frequent tokens are in public text."),
    ] = False
    carry_ledger: Annotated[
        bool,
        Field(
            description="Continue the run of that folder: it is verified, its releases are entered "
            "in the ledger, and the plan's targets cover both. Needed where the folder is a run's."
        ),
    ] = False
    lora_rank: Annotated[int, Field(ge=0)] = 0
    lora_targets: tuple[str, ...] = ()
    trained: Annotated[
        tuple[str, ...],
        Field(
            description="Only parameters whose names begin so are trained, such as classifier; the "
            "others stay as they are. All, if none is given."
        ),
    ] = ()


class TokenizerSettings(_Part):
    """A byte-level BPE of public text, a folder, or whole words.

    Words are counted from the public text if one is given; else, as in the papers, from the
    private corpus, which the certificate records as a leak.
    """

    kind: Literal["bpe", "folder", "words"] = "bpe"
    folder: str | None = None
    size: Annotated[int, Field(ge=300, le=200_000)] = 4000
    public_text: Annotated[
        str | None,
        Field(description="Public text to learn from: a file, a known corpus, or generated."),
    ] = None
    min_count: Annotated[int | None, Field(ge=1)] = None
    punctuation: Annotated[bool, Field(description="Words: keep marks that stand alone.")] = False
    digits: Annotated[bool, Field(description="Words: spell numbers, digit by digit.")] = False


class OptimizerSettings(_Part):
    """How noisy sums become updates; none of this touches private data."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    learning_rate: Annotated[float, Field(gt=0)] = 1.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: Annotated[int, Field(ge=0)] = 0
    average: Annotated[
        float, Field(ge=0, le=1, description="Share of the last steps whose weights are averaged.")
    ] = 0.0


class PublicStart(_Part):
    """Training on public text before any private text is read; all its splits are used."""

    corpus: str
    steps: Annotated[int, Field(ge=1)] = 300
    batch: Annotated[int, Field(ge=1)] = 32
    optimizer: OptimizerSettings = OptimizerSettings(
        name="adamw", learning_rate=2e-3, schedule="linear"
    )
    seed: Annotated[
        int, Field(ge=0, description="Nothing here is secret, so the seed is fixed.")
    ] = 0


class RedactedStart(_Part):
    """Training on masked text before the private phase (method redact-then-private)."""

    steps: Annotated[int, Field(ge=1)] = 300
    batch: Annotated[int, Field(ge=1)] = 32
    optimizer: OptimizerSettings = OptimizerSettings(
        name="adamw", learning_rate=2e-3, schedule="linear"
    )


class LocalSettings(_Part):
    """What a drawn user does by itself before anything is clipped (method fedavg)."""

    local_epochs: Annotated[int, Field(ge=1, description="Passes over a user's records.")] = 1
    local_steps: Annotated[
        int | None, Field(ge=1, description="Batches instead of passes, if given.")
    ] = None
    local_batch: Annotated[int, Field(ge=1, description="Records in a local batch.")] = 8
    local_learning_rate: Annotated[float, Field(gt=0, description="Rate of the local SGD.")] = 0.5


class UedpSettings(_Part):
    """The published user-entity algorithm; docs/studies/papers.md explains its letters."""

    estimator: Annotated[
        Literal["f_E", "f_E+"], Field(description="f_E: sensitive records only; f_E+: plain too.")
    ] = "f_E+"
    entity_rule: Annotated[
        Literal["any", "all"],
        Field(description="A record takes part if any, or all, of its entities are drawn."),
    ] = "any"
    noise: Annotated[
        Literal["lemma", "patent"],
        Field(description="Noise by the lemmas (users per step + 1) or the patent (users + 1)."),
    ] = "lemma"
    user_rate: Rate = 0.05
    entity_rate: Rate = 0.5
    plain_rate: Rate = 1.0
    noise_multiplier: Annotated[
        float, Field(ge=0, le=1e9, description="Noise over the published sensitivity.")
    ] = 2.0
    clip_norm: Annotated[float, Field(gt=0, description="Norm of a user's update.")] = 0.1
    local_learning_rate: Annotated[
        float, Field(gt=0, description="Rate by which a gradient becomes a user's update.")
    ] = 1.0
    user_weight_cap: Annotated[Cap, Field(description="Records of a user of full weight.")] = 1
    entity_weight_cap: Annotated[Cap, Field(description="Records of an entity likewise.")] = 1
    plain_weight_cap: Annotated[Cap, Field(description="Plain records in all likewise.")] = 1
    kinds: tuple[str, ...] | None = None
    entity_list: Annotated[
        str | None, Field(description="A file of entities, one a line: only these are sensitive.")
    ] = None
    delta: Annotated[float, Field(gt=0, le=0.01)] = 1e-5


class SelectiveSettings(_Part):
    """What selective training has beside its plan."""

    state_clip: Annotated[
        float | None,
        Field(
            gt=0, description="Norm of a hidden or cell state; the plan's clip_norm if not given."
        ),
    ] = None
    plain_norm: Annotated[
        float | None,
        Field(
            gt=0,
            description="Norm to which a plain update is scaled down, so that training stays "
            "stable; no part of the promise. Not scaled if not given.",
        ),
    ] = None


class RegularizerSettings(_Part):
    """What the privacy regularizers share (methods adversarial and triplet)."""

    privacy_weight: Annotated[
        float, Field(ge=0, le=1e6, description="The privacy loss over that of the task.")
    ] = 1.0
    attribute: Annotated[
        str,
        Field(
            min_length=1,
            description="What is to be hidden: user, label, or a column of the corpus's file.",
        ),
    ] = "user"
    batches: Annotated[
        Literal["grouped", "mixed"],
        Field(description="Grouped: records of a user (of a value) stand together in a batch."),
    ] = "mixed"


class AdversarialSettings(RegularizerSettings):
    """The discriminator of method adversarial: two layers, learning by Adam."""

    hidden_size: Annotated[int, Field(ge=1, le=100_000)] = 1000
    learning_rate: Annotated[float, Field(gt=0, description="Its own learning rate.")] = 1e-3


class TripletSettings(RegularizerSettings):
    """How far method triplet drives records of one author apart."""

    bound: Annotated[
        float,
        Field(
            gt=0,
            description="Squared distance for each coordinate, beyond which nothing is gained.",
        ),
    ] = 1.0


class Run(_Part):
    """Everything that decides a run."""

    corpus: str
    data: str | None = None
    mentions: Annotated[
        str | None, Field(description="What is sensitive: the file that `tacit detect` writes.")
    ] = None
    detect: Annotated[
        str | None,
        Field(description="Detectors to run if no file of mentions is given: patterns,lists"),
    ] = None
    policy: Annotated[
        str | None,
        Field(
            description="Which tokens are sensitive: digits, a detector (see `tacit policy show`); "
            "what the mentions mark if not given."
        ),
    ] = None
    method: Literal[
        "plain",
        "deidentify",
        "private",
        "fedavg",
        "selective",
        "redact-then-private",
        "adversarial",
        "triplet",
        "uedp",
    ] = "private"
    plan: dict[str, Any] = {}
    fedavg: LocalSettings | None = None
    uedp: UedpSettings | None = None
    selective: SelectiveSettings | None = None
    redacted: RedactedStart | None = None
    adversarial: AdversarialSettings | None = None
    triplet: TripletSettings | None = None
    steps: Annotated[int | None, Field(ge=1)] = None
    batch: Annotated[int, Field(ge=1, description="Records in a step of plain training.")] = 32
    task: Literal["next-word", "masked-word", "classification", "regression", "tagging"] = (
        "next-word"
    )
    labels: Annotated[
        tuple[str, ...] | str | None,
        Field(
            description="Classes or tags, declared as public: a list, a file with one a line, or "
            "`pretrained` for those of the model's folder. Counted from the private text if not "
            "given, which ends the promise."
        ),
    ] = None
    label_range: Annotated[
        tuple[float, float], Field(description="Of a regression: public bounds of its labels.")
    ] = (0.0, 5.0)
    model: ModelSettings = ModelSettings()
    tokenizer: TokenizerSettings = TokenizerSettings()
    context: Annotated[int, Field(ge=2, description="Longest record, in tokens.")] = 128
    optimizer: OptimizerSettings = OptimizerSettings()
    pretrain: PublicStart | None = None
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Field(description="Where the model lives; auto takes a GPU where there is one."),
    ] = "auto"
    token_budget: Annotated[
        int, Field(ge=64, description="Tokens in memory at once; does not change the result.")
    ] = 8192
    checkpoint_every: Annotated[int, Field(ge=1)] = 1
    keep_checkpoints: Annotated[
        int,
        Field(
            ge=0,
            le=1000,
            description="Models kept on the way, evenly spread, to be attacked; none of them costs "
            "anything, since each is made of what the ledger holds already.",
        ),
    ] = 0
    seed: Annotated[
        int | None,
        Field(
            ge=0, description="Experiment mode: a fixed seed. The model is then not for release."
        ),
    ] = None

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise UsageError(_explain(error)) from None

    @model_validator(mode="before")
    @classmethod
    def _server(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("method") in ("fedavg", "uedp"):
            return {"optimizer": _SERVER, values["method"]: {}} | values
        if isinstance(values, dict) and values.get("method") in ("adversarial", "triplet"):
            return {values["method"]: {}} | values
        return values

    @model_validator(mode="after")
    def _consistent(self) -> "Run":
        for problem in _problems(self):
            raise UsageError(problem)
        return self

    def made_plan(self) -> Plan | None:
        """The plan, where the method has one."""
        if self.method not in PLANNED:
            return None
        own = {"protect": "tokens", "mechanism": self.method} if self.method in _OF_TOKENS else {}
        return Plan(**own | self.plan | ({"steps": self.steps} if self.steps is not None else {}))

    @property
    def knows_entities(self) -> bool:
        """Whether anything says what is sensitive in the text."""
        return self.mentions is not None or self.detect is not None

    @property
    def entity_list(self) -> str | None:
        """The file of the entities that are protected, where there is one."""
        given = self.uedp.entity_list if self.uedp else self.plan.get("entity_list")
        return None if given is None else str(given)

    @property
    def regularizer(self) -> RegularizerSettings | None:
        """The settings of the privacy regularizer, where the method is one."""
        return self.adversarial or self.triplet

    @property
    def total_steps(self) -> int:
        """How many steps the private or plain phase has."""
        plan = self.made_plan()
        return plan.steps if plan else int(self.steps or 0)

    @property
    def masked_steps(self) -> int:
        """How many steps on masked text come before those; 0 for methods without such a phase."""
        if self.method != "redact-then-private":
            return 0
        return (self.redacted or RedactedStart()).steps

    def shareable(self) -> dict[str, Any]:
        """Every setting that matters to the result, without folders and files of this machine.

        What those files hold is bound by commitments in the ledger, not by their names.
        """
        fields = self.model_dump(mode="json", exclude=_NO_MATTER)
        for name in ("corpus", "data", "mentions"):
            fields[name] = None if fields[name] is None else "private"
        for part in (fields["plan"], fields["uedp"] or {}):
            if part.get("entity_list") is not None:
                part["entity_list"] = "private"
        for part, name in (
            (fields, "detect"), (fields, "policy"), (fields, "labels"), (fields["model"], "folder"),
            (fields["tokenizer"], "folder"), (fields["tokenizer"], "public_text"),
            (fields["pretrain"] or {}, "corpus"),
        ):  # fmt: skip
            if isinstance(part.get(name), str):
                part[name] = _without_folders(part[name])
        return fields

    def digest(self) -> str:
        """A SHA-256 of `shareable`."""
        return canonical_digest(self.shareable())


_FOLDERS = re.compile(r"(?:(?<=[=,( ])|^)(?:[A-Za-z]:)?[^=,()]*[/\\](?=[^=,()])")


def _without_folders(text: str) -> str:
    """A setting that names files, with nothing but their own names.

    >>> _without_folders("patterns,lists=/home/ann/names.txt")
    'patterns,lists=names.txt'
    """
    return _FOLDERS.sub("", text)


_NO_MATTER = {"device", "token_budget", "checkpoint_every", "keep_checkpoints"}
"""Settings that change no weight."""
_OF_TOKENS = ("selective", "redact-then-private")
"""The methods that protect tokens; each is the mechanism of its plan."""
_MENTIONS = "mentions (the file that `tacit detect` writes) or detect (patterns,lists)"


def _problems(run: Run) -> Iterator[str]:
    """What is wrong with settings that are each right by themselves."""
    if run.method in PLANNED:
        yield from _plan_problems(run)
    elif run.steps is None:
        yield f"method={run.method} needs steps."
    elif run.plan:
        why = "is not ours to promise" if run.method == "uedp" else "promises nothing"
        yield f"method={run.method} {why}, so it takes no plan."
    if run.redacted is not None and run.method != "redact-then-private":
        yield f"redacted has settings, and method={run.method}; leave them out."
    for name in ("fedavg", "uedp", "selective", "adversarial", "triplet"):
        if getattr(run, name) is not None and run.method != name:
            yield f"{name} has settings, and method={run.method}; leave them out."
    if run.labels is not None and run.task not in ("classification", "tagging"):
        yield f"labels are for classification and tagging; task={run.task} has none."
    if run.labels == "pretrained" and run.model.kind != "folder":
        yield "labels=pretrained takes those of model.folder; give model.kind=folder, or a list."
    if run.model.carry_ledger and run.model.kind != "folder":
        yield "model.carry_ledger goes with model.kind=folder; leave it out."
    if run.model.kind == "folder" and not run.model.folder:
        yield "model.kind=folder needs model.folder."
    if run.tokenizer.folder is not None and run.tokenizer.kind != "folder":
        yield "tokenizer.folder goes with tokenizer.kind=folder; leave one of them out."
    if run.model.public_frequencies:
        yield from _frequency_problems(run)
    if run.mentions is not None and run.detect is not None:
        yield "mentions and detect are both given; give the file, or the detectors."
    if run.method in ("deidentify", "uedp") and not run.knows_entities:
        yield f"method={run.method} needs {_MENTIONS}."


def _frequency_problems(run: Run) -> Iterator[str]:
    """What stands against beginning with the frequencies of public text."""
    if run.model.kind == "folder" or run.task != "next-word":
        yield "public_frequencies is for new models of next words; leave it out."
    if run.tokenizer.kind == "folder" or (
        run.tokenizer.kind == "words" and run.tokenizer.public_text is None
    ):
        yield (
            "public_frequencies counts the text that the tokenizer was learned from, and here that "
            "is not public text; give tokenizer.public_text."
        )


def _plan_problems(run: Run) -> Iterator[str]:
    if not run.plan:
        yield f"method={run.method} needs a plan: whom to protect, and at what price."
        return
    plan = run.made_plan()
    assert plan is not None
    if "entities" in plan.protect and not run.knows_entities:
        yield f"protect={plan.protect} needs {_MENTIONS}."
    if plan.mechanism != run.method and (plan.mechanism == "selective" or run.method in _OF_TOKENS):
        yield (
            f"method={run.method} does not carry out protect={plan.protect}, mechanism="
            f"{plan.mechanism}; the methods {' and '.join(_OF_TOKENS)} have protect=tokens and a "
            "mechanism of their own name."
        )
    if run.method in _OF_TOKENS:
        yield from _token_problems(run)
    if run.method == "fedavg" and plan.user_rate is None:
        yield f"method=fedavg is about users; protect={plan.protect} draws records."
    if run.method == "fedavg" and plan.record_clip is not None:
        yield (
            f"entity_share={plan.entity_share:g} needs records clipped one by one, which several "
            "local steps do not do; give entity_share=2, or method=private."
        )


def _token_problems(run: Run) -> Iterator[str]:
    if run.policy is None and not run.knows_entities:
        yield f"method={run.method} needs a policy, such as digits; or {_MENTIONS}."
    if run.method == "selective" and run.task != "next-word":
        yield f"method=selective predicts next words; task={run.task} has no segments."
    if run.task == "tagging":
        yield f"method={run.method} masks words, and task=tagging needs a tag for each of them."
    if run.method == "selective" and (
        run.model.lora_rank or run.model.kind not in ("lstm", "awd-lstm", "folder")
    ):
        yield (
            f"method=selective is for LSTMs, whose states are known; model.kind={run.model.kind} "
            "with a lora_rank of "
            f"{run.model.lora_rank} is not one. Give model.kind=lstm."
        )


def read_run(path: Path, overrides: Mapping[str, Any] | None = None) -> Run:
    """The run of a YAML file; overrides may reach inside: `plan.epsilon`, `model.kind`.

    A file may name another one beside it as its `base`, and then holds only what differs.
    """
    return Run(**run_fields(path, overrides))


def run_fields(path: Path, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The settings of a YAML file, not yet checked."""
    fields = _read_fields(located(path))
    if "mentions" in (overrides or {}):
        fields.pop("detect", None)  # a file of mentions stands for what a preset would detect
    for name, value in (overrides or {}).items():
        _put(fields, name.split("."), value)
    return {str(k): v for k, v in fields.items()}


def _read_fields(path: Path, depth: int = 0) -> dict[str, Any]:
    try:
        fields = yaml.safe_load(require_file(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        raise DataError(f"{path} is not YAML; a run is `name: value` lines.") from None
    if not isinstance(fields, dict):
        raise DataError(f"{path} is not a run; a run is `name: value` lines.")
    base = fields.pop("base", None)
    if base is None:
        return fields
    if depth > 8:
        raise DataError(f"{path}: its base has a base, and so on; at most eight are followed.")
    return _over(_read_fields(path.parent / located(Path(str(base))), depth + 1), fields)


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """The fields of both; where both have one, that of `above`, part by part."""
    joined = dict(below)
    for name, value in above.items():
        inner = joined.get(name)
        if isinstance(inner, dict) and isinstance(value, dict):
            value = _over(inner, value)
        joined[name] = value
    return joined


def _put(fields: dict[str, Any], names: list[str], value: Any) -> None:
    *path, last = names
    for name in path:
        inner = fields.setdefault(name, {})
        if not isinstance(inner, dict):
            raise UsageError(f"{'.'.join(names)}: {name} holds a value, not fields.")
        fields = inner
    fields[last] = value


def run_yaml(run: Run) -> str:
    """The run as a YAML file that `read_run` gives back."""
    fields = run.model_dump(mode="json", exclude_defaults=True)
    if run.method in ("fedavg", "uedp"):  # what is the default elsewhere is a choice here
        fields["optimizer"] = run.optimizer.model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)


def _explain(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    name = ".".join(str(part) for part in first["loc"]) or "run"
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(first["loc"][-1]), _all_fields(), n=1, cutoff=0.0)
        return f"{name!r} is not a setting of a run; did you mean {near[0]!r}?"
    if first["type"] == "missing":
        return f"The run needs {name}."
    given = repr(first["input"])
    reason = first["msg"][0].lower() + first["msg"][1:]
    return f"{name}={given[:60]} is not accepted: {reason}."


def _all_fields() -> list[str]:
    parts = (Run, ModelSettings, TokenizerSettings, OptimizerSettings, PublicStart, LocalSettings,
             UedpSettings, SelectiveSettings, RedactedStart, AdversarialSettings,
             TripletSettings)  # fmt: skip
    return [name for part in parts for name in part.model_fields]
