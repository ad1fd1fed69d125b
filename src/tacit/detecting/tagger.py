"""A tagger of the user's own: a linear-chain CRF that learns kinds from a marked corpus.

In reading order: what training gives back, `train`, `Tagger`, then the parts: reading gold
marks, cutting text into tokens, word lists learned from the marks, features, and the folder
that a tagger is saved in.

A saved tagger holds words and names of the corpus it learned from. Guard its folder as you
guard that corpus.

Source: Lafferty et al. 2001 (conditional random fields), trained by CRFsuite (Okazaki 2007);
the document-wide features follow Ratinov and Roth 2009.
"""

import hashlib
import json
import os
import random
import re
import shutil
import time
from bisect import bisect_left, bisect_right
from collections import ChainMap, Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pycrfsuite

from tacit.corpus import Corpus, Record
from tacit.detecting.detector import Detector, Finding, register
from tacit.detecting.kinds import kind_of, known_kinds
from tacit.errors import DataError, UsageError

FORMAT = 1
# Raise it whenever a feature, a token rule or a case class changes: an old tagger would then
# read its own weights wrongly.
FEATURES = 1

_MODEL, _LEXICON, _ABOUT = "tagger.crfsuite", "lexicon.json", "tagger.json"

# Chosen on the validation split of CoNLL-2003; docs/tagger.md has the figures.
_SETTINGS = {"c1": 0.02, "c2": 0.1, "period": 10, "delta": 2e-3}
ITERATIONS = 60

# The shares of names and of other words that a document is learned without.
_HIDDEN_NAMES = 0.15
_HIDDEN_WORDS = 0.05
# The share of documents learned once more in lower case: a tagger that leans on capitals alone
# finds next to nothing in text without them.
_LOWERED = 0.1

# A document is what one user wrote, cut here so that no user grows without bound.
_LINES_PER_DOCUMENT = 256
_TOKENS_PER_LINE = 256
_LONGEST_PHRASE = 6
_TYPES_CACHED = 200_000


@dataclass(frozen=True)
class KindScore:
    """How one kind was found in held-out records: exact spans and kinds only."""

    precision: float
    recall: float
    f1: float
    mentions: int


@dataclass(frozen=True)
class TaggerSummary:
    """What a training saw and made; counts only, no text.

    `unmarked` records had neither tags nor spans and were left out. `widened` spans began or
    ended inside a token and were learned as whole tokens. `held_out_score` is by kind, with
    `all` for the whole, and empty where nothing was held out.
    """

    folder: str
    records: int
    held_out: int
    unmarked: int
    tokens: int
    mentions: dict[str, int]
    widened: int
    iterations: int
    seconds: float
    corpus: str
    held_out_score: dict[str, KindScore]


