"""Words as points: word vectors from files, a model's input embeddings, or the project's own.

    own                   made by the project from text that it generates; always there
    FILE.npz              arrays `words` and `vectors`
    FILE.txt, FILE.vec    GloVe, word2vec and fastText text, plain or gzip
    FOLDER, or a package  a Hugging Face model's input embeddings, with its own pieces of words

All of them are public inputs: a certificate names them by a digest.
"""

import hashlib
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.corpus.reading.blocks import open_bytes
from tacit.errors import DataError, UsageError
from tacit.files import require_file

Vectors = NDArray[np.float32]
OWN = "own"
_LINES = 8192
RULES = (
    "at white space, and at punctuation where the vocabulary does not have the whole; words are "
    "looked up as written, then in lower case, and put out as the vocabulary writes them; "
    "punctuation and numbers are words like any other; spacing is not carried over"
)
"""How `tacit.sanitization.words` cuts text."""


@dataclass(frozen=True, eq=False)
class Embedding:
    """Words with a point each, in the order in which the source has them.

    `ranked` says that frequent words come first. `pieces` is the tokenizer of a model whose
    "words" are pieces of words; None where words are words. `cut_from` is the digest of a larger
    one that this is a part of, `counted` says that private text told which part.
    """

    name: str
    words: tuple[str, ...]
    vectors: Vectors
    ranked: bool = True
    pieces: Any = None
    repeated: int = 0
    cut_from: str | None = None
    counted: bool = False

    def __post_init__(self) -> None:
        if len(self.words) < 2:
            raise DataError(
                f"{self.name} holds {len(self.words)} words; a vocabulary needs at least two."
            )
        if self.vectors.shape[0] != len(self.words):
            raise DataError(
                f"{self.name} has {len(self.words):,} words and {len(self.vectors):,} vectors; "
                "each word needs one."
            )
        finite = np.isfinite(self.vectors).all(1)
        if not finite.all():
            bad = int(np.flatnonzero(~finite)[0]) + 1
            raise DataError(
                f"{self.name}: the vector of word {bad:,} holds NaN or infinity "
                f"({int((~finite).sum()):,} in all); repair the file or leave those words out."
            )

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def places(self) -> dict[str, int]:
        """Where each word stands."""
        return {word: place for place, word in enumerate(self.words)}

    @cached_property
    def digest(self) -> str:
        """A SHA-256 over words and vectors."""
        sha = hashlib.sha256("\n".join(self.words).encode("utf-8", "surrogatepass"))
        sha.update(np.ascontiguousarray(self.vectors, dtype="<f4").tobytes())
        return sha.hexdigest()

    @property
    def whole(self) -> str:
        """The digest of the vectors as they were given, before words were left out."""
        return self.cut_from or self.digest

    @property
    def rules(self) -> str:
        """How text is cut, and what of its writing is carried over."""
        if self.pieces is not None:
            return (
                "by the model's own tokenizer, SHA-256 "
                f"{self.pieces.digest}; case, punctuation, numbers and blanks as it has them"
            )
        return RULES

    @cached_property
    def twins(self) -> int:
        """How many words share their vector with an earlier word.

        Such words have distance 0: nothing in the text tells which of them stood there, and the
        mapping from words to points is not one to one, as the paper asks.
        """
        rows = np.ascontiguousarray(self.vectors)
        keys = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
        return len(keys) - len(np.unique(keys))

    def only(self, words: Iterable[str], name: str, *, counted: bool = False) -> "Embedding":
        """The part whose words are among the given ones, in its own order.

        `counted` says that these words were taken from private text.
        """
        wanted = set(words)
        kept = [place for place, word in enumerate(self.words) if word in wanted]
        if len(kept) < 2:
            raise DataError(
                f"{name}: {len(kept)} of its words are in {self.name}; at least two must be. "
                "Check that the words are written as they are there (often in lower case)."
            )
        return replace(
            self,
            words=tuple(self.words[place] for place in kept),
            vectors=np.ascontiguousarray(self.vectors[kept]),
            pieces=self.pieces.only(kept) if self.pieces is not None else None,
            cut_from=self.whole,
            counted=counted or self.counted,
        )


