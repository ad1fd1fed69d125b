"""The tables, and the two kinds of transaction: one that reads and one that writes.

On SQLite a writing transaction takes the write lock when it begins (BEGIN IMMEDIATE), so that what
it read is still true when it commits; on PostgreSQL rows are locked where that matters.
"""

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, ClassVar, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    NoSuchModuleError,
    OperationalError,
    TimeoutError,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.types import TypeDecorator

from tacit.errors import DataError, UsageError
from tacit.server import Json
from tacit.server.errors import Conflict, NotFound, Unavailable
from tacit.server.settings import ServerSettings


def now() -> datetime:
    """This moment, in UTC."""
    return datetime.now(UTC)


def new_id() -> str:
    """A name for a row: later ones sort later, and none can be guessed."""
    return f"{time.time_ns() // 1000:014x}{secrets.token_hex(8)}"


class UtcDateTime(TypeDecorator[datetime]):
    """A time in UTC; SQLite forgets the zone, so it is put back."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """With its zone."""
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


Number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""SQLite counts up by itself in INTEGER columns only."""


class Table(DeclarativeBase):
    """What all tables share."""

    word: ClassVar[str] = "row"
    """What a row is called where there is none of that id."""


Row = TypeVar("Row", bound=Table)


def require(session: Session, table: type[Row], key: str, *, lock: bool = False) -> Row:
    """The row with that id, locked for a change if asked; refused where there is none."""
    found = session.get(table, key, with_for_update=lock)
    if found is None:
        raise NotFound(f"There is no such {table.word}.")
    return found


def fields_of(row: Table, *names: str) -> Json:
    """Some columns of a row as JSON; `dataset` stands for the column `dataset_id`."""
    found = {n: getattr(row, n if hasattr(row, n) else f"{n}_id") for n in names}
    return {n: v.isoformat() if isinstance(v, datetime) else v for n, v in found.items()}


AWAY = "The database does not answer; try again in a moment."
_DAMAGED = (
    "The database is damaged, or no database at all; restore it from a backup, or give another one."
)


class Fact(Table):
    """Single facts about this database, such as which folder belongs to it."""

    __tablename__ = "facts"
    name: Mapped[str] = mapped_column(sa.String(40), primary_key=True)
    value: Mapped[str] = mapped_column(sa.Text)


class Account(Table):
    """A person or a device."""

    __tablename__ = "accounts"
    word = "account"
    id: Mapped[str] = mapped_column(sa.String(40), primary_key=True)
    name: Mapped[str] = mapped_column(sa.String(100), unique=True)
    role: Mapped[str] = mapped_column(sa.String(20))
    password: Mapped[str | None] = mapped_column(sa.String(200))
    disabled: Mapped[bool] = mapped_column(sa.Boolean, default=False)
    created: Mapped[datetime] = mapped_column(UtcDateTime, default=now)


class Token(Table):
    """A key of an account; only its SHA-256 is kept."""

    __tablename__ = "tokens"
    word = "token"
    id: Mapped[str] = mapped_column(sa.String(40), primary_key=True)
    account_id: Mapped[str] = mapped_column(sa.ForeignKey("accounts.id"), index=True)
    digest: Mapped[str] = mapped_column(sa.String(64), unique=True)
    label: Mapped[str] = mapped_column(sa.String(100), default="")
    scopes: Mapped[list[str] | None] = mapped_column(sa.JSON)
    dataset_id: Mapped[str | None] = mapped_column(sa.ForeignKey("datasets.id"))
    created: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    expires: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked: Mapped[datetime | None] = mapped_column(UtcDateTime)


class PageSession(Table):
    """Somebody who signed in to the pages; only the SHA-256 of what their browser keeps is here."""

    __tablename__ = "page_sessions"
    digest: Mapped[str] = mapped_column(sa.String(64), primary_key=True)
    account_id: Mapped[str] = mapped_column(sa.ForeignKey("accounts.id"), index=True)
    token_id: Mapped[str | None] = mapped_column(sa.ForeignKey("tokens.id"))
    """The token that was signed in with: the session may do what it may, for as long as it may."""
    created: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    expires: Mapped[datetime] = mapped_column(UtcDateTime)
    ended: Mapped[datetime | None] = mapped_column(UtcDateTime)


