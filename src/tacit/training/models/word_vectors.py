"""Public word vectors as a new model's first embeddings: GloVe, `wordllama`, or a file."""

import os
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from tacit.corpora.sources import corpus_folder
from tacit.errors import DataError, UsageError
from tacit.packaged_models import find_packaged, tokenizer_of_vectors
from tacit.sanitization.embeddings import Embedding, open_embeddings
from tacit.sanitization.pieces import Pieces

GLOVE, WORDLLAMA = "glove", "wordllama"
_GLOVE_FOLDER = "glove100d"
_UNSEEN = 0.1
"""How far a word without a vector begins from the mean of all, in standard deviations."""

Table = NDArray[np.float32]


def open_vectors(name: str, data: str | None) -> Embedding:
    """The vectors that `model.embeddings` names; nothing is downloaded."""
    if name == WORDLLAMA:
        return _wordllama()
    path = _glove(data) if name == GLOVE else Path(name)
    if not path.is_file():
        raise DataError(
            f"model.embeddings={name} is not a file; give glove, wordllama, or a file of word "
            "vectors (.npz, .txt, .vec)."
        )
    return open_embeddings(path)


def _glove(data: str | None) -> Path:
    data = data or os.environ.get("TACIT_DATA")
    if data is None:
        raise UsageError(
            "model.embeddings=glove lies with the known corpora; say which folder holds it with "
            "--set data=DIR (or set TACIT_DATA)."
        )
    folder = corpus_folder(Path(data), _GLOVE_FOLDER)
    found = sorted(path for path in folder.glob("glove*") if ".md" not in path.suffixes)
    if not found:
        raise DataError(f"{folder} has no file glove*.npz or glove*.txt (plain or .gz).")
    return found[0]


def _wordllama() -> Embedding:
    """The static vectors of the package `wordllama`, with the pieces of words they stand for."""
    path = find_packaged(WORDLLAMA)
    try:
        with safe_open(path, framework="np") as file:
            vectors = file.get_tensor("embedding.weight").astype(np.float32)
        tokenizer = Tokenizer.from_file(str(tokenizer_of_vectors(path)))
    except (OSError, SafetensorError):
        raise DataError("The package wordllama lacks its vectors; install it again.") from None
    names = sorted(tokenizer.get_vocab().items(), key=lambda one: one[1])[: len(vectors)]
    return Embedding(
        f"package wordllama {metadata.version(WORDLLAMA)}",
        tuple(word for word, _ in names),
        vectors,
        pieces=Pieces(tokenizer, range(len(names))),
    )


@torch.no_grad()
def begin_with_vectors(
    model: Any, tokenizer: PreTrainedTokenizerBase, embedding: Embedding, seed: int
) -> None:
    """Fill a new model's table of words, and so a head that is tied to it, from public vectors.

    They are brought to the table's width and to the scale that it began with. Tokens without a
    vector begin near the mean of the others.
    """
    table = model.get_input_embeddings().weight
    rng = np.random.default_rng(seed)
    narrow = _of_width(embedding.vectors, table.shape[1])
    known, found = _looked_up(tokenizer, embedding, narrow, table.shape[0])
    middle = known[found].sum(0) / max(1, found.sum())
    spread = float((known[found] - middle).std()) if found.any() else 0.0
    if not spread:
        raise DataError(
            f"{embedding.name} tells no two words of the tokenizer apart; give other vectors."
        )
    missing = int((~found).sum())
    known[~found] = middle + _UNSEEN * spread * rng.standard_normal((missing, narrow.shape[1]))
    known = (known - middle) * (float(table.std()) / spread)
    # Columns that the vectors do not reach keep what the model began with.
    table[:, : narrow.shape[1]].copy_(torch.from_numpy(known))


def _of_width(vectors: Table, width: int) -> Table:
    """The first principal components of the vectors, where they are wider than the table."""
    if vectors.shape[1] <= width:
        return vectors
    centred = vectors - vectors.mean(0)
    _, directions = np.linalg.eigh(centred.T @ centred)  # the largest come last
    narrow: Table = centred @ directions[:, : -width - 1 : -1]
    return narrow


def _looked_up(
    tokenizer: PreTrainedTokenizerBase, embedding: Embedding, vectors: Table, size: int
) -> tuple[Table, NDArray[np.bool_]]:
    """A vector for every token that has one, and which tokens these are."""
    table = np.zeros((size, vectors.shape[1]), dtype=np.float32)
    found = np.zeros(size, dtype=bool)
    special = set(tokenizer.all_special_ids)
    for number in range(min(size, len(tokenizer))):
        text = "" if number in special else str(tokenizer.decode([number])).strip()
        places = _places(embedding, text)
        if places:
            table[number] = vectors[places].mean(0)
            found[number] = True
    return table, found


def _places(embedding: Embedding, text: str) -> list[int]:
    """Where a token's vectors stand: its own, or those of the pieces that it is made of."""
    if not text or "\ufffd" in text:  # part of a character only
        return []
    if embedding.pieces is not None:
        return [place for place in embedding.pieces.encode(text)[0] if place >= 0]
    place = embedding.places.get(text, embedding.places.get(text.lower()))
    return [] if place is None else [place]
