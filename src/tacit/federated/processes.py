"""Flower's processes, started, watched and ended: a SuperLink, SuperNodes, a simulation.

Nothing is sent to Flower's makers, nothing is installed at run time, and whatever is started here
ends with us. Flower keeps its own files in a folder of ours.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

from tacit import errors
from tacit.errors import DataError, MissingExtra, TacitError, UsageError
from tacit.federated.settings import CANNOT, FOLDER

LOOPBACK = "127.0.0.1"
_EVERYWHERE = ("0.0.0.0", "::")
_CONNECTION = "tacit"
_PATIENCE = 15.0
_STARTING = 180.0
"""How long, in seconds, a SuperLink may take until it listens; a crowded machine is slow."""

_APP = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "tacit-federated"
version = "1.0.0"
description = "The app that the installed package holds"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "tacit"

[tool.flwr.app.components]
serverapp = "federation:server_app"
clientapp = "federation:client_app"

[tool.flwr.app.config]
folder = ""
"""


@dataclass(frozen=True)
class Transport:
    """An address, and the files of TLS; without them only this machine is spoken to."""

    host: str = LOOPBACK
    port: int = 0
    certificate: Path | None = None
    private_key: Path | None = None
    authority: Path | None = None

    def __post_init__(self) -> None:
        if self.authority is None and self.host not in (LOOPBACK, "localhost", "::1"):
            raise UsageError(
                f"{self.host} is not this machine, and updates must not cross a network in the "
                "clear; give the files of TLS (--authority, at the server also --certificate and "
                "--private-key)."
            )

    @property
    def address(self) -> str:
        """As Flower wants it."""
        return f"{self.host}:{self.port}"

    def of_server(self) -> list[str]:
        """Options of a SuperLink."""
        if self.authority is None:
            return ["--insecure"]
        if self.certificate is None or self.private_key is None:
            raise UsageError("A server with --authority needs --certificate and --private-key.")
        return [
            "--ssl-certfile", str(self.certificate), "--ssl-keyfile", str(self.private_key),
            "--ssl-ca-certfile", str(self.authority),
        ]  # fmt: skip

    def of_client(self) -> list[str]:
        """Options of a SuperNode."""
        if self.authority is None:
            return ["--insecure"]
        return ["--root-certificates", str(self.authority)]


def parse_address(text: str, **files: Path | None) -> Transport:
    """`HOST:PORT` as a transport."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"{text!r} is not an address; write HOST:PORT.")
    return Transport(host, int(port), **files)


def free_port() -> int:
    """A port of this machine that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


@dataclass
class Processes:
    """Children of ours; each leads a group of its own, which is ended as a whole, by its id."""

    home: Path
    children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(
        self, name: str, arguments: Sequence[str], **variables: str
    ) -> subprocess.Popen[bytes]:
        """Start one of Flower's programs; what it says goes into a log of its own."""
        bin_ = Path(sys.executable).parent
        program = shutil.which(arguments[0], path=f"{bin_}{os.pathsep}{os.environ.get('PATH', '')}")
        if program is None:
            raise MissingExtra.of(f"Flower's {arguments[0]} is not installed", "federated")
        with self.log(name).open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-c", _TIED, str(os.getpid()), program, *arguments[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(self.home) | variables,
                start_new_session=True,
            )
        self.children[name] = child
        return child

    def log(self, name: str) -> Path:
        """Where a child's words are."""
        return self.home / f"{name}.log"

    def end(self, name: str, *, at_once: bool = False) -> None:
        """End a child with all that it started; asked first, unless it is to be `at_once`."""
        child = self.children.pop(name)
        away = _descendants(child.pid)  # some of Flower's lead groups of their own
        for number in (signal.SIGKILL,) if at_once else (signal.SIGTERM, signal.SIGKILL):
            # The group outlives its leader while any child of it runs.
            with suppress(ProcessLookupError):
                os.killpg(child.pid, number)
            until = time.monotonic() + _PATIENCE
            while time.monotonic() < until and _group_lives(child):
                time.sleep(0.1)
            if not _group_lives(child):
                break
        for process, begun in away.items():
            if _begun(process) == begun:  # still the same process, not another of that number
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)

    def end_all(self) -> None:
        """End all of them, the last one first."""
        for name in reversed(list(self.children)):
            self.end(name)


