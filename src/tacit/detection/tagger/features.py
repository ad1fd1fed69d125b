"""What the tagger sees of a token: the word, its surroundings, the document, the word lists.

Source: the document-wide features follow Ratinov and Roth 2009.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tacit.detection.tagger.lexicon import Lexicon
from tacit.detection.tagger.lines import Line, case_of, position_in, sentence_openings

# Raise it whenever a feature, a token rule or a case class changes: an old tagger would then
# read its own weights wrongly.
FEATURES = 1

_TYPES_CACHED = 200_000

# ---- what depends on the word alone

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


class Types(dict[str, _Type]):
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
    case = case_of(word)
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


def _letter_shape(c: str) -> str:
    if c.isupper():
        return "X"
    if c.isdigit():
        return "d"
    return "x" if c.isalpha() else c


# ---- what the rest of the document says


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


# ---- all of it together


def document_features(
    lines: Sequence[Line],
    lexicon: Lexicon,
    cache: Types,
    hidden: frozenset[str] = frozenset(),
) -> list[list[list[str]]]:
    """The features of every token in every line of one document."""
    if not lines:
        return []
    typed = [
        [_type(t, True) if hidden and t.lower() in hidden else cache[t] for t in line.tokens]
        for line in lines
    ]
    firsts = [sentence_openings(line.tokens) for line in lines]
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
    lexicon: Lexicon,
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


def _listed(types: Sequence[_Type], lexicon: Lexicon) -> list[list[str]]:
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
            place = position_in(j, i, i + size)
            features[j] += [f"p={place}{k}{case}" for k in kinds]
            features[j].append("P=" + "+".join(kinds) + case)
        i += max(size, 1)
    return features


def _longest_phrase(
    types: Sequence[_Type], start: int, lexicon: Lexicon
) -> tuple[int, Sequence[str]]:
    room = min(lexicon.longest.get(types[start].word, 0), len(types) - start)
    for size in range(room, 0, -1):
        phrase = " ".join(t.word for t in types[start : start + size])
        kinds = lexicon.phrases.get(phrase)
        if kinds:
            return size, kinds
    return 0, ()
