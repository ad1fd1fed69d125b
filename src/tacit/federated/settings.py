"""What a federation adds to a run: who is waited for, how long, and what stays with the clients.

corpus: held-out.jsonl
method: dp-fedavg
plan: {protect: users, epsilon: 8, steps: 20, user_rate: 0.1, users: 5000}
federation: {clients: 40, round_seconds: 900}
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tacit.errors import DataError, MissingExtra, UsageError
from tacit.files import require_file
from tacit.planning.plan import Plan
from tacit.training.methods import METHODS
from tacit.training.methods.dp_fedavg import LocalSettings
from tacit.training.settings import Run, run_fields

NAME = "federation.yml"
FOLDER = "federation"
"""Where, in a run's folder, a federation keeps what must stay inside."""
CANNOT = "This client cannot take part"
"""So begins what a client logs of its own refusals."""

Seconds = Annotated[float, Field(gt=0, le=30 * 24 * 3600)]
Count = Annotated[int, Field(ge=1, le=10**7)]


class Federation(BaseModel):
    """Settings of a federation; all of them are public."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    clients: Annotated[
        Count, Field(description="So many clients have to have joined before training begins.")
    ] = 1
    least_clients: Annotated[
        Count, Field(description="A round begins only while so many clients are connected.")
    ] = 1
    join_seconds: Annotated[
        Seconds, Field(description="How long clients are waited for before they take part.")
    ] = 600.0
    round_seconds: Annotated[
        Seconds, Field(description="How long answers are waited for; what is late counts as zero.")
    ] = 600.0
    at_once: Annotated[
        Count, Field(description="Answers fetched at the same time: bounds memory.")
    ] = 32
    personal: Annotated[
        tuple[str, ...],
        Field(description="Parameters, by the beginning of their names, that never leave clients."),
    ] = ()
    personal_training: Annotated[
        LocalSettings, Field(description="How a client trains what is personal, user by user.")
    ] = LocalSettings()
    local: Annotated[
        LocalSettings, Field(description="What users do by themselves in plain averaging.")
    ] = LocalSettings()
    user_rate: Annotated[
        float, Field(gt=0, le=1, description="Plain averaging: how likely a user is in a round.")
    ] = 1.0

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise UsageError(_explain(error)) from None

    def digest(self) -> str:
        """A SHA-256 of the settings that decide the result."""
        deciding = {"personal", "personal_training", "local", "user_rate"}
        fields = self.model_dump(mode="json", include=deciding)
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


def _explain(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    name = ".".join(str(part) for part in first["loc"]) or "federation"
    if first["type"] == "extra_forbidden":
        known = ", ".join(Federation.model_fields)
        return f"federation.{name} is not a setting of a federation; known are {known}."
    given, reason = repr(first["input"])[:60], first["msg"]
    return f"federation.{name}={given} is not accepted: {reason[0].lower() + reason[1:]}."


def read_federated(
    path: Path, overrides: Mapping[str, Any] | None = None
) -> tuple[Run, Federation]:
    """The run and the federation of one YAML file, where `federation:` holds the latter."""
    fields = run_fields(path, overrides)
    given = fields.pop("federation", None) or {}
    if not isinstance(given, dict):
        raise DataError(f"{path}: federation holds `name: value` lines.")
    run, federation = Run(**fields), Federation(**given)
    require_federated(run, federation)
    return run, federation


def read_federation(path: Path) -> Federation:
    """The settings that lie beside a federated run."""
    try:
        fields = yaml.safe_load(require_file(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        raise DataError(f"{path} is not YAML; begin the federation again.") from None
    if not isinstance(fields, dict):
        raise DataError(f"{path} holds no settings of a federation; begin it again.")
    return Federation(**fields)


def federation_yaml(federation: Federation) -> str:
    """The settings as `read_federation` reads them."""
    return yaml.safe_dump(federation.model_dump(mode="json"), sort_keys=False)


def require_federated(run: Run, federation: Federation) -> None:
    """Refuse what is not done, or not true, where users' records lie with clients."""
    plan = run.made_plan()
    for problem in _problems(run, federation, plan):
        raise UsageError(problem)


