"""Processes that start quickly: a fresh Python of which torch and other heavy libraries are loaded.

`run_python` is `subprocess.run([sys.executable, ...])` for those to whom starting the process is
not the point. One process per session loads the libraries, none of ours among them, and forks
for each call. Nothing of one call is seen by another.
"""

import atexit
import contextlib
import functools
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LIBRARIES = (
    "dp_accounting.pld", "hypothesis", "peft", "pyarrow", "pydantic", "pytest", "rich.console",
    "safetensors.torch", "scipy.stats", "tokenizers", "torch", "transformers",
    "transformers.modeling_utils", "typer", "yaml",
)  # fmt: skip


def run_python(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    input: str = "",  # as `subprocess.run` calls it
) -> subprocess.CompletedProcess[str]:
    """What a new Python does with these arguments (`-m NAME`, `-c CODE` or a file come first)."""
    with tempfile.TemporaryDirectory() as folder:
        names = [f"{folder}/{name}" for name in ("in", "out", "err")]
        Path(names[0]).write_text(input)
        asked = {"arguments": arguments, "env": dict(os.environ if env is None else env),
                 "cwd": str(cwd or Path.cwd()), "files": names}  # fmt: skip
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        out, err = (Path(name).read_text() for name in names[1:])
    return subprocess.CompletedProcess([*arguments], code, out, err)


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
    own = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    while line := sys.stdin.readline():
        asked = json.loads(line)
        child = os.fork()
        if not child:
            _be(asked, own)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201


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
