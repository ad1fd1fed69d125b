"""Policies: what of a record is sensitive, `policy(record) -> mask`, True for sensitive.

A policy marks characters; once text is cut into tokens, a token that touches a marked character
is sensitive. Policies are named in one line:

    digits                      runs of digits
    patterns, lists=terms.txt   any detector, as `tacit detect --with` names it
    patterns=email+phone        some of its rules
    regex=ORD-[0-9]{6}          your own regular expression; it takes the rest of the line
    contextual=MODEL            entities, subjects, objects, names and pronouns of a spaCy parse
    contextual                  the same without a parse: names, capitals and pronouns
    sentences(digits)           every whole sentence in which another policy marks something
    missing(0.1, digits)        another policy that overlooks one span in ten, on purpose
    package.module:function     a function of your own, from a record to spans or to a mask
    digits+patterns             whatever any of them marks
"""

import hashlib
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.corpus import Corpus, Record
from tacit.detection.detector import DETECTORS, Detector, open_detectors
from tacit.errors import DataError, MissingExtra, UsageError

Mask = NDArray[np.bool_]
"""One truth value for each character of a record's text."""
Span = tuple[int, int]

_BATCH = 1024
_DEEPEST = 8


class Policy:
    """Says of every character of a record whether it is sensitive.

    `name` is how the policy is written; it holds no text. A policy says what it marks in one record
    (`_spans`), or the masks of many at once.
    """

    name: str

    def __call__(self, record: Record) -> Mask:
        """The mask of one record."""
        return next(iter(self.masks([record])))

    def masks(self, records: Sequence[Record]) -> Iterable[Mask]:
        """The masks of many, in order."""
        return (mask_of(self._spans(record), len(record.text)) for record in records)

    def _spans(self, record: Record) -> Iterable[Span]:
        raise NotImplementedError


class _Changing(Policy):
    """Changes what another policy marks."""

    inner: Policy

    def masks(self, records: Sequence[Record]) -> Iterator[Mask]:
        """The masks of many, in order."""
        for record, mask in zip(records, self.inner.masks(records), strict=True):
            yield mask_of(self._changed(record, mask), len(mask))

    def _changed(self, record: Record, mask: Mask) -> Iterable[Span]:
        raise NotImplementedError


def spans_of(mask: Mask) -> list[Span]:
    """The marked stretches, in order.

    >>> spans_of(np.array([False, True, True, False, True]))
    [(1, 3), (4, 5)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]


def mask_of(spans: Iterable[Span], length: int) -> Mask:
    """A mask in which these stretches are marked."""
    mask = np.zeros(length, dtype=bool)
    for start, end in spans:
        mask[start:end] = True
    return mask


def mark(corpus: Corpus, policy: Policy) -> Iterator[tuple[str, list[Span]]]:
    """The id of every record of a corpus, with what the policy marks in it."""
    for batch in corpus.batches(_BATCH):
        for record, mask in zip(batch, policy.masks(batch), strict=True):
            yield record.id, spans_of(mask)


_DIGITS = re.compile(r"\d+")


class Digits(Policy):
    """Every digit.

    Source: Shi et al. 2022, the policy for WikiText-2.
    """

    name = "digits"

    def _spans(self, record: Record) -> Iterator[Span]:
        return (found.span() for found in _DIGITS.finditer(record.text))


@dataclass(frozen=True)
class Matching(Policy):
    """Whatever a regular expression of the user's matches."""

    name: str
    regex: re.Pattern[str]

    @classmethod
    def of(cls, written: str) -> "Matching":
        """The policy of an expression; one that Python cannot read is refused."""
        try:
            return cls(f"regex={written}", re.compile(written))
        except (re.error, RecursionError, OverflowError) as error:
            place = getattr(error, "pos", None)
            where = "" if place is None else f" at character {place}"
            raise UsageError(
                f"regex={_short(written)} is no regular expression{where}; write it as Python's "
                "module re does."
            ) from None

    def _spans(self, record: Record) -> Iterator[Span]:
        return (found.span() for found in self.regex.finditer(record.text))


@dataclass(frozen=True)
class Detected(Policy):
    """Whatever a detector finds."""

    name: str
    detector: Detector

    def masks(self, records: Sequence[Record]) -> Iterator[Mask]:
        """The masks of many, in order."""
        for record, found in zip(records, self.detector.find(records), strict=True):
            yield mask_of(((f.start, f.end) for f in found), len(record.text))


@dataclass(frozen=True)
class Union(Policy):
    """Whatever one of several policies marks."""

    parts: tuple[Policy, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", "+".join(part.name for part in self.parts))

    def masks(self, records: Sequence[Record]) -> Iterator[Mask]:
        """The masks of many, in order."""
        for several in zip(*(part.masks(records) for part in self.parts), strict=True):
            yield np.logical_or.reduce(several)


_END = re.compile(r"[.!?]+[\"')\]]*(?=\s)|\n")


def sentences(text: str) -> list[Span]:
    """Where sentences stand: they end at a stop before white space, or at the end of a line.

    >>> sentences("Pay 3.50 now. Thanks!")
    [(0, 13), (13, 21)]
    """
    ends = [found.end() for found in _END.finditer(text)]
    if not ends or ends[-1] < len(text):
        ends.append(len(text))
    return list(zip([0, *ends[:-1]], ends, strict=True))


@dataclass(frozen=True)
class Sentences(_Changing):
    """Every whole sentence in which another policy marks something."""

    inner: Policy

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"sentences({self.inner.name})")

    def _changed(self, record: Record, mask: Mask) -> Iterator[Span]:
        return (span for span in sentences(record.text) if mask[slice(*span)].any())