def _problems(run: Run, federation: Federation, plan: Plan | None) -> Iterator[str]:
    if not run.spec.federated:
        others = ", ".join(spec.name for spec in METHODS.values() if spec.federated)
        yield f"method={run.method} is not federated; give {others}."
    if plan is not None:
        yield from _problems_of_plan(run, federation, plan)
    yield from _problems_of_run(run)
    yield from _problems_of_model(run, federation)


def _problems_of_plan(run: Run, federation: Federation, plan: Plan) -> Iterator[str]:
    if plan.user_rate is None:
        yield (
            f"protect={plan.protect}, mechanism={plan.mechanism} draws records; a federation draws "
            "users: protect users, or users+entities with userclip."
        )
    if plan.clip_quantile is not None:
        yield "clip_quantile is not federated; give a fixed clip_norm."
    if plan.precondition:
        yield "precondition is not federated: clients know no scales; leave it out."
    if plan.select == "best":
        yield "select=best is not federated: clients send no losses; leave it out."
    if plan.name_share > 0:
        yield (
            f"name_share={plan.name_share:g} is not federated: who shows a name is decided over "
            "all users' texts, which no client has; leave name_share at 0, and none is shown."
        )
    about_entities = "entities" in plan.protect or plan.about_names
    if about_entities and run.model.carry_ledger and run.detect is None:
        yield (
            "model.carry_ledger with mentions of the clients' own: whether they mark the same "
            "entities or names as in the earlier run cannot be checked; give detect."
        )
    if plan.record_clip is not None and federation.personal:
        yield (
            f"entity_share={plan.entity_share:g} needs each record's gradient to depend on that "
            "record alone, and personal parameters have learnt from the others; give "
            "entity_share=2."
        )


def _problems_of_run(run: Run) -> Iterator[str]:
    if run.task in ("tagging", "masked-word"):
        yield f"task={run.task} is not federated; next-word, classification, regression are."
    if run.entity_list is not None:
        yield "entity_list is not federated: clients know entities by name; give kinds."
    if run.spread_records is not None:
        yield "spread_records is not federated: clients say themselves what they give."
    if run.tokenizer.kind == "words" and run.tokenizer.public_text is None:
        yield (
            "tokenizer.kind=words would count words of the server's own corpus; give "
            "tokenizer.public_text."
        )


def _problems_of_model(run: Run, federation: Federation) -> Iterator[str]:
    if run.model.lora_rank and run.model.kind != "folder":
        yield (
            "lora_rank trains beside weights that clients need as well; give model.kind=folder, "
            "with the same folder at every client."
        )
    if run.model.trained_rows is not None:
        yield (
            "model.trained_rows counts tokens in public text, which clients do not have; leave it "
            "out."
        )
    if run.model.embeddings is not None and (run.model.trained or federation.personal):
        yield (
            "model.embeddings is read by the server alone, and clients begin with what is frozen "
            "or personal; leave embeddings out, or trained and personal."
        )
    if federation.personal and run.pretrain is not None:
        yield (
            "personal parameters begin as the model does, before a public start; train that with "
            "`tacit train`, and begin from its folder (model.kind=folder)."
        )


def require_flower() -> None:
    """One sentence where Flower is not installed."""
    try:
        import flwr  # noqa: F401
    except ImportError:
        raise MissingExtra.of(
            "Federated training runs on Flower, which is not installed", "federated"
        ) from None


def require_ray() -> None:
    """One sentence where Ray, on which Flower simulates, is not installed."""
    try:
        import ray  # noqa: F401
    except ImportError:
        raise MissingExtra.of(
            "Flower simulates clients on Ray, which is not installed", "federated", "ray"
        ) from None