def train(
    corpus: Corpus,
    out: Path,
    *,
    iterations: int = ITERATIONS,
    held_out: float = 0.0,
    seed: int = 0,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> TaggerSummary:
    """Train a tagger on a corpus with `tags` or `spans` and save it as the folder `out`.

    `held_out` is the share of users (of records, where there are no users) kept apart to
    score the result. They share firms, places and turns of phrase with the rest, so the score
    flatters. `seed` chooses them, and the words that are hidden in training; equal arguments
    give equal taggers. `progress` is called with the iteration and the most there can be;
    training ends sooner when the loss stays.
    """
    start = time.perf_counter()
    out = Path(out)
    if iterations < 1:
        raise UsageError(f"iterations={iterations} is too few; give 1 or more.")
    if not 0.0 <= held_out < 1.0:
        raise UsageError(f"held_out={held_out} is no share; give 0 up to, not with, 1.")
    _refuse_folder(out, overwrite)
    gold = _Gold(corpus)
    rng = random.Random(seed)
    learn, kept_apart = _deal(gold.records, held_out, rng)
    documents = _documents([(i, r.user, gold.lines[i]) for i, r in learn])
    mentions = _mentions_by_kind(documents)
    if not mentions:
        raise DataError(
            f"{corpus.name} has no mention to learn from in {len(learn):,} marked record(s); "
            "give a corpus with BIO `tags`, or with gold `spans`."
        )
    trainer = _Trainer(iterations, progress)
    folder = _draft_folder(out)
    try:
        lexicon = _teach(trainer, documents, rng)
        trainer.train(str(folder / _MODEL))
        _write_json(folder / _LEXICON, lexicon.row())
        summary = TaggerSummary(
            folder=str(out),
            records=len(learn),
            held_out=len(kept_apart),
            unmarked=gold.unmarked,
            tokens=sum(len(line.tokens) for d in documents for _, line in d),
            mentions=mentions,
            widened=gold.widened,
            iterations=trainer.done,
            seconds=0.0,
            corpus=corpus.digest(),
            held_out_score={},
        )
        _write_json(folder / _ABOUT, _about(summary, gold, folder, iterations, seed))
        scores = _score(Tagger.load(folder), kept_apart, gold)
        _move_into_place(folder, out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return replace(summary, seconds=time.perf_counter() - start, held_out_score=scores)


def _teach(trainer: "_Trainer", documents: Sequence["_Document"], rng: random.Random) -> "_Lexicon":
    """Give the trainer every document, and give back the word lists of all."""
    seen = [_seen(document) for document in documents]
    counts = _counted(seen)
    types = _Types()
    for document, own in zip(documents, seen, strict=True):
        others = counts.lexicon_without(own)
        copies = [[line for _, line in document]]
        if rng.random() < _LOWERED:
            copies.append(_lowered(copies[0]))
        for lines in copies:
            items = _features(lines, others, types, _hidden(lines, rng))
            for line, features in zip(lines, items, strict=True):
                trainer.append(features, line.tags)
    return counts.lexicon()


def _about(
    summary: TaggerSummary, gold: "_Gold", folder: Path, iterations: int, seed: int
) -> dict[str, Any]:
    # The same corpus, options and seed shall give the same file: no times, no folders.
    left_out = ("folder", "seconds", "held_out_score")
    return {
        "format": FORMAT,
        "features": FEATURES,
        "tokenizer": gold.tokenizer,
        "kinds": sorted(summary.mentions),
        "names": dict(sorted(gold.names.items())),
        "settings": {"algorithm": "lbfgs", "iterations": iterations, **_SETTINGS},
        "seed": seed,
        "trained": {k: v for k, v in asdict(summary).items() if k not in left_out},
        "sha256": {name: _sha256(folder / name) for name in (_MODEL, _LEXICON)},
    }


class Tagger:
    """A trained tagger as a detector.

    What a user wrote in the same call to `find` is one document: a name seen clearly in one
    record helps to find it in another. So the batch a record comes in can change its findings.
    """

    name = "tagger"

    def __init__(
        self, model: bytes, lexicon: "_Lexicon", kinds: Sequence[str], tokenizer: str
    ) -> None:
        """Meant for `load`, which checks that the parts belong together."""
        self.kinds = tuple(kinds)
        self.tokenizer = tokenizer
        self._lexicon = lexicon
        self._types = _Types()
        # CRFsuite reads this memory as it tags and keeps no copy, so it must live as long.
        self._model = model
        self._crf = pycrfsuite.Tagger()
        self._crf.open_inmemory(model)

    @classmethod
    def load(cls, folder: Path | str) -> "Tagger":
        """The tagger saved in a folder by `train`."""
        folder = Path(folder)
        about = _read_about(folder)
        parts = {}
        for name in (_MODEL, _LEXICON):
            path = folder / name
            if not path.is_file():
                raise DataError(f"{path} is not there; copy the whole folder, or train again.")
            parts[name] = path.read_bytes()
            # CRFsuite trusts its file, so a damaged one must not reach it.
            if hashlib.sha256(parts[name]).hexdigest() != about["sha256"][name]:
                raise DataError(f"{path} is damaged; copy the whole folder again, or train again.")
        lexicon = _Lexicon.from_row(json.loads(parts[_LEXICON]))
        return cls(parts[_MODEL], lexicon, about["kinds"], about["tokenizer"])

    def find(self, records: Sequence[Record]) -> list[list[Finding]]:
        """One list of findings for each record, in order; scores are marginal probabilities."""
        cut = [_lines(r, self.tokenizer) for r in records]
        tags: list[list[str]] = [[] for _ in records]
        sure: list[list[float]] = [[] for _ in records]
        owned = [(i, r.user, lines) for i, (r, lines) in enumerate(zip(records, cut, strict=True))]
        for document in _documents(owned):
            lines = [line for _, line in document]
            features = _features(lines, self._lexicon, self._types)
            for (place, _), items in zip(document, features, strict=True):
                said = self._crf.tag(items)
                tags[place] += said
                sure[place] += (
                    self._crf.marginal(tag, i) if tag != "O" else 1.0 for i, tag in enumerate(said)
                )
        return [_findings(*parts) for parts in zip(cut, tags, sure, strict=True)]


def _findings(lines: list["_Line"], tags: list[str], sure: list[float]) -> list[Finding]:
    """A record's tags as findings, each as sure as its least sure token.

    Tags are read over the ends of lines: a mention that goes on in the next line is one.
    """
    offsets = [offset for line in lines for offset in line.offsets]
    return [
        Finding(
            offsets[first][0],
            offsets[last - 1][1],
            kind,
            round(min(sure[first:last]), 4),
            "tagger",
        )
        for first, last, kind in _runs(tags)
    ]


def _make(option: str | None) -> Detector:
    if option is None:
        raise UsageError(
            "tagger needs a folder; train one with `tacit detect train CORPUS -o DIR`, then "
            "give tagger=DIR."
        )
    return Tagger.load(Path(option).expanduser())


register("tagger", _make, "a CRF tagger trained by `tacit detect train`", "DIR")


# ---- gold marks


@dataclass(slots=True)
class _Line:
    """One sequence for the CRF: tokens, where they stand, and their tags if known."""

    tokens: list[str]
    offsets: list[tuple[int, int]]
    tags: list[str]


_Document = list[tuple[int, _Line]]


class _Gold:
    """The marked records of a corpus as tagged lines, and what was met on the way."""

    def __init__(self, corpus: Corpus) -> None:
        self.records: list[tuple[int, Record]] = []
        self.lines: dict[int, list[_Line]] = {}
        self.names: dict[str, str] = {}
        self.unmarked = 0
        self.widened = 0
        self.tokenizer = "given"
        self._corpus = corpus.name
        for number, record in enumerate(corpus.records()):
            if record.tokens is not None and record.tags is not None:
                lines = self._from_tags(number, record)
            elif record.spans is not None:
                lines = self._from_spans(number, record)
                self.tokenizer = "pieces"
            else:
                self.unmarked += 1
                continue
            self.lines[number] = lines
            self.records.append((number, record))
        if not self.records:
            raise DataError(
                f"{corpus.name} has no marked record; training needs `tokens` with BIO `tags`, "
                "or `spans` (start, end, kind)."
            )

    def _from_tags(self, number: int, record: Record) -> list[_Line]:
        tokens = list(record.tokens or ())
        tags: list[str] = []
        before, open_ = "", False
        for given in record.tags or ():
            mark, _, name = given.partition("-")
            if given == "O":
                tags.append("O")
                before, open_ = "", False
                continue
            if mark not in "BILESU" or not name:
                raise DataError(
                    f"{self._corpus}, record {number + 1}, has a tag that is not O, B-KIND or "
                    "I-KIND; give BIO tags (E-, L-, S- and U- are understood)."
                )
            kind = self._kind(name, number)
            inside = open_ and kind == before and mark in "IEL"
            tags.append(("I-" if inside else "B-") + kind)
            before, open_ = kind, mark in "BI"
        return _cut(tokens, _align(record.text, tokens) or [(0, 0)] * len(tokens), tags)

    def _from_spans(self, number: int, record: Record) -> list[_Line]:
        offsets = _tokenize(record.text, "pieces")
        starts, ends = [s for s, _ in offsets], [e for _, e in offsets]
        tags = ["O"] * len(offsets)
        for span in sorted(record.spans or (), key=lambda s: (s.start - s.end, s.start)):
            kind = self._kind(span.kind, number)
            inside = range(bisect_right(ends, span.start), bisect_left(starts, span.end))
            # The longer span came first; what lies under it is already marked.
            if not inside or any(tags[i] != "O" for i in inside):
                continue
            self.widened += starts[inside[0]] < span.start or ends[inside[-1]] > span.end
            for place, i in enumerate(inside):
                tags[i] = ("I-" if place else "B-") + kind
        tokens = [record.text[s:e] for s, e in offsets]
        return _cut(tokens, offsets, tags, record.text)

    def _kind(self, name: str, number: int) -> str:
        if name not in self.names:
            try:
                self.names[name] = kind_of(name)
            except UsageError:
                # The name stays unsaid: in a file of mixed-up columns it is somebody's text.
                raise DataError(
                    f"{self._corpus}, record {number + 1}, has a mark of unknown kind; "
                    f"accepted: {', '.join(known_kinds())}, and the names that spaCy, Stanza, "
                    "Presidio and CoNLL use for them."
                ) from None
        return self.names[name]


def _mentions_by_kind(documents: Iterable[_Document]) -> dict[str, int]:
    kinds = Counter(
        tag[2:]
        for document in documents
        for _, line in document
        for tag in line.tags
        if tag[0] == "B"
    )
    return dict(sorted(kinds.items()))


def _runs(tags: Sequence[str]) -> Iterable[tuple[int, int, str]]:
    """First token, last token (exclusive) and kind of every mention in BIO tags."""
    first, kind = 0, ""
    for i, tag in enumerate(tags):
        goes_on = kind and tag[0] == "I" and tag[2:] == kind
        if goes_on:
            continue
        if kind:
            yield first, i, kind
        first, kind = i, tag[2:]
    if kind:
        yield first, len(tags), kind


def _deal(
    records: list[tuple[int, Record]], share: float, rng: random.Random
) -> tuple[list[tuple[int, Record]], list[tuple[int, Record]]]:
    """The records to learn from and those held out, whole users at a time."""
    if not share:
        return records, []
    owner = {i: r.user if r.user is not None else f"\0{i}" for i, r in records}
    owners = list(dict.fromkeys(owner.values()))
    apart = set(rng.sample(owners, round(share * len(owners))))
    learn = [(i, r) for i, r in records if owner[i] not in apart]
    if not learn:
        raise UsageError(
            f"held_out={share} leaves nothing to learn from with {len(owners)} user(s); "
            "give a smaller share."
        )
    return learn, [(i, r) for i, r in records if owner[i] in apart]


def _score(tagger: Tagger, held_out: list[tuple[int, Record]], gold: _Gold) -> dict[str, KindScore]:
    if not held_out:
        return {}
    right: Counter[str] = Counter()
    found: Counter[str] = Counter()
    wanted: Counter[str] = Counter()
    for (i, record), findings in zip(held_out, tagger.find([r for _, r in held_out]), strict=True):
        if record.text and gold.lines[i] and gold.lines[i][0].offsets[-1][1] == 0:
            continue  # tokens that do not stand in the text have no places to compare
        true = _places(gold.lines[i])
        seen = {(f.start, f.end, f.kind) for f in findings}
        for tally, places in ((right, true & seen), (found, seen), (wanted, true)):
            for _, _, kind in places:
                tally[kind] += 1
                tally["all"] += 1
    return {
        kind: _kind_score(right[kind], found[kind], wanted[kind])
        for kind in sorted({*wanted, *found}, key=lambda k: (k != "all", k))
    }


def _kind_score(right: int, found: int, wanted: int) -> KindScore:
    return KindScore(
        precision=round(right / found, 4) if found else 0.0,
        recall=round(right / wanted, 4) if wanted else 0.0,
        f1=round(2 * right / (found + wanted), 4) if found + wanted else 0.0,
        mentions=wanted,
    )


def _places(lines: list[_Line]) -> set[tuple[int, int, str]]:
    tags = [tag for line in lines for tag in line.tags]
    return {(f.start, f.end, f.kind) for f in _findings(lines, tags, [1.0] * len(tags))}


# ---- tokens

# Close to the tokens of treebanks and CoNLL: inner hyphens and dots stay, 's is its own token.
_WORDS = re.compile(
    r"""
      (?:[^\W\d_]\.){2,}(?:-[^\W_]+)*                       # U.S. and U.S.-based
    | \b(?:Mr|Mrs|Ms|Dr|Prof|Sen|Rep|Gen|Col|Lt|Sgt|St|Jr|Sr|Inc|Corp|Ltd|Co|Bros|vs|No)\.
    | \b[^\W\d_]\.(?=\s)                                    # an initial
    | ['’][sS]\b
    | [^\W_]+(?:(?:[-.,:/&]|['’](?![sS]\b))[^\W_]+)*        # words, numbers, dates, scores
    | \S
    """,
    re.VERBOSE,
)
# Finer, so that marks of any corpus begin and end between tokens: 555-0100 is three pieces.
_PIECES = re.compile(r"['’][sS]\b|[^\W_]+(?:['’](?![sS]\b)[^\W_]+)*|\S")


def _tokenize(text: str, rule: str) -> list[tuple[int, int]]:
    """Where the tokens of a text stand.

    >>> [("Ann O'Hara's 555-0100"[s:e]) for s, e in _tokenize("Ann O'Hara's 555-0100", "pieces")]
    ['Ann', "O'Hara", "'s", '555', '-', '0100']
    """
    pattern = _PIECES if rule == "pieces" else _WORDS
    return [m.span() for m in pattern.finditer(text)]


def _align(text: str, tokens: Sequence[str]) -> list[tuple[int, int]] | None:
    """Where given tokens stand in the text, or None if they do not make it up."""
    offsets = []
    place = 0
    for token in tokens:
        start = text.find(token, place)
        if start < 0 or not token or (start > place and not text[place:start].isspace()):
            return None
        place = start + len(token)
        offsets.append((start, place))
    return offsets if not text[place:].strip() else None


def _lines(record: Record, tokenizer: str) -> list[_Line]:
    """A record cut for tagging, by its own tokens where the tagger learned from such."""
    offsets = None
    if tokenizer == "given" and record.tokens is not None:
        offsets = _align(record.text, record.tokens)
    if offsets is None:
        offsets = _tokenize(record.text, tokenizer)
        tokens = [record.text[s:e] for s, e in offsets]
        return _cut(tokens, offsets, [], record.text)
    return _cut(list(record.tokens or ()), offsets, [])


def _cut(
    tokens: list[str], offsets: list[tuple[int, int]], tags: list[str], text: str | None = None
) -> list[_Line]:
    """Lines end at line ends (where the text is given) and before they grow too long."""
    lines = []
    first = 0
    for i in range(1, len(tokens) + 1):
        end = (
            i == len(tokens)
            or i - first >= _TOKENS_PER_LINE
            or (text is not None and "\n" in text[offsets[i - 1][1] : offsets[i][0]])
        )
        if end:
            part = slice(first, i)
            lines.append(_Line(tokens[part], offsets[part], tags[part]))
            first = i
    return lines


def _documents(records: Iterable[tuple[int, str | None, list[_Line]]]) -> list[_Document]:
    """Lines by the user who wrote them, in order; a record without user stands alone."""
    documents: list[_Document] = []
    open_: dict[str, _Document] = {}
    for place, user, lines in records:
        document: _Document | None = open_.get(user) if user is not None else None
        if document is None or len(document) + len(lines) > _LINES_PER_DOCUMENT:
            document = []
            documents.append(document)
            if user is not None:
                open_[user] = document
        document.extend((place, line) for line in lines)
    return documents


# ---- word lists learned from the marks


@dataclass(frozen=True)
class _Lexicon:
    """What the training corpus says of a word; every key is lower case.

    `words`: the places and kinds it was marked with. `phrases`: the kinds of whole mentions.
    `longest`: by first word, the most words such a phrase has. `cases`: how the word is
    usually written inside a sentence.
    """

    words: Mapping[str, Sequence[str]]
    phrases: Mapping[str, Sequence[str]]
    longest: Mapping[str, int]
    cases: Mapping[str, str]

    def row(self) -> dict[str, Any]:
        """The lexicon as JSON; what can be counted again is left out."""
        return {
            name: {k: getattr(self, name)[k] for k in sorted(getattr(self, name))}
            for name in ("words", "phrases", "cases")
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "_Lexicon":
        """The lexicon of such a JSON object."""
        return cls(row["words"], row["phrases"], _longest(row["phrases"]), row["cases"])


def _longest(phrases: Iterable[str]) -> dict[str, int]:
    longest: dict[str, int] = {}
    for phrase in phrases:
        words = phrase.split(" ")
        longest[words[0]] = max(len(words), longest.get(words[0], 0))
    return longest


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one document says of its words: sets, so that a document counts once."""

    words: dict[str, set[str]]
    phrases: dict[str, set[str]]
    cases: dict[str, set[str]]


def _seen(document: _Document) -> _Seen:
    words: dict[str, set[str]] = defaultdict(set)
    phrases: dict[str, set[str]] = defaultdict(set)
    cases: dict[str, set[str]] = defaultdict(set)
    for _, line in document:
        lower = [token.lower() for token in line.tokens]
        if any(token.islower() for token in line.tokens):
            for token, key, opens in zip(line.tokens, lower, _firsts(line.tokens), strict=True):
                case = _case(token)
                if case == "l" or (case in "TUM" and not opens):
                    cases[key].add(case)
        for first, last, kind in _runs(line.tags):
            if last - first <= _LONGEST_PHRASE:
                phrases[" ".join(lower[first:last])].add(kind)
            for i in range(first, last):
                words[lower[i]].add(_position(i, first, last) + kind)
    return _Seen(words, phrases, cases)


def _position(i: int, first: int, last: int) -> str:
    if last - first == 1:
        return "S"
    return "B" if i == first else "E" if i == last - 1 else "I"


@dataclass(frozen=True)
class _Counts:
    """In how many documents a word was seen so."""

    words: dict[str, Counter[str]]
    phrases: dict[str, Counter[str]]
    cases: dict[str, Counter[str]]
    longest: dict[str, int]
    whole: list[_Lexicon]

    def lexicon(self) -> _Lexicon:
        """What all documents together say."""
        if not self.whole:
            self.whole.append(
                _Lexicon(
                    {w: sorted(c) for w, c in self.words.items()},
                    {p: sorted(c) for p, c in self.phrases.items()},
                    self.longest,
                    {w: _usual(c) for w, c in self.cases.items()},
                )
            )
        return self.whole[0]

    def lexicon_without(self, own: _Seen) -> _Lexicon:
        """What all other documents say.

        A document must not be told its own answers: at detection the lists have not seen the
        text at hand, so in training they must not have either.
        """
        whole = self.lexicon()
        words = {w: sorted(_less(self.words[w], k)) for w, k in own.words.items()}
        phrases = {p: sorted(_less(self.phrases[p], k)) for p, k in own.phrases.items()}
        cases = {w: _usual(_less(self.cases[w], k)) for w, k in own.cases.items()}
        return _Lexicon(
            ChainMap(words, whole.words),  # type: ignore[arg-type]
            ChainMap(phrases, whole.phrases),  # type: ignore[arg-type]
            whole.longest,
            ChainMap(cases, whole.cases),  # type: ignore[arg-type]
        )


def _counted(documents: Iterable[_Seen]) -> _Counts:
    words: dict[str, Counter[str]] = defaultdict(Counter)
    phrases: dict[str, Counter[str]] = defaultdict(Counter)
    cases: dict[str, Counter[str]] = defaultdict(Counter)
    for seen in documents:
        for counts, sets in ((words, seen.words), (phrases, seen.phrases), (cases, seen.cases)):
            for key, values in sets.items():
                counts[key].update(values)
    return _Counts(words, phrases, cases, _longest(phrases), [])


def _less(counts: Counter[str], own: set[str]) -> Counter[str]:
    return Counter({k: n - (k in own) for k, n in counts.items() if n > (k in own)})


def _usual(cases: Counter[str]) -> str:
    """The commonest case, with ~ where there are others too; `?` where nothing is known."""
    if not cases:
        return "?"
    best = max("lTUM", key=lambda c: cases[c])
    return best if len(cases) == 1 else best + "~"


# ---- features

_STOPS = frozenset(".!?:")
_QUOTES = frozenset("\"'`“‘«(") | {"``", "''"}


def _firsts(tokens: Sequence[str]) -> list[bool]:
    """Whether each token opens a sentence, where a capital letter says little."""
    firsts: list[bool] = []
    before = True
    for token in tokens:
        firsts.append(before)
        before = token in _STOPS or (before and token in _QUOTES)
    return firsts


def _case(word: str) -> str:
    """l(ower), U(pper), T(itle), M(ixed from a capital), m(ixed), D(igits), d, P(unctuation)."""
    if word.isdigit():
        return "D"
    if not any(map(str.isalpha, word)):
        return "d" if any(map(str.isdigit, word)) else "P"
    if word.islower():
        return "l"
    if word.isupper():
        return "U" if sum(map(str.isalpha, word)) > 1 else "U1"
    if word[0].isupper():
        return "T" if word[1:].islower() else "M"
    return "m"


def _letter_shape(c: str) -> str:
    if c.isupper():
        return "X"
    if c.isdigit():
        return "d"
    return "x" if c.isalpha() else c


_REPEATS = re.compile(r"(.)\1+", re.DOTALL)
_DIGIT = re.compile(r"\d")


@dataclass(frozen=True, slots=True)
class _Type:
    """All that depends on the word alone, made once for each distinct word.

    `word` is its key in the lexicon, empty where the word is hidden.
    """

    word: str
    here: list[str]
    before: list[str]
    after: list[str]
    before2: list[str]
    after2: list[str]
    lower: str
    norm: str
    case: str
    shape: str
    cased: bool


class _Types(dict[str, _Type]):
    """The types met so far; forgotten together when there are too many."""

    def __missing__(self, word: str) -> _Type:
        if len(self) >= _TYPES_CACHED:
            self.clear()
        made = self[word] = _type(word)
        return made


def _type(word: str, hidden: bool = False) -> _Type:
    # CRFsuite takes UTF-8 only; half of a surrogate pair has no such form.
    word = word.encode("utf-8", "replace").decode()
    lower = word.lower()
    norm = _DIGIT.sub("0", lower)
    case = _case(word)
    long_shape = "".join(map(_letter_shape, word[:40]))
    shape = _REPEATS.sub(r"\1", long_shape)
    # What an unknown word still shows; the rest needs its letters to have been seen before.
    here = [f"sh={long_shape[:10]}", f"cs={shape}", f"cp={case}", f"n={min(len(word), 8)}"]
    near = [f"cs={shape}", f"cp={case}"]
    further = [f"cp={case}"]
    if not hidden:
        here += _spelling(word, norm)
        near += (f"w={word}", f"l={norm}", f"s3={norm[-3:]}")
        further.append(f"l={norm}")
    return _Type(
        word="" if hidden else lower,
        here=here,
        before=[f"-1{f}" for f in near],
        after=[f"+1{f}" for f in near],
        before2=[f"-2{f}" for f in further],
        after2=[f"+2{f}" for f in further],
        lower=lower,
        norm="?" if hidden else norm,
        case=case,
        shape=shape,
        cased=case[0] in "TUMm",
    )


def _spelling(word: str, norm: str) -> list[str]:
    features = [f"w={word}", f"l={norm}", f"P3={word[:3]}", f"S3={word[-3:]}"]
    for k in range(1, 6):
        if len(norm) >= k:
            features += (f"p{k}={norm[:k]}", f"s{k}={norm[-k:]}")
    if "-" in word:
        features += ("hy", *(f"h={part}" for part in norm.split("-")))
    if "." in word:
        features.append("dot")
    if "'" in word or "’" in word:
        features.append("ap")
    return features


class _Elsewhere:
    """How each word of a document is written and what stands beside it, over all its lines."""

    def __init__(self) -> None:
        self.cases: dict[str, Counter[str]] = defaultdict(Counter)
        self.before: dict[str, Counter[str]] = defaultdict(Counter)
        self.after: dict[str, Counter[str]] = defaultdict(Counter)

    def add(self, types: Sequence[_Type], firsts: Sequence[bool], shouted: bool) -> None:
        """Count one line; a capital tells nothing where a sentence opens or all is capital."""
        last = len(types) - 1
        for i, t in enumerate(types):
            if t.case == "l" or (t.cased and not firsts[i] and not shouted):
                self.cases[t.lower][t.case[0]] += 1
            if t.cased:
                if i > 0:
                    self.before[t.lower][types[i - 1].norm] += 1
                if i < last:
                    self.after[t.lower][types[i + 1].norm] += 1

    def features(
        self, t: _Type, counted: bool, before: _Type | None, after: _Type | None
    ) -> list[str]:
        """What the other occurrences of this word in the document say."""
        features = []
        cases = self.cases.get(t.lower)
        if cases:
            own = t.case[0] if counted else ""
            low, title, upper = (cases[c] - (c == own) for c in "lTU")
            if low > 0:
                features.append(f"dl|{t.case}")
            if title > 0:
                features.append(f"dT|{t.case}")
            if upper > 0:
                features.append(f"dU|{t.case}")
            if low + title + upper > 0:
                most = "l" if low >= max(title, upper) else "T" if title >= upper else "U"
                features.append(f"dm={most}{t.case}{'' if counted else 'B'}")
        if t.cased:
            for key, counts, near in (("dp", self.before, before), ("dn", self.after, after)):
                mine = near.norm if near else None
                for word, n in list(counts.get(t.lower, {}).items())[:6]:
                    if n > 1 or word != mine:
                        features.append(f"{key}={word}")
        return features


def _hidden(lines: Sequence[_Line], rng: random.Random) -> frozenset[str]:
    """Words whose letters this document shall be learned without.

    A corpus repeats its names, and a tagger that may look at them learns the names and not
    their surroundings. So in each document some names, and fewer of all words, are unknown.
    """
    names = dict.fromkeys(
        tuple(token.lower() for token in line.tokens[first:last])
        for line in lines
        for first, last, _ in _runs(line.tags)
    )
    words = dict.fromkeys(token.lower() for line in lines for token in line.tokens)
    return frozenset(
        [
            *(word for name in names if rng.random() < _HIDDEN_NAMES for word in name),
            *(word for word in words if rng.random() < _HIDDEN_WORDS),
        ]
    )


def _lowered(lines: Sequence[_Line]) -> list[_Line]:
    return [replace(line, tokens=[token.lower() for token in line.tokens]) for line in lines]


def _features(
    lines: Sequence[_Line],
    lexicon: _Lexicon,
    cache: _Types,
    hidden: frozenset[str] = frozenset(),
) -> list[list[list[str]]]:
    """The features of every token in every line of one document."""
    if not lines:
        return []
    typed = [
        [_type(t, True) if hidden and t.lower() in hidden else cache[t] for t in line.tokens]
        for line in lines
    ]
    firsts = [_firsts(line.tokens) for line in lines]
    # A headline in capitals, or a table: no word in lower case.
    shouted = [
        any(t.cased for t in types) and not any(t.case == "l" for t in types) for types in typed
    ]
    elsewhere = _Elsewhere()
    for types, first, shout in zip(typed, firsts, shouted, strict=True):
        elsewhere.add(types, first, shout)
    opening = typed[0][0].norm if typed[0] else ""
    return [
        _line_features(types, first, shout, opening, elsewhere, lexicon)
        for types, first, shout in zip(typed, firsts, shouted, strict=True)
    ]


def _line_features(
    types: Sequence[_Type],
    firsts: Sequence[bool],
    shouted: bool,
    opening: str,
    elsewhere: _Elsewhere,
    lexicon: _Lexicon,
) -> list[list[str]]:
    last = len(types) - 1
    listed = _listed(types, lexicon)
    usual = [lexicon.cases.get(t.word, "?") for t in types]
    items = []
    for i, t in enumerate(types):
        case, norm, shape = t.case, t.norm, t.shape
        b = types[i - 1] if i > 0 else None
        a = types[i + 1] if i < last else None
        f = t.here.copy()
        if b:
            f += b.before
            f += (f"b-={b.norm}|{norm}", f"c-={b.shape}|{shape}", f"cl={case}|{b.norm}")
            f += ["-1" + x for x in listed[i - 1]]
            f.append(f"-1u={usual[i - 1]}|{usual[i]}{case}")
        else:
            f += ("BOS", f"BOS|{case}")
        if a:
            f += a.after
            f += (f"b+={norm}|{a.norm}", f"c+={shape}|{a.shape}", f"cr={case}|{a.norm}")
            f += ["+1" + x for x in listed[i + 1]]
            f.append(f"+1u={usual[i + 1]}|{usual[i]}{case}")
        else:
            f.append("EOS")
        if b and a:
            f += (f"c3={b.shape}|{shape}|{a.shape}", f"lr={case}|{b.norm}|{a.norm}")
        if b and i > 1:
            f += types[i - 2].before2
            f.append(f"b--={types[i - 2].norm}|{b.norm}")
        if a and i + 1 < last:
            f += types[i + 2].after2
            f.append(f"b++={a.norm}|{types[i + 2].norm}")
        if shouted:
            f += ("shout", f"shout|{case}", f"shout={norm}")
        if firsts[i]:
            f += (f"first|{case}", f"first|{usual[i]}|{case}")
        f += (f"open={opening}|{case}", f"u={usual[i]}|{case}")
        if t.cased or case == "l":
            counted = case == "l" or (not firsts[i] and not shouted)
            f += elsewhere.features(t, counted, b, a)
        f += listed[i]
        items.append(f)
    return items


def _listed(types: Sequence[_Type], lexicon: _Lexicon) -> list[list[str]]:
    """What the word lists say of each token: of the word, and of the longest phrase around."""
    features: list[list[str]] = []
    for t in types:
        kinds = lexicon.words.get(t.word)
        found = [f"g={k}" for k in kinds] if kinds else []
        if kinds and t.cased:
            found.append("G=" + "+".join(kinds))
        features.append(found)
    i = 0
    while i < len(types):
        size, kinds = _longest_phrase(types, i, lexicon)
        for j in range(i, i + size):
            case = "" if types[j].cased else "|l"
            place = _position(j, i, i + size)
            features[j] += [f"p={place}{k}{case}" for k in kinds]
            features[j].append("P=" + "+".join(kinds) + case)
        i += max(size, 1)
    return features


def _longest_phrase(
    types: Sequence[_Type], start: int, lexicon: _Lexicon
) -> tuple[int, Sequence[str]]:
    room = min(lexicon.longest.get(types[start].word, 0), len(types) - start)
    for size in range(room, 0, -1):
        phrase = " ".join(t.word for t in types[start : start + size])
        kinds = lexicon.phrases.get(phrase)
        if kinds:
            return size, kinds
    return 0, ()


# ---- CRFsuite, and the folder


class _Trainer(pycrfsuite.Trainer):  # type: ignore[misc]
    """CRFsuite's L-BFGS trainer, quiet, telling its iterations.

    L-BFGS, and not the quicker perceptron, because it draws nothing at random, so that equal
    corpora give equal taggers, and because its probabilities mean something.
    """

    def __init__(self, iterations: int, progress: Callable[[int, int], None] | None) -> None:
        super().__init__("lbfgs", {"max_iterations": iterations, **_SETTINGS}, verbose=False)
        self._most = iterations
        self._progress = progress
        self.done = 0

    def message(self, message: str) -> None:
        """Read CRFsuite's log instead of printing it."""
        event = self.logparser.feed(message)
        if event == "iteration":
            self.done += 1
            if self._progress:
                self._progress(self.done, self._most)


def _refuse_folder(out: Path, overwrite: bool) -> None:
    if not out.exists():
        return
    if not overwrite:
        raise UsageError(f"{out} exists; choose another name, or add --overwrite to replace it.")
    # Never remove what may be somebody's other folder.
    if not out.is_dir() or (any(out.iterdir()) and not (out / _ABOUT).is_file()):
        raise UsageError(f"{out} is not a tagger's folder; choose another name.")


def _draft_folder(out: Path) -> Path:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        return Path(mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise UsageError(
            f"{out} cannot be written ({error.strerror}); choose a folder where you may write."
        ) from None


def _move_into_place(draft: Path, out: Path) -> None:
    """Give the finished folder its name; mkdtemp made it private, the umask may be wider."""
    umask = os.umask(0)
    os.umask(umask)
    draft.chmod(0o777 & ~umask)
    if out.exists():
        old = Path(mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        os.replace(out, old)
        os.replace(draft, out)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.replace(draft, out)


def _write_json(path: Path, row: Mapping[str, Any]) -> None:
    indent = 2 if path.name == _ABOUT else None
    path.write_text(json.dumps(row, ensure_ascii=False, indent=indent) + "\n", encoding="utf-8")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read_about(folder: Path) -> dict[str, Any]:
    path = folder / _ABOUT
    if not path.is_file():
        raise DataError(
            f"{folder} is not a tagger's folder: it has no {_ABOUT}; make one with "
            "`tacit detect train CORPUS -o DIR`."
        )
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        version, features = about["format"], about["features"]
        whole = (
            isinstance(about["kinds"], list)
            and about["tokenizer"] in ("given", "pieces")
            and {_MODEL, _LEXICON} <= set(about["sha256"])
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        whole, version, features = False, FORMAT, FEATURES
    if not isinstance(version, int) or version != FORMAT or features != FEATURES:
        raise DataError(
            f"{path} is of format {version!r}, features {features!r}; this version of tacit reads "
            f"format {FORMAT}, features {FEATURES}: train the tagger again."
        )
    if not whole:
        raise DataError(f"{path} is damaged; copy the whole folder again, or train again.")
    return dict(about)
