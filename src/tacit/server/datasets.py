"""What records belong to: a name, a budget, and lists of the entities to be protected."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import select

from tacit.errors import PrivacyRefused, UsageError
from tacit.files import whole_file
from tacit.privacy.budget import Budget
from tacit.server import Json
from tacit.server.errors import NotFound, TooLarge
from tacit.server.identity import Caller
from tacit.server.storage import Dataset, EntityList, Storage, fields_of, new_id, now, require

MOST_NAMES = 100_000


@dataclass(frozen=True)
class Datasets:
    """All datasets, which are never deleted: what was spent on one stays spent."""

    storage: Storage
    _known: dict[str, bool] = field(default_factory=dict)
    """Those that were asked for, and whether nothing protects what is in them."""

    def add(
        self, name: str, caller: Caller, *, limits: Mapping[str, float] | None,
        description: str = "", delta: float = 1e-5, public: bool = False,
    ) -> Json:  # fmt: skip
        """A new dataset; `limits` is the privacy budget by unit, None for no budget at all."""
        _check_budget(limits, delta)
        made = Dataset(
            id=new_id(), name=name, description=description, public=public,
            limits=dict(limits) if limits is not None else None, delta=delta,
            unproved_allowed=False, charges_made=0, created_by=caller.account, created=now(),
        )  # fmt: skip
        self.storage.add(made, f"There is a dataset {name!r} already; give another name.")
        return as_json(made)

    def change(self, dataset: str, **changes: Any) -> Json:
        """Another description, limits or delta; or unproved_allowed: train without a proof.

        A budget can be lowered below what is spent, and raised: raising it is a decision about
        people, so it is an admin's and stands in the audit log.
        """
        with self.storage.write() as session:
            found = require(session, Dataset, dataset, lock=True)
            for name, value in changes.items():
                setattr(found, name, value)
            _check_budget(found.limits, found.delta)
            found.charges_made += 1
            changed = as_json(found)
        self._known.pop(dataset, None)
        return changed

    def require(self, dataset: str) -> str:
        """The id of a dataset that is there; remembered, since none is ever deleted."""
        if dataset not in self._known:
            self._known[dataset] = not self.get(dataset)["protected"]
        return dataset

    def require_consent(self, dataset: str, caller: Caller, *, consent: bool) -> bool:
        """Refuse text of somebody who was not told that nothing protects it; whether they were."""
        exposed = self._known[self.require(dataset)] and not caller.may("records:any")
        if exposed and not consent:
            raise PrivacyRefused(
                f"{_PROTECTION['nothing']} If you want to give it all the same, say so: consent."
            )
        return exposed

    def is_known(self, dataset: str) -> bool:
        """Whether `require` has seen it, without asking the database."""
        return dataset in self._known

    def get(self, dataset: str) -> Json:
        """One of them."""
        with self.storage.read() as session:
            return as_json(require(session, Dataset, dataset))

    def all(
        self, only: str | None = None, *, after: str = "", limit: int | None = None
    ) -> list[Json]:
        """All of them, so many after one, or the one that a token is for."""
        query = select(Dataset).where(Dataset.id > after).order_by(Dataset.id).limit(limit)
        if only is not None:
            query = query.where(Dataset.id == only)
        return [as_json(found) for found in self.storage.scalars(query)]

    # --- lists of entities ----------------------------------------------------------------

    def add_list(self, dataset: str, name: str, names: Sequence[str], caller: Caller) -> Json:
        """A list of names that a run may protect."""
        wanted = list(dict.fromkeys(" ".join(n.split()) for n in names))
        wanted = [n for n in wanted if n and not n.startswith("#")]
        if not wanted:
            raise UsageError("The list names no entity; give one name per line.")
        if len(wanted) > MOST_NAMES or max(map(len, wanted)) > 1000:
            raise TooLarge(f"At most {MOST_NAMES:,} names of at most 1,000 characters each.")
        self.require(dataset)
        made = EntityList(
            id=new_id(), dataset_id=dataset, name=name, names=wanted, created_by=caller.account,
            created=now(),
        )  # fmt: skip
        self.storage.add(made)
        return _list_json(made)

    def lists(self, dataset: str, *, after: str = "", limit: int | None = None) -> list[Json]:
        """The lists of a dataset, or so many after one, without the names."""
        query = select(EntityList).where(EntityList.dataset_id == dataset, EntityList.id > after)
        query = query.order_by(EntityList.id).limit(limit)
        return [_list_json(one) for one in self.storage.scalars(query)]

    def names(self, dataset: str, entity_list: str, caller: Caller) -> Json:
        """A list with its names, for whoever gave it and for admins."""
        found = self._list(dataset, entity_list)
        if found.created_by != caller.account and not caller.may("records:any"):
            raise NotFound("You have no such list of entities.")
        return _list_json(found) | {"names": found.names}

    def delete_list(self, dataset: str, entity_list: str) -> None:
        """Forget a list; runs that used it keep a keyed digest of it only."""
        found = self._list(dataset, entity_list)
        with self.storage.write() as session:
            session.delete(found)

    def write_list(self, dataset: str, entity_list: str, path: Path) -> None:
        """The list as the file that a run reads."""
        found = self._list(dataset, entity_list)
        with whole_file(path) as draft:
            draft.write_text("\n".join(found.names) + "\n", encoding="utf-8")

    def _list(self, dataset: str, entity_list: str) -> EntityList:
        found = self.storage.get(EntityList, entity_list)
        if found is None or found.dataset_id != dataset:
            raise NotFound("There is no such list of entities.")
        return found


_PROTECTION = {
    "nothing": "Nothing protects text in this dataset: models may repeat it word by word, to "
    "anybody.",
    "budget": "All models that learn from this dataset are bounded together: what they show of "
    "anybody is limited by the budget.",
    "unproved": "Models about which nothing is proved may learn from it, too, and may repeat it; "
    "an admin has allowed them.",
}
"""What a contributor is told before they send anything."""


def as_json(dataset: Dataset) -> Json:
    """What may be said of a dataset to whoever may know of it."""
    names = ("id", "name", "description", "public", "unproved_allowed", "frozen", "created")
    budget = {"limits": dataset.limits, "delta": dataset.delta}
    protected = not dataset.public and dataset.limits is not None
    said = [_PROTECTION["budget" if protected else "nothing"]]
    if protected and dataset.unproved_allowed:
        said.append(_PROTECTION["unproved"])
    told = {"budget": budget, "protected": protected, "protection": " ".join(said)}
    return fields_of(dataset, *names) | told


def _check_budget(limits: Mapping[str, float] | None, delta: float) -> None:
    # One way or the other, what is written into the database is a budget that can be asked.
    Budget(limits if limits is not None else {"users": 1.0}, delta)  # type: ignore[arg-type]


def _list_json(found: EntityList) -> Json:
    return fields_of(found, "id", "name", "created") | {"count": len(found.names)}