def _descendants(leader: int) -> dict[int, str]:
    """The processes below one of ours, and when each began; none where /proc does not tell."""
    parents: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(place.name))
    found, new = [], [leader]
    while new:
        new = [child for parent in new for child in parents.get(parent, [])]
        found += new
    return {number: begun for number in found if (begun := _begun(number))}


def _begun(number: int) -> str:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _group_lives(child: subprocess.Popen[bytes]) -> bool:
    child.poll()  # a leader that ended is no longer a zombie then
    try:
        os.killpg(child.pid, 0)
    except ProcessLookupError:
        return False
    return True


def environment(home: Path) -> dict[str, str]:
    """What Flower's programs are told: no telemetry, no looking for updates, a folder of ours."""
    bin_ = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_HOME": str(home),
        "RAY_USAGE_STATS_ENABLED": "0",
        "PATH": f"{bin_}{os.pathsep}{os.environ.get('PATH', '')}",
        "TOKENIZERS_PARALLELISM": "false",
    }


_TIED = """
import ctypes, os, signal, sys
try:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
except (AttributeError, OSError):
    pass
if os.getppid() == int(sys.argv[1]):  # else it ended before it could be noticed
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""Becomes a program that Linux ends when its parent ends, even if that is killed."""


@contextmanager
def processes() -> Iterator[Processes]:
    """Children that end with the block, however it ends."""
    home = Path(mkdtemp(prefix="tacit-flower-"))
    running = Processes(home)
    with _ending_in_order():
        try:
            yield running
        finally:
            running.end_all()
            shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Being asked to end (SIGTERM) is taken as Ctrl-C, so that children are ended first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# --- a SuperLink, and a run on it -------------------------------------------------------------


def start_link(running: Processes, at: Transport) -> None:
    """Start a SuperLink and wait until it listens."""
    child = running.start(
        "superlink",
        [sys.executable, "-m", "tacit.federated.superlink", "--host", at.host,
         "--port", str(at.port), *at.of_server(), "--disable-runtime-dependency-installation"],
    )  # fmt: skip
    until = time.monotonic() + _STARTING
    while time.monotonic() < until:
        if child.poll() is not None:
            break
        with suppress(OSError), socket.create_connection((at.host, at.port), timeout=1):
            return
        time.sleep(0.2)
    raise DataError(f"Flower's SuperLink did not start; is {at.address} in use?")


