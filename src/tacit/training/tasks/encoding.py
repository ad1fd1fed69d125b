"""From the texts and labels of a corpus to token ids and numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from tacit.corpus import Corpus
from tacit.errors import DataError, UsageError
from tacit.training.tasks.examples import (
    IGNORED,
    UNKNOWN_LABEL,
    Examples,
    Ids,
    Long,
    Mask,
    Places,
    Spans,
)

_CHUNK = 1024


@dataclass(frozen=True, eq=False)
class Pieces:
    """One text as token ids, each with its place in the text."""

    ids: Ids
    starts: Places
    ends: Places


def pieces_of(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> Iterator[Pieces]:
    """Every text as token ids without special tokens, uncut."""
    if not tokenizer.is_fast:
        raise UsageError(
            "The tokenizer gives no character offsets; take one with a tokenizer.json."
        )
    for start in range(0, len(texts), _CHUNK):
        made = tokenizer(
            list(texts[start : start + _CHUNK]),
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        for ids, offsets in zip(made["input_ids"], made["offset_mapping"], strict=True):
            places = np.asarray(offsets, dtype=np.int64).reshape(-1, 2)
            yield Pieces(np.asarray(ids, dtype=np.int32), places[:, 0], places[:, 1])


def touching(pieces: Pieces, spans: Sequence[tuple[int, int]]) -> Mask:
    """Which tokens share a character with one of the spans."""
    hit = np.zeros(len(pieces.ids), dtype=bool)
    for start, end in spans:
        hit |= (pieces.starts < end) & (pieces.ends > start)
    return hit


def last_piece(pieces: Pieces, start: int, end: int) -> int | None:
    """The last token that shares a character with `start:end`, if one does."""
    at = int(np.searchsorted(pieces.starts, end)) - 1
    return at if at >= 0 and pieces.ends[at] > start else None


def windows(length: int, size: int, long: Long, shared: int = 0) -> list[tuple[int, int]]:
    """Where a sequence is cut: the first window alone, or all of them, `shared` tokens in common.

    >>> windows(10, 4, "truncate"), windows(10, 4, "split", 1)
    ([(0, 4)], [(0, 4), (3, 7), (6, 10)])
    """
    if long == "truncate" or length <= size:
        return [(0, min(length, size))]
    step = size - shared
    return [(s, min(s + size, length)) for s in range(0, length - shared, step)]


def check_lengths(context: int, long: str, least: int) -> None:
    """A context that can hold something, and a rule that exists."""
    if context < least:
        raise UsageError(f"context={context} is too short; give {least} tokens or more.")
    if long not in ("truncate", "split"):
        raise UsageError(f"long={long} is not known; give truncate or split.")


def user_codes(corpus: Corpus) -> Ids:
    """The number of each record's user, by first appearance; -1 where there is none."""
    if "user" not in corpus.columns:
        return np.full(len(corpus), -1, dtype=np.int32)
    encoded = corpus.column("user").combine_chunks().dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return np.asarray(codes, dtype=np.int32)


def spans_of(corpus: Corpus, sensitive: Spans | None) -> list[Sequence[tuple[int, int]]] | None:
    """The spans of each record in order; ids that this corpus lacks belong to other splits."""
    if sensitive is None:
        return None
    return [sensitive.get(id_, ()) for id_ in corpus.column("id").to_pylist()]


