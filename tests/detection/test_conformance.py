"""What every detector must do, run over all that can be had without an option or a model."""

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.corpus import Record
from tacit.detection.detector import DETECTORS, Detector, Finding, open_detectors
from tacit.detection.kinds import known_kinds
from tacit.errors import TacitError

NAMES = sorted(DETECTORS)


@functools.cache
def opened(name: str) -> Detector:
    """A detector that opens with its bare name; others need a file or a model."""
    try:
        return DETECTORS[name].open(None)
    except TacitError as error:
        pytest.skip(str(error))


ORDINARY = [
    "",
    " ",
    "\n",
    "Write to ann@example.org or call +1 555 010 9999 by 31 December 2024.",
    "Anna Schmidt of Hamburg has type 2 diabetes; order ORD-4829-1137, card 4111 1111 1111 1111.",
    "My SSN is 536-90-4399 and the IBAN is DE89 3704 0044 0532 0130 00.",
    "ALL IN CAPITALS FROM LONDON AT 10:30",
    "مرحبا ٠١٢٣٤٥٦٧٨٩ بالعالم",
    "שלום 2024-12-31",
    "東京は３月",
    "👩‍👩‍👧 +44 20 7946 0958 👍🏽",
    "e\u0301 a\u0308 Sa\u0303o Paulo",
    "İstanbul ıİ ſs K ﬁ ß",
    "\u202eabc 123\u202c",
    "a\u0000b\u0007c\u001b[31m",
    "\u200b\u200d\ufeff1\u200b2",
    "𝟙𝟚𝟛-𝟜𝟝-𝟞𝟟𝟠𝟡",
    "x" * 5000,
    "1" * 5000,
    "a@" * 2000,
    "( " * 2000 + ")",
]


def run(detector: Detector, texts: list[str]) -> list[list[Finding]]:
    return [list(f) for f in detector.find([Record(str(i), t) for i, t in enumerate(texts)])]


def examine(name: str, texts: list[str]) -> None:
    """The whole contract, on some texts."""
    results = run(opened(name), texts)
    assert len(results) == len(texts), "one list for each record"
    for text, findings in zip(texts, results, strict=True):
        for f in findings:
            assert 0 <= f.start < f.end <= len(text), "spans lie inside their text"
            assert f.kind in known_kinds(), "kinds are known"
            assert 0 <= f.score <= 1, "scores are shares"
            assert f.why.startswith(name), "why names the detector"
            quoted = text[f.start : f.end].strip()
            assert len(quoted) < 4 or quoted not in f.why, "why never quotes the text"
    assert run(opened(name), texts) == results, "the same again"
    alone = [run(opened(name), [t])[0] for t in texts]
    assert alone == results, "a record's findings do not depend on its neighbours"


def test_the_plain_ones_are_here() -> None:
    for name in ("patterns", "lists", "names", "gold"):
        DETECTORS[name].open(None)


@pytest.mark.parametrize("name", NAMES)
def test_entries_explain_themselves(name: str) -> None:
    entry = DETECTORS[name]
    assert entry.name == name == name.lower()
    assert entry.summary
    assert not entry.summary.endswith(".")


@pytest.mark.parametrize("name", NAMES)
def test_opens_by_name(name: str) -> None:
    opened(name)
    (detector,) = open_detectors(name)
    assert detector.name == name


@pytest.mark.parametrize("name", NAMES)
def test_ordinary_and_odd_texts(name: str) -> None:
    examine(name, ORDINARY)


@pytest.mark.parametrize("name", NAMES)
def test_no_records(name: str) -> None:
    assert run(opened(name), []) == []


# Pieces that detectors look for, among anything at all but surrogates.
PIECES = st.sampled_from(
    [
        *"@-() /:€%#٣İ👩\n\t\u0301\u200d\u202e",
        *("12", "555", "4111", "+1", ".com", "http://", "order", "Dec", "gout", "Crohn’s"),
    ]
)
ANYTHING = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ODD = st.lists(PIECES | ANYTHING, max_size=12).map("".join)


@functools.cache
def odd_texts() -> list[list[str]]:
    """The same for every detector, and so made once."""
    made: list[list[str]] = []
    some = given(st.lists(ODD, min_size=1, max_size=8))(lambda texts: made.append(texts))
    settings(max_examples=500, deadline=None)(some)()
    return made


@pytest.mark.parametrize("name", NAMES)
def test_thousands_of_odd_texts(name: str) -> None:
    opened(name)  # or skipped
    assert sum(map(len, odd_texts())) > 1000
    for texts in odd_texts():
        examine(name, texts)
