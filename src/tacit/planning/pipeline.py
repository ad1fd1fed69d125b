"""From a plan's file and an owner graph to a run: what was promised is what is trained.

`tacit plan -o` writes a plan with its noise, its digest, and the digest of the owner graph that it
was made on; `tacit train --plan --owners` takes them as they are, or refuses.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tacit.corpus import Corpus
from tacit.detection.provenance import Provenance, read_provenance, unknown_origin
from tacit.errors import DataError, PrivacyRefused, UsageError
from tacit.owners import Owners
from tacit.planning.plan import CALIBRATED, Plan, plan_file_fields, plan_yaml
from tacit.privacy.certificates.manifest import file_digest


def plan_file(plan: Plan, owners: Owners | None = None) -> str:
    """A calibrated plan as a YAML file that says what it was calibrated as, and on which graph."""
    seal = {"plan": plan.digest()}
    if owners is not None and "entities" in plan.protect:
        seal["owners"] = owners.of_kinds(plan.kinds).digest()
    return plan_yaml(plan) + yaml.safe_dump({CALIBRATED: seal}, sort_keys=False)


def read_plan_file(path: Path) -> tuple[Plan, str | None]:
    """A calibrated plan, and the digest of its owner graph; refused if changed since."""
    fields = plan_file_fields(path)
    seal = fields.pop(CALIBRATED, {})
    plan = Plan(**fields)
    if plan.noise_multiplier is None:
        raise UsageError(
            f"{path} has no noise_multiplier; calibrate it first: tacit plan {path} -o FILE."
        )
    if not isinstance(seal, dict) or seal.get("plan", plan.digest()) != plan.digest():
        raise DataError(
            f"{path} was changed after it was calibrated (its digest does not fit); plan again: "
            f"tacit plan {path} -o FILE."
        )
    return plan, seal.get("owners")


def plan_fields_of(plan: Plan) -> dict[str, Any]:
    """A plan as the `plan` of a run: every field that is no default, the noise included."""
    return plan.model_dump(mode="json", exclude_defaults=True)


def require_same_plan(run: Mapping[str, Any], plan: Plan, path: Path) -> None:
    """Refuse fields of a run (its `plan`, `steps`, `select`) that contradict the plan of a file."""
    given = dict(run.get("plan") or {})
    if run.get("steps") is not None:
        given["steps"] = run["steps"]
    if run.get("select", "last") != "last":
        given["select"] = run["select"]
    for name, value in given.items():
        try:
            asked = getattr(Plan(**plan.model_dump() | {name: value}), name)
        except UsageError:
            if name not in Plan.model_fields:
                raise
            asked = value
        if value is not None and asked != getattr(plan, name):
            raise PrivacyRefused(
                f"The run has {name}={value!r}, and {path} was planned with "
                f"{name}={getattr(plan, name)!r}; leave {name} out of the run, or plan again."
            )


def require_same_owners(
    plan: Plan | None, built: Owners, *, promised: str | None = None, file: Path | None = None
) -> None:
    """Refuse unless the graph that training builds is the one that was planned with.

    `promised` is the digest in the plan's file, `file` the graph that `tacit owners -o` wrote. Only
    what the plan protects is compared: a graph may hold other kinds of entities besides.
    """
    if plan is None or "entities" not in plan.protect:
        if file is not None:
            raise UsageError("This run promises nothing about entities; leave --owners out.")
        return
    own = built.of_kinds(plan.kinds)
    if file is not None:
        given = Owners.load(file)
        if differs := _difference(given.of_kinds(plan.kinds), own):
            raise PrivacyRefused(
                f"{file} is not the owner graph of this run's training text and mentions: "
                f"{differs}. Make it anew with `tacit owners`, and plan with that."
            )
        if given.origin.provenance != built.origin.provenance:
            raise PrivacyRefused(
                f"{file} was made from the marks of other detectors than this run's; make it anew "
                "with `tacit owners`, and plan with that."
            )
    if promised is not None and promised != own.digest():
        raise PrivacyRefused(
            "The plan was made on another owner graph than that of this run's training text and "
            "mentions; plan again with the graph that `tacit owners` makes of them."
        )


def _difference(one: Owners, other: Owners) -> str | None:
    """In what two graphs differ, without a name; None where they do not."""
    if one.digest() == other.digest():
        return None
    for what, name in (("records", "record_ids"), ("users", "users"), ("entities", "entities")):
        if getattr(one, name) != getattr(other, name):
            return (
                f"its {what} are others ({len(getattr(one, name)):,}, and here "
                f"{len(getattr(other, name)):,})"
            )
    return "who names whom is different"


def provenance_beside(mentions: Path, corpus: Corpus) -> Provenance:
    """Who found these mentions, if the summary beside them is about them and this corpus."""
    about = {"mentions_sha256": file_digest(mentions), "corpus": corpus.digest()}
    try:
        path = mentions.with_name(mentions.stem + ".summary.json")
        summary = json.loads(path.read_text(encoding="utf-8"))
        if all(summary[name] == digest for name, digest in about.items()):
            return read_provenance(summary["provenance"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return unknown_origin(mentions)
