"""What all runs on one dataset may spend together.

Before a run may start, everything that it plans to release is *reserved*. When it ends, however it
ends, it is charged for what its ledger holds: that was released, and nothing gives it back. The sum
is never one of epsilons: the releases of all runs are put together and priced as one.

Pricing takes a second or more, so it is done outside any transaction, on a numbered state of the
charges. The transaction that reserves locks the dataset and looks whether that number still holds;
if somebody reserved meanwhile, everything is priced anew. So two runs that start at one moment are
seen one after the other, on every database and from any number of processes.

Runs whose method promises nothing that is proved are refused where there is a budget, unless an
admin allows them for that dataset; their releases have no bound, so they stand beside the sum, by
name, and never inside it.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from tacit.errors import OverBudget, PrivacyRefused, TacitError
from tacit.privacy.accounting.pricing import price
from tacit.privacy.events import Public, Unit, read_event, whole_passes, write_event
from tacit.privacy.ledger import Releases, read_ledger
from tacit.privacy.rounding import up
from tacit.server import Json
from tacit.server.errors import Busy
from tacit.server.storage import Charge, Dataset, Job, Storage, now, require

_TRIES = 50
_POINTS = 100

ALLOW = (
    "An admin may allow such runs for this dataset (unproved_allowed); their models then say so."
)

THAW = "An admin who has looked at what was spent may thaw it."


@dataclass(frozen=True)
class PlannedCharge:
    """What a run may release."""

    releases: Releases
    unproved: str | None = None
    """Why nothing is proved about it; None where its plan's promise holds."""
    entities: str | None = None
    """Which entities it protects, as a word to compare by; None where it protects none."""


@dataclass(frozen=True)
class _State:
    """The charges of a dataset at one moment, known by a number."""

    number: int
    limits: dict[Unit, float] | None
    delta: float
    unproved_allowed: bool
    frozen: str
    charges: dict[str, Releases]
    unproved: frozenset[str]
    entities: dict[str, str]
    """Which entities each of the runs protects; runs that protect none are not here."""


