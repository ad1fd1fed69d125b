"""Detector `gold`: the gold labels that a corpus brings with it, as spans or as tagged tokens.

Tags may be BIO (IOB2), IOB1, BILOU or BIOES. They are read as the CoNLL evaluation reads
them, so a piece that opens with `I-` is a piece all the same.
"""

from collections.abc import Iterator, Sequence

from tacit.corpus import Record, Span
from tacit.detection.detector import Finding
from tacit.detection.kinds import kind_in
from tacit.detection.mentions import lowered
from tacit.errors import DataError, UsageError


def gold_spans(record: Record, number: int | None = None) -> list[Span] | None:
    """The gold labels of a record, by start; None where nobody labelled the record.

    An empty list says that somebody looked and found nothing. Kinds have our names. `number`
    is the record's place in its corpus, for messages; without it the id stands there.

    >>> record = Record("1", "Anna Lee left", tokens=("Anna", "Lee", "left"),
    ...                 tags=("B-PER", "I-PER", "O"))
    >>> gold_spans(record)
    [Span(start=0, end=8, kind='PERSON')]
    """
    where = f"record {number if number is not None else record.id}"
    if record.spans is not None:
        spans = [Span(s.start, s.end, kind_in(s.kind, where)) for s in record.spans]
        for s in spans:
            if not 0 <= s.start < s.end <= len(record.text):
                raise DataError(
                    f"{where} has a span {s.start}:{s.end} in a text of {len(record.text)} "
                    "characters; a span needs 0 <= start < end <= length."
                )
        return sorted(spans, key=lambda s: (s.start, s.end, s.kind))
    if record.tags is None:
        return None
    if record.tokens is None or len(record.tokens) != len(record.tags):
        raise DataError(
            f"{where} has {len(record.tags)} tags and "
            f"{0 if record.tokens is None else len(record.tokens)} tokens; give one tag for "
            "each token."
        )
    pieces = tag_pieces(record.tags, where)
    if not pieces:
        return []
    places = token_places(record.text, record.tokens, where)
    spans = []
    for first, last, name in pieces:
        start, end = places[first][0], places[last][1]
        if start >= end:
            raise DataError(f"{where} tags token {first + 1}, which is empty; remove the token.")
        spans.append(Span(start, end, kind_in(name, where)))
    return spans


# --- tags to pieces -----------------------------------------------------------------------

# What each prefix says: whether a piece begins here for sure, and whether it ends here.
_PREFIXES = {
    "B": (True, False),
    "I": (False, False),
    "M": (False, False),
    "L": (False, True),
    "E": (False, True),
    "U": (True, True),
    "S": (True, True),
}


def tag_pieces(tags: Sequence[str], where: str = "record") -> list[tuple[int, int, str]]:
    """The pieces that tags mark: first token, last token and the kind's name as it was given.

    >>> tag_pieces(["I-PER", "I-PER", "B-PER", "O", "U-LOC"])
    [(0, 1, 'PER'), (2, 2, 'PER'), (4, 4, 'LOC')]
    """
    pieces: list[tuple[int, int, str]] = []
    first, open_kind = 0, ""
    for i, tag in enumerate(tags):
        prefix, dash, kind = tag.partition("-")
        begins, ends = _PREFIXES.get(prefix, (False, False))
        outside = tag in ("O", "")
        if not outside and (not dash or not kind or prefix not in _PREFIXES):
            raise DataError(
                f"{where} has a tag at token {i + 1} that is none of BIO, IOB, BILOU or BIOES; "
                "accepted: O, or a letter of B, I, L, E, U, S, a dash and a kind (B-PER)."
            )
        if open_kind and (outside or begins or kind != open_kind):
            pieces.append((first, i - 1, open_kind))
            open_kind = ""
        if outside:
            continue
        if not open_kind:
            first, open_kind = i, kind
        if ends:
            pieces.append((first, i, open_kind))
            open_kind = ""
    if open_kind:
        pieces.append((first, len(tags) - 1, open_kind))
    return pieces


# --- tokens to places ---------------------------------------------------------------------

# How treebanks write what a text has otherwise.
_WRITTEN = {
    "``": ('"', "“", "''", "„", "«"),
    "''": ('"', "”", "“", "``", "»"),
    '"': ("“", "”", "„", "``", "''", "«", "»"),
    "`": ("'", "‘"),
    "'": ("’", "‘", "`"),
    "-LRB-": ("(",),
    "-RRB-": (")",),
    "-LSB-": ("[",),
    "-RSB-": ("]",),
    "-LCB-": ("{",),
    "-RCB-": ("}",),
    "...": ("…",),
    "--": ("—", "–"),
}


def token_places(text: str, tokens: Sequence[str], where: str = "record") -> list[tuple[int, int]]:
    """Where each token stands in the text, which may be the tokens joined or the raw text.

    Between two tokens only white space and signs may be passed over, never a letter or digit:
    a token that is not where it should be is an error, not a guess.

    >>> token_places("Don't (go)", ["Do", "n't", "-LRB-", "go", "-RRB-"])
    [(0, 2), (2, 5), (6, 7), (7, 9), (9, 10)]
    """
    if text == " ".join(tokens):
        places, at = [], 0
        for token in tokens:
            places.append((at, at + len(token)))
            at += len(token) + 1
        return places
    return _search_places(text, tokens, where)


def _search_places(text: str, tokens: Sequence[str], where: str) -> list[tuple[int, int]]:
    folded = lowered(text)
    places: list[tuple[int, int]] = []
    at = 0
    for i, token in enumerate(tokens):
        place = _place(folded, lowered(token), at) if token.strip() else (at, at)
        if place is None:
            raise DataError(
                f"{where}: token {i + 1} of {len(tokens)} is not in the text after character "
                f"{at}; give the text that the tokens were cut from, or leave the text out."
            )
        places.append(place)
        at = place[1]
    return places


def _place(text: str, token: str, at: int) -> tuple[int, int] | None:
    """The next place of a token with nothing but space and signs before it."""
    bare = token.strip()
    forms = (bare, *_WRITTEN.get(bare.upper(), ()))
    while at < len(text):
        for form in forms:
            if text.startswith(form, at):
                return at, at + len(form)
        end = _across_gaps(text, bare, at)
        if end:
            return at, end
        if text[at].isalnum():
            return None
        at += 1
    return None


def _across_gaps(text: str, token: str, at: int) -> int:
    """Where a token ends if either side has white space inside that the other lacks; else 0."""
    if text[at].isspace():
        return 0
    for char in token:
        if char.isspace():
            continue
        while at < len(text) and text[at].isspace():
            at += 1
        if at == len(text) or text[at] != char:
            return 0
        at += 1
    return at


# --- the detector -------------------------------------------------------------------------


class Gold:
    """Finds what the corpus itself marks."""

    name = "gold"
    summary = "the corpus's own gold labels: spans, or tags of tokens"
    option = ""

    @classmethod
    def open(cls, option: str | None) -> "Gold":
        """The detector; it takes no option."""
        if option is not None:
            raise UsageError(f"gold={option}: the detector `gold` takes no option.")
        return cls()

    def find(self, records: Sequence[Record]) -> Iterator[list[Finding]]:
        """The gold labels of each record; a record without any has none."""
        for record in records:
            yield [
                Finding(s.start, s.end, s.kind, 1.0, "gold label") for s in gold_spans(record) or ()
            ]
