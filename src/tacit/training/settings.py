"""What a run is: one YAML file, checked before anything is read.

corpus: dialogs.jsonl
mentions: mentions.jsonl
method: dp-sgd
plan: {protect: users+entities, epsilon: 8, steps: 50, user_rate: 0.2}
model: {kind: lstm, config: {hidden_size: 64, embedding_size: 64}}
optimizer: {name: sgd, learning_rate: 2.0, momentum: 0.9}
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializationInfo,
    SerializeAsAny,
    ValidationError,
    model_serializer,
    model_validator,
)

from tacit.errors import DataError, UsageError
from tacit.files import require_file
from tacit.planning import recipes
from tacit.planning.plan import Plan
from tacit.presets import located
from tacit.privacy.certificates.documents import canonical_digest
from tacit.registry import did_you_mean
from tacit.training.methods import DEFAULT_METHOD, METHODS
from tacit.training.models.registries import MODELS, OPTIMIZERS, TaskName
from tacit.training.run_problems import MENTIONS, problems

if TYPE_CHECKING:
    from tacit.training.methods.method import MethodSpec

SUM_OF_UPDATES = {"name": "sgd", "learning_rate": 1.0, "momentum": 0.0}
"""The optimizer of methods whose users send updates: they are added up, nothing is scaled."""

Cap = Annotated[int, Field(ge=1, le=10**9)]
Rate = Annotated[float, Field(gt=0, le=1)]
Names = str | Annotated[tuple[str, ...], Field(min_length=1)]
"""One name, or several: files and known corpora."""
TextUnit = Literal["record", "sentence"]
TextStyle = Literal["as it is", "treebank"]


class SettingsPart(BaseModel):
    """A part of a run's settings: frozen, and unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelSettings(SettingsPart):
    """Which network: a family by name (`lstm`, `gpt2`, ...) from scratch, or a `folder`.

    `features` trains a linear head above the frozen encoder of a folder, `wordllama` if none is
    named; `states` an adapter above the last states of the frozen language model of a folder. In
    place of kind and folder, `model: smollm2` or `{name: smollm2, adapter: lora}` names a model
    that `tacit models` lists.
    """

    kind: Annotated[str, AfterValidator(MODELS.require)] = "lstm"
    folder: str | None = None
    config: dict[str, Any] = {}
    public_frequencies: Annotated[
        bool,
        Field(description="A new model begins by knowing how frequent tokens are in public text."),
    ] = False
    embeddings: Annotated[
        str | None,
        Field(
            description="A new model begins with public word vectors: glove (in the data folder), "
            "wordllama (that package), or a file (.npz, .txt, .vec)."
        ),
    ] = None
    carry_ledger: Annotated[
        bool,
        Field(
            description="Continue the run of that folder: it is verified, its releases are entered "
            "in the ledger, and the plan's targets cover both. Needed where the folder is a run's."
        ),
    ] = False
    trained_rows: Annotated[
        int | None,
        Field(
            ge=1,
            description="Of tables over the vocabulary (embedding, output layer), only the rows of "
            "so many tokens, the most frequent in public text, get updates and noise; all, if not "
            "given. A public start trains all of them.",
        ),
    ] = None
    lora_rank: Annotated[int, Field(ge=0)] = 0
    lora_targets: tuple[str, ...] = ()
    trained: Annotated[
        tuple[str, ...],
        Field(
            description="Only parameters whose names begin so are trained, such as classifier; the "
            "others stay as they are. All, if none is given."
        ),
    ] = ()

    adapter: Annotated[
        Literal["map", "bias", "last-block", "bitfit"],
        Field(
            description="states: what is trained beside a bias of each token that is moved: a map "
            "from directions of the last state to logits, nothing, or low-rank adapters in the "
            "last block. folder: bitfit trains biases and a head for labels alone. Short for other "
            "settings: lora (lora_rank: 4) and head (kind states or features)."
        ),
    ] = "map"
    adapter_tokens: Annotated[
        int,
        Field(
            ge=1,
            description="states: how many tokens have logits that are moved one by one, the most "
            "frequent in `adapter_text`; all others are moved together.",
        ),
    ] = 4096
    adapter_rank: Annotated[
        int,
        Field(
            ge=1,
            description="states: in how many directions of public states a map reads; of a last "
            "block, the rank of its adapters.",
        ),
    ] = 64
    adapter_writes: Annotated[
        int,
        Field(ge=1, description="states: in how many directions of the output layer a map writes."),
    ] = 128
    adapter_text: Annotated[
        str | None,
        Field(
            description="states: public text in which tokens are counted, and whose first records "
            "show these directions: a file or a known corpus; generated, if none is given."
        ),
    ] = None
    adapter_style: Annotated[
        TextStyle, Field(description="states: how that text is written, as in pretrain.style.")
    ] = "as it is"

    @model_validator(mode="before")
    @classmethod
    def _light_encoder(cls, values: Any) -> Any:
        """The encoder of `features` where none is named: static vectors, the lightest there is."""
        if isinstance(values, dict) and values.get("kind") == "features":
            return {**values, "folder": values.get("folder") or "wordllama"}
        return values

    @property
    def pretrained(self) -> bool:
        """Whether it begins with the weights of a folder, and reads text with its tokenizer."""
        return self.kind in ("folder", "features", "states")


