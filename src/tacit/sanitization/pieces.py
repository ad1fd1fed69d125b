"""A model's input embeddings, with its own pieces of words and how they are put together again.

The weights are read from `model.safetensors` directly: neither torch nor the model is needed.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import DataError, MissingExtra
from tacit.packaged_models import PACKAGES, located
from tacit.sanitization.embeddings import Embedding

# Where models of the usual families keep the embeddings of their input words.
_ENDINGS = (
    "embeddings.word_embeddings.weight",
    "wte.weight",
    "embed_tokens.weight",
    "word_embedding.weight",
    "tok_embeddings.weight",
    "shared.weight",
)
_KINDS = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}


class Pieces:
    """A tokenizer's pieces: text to places and back to text that reads as such."""

    def __init__(self, tokenizer: Any, kept: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(kept)
        self._place = {id_: place for place, id_ in enumerate(kept)}

    @property
    def digest(self) -> str:
        """A SHA-256 of the tokenizer."""
        return hashlib.sha256(self._tokenizer.to_str().encode()).hexdigest()

    def encode(self, text: str) -> tuple[list[int], list[str]]:
        """The places of the pieces, -1 for what is unknown, and what stood at those."""
        found = self._tokenizer.encode(text, add_special_tokens=False)
        places = [self._place.get(id_, -1) for id_ in found.ids]
        if -1 not in places:
            return places, []
        spans = zip(places, found.offsets, strict=True)
        return places, [text[start:end] for place, (start, end) in spans if place < 0]

    def only(self, places: Sequence[int]) -> "Pieces":
        """The same tokenizer over fewer pieces."""
        return Pieces(self._tokenizer, [self._ids[place] for place in places])

    def join(self, words: Sequence[str]) -> str:
        """Text from pieces: a piece that goes on a word is put to the one before it."""
        if self._tokenizer.decoder is not None and not any(w.startswith("##") for w in words):
            ids = [self._tokenizer.token_to_id(word) for word in words]
            if None not in ids and type(self._tokenizer.decoder).__name__ != "WordPiece":
                return str(self._tokenizer.decode(ids, skip_special_tokens=False)).strip()
        return joined(words)


def joined(words: Sequence[str]) -> str:
    """Pieces as text.

    >>> joined(["##un", "seen", "##ly", "."])
    'un seenly .'
    """
    out: list[str] = []
    for word in words:
        if word.startswith("##") and len(word) > 2:
            if out:
                out[-1] += word[2:]
            else:
                out.append(word[2:])
        else:
            out.append(word)
    return " ".join(out)


def model_embeddings(where: str) -> Embedding:
    """The input embeddings of a model in a folder, or in an installed package."""
    try:
        folder = located(where)
    except DataError:
        raise DataError(
            f"embeddings={where} is neither a file, nor a folder, nor an installed package; "
            "accepted: .npz, .txt, .vec, the folder of a model, `own`, or "
            f"{', '.join(PACKAGES)}."
        ) from None
    file = folder / "model.safetensors"
    if not file.is_file():
        raise DataError(
            f"{folder} has no model.safetensors; give the folder of a Hugging Face model, or a "
            "file of word vectors (.npz, .txt, .vec)."
        )
    vectors = _input_embeddings(file)
    tokenizer = _tokenizer(folder)
    special = {int(id_) for id_, added in tokenizer.get_added_tokens_decoder().items()
               if added.special}  # fmt: skip
    names = tokenizer.get_vocab(with_added_tokens=True)
    ranked = sorted((id_, piece) for piece, id_ in names.items() if id_ < len(vectors))
    kept = [
        (id_, piece)
        for id_, piece in ranked
        if id_ not in special and piece and not piece.startswith("[unused")
    ]
    ids = [id_ for id_, _ in kept]
    return Embedding(
        f"{folder.name} (input embeddings)" if Path(where).exists() else where,
        tuple(piece for _, piece in kept),
        np.ascontiguousarray(vectors[ids]),
        pieces=Pieces(tokenizer, ids),
    )


def _input_embeddings(file: Path) -> NDArray[np.float32]:
    """The table that a model looks its input up in, read without loading the rest."""
    try:
        with file.open("rb") as raw:
            size = int.from_bytes(raw.read(8), "little")
            if not 2 <= size <= 1 << 27:
                raise ValueError
            header = json.loads(raw.read(size))
            name = next(n for end in _ENDINGS for n in sorted(header) if n.endswith(end))
            entry = header[name]
            start, stop = entry["data_offsets"]
            raw.seek(8 + size + start)
            data = raw.read(stop - start)
        if entry["dtype"] == "BF16":
            halves = np.frombuffer(data, "<u2").astype(np.uint32) << 16
            return halves.view(np.float32).reshape(entry["shape"])
        kind = _KINDS[entry["dtype"]]
        return np.frombuffer(data, kind).reshape(entry["shape"]).astype(np.float32)
    except StopIteration:
        raise DataError(
            f"{file} holds no input embeddings under a name that is known ({', '.join(_ENDINGS)})."
        ) from None
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(f"{file} is not a whole safetensors file; copy it again.") from None


def _tokenizer(folder: Path) -> Any:
    try:
        from tokenizers import Tokenizer
        from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer
    except ImportError:
        raise MissingExtra(
            "A model's pieces of words need the package tokenizers: pip install tokenizers"
        ) from None
    if (folder / "tokenizer.json").is_file():
        try:
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception:  # the library raises plain Exception
            raise DataError(f"{folder}/tokenizer.json cannot be read as a tokenizer.") from None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer
    if (folder / "vocab.txt").is_file():
        lines = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
        lower = not any(w.isalpha() and w != w.lower() for w in lines)
        return BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=lower)._tokenizer
    raise DataError(f"{folder} has neither tokenizer.json nor vocab.txt: no way to its pieces.")