@dataclass(frozen=True)
class Budgets:
    """The budgets of all datasets."""

    storage: Storage
    _prices: dict[tuple[frozenset[Any], str, float], float] = field(default_factory=dict)

    def reserve(
        self, dataset: str, job: str, planned: PlannedCharge, *,
        also: Callable[[Session], None] | None = None, note: str = "",
    ) -> None:  # fmt: skip
        """Charge a run for all that it may release, or refuse it; `also` happens with it.

        *Guarantee*: when this returns, the charges of all runs on the dataset together, this one
        included, are within its budget, whoever else reserved at the same moment.
        """
        for _ in range(_TRIES):
            state = self._state(dataset)
            self._check(state, job, planned)
            with self.storage.write() as session:
                row = require(session, Dataset, dataset, lock=True)
                if row.charges_made != state.number:
                    continue
                if also is not None:
                    also(session)
                    session.flush()
                _charge(session, row, job, "reserved", planned.releases, note)
                return
        raise Busy("Too many runs are being started on this dataset; try again in a moment.")

    def would_refuse(self, dataset: str, planned: PlannedCharge) -> str | None:
        """Why a run with these releases would be refused now; None if it would not be."""
        try:
            self._check(self._state(dataset), "", planned)
        except PrivacyRefused as refused:
            return str(refused)
        return None

    def _check(self, state: _State, job: str, planned: PlannedCharge) -> None:
        if state.frozen:
            raise PrivacyRefused(f"The dataset is frozen: {state.frozen} {THAW}")
        if state.limits is None:
            return
        if planned.unproved is not None:
            if not state.unproved_allowed:
                raise PrivacyRefused(f"{planned.unproved} This dataset has a budget. {ALLOW}")
            return
        if any("entities" in unit or "names" in unit for unit in state.limits):
            others = {e for name, e in state.entities.items() if name != job}
            if planned.entities is not None and others - {planned.entities}:
                raise PrivacyRefused(
                    "The dataset's budget is about entities or names, and another run on it "
                    "protects other ones (kinds, list, public names or detectors differ): what "
                    "either released of the other's is not counted. Protect the same ones."
                )
        after = together(*(r for name, r in state.charges.items() if name != job), planned.releases)
        for unit, limit in state.limits.items():
            epsilon = self._price(after, unit, state.delta)
            # Written so that a NaN, which must not be, would refuse as well.
            if not epsilon <= limit:
                raise OverBudget(_over(unit, epsilon, limit, state.delta))

    def settle(self, job: str, ledger: Path, lost: Releases) -> None:
        """Charge a run that has ended for what its ledger holds, and what workers may have lost.

        A ledger that cannot be read, or holds less than it was seen to hold, frees nothing.
        """
        row = self.storage.get(Job, job)
        assert row is not None
        seen, dataset = row.released, row.dataset_id
        note, releases = "", None
        try:
            # What the model that it began with had released was charged to another run.
            found = read_ledger(ledger).own_releases() if ledger.exists() else {}
            if sum(found.values()) >= seen:
                releases = together(whole_passes(found), lost)
            else:
                note = "the ledger holds less than it did: the whole plan stays charged"
        except TacitError:
            note = "the ledger cannot be read: the whole plan stays charged"
        with self.storage.write() as session:
            locked = require(session, Dataset, dataset, lock=True)
            if releases is None:
                held = [c for c in _charges(session, dataset) if c.job_id == job]
                releases = _releases(held[-1]) if held else {}
            _charge(session, locked, job, "settled", releases, note)

    def charge(
        self, session: Session, dataset: str, job: str, releases: Releases, note: str
    ) -> None:
        """Charge a run for releases that were found, whatever the budget: they have happened."""
        row = require(session, Dataset, dataset, lock=True)
        _charge(session, row, job, "settled", releases, note)

    def status(self, dataset: str) -> Json:
        """What is spent and left, by unit and by run; everything here is public."""
        state = self._state(dataset)
        limits = state.limits or {}
        totals = self._prices_of(state, *state.charges.values())
        jobs, history = self._history(dataset)
        runs = []
        for name, job in sorted(jobs.items()):
            alone = state.charges.get(name, {})
            unproved = name in state.unproved
            runs.append(
                {
                    "run": name, "name": job.name, "state": job.state,
                    "method": job.request.get("method"), "unproved": unproved,
                    "releases": sum(n for e, n in alone.items() if not isinstance(e, Public)),
                    "epsilon": None if unproved else _finite(self._prices_of(state, alone)),
                }
            )  # fmt: skip
        changes = [
            {"at": c.at.isoformat(), "run": c.job_id, "what": c.what, "note": c.note,
             "releases": sum(count for _, count in c.releases)}
            for c in history
        ]  # fmt: skip
        return {
            "dataset": dataset,
            "delta": state.delta,
            "limits": state.limits,
            "frozen": state.frozen or None,
            "spent": _finite(totals),
            "remaining": _finite({unit: max(0.0, limits[unit] - totals[unit]) for unit in limits}),
            "note": "spent is the price of all releases together; it is less than the runs' own "
            "prices added up, and a dry run says exactly what still fits",
            "unbounded_runs": sorted(state.unproved),
            "runs": runs,
            "history": changes,
        }

    def over_time(self, dataset: str) -> list[Json]:
        """What had been spent or reserved after each change, the last hundred of them; public."""
        state = self._state(dataset)
        jobs, charges = self._history(dataset)
        held: dict[str, Releases] = {}
        points = []
        for place, charge in enumerate(charges):
            held[charge.job_id] = _releases(charge)
            if place < len(charges) - _POINTS:
                continue
            bounded = [r for run, r in held.items() if run not in state.unproved]
            epsilon = _finite(self._prices_of(state, *bounded))
            name = jobs[charge.job_id].name if charge.job_id in jobs else ""
            points.append({"at": charge.at.isoformat(), "run": charge.job_id, "name": name,
                           "what": charge.what, "epsilon": epsilon})  # fmt: skip
        return points

    def _history(self, dataset: str) -> tuple[dict[str, Job], list[Charge]]:
        """The runs on a dataset by id, and all that they were charged, in order."""
        with self.storage.read() as session:
            runs = select(Job).where(Job.dataset_id == dataset, Job.kind == "train")
            return {job.id: job for job in session.scalars(runs)}, _charges(session, dataset)

    def _state(self, dataset: str) -> _State:
        with self.storage.read() as session:
            row = require(session, Dataset, dataset)
            charges = {c.job_id: _releases(c) for c in _charges(session, dataset)}
            jobs = select(Job.id, Job.unproved, Job.request).where(Job.dataset_id == dataset)
            charged = [job for job in session.execute(jobs) if job.id in charges]
            unproved = frozenset(job.id for job in charged if job.unproved)
            named = {job.id: job.request.get("entities") for job in charged if not job.unproved}
            limits: Any = {u: float(v) for u, v in row.limits.items()} if row.limits else row.limits
            return _State(
                row.charges_made, limits, row.delta, row.unproved_allowed, row.frozen,
                {k: v for k, v in charges.items() if k not in unproved}, unproved,
                {name: entities for name, entities in named.items() if entities},
            )  # fmt: skip

    def _prices_of(self, state: _State, *runs: Releases) -> dict[Unit, float]:
        """What some runs cost together, for each unit of the budget."""
        releases = together(*runs)
        return {unit: self._price(releases, unit, state.delta) for unit in state.limits or {}}

    def _price(self, releases: Releases, unit: Unit, delta: float) -> float:
        key = (frozenset(releases.items()), unit, delta)
        if key not in self._prices:
            if len(self._prices) > 1000:
                self._prices.clear()
            self._prices[key] = price(releases, unit, delta, lower=False, fresh=True).epsilon
        return self._prices[key]