class TokenizerSettings(SettingsPart):
    """A byte-level BPE of public text, a folder, or whole words.

    Words are counted from the public text if one is given; else, as in the papers, from the
    private corpus, which the certificate records as a leak.
    """

    kind: Literal["bpe", "folder", "words"] = "bpe"
    folder: str | None = None
    size: Annotated[int, Field(ge=300, le=200_000)] = 4000
    public_text: Annotated[
        Names | None,
        Field(
            description="Public text to learn from: a file, a known corpus, generated, or several."
        ),
    ] = None
    min_count: Annotated[int | None, Field(ge=1)] = None
    punctuation: Annotated[bool, Field(description="Words: keep marks that stand alone.")] = False
    digits: Annotated[bool, Field(description="Words: spell numbers, digit by digit.")] = False


class OptimizerSettings(SettingsPart):
    """How noisy sums become updates; none of this touches private data."""

    name: Annotated[str, AfterValidator(OPTIMIZERS.require)] = "sgd"
    learning_rate: Annotated[float, Field(gt=0)] = 1.0
    momentum: Annotated[float, Field(ge=0, lt=1, description="Of Adam, its first beta.")] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1, description="Of Adam, its second beta.")] = 0.999
    noise_floor: Annotated[
        float,
        Field(
            gt=0,
            description="Of dp-adam: a second moment without its noise counts as at least the "
            "square of so many standard deviations of the noise.",
        ),
    ] = 1.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: Annotated[int, Field(ge=0)] = 0
    average: Annotated[
        float, Field(ge=0, le=1, description="Share of the last steps whose weights are averaged.")
    ] = 0.0


class PublicStart(SettingsPart):
    """Training on public text before any private text is read; all its splits are used."""

    corpus: Annotated[
        Names, Field(description="Public text: a file, a known corpus, generated, or several.")
    ]
    unit: Annotated[
        TextUnit,
        Field(description="What is learnt at a time: its records, or the sentences in them."),
    ] = "record"
    style: Annotated[
        TextStyle,
        Field(
            description="How it is written: as it is, or as treebanks write text, clitics apart "
            "and without the marks that AG News and WikiText-2 put into theirs."
        ),
    ] = "as it is"
    steps: Annotated[int, Field(ge=1)] = 300
    batch: Annotated[int, Field(ge=1)] = 32
    optimizer: OptimizerSettings = OptimizerSettings(
        name="adamw", learning_rate=2e-3, schedule="linear"
    )
    seed: Annotated[
        int, Field(ge=0, description="Nothing here is secret, so the seed is fixed.")
    ] = 0


class RecipeSettings(SettingsPart):
    """Who chooses what is not given: `recipe: auto`, from public facts, before anything is read."""

    name: Literal["auto"]
    minutes: Annotated[
        float | None, Field(gt=0, description="CPU minutes that training may take.")
    ] = None
    edition: Annotated[
        int | None,
        Field(ge=1, description="Of the recipe that chose these settings; nothing is left open."),
    ] = None


class MethodSettings(SettingsPart):
    """A method's own settings, in the section that bears its name; most have none."""


