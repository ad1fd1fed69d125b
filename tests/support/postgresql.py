"""A PostgreSQL server of our own, on this machine, for as long as it is needed."""

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
from contextlib import contextmanager
from pathlib import Path

NONE_FOUND = "no PostgreSQL binaries (initdb, postgres) on the path: only SQLite is tested"


def postgres_binaries() -> Path | None:
    """The folder of a PostgreSQL server's programs, wherever a system keeps it."""
    places = [Path(p).parent for p in [shutil.which("initdb")] if p]
    places += [Path(p).parent for p in sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))[::-1]]
    return next((place for place in places if (place / "postgres").exists()), None)


@contextmanager
def postgres_server(binaries: Path, *, durable: bool = False) -> Iterator[Callable[[], str]]:
    """Addresses of new, empty databases."""
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
         "-c", "listen_addresses=127.0.0.1", "-c", f"fsync={'on' if durable else 'off'}"],
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
        connection.execute(f"CREATE DATABASE {name}")
    return f"{base}/{name}"
