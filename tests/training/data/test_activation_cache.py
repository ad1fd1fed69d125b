import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tacit.training.data.activation_cache import Activations, load_or_compute

LENGTHS = [2, 0, 3, 1]
VALUES = np.arange(12, dtype=np.float32).reshape(6, 2)
PARTS = [VALUES[0:2], VALUES[2:2], VALUES[2:5], VALUES[5:6]]


class Computing:
    """Vectors in another order than the texts', counting how often they are computed."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self):
        self.times += 1
        for rows in ([3, 0], [2], [1]):
            yield np.asarray(rows), np.concatenate([PARTS[row] for row in rows])


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def same(found: Activations) -> bool:
    return np.array_equal(found.values, VALUES) and found.lengths.tolist() == LENGTHS


def test_vectors_are_computed_once_and_are_their_owners_alone(cache: Path) -> None:
    compute = Computing()
    assert same(load_or_compute("a", LENGTHS, 2, compute))
    assert same(load_or_compute("a", LENGTHS, 2, compute))
    assert compute.times == 1
    assert same(load_or_compute("b", LENGTHS, 2, compute))
    assert compute.times == 2
    [a, b] = sorted((cache / "activations").glob("*.npy"))
    assert stat.S_IMODE(a.stat().st_mode) == stat.S_IMODE(b.stat().st_mode) == 0o600


def test_ragged_rows_come_back_in_any_order(cache: Path) -> None:
    found = load_or_compute("a", LENGTHS, 2, Computing())
    assert found.of(np.array([2, 1, 0])).tolist() == [*PARTS[2].tolist(), *PARTS[0].tolist()]
    block = found.padded(np.array([1, 3]), 2)
    assert block.tolist() == [[[0, 0], [0, 0]], [PARTS[3][0].tolist(), [0, 0]]]


def test_nothing_is_written_where_the_cache_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TACIT_CACHE", "off")
    monkeypatch.setenv("HOME", str(tmp_path))
    compute = Computing()
    assert same(load_or_compute("a", LENGTHS, 2, compute))
    assert same(load_or_compute("a", LENGTHS, 2, compute))
    assert compute.times == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", [b"", b"no vectors"])
def test_a_damaged_file_is_computed_again(cache: Path, damage: bytes) -> None:
    load_or_compute("a", LENGTHS, 2, Computing())
    (cache / "activations" / "a.npy").write_bytes(damage)
    assert same(load_or_compute("a", LENGTHS, 2, Computing()))


def test_what_was_not_computed_to_the_end_is_not_kept(cache: Path) -> None:
    def half():
        yield np.array([0]), PARTS[0]

    with pytest.raises(RuntimeError, match="3 of 4 texts"):
        load_or_compute("a", LENGTHS, 2, half)
    assert list((cache / "activations").glob("*.npy")) == []


def test_nothing_at_all_is_nothing(cache: Path) -> None:
    assert load_or_compute("a", [], 2, lambda: ()).values.shape == (0, 2)


BOUNDED = """
import resource, sys
import numpy as np
from tacit.training.data.activation_cache import load_or_compute

rows, each, width = 64, 256, 4096            # 256 MB, in pieces of 4 MB
def compute():
    for row in range(rows):
        yield np.array([row]), np.full((each, width), row, dtype=np.float32)
held = int(next(l for l in open("/proc/self/status") if l.startswith("VmData")).split()[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (held + (96 << 20), resource.RLIM_INFINITY))
kept = load_or_compute("big", [each] * rows, width, compute)
assert all(float(kept.of(np.array([row]))[-1, -1]) == row for row in range(rows))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory is Linux's")
@pytest.mark.parametrize("cached", [True, False])
def test_what_is_kept_on_disk_need_not_fit_into_memory(tmp_path: Path, cached: bool) -> None:
    where = str(tmp_path) if cached else "off"
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED], env=os.environ | {"TACIT_CACHE": where},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (done.returncode == 0) == cached, done.stderr
    assert cached or "MemoryError" in done.stderr