class Run(SettingsPart):
    """Everything that decides a run."""

    corpus: str
    recipe: Annotated[
        RecipeSettings | None,
        Field(
            description="auto: what is not given is chosen from the task, the plan and the numbers "
            "that it declares."
        ),
    ] = None
    data: str | None = None
    mentions: Annotated[
        str | None, Field(description="What is sensitive: the file that `tacit detect` writes.")
    ] = None
    detect: Annotated[
        str | None,
        Field(description="Detectors to run if no file of mentions is given: patterns,lists,names"),
    ] = None
    policy: Annotated[
        str | None,
        Field(
            description="Which tokens are sensitive: digits, a detector (see `tacit policy show`); "
            "what the mentions mark if not given."
        ),
    ] = None
    method: Annotated[str, Field(description="As `tacit methods` lists them.")] = DEFAULT_METHOD
    options: Annotated[
        SerializeAsAny[MethodSettings],
        Field(description="The method's own settings; in a file, the section of its name."),
    ] = MethodSettings()
    plan: dict[str, Any] = {}
    steps: Annotated[int | None, Field(ge=1)] = None
    select: Annotated[
        Literal["last", "best"],
        Field(
            description="Which weights are kept: the last ones (averaged, where asked for), or the "
            "best of these and the start, by a comparison that the plan pays for."
        ),
    ] = "last"
    batch: Annotated[int, Field(ge=1, description="Records in a step of plain training.")] = 32
    spread_records: Annotated[
        Cap | None,
        Field(
            description="Only so many records of each user are learnt from, spread evenly over all "
            "of that user's in their order; all of them if not given."
        ),
    ] = None
    weigh: Annotated[
        Literal["records", "tokens"],
        Field(
            description="next-word: what weighs the same in training: each record, whose loss is "
            "the mean over its tokens, or each token, as in a perplexity."
        ),
    ] = "records"
    task: TaskName = "next-word"
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
    def _section_of_the_method(cls, values: Any) -> Any:
        """What a recipe chooses; the section of the method's name, which becomes `options`."""
        if not isinstance(values, dict) or not isinstance(values.get("method", ""), str):
            return values
        values = recipes.resolve(values).fields
        name = values.get("method", cls.model_fields["method"].default)
        spec = METHODS[name]
        for other in METHODS:
            if other != name and values.pop(other, None) is not None:
                raise UsageError(f"{other} has settings, and method={name}; leave them out.")
        section = values.pop(name, None)
        if section is not None or not isinstance(values.get("options"), spec.settings):
            section = (
                (section or {}) if not isinstance(section, BaseModel) else section.model_dump()
            )
            values["options"] = _checked(spec.settings, section, name)
        if spec.optimizer is not None:
            values = {"optimizer": spec.optimizer} | values
        return values

    @model_validator(mode="after")
    def _consistent(self) -> "Run":
        for problem in problems(self):
            raise UsageError(problem)
        return self

    @model_serializer(mode="wrap")
    def _with_section(self, handler: Any, info: SerializationInfo) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        if "options" in fields:
            fields.pop("options")
            own = self.options.model_dump(mode=info.mode, exclude_defaults=info.exclude_defaults)
            if own:
                fields[self.method] = own
        return fields

    @property
    def spec(self) -> "MethodSpec[Any]":
        """The method."""
        return METHODS[self.method]

    def made_plan(self) -> Plan | None:
        """The plan, where the method keeps one."""
        if not self.spec.planned:
            return None
        own = dict(self.spec.plan_fields) | self.plan
        if self.steps is not None:
            own["steps"] = self.steps
        if self.select == "best":
            own["select"] = self.select
        return Plan(**own)

    @property
    def knows_entities(self) -> bool:
        """Whether anything says what is sensitive in the text."""
        return self.mentions is not None or self.detect is not None

    @property
    def entity_list(self) -> str | None:
        """The file of the entities that are protected, where there is one."""
        given = getattr(self.options, "entity_list", None) or self.plan.get("entity_list")
        return None if given is None else str(given)

    @property
    def total_steps(self) -> int:
        """How many steps the private or plain phase has."""
        plan = self.made_plan()
        return plan.steps if plan else int(self.steps or 0)

    @property
    def masked_steps(self) -> int:
        """How many steps on masked text come before those; 0 for methods without such a phase."""
        return int(getattr(self.options, "steps", 0)) if self.spec.masked_phase else 0

    def policy_problems(self) -> Iterator[str]:
        """What is missing where tokens are to be protected."""
        if self.policy is None and not self.knows_entities:
            yield f"method={self.method} needs a policy, such as digits; or {MENTIONS}."

    def shareable(self) -> dict[str, Any]:
        """Every setting that matters to the result, without folders and files of this machine.

        What those files hold is bound by commitments in the ledger, not by their names.
        """
        fields = self.model_dump(mode="json", exclude=_NO_MATTER)
        for name in ("corpus", "data", "mentions"):
            fields[name] = None if fields[name] is None else "private"
        for part in (fields["plan"], fields.get(self.method, {})):
            if part.get("entity_list") is not None:
                part["entity_list"] = "private"
        for part, name in (
            (fields, "detect"), (fields, "policy"), (fields, "labels"), (fields["model"], "folder"),
            (fields["model"], "embeddings"), (fields["model"], "adapter_text"),
            (fields["tokenizer"], "folder"), (fields["tokenizer"], "public_text"),
            (fields["pretrain"] or {}, "corpus"),
        ):  # fmt: skip
            given = part.get(name)
            if isinstance(given, str):
                part[name] = _without_folders(given)
            elif isinstance(given, list) and name != "labels":
                part[name] = [_without_folders(one) for one in given]
        return fields

    def digest(self) -> str:
        """A SHA-256 of `shareable`."""
        return canonical_digest(self.shareable())


