"""At most one server works on a database, and whoever was one and is no longer cannot write.

The lease is a lock that ends with the process that holds it: an advisory lock of PostgreSQL on a
connection of its own, or a lock on a file beside the SQLite database. Each server that gets it
raises a number in the database. Every writing transaction compares that number (the fence): where
the lock was lost without the server's knowledge (the database failed over, a network broke), a
transaction of the server before is refused, not mixed with those of the next one.
"""

import sys
import threading
import time
from collections.abc import Callable

import sqlalchemy as sa
from filelock import FileLock, Timeout
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from tacit.errors import UsageError
from tacit.server.errors import LeaseLost, Unavailable
from tacit.server.settings import ServerSettings
from tacit.server.storage import Fact, Storage

_SERVER, _FENCE = 0x7AC17, 0x7AC18
"""Advisory locks: of the one server; of its transactions, which whoever follows waits for."""
_NAME = "lease"
_LOST = "Another server has taken over this database; this one writes nothing any more."
_IN_USE = (
    "The database is in use by another server; stop that one first. A copy of its folder needs a "
    "database of its own."
)


class Lease:
    """The right to be the server of a database."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._sqlite = settings.address.startswith("sqlite")
        self._file: FileLock | None = None
        self._connection: sa.Connection | None = None
        self._number = 0
        self.held = False
        """Whether it was ours when we last looked."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # --- taking it ------------------------------------------------------------------------------

    def take(self) -> None:
        """Lock the database, or refuse; before its tables are touched.

        The connection of a server that was just killed may be there for a moment longer.
        """
        until = time.monotonic() + self._settings.lease_wait_seconds
        while not self._locked():
            if time.monotonic() > until:
                raise UsageError(_IN_USE)
            time.sleep(0.1)

    def guard(self, storage: Storage) -> None:
        """Raise the number, and let the storage compare it before everything that it writes."""
        with storage.write() as session:
            if not self._sqlite:
                session.execute(sa.select(sa.func.pg_advisory_xact_lock(_FENCE)))
            fact = session.get(Fact, _NAME)
            self._number = int(fact.value) + 1 if fact is not None else 1
            session.merge(Fact(name=_NAME, value=str(self._number)))
        storage.guard = self.check
        self.held = True

    def check(self, session: Session) -> None:
        """Refuse a transaction of a server that another one has followed."""
        if not self._sqlite:
            session.execute(sa.select(sa.func.pg_advisory_xact_lock_shared(_FENCE)))
        found = session.scalar(sa.select(Fact.value).where(Fact.name == _NAME))
        if found != str(self._number):
            self.held = False
            raise LeaseLost(_LOST)

    def _locked(self) -> bool:
        if self._sqlite:
            self._file = FileLock(f"{sa.make_url(self._settings.address).database}.lease")
            try:
                self._file.acquire(blocking=False)
            except Timeout:
                return False
            return True
        self._drop_connection()
        engine = sa.create_engine(
            self._settings.address, poolclass=NullPool, isolation_level="AUTOCOMMIT",
            hide_parameters=True,
        )  # fmt: skip
        self._connection = engine.connect()
        return bool(self._connection.scalar(sa.select(sa.func.pg_try_advisory_lock(_SERVER))))

    # --- keeping it -----------------------------------------------------------------------------

    def keep(self, storage: Storage, lost: Callable[[], None]) -> None:
        """Renew it in the background; `lost` is called once, if another server has it."""

        def renew() -> None:
            while not self._stop.wait(self._settings.lease_seconds):
                try:
                    self.renew(storage)
                except LeaseLost as error:
                    print(f"Error: {error}", file=sys.stderr)  # noqa: T201
                    lost()
                    return
                except (SQLAlchemyError, Unavailable):
                    continue  # the database is away: nobody else can have it, or write

        self._thread = threading.Thread(target=renew, name="lease", daemon=True)
        self._thread.start()

    def renew(self, storage: Storage) -> None:
        """Look whether it is ours, and lock again after a lost connection."""
        if self._connection is not None:
            try:
                self._connection.execute(sa.text("SELECT 1"))
            except SQLAlchemyError:
                if not self._locked():
                    self.held = False
                    raise LeaseLost(_LOST) from None
        with storage.read() as session:
            self.check(session)

    def close(self) -> None:
        """Let the next server have it."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._drop_connection()
        if self._file is not None:
            self._file.release()

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None
