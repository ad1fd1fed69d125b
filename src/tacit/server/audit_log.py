"""Who did what, when, and what came of it; never with text of a record."""

from dataclasses import dataclass

from sqlalchemy import select

from tacit.server import Json
from tacit.server.storage import AuditEntry, Storage, fields_of

_FIELDS = ("number", "at", "account", "token", "what", "target", "outcome")


@dataclass(frozen=True)
class AuditLog:
    """Entries that are added and never changed.

    Single records are not listed: each carries its owner and its time. Uploads, deletions and
    every look at text by somebody other than its owner are.
    """

    storage: Storage

    def note(
        self, account: str, what: str, target: str = "", outcome: str = "done", token: str = ""
    ) -> None:
        """Add an entry."""
        entry = AuditEntry(account=account[:100], token_id=token or None, what=what,
                           target=target[:200], outcome=outcome[:200])  # fmt: skip
        with self.storage.write() as session:
            session.add(entry)

    def lines(self, *, before: int | None = None, limit: int = 100) -> list[Json]:
        """The latest entries first."""
        query = select(AuditEntry).order_by(AuditEntry.number.desc()).limit(limit)
        if before is not None:
            query = query.where(AuditEntry.number < before)
        with self.storage.read() as session:
            return [fields_of(entry, *_FIELDS) for entry in session.scalars(query)]