def each(names: Names) -> tuple[str, ...]:
    """The names that a setting holds, be it one or several."""
    return (names,) if isinstance(names, str) else names


_FOLDERS = re.compile(r"(?:(?<=[=,( ])|^)(?:[A-Za-z]:)?[^=,()]*[/\\](?=[^=,()])")


def _without_folders(text: str) -> str:
    """A setting that names files, with nothing but their own names.

    >>> _without_folders("patterns,lists=/home/ann/names.txt")
    'patterns,lists=names.txt'
    """
    return _FOLDERS.sub("", text)


_NO_MATTER = {"device", "token_budget", "checkpoint_every", "keep_checkpoints"}
"""Settings that change no weight."""


def read_run(path: Path, overrides: Mapping[str, Any] | None = None) -> Run:
    """The run of a YAML file; overrides may reach inside: `plan.epsilon`, `model.kind`.

    A file may name another one beside it as its `base`, and then holds only what differs.
    """
    return Run(**run_fields(path, overrides))


def run_fields(path: Path, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The settings of a YAML file, not yet checked."""
    return changed(_read_fields(located(path)), overrides or {})


def changed(fields: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with some replaced, in place; a name may reach inside: `plan.epsilon`."""
    if "mentions" in overrides:
        fields.pop("detect", None)  # a file of mentions stands for what a preset would detect
    for name, value in overrides.items():
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
    return recipes.joined(_read_fields(path.parent / located(Path(str(base))), depth + 1), fields)


def _put(fields: dict[str, Any], names: list[str], value: Any) -> None:
    *path, last = names
    if path == ["model"] and isinstance(fields.get("model"), str):
        fields["model"] = {"name": fields["model"]}
    for name in path:
        inner = fields.setdefault(name, {})
        if not isinstance(inner, dict):
            raise UsageError(f"{'.'.join(names)}: {name} holds a value, not fields.")
        fields = inner
    fields[last] = value


def run_yaml(run: Run) -> str:
    """The run as a YAML file that `read_run` gives back."""
    fields = run.model_dump(mode="json", exclude_defaults=True)
    if run.spec.optimizer is not None:  # what is the default elsewhere is a choice here
        fields["optimizer"] = run.optimizer.model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)


def _checked(part: type[MethodSettings], fields: Any, section: str) -> MethodSettings:
    """A method's section; what is wrong in it is named as in the file."""
    try:
        return part.model_validate(fields)
    except ValidationError as error:
        raise UsageError(_explain(error, section)) from None


def _explain(error: ValidationError, section: str = "") -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    name = ".".join(str(part) for part in ((section,) if section else ()) + first["loc"]) or "run"
    if first["type"] == "extra_forbidden":
        near = did_you_mean(str(first["loc"][-1]), _fields_beside(first["loc"], section))
        return f"{name!r} is not a setting of a run.{near}"
    if first["type"] == "missing":
        return f"The run needs {name}."
    given = repr(first["input"])
    reason = first["msg"][0].lower() + first["msg"][1:]
    return f"{name}={given[:60]} is not accepted: {reason}."


def _fields_beside(place: tuple[int | str, ...], section: str) -> list[str]:
    """The fields that might have been meant there."""
    if section:
        return list(METHODS[section].settings.model_fields)
    if len(place) == 1:
        return [*Run.model_fields, *METHODS]
    parts = (ModelSettings, TokenizerSettings, OptimizerSettings, PublicStart, RecipeSettings)
    return [name for part in parts for name in part.model_fields]
