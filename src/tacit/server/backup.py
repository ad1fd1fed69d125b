"""A server in one file, taken while it runs, and a server made from such a file.

The database comes first, all tables as they were at one moment, then the files, and the ledgers at
last: so a ledger in the file holds at least what its checkpoint and the database know of, and what
it holds beyond is charged when the restored server starts.
"""

import json
import os
import tempfile
import zipfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import sqlalchemy as sa

from tacit.errors import DataError, UsageError
from tacit.server import Json
from tacit.server.child_processes import LOCK
from tacit.server.settings import FIRST_SIGN_IN, ServerSettings
from tacit.server.storage import Dataset, Storage, Table, now

_VERSION = 1
_ABOUT = "backup.json"
_LEFT_OUT = ("server.lock", LOCK, "model.zip", FIRST_SIGN_IN)
"""Locks of processes that do not come along, and what is made anew when asked for."""
_ROWS = 500


def back_up(settings: ServerSettings, to: Path) -> Json:
    """Write a server into a new file, readable by its owner only; what is in it."""
    if to.exists():
        raise UsageError(f"{to} exists; give the name of a new file.")
    if not (settings.folder / "identity").exists():
        raise UsageError(f"{settings.folder} is not the folder of a server.")
    storage = Storage(settings, migrate=False)
    descriptor, draft = tempfile.mkstemp(prefix=f".{to.name}.", dir=to.absolute().parent)
    try:
        with os.fdopen(descriptor, "wb") as out:
            about = _write(out, storage, settings)
            out.flush()
            os.fsync(out.fileno())
        Path(draft).replace(to)
    finally:
        Path(draft).unlink(missing_ok=True)
        storage.close()
    return about


def restore(settings: ServerSettings, file: Path, *, nothing_since: bool = False) -> Json:
    """Make a server in an empty folder, with an empty database, from a backup.

    What was spent after the backup was taken is not in it, so datasets with a budget are frozen
    until an admin has looked, unless the operator knows that nothing was.
    """
    folder = settings.folder
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty; give a new folder.")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        with zipfile.ZipFile(file) as archive:
            about = _checked(archive)
            storage = Storage(settings)
            try:
                _fill(storage, archive, about)
                if not nothing_since:
                    _freeze(storage, about["taken"])
            finally:
                storage.close()
            _unpack(archive, folder)
    except (zipfile.BadZipFile, KeyError, EOFError, ValueError, TypeError):
        raise DataError(f"{file} is not a whole backup of a server.") from None
    return dict(about)


# --- writing ------------------------------------------------------------------------------------


def _write(out: BinaryIO, storage: Storage, settings: ServerSettings) -> Json:
    rows: dict[str, int] = {}
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        with storage.snapshot() as connection:
            about: Json = {"backup": _VERSION, "schema": storage.revision(connection),
                           "taken": now().isoformat(timespec="seconds"), "rows": rows}  # fmt: skip
            for table in Table.metadata.sorted_tables:
                with archive.open(f"tables/{table.name}.jsonl", "w", force_zip64=True) as part:
                    rows[table.name] = _dump(connection, table, part)
        # A database in the folder is in the backup already, as it was at one moment.
        own = sa.make_url(settings.address).database if storage.sqlite else ""
        files = _files(settings.folder, own or "")
        for path in files:
            _copy(archive, path, str(path.relative_to(settings.folder)))
        about["files"] = len(files)
        archive.writestr(_ABOUT, json.dumps(about, allow_nan=False))
    return about


def _dump(connection: sa.Connection, table: sa.Table, part: Any) -> int:
    count = 0
    for row in connection.execute(_all_of(table)):
        values = [v.isoformat() if isinstance(v, datetime) else v for v in row]
        part.write(json.dumps(values, allow_nan=False).encode() + b"\n")
        count += 1
    return count


def _all_of(table: sa.Table) -> sa.Select[Any]:
    """Every row, in an order in which none names a later one."""
    return sa.select(table).order_by(*table.primary_key).execution_options(yield_per=_ROWS)


