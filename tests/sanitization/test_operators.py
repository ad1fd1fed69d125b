"""Redact, mask, pseudonym: what was found is gone, and the same gets the same."""

import pytest

from tacit.corpora import customersim
from tacit.corpus import Record
from tacit.detection import open_detectors
from tacit.detection.mentions import Mention, fold
from tacit.detection.surrogates import reserved
from tacit.errors import DataError, UsageError
from tacit.sanitization.operators import FromDetectors, FromMentions, Replacer

RECORDS = [
    Record("1", "Write to ann@example.org or ANN@example.org, not to bob@example.org."),
    Record("2", "ann@example.org again; call 555-010-9999."),
    Record("3", "Nothing here."),
]


def replaced(operator: str, **options: object) -> list[str]:
    work = Replacer(operator, FromDetectors(open_detectors("patterns")), **options)  # type: ignore[arg-type]
    return work(RECORDS)[0]


def test_redact() -> None:
    assert replaced("redact") == [
        "Write to [PII/EMAIL] or [PII/EMAIL], not to [PII/EMAIL].",
        "[PII/EMAIL] again; call [PII/PHONE].",
        "Nothing here.",
    ]


def test_mask_keeps_the_shape() -> None:
    found = replaced("mask")
    assert [len(t) for t in found] == [len(r.text) for r in RECORDS]
    assert found[1] == "***@*******.*** again; call ***-***-****."


def test_the_same_within_a_record() -> None:
    one, two, three = replaced("pseudonym", within="record", seed=1)
    first, second, third = (w.strip(",.") for w in one.split() if "@" in w)
    assert first == second != third
    assert first not in two
    assert fold(first, "PII/EMAIL") in reserved("PII/EMAIL")
    assert three == "Nothing here."


def test_the_same_within_a_users_records_and_not_beyond() -> None:
    texts = ["Ask ann@example.org.", "ann@example.org knows.", "Is ann@example.org in?"]
    records = [Record(str(n), t, user="uuv"[n]) for n, t in enumerate(texts)]
    work = Replacer("pseudonym", FromDetectors(open_detectors("patterns")), within="user", seed=3)
    one, two, other = (next(w for w in t.split() if "@" in w).strip(".") for t in work(records)[0])
    assert one == two != other
    with pytest.raises(DataError, match="needs users"):
        replaced("pseudonym", within="user")


def test_invented_names_know_the_kind_and_not_the_length() -> None:
    """The stand-in of one word may have two: else the number of words would be told."""
    records = [Record(str(n), f"Bo{n} ran") for n in range(40)]
    marks = [Mention(r.id, 0, r.text.index(" "), "PERSON", "e", 1.0, "x") for r in records]
    texts, _ = Replacer("pseudonym", FromMentions(marks), within="corpus", seed=1)(records)
    assert all(fold(t.removesuffix(" ran"), "PERSON") in reserved("PERSON") for t in texts)
    assert {len(t.split()) for t in texts} >= {3}
    odd = [Mention("0", 0, 3, "STAR", "e", 1.0, "x")]
    with pytest.raises(DataError, match="no invented names"):
        Replacer("pseudonym", FromMentions(odd))(records)


def test_the_same_within_a_corpus() -> None:
    one, two, _ = replaced("pseudonym", within="corpus", seed=1)
    first = one.split()[2]
    assert two.split()[0] == first
    assert "555-010-9999" not in two


def test_without_a_seed_stand_ins_differ_between_runs() -> None:
    assert replaced("pseudonym", within="corpus") != replaced("pseudonym", within="corpus")


@pytest.mark.parametrize("operator", ["redact", "mask", "pseudonym"])
def test_nothing_that_was_marked_is_left(operator: str) -> None:
    corpus = customersim.generate(30, 3)
    records = list(corpus.records())
    work = Replacer(operator, FromDetectors(open_detectors("gold")), within="corpus", seed=2)
    texts, count = work(records)
    assert count == sum(len(r.spans or ()) for r in records)
    for record, text in zip(records, texts, strict=True):
        for span in record.spans or ():
            secret = record.text[span.start : span.end]
            if span.kind in ("PII/EMAIL", "PII/PHONE", "PII/ORDER"):
                assert secret not in text


def test_mentions_of_a_file_and_their_kinds() -> None:
    mentions = [
        Mention("1", 9, 24, "PII/EMAIL", "e1", 1.0, "x"),
        Mention("2", 0, 15, "PERSON", "e2", 1.0, "x"),
    ]
    texts, count = Replacer("redact", FromMentions(mentions, ["PERSON"]))(RECORDS)
    assert count == 1
    assert texts[0] == RECORDS[0].text
    assert texts[1].startswith("[PERSON] again")


def test_bad_words() -> None:
    with pytest.raises(UsageError, match="same_within=planet"):
        Replacer("redact", FromMentions([]), within="planet")  # type: ignore[arg-type]
