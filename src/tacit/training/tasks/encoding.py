"""From the texts and labels of a corpus to token ids and numbers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
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
Frame = tuple[Sequence[int], Sequence[int]]
"""The special tokens before and after a text."""


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
    for row, label in enumerate(_gold_labels(corpus, training)):
        if label is not None:
            found[row] = code.get(label, UNKNOWN_LABEL)
            fault = f"has a label that is none of the {len(code)} declared in labels"
            _need(not training or label in code, corpus, row, fault)
    missing, unknown = (int((found == code).sum()) for code in (IGNORED, UNKNOWN_LABEL))
    return found, {"labels_missing": missing, "labels_unknown": unknown}


def label_numbers(corpus: Corpus, *, training: bool) -> tuple[NDArray[np.float32], dict[str, int]]:
    """Each record's label as a measured number; NaN where there is none."""
    found = np.full(len(corpus), np.nan, dtype=np.float32)
    for row, label in enumerate(_gold_labels(corpus, training)):
        if label is not None:
            with suppress(ValueError):
                found[row] = float(label)
            _need(bool(np.isfinite(found[row])), corpus, row, "has a label that is not a number")
    return found, {"labels_missing": int(np.isnan(found).sum())}


def _gold_labels(corpus: Corpus, training: bool) -> Iterator[str | None]:
    if "label" not in corpus.columns and not training:
        yield from [None] * len(corpus)
        return
    for row, label in enumerate(corpus.column("label").to_pylist()):
        _need(label is not None or not training, corpus, row, "has no label")
        yield label


def _need(holds: bool, corpus: Corpus, row: int, fault: str) -> None:
    if not holds:
        raise DataError(
            f"{corpus.name}, record {row + 1}, {fault}; repair it or leave the record out."
        )


class ExampleBuilder:
    """The records of a corpus on their way to `Examples`."""

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: PreTrainedTokenizerBase,
        context: int,
        sensitive: Spans | None,
        training: bool,
    ) -> None:
        self.corpus, self.tokenizer = corpus, tokenizer
        self.context, self.training = context, training
        # Ids that this corpus lacks belong to other splits.
        ids = corpus.column("id").to_pylist()
        self._spans = None if sensitive is None else [sensitive.get(id_, ()) for id_ in ids]
        self._ids: list[Ids] = []
        self._marks: list[Mask] = []
        self._rows: list[int] = []
        self._characters: list[int] = []
        self._cut = 0

    def pieces(self) -> Iterator[Pieces]:
        """Every text as token ids."""
        return pieces_of(self.corpus.column("text").to_pylist(), self.tokenizer)

    def marks(self, row: int, pieces: Pieces) -> Mask:
        """Which tokens of a record are sensitive."""
        return touching(pieces, self._spans[row] if self._spans is not None else ())

    def add(self, row: int, ids: Ids, marks: Mask, frame: Frame = ((), ())) -> None:
        """One more example, of this record, between the special tokens of a frame."""
        before, after = frame
        framed = np.asarray([*before, *ids, *after], dtype=np.int32)
        self._rows.append(row)
        # With no token at all, a model would look at padding.
        self._ids.append(framed if len(framed) else self._empty())
        padded = [False] * len(before), [False] * len(after)
        own = np.concatenate([padded[0], marks, padded[1]]).astype(bool)
        self._marks.append(own if len(framed) else np.zeros(1, dtype=bool))

    def _empty(self) -> Ids:
        own = self.tokenizer
        for value in (own.bos_token_id, own.cls_token_id, own.unk_token_id):
            if isinstance(value, int):
                return np.asarray([value], dtype=np.int32)
        return np.asarray([pad_of(own)], dtype=np.int32)

    def note_characters(self, pieces: Pieces, start: int, stop: int) -> None:
        """Count the characters from one token of a text up to, but not including, another."""
        start, stop = max(start, 0), min(stop, len(pieces.ids))
        # What stands between two tokens, such as a space, belongs to the later one.
        before = int(pieces.ends[start - 1]) if start else 0
        self._characters.append(int(pieces.ends[stop - 1]) - before if stop > start else 0)

    def note_cut(self, cut: bool) -> None:
        """Count a record that did not fit."""
        self._cut += cut

    def examples(
        self,
        labels: NDArray[Any] | list[Places] | None,
        notes: Mapping[str, int] | None = None,
        types: list[Ids] | None = None,
    ) -> Examples:
        """What was added."""
        record = np.asarray(self._rows, dtype=np.int32)
        return Examples(
            ids=self._ids,
            user=user_codes(self.corpus)[record],
            record=record,
            pad=pad_of(self.tokenizer),
            labels=labels,
            sensitive=self._marks if self._spans is not None else None,
            types=types,
            notes={"records_cut": self._cut, **(notes or {})},
            characters=np.asarray(self._characters, dtype=np.int64) if self._characters else None,
        )

    def whole_texts(self, labels: NDArray[Any], notes: Mapping[str, int]) -> Examples:
        """Whole texts, or pairs, with the tokenizer's special tokens, cut off at the context."""
        corpus, tokenizer = self.corpus, self.tokenizer
        pairs = corpus.column("pair").to_pylist() if "pair" in corpus.columns else None
        special = tokenizer.num_special_tokens_to_add(pairs is not None)
        check_lengths(self.context, "truncate", 1 + special)
        texts = corpus.column("text").to_pylist()
        with_types = pairs is not None and "token_type_ids" in tokenizer.model_input_names
        types: list[Ids] = []
        for start in range(0, len(texts), _CHUNK):
            stop = start + _CHUNK
            made = tokenizer(
                texts[start:stop],
                [pair or "" for pair in pairs[start:stop]] if pairs is not None else None,
                truncation="longest_first",
                max_length=self.context,
                return_offsets_mapping=True,
                return_token_type_ids=with_types,
            )
            self._cut += sum(bool(one.overflowing) for one in made.encodings or ())
            for line, ids in enumerate(made["input_ids"]):
                places = np.asarray(made["offset_mapping"][line], dtype=np.int64).reshape(-1, 2)
                pieces = Pieces(np.asarray(ids, dtype=np.int32), places[:, 0], places[:, 1])
                # Spans are places in the text; the pair is another text, with places of its own.
                first = np.asarray([s == 0 for s in made.sequence_ids(line)], dtype=bool)
                self.add(start + line, pieces.ids, self.marks(start + line, pieces) & first)
                if with_types:
                    types.append(np.asarray(made["token_type_ids"][line] or [0], dtype=np.int32))
        return self.examples(labels, notes, types if with_types else None)


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
