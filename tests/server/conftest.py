"""Servers on SQLite and on a PostgreSQL that is started for the tests."""

import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tacit.server.services import Services
from tacit.server.settings import ServerSettings

NONE_FOUND = "no PostgreSQL binaries (initdb, postgres) on the path: only SQLite is tested"


def postgres_binaries() -> Path | None:
    """The folder of a PostgreSQL server's programs, wherever a system keeps it."""
    places = [Path(p).parent for p in [shutil.which("initdb")] if p]
    places += [Path(p).parent for p in sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))[::-1]]
    return next((place for place in places if (place / "postgres").exists()), None)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Callable[[], str]]:
    """Addresses of new, empty databases on a server of our own."""
    binaries = postgres_binaries()
    if binaries is None:
        pytest.skip(NONE_FOUND)
    folder = Path(tempfile.mkdtemp(prefix="tacit-pg-"))
    # PostgreSQL does not run as root.
    user = next((u for u in ("postgres", "nobody") if os.getuid() == 0 and _exists(u)), None)
    if user is not None:
        shutil.chown(folder, user)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "user": user}
    make = [binaries / "initdb", "-D", folder / "d", "-U", "tacit", "-A", "trust", "--no-sync"]
    subprocess.run(make, check=True, cwd=folder, **quiet)  # type: ignore[call-overload]
    server = subprocess.Popen(  # type: ignore[call-overload]
        [binaries / "postgres", "-D", folder / "d", "-p", str(port), "-k", folder,
         "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"],
        cwd=folder, **quiet,
    )  # fmt: skip
    try:
        _until_it_answers(port)
        count = iter(range(10_000))
        yield lambda: _new_database(port, f"t{next(count)}")
    finally:
        server.send_signal(signal.SIGINT)  # at once, whoever is still connected
        server.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _until_it_answers(port: int) -> None:
    import psycopg

    until = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(f"postgresql://tacit@127.0.0.1:{port}/postgres").close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def _new_database(port: int, name: str) -> str:
    import psycopg

    base = f"postgresql://tacit@127.0.0.1:{port}"
    with psycopg.connect(f"{base}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")  # type: ignore[call-overload]
    return f"{base}/{name}"


@pytest.fixture(params=["sqlite", "postgresql"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> ServerSettings:
    """A new folder with a new database, once of each kind."""
    database = None
    if request.param == "postgresql":
        database = request.getfixturevalue("postgres")()
    return ServerSettings(folder=tmp_path / "server", database=database)


@pytest.fixture
def services(settings: ServerSettings) -> Iterator[Services]:
    opened = Services.open(settings)
    yield opened
    opened.close()


@pytest.fixture
def lite(tmp_path: Path) -> Iterator[Services]:
    """On SQLite only, where the database makes no difference."""
    opened = Services.open(ServerSettings(folder=tmp_path / "server"))
    yield opened
    opened.close()
