"""Texts as points of whole numbers, so that one record's votes owe nothing to another record.

What a text gives must be a function of that text alone: were it computed in a batch, the last bits
would depend on who else is there, and a candidate that is nearest by a hair could change in
everybody's votes when one user leaves. So each text is read by itself, its vector is brought to
the length `SCALE` and rounded; products of such vectors are whole numbers below 2^24, which single
precision adds up exactly in any order.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tacit.errors import DataError
from tacit.packaged_models import located
from tacit.privacy.certificates.manifest import file_digest
from tacit.privacy.certificates.scope import PublicInput
from tacit.training.data.activation_cache import load_or_compute
from tacit.training.data.public_inputs import package_or_folder
from tacit.training.models import tokens
from tacit.training.models.features import load_encoder
from tacit.training.models.weights import digest_of

Points = NDArray[np.float32]
"""One row of whole numbers for each text."""
Progress = Callable[[str, int, int], None]
"""Is told what is done, how much of it, and of how much."""

SCALE = 4000.0
_BLOCK = 256


class Space:
    """An encoder whose weights are public, as a map from texts to points."""

    def __init__(self, where: str, read: int) -> None:
        self.where, self.read = where, read
        self._encoder, fields = load_encoder(where)
        self._encoder.eval()
        self._tokenizer = tokens.load_tokenizer(where)
        self.width = int(fields["hidden_size"])
        self._room = min(read, fields.get("max_position_embeddings") or read)

    def input(self) -> PublicInput:
        """The encoder, as something that is said to be public."""
        place = located(self.where)
        files = [place] if place.is_file() else sorted(place.glob("*.safetensors"))
        digest = file_digest(files[0]) if len(files) == 1 else None
        name = package_or_folder(self.where, place)
        return PublicInput(what="the space in which texts are compared", name=name, sha256=digest)

    def points(self, texts: Sequence[str], what: str, progress: Progress | None = None) -> Points:
        """One point for each text; what slow encoders make of texts is kept."""
        if self.width > 32_768:
            raise DataError(f"{self.where} gives {self.width} numbers for a text; take a smaller.")
        ids = self._ids(texts)

        def computed() -> Iterator[tuple[NDArray[np.int64], Points]]:
            for row, own in enumerate(ids):
                yield np.array([row]), whole(self._vector(own))[None]
                if progress is not None and (row % 64 == 63 or row == len(ids) - 1):
                    progress(what, row + 1, len(ids))

        if isinstance(self._encoder, nn.Embedding):
            made = np.empty((len(ids), self.width), dtype=np.float32)
            for row, one in computed():
                made[row] = one
            return made
        kept = load_or_compute(self._key(ids), np.ones(len(ids), np.int64), self.width, computed)
        return np.asarray(kept.values, dtype=np.float32)

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text; an encoder reads what stands around a text, too."""
        if not texts:
            return []
        static = isinstance(self._encoder, nn.Embedding)
        made = self._tokenizer(
            list(texts), add_special_tokens=not static, truncation=True, max_length=self._room,
            return_attention_mask=False, return_token_type_ids=False,
        )  # fmt: skip
        return [list(own) for own in made["input_ids"]]

    @torch.no_grad()
    def _vector(self, ids: list[int]) -> NDArray[np.float64]:
        """The mean over the tokens of one text, which is read alone."""
        if not ids:
            return np.zeros(self.width)
        batch = torch.tensor([ids])
        if isinstance(self._encoder, nn.Embedding):
            states = self._encoder(batch)[0]
        else:
            states = self._encoder(input_ids=batch, attention_mask=torch.ones_like(batch))[0][0]
        mean: NDArray[np.float64] = states.double().mean(0).numpy()
        return mean

    def _key(self, ids: Sequence[Sequence[int]]) -> str:
        sha = hashlib.sha256(f"alone {SCALE} {torch.__version__}".encode())
        for name, tensor in (*self._encoder.named_parameters(), *self._encoder.named_buffers()):
            sha.update(f"{name} {digest_of(tensor)}".encode())
        for own in ids:
            sha.update(repr(own).encode())
        return sha.hexdigest()[:32]


def whole(vector: NDArray[np.float64]) -> Points:
    """A vector of the length `SCALE` in whole numbers; zeros where it has no direction.

    >>> whole(np.array([3.0, 4.0])).tolist(), whole(np.zeros(2)).tolist()
    ([2400.0, 3200.0], [0.0, 0.0])
    """
    length = float(np.sqrt((vector * vector).sum()))
    if not np.isfinite(length) or length == 0:
        return np.zeros(len(vector), dtype=np.float32)
    return np.rint(vector * (SCALE / length)).astype(np.float32)


def likeness(points: Points, others: Points) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """Exact inner products of the points with all others, a block of points at a time."""
    for start in range(0, len(points), _BLOCK):
        part = slice(start, start + _BLOCK)
        yield part, points[part] @ others.T


def nearest(points: Points, others: Points, count: int) -> NDArray[np.int64]:
    """Of each point the nearest others; of two that are as near, the one that comes first.

    >>> nearest(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]), 2).tolist()
    [[1, 2]]
    """
    count = min(count, len(others))
    found = np.empty((len(points), count), dtype=np.int64)
    for part, products in likeness(points, others):
        if count == 1:
            found[part, 0] = products.argmax(1)
            continue
        # A whole number for each pair that no other pair of the record has: nothing is left to how
        # a library sorts equals.
        keys = products.astype(np.int64) * len(others) - np.arange(len(others))
        best = np.argpartition(keys, -count, axis=1)[:, -count:]
        order = np.argsort(-np.take_along_axis(keys, best, 1), axis=1)
        found[part] = np.take_along_axis(best, order, 1)
    return found
