"""What a run promises: its budget, its units, whose code takes part, what was found before."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tacit.planning.plan import Plan
from tacit.privacy.accounting.claims import PublishedPrice
from tacit.privacy.certificates.certificate import Finding, Promise, read_certificate
from tacit.privacy.certificates.scope import Plugin, Standing
from tacit.privacy.events import AnyEvent, Unit
from tacit.privacy.ledger import Allows, Releases
from tacit.registry import Registry
from tacit.training.methods import METHODS
from tacit.training.models.registries import MODELS, OPTIMIZERS
from tacit.training.settings import Run


def allowed(plan: Plan) -> Allows:
    """What the plan's budget allows, with room kept for the comparison that it means to make."""
    budget, selection = plan.budget, plan.selection()

    def allows(releases: Releases, event: AnyEvent) -> None:
        if selection is not None and event != selection:
            releases = {selection: 1} | releases
        budget.allows(releases, event)

    return allows


def promise_of(plan: Plan | None, claim: PublishedPrice | None) -> Promise:
    """What the certificate speaks of: the plan's units, or those of a paper's claim."""
    if plan is not None:
        fields = plan.model_dump(mode="json")
        return Promise(plan.protect, plan.units, plan.delta, fields, plan.by_degree)
    units: tuple[Unit, ...] = ("users", "entities", "users+entities") if claim else ("users",)
    return Promise(units[-1], units, claim.delta if claim else 1e-5, {})


def plugins_in(run: Run) -> Iterator[Plugin]:
    """What of other packages takes part in a run: its method, model family and optimizer."""
    chosen: tuple[tuple[str, Registry[Any], str, Standing], ...] = (
        ("method", METHODS, run.method, run.spec.standing),
        ("model family", MODELS, run.model.kind, "proved"),
        ("optimizer", OPTIMIZERS, run.optimizer.name, "proved"),
    )
    for kind, registry, name, standing in chosen:
        if origin := registry.origin(name):
            code = registry.code(name)
            yield Plugin(what=f"{kind} {name}", origin=origin, code=code, standing=standing)


def found_before(folder: Path, entries: int) -> tuple[Finding, ...]:
    """What audits and attacks found already, where a finished run is opened again."""
    path = folder / "certificate.json"
    if not path.exists():
        return ()
    before = read_certificate(path)
    return before.findings if before.ledger_entries == entries else ()