def _files(folder: Path, database: str) -> list[Path]:
    """What lies in the folder, ledgers at last."""
    found = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not path.is_symlink()
        and path.name not in _LEFT_OUT
        and not path.name.startswith((".", "tmp"))
        and not (database and str(path).startswith(database))
        and not path.relative_to(folder).parts[0].startswith("tmp")
    ]
    return sorted(found, key=lambda path: path.name == "ledger.jsonl")


def _copy(archive: zipfile.ZipFile, path: Path, name: str) -> None:
    try:
        source = path.open("rb")
    except FileNotFoundError:
        return  # gone meanwhile, as files of a running job may be
    stored = path.suffix == ".safetensors"  # random numbers to a compressor
    info = zipfile.ZipInfo(f"files/{name}")
    info.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    info.external_attr = (path.stat().st_mode & 0o777) << 16
    with source, archive.open(info, "w", force_zip64=True) as part:
        while block := source.read(1 << 20):
            part.write(block)


# --- reading ------------------------------------------------------------------------------------


def _checked(archive: zipfile.ZipFile) -> Json:
    about = json.loads(archive.read(_ABOUT))
    if about["backup"] != _VERSION:
        raise DataError("The backup was taken by another version of tacit; restore it with that.")
    damaged = archive.testzip()
    if damaged is not None:
        raise DataError(f"The backup is damaged (in {damaged}); nothing was restored.")
    return dict(about)


def _fill(storage: Storage, archive: zipfile.ZipFile, about: Json) -> None:
    """All rows, in one transaction."""
    with storage.write() as session:
        connection = session.connection()
        if storage.revision(connection) != about["schema"]:
            raise DataError(
                f"The backup has schema {about['schema']}, which is not this version's; restore it "
                "with the version that took it, and start the newer one on that."
            )
        if any(connection.scalar(sa.select(sa.func.count()).select_from(table))
               for table in Table.metadata.sorted_tables):  # fmt: skip
            raise UsageError("The database is not empty; give a new one.")
        for table in Table.metadata.sorted_tables:
            with archive.open(f"tables/{table.name}.jsonl") as part:
                for rows in _batches(table, part):
                    connection.execute(table.insert(), rows)
            if not storage.sqlite:
                _go_on_counting(connection, table)


def _batches(table: sa.Table, lines: Any) -> Iterator[list[Json]]:
    rows: list[Json] = []
    for line in lines:
        values = zip(table.columns, json.loads(line), strict=True)
        rows.append({c.name: _value(c, value) for c, value in values})
        if len(rows) == _ROWS:
            yield rows
            rows = []
    if rows:
        yield rows


def _value(column: "sa.Column[Any]", value: Any) -> Any:
    timed = isinstance(column.type, sa.types.TypeDecorator) and value is not None
    return datetime.fromisoformat(value) if timed else value


def _go_on_counting(connection: sa.Connection, table: sa.Table) -> None:
    """PostgreSQL numbers rows by a counter that does not see what was inserted with a number."""
    for column in table.primary_key:
        if column.autoincrement is True:
            last = connection.scalar(sa.select(sa.func.max(column)))
            if last is not None:
                counter = sa.func.pg_get_serial_sequence(table.name, column.name)
                connection.execute(sa.select(sa.func.setval(counter, last)))


def _freeze(storage: Storage, taken: str) -> None:
    said = f"It was restored from a backup of {taken}; what was spent since then is not known."
    with storage.write() as session:
        for row in session.scalars(sa.select(Dataset).where(~Dataset.public)):
            row.frozen = row.frozen or said


def _unpack(archive: zipfile.ZipFile, folder: Path) -> None:
    root = folder.resolve()
    for info in archive.infolist():
        if not info.filename.startswith("files/"):
            continue
        path = folder / info.filename.removeprefix("files/")
        if not path.resolve().is_relative_to(root):
            raise DataError("The backup names a file outside of its folder; nothing is taken.")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with archive.open(info) as part, path.open("wb") as out:
            while block := part.read(1 << 20):
                out.write(block)
        path.chmod((info.external_attr >> 16) & 0o777 or 0o600)