def stand_in(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that an empty text becomes: with none at all, a model would look at padding."""
    for value in (tokenizer.bos_token_id, tokenizer.cls_token_id, tokenizer.unk_token_id):
        if isinstance(value, int):
            return value
    return pad_of(tokenizer)


def pad_of(tokenizer: PreTrainedTokenizerBase) -> int:
    """The id that fills up a batch."""
    for value in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if isinstance(value, int):
            return value
    return 0


def label_codes(
    corpus: Corpus, labels: Sequence[str], *, training: bool
) -> tuple[Places, dict[str, int]]:
    """Each record's label as a number; in training every record needs one that is known."""
    code = {label: number for number, label in enumerate(labels)}
    found = np.full(len(corpus), IGNORED, dtype=np.int64)
    notes = {"labels_missing": 0, "labels_unknown": 0}
    for row, label in enumerate(_given_labels(corpus, training)):
        if label is None:
            _need(not training, corpus, row, "has no label")
            notes["labels_missing"] += 1
        elif label not in code:
            _need(
                not training,
                corpus,
                row,
                f"has a label that is none of the {len(code)} declared in labels",
            )
            found[row] = UNKNOWN_LABEL
            notes["labels_unknown"] += 1
        else:
            found[row] = code[label]
    return found, notes


def label_numbers(corpus: Corpus, *, training: bool) -> tuple[NDArray[np.float32], dict[str, int]]:
    """Each record's label as a measured number; NaN where there is none."""
    found = np.full(len(corpus), np.nan, dtype=np.float32)
    for row, label in enumerate(_given_labels(corpus, training)):
        if label is None:
            _need(not training, corpus, row, "has no label")
            continue
        try:
            found[row] = float(label)
        except ValueError:
            found[row] = np.nan
        _need(bool(np.isfinite(found[row])), corpus, row, "has a label that is not a number")
    return found, {"labels_missing": int(np.isnan(found).sum())}


def _given_labels(corpus: Corpus, training: bool) -> list[str | None]:
    if "label" not in corpus.columns and not training:
        return [None] * len(corpus)
    return list(corpus.column("label").to_pylist())


def _need(holds: bool, corpus: Corpus, row: int, fault: str) -> None:
    if not holds:
        raise DataError(
            f"{corpus.name}, record {row + 1}, {fault}; repair it or leave the record out."
        )


class Collected:
    """Examples on their way."""

    def __init__(
        self, corpus: Corpus, tokenizer: PreTrainedTokenizerBase, sensitive: Spans | None
    ) -> None:
        self._texts = corpus.column("text").to_pylist()
        self._users = user_codes(corpus)
        self._tokenizer = tokenizer
        self._spans = spans_of(corpus, sensitive)
        self._ids: list[Ids] = []
        self._marks: list[Mask] = []
        self._rows: list[int] = []
        self._empty = np.asarray([stand_in(tokenizer)], dtype=np.int32)
        self._cut = 0

    def pieces(self) -> Iterator[Pieces]:
        """Every text as token ids."""
        return pieces_of(self._texts, self._tokenizer)

    def marks(self, row: int, pieces: Pieces) -> Mask:
        """Which tokens of a record are sensitive."""
        return touching(pieces, self._spans[row] if self._spans is not None else ())

    def add(self, row: int, ids: Ids, marks: Mask) -> None:
        """One more example, of this record."""
        self._rows.append(row)
        self._ids.append(ids if len(ids) else self._empty)
        self._marks.append(marks if len(ids) else np.zeros(1, dtype=bool))

    def note_cut(self, cut: bool) -> None:
        """Count a record that did not fit."""
        self._cut += cut

    def examples(
        self, labels: list[Places] | None, notes: dict[str, int] | None = None
    ) -> Examples:
        """What was collected."""
        record = np.asarray(self._rows, dtype=np.int32)
        return Examples(
            ids=self._ids,
            user=self._users[record],
            record=record,
            pad=pad_of(self._tokenizer),
            labels=labels,
            sensitive=self._marks if self._spans is not None else None,
            notes={"records_cut": self._cut, **(notes or {})},
        )


def encode_texts(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    context: int,
    sensitive: Spans | None,
    labels: NDArray[Any],
    notes: dict[str, int],
) -> Examples:
    """Whole texts, or pairs, with the tokenizer's special tokens, cut off at the context."""
    pairs = corpus.column("pair").to_pylist() if "pair" in corpus.columns else None
    check_lengths(context, "truncate", 1 + tokenizer.num_special_tokens_to_add(pairs is not None))
    texts, spans = corpus.column("text").to_pylist(), spans_of(corpus, sensitive)
    with_types = pairs is not None and "token_type_ids" in tokenizer.model_input_names
    ids: list[Ids] = []
    marks: list[Mask] = []
    types: list[Ids] = []
    cut = 0
    for start in range(0, len(texts), _CHUNK):
        stop = start + _CHUNK
        made = tokenizer(
            texts[start:stop],
            [pair or "" for pair in pairs[start:stop]] if pairs is not None else None,
            truncation="longest_first",
            max_length=context,
            return_offsets_mapping=True,
            return_token_type_ids=with_types,
        )
        cut += sum(bool(one.overflowing) for one in made.encodings or ())
        for line, row in enumerate(made["input_ids"]):
            ids.append(np.asarray(row or [stand_in(tokenizer)], dtype=np.int32))
            if with_types:
                types.append(np.asarray(made["token_type_ids"][line] or [0], dtype=np.int32))
            if spans is not None:
                own = _marks_of(made, line, spans[start + line])
                marks.append(own if len(own) else np.zeros(1, dtype=bool))
    rows = np.arange(len(corpus), dtype=np.int32)
    return Examples(
        ids=ids,
        user=user_codes(corpus),
        record=rows,
        pad=pad_of(tokenizer),
        labels=labels,
        sensitive=marks if spans is not None else None,
        types=types if with_types else None,
        notes={"records_cut": cut, **notes},
    )


def _marks_of(made: Any, line: int, spans: Sequence[tuple[int, int]]) -> Mask:
    places = np.asarray(made["offset_mapping"][line], dtype=np.int64).reshape(-1, 2)
    # Spans are places in the text; the pair is another text, with places of its own.
    first = np.asarray([s == 0 for s in made.sequence_ids(line)], dtype=bool)
    pieces = Pieces(np.zeros(len(places), dtype=np.int32), places[:, 0], places[:, 1])
    return touching(pieces, spans) & first


def special_around(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """The special tokens that the tokenizer puts before and after a text."""
    ids = tokenizer("a", verbose=False)["input_ids"]
    inner = tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]
    for start in range(len(ids) - len(inner) + 1):
        if ids[start : start + len(inner)] == inner:
            return ids[:start], ids[start + len(inner) :]
    return [], []


def check_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """The labels, if a choice between them can be made."""
    made = tuple(labels)
    if len(made) < 2:
        raise UsageError(f"labels: {len(made)} given; a choice needs two or more.")
    if len(set(made)) < len(made):
        raise UsageError("labels: one is given twice; each must differ from the others.")
    return made


def labels_in(values: Any) -> tuple[str, ...]:
    """The labels that occur, in alphabetical order."""
    return tuple(sorted({value for value in values if value is not None}))
