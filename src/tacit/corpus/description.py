"""What a corpus looks like: users, records per user, tokens, labels, near-duplicates.

These are exact counts over private data, for the person who holds them; they are no release.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tacit.corpus import Corpus

Progress = Callable[[int], None]


def describe(
    corpus: Corpus, *, near_duplicates: bool = True, progress: Progress | None = None
) -> dict[str, Any]:
    """Counts over a corpus, ready for JSON."""
    tokens = _tokens(corpus)
    summary: dict[str, Any] = {"name": corpus.name}
    if "user" in corpus.columns:
        users = corpus.table.column("user")
        per_user = np.asarray(pc.value_counts(users.drop_null()).field("counts"))
        summary["users"] = len(per_user)
        summary["records"] = len(corpus)
        summary["records_without_user"] = users.null_count
        summary["records_per_user"] = spread(per_user)
    else:
        summary["users"] = None
        summary["records"] = len(corpus)
        summary["records_without_user"] = len(corpus)
    summary["tokens"] = int(tokens.sum())
    summary["tokens_per_record"] = spread(tokens)
    summary["characters"] = int(pc.sum(pc.utf8_length(corpus.table.column("text"))).as_py())
    for column in ("label", "split"):
        if column in corpus.columns:
            summary[f"{column}s"] = _counts(corpus.table.column(column))
    if "tags" in corpus.columns:
        flat = pc.list_flatten(corpus.table.column("tags"))
        opened = flat.filter(pc.match_substring_regex(flat, "^[BSU]-"))
        summary["tagged_spans"] = _counts(pc.utf8_slice_codeunits(opened, 2))
    if "spans" in corpus.columns:
        flat = pc.list_flatten(corpus.table.column("spans"))
        summary["gold_spans"] = _counts(pc.struct_field(flat, "kind"))
    summary["columns"] = list(corpus.columns)
    if near_duplicates:
        summary["near_duplicates"] = find_near_duplicates(corpus, progress=progress)
    return summary


def _tokens(corpus: Corpus) -> np.ndarray:
    """Tokens of each record: those given, else what white space parts."""
    if "tokens" in corpus.columns and not corpus.table.column("tokens").null_count:
        return np.asarray(pc.list_value_length(corpus.table.column("tokens")), dtype=np.int64)
    sizes = [
        np.asarray(pc.list_value_length(_words(batch.column("text"))), dtype=np.int64)
        for batch in corpus.table.to_batches(max_chunksize=65_536)
    ]
    return np.concatenate(sizes)


def _words(text: pa.Array) -> pa.ListArray:
    # Splitting an empty string gives one empty word; only real words count.
    trimmed = pc.utf8_trim_whitespace(text)
    parts = pc.utf8_split_whitespace(trimmed)
    return pc.if_else(pc.equal(trimmed, ""), pa.scalar([], parts.type), parts)


def _counts(column: pa.ChunkedArray) -> dict[str, int]:
    pairs = pc.value_counts(column.drop_null()).to_pylist()
    return {p["values"]: p["counts"] for p in sorted(pairs, key=lambda p: -p["counts"])}


def spread(values: np.ndarray) -> dict[str, Any]:
    """A distribution of whole numbers: least, mean, median, greatest, histogram of doublings."""
    if len(values) == 0:
        return {"min": 0, "mean": 0.0, "median": 0.0, "max": 0, "histogram": {}}
    return {
        "min": int(values.min()),
        "mean": round(float(values.mean()), 3),
        "median": float(np.median(values)),
        "max": int(values.max()),
        "histogram": histogram(values),
    }


def histogram(values: np.ndarray, times: np.ndarray | None = None) -> dict[str, int]:
    """How many are 0 (where any is), 1, 2, 3-4, 5-8 and so on; the empty ones in between stay.

    With `times`, each value is there so often.

    >>> histogram(np.array([1, 1, 2, 7]))
    {'1': 2, '2': 1, '3-4': 0, '5-8': 1}
    """
    counts: dict[str, int] = {}
    each = np.ones(len(values), dtype=np.int64) if times is None else times
    zeros = int(each[values == 0].sum())
    if zeros:
        counts["0"] = zeros
    least, most, top = 1, 1, int(values.max(initial=0))
    while least <= top:
        label = str(most) if least == most else f"{least}-{most}"
        counts[label] = int(each[(values >= least) & (values <= most)].sum())
        least, most = most + 1, most * 2
    return counts


# --- near-duplicates across users -----------------------------------------------------------
# MinHash over shingles of three words (Broder 1997), with banding: two records whose sets of
# shingles agree to a share J meet in a band with probability 1 - (1 - J^rows)^bands. A meeting
# is confirmed by the share of equal hashes, so what is counted is J >= about 0.8.

_BANDS, _ROWS, _WORDS, _ALIKE = 8, 4, 3, 0.8
_SHORTEST = 5  # "thank you" is nobody's copy: records of fewer words are left aside
_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)


def find_near_duplicates(corpus: Corpus, *, progress: Progress | None = None) -> dict[str, Any]:
    """How many records have a near-duplicate by another user; that breaks "one user, one owner".

    *Source*: Broder (1997), resemblance of documents by minima of hashed shingles.
    """
    signatures = []
    for batch in corpus.table.to_batches(max_chunksize=16_384):
        signatures.append(_signatures(batch.column("text")))
        if progress:
            progress(batch.num_rows)
    matrix = np.concatenate(signatures)
    if "user" in corpus.columns:
        codes = corpus.table.column("user").combine_chunks().dictionary_encode()
        users = pc.fill_null(codes.indices, -1).to_numpy(zero_copy_only=False)
    else:
        users = np.arange(len(corpus))
    touched = np.zeros(len(corpus), dtype=bool)
    for band in range(_BANDS):
        _mark_alike(matrix, matrix[:, band * _ROWS : (band + 1) * _ROWS], users, touched)
    return {
        "records": int(touched.sum()),
        "share": round(float(touched.mean()), 4),
        "users": len(np.unique(users[touched])),
        "alike_from": _ALIKE,
        "words_from": _SHORTEST,
    }


def _signatures(text: pa.Array) -> np.ndarray:
    """The MinHash signature of each text, all texts of a batch at once."""
    folded = pc.replace_substring_regex(pc.utf8_lower(text), r"[^\p{L}\p{N}]+", " ")
    words = _words(folded)
    sizes = np.asarray(pc.list_value_length(words), dtype=np.int64)
    flat = words.flatten()
    # Words as 64-bit hashes: hash each distinct word once, then look them up.
    coded = flat.dictionary_encode()
    distinct = np.array([_hash_word(w) for w in coded.dictionary.to_pylist()], dtype=np.uint64)
    hashed = distinct[coded.indices.to_numpy(zero_copy_only=False)] if len(flat) else distinct
    owner = np.repeat(np.arange(len(text)), sizes)
    position = np.arange(len(hashed)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    shingle = hashed.copy()
    for step in range(1, _WORDS):
        # A text shorter than a shingle is one shingle of what it has.
        inside = position + step < np.repeat(sizes, sizes)
        following = np.zeros_like(hashed)
        following[:-step][inside[:-step]] = hashed[step:][inside[:-step]]
        shingle = mix(shingle * np.uint64(0x9E3779B97F4A7C15) + following)
    starts = (position + _WORDS <= np.repeat(sizes, sizes)) | (position == 0)
    starts &= np.repeat(sizes, sizes) >= _SHORTEST
    shingle, owner = shingle[starts], owner[starts]
    out = np.full((len(text), _BANDS * _ROWS), _EMPTY)
    if len(shingle):
        rows, first = np.unique(owner, return_index=True)
        for column in range(_BANDS * _ROWS):
            salted = mix(shingle ^ np.uint64(0xD1B54A32D192ED03 * (column + 1) % 2**64))
            out[rows, column] = np.minimum.reduceat(salted, first)
    return out


def _hash_word(word: str) -> int:
    # Not Python's hash(): that differs from one process to the next.
    value = 0xCBF29CE484222325
    for byte in word.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def mix(values: np.ndarray) -> np.ndarray:
    """Hashes whose bits are spread evenly (the finalizer of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(values ^ (values >> np.uint64(31)))


def _mark_alike(
    matrix: np.ndarray, band: np.ndarray, users: np.ndarray, touched: np.ndarray
) -> None:
    """Mark records that share a band, most of their hashes, and not their user, with another."""
    key = band[:, 0].copy()
    for row in range(1, _ROWS):
        key = mix(key * np.uint64(0x9E3779B97F4A7C15) + band[:, row])
    key[matrix[:, 0] == _EMPTY] = 0
    order = np.lexsort((users, key))
    # Neighbours in this order, and the first of each run, stand for all pairs of the run: a
    # run of n near-duplicates then costs n comparisons, not n squared.
    run = np.concatenate([[0], np.cumsum(key[order][1:] != key[order][:-1])])
    head = order[np.searchsorted(run, np.arange(run[-1] + 1))][run]
    last = order[np.searchsorted(run, np.arange(run[-1] + 1), side="right") - 1][run]
    previous = np.concatenate([order[:1], order[:-1]])
    for other in (head, last, previous):
        alike = (users[order] != users[other]) & (key[order] == key[other]) & (key[order] != 0)
        rows = np.flatnonzero(alike)
        same = (matrix[order[rows]] == matrix[other[rows]]).mean(axis=1) >= _ALIKE
        touched[order[rows[same]]] = True
        touched[other[rows[same]]] = True
