"""Which words are sensitive: a public decision, made without looking at the private text."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.corpus.reading import Layout, format_of, stream
from tacit.errors import DataError, UsageError
from tacit.privacy.arguments import check_probability
from tacit.sanitization.embeddings import Embedding
from tacit.sanitization.words import Words, bare_words, read_frequencies, read_word_list

DEFAULT_SHARE = 0.9
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Sensitive:
    """The sensitive words of a vocabulary as a mask, and where each part of it came from."""

    mask: Mask
    sources: tuple[str, ...]

    def __len__(self) -> int:
        return int(self.mask.sum())


def choose_sensitive(
    embedding: Embedding,
    *,
    share: float | None = None,
    frequencies: Path | None = None,
    words: Path | None = None,
    found_in: Path | None = None,
    using: str = "patterns,lists,names",
) -> Sensitive:
    """The union of what was asked for; the low-frequency share alone if nothing was.

    `share` of the words, the least frequent ones by `frequencies` (or by the embedding's own
    order), is sensitive; so are the words of the list `words`, and whatever the detectors find in
    the *public* text `found_in`.

    Source: Yue et al. (2021), section 4.5, whose share is called w.
    """
    mask = np.zeros(len(embedding), dtype=bool)
    sources: list[str] = []
    if share is None and words is None and found_in is None:
        share = DEFAULT_SHARE
    if share is not None:
        check_probability("sensitive_share", share)
        mask |= _rare(embedding, share, frequencies)
        by = frequencies.name if frequencies else f"the order of {embedding.name}"
        sources.append(f"the {share:.0%} least frequent words by {by}")
    elif frequencies is not None:
        raise UsageError("--frequencies goes with --sensitive-share.")
    if words is not None:
        listed = read_word_list(words)
        mask |= _known(embedding, listed)
        sources.append(f"the {len(listed):,} words of {words.name}")
    if found_in is not None:
        mask |= _known(embedding, _detected(found_in, using))
        sources.append(f"what the detectors {using} find in the public text {found_in.name}")
    _require_two(mask, embedding.name)
    return Sensitive(mask, tuple(sources))


def _require_two(mask: Mask, name: str) -> None:
    if int(mask.sum()) < 2:
        raise DataError(
            f"{int(mask.sum())} words of {name} are sensitive; at least two must be, since "
            "sensitive words are replaced by one another. Raise the share, or list words that the "
            "embedding knows."
        )


def _rare(embedding: Embedding, share: float, frequencies: Path | None) -> Mask:
    """The given share of the vocabulary, least frequent first; unlisted words are the rarest."""
    size = len(embedding)
    rank = np.arange(size)
    if frequencies is not None:
        order = {word: place for place, word in enumerate(read_frequencies(frequencies))}
        rank = np.array([order.get(word, len(order)) for word in embedding.words])
    elif not embedding.ranked:
        raise UsageError(
            f"{embedding.name} is not in order of frequency; give a public list with --frequencies."
        )
    order_of = np.argsort(-rank, kind="stable")
    mask = np.zeros(size, dtype=bool)
    mask[order_of[: round(share * size)]] = True
    return mask


def _known(embedding: Embedding, words: Iterable[str]) -> Mask:
    """The places of these words, however they are cut: a name of two words marks both."""
    mask = np.zeros(len(embedding), dtype=bool)
    units = embedding.pieces or Words(embedding.places)
    for word in words:
        places = units.encode(word)[0]
        mask[[place for place in places if place >= 0]] = True
    return mask


def _detected(path: Path, using: str) -> list[str]:
    """The words inside mentions that detectors find in a public text."""
    from tacit.corpus import Corpus
    from tacit.corpus.reading.casting import without_empty
    from tacit.detection import detect

    found: dict[str, None] = {}
    for batch in stream(path, Layout(format=None if has_format(path) else "text")):
        corpus = Corpus(without_empty(pa.Table.from_batches([batch])), name=path.name)
        texts = dict(
            zip(corpus.column("id").to_pylist(), corpus.column("text").to_pylist(), strict=True)
        )
        for mention in detect(corpus, using, kinds=["all"]).mentions:
            inside = texts[mention.record][mention.start : mention.end]
            found |= dict.fromkeys(w for w in bare_words(inside) if w[0].isalnum())
    return list(found)


def has_format(path: Path) -> bool:
    """Whether the name of a file tells the format of its records; if not, it is plain text."""
    try:
        return bool(format_of(path))
    except UsageError:
        return False
