"""What a frozen model makes of texts, computed once and kept on disk as float32 vectors.

Private text gives private vectors: files are readable by their owner alone, and with
`TACIT_CACHE=off` nothing is written.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkstemp
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from tacit.privacy.accounting.price_cache import cache_folder

Vectors = NDArray[np.float32]
Places = NDArray[np.int64]
Compute = Callable[[], Iterable[tuple[Places, Vectors]]]
"""Some rows, in any order, and their vectors one after the other; every row exactly once."""


@dataclass(frozen=True, eq=False)
class Activations:
    """Vectors of texts: text `i` has the rows `offsets[i]` to `offsets[i + 1]` of `values`."""

    values: Vectors
    offsets: Places

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def width(self) -> int:
        """How many numbers a vector has."""
        return int(self.values.shape[1])

    @property
    def lengths(self) -> Places:
        """How many vectors each text has."""
        return np.diff(self.offsets)

    def of(self, rows: NDArray[Any]) -> Vectors:
        """The vectors of these texts one after the other."""
        return np.asarray(self.values[_spread(self.offsets, rows)])

    def padded(self, rows: NDArray[Any], room: int) -> Vectors:
        """The vectors of these texts as a block of `room` vectors each, zeros behind the last."""
        block = np.zeros((len(rows), room, self.width), dtype=np.float32)
        block[np.arange(room) < self.lengths[rows][:, None]] = self.of(rows)
        return block


def load_or_compute(
    key: str, lengths: Sequence[int] | Places, width: int, compute: Compute
) -> Activations:
    """Vectors by the digest of all that decides them: from the disk, or computed and put there.

    `lengths` says how many vectors each text has. The file is memory-mapped, so a corpus need not
    fit into memory; where nothing may be written, or nothing can be, it has to.
    """
    offsets = np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))])
    shape = (int(offsets[-1]), width)
    place = _place(key)
    if place is None:
        values = np.empty(shape, dtype=np.float32)
        _fill(values, offsets, compute)
        return Activations(values, offsets)
    # Whoever wants the same at the same moment waits for it instead of computing it twice.
    with FileLock(str(place) + ".lock"):
        kept = _kept(place, shape)
        if kept is None:
            _write(place, shape, offsets, compute)
            kept = np.load(place, mmap_mode="r")
    return Activations(kept, offsets)


def _place(key: str) -> Path | None:
    """Where the vectors of a key lie; None where nothing can be kept."""
    root = cache_folder()
    if root is None:
        return None
    folder = root / "activations"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return folder / f"{key}.npy" if os.access(folder, os.W_OK) else None


def _kept(place: Path, shape: tuple[int, int]) -> Vectors | None:
    """What lies there, if it is whole."""
    try:
        kept: Vectors = np.load(place, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        return None
    return kept if kept.shape == shape and kept.dtype == np.float32 else None


def _write(place: Path, shape: tuple[int, int], offsets: Places, compute: Compute) -> None:
    """Write the vectors beside their place first: what has the name is whole."""
    handle, draft = mkstemp(prefix=".", suffix=".npy", dir=place.parent)  # for its owner alone
    os.close(handle)
    try:
        values = np.lib.format.open_memmap(draft, mode="w+", dtype=np.float32, shape=shape)
        _fill(values, offsets, compute)
        values.flush()
        del values
        os.replace(draft, place)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft)


def _fill(values: Vectors, offsets: Places, compute: Compute) -> None:
    missing = np.ones(len(offsets) - 1, dtype=bool)
    for rows, vectors in compute():
        values[_spread(offsets, rows)] = vectors
        missing[rows] = False
    if missing.any():
        raise RuntimeError(f"{int(missing.sum())} of {len(missing)} texts were given no vectors")


def _spread(offsets: Places, rows: NDArray[Any]) -> Places:
    """Where the vectors of these texts stand.

    >>> _spread(np.array([0, 2, 3, 6]), np.array([2, 0])).tolist()
    [3, 4, 5, 0, 1]
    """
    rows = np.asarray(rows, dtype=np.int64)
    sizes = offsets[rows + 1] - offsets[rows]
    before = np.cumsum(sizes) - sizes
    return np.arange(int(sizes.sum())) + np.repeat(offsets[rows] - before, sizes)
