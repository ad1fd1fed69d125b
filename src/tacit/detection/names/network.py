"""The network that tells names in running text: whole numbers, read from one file.

Words become rows of integers; three layers look 1, 2 and 4 words to either side; the last gives
each tag a score. Every product is of integers small enough that float32 adds them up without
rounding, so what is said of a text depends neither on the batch it comes in, nor on the machine.
"""

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.detection.names.tokens import plain, rows
from tacit.errors import DataError

MODEL = "model.npz"
SHA256 = "3c95279b332afd786fd2fadf486e91c47d0c044d6a1e3537a8f29ce704b99886"
"""Of the file that belongs to this version."""

KINDS = ("PERSON", "ORG", "LOC", "MISC")
TAGS = ("O", *(f"{place}-{kind}" for kind in KINDS for place in "BI"))
GAPS = (1, 2, 4)
STEP = 1 / 16

_TYPES_CACHED = 100_000
_CHUNK = 16_384  # tokens that go through the layers together


class Network:
    """Scores of the tags for the tokens of texts."""

    def __init__(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Take the arrays of the file."""
        self._a = arrays
        words = arrays["lexicon"].tobytes().decode().split("\n")
        self._row = {word: i for i, word in enumerate(words)}
        self._layers = [_weights(arrays, f"layer{i}") for i in range(len(GAPS))]
        self._out = _weights(arrays, "out")
        self._vector = arrays["vector"].astype(np.float64)
        self._flags = arrays["bits"].astype(np.float64)
        width = arrays["out"].shape[1]
        self._types: dict[str, int] = {}
        # Row 0 stands beyond both ends of a text.
        self._known = np.zeros((1024, width), np.float32)

    def listed(self, word: str) -> int:
        """The bits of a word in the lists of names, 0 where it stands in none."""
        at = self._row.get(plain(word))
        return 0 if at is None else int(self._a["lexicon_bits"][at])

    def scores(self, texts: Sequence[Sequence[str]]) -> list[NDArray[np.float64]]:
        """For each text a row of scores for each of its tokens, in the order of `TAGS`."""
        found: list[NDArray[np.float64]] = []
        first = size = 0
        for i, tokens in enumerate(texts):
            if len(tokens) > _CHUNK:
                found += self._some(texts[first:i])
                found.append(self._long(tokens))
                first, size = i + 1, 0
                continue
            size += len(tokens)
            if size >= _CHUNK:
                found += self._some(texts[first : i + 1])
                first, size = i + 1, 0
        return found + self._some(texts[first:])

    def _long(self, tokens: Sequence[str]) -> NDArray[np.float64]:
        """A long text in pieces, each with all the words around that the layers look at."""
        seen = sum(GAPS)
        pieces = []
        for start in range(0, len(tokens), _CHUNK):
            before = min(start, seen)
            piece = tokens[start - before : start + _CHUNK + seen]
            pieces.append(self._some([piece])[0][before : before + _CHUNK])
        return np.concatenate(pieces)

    def _some(self, texts: Sequence[Sequence[str]]) -> list[NDArray[np.float64]]:
        if not texts:
            return []
        if len(self._types) > _TYPES_CACHED:
            self._types.clear()
        ids = np.array([self._type(t) for tokens in texts for t in tokens], np.int64)
        ends = np.cumsum([len(tokens) for tokens in texts])
        x = np.concatenate([self._known[ids], self._known[:1]])
        nothing = len(ids)
        place = np.arange(nothing)
        start = np.repeat(np.concatenate([[0], ends[:-1]]), np.diff(ends, prepend=0))
        end = np.repeat(ends, np.diff(ends, prepend=0))
        for (weight, step, bias), gap in zip(self._layers, GAPS, strict=True):
            before = np.where(place - gap >= start, place - gap, nothing)
            after = np.where(place + gap < end, place + gap, nothing)
            wide = np.concatenate([x[before], x[:-1], x[after]], axis=1)
            z = (wide @ weight) * step + bias
            z = np.clip(np.rint(z / STEP), 0, 127)
            x[:-1] = np.clip(x[:-1] + z, -127, 127)
        weight, step, bias = self._out
        scores = (x[:-1] @ weight) * step + bias
        return np.split(scores, ends[:-1])

    def _type(self, word: str) -> int:
        at = self._types.get(word)
        if at is None:
            at = len(self._types) + 1
            if at >= len(self._known):
                self._known = np.concatenate([self._known, np.zeros_like(self._known)])
            self._known[at] = self._integers(word)
            self._types[word] = at
        return at

    def _integers(self, word: str) -> NDArray[np.float64]:
        a = self._a
        x = np.zeros(a["out"].shape[1])
        for name, row in zip(("words", "prefixes", "suffixes", "shapes"), rows(word), strict=True):
            x += a[name][row] * a[f"{name}_step"][0]
        at = self._row.get(plain(word))
        if at is not None:
            bits = (int(a["lexicon_bits"][at]) >> np.arange(len(self._flags))) & 1
            x += (bits @ self._flags) * a["bits_step"][0]
            if at < len(a["vectors"]):
                vector = a["vectors"][at].astype(np.float64)
                x += (vector @ self._vector) * (a["vector_step"][0] / 32)
        return np.clip(np.rint(x / STEP), -127, 127)


_Layer = tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.float64]]


def _weights(arrays: dict[str, NDArray[Any]], name: str) -> _Layer:
    """Integers as float32, turned so that rows go in; what one of them stands for; the bias."""
    weight = np.ascontiguousarray(arrays[name].astype(np.float32).T)
    return weight, arrays[f"{name}_step"] * STEP, arrays[f"{name}_bias"]


@cache
def load() -> Network:
    """The network that comes with the package."""
    raw = (files("tacit.detection.names") / MODEL).read_bytes()
    if hashlib.sha256(raw).hexdigest() != SHA256:
        raise DataError(f"{MODEL} of the detector `names` is damaged; install tacit again.")
    return read(raw)


def read(raw: bytes) -> Network:
    """The network of a file's bytes."""
    with np.load(BytesIO(raw), allow_pickle=False) as arrays:
        return Network({name: arrays[name] for name in arrays.files})