def together(*runs: Releases) -> Releases:
    """The releases of several runs, counted together."""
    sums: Counter[Any] = Counter()
    for releases in runs:
        sums.update(releases)
    return dict(sums)


def _charges(session: Session, dataset: str) -> list[Charge]:
    query = select(Charge).where(Charge.dataset_id == dataset).order_by(Charge.number)
    return list(session.scalars(query))


def charged_to(session: Session, job: str) -> Releases | None:
    """What a run is charged for now; None if it never was for anything."""
    query = select(Charge).where(Charge.job_id == job).order_by(Charge.number.desc()).limit(1)
    last = session.scalars(query).first()
    return None if last is None else _releases(last)


def _releases(charge: Charge) -> Releases:
    return {read_event(event): count for event, count in charge.releases}


def _charge(
    session: Session, row: Dataset, job: str, what: str, releases: Releases, note: str
) -> None:
    row.charges_made += 1
    written = [[write_event(event), count] for event, count in releases.items()]
    session.add(Charge(dataset_id=row.id, job_id=job, what=what, releases=written, note=note,
                       at=now()))  # fmt: skip


def _over(unit: Unit, epsilon: float, limit: float, delta: float) -> str:
    if math.isinf(epsilon):
        return (
            f"The dataset's budget is about {unit}, and what this run releases has no bound for "
            f"{unit}; protect {unit}, or ask an admin for a budget of the unit that you protect."
        )
    return (
        f"With this run the dataset would have spent epsilon {up(epsilon)} for {unit}, over its "
        f"budget of {limit:g} at delta {delta:g}; nothing was started. Ask for a smaller epsilon, "
        "or for fewer steps."
    )


def _finite(prices: Mapping[Unit, float]) -> dict[str, float | str]:
    return {unit: p if math.isfinite(p) else "infinity" for unit, p in prices.items()}
