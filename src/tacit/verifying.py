"""Check a certificate from the ledger and the plan: no data, no model code, no network."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tacit.errors import TacitError
from tacit.plan import Plan, read_plan
from tacit.privacy.certificate import (
    Certificate,
    Cost,
    file_digest,
    issue,
    read_certificate,
    render,
)
from tacit.privacy.events import NotPrivate, Public
from tacit.privacy.ledger import Books, read_ledger


@dataclass(frozen=True)
class Check:
    """One thing that was looked at, and whether it fits."""

    what: str
    ok: bool
    detail: str


def verify(run: Path) -> list[Check]:
    """Everything that can be checked about a run folder; a mismatch is a check that is not ok."""
    run = Path(run)
    checks: list[Check] = []
    certificate = _try(checks, "certificate", lambda: read_certificate(run / "certificate.json"))
    books = _try(checks, "ledger chain", lambda: read_ledger(run / "ledger.jsonl"))
    if not isinstance(certificate, Certificate) or not isinstance(books, Books):
        return checks
    plan = _try(checks, "plan", lambda: Plan(**certificate.plan))
    if not isinstance(plan, Plan):
        return checks
    checks[:] = [
        Check("certificate", True, "readable, every field known"),
        Check(
            "ledger chain", not books.torn, "torn last line" if books.torn else "every hash fits"
        ),
    ]
    checks += _ledger_checks(certificate, books)
    checks += _plan_checks(certificate, books, plan, run)
    try:
        checks += _recomputed(certificate, books, plan)
    except TacitError as error:
        checks.append(Check("epsilon", False, str(error)))
    checks += _file_checks(certificate, run)
    return checks


def _try(checks: list[Check], what: str, make: Callable[[], object]) -> object:
    try:
        return make()
    except TacitError as error:
        checks.append(Check(what, False, str(error)))
        return None


def _ledger_checks(certificate: Certificate, books: Books) -> Iterator[Check]:
    yield Check(
        "ledger digest",
        books.digest == certificate.ledger_digest,
        f"{len(books.entries):,} releases"
        if books.digest == certificate.ledger_digest
        else "the ledger is not the one that was certified",
    )
    yield Check(
        "number of releases",
        len(books.entries) == certificate.ledger_entries,
        f"{len(books.entries):,} in the ledger, {certificate.ledger_entries:,} certified",
    )
    phases = {phase: sum(books.releases(phase).values()) for phase in books.phases()}
    yield Check("phases", phases == certificate.phases, ", ".join(phases) or "none")


def _plan_checks(certificate: Certificate, books: Books, plan: Plan, run: Path) -> Iterator[Check]:
    same = plan.digest() == certificate.plan_digest == books.about.get("plan")
    yield Check("plan digest", same, "plan, certificate and ledger agree" if same else "differs")
    if (run / "plan.yml").exists():
        try:
            beside = read_plan(run / "plan.yml").digest() == plan.digest()
        except TacitError:
            beside = False
        yield Check("plan.yml", beside, "is the certified plan" if beside else "another plan")
    for name in ("config", "data", "randomness"):
        said = getattr(certificate.provenance, name)
        yield Check(name, books.about.get(name) == said, "as in the ledger's first line")
    planned = plan.event() if plan.noise_multiplier is not None else None
    executed = {e: n for e, n in books.releases().items() if not isinstance(e, Public | NotPrivate)}
    as_planned = set(executed) <= {planned}
    yield Check(
        "executed as planned",
        as_planned and sum(executed.values()) <= plan.steps,
        f"{sum(executed.values()):,} of {plan.steps:,} planned steps"
        if as_planned
        else "the ledger holds releases with other parameters than the plan's",
    )


def _recomputed(certificate: Certificate, books: Books, plan: Plan) -> Iterator[Check]:
    made = certificate.provenance
    missing = {plan.protect, *plan.limits} - set(certificate.costs)
    yield Check("units", not missing, ", ".join(certificate.costs) or "none")
    if missing:
        return
    fresh = issue(
        books,
        protect=plan.protect,
        units=tuple(certificate.costs),
        delta=plan.delta,
        plan=certificate.plan,
        plan_digest=certificate.plan_digest,
        config_digest=made.config,
        data=made.data,
        randomness=made.randomness,
        by_degree=plan.by_degree,
        context=certificate.context,
        weights=certificate.weights,
    )
    yield Check("delta", certificate.delta == plan.delta, f"{plan.delta:g}")
    yield Check("protected", certificate.protect == plan.protect, plan.protect)
    same_code = (made.tacit, made.dp_accounting) == (version("tacit"), version("dp-accounting"))
    for unit, cost in certificate.costs.items():
        yield _compare(unit, cost, fresh.costs[unit], same_code)
    for unit, target in plan.limits.items():
        epsilon = float(fresh.costs[unit].epsilon)
        yield Check(f"target for {unit}", epsilon <= target, f"{epsilon:.4g} of {target:g}")
    for name in ("standing", "sentence", "assumptions", "not_covered"):
        fits = getattr(fresh, name) == getattr(certificate, name)
        yield Check(
            name.replace("_", " "), fits, "as recomputed" if fits else "differs from what holds"
        )


def _compare(unit: str, certified: Cost, found: Cost, same_code: bool) -> Check:
    """By the same code the figures are equal; by other code the certified one may be larger."""
    said, now = float(certified.epsilon), float(found.epsilon)
    close = said == now or math.isclose(said, now, rel_tol=1e-6)
    rest = {"epsilon", "no_less_than", "opinions", "true_positive_rate"}
    ok = (close and _near(certified, found)) if same_code else now <= said * (1 + 1e-6)
    ok = ok and certified.model_dump(exclude=rest) == found.model_dump(exclude=rest)
    return Check(f"epsilon for {unit}", ok, f"certified {said:.6g}, recomputed {now:.6g}")


def _near(one: Cost, other: Cost) -> bool:
    if one.opinions.keys() != other.opinions.keys():
        return False
    if one.true_positive_rate.keys() != other.true_positive_rate.keys():
        return False
    pairs = [
        (one.no_less_than, other.no_less_than),
        *((one.opinions[k], other.opinions[k]) for k in one.opinions),
        *((one.true_positive_rate[k], other.true_positive_rate[k]) for k in one.true_positive_rate),
    ]
    return all(
        float(a) == float(b) or math.isclose(float(a), float(b), rel_tol=1e-6, abs_tol=1e-9)
        for a, b in pairs
    )


def _file_checks(certificate: Certificate, run: Path) -> Iterator[Check]:
    if (run / "certificate.md").exists():
        text = (run / "certificate.md").read_text(encoding="utf-8", errors="replace")
        same = text == render(certificate)
        yield Check("certificate.md", same, "says the same" if same else "says something else")
    for name, digest in certificate.weights.items():
        file = run / name
        inside = file.resolve().is_relative_to(run.resolve())
        found = file_digest(file) if inside and file.is_file() else None
        detail = "as certified" if found == digest else "missing" if found is None else "differs"
        yield Check(f"file {name}", found == digest, detail)