@dataclass(frozen=True)
class Missing(_Changing):
    """Another policy, of whose spans a stated share is overlooked: for studies of imperfect ones.

    Which spans are overlooked is decided by their place and the seed, never by their text, and is
    the same in every epoch: what a real policy overlooks, it overlooks always.
    """

    rate: float
    inner: Policy
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"missing({self.rate:g}, {self.inner.name})")

    def _changed(self, record: Record, mask: Mask) -> Iterator[Span]:
        for start, end in spans_of(mask):
            key = f"{self.seed}\0{start}\0{record.id}".encode("utf-8", "surrogatepass")
            drawn = int.from_bytes(hashlib.sha256(key).digest()[:7], "big") / 2**56
            if drawn >= self.rate:
                yield start, end


def overlooked(policy: Policy) -> str | None:
    """What a policy leaves out on purpose, in words; None where it is no study of that.

    >>> overlooked(open_policy("digits+missing(0.1, digits)"))
    'overlooks 10 % of what digits marks, on purpose'
    """
    match policy:
        case Missing():
            deeper = overlooked(policy.inner)
            said = (
                f"overlooks {100 * policy.rate:g} % of what {policy.inner.name} marks, on purpose"
            )
            return said if deeper is None else f"{said}; {deeper}"
        case Sentences():
            return overlooked(policy.inner)
        case Union():
            return "; ".join(filter(None, map(overlooked, policy.parts))) or None
    return None


# ---- a function of the user's


@dataclass(frozen=True)
class Own(Policy):
    """A Python function from a record to spans `(start, end)`, or to a truth value a character."""

    name: str
    function: Callable[[Record], Any]

    def _spans(self, record: Record) -> list[Span]:
        length = len(record.text)
        try:
            answer = list(self.function(record))
            if answer and all(isinstance(one, bool | np.bool_) for one in answer):
                spans = spans_of(np.asarray(answer, dtype=bool))
                fits = len(answer) == length
            else:
                spans = [(int(start), int(end)) for start, end in answer]
                fits = all(0 <= start <= end <= length for start, end in spans)
        except Exception as error:
            # Its message may quote the text; only its kind is told.
            raise DataError(
                f"record {record.id}: the policy {self.name} failed ({type(error).__name__}); it "
                "has to give spans (start, end), or one truth value for each character."
            ) from None
        if not fits:
            raise DataError(
                f"record {record.id}: the policy {self.name} marked something outside of a text "
                f"of {length} characters, or gave a mask of another length."
            )
        return spans


def _own(name: str) -> Own:
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        function = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise UsageError(
            f"policy {name} cannot be imported ({type(error).__name__}); give module:function of a "
            "module that Python finds from here."
        ) from None
    finally:
        if added:
            sys.path.remove(here)
    if not callable(function):
        raise UsageError(f"policy {name} is not a function; give module:function.")
    return Own(name, function)


# ---- what stands around entities

_SUBJECTS = {"nsubj", "nsubjpass", "nsubj:pass", "csubj", "csubjpass", "csubj:pass", "expl"}
_OBJECTS = {"dobj", "obj", "iobj", "dative", "pobj", "obl", "nmod", "oprd", "attr"}
_WORDS = {"PROPN", "PRON"}


def contextual_spans(doc: Any) -> list[Span]:
    """Entities, subjects, objects, proper nouns and pronouns of a parsed text.

    Source: Shi et al. 2022, section 6. Departs: which labels of a parse are subjects and objects
    is not printed; here the head words of all that spaCy's English labels so call, and of what
    stands for them in Universal Dependencies (where objects of prepositions are obl and nmod).
    """
    spans = [(ent.start_char, ent.end_char) for ent in doc.ents]
    for token in doc:
        if token.dep_ in _SUBJECTS | _OBJECTS or token.pos_ in _WORDS:
            spans.append((token.idx, token.idx + len(token)))
    return spans


@dataclass(frozen=True)
class Contextual(Policy):
    """Entities, and the words that sentences are about, through spaCy's parse."""

    name: str
    nlp: Any

    def _spans(self, record: Record) -> list[Span]:
        from tacit.detection.pipelines import text_pieces

        return [
            (start + offset, end + offset)
            for offset, piece in text_pieces(record.text)
            for start, end in contextual_spans(self.nlp(piece))
        ]