def open_embeddings(where: str | Path = OWN) -> Embedding:
    """The embedding that a name, a file or a folder stands for; nothing is downloaded."""
    if str(where) == OWN and not Path(where).exists():
        return own_vectors()
    path = Path(where)
    if path.is_dir() or not path.exists():
        from tacit.sanitization.pieces import model_embeddings

        return model_embeddings(str(where))
    if path.suffix == ".npz":
        return _read_npz(path)
    if path.name.removesuffix(".gz").endswith((".txt", ".vec")):
        return _read_text(require_file(path))
    raise UsageError(
        f"embeddings={path}: the ending does not tell the format; accepted: .npz (words, "
        "vectors), .txt or .vec (also .gz), the folder of a model, or `own`."
    )


def own_vectors() -> Embedding:
    """The project's vectors: made from generated text by `tools/own_vectors.py`."""
    with resources.as_file(resources.files("tacit.sanitization") / "own_vectors.npz") as path:
        return replace(_read_npz(path), name=OWN)


def _read_npz(path: Path) -> Embedding:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            words, vectors = arrays["words"], arrays["vectors"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        raise DataError(
            f"{path} is not a file of embeddings; accepted is an .npz with the arrays `words` "
            "(text) and `vectors` (a row of numbers for each word)."
        ) from None
    if words.dtype.kind != "U" or vectors.dtype.kind != "f" or vectors.ndim != 2:
        raise DataError(
            f"{path}: `words` must be text and `vectors` a table of numbers with one row for "
            "each word."
        )
    return made(path.name, words.tolist(), vectors.astype(np.float32))


def made(name: str, words: Sequence[str], vectors: Vectors) -> Embedding:
    """An embedding without repeated words: the first of each stays, as the more frequent one."""
    if len(words) != len(vectors):
        return Embedding(name, tuple(words), vectors)  # which refuses with a sentence
    first: dict[str, int] = {}
    for place, word in enumerate(words):
        if word:
            first.setdefault(word, place)
    if len(first) < len(words):
        vectors = np.ascontiguousarray(vectors[list(first.values())])
    return Embedding(name, tuple(first), vectors, repeated=len(words) - len(first))


def _numbers(lines: list[bytes], dims: int, path: Path, last: int) -> Vectors:
    """The numbers of some lines, of which the last is the `last` of the file."""
    try:
        numbers = np.fromstring(b" ".join(lines), dtype=np.float32, sep=" ")
    except ValueError:
        numbers = np.zeros(0, dtype=np.float32)
    if len(numbers) != dims * len(lines):
        raise DataError(
            f"{path}, lines {last - len(lines) + 1} to {last} (not counting a first line of "
            "sizes), hold something that is not a number."
        )
    return numbers.reshape(len(lines), dims)


def _read_text(path: Path) -> Embedding:
    """Lines of a word and its numbers; the first line may say how many of each there are."""
    words: list[str] = []
    parts: list[Vectors] = []
    pending: list[bytes] = []
    dims = 0

    def close() -> None:
        if pending:
            parts.append(_numbers(pending, dims, path, len(words)))
            pending.clear()

    with open_bytes(path) as lines:
        for number, raw in enumerate(lines, 1):
            cells = raw.rstrip(b" \r\n").split(b" ")
            if number == 1 and len(cells) == 2 and all(c.isdigit() for c in cells):
                dims = int(cells[1])
                continue
            dims = dims or len(cells) - 1
            # Some published files have words with blanks inside: the numbers are what comes last.
            if len(cells) <= dims or dims < 1:
                raise DataError(
                    f"{path}, line {number}, has {len(cells) - 1} numbers and the lines before "
                    f"it {dims}; each line is a word and as many numbers as the others."
                )
            try:
                words.append(b" ".join(cells[:-dims]).decode())
            except UnicodeDecodeError:
                raise DataError(f"{path}, line {number}, is not UTF-8; convert it.") from None
            _need_numbers(cells[-dims:], path, number, dims, len(cells))
            pending.append(b" ".join(cells[-dims:]))
            if len(pending) == _LINES:
                close()
    close()
    if not words:
        raise DataError(f"{path} holds no words; each line is a word and its numbers.")
    return made(path.name, words, np.concatenate(parts))


def _need_numbers(cells: list[bytes], path: Path, number: int, dims: int, found: int) -> None:
    # The first and the last tell a ragged line; the block as a whole is counted when it is read.
    for cell in (cells[0], cells[-1]):
        try:
            float(cell)
        except ValueError:
            raise DataError(
                f"{path}, line {number}, has {found - 1} values, {dims} are expected, and one of "
                "them is not a number; each line is a word and as many numbers as the others."
            ) from None
