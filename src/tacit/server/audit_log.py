"""Who did what, when, and what came of it; never with text of a record."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from tacit.server.storage import Deed, Storage


@dataclass(frozen=True)
class AuditLog:
    """Lines that are added and never changed.

    Single records are not listed: each carries its owner and its time. Uploads, deletions and
    every look at text by somebody other than its owner are.
    """

    storage: Storage

    def note(
        self,
        account: str,
        what: str,
        target: str = "",
        outcome: str = "done",
        *,
        token: str | None = None,
    ) -> None:
        """Add a line."""
        with self.storage.write() as session:
            session.add(
                Deed(
                    account=account[:100],
                    token_id=token,
                    what=what,
                    target=target[:200],
                    outcome=outcome[:200],
                )
            )

    def lines(self, *, before: int | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """The latest lines first."""
        with self.storage.read() as session:
            query = select(Deed).order_by(Deed.number.desc()).limit(limit)
            if before is not None:
                query = query.where(Deed.number < before)
            return [
                {
                    "number": deed.number,
                    "at": deed.at.isoformat(),
                    "account": deed.account,
                    "token": deed.token_id,
                    "what": deed.what,
                    "target": deed.target,
                    "outcome": deed.outcome,
                }
                for deed in session.scalars(query)
            ]
