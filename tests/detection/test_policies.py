"""Policies: what each marks, how they are named, and what is refused with one sentence."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.corpus import Corpus, Record
from tacit.detection.policies import (
    Digits,
    Missing,
    contextual_spans,
    mark,
    mask_of,
    open_policy,
    sentences,
    spans_of,
)
from tacit.errors import DataError, MissingExtra, TacitError, UsageError


def marked(policy: str, text: str) -> list[str]:
    record = Record("r", text)
    return [text[a:b] for a, b in spans_of(open_policy(policy)(record))]


@pytest.mark.parametrize(
    ("policy", "text", "found"),
    [
        ("digits", "call 555-0199 at 7", ["555", "0199", "7"]),
        ("digits", "none at all", []),
        ("digits", "", []),
        ("digits", "arabic-indic ٣٤", ["٣٤"]),
        ("patterns", "write to ann@example.org now", ["ann@example.org"]),
        ("digits+patterns", "7 to ann@example.org", ["7", "ann@example.org"]),
        ("sentences(digits)", "Hello. It costs 3.50 now. Bye.", [" It costs 3.50 now."]),
        ("sentences(digits)", "no 1\nyes\n2", ["no 1\n", "2"]),
        ("missing(0, digits)", "1 and 2", ["1", "2"]),
        ("missing(1, digits)", "1 and 2", []),
        ("missing(0.0, sentences(digits))", "One. Or 2.", [" Or 2."]),
        (" digits + digits ", "a 1", ["1"]),
        (r"regex=[A-Z]{2}-\d+", "AB-12 and cd-3", ["AB-12"]),
        (r"regex=(a|b)+\(", "abba( a", ["abba("]),
        (r"regex=x*", "a xx b", ["xx"]),
        (r"digits + regex=b+(?=c)|d", "bbc 1 d b", ["bb", "1", "d"]),
        (r"sentences(regex=\bsecret\b)", "One. A secret. Two.", [" A secret."]),
        ("patterns=email", "ann@example.org 12/05/2020", ["ann@example.org"]),
        ("patterns=email+ip", "ann@example.org at 10.1.2.3", ["ann@example.org", "10.1.2.3"]),
        ("patterns=email+digits", "ann@example.org 7", ["ann@example.org", "7"]),
        ("contextual", "Ask her whether Maria Lopez came.", ["her", "Maria Lopez"]),
    ],
)
def test_what_is_marked(policy: str, text: str, found: list[str]) -> None:
    assert marked(policy, text) == found


@pytest.mark.parametrize(
    "policy",
    [
        "", "digit", "digits+", "+digits", "sentences(digits", "digits)", "sentences()",
        "missing(2, digits)", "missing(x, digits)", "missing(0.1)", "no.such:function", "os:sep",
        "contextual=no_such_model", "lists=/no/such/file", "regex=(", "regex=*", "patterns=name",
        "digits+regex=[", "missing(0.1, regex=()",
        "sentences(" * 12 + "digits" + ")" * 12,
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_sentence(policy: str) -> None:
    with pytest.raises(TacitError) as refused:
        open_policy(policy)
    assert "\n" not in str(refused.value)


def test_a_model_without_a_parser_is_refused(tmp_path: Path) -> None:
    spacy = pytest.importorskip("spacy")
    spacy.blank("en").to_disk(tmp_path / "blank")
    with pytest.raises(MissingExtra, match="lacks a parser and parts of speech and entities"):
        open_policy(f"contextual={tmp_path / 'blank'}")


def test_contextual_marks_entities_subjects_objects_names_and_pronouns() -> None:
    """By a parse made by hand: no model is needed to say what is done with one."""
    tokens = pytest.importorskip("spacy.tokens")
    vocab = pytest.importorskip("spacy.vocab").Vocab()
    doc = tokens.Doc(
        vocab,
        words=["Dogs", "quickly", "met", "her", "in", "Paris", "on", "blue", "Monday"],
        pos=["NOUN", "ADV", "VERB", "PRON", "ADP", "PROPN", "ADP", "ADJ", "NOUN"],
        deps=["nsubj", "advmod", "ROOT", "dobj", "prep", "pobj", "prep", "amod", "pobj"],
        heads=[2, 2, 2, 2, 2, 4, 2, 8, 6],
        ents=["O", "O", "O", "O", "O", "B-GPE", "O", "B-DATE", "I-DATE"],
    )
    mask = mask_of(contextual_spans(doc), len(doc.text))
    assert [doc.text[a:b] for a, b in spans_of(mask)] == ["Dogs", "her", "Paris", "blue Monday"]


PARSED: list[tuple[list[str], list[str], list[str], list[int], list[str]]] = [
    (
        ["Dogs", "often", "met", "her", "in", "Paris"],
        ["NOUN", "ADV", "VERB", "PRON", "ADP", "PROPN"],
        ["nsubj", "advmod", "ROOT", "obj", "case", "nmod"],
        [2, 2, 2, 2, 5, 2],
        ["O", "O", "O", "O", "O", "B-GPE"],
    ),
    (
        ["Snow", "slowly", "covered", "the", "old", "roofs"],
        ["NOUN", "ADV", "VERB", "DET", "ADJ", "NOUN"],
        ["nsubj", "advmod", "ROOT", "det", "amod", "obj"],
        [2, 2, 2, 5, 5, 2],
        ["O"] * 6,
    ),
]


def test_a_trained_pipeline_parses_and_its_parse_decides(tmp_path: Path) -> None:
    """A real parser, however small: two sentences, learnt by heart."""
    spacy = pytest.importorskip("spacy")
    training = pytest.importorskip("spacy.training")
    spacy.util.fix_random_seed(2)
    nlp = spacy.blank("en")
    for pipe, config in {"morphologizer": {}, "parser": {"min_action_freq": 1}, "ner": {}}.items():
        nlp.add_pipe(pipe, config=config)
    examples = []
    for words, pos, deps, heads, ents in PARSED:
        doc = spacy.tokens.Doc(nlp.vocab, words, pos=pos, deps=deps, heads=heads, ents=ents)
        examples.append(training.Example(nlp.make_doc(doc.text), doc))
    nlp.initialize(lambda: examples)
    for _ in range(40):
        nlp.update(examples)
    nlp.to_disk(tmp_path / "pipeline")
    policy = open_policy(f"contextual={tmp_path / 'pipeline'}")
    for text, wanted in (
        ("Dogs often met her in Paris", ["Dogs", "her", "Paris"]),
        ("Snow slowly covered the old roofs", ["Snow", "roofs"]),
    ):
        marked = spans_of(policy(Record("r", text)))
        assert [text[a:b] for a, b in marked] == wanted


OWN = """
def vowels(record):
    return [(i, i + 1) for i, c in enumerate(record.text) if c in "aeiou"]

