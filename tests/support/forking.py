"""Processes that start quickly: a fresh Python of which torch and other heavy libraries are loaded.

`run_python` is `subprocess.run([sys.executable, ...])` for those to whom starting the process is
not the point, and `start_python` is `subprocess.Popen`. One process per session loads the
libraries, none of ours among them, and forks for each call. Nothing of one call is seen by another.

What such a process starts with the same Python (a server its jobs, torchrun its ranks, a command
its workers) is its child as ever, and quick, too: it is forked by a twin of the process, which
stays as both were in the beginning.
"""

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import inspect
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

LIBRARIES = (
    "alembic", "cryptography.hazmat.primitives.ciphers", "dp_accounting.pld", "fastapi", "httpx",
    "hypothesis", "peft", "pyarrow", "pydantic", "pytest", "rich.console", "safetensors.torch",
    "scipy.signal", "scipy.stats", "sqlalchemy", "tokenizers", "torch", "transformers",
    "transformers.modeling_utils", "typer", "uvicorn", "yaml",
)  # fmt: skip


def run_python(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    input: str = "",  # as `subprocess.run` calls it
    seconds: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """What a new Python does with these arguments (`-m NAME`, `-c CODE` or a file come first)."""
    environments = [dict(os.environ if env is None else env)]
    return _run_together(arguments, environments, cwd, input, seconds)[0]


def run_ranks(
    *arguments: str, ranks: int, env: Mapping[str, str] | None = None
) -> list[subprocess.CompletedProcess[str]]:
    """The same in so many processes that find each other as those of `torchrun` do."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = dict(os.environ if env is None else env)
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
    environments = [shared | {"RANK": str(n), "LOCAL_RANK": str(n)} for n in range(ranks)]
    return _run_together(arguments, environments, seconds=300)  # alone, each waits for days


def _run_together(
    arguments: tuple[str, ...],
    environments: list[dict[str, str]],
    cwd: Path | None = None,
    input: str = "",
    seconds: float | None = None,
) -> list[subprocess.CompletedProcess[str]]:
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for number, env in enumerate(environments):
            names = [f"{folder}/{name}{number}" for name in ("in", "out", "err")]
            Path(names[0]).write_text(input)
            started.append((_ask(_request(arguments, env, cwd, names)), names))
        done = []
        for process, names in started:
            code = _ask({"wait": process, "seconds": seconds})
            out, err = (Path(name).read_text() for name in names[1:])
            if code is None:
                os.kill(process, signal.SIGKILL)
                raise subprocess.TimeoutExpired([*arguments], float(seconds or 0), out, err)
            done.append(subprocess.CompletedProcess([*arguments], int(code), out, err))
    return done


class Started:
    """A process under way, as far as tests want it to be a `subprocess.Popen`."""

    def __init__(self, process: int, out: Path) -> None:
        self.pid = process
        self.stdout = out.open()
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        """To the process, unless it has been waited for."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Without a word."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """So that it may tidy up."""
        self.send_signal(signal.SIGTERM)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code; what it still says is not read."""
        if self.returncode is None:
            code = _ask({"wait": self.pid, "seconds": timeout})
            if code is None:
                raise subprocess.TimeoutExpired(["python"], float(timeout or 0))
            self.returncode = int(code)
        return self.returncode


def start_python(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Started:
    """A new Python with these arguments, whose output is read as it comes; its errors are not."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        os.mkfifo(out, 0o600)
        names = [os.devnull, str(out), os.devnull]
        request = _request(arguments, dict(os.environ if env is None else env), cwd, names)
        return Started(int(_ask(request)), out)


def _request(
    arguments: tuple[str, ...],
    env: dict[str, str],
    cwd: Path | None,
    names: list[str],
) -> dict[str, Any]:
    return {"arguments": arguments, "env": env, "cwd": str(cwd or Path.cwd()), "files": names}


def _ask(request: dict[str, Any]) -> Any:
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    return json.loads(server.stdout.readline())


@functools.cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    atexit.register(server.communicate)
    return server


def _serve() -> None:
    sys.path.remove(str(Path(__file__).parent))
    for name in LIBRARIES:
        importlib.import_module(name)
    assert not any(name.partition(".")[0] == "tacit" for name in sys.modules)
    gc.freeze()  # what is loaded stays: no child looks through it for garbage
    own = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    while line := sys.stdin.readline():
        asked = json.loads(line)
        if "wait" in asked:
            answer = _waited(asked["wait"], asked["seconds"])
        else:
            answer = os.fork()
            if not answer:
                _be(asked, own)
        print(json.dumps(answer), flush=True)  # noqa: T201


def _waited(child: int, seconds: float | None) -> int | None:
    """The exit code of a child; None if it goes on for longer than that."""
    if seconds is None:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    return None


def _be(asked: dict[str, Any], own: list[str]) -> None:
    """Be the process that was asked for, and end."""
    code: Any = 1
    try:
        for number, name in enumerate(asked["files"]):
            flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT
            os.dup2(os.open(name, flags, 0o600), number)
        sys.stdin = os.fdopen(0, closefd=False)  # also that of a process that forked this one
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["env"])
        given = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
        sys.path[:] = [*given, *(place for place in sys.path if place not in own)]
        importlib.invalidate_caches()
        if asked["arguments"][0] != "-c":
            _have_twin([*own, *given])
        code = _carry_out(*asked["arguments"])
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)  # noqa: T201
            code = 1
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(int(code or 0))


