"""What a run is: one YAML file, checked before anything is read.

corpus: dialogs.jsonl
mentions: mentions.jsonl
method: private
plan: {protect: users+entities, epsilon: 8, steps: 50, user_rate: 0.2}
model: {kind: lstm, hidden_size: 64, embedding_size: 64}
optimizer: {name: sgd, rate: 2.0, momentum: 0.9}
"""

import difflib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tacit.errors import DataError, UsageError
from tacit.files import need_file
from tacit.plan import Plan

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
}


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelSettings(_Part):
    """Which network: `lstm`, `gpt2`, `bert` or `llama` from scratch, or a `folder` of weights."""

    kind: Literal["lstm", "awd-lstm", "gpt2", "bert", "llama", "folder"] = "lstm"
    folder: str | None = None
    config: dict[str, Any] = {}
    lora_rank: Annotated[int, Field(ge=0)] = 0
    lora_targets: tuple[str, ...] = ()


class TokenizerSettings(_Part):
    """A byte-level BPE trained on public text, a folder, or the papers' word vocabulary."""

    kind: Literal["bpe", "folder", "words"] = "bpe"
    folder: str | None = None
    size: Annotated[int, Field(ge=300, le=200_000)] = 4000
    public_text: Annotated[
        str | None,
        Field(description="A corpus of public text for the BPE; generated if not given."),
    ] = None
    min_count: Annotated[int | None, Field(ge=1)] = None


class OptimizerSettings(_Part):
    """How noisy sums become updates; none of this touches private data."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    rate: Annotated[float, Field(gt=0)] = 1.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: Annotated[int, Field(ge=0)] = 0
    average: Annotated[
        float, Field(ge=0, le=1, description="Share of the last steps whose weights are averaged.")
    ] = 0.0


class PublicStart(_Part):
    """Training on public text before any private text is read."""

    corpus: str
    steps: Annotated[int, Field(ge=1)] = 300
    batch: Annotated[int, Field(ge=1)] = 32
    optimizer: OptimizerSettings = OptimizerSettings(name="adamw", rate=2e-3, schedule="linear")


class Run(_Part):
    """Everything that decides a run."""

    corpus: str
    data: str | None = None
    mentions: str | None = None
    method: Literal["plain", "deidentify", "private"] = "private"
    plan: dict[str, Any] = {}
    steps: Annotated[int | None, Field(ge=1)] = None
    batch: Annotated[int, Field(ge=1, description="Records in a step of plain training.")] = 32
    task: Literal["next-word", "classification", "regression", "tagging"] = "next-word"
    model: ModelSettings = ModelSettings()
    tokenizer: TokenizerSettings = TokenizerSettings()
    context: Annotated[int, Field(ge=2, description="Longest record, in tokens.")] = 128
    optimizer: OptimizerSettings = OptimizerSettings()
    pretrain: PublicStart | None = None
    token_budget: Annotated[
        int, Field(ge=64, description="Tokens in memory at once; does not change the result.")
    ] = 8192
    checkpoint_every: Annotated[int, Field(ge=1)] = 1
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

    @model_validator(mode="after")
    def _consistent(self) -> "Run":
        if self.method == "private":
            plan = self.plan | ({"steps": self.steps} if self.steps is not None else {})
            if not plan:
                raise UsageError("method=private needs a plan: whom to protect, and at what price.")
            made = Plan(**plan)
            if "entities" in made.protect and self.mentions is None:
                raise UsageError(
                    f"protect={made.protect} needs mentions: the file that `tacit detect` writes."
                )
        elif self.steps is None:
            raise UsageError(f"method={self.method} needs steps.")
        elif self.plan:
            raise UsageError(f"method={self.method} promises nothing, so it takes no plan.")
        if self.model.kind == "folder" and not self.model.folder:
            raise UsageError("model.kind=folder needs model.folder.")
        if self.method == "deidentify" and self.mentions is None:
            raise UsageError("method=deidentify needs mentions: what is to be replaced.")
        return self

    def made_plan(self) -> Plan | None:
        """The plan, where the method has one."""
        if self.method != "private":
            return None
        return Plan(**self.plan | ({"steps": self.steps} if self.steps is not None else {}))

    @property
    def total_steps(self) -> int:
        """How many steps the private or plain phase has."""
        plan = self.made_plan()
        return plan.steps if plan else int(self.steps or 0)

    def digest(self) -> str:
        """A SHA-256 of every setting that matters to the result."""
        fields = self.model_dump(mode="json", exclude={"token_budget", "checkpoint_every"})
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def read_run(path: Path, overrides: Mapping[str, Any] | None = None) -> Run:
    """The run of a YAML file; overrides may reach inside: `plan.epsilon`, `model.kind`."""
    try:
        fields = yaml.safe_load(need_file(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        raise DataError(f"{path} is not YAML; a run is `name: value` lines.") from None
    if not isinstance(fields, dict):
        raise DataError(f"{path} is not a run; a run is `name: value` lines.")
    for name, value in (overrides or {}).items():
        _put(fields, name.split("."), value)
    return Run(**{str(k): v for k, v in fields.items()})


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
    parts = (Run, ModelSettings, TokenizerSettings, OptimizerSettings, PublicStart)
    return [name for part in parts for name in part.model_fields]