def everything(record):
    return [True] * len(record.text)

def outside(record):
    return [(0, len(record.text) + 1)]

def fails(record):
    raise ValueError(record.text)

def short(record):
    return [True]
"""


def test_a_function_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_policies.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    assert marked("my_own_policies:vowels", "tacit") == ["a", "i"]
    assert marked("my_own_policies:everything+digits", "tacit") == ["tacit"]
    for name in ("outside", "fails", "short"):
        with pytest.raises(DataError) as refused:
            marked(f"my_own_policies:{name}", "Zanzibar")
        assert "Zanzibar" not in str(refused.value)
    with pytest.raises(UsageError):
        open_policy("my_own_policies:nothing")


@given(st.lists(st.booleans(), max_size=30))
def test_spans_and_masks_are_the_same(marks: list[bool]) -> None:
    mask = np.array(marks, dtype=bool)
    assert (mask_of(spans_of(mask), len(mask)) == mask).all()


@given(st.text(alphabet="ab. !?\n1)", max_size=40))
def test_sentences_cover_a_text_once(text: str) -> None:
    found = sentences(text)
    assert "".join(text[a:b] for a, b in found) == text
    mask = open_policy("sentences(digits)")(Record("r", text))
    assert (mask >= Digits()(Record("r", text))).all()


def test_an_imperfect_policy_misses_what_it_says_and_always_the_same() -> None:
    records = [Record(str(n), "1 2 3 4 5 6 7 8 9 0") for n in range(300)]
    policy = Missing(0.2, Digits())
    kept = sum(int(mask.sum()) for mask in policy.masks(records))
    assert kept / 3000 == pytest.approx(0.8, abs=0.03)
    assert all(
        (policy(r) == mask).all() for r, mask in zip(records, policy.masks(records), strict=True)
    )
    # By place, not by text: another secret of the same length is missed alike.
    other = Record("7", "9 9 9 9 9 9 9 9 9 9")
    assert (policy(other) == policy(records[7])).all()
    assert (Missing(0.2, Digits(), seed=1)(other) != policy(other)).any()


def test_a_corpus_is_marked_record_by_record() -> None:
    corpus = Corpus.from_records([{"id": "a", "text": "x1"}, {"id": "b", "text": "22"}])
    assert dict(mark(corpus, open_policy("digits"))) == {"a": [(1, 2)], "b": [(0, 2)]}