def start_node(
    running: Processes, name: str, at: Transport, config: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start a SuperNode, which answers for one client."""
    settings = " ".join(f'{key}="{_quoted(value)}"' for key, value in config.items())
    return running.start(
        name,
        ["flower-supernode", "--superlink", at.address, *at.of_client(), "--host", LOOPBACK,
         "--port", str(free_port()), "--node-config", settings],
    )  # fmt: skip


def _quoted(value: str) -> str:
    if '"' in value or "\\" in value or "\n" in value:
        raise UsageError(f"{value!r} has a quotation mark or a backslash; Flower takes none.")
    return value


def submit(running: Processes, at: Transport, folder: Path) -> subprocess.Popen[bytes]:
    """Hand the app to a SuperLink, which starts the server of this run."""
    app = running.home / "app"
    app.mkdir(exist_ok=True)
    (app / "pyproject.toml").write_text(_APP, encoding="utf-8")
    (app / "federation.py").write_text(
        '"""Both apps are in the installed package."""\n\n'
        "from tacit.federated.app import client_app, server_app\n\n"
        '__all__ = ["client_app", "server_app"]\n',
        encoding="utf-8",
    )
    lines = [f'[superlink]\ndefault = "{_CONNECTION}"\n\n[superlink.{_CONNECTION}]\n']
    # Runs are started from this machine alone; see link.py.
    here = LOOPBACK if at.host in _EVERYWHERE else at.host
    lines.append(f'address = "{here}:{at.port}"\n')
    if at.authority is None:
        lines.append("insecure = true\n")
    else:
        lines.append(f'root-certificates = "{_quoted(str(at.authority.resolve()))}"\n')
    (running.home / "config.toml").write_text("".join(lines), encoding="utf-8")
    ended = folder / FOLDER / "ended.json"
    ended.unlink(missing_ok=True)
    return running.start(
        "run",
        ["flwr", "run", str(app), _CONNECTION, "--stream", "--run-config",
         f'folder="{_quoted(str(folder.resolve()))}"'],
    )  # fmt: skip


def run_here(folder: Path, at: Transport, *, on_progress: Callable[[str], None]) -> None:
    """Start a SuperLink for one run, carry the run out, and end the SuperLink."""
    with processes() as running:
        start_link(running, at)
        on_progress(f"waiting for clients at {at.address}")
        wait_for_run(running, submit(running, at, folder), folder, on_progress=on_progress)


def node_here(at: Transport, config: dict[str, str], *, on_progress: Callable[[str], None]) -> None:
    """Answer for one client until somebody stops us; a server that went away may come back."""
    in_vain = 0
    while in_vain < _IN_VAIN:
        begun = time.monotonic()
        with processes() as running:
            child = start_node(running, "client", at, config)
            read = 0
            while child.poll() is None:
                read = _pass_on(running.log("client"), read, on_progress)
                time.sleep(1.0)
            said = running.log("client").read_text(encoding="utf-8", errors="replace")
        in_vain = in_vain + 1 if time.monotonic() - begun < _SOON else 0
        on_progress("Flower's SuperNode ended, as it does when the server is gone; joining again")
        time.sleep(_AGAIN)
    sys.stderr.write(said)
    raise DataError(f"Flower's SuperNode does not stay; does a SuperLink listen at {at.address}?")


def _pass_on(log: Path, read: int, on_progress: Callable[[str], None]) -> int:
    """Tell what is new of our own words in a log, which has Flower's, too; how far it was read."""
    with log.open("rb") as file:
        file.seek(read)
        new = file.read()
    whole = new[: new.rfind(b"\n") + 1]
    for line in whole.decode(errors="replace").splitlines():
        _, found, rest = line.partition(CANNOT)
        if found:
            on_progress(found + rest)
    return read + len(whole)


_IN_VAIN, _SOON, _AGAIN = 5, 30.0, 2.0
"""A client gives up if it ended so often, one time after the other, within so many seconds."""


def wait_for_run(
    running: Processes,
    child: subprocess.Popen[bytes],
    folder: Path,
    *,
    on_progress: Callable[[str], None],
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Tell the rounds as they are noted, until the run has ended; raise what ended it."""
    lines = Lines(folder / FOLDER / "progress.jsonl")
    while child.poll() is None:
        lines.on_progress(on_progress)
        meanwhile()
        time.sleep(0.5)
    lines.on_progress(on_progress)
    raise_ended(folder)
    if not (folder / "certificate.json").exists():
        kept = folder / FOLDER / "flower.log"
        with kept.open("wb") as log:
            for name in ("superlink", "run", "simulation"):
                if running.log(name).exists():
                    log.write(running.log(name).read_bytes())
        if not (folder / FOLDER / "cohort.json").exists():
            raise DataError(
                f"The run did not begin; see {kept}. With TLS, the server's certificate has to "
                f"name {LOOPBACK} beside the name that clients use. Then --resume {folder}."
            )
        raise DataError(
            f"The server of the run ended before its last round; see {kept}. What was spent is in "
            f"the ledger: go on with --resume {folder}."
        )


def raise_ended(folder: Path) -> None:
    """Raise again what ended a run in another process."""
    path = folder / FOLDER / "ended.json"
    if path.exists():
        fields = json.loads(path.read_text(encoding="utf-8"))
        kind = getattr(errors, str(fields["kind"]), TacitError)
        raise kind(fields["says"])


class Lines:
    """The rounds that a run notes; what was there before is not told again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = path.stat().st_size if path.exists() else 0

    def on_progress(self, on_progress: Callable[[str], None]) -> None:
        """Tell what is new."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._seen)
            for line in file:
                if line.endswith(b"\n"):
                    self._seen += len(line)
                    on_progress(as_line(json.loads(line)))


def as_line(fields: dict[str, object]) -> str:
    """A round in words.

    >>> as_line({"round": 1, "rounds": 2, "spent": "epsilon <= 1 of 8",
    ...     "not_private": {"drawn": 5, "answered": 4, "faults": {"late": 1}}})
    'round 1/2 · epsilon <= 1 of 8 · not private: 4 of 5 drawn users answered (late: 1)'
    """
    seen = fields["not_private"]
    assert isinstance(seen, dict)
    said = f"not private: {seen['answered']} of {seen['drawn']} drawn users answered"
    if seen["faults"]:
        said += " (" + ", ".join(f"{what}: {n}" for what, n in seen["faults"].items()) + ")"
    spent = f"{fields['spent']} · " if fields["spent"] else ""
    return f"round {fields['round']}/{fields['rounds']} · {spent}{said}"
