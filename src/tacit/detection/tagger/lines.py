"""Text as the tagger reads it: tokens, lines, documents, and the gold marks on them."""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tacit.corpus import Corpus, Record
from tacit.detection.gold_labels import tag_pieces
from tacit.detection.kinds import kind_in
from tacit.errors import DataError

# A document is what one user wrote, cut here so that no user grows without bound.
_LINES_PER_DOCUMENT = 256
_TOKENS_PER_LINE = 256


@dataclass(slots=True)
class Line:
    """One sequence for the CRF: tokens, where they stand, and their tags if known."""

    tokens: list[str]
    offsets: list[tuple[int, int]]
    tags: list[str]


Document = list[tuple[int, Line]]


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


def tokenize(text: str, rule: str) -> list[tuple[int, int]]:
    """Where the tokens of a text stand.

    >>> [("Ann O'Hara's 555-0100"[s:e]) for s, e in tokenize("Ann O'Hara's 555-0100", "pieces")]
    ['Ann', "O'Hara", "'s", '555', '-', '0100']
    """
    pattern = _PIECES if rule == "pieces" else _WORDS
    return [m.span() for m in pattern.finditer(text)]


def align(text: str, tokens: Sequence[str]) -> list[tuple[int, int]] | None:
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


def cut_record(record: Record, tokenizer: str) -> list[Line]:
    """A record cut for tagging, by its own tokens where the tagger learned from such."""
    offsets = None
    if tokenizer == "given" and record.tokens is not None:
        offsets = align(record.text, record.tokens)
    if offsets is None:
        offsets = tokenize(record.text, tokenizer)
        tokens = [record.text[s:e] for s, e in offsets]
        return _cut(tokens, offsets, [], record.text)
    return _cut(list(record.tokens or ()), offsets, [])


def _cut(
    tokens: list[str], offsets: list[tuple[int, int]], tags: list[str], text: str | None = None
) -> list[Line]:
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
            lines.append(Line(tokens[part], offsets[part], tags[part]))
            first = i
    return lines


def documents_of(records: Iterable[tuple[int, str | None, list[Line]]]) -> list[Document]:
    """Lines by the user who wrote them, in order; a record without user stands alone."""
    documents: list[Document] = []
    open_: dict[str, Document] = {}
    for place, user, lines in records:
        document: Document | None = open_.get(user) if user is not None else None
        if document is None or len(document) + len(lines) > _LINES_PER_DOCUMENT:
            document = []
            documents.append(document)
            if user is not None:
                open_[user] = document
        document.extend((place, line) for line in lines)
    return documents


# ---- how words are written

_STOPS = frozenset(".!?:")
_QUOTES = frozenset("\"'`“‘«(") | {"``", "''"}


def sentence_openings(tokens: Sequence[str]) -> list[bool]:
    """Whether each token opens a sentence, where a capital letter says little."""
    firsts: list[bool] = []
    before = True
    for token in tokens:
        firsts.append(before)
        before = token in _STOPS or (before and token in _QUOTES)
    return firsts


def case_of(word: str) -> str:
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


# ---- marks


def mention_runs(tags: Sequence[str]) -> Iterable[tuple[int, int, str]]:
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


def position_in(i: int, first: int, last: int) -> str:
    """Where a token stands in its mention: S(ingle), B(egin), I(nside) or E(nd)."""
    if last - first == 1:
        return "S"
    return "B" if i == first else "E" if i == last - 1 else "I"


def mentions_by_kind(documents: Iterable[Document]) -> dict[str, int]:
    """How many mentions of each kind the tags of these documents open."""
    kinds = Counter(
        tag[2:]
        for document in documents
        for _, line in document
        for tag in line.tags
        if tag[0] == "B"
    )
    return dict(sorted(kinds.items()))


class Gold:
    """The marked records of a corpus as tagged lines, and what was met on the way."""

    def __init__(self, corpus: Corpus) -> None:
        self.records: list[tuple[int, Record]] = []
        self.lines: dict[int, list[Line]] = {}
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

    def _from_tags(self, number: int, record: Record) -> list[Line]:
        tokens = list(record.tokens or ())
        tags, given = ["O"] * len(tokens), [tag or "?" for tag in record.tags or ()]
        for first, last, name in tag_pieces(given, self._where(number)):
            kind = self._kind(name, number)
            tags[first : last + 1] = [f"B-{kind}", *[f"I-{kind}"] * (last - first)]
        return _cut(tokens, align(record.text, tokens) or [(0, 0)] * len(tokens), tags)

    def _from_spans(self, number: int, record: Record) -> list[Line]:
        offsets = tokenize(record.text, "pieces")
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

    def _where(self, number: int) -> str:
        return f"{self._corpus}, record {number + 1},"

    def _kind(self, name: str, number: int) -> str:
        if name not in self.names:
            self.names[name] = kind_in(name, self._where(number))
        return self.names[name]
