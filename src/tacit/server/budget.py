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
from tacit.server.errors import Busy, NotFound
from tacit.server.storage import Charge, Dataset, Job, Storage, now

_TRIES = 50
_POINTS = 100

ALLOW = (
    "An admin may allow such runs for this dataset (unproved_allowed); their models then say so."
)


@dataclass(frozen=True)
class _State:
    """The charges of a dataset at one moment, known by a number."""

    number: int
    limits: dict[Unit, float] | None
    delta: float
    unproved_allowed: bool
    charges: dict[str, Releases]
    unproved: frozenset[str]
    entities: dict[str, str]
    """Which entities each of the runs protects; runs that protect none are not here."""

    def others(self, job: str) -> Releases:
        return together({k: v for k, v in self.charges.items() if k != job})


@dataclass(frozen=True)
class Budgets:
    """The budgets of all datasets."""

    storage: Storage
    _prices: dict[tuple[frozenset[Any], str, float], float] = field(default_factory=dict)

    def reserve(
        self,
        dataset: str,
        job: str,
        releases: Releases,
        *,
        unproved: str | None = None,
        entities: str | None = None,
        also: Callable[[Session], None] | None = None,
        note: str = "",
    ) -> None:
        """Charge a run for all that it may release, or refuse it; `also` happens with it.

        *Guarantee*: when this returns, the charges of all runs on the dataset together, this one
        included, are within its budget, whoever else reserved at the same moment.
        """
        for _ in range(_TRIES):
            state = self._state(dataset)
            self._check(state, job, releases, unproved, entities)
            with self.storage.write() as session:
                row = session.get(Dataset, dataset, with_for_update=True)
                assert row is not None
                if row.charges_made != state.number:
                    continue
                if also is not None:
                    also(session)
                    session.flush()
                _charge(session, row, job, "reserved", releases, note)
                return
        raise Busy("Too many runs are being started on this dataset; try again in a moment.")

    def would_refuse(
        self,
        dataset: str,
        releases: Releases,
        unproved: str | None = None,
        entities: str | None = None,
    ) -> str | None:
        """Why a run with these releases would be refused now; None if it would not be."""
        try:
            self._check(self._state(dataset), "", releases, unproved, entities)
        except PrivacyRefused as refused:
            return str(refused)
        return None

    def _check(
        self,
        state: _State,
        job: str,
        releases: Releases,
        unproved: str | None,
        entities: str | None,
    ) -> None:
        if state.limits is None:
            return
        if unproved is not None:
            if not state.unproved_allowed:
                raise PrivacyRefused(f"{unproved} This dataset has a budget. {ALLOW}")
            return
        if any("entities" in unit for unit in state.limits):
            others = {e for name, e in state.entities.items() if name != job}
            if entities is not None and others - {entities}:
                raise PrivacyRefused(
                    "The dataset's budget is about entities, and another run on it protects other "
                    "ones (kinds, list or detectors differ): what either released of the other's "
                    "is not counted. Protect the same ones."
                )
        after = together({"others": state.others(job), "this": releases})
        for unit, limit in state.limits.items():
            epsilon = self._price(after, unit, state.delta)
            # Written so that a NaN, which must not be, would refuse as well.
            if not epsilon <= limit:
                raise OverBudget(_over(unit, epsilon, limit, state.delta, releases))

    def settle(self, job: str, ledger: Path) -> None:
        """Charge a run that has ended for what its ledger holds, and for nothing else.

        A ledger that cannot be read, or holds less than it was seen to hold, frees nothing.
        """
        with self.storage.read() as session:
            row = session.get(Job, job)
            assert row is not None
            seen, dataset = row.released, row.dataset_id
        note, releases = "", None
        try:
            # What the model that it began with had released was charged to another run.
            found = read_ledger(ledger).own_releases() if ledger.exists() else {}
            if sum(found.values()) >= seen:
                releases = whole_passes(found)
            else:
                note = "the ledger holds less than it did: the whole plan stays charged"
        except TacitError:
            note = "the ledger cannot be read: the whole plan stays charged"
        with self.storage.write() as session:
            locked = session.get(Dataset, dataset, with_for_update=True)
            assert locked is not None
            if releases is None:
                releases = _last_charges(session, dataset).get(job, {})
            _charge(session, locked, job, "settled", releases, note)

    def status(self, dataset: str) -> Json:
        """What is spent and left, by unit and by run; everything here is public."""
        state = self._state(dataset)
        spent = together(state.charges)
        limits = state.limits or {}
        totals = {unit: self._price(spent, unit, state.delta) for unit in limits}
        with self.storage.read() as session:
            jobs = {
                j.id: j
                for j in session.scalars(
                    select(Job).where(Job.dataset_id == dataset, Job.kind == "train")
                )
            }
            history = session.scalars(
                select(Charge).where(Charge.dataset_id == dataset).order_by(Charge.number)
            ).all()
        runs = []
        for name, job in sorted(jobs.items()):
            alone = state.charges.get(name, {})
            runs.append(
                {
                    "run": name,
                    "name": job.name,
                    "state": job.state,
                    "method": job.request.get("method"),
                    "releases": sum(n for e, n in alone.items() if not isinstance(e, Public)),
                    "unproved": name in state.unproved,
                    "epsilon": None
                    if name in state.unproved
                    else {u: _finite(self._price(alone, u, state.delta)) for u in limits},
                }
            )
        return {
            "dataset": dataset,
            "delta": state.delta,
            "limits": state.limits,
            "spent": {unit: _finite(value) for unit, value in totals.items()},
            "remaining": {u: _finite(max(0.0, limits[u] - totals[u])) for u in limits},
            "note": "spent is the price of all releases together; it is less than the runs' own "
            "prices added up, and a dry run says exactly what still fits",
            "unbounded_runs": sorted(state.unproved),
            "runs": runs,
            "history": [
                {
                    "at": charge.at.isoformat(),
                    "run": charge.job_id,
                    "what": charge.what,
                    "releases": sum(count for _, count in charge.releases),
                    "note": charge.note,
                }
                for charge in history
            ],
        }

    def over_time(self, dataset: str) -> list[Json]:
        """What had been spent or reserved after each change, the last hundred of them; public."""
        state = self._state(dataset)
        with self.storage.read() as session:
            query = select(Charge).where(Charge.dataset_id == dataset).order_by(Charge.number)
            charges = session.scalars(query).all()
            names = {
                j.id: j.name for j in session.scalars(select(Job).where(Job.dataset_id == dataset))
            }
        held: dict[str, Releases] = {}
        points = []
        for place, charge in enumerate(charges):
            held[charge.job_id] = {read_event(event): count for event, count in charge.releases}
            if place < len(charges) - _POINTS:
                continue
            bounded = {run: r for run, r in held.items() if run not in state.unproved}
            points.append(
                {
                    "at": charge.at.isoformat(),
                    "run": charge.job_id,
                    "name": names.get(charge.job_id, ""),
                    "what": charge.what,
                    "epsilon": {
                        unit: _finite(self._price(together(bounded), unit, state.delta))
                        for unit in state.limits or {}
                    },
                }
            )
        return points

    def _state(self, dataset: str) -> _State:
        with self.storage.read() as session:
            row = session.get(Dataset, dataset)
            if row is None:
                raise NotFound("There is no such dataset.")
            charges = _last_charges(session, dataset)
            unproved = frozenset(
                session.scalars(select(Job.id).where(Job.dataset_id == dataset, Job.unproved))
            )
            asked = session.execute(
                select(Job.id, Job.request).where(Job.dataset_id == dataset, ~Job.unproved)
            )
            entities = {
                name: request["entities"]
                for name, request in asked
                if name in charges and request.get("entities")
            }
            return _State(
                row.charges_made,
                {u: float(v) for u, v in row.limits.items()} if row.limits is not None else None,  # type: ignore[misc]
                row.delta,
                row.unproved_allowed,
                {k: v for k, v in charges.items() if k not in unproved},
                frozenset(unproved & charges.keys()),
                entities,
            )

    def _price(self, releases: Releases, unit: Unit, delta: float) -> float:
        key = (frozenset(releases.items()), unit, delta)
        if key not in self._prices:
            if len(self._prices) > 1000:
                self._prices.clear()
            self._prices[key] = price(releases, unit, delta, lower=False, fresh=True).epsilon
        return self._prices[key]


def together(charges: Mapping[str, Releases]) -> Releases:
    """The releases of several runs, counted together."""
    sums: Releases = {}
    for releases in charges.values():
        for event, count in releases.items():
            sums[event] = sums.get(event, 0) + count
    return sums


def _last_charges(session: Session, dataset: str) -> dict[str, Releases]:
    """What each run is charged for now."""
    query = select(Charge).where(Charge.dataset_id == dataset).order_by(Charge.number)
    return {
        charge.job_id: {read_event(event): count for event, count in charge.releases}
        for charge in session.scalars(query)
    }


def _charge(
    session: Session, row: Dataset, job: str, what: str, releases: Releases, note: str
) -> None:
    row.charges_made += 1
    session.add(
        Charge(
            dataset_id=row.id,
            job_id=job,
            what=what,
            releases=[[write_event(event), count] for event, count in releases.items()],
            note=note,
            at=now(),
        )
    )


def _over(unit: Unit, epsilon: float, limit: float, delta: float, releases: Releases) -> str:
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


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else "infinity"