class Dataset(Table):
    """What records belong to, and what may be spent on it."""

    __tablename__ = "datasets"
    word = "dataset"
    id: Mapped[str] = mapped_column(sa.String(40), primary_key=True)
    name: Mapped[str] = mapped_column(sa.String(100), unique=True)
    description: Mapped[str] = mapped_column(sa.Text, default="")
    public: Mapped[bool] = mapped_column(sa.Boolean, default=False)
    limits: Mapped[dict[str, float] | None] = mapped_column(sa.JSON)
    delta: Mapped[float] = mapped_column(sa.Float)
    unproved_allowed: Mapped[bool] = mapped_column(sa.Boolean, default=False)
    charges_made: Mapped[int] = mapped_column(sa.Integer, default=0)
    """Goes up with every change of what is charged: whoever priced an older state starts anew."""
    frozen: Mapped[str] = mapped_column(sa.Text, default="", server_default="")
    """Why nothing may be spent on it until an admin has looked; empty for most."""
    created_by: Mapped[str] = mapped_column(sa.ForeignKey("accounts.id"))
    created: Mapped[datetime] = mapped_column(UtcDateTime, default=now)


class StoredRecord(Table):
    """One text of one user."""

    __tablename__ = "records"
    id: Mapped[str] = mapped_column(sa.String(40), primary_key=True)
    dataset_id: Mapped[str] = mapped_column(sa.ForeignKey("datasets.id"))
    owner_id: Mapped[str] = mapped_column(sa.ForeignKey("accounts.id"))
    user: Mapped[str] = mapped_column("user_name", sa.String(200))
    text: Mapped[str] = mapped_column(sa.Text)
    label: Mapped[str | None] = mapped_column(sa.String(200))
    split: Mapped[str | None] = mapped_column(sa.String(20))
    extra: Mapped[Json | None] = mapped_column(sa.JSON)
    created: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    __table_args__ = (
        sa.Index("records_of_user", "dataset_id", "user_name"),
        sa.Index("records_of_owner", "dataset_id", "owner_id"),
    )


class DeletedRecord(Table):
    """The name of a record that was deleted, so that a late retry does not bring it back."""

    __tablename__ = "deleted_records"
    id: Mapped[str] = mapped_column(sa.String(40), primary_key=True)


class EntityList(Table):
    """Names that somebody wants protected."""

    __tablename__ = "entity_lists"
    word = "list of entities"
    id: Mapped[str] = mapped_column(sa.String(40), primary_key=True)
    dataset_id: Mapped[str] = mapped_column(sa.ForeignKey("datasets.id"), index=True)
    name: Mapped[str] = mapped_column(sa.String(100))
    names: Mapped[list[str]] = mapped_column(sa.JSON)
    created_by: Mapped[str] = mapped_column(sa.ForeignKey("accounts.id"))
    created: Mapped[datetime] = mapped_column(UtcDateTime, default=now)


class Job(Table):
    """Something that a child process does: a training run, a detection, an attack."""

    __tablename__ = "jobs"
    word = "job"
    id: Mapped[str] = mapped_column(sa.String(40), primary_key=True)
    kind: Mapped[str] = mapped_column(sa.String(20))
    name: Mapped[str] = mapped_column(sa.String(100), default="")
    dataset_id: Mapped[str] = mapped_column(sa.ForeignKey("datasets.id"), index=True)
    target_id: Mapped[str | None] = mapped_column(sa.ForeignKey("jobs.id"), index=True)
    request: Mapped[Json] = mapped_column(sa.JSON)
    state: Mapped[str] = mapped_column(sa.String(20), index=True)
    unproved: Mapped[bool] = mapped_column(sa.Boolean, default=False)
    cancelling: Mapped[bool] = mapped_column(sa.Boolean, default=False)
    resuming: Mapped[bool] = mapped_column(sa.Boolean, default=False)
    attempts: Mapped[int] = mapped_column(sa.Integer, default=0)
    process: Mapped[int | None] = mapped_column(sa.Integer)
    released: Mapped[int] = mapped_column(sa.Integer, default=0)
    """Entries that its ledger was seen to hold; it may never hold fewer."""
    message: Mapped[str] = mapped_column(sa.Text, default="")
    result: Mapped[Json | None] = mapped_column(sa.JSON)
    request_key: Mapped[str | None] = mapped_column(sa.String(64), index=True, unique=True)
    """Who asked for it by which key; asked again, it is the same job."""
    request_digest: Mapped[str | None] = mapped_column(sa.String(64))
    worker: Mapped[str | None] = mapped_column(sa.String(100))
    """Who on another machine did it last."""
    claim: Mapped[str | None] = mapped_column(sa.String(64))
    """The SHA-256 of what a worker shows that has it now."""
    heard: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_by: Mapped[str] = mapped_column(sa.ForeignKey("accounts.id"))
    created: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    started: Mapped[datetime | None] = mapped_column(UtcDateTime)
    ended: Mapped[datetime | None] = mapped_column(UtcDateTime)