# --- what a forked process starts ---------------------------------------------------------------

_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER


def _have_twin(own: list[str]) -> None:
    """Let a twin of this process fork whatever it starts with the same Python."""
    here, there = socket.socketpair()
    if not os.fork():
        here.close()
        for number in range(3):
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        _fork_for(there, own)
    there.close()
    ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 1)  # those are orphans, and so become our children
    lock = threading.Lock()

    def fork(words: list[str], files: list[int], kept: Any, **about: Any) -> int:
        request: dict[str, Any] = {"arguments": words, "env": dict(os.environ)}
        request |= {"cwd": os.getcwd(), "kept": list(kept), "session": False}
        request |= {name: value for name, value in about.items() if value is not None}
        line = json.dumps(request).encode()
        with lock:
            here.sendall(len(line).to_bytes(4, "big"))
            socket.send_fds(here, [line[:1]], [*files, *kept])
            here.sendall(line[1:])
            return int.from_bytes(here.recv(8, socket.MSG_WAITALL), "big")

    started: Any = subprocess.Popen
    started._execute_child = _forking_popen(fork, started._execute_child)
    spawning: Any = importlib.import_module("multiprocessing.util")

    def spawnv_passfds(path: bytes, words: list[str], kept: list[int]) -> int:
        return fork(words[words.index("-c") :], [0, 1, 2], kept)

    spawning.spawnv_passfds = spawnv_passfds


def _forking_popen(fork: Callable[..., int], execute: Callable[..., None]) -> Callable[..., None]:
    """What makes the process of a `Popen`, forked where that can be done."""
    parameters = inspect.signature(execute)

    def execute_child(self: Any, *given: Any) -> None:
        asked = parameters.bind(self, *given).arguments
        whole: list[Any] = [*asked["args"]] if isinstance(asked["args"], list | tuple) else [None]
        words = [os.fspath(word) for word in whole[1:] if word != "-u"]
        known = words and (words[0] == "-m" or words[0].endswith(".py"))
        if whole[0] != sys.executable or not known or asked["preexec_fn"] is not None:
            return execute(self, *given)
        ends = [asked[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        files = [number if end == -1 else end for number, end in enumerate(ends)]
        cwd = None if asked["cwd"] is None else os.fspath(asked["cwd"])
        env = None if asked["env"] is None else dict(asked["env"])
        session = asked["start_new_session"]
        self.pid = fork(words, files, asked["pass_fds"], cwd=cwd, env=env, session=session)
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[name] for name in pipes))

    return execute_child


def _fork_for(asking: socket.socket, own: list[str]) -> None:
    """Fork whatever is asked for, until nobody is there to ask any more."""
    while size := int.from_bytes(asking.recv(4, socket.MSG_WAITALL), "big"):
        first, files, _, _ = socket.recv_fds(asking, 1, 64)
        asked = json.loads(first + asking.recv(size - 1, socket.MSG_WAITALL))
        told, tell = os.pipe()
        between = os.fork()
        if not between:
            child = os.fork()
            if child:
                os.write(tell, child.to_bytes(8, "big"))
                os._exit(0)
            asking.close()
            os.close(told)
            os.close(tell)
            _become(asked, files, own)
        os.waitpid(between, 0)  # from here on the child is that of whoever asked
        asking.sendall(os.read(told, 8))
        for number in (told, tell, *files):
            os.close(number)
    os._exit(0)


def _become(asked: dict[str, Any], files: list[int], own: list[str]) -> None:
    places = [0, 1, 2, *asked["kept"]]
    aside = [fcntl.fcntl(number, fcntl.F_DUPFD, max(places) + 1) for number in files]
    for number in files:
        os.close(number)
    for number, place in zip(aside, places, strict=True):
        os.dup2(number, place)
        os.close(number)
    if asked["session"]:
        os.setsid()
    _be(asked | {"files": []}, own)


def _carry_out(first: str, *rest: str) -> int:
    if first == "-m":
        sys.argv, sys.path[:0] = [*rest], [os.getcwd()]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv, sys.path[:0] = ["-c", *rest[1:]], [""]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv, sys.path[:0] = [first, *rest], [str(Path(first).parent)]
        runpy.run_path(first, run_name="__main__")
    return 0


if __name__ == "__main__":
    _serve()
