"""The papers' preprocessing: lower case, no punctuation, rare words replaced - and its leak.

The list of kept words is counted from the text that is to be protected, and no noise is added.
Whatever is trained afterwards, with whatever guarantee, that list itself is released without
one. `preprocess` therefore hands back a `Leak` beside the corpus, to be put into the report.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, repeat
from typing import Any

import pyarrow as pa

from tacit.corpus import SCHEMA, SPAN, Corpus
from tacit.errors import DataError, UsageError

MIN_COUNT = 3
_SEVERAL = object()


@dataclass(frozen=True, slots=True)
class Leak:
    """What a vocabulary counted from private text gives away.

    `counted_from` names the records that were counted, `rule` says which words were kept;
    `words_of_one_user` are the kept words that a single user wrote: each one says that this
    user is there. It is None where the corpus has no users.
    """

    counted_from: str
    rule: str
    words_seen: int
    words_kept: int
    words_of_one_user: int | None

    def __str__(self) -> str:
        sentence = (
            f"The vocabulary was counted from the private text itself ({self.counted_from}) "
            f"without noise: {self.words_kept:,} of {self.words_seen:,} words are kept "
            f"({self.rule}), and which ones is released outside every guarantee"
        )
        if self.words_of_one_user is None:
            return sentence + "."
        return sentence + f"; {self.words_of_one_user:,} of them were written by one user alone."


@dataclass(frozen=True, slots=True)
class Words:
    """The words of one text that stay.

    Where they are asked for, `places` are their places among all tokens, and `bounds` their
    starts and ends in the old text.
    """

    words: list[str]
    places: list[int] = field(default_factory=list)
    bounds: list[tuple[int, int]] = field(default_factory=list)


def _cut_texts(corpus: Corpus, cut: "_Cutter") -> list[Words]:
    """The words of each text; with their places where marks have to follow them."""
    raw = corpus.column("text").to_pylist()
    if not {"tokens", "spans", "tags", "pos"} & set(corpus.columns):
        return [Words(cut.words(text)) for text in raw]
    given = corpus.column("tokens").to_pylist() if "tokens" in corpus.columns else [None] * len(raw)
    return [
        cut.text(text) if tokens is None else cut.given(tokens, text)
        for tokens, text in zip(given, raw, strict=True)
    ]


def preprocess(
    corpus: Corpus,
    *,
    lower: bool = True,
    punctuation: bool = False,
    min_count: int | None = None,
    vocabulary_size: int | None = None,
    unknown: str = "<unk>",
) -> tuple[Corpus, Leak]:
    """The corpus as the papers feed it to a model, and what doing so leaks.

    Words are the given tokens, or else runs between white space without the punctuation around
    them. Without `punctuation`, tokens that have no letter or digit go. Words seen fewer than
    `min_count` times (3 unless told), or beyond the `vocabulary_size` most frequent (ties in
    alphabetical order), become `unknown`. They are counted in the train split where there is
    one, else everywhere.

    The text becomes the words with a space between them. Tokens, tags and part-of-speech tags
    stay in step; spans are moved to the new places, widened to whole words, and dropped where
    no word of theirs is left.

    Source: Lai et al. 2022, appendix on data (fewer than three for CoNLL-2003 and contracts, the
    30,000 most frequent for AG News).
    Departs: the paper counts "in the dataset"; we count in the train split where there is one.
    Guarantee: none; see `Leak`.
    """
    _require_one(min_count, vocabulary_size)
    cut = _Cutter(lower, punctuation, unknown)
    texts = _cut_texts(corpus, cut)
    pairs: list[list[str]] = []
    if "pair" in corpus.columns:
        pairs = [cut.words(pair or "") for pair in corpus.column("pair").to_pylist()]
    said = [t.words + pair for t, pair in zip(texts, pairs or repeat([]), strict=False)]
    rule = _Rule(MIN_COUNT if min_count is None else min_count, vocabulary_size)
    kept, leak = _count(corpus, said, rule, unknown)
    columns = _new_columns(corpus, texts, pairs, {word: word for word in kept}, unknown)
    return Corpus(pa.table(columns), name=corpus.name), leak


def _require_one(min_count: int | None, vocabulary_size: int | None) -> None:
    if min_count is not None and vocabulary_size is not None:
        raise UsageError(
            f"min_count={min_count} and vocabulary_size={vocabulary_size} are both given; "
            "give one of them."
        )
    for name, value in (("min_count", min_count), ("vocabulary_size", vocabulary_size)):
        if value is not None and value < 1:
            raise UsageError(f"{name}={value} is too small; give 1 or more.")


@dataclass(frozen=True)
class _Rule:
    """Which words are kept: those seen often enough, or the most frequent ones."""

    least: int
    size: int | None

    def keep(self, counts: Counter[str]) -> set[str]:
        """The words that stay."""
        if self.size is None:
            return {word for word, count in counts.items() if count >= self.least}
        return set(sorted(counts, key=lambda word: (-counts[word], word))[: self.size])

    def __str__(self) -> str:
        if self.size is None:
            return f"seen at least {self.least} times"
        return f"the {self.size:,} most frequent"


class _Forms(dict[str, str | None]):
    """What each token becomes, None where it goes; worked out once for each token."""

    def __init__(self, lower: bool, punctuation: bool, unknown: str) -> None:
        super().__init__({unknown: unknown})
        self._lower, self._punctuation = lower, punctuation

    def __missing__(self, token: str) -> str | None:
        stays = self._punctuation or any(map(str.isalnum, token))
        form = (token.lower() if self._lower else token) if stays else None
        self[token] = form
        return form


class _Cutter:
    """Cuts text into words; the mark of an unknown word is never cut."""

    def __init__(self, lower: bool, punctuation: bool, unknown: str) -> None:
        if not unknown or unknown.split() != [unknown]:
            raise UsageError(f"unknown={unknown!r} is not one word; give one without spaces.")
        self._forms = _Forms(lower, punctuation, unknown)
        # A word runs from its first letter to its last: "it's" and "3.5" stay whole.
        self._cut = re.compile(rf"{re.escape(unknown)}|\w++(?:[^\w\s]++\w++)*+|[^\w\s]")

    def words(self, text: str) -> list[str]:
        """The words of a text that stay, without their places."""
        forms = self._forms
        return [form for token in self._cut.findall(text) if (form := forms[token]) is not None]

    def text(self, text: str) -> Words:
        """The words of a text that stay."""
        found = list(self._cut.finditer(text))
        return self._keep([f.group() for f in found], [f.span() for f in found])

    def given(self, tokens: Sequence[str], text: str) -> Words:
        """The given tokens that stay, found in the text one after another.

        A token that is not there stands between its neighbours with no room of its own.
        """
        at, bounds = 0, []
        for token in tokens:
            start = text.find(token, at)
            if start < 0:
                bounds.append((at, at))
            else:
                at = start + len(token)
                bounds.append((start, at))
        return self._keep(tokens, bounds)

    def _keep(self, tokens: Sequence[str], bounds: Sequence[tuple[int, int]]) -> Words:
        kept = Words([])
        for place, token in enumerate(tokens):
            form = self._forms[token]
            if form is not None:
                kept.words.append(form)
                kept.places.append(place)
                kept.bounds.append(bounds[place])
        return kept


def _count(
    corpus: Corpus, texts: Sequence[list[str]], rule: _Rule, unknown: str
) -> tuple[set[str], Leak]:
    """The words that are kept, and what it leaks to keep these."""
    rows: Sequence[int] = range(len(corpus))
    counted_from = f"{len(corpus):,} records"
    if "train" in corpus.splits():
        rows = [r for r, s in enumerate(corpus.column("split").to_pylist()) if s == "train"]
        counted_from = f"the {len(rows):,} records of the train split"
    users = corpus.column("user").to_pylist() if "user" in corpus.columns else None
    counts: Counter[str] = Counter()
    writer: dict[str, Any] = {}
    for row in rows:
        counts.update(texts[row])
        if users is not None:
            user = users[row]
            for word in texts[row]:
                if writer.setdefault(word, user) != user:
                    writer[word] = _SEVERAL
    counts.pop(unknown, None)
    kept = rule.keep(counts)
    alone = None if users is None else sum(writer[word] is not _SEVERAL for word in kept)
    return kept, Leak(counted_from, str(rule), len(counts), len(kept), alone)


def _new_columns(
    corpus: Corpus,
    texts: Sequence[Words],
    pairs: Sequence[list[str]],
    kept: Mapping[str, str],
    unknown: str,
) -> dict[str, Any]:
    said = [[kept.get(word, unknown) for word in text.words] for text in texts]
    columns: dict[str, Any] = {name: corpus.table.column(name) for name in corpus.columns}
    columns["text"] = _array("text", [" ".join(row) for row in said])
    if pairs:
        old = columns["pair"].to_pylist()
        new = [" ".join(kept.get(word, unknown) for word in pair) for pair in pairs]
        columns["pair"] = _where_given("pair", old, new)
    if "tokens" in columns:
        columns["tokens"] = _where_given("tokens", columns["tokens"].to_pylist(), said)
    for name in ("tags", "pos"):
        if name in columns:
            columns[name] = _array(name, _in_step(corpus, name, texts))
    if "spans" in columns:
        columns["spans"] = _moved_spans(columns["spans"], texts, said)
    return columns


def _array(name: str, values: Sequence[Any]) -> pa.Array:
    return pa.array(values, SCHEMA.field(name).type)


def _where_given(name: str, old: Sequence[Any], new: Sequence[Any]) -> pa.Array:
    """The new values, but nothing where nothing was given."""
    return _array(name, [None if o is None else n for o, n in zip(old, new, strict=True)])


def _in_step(corpus: Corpus, name: str, texts: Sequence[Words]) -> list[list[str] | None]:
    rows: list[list[str] | None] = []
    tags_of_rows = corpus.column(name).to_pylist()
    for number, (tags, text) in enumerate(zip(tags_of_rows, texts, strict=True), 1):
        if tags is None:
            rows.append(None)
        elif text.places and text.places[-1] >= len(tags):
            raise DataError(
                f"{corpus.name}, record {number}, has {name} but no tokens that they belong to; "
                f"give the tokens, or leave {name} out."
            )
        else:
            rows.append(_keep_entities(tags, text.places))
    return rows


def _keep_entities(tags: Sequence[str], places: Sequence[int]) -> list[str]:
    """The tags at these places; an entity that lost its first token starts at the next one.

    >>> _keep_entities(["B-PER", "B-PER", "I-PER"], [0, 2])
    ['B-PER', 'B-PER']
    """
    kept, before = [], -1
    for place in places:
        tag = tags[place]
        opened = "B-" + tag[2:]
        lost = place > before + 1 and tag[:2] == "I-" and opened in tags[before + 1 : place]
        kept.append(opened if lost else tag)
        before = place
    return kept


def _moved_spans(
    spans: pa.ChunkedArray, texts: Sequence[Words], said: Sequence[Sequence[str]]
) -> pa.Array:
    moved: list[Sequence[tuple[int, int, str]] | None] = []
    for given, text, words in zip(spans.to_pylist(), texts, said, strict=True):
        if not given:
            moved.append(given)
            continue
        old_starts, old_ends = zip(*text.bounds, strict=True) if text.bounds else ((), ())
        ends = [end - 1 for end in accumulate(len(word) + 1 for word in words)]
        marks = []
        for span in given:
            first = bisect_right(old_ends, span["start"])
            last = bisect_left(old_starts, span["end"]) - 1
            if first <= last:
                start = ends[first] - len(words[first])
                marks.append((start, ends[last], span["kind"]))
        moved.append(marks)
    return pa.array(moved, pa.list_(SPAN))