_PRONOUNS = """i me my mine myself you your yours yourself yourselves he him his himself she her
hers herself it its itself we us our ours ourselves they them their theirs themselves who whom whose
this that these those somebody someone anybody anyone nobody everybody everyone"""
_PRONOUN = re.compile(rf"\b(?:{'|'.join(_PRONOUNS.split())})\b", re.IGNORECASE)
_CAPITAL = re.compile(r"(?<=[\w,;:)\"'] )[A-Z]\w*")


@dataclass(frozen=True)
class Unparsed(Policy):
    """What `contextual` marks as far as it goes without a parse: nothing has to be installed.

    Names that the packaged detector finds, words with a capital inside of a sentence, and pronouns.
    Subjects and objects that are common nouns take a parse.
    """

    names: Detector
    name: str = "contextual"

    def masks(self, records: Sequence[Record]) -> Iterator[Mask]:
        """The masks of many, in order."""
        for record, found in zip(records, self.names.find(records), strict=True):
            spans = [(f.start, f.end) for f in found]
            for regex in (_CAPITAL, _PRONOUN):
                spans += [match.span() for match in regex.finditer(record.text)]
            yield mask_of(spans, len(record.text))


def _contextual(option: str | None) -> Policy:
    from tacit.detection.pipelines import load_spacy

    if option is None:
        return Unparsed(DETECTORS["names"].open(None))
    nlp = load_spacy("contextual", option)
    lacking = [
        what
        for what, makers in {
            "a parser": {"parser"},
            "parts of speech": {"tagger", "morphologizer", "attribute_ruler"},
            "entities": {"ner", "entity_ruler"},
        }.items()
        if not makers & {nlp.get_pipe_meta(pipe).factory for pipe in nlp.pipe_names}
    ]
    if lacking:
        raise MissingExtra(
            f"contextual={option} lacks {' and '.join(lacking)}; give a whole spaCy model, such "
            "as en_core_web_sm (`python -m spacy download en_core_web_sm`)."
        )
    return Contextual(f"contextual={option}", nlp)


# ---- reading a policy's name


def open_policy(written: str) -> Policy:
    """The policy that a line such as `digits+sentences(patterns)` names.

    >>> open_policy("missing(0.1, digits)").name
    'missing(0.1, digits)'
    """
    return _read(written.strip(), 0)


def _read(written: str, depth: int) -> Policy:
    if depth > _DEEPEST:
        raise UsageError(f"policy={_short(written)} is nested too deeply; name something simpler.")
    parts = [part.strip() for part in _split(written)]
    if not all(parts):
        raise UsageError(f"policy={_short(written)} names nothing; {_accepted()}")
    made = tuple(_read_one(part, depth) for part in _rules_joined(parts))
    return made[0] if len(made) == 1 else Union(made)


def _read_one(part: str, depth: int) -> Policy:
    name, bracket, rest = part.partition("(")
    if bracket and part.endswith(")") and name in ("sentences", "missing"):
        inside = rest[:-1]
        if name == "sentences":
            return Sentences(_read(inside.strip(), depth + 1))
        share, _, inner = inside.partition(",")
        try:
            rate = float(share)
        except ValueError:
            rate = -1.0
        if not 0 <= rate <= 1:
            raise UsageError(
                f"missing({_short(share)}, ...) is not a share; give a number from 0 to 1, then a "
                "policy: missing(0.1, digits)."
            )
        return Missing(rate, _read(inner.strip(), depth + 1))
    name, _, option = part.partition("=")
    if part == "digits":
        return Digits()
    if name == "regex":
        return Matching.of(option)
    if name == "contextual":
        return _contextual(option or None)
    if name in DETECTORS:
        return Detected(part, open_detectors([part])[0])
    if re.fullmatch(r"[\w.]+:\w+", part):
        return _own(part)
    raise UsageError(f"policy={_short(part)} is not known; {_accepted()}")


def _rules_joined(parts: list[str]) -> Iterator[str]:
    """The parts, with rules that follow `patterns=` put together again: they are joined by plus."""
    from tacit.detection.patterns import NAMES

    joined = ""
    for part in parts:
        if joined and part in NAMES:
            joined += f"+{part}"
            continue
        if joined:
            yield joined
        joined = part if part.startswith("patterns=") else ""
        if not joined:
            yield part
    if joined:
        yield joined


def _split(written: str) -> list[str]:
    """The parts of a line, cut at each plus sign that stands outside of brackets.

    A regular expression has brackets and plus signs of its own, so it takes all that is left.
    """
    parts, depth, start = [], 0, 0
    for place, char in enumerate(written):
        if depth == 0 and written[start:].lstrip().startswith("regex="):
            break
        depth += (char == "(") - (char == ")")
        if depth < 0:
            break
        if char == "+" and depth == 0:
            parts.append(written[start:place])
            start = place + 1
    if depth != 0:
        raise UsageError(f"policy={_short(written)}: its brackets do not match.")
    return [*parts, written[start:]]


def _accepted() -> str:
    return (
        "accepted: digits, a detector (" + ", ".join(DETECTORS) + "), regex=EXPRESSION, "
        "contextual, contextual=MODEL, sentences(POLICY), missing(RATE, POLICY), module:function, "
        "and several joined by +."
    )


def _short(written: str) -> str:
    return repr(written[:60])