class Charge(Table):
    """What a run was charged for, and later what it had really released; the last one counts."""

    __tablename__ = "charges"
    number: Mapped[int] = mapped_column(Number, primary_key=True, autoincrement=True)
    dataset_id: Mapped[str] = mapped_column(sa.ForeignKey("datasets.id"), index=True)
    job_id: Mapped[str] = mapped_column(sa.ForeignKey("jobs.id"), index=True)
    what: Mapped[str] = mapped_column(sa.String(20))
    releases: Mapped[list[Any]] = mapped_column(sa.JSON)
    note: Mapped[str] = mapped_column(sa.Text, default="")
    at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)


class AuditEntry(Table):
    """An entry of the audit log."""

    __tablename__ = "audit_entries"
    number: Mapped[int] = mapped_column(Number, primary_key=True, autoincrement=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime, default=now, index=True)
    account: Mapped[str] = mapped_column(sa.String(100))
    token_id: Mapped[str | None] = mapped_column(sa.String(40))
    what: Mapped[str] = mapped_column(sa.String(60))
    target: Mapped[str] = mapped_column(sa.String(200), default="")
    outcome: Mapped[str] = mapped_column(sa.String(200), default="done")


class Turns:
    """A lock that is given to whoever has waited longest.

    SQLite lets those who want to write look again after a while, so a thread that writes all the
    time would keep the others out.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._taken = False

    def __enter__(self) -> None:
        mine = threading.Lock()
        with self._guard:
            if not self._taken:
                self._taken = True
                return
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()

    def __exit__(self, *_: object) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False


_TO_SQLITE = {"check_same_thread": False, "timeout": 60}
_TO_POSTGRESQL = {"connect_timeout": 5, "keepalives_idle": 10, "keepalives_interval": 5,
                  "keepalives_count": 3, "tcp_user_timeout": 20_000}  # fmt: skip
"""A server that is gone without a word is noticed within half a minute."""


class Storage:
    """A database that is up to date."""

    def __init__(self, settings: ServerSettings, *, migrate: bool = True) -> None:
        self._address = settings.address
        settings.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.sqlite = self._address.startswith("sqlite")
        self.guard: Callable[[Session], None] | None = None
        """Looks whether this server may still write, in every transaction that does."""
        self._turns = Turns() if self.sqlite else nullcontext()
        self._reader = self._engine("BEGIN")
        self._writer = self._engine("BEGIN IMMEDIATE") if self.sqlite else self._reader
        if migrate:
            self._migrate()

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A transaction that changes nothing."""
        with answering(), Session(self._reader, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction that is committed whole when the block ends, or leaves no trace."""
        with (
            self._turns,
            answering(),
            Session(self._writer, expire_on_commit=False) as session,
            session.begin(),
        ):
            if self.guard is not None:
                self.guard(session)
            yield session

    @contextmanager
    def snapshot(self) -> Iterator[sa.Connection]:
        """A connection that sees the database as it is now, whoever writes meanwhile."""
        with reaching(), self._reader.connect() as connection:
            if not self.sqlite:
                connection.execution_options(isolation_level="REPEATABLE READ")
            yield connection

    @staticmethod
    def revision(connection: sa.Connection) -> str | None:
        """The version of its tables."""
        return connection.scalar(sa.text("SELECT version_num FROM alembic_version"))

    def get(self, table: type[Row], key: str) -> Row | None:
        """The row with that id, if there is one."""
        with self.read() as session:
            return session.get(table, key)

    def scalars(self, query: Any) -> list[Any]:
        """What a query finds, in a transaction of its own: the first column of each row."""
        with self.read() as session:
            return list(session.scalars(query))

    def rows(self, query: Any) -> list[Any]:
        """The same with all columns."""
        with self.read() as session:
            return list(session.execute(query))

    def add(self, row: Table, taken: str = "") -> None:
        """A new row; `taken` says what to do if one of its name is there already."""
        try:
            with self.write() as session:
                session.add(row)
        except IntegrityError:
            if not taken:
                raise
            raise Conflict(taken) from None

    def change(self, table: type[Table], key: str, **values: Any) -> None:
        """Other values of a row, locked for it."""
        with self.write() as session:
            row = require(session, table, key, lock=True)
            for name, value in values.items():
                setattr(row, name, value)

    def wipe(self, *, whole: bool = False) -> None:
        """See to it that deleted rows leave the disk, too.

        SQLite overwrites them, and its log is emptied here. PostgreSQL is told that their places
        are free; with `whole` it writes the table anew, which keeps everybody else waiting.
        """
        with self._turns, self._reader.connect() as connection:
            if self.sqlite:
                # Outside of a transaction, in which a log cannot be emptied; whoever reads now
                # is not waited for, and the next start does it.
                driver: Any = connection.connection.dbapi_connection
                driver.execute("PRAGMA busy_timeout=300")
                driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                driver.execute("PRAGMA busy_timeout=60000")
                return
            free = connection.execution_options(isolation_level="AUTOCOMMIT")
            for table in (StoredRecord, EntityList):
                how = "VACUUM (FULL)" if whole else "VACUUM"
                free.execute(sa.text(f"{how} {table.__tablename__}"))

    def close(self) -> None:
        """Let all connections go."""
        self._reader.dispose()
        self._writer.dispose()

    def _engine(self, begin: str) -> sa.Engine:
        options = _TO_SQLITE if self.sqlite else _TO_POSTGRESQL
        with reaching():
            engine = sa.create_engine(self._address, connect_args=options, pool_size=20,
                                   max_overflow=40, hide_parameters=True)  # fmt: skip
        if not self.sqlite:
            return engine

        @sa.event.listens_for(engine, "connect")
        def _connected(connection: Any, _: Any) -> None:
            # We begin transactions ourselves: the driver would do so too late.
            connection.isolation_level = None
            for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON",
                           "secure_delete=ON"):  # fmt: skip
                connection.execute(f"PRAGMA {pragma}")

        @sa.event.listens_for(engine, "begin")
        def _began(connection: Any) -> None:
            connection.exec_driver_sql(begin)

        return engine

    def _migrate(self) -> None:
        from alembic import command
        from alembic.config import Config
        from alembic.util import CommandError

        config = Config()
        folder = str(files("tacit.server") / "migrations").replace("%", "%%")
        config.set_main_option("script_location", folder)
        try:
            with reaching(), self._writer.connect() as connection:
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
        except CommandError:
            raise DataError(
                "The database was made by another version of tacit, whose tables this one cannot "
                "read; serve it with that version, or start with a new folder and a new database."
            ) from None


@contextmanager
def answering() -> Iterator[None]:
    """A database that is away, full or overrun is one sentence; the same later is accepted."""
    try:
        yield
    except (OperationalError, InterfaceError, TimeoutError):
        raise Unavailable(AWAY) from None
    except DBAPIError as error:
        if error.connection_invalidated:
            raise Unavailable(AWAY) from None
        if type(error) is DatabaseError:  # and not what a row or a statement did wrong
            raise Unavailable(_DAMAGED) from None
        raise


@contextmanager
def reaching() -> Iterator[None]:
    """A database that cannot be used is one sentence, which quotes no address with a password."""
    try:
        yield
    except (ArgumentError, NoSuchModuleError):
        raise UsageError(
            "The address of the database is not valid; give sqlite:///FILE or "
            "postgresql://USER@HOST/NAME."
        ) from None
    except OperationalError:
        raise DataError(
            "The database cannot be reached or written; check its address and that it runs."
        ) from None
    except DatabaseError:
        raise DataError(_DAMAGED) from None
