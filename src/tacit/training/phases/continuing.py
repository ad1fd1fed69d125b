"""Continuing the run of a folder: verified first, and everything that clings to it inherited.

The new promise is about both runs together, so it can be no better than the earlier one: its
releases are part of the price, its standing, leaks, assumptions and open points are taken over,
and only what both protected in the same way is promised.
"""

from dataclasses import dataclass
from pathlib import Path

from tacit.errors import PrivacyRefused
from tacit.planning.plan import Plan
from tacit.privacy.certificates.certificate import Certificate, read_certificate
from tacit.privacy.certificates.manifest import file_digest
from tacit.privacy.certificates.scope import Inherited, Scope
from tacit.privacy.events import AnyEvent
from tacit.privacy.ledger import LedgerContents, events_digest, read_ledger
from tacit.training.settings import Run
from tacit.verification.runs import verify

_SAME_FOR_ENTITIES = (
    "adjacency", "mechanism", "users_per_entity", "entity_share", "records_per_user_entity",
    "records_per_user", "records_per_entity",
)  # fmt: skip


@dataclass(frozen=True)
class Continued:
    """The run that is continued, as it was verified."""

    folder: Path
    books: LedgerContents
    certificate: Certificate

    @property
    def releases(self) -> dict[AnyEvent, int]:
        """What it released, and what it had itself continued."""
        return self.books.releases()

    def inherited(self) -> Inherited:
        """What goes into the new ledger's first line."""
        c = self.certificate
        leaks = [str(leak) for leak in self.books.about.get("leaks", ())]
        if c.earlier is not None:
            leaks += [leak for leak in c.earlier.leaks if leak not in leaks]
        seeded = "fixed seed" in (
            c.provenance.randomness,
            c.earlier.randomness if c.earlier else c.provenance.randomness,
        )
        return Inherited(
            certificate=file_digest(self.folder / "certificate.json"),
            ledger=self.books.digest,
            releases=len(self.books.entries),
            events=events_digest((entry.phase, entry.event) for entry in self.books.entries),
            standing=c.standing,
            randomness="fixed seed" if seeded else "system",
            leaks=tuple(leaks),
            assumptions=c.assumptions,
            not_covered=c.not_covered,
        )


def continued(run: Run) -> Continued | None:
    """The run that this one continues, if it does; refused unless everything about it verifies."""
    if not run.model.carry_ledger:
        return None
    return continue_from(Path(str(run.model.folder)), f"model.folder={run.model.folder}")


def continue_from(folder: Path, said: str) -> Continued:
    """The run of a folder, under the name that a setting gives it, if everything verifies."""
    wrong = next((check for check in verify(folder) if not check.ok), None)
    if wrong is not None:
        raise PrivacyRefused(
            f"{said} cannot be continued, because it does not verify ({wrong.what}: "
            f"{wrong.detail}); see `tacit verify`, and give a run that does."
        )
    return Continued(
        folder, read_ledger(folder / "ledger.jsonl"), read_certificate(folder / "certificate.json")
    )


def require_same_protection(earlier: Continued | None, scope: Scope, plan: Plan | None) -> None:
    """Refuse to promise what the earlier run did not protect, or not in the same way."""
    if earlier is None or plan is None:
        return
    said = earlier.certificate
    for unit in plan.limits:
        why = scope.differs(said.scope, unit)
        if why is None and "entities" in unit:
            mine = plan.model_dump(mode="json")
            changed = [n for n in _SAME_FOR_ENTITIES if mine[n] != said.plan.get(n)]
            why = f"their {changed[0]} differs" if changed else None
        if why is not None:
            raise PrivacyRefused(
                f"{unit} cannot be promised across both runs: {why}. Promise what both protect in "
                "the same way, or begin from a model that has read no private text."
            )


def require_same_corpus(earlier: Continued | None, data: str) -> None:
    """Refuse a list of ids across two corpora: e17 is somebody else in each."""
    if earlier is None or earlier.certificate.provenance.data == data:
        return
    meant = earlier.certificate.scope.entities
    if meant is not None and meant.entity_list is not None:
        raise PrivacyRefused(
            "The list of entities has ids, which mean others in the earlier run's corpus; list "
            "names, and give them to both runs."
        )
