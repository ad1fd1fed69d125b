"""What all tests share."""

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A ledger is on the disk before noise is drawn: thousands of times here, milliseconds each. In
# memory that takes none; what tests assert is the order, not that a disk keeps its word.
_MEMORY = Path("/dev/shm")
_ROOM = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > 4 << 30
if _ROOM and "TMPDIR" not in os.environ:
    os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)

# Models are tiny here: threads that share a sum would wait for each other most of the time. Before
# anything loads torch, for this process and for those that it starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Hundreds of processes import the package: without bytecode each of them compiles it anew.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    sys.dont_write_bytecode = False

# Neither prices that tests compute nor a key are left in anybody's folders.
_OURS = tempfile.mkdtemp(prefix="tacit-tests-")
# What one process has priced serves the others: workers of xdist, and planted bugs.
os.environ["TACIT_CACHE"] = os.environ.setdefault("TACIT_TESTS_PRICES", f"{_OURS}/cache")
os.environ["TACIT_HOME"] = f"{_OURS}/home"
atexit.register(shutil.rmtree, _OURS, ignore_errors=True)

# A job in a shell's background ignores Ctrl-C, as would the commands that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: tests assert results, never times, and two cores are shared.
settings.register_profile(
    "tacit", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("tacit")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # They take half a minute each: first, so that no worker is left alone with one.
    items.sort(key=lambda item: not item.name.startswith("test_every_planted_bug"))
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="minutes of work: give --slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


def pytest_collection_finish() -> None:
    """What is loaded stays: no later search for garbage looks through it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real corpora, for the tests that want them."""
    folder = os.environ.get("TACIT_DATA")
    if not folder:
        pytest.skip("TACIT_DATA names no folder of corpora")
    return Path(folder)
