"""Processes that start quickly: a fresh Python of which torch and other heavy libraries are loaded.

`run_python` is `subprocess.run([sys.executable, ...])` for those to whom starting the process is
not the point, and `start_python` is `subprocess.Popen`. One process per session loads the
libraries, none of ours among them, and forks for each call. Nothing of one call is seen by another.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
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
) -> subprocess.CompletedProcess[str]:
    """What a new Python does with these arguments (`-m NAME`, `-c CODE` or a file come first)."""
    return _run_together(arguments, [dict(os.environ if env is None else env)], cwd, input)[0]


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
        sys.stdin = os.fdopen(0)
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["env"])
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:] = [*filter(None, given), *(place for place in sys.path if place not in own)]
        importlib.invalidate_caches()
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
