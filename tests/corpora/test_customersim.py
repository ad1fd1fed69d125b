"""CustomerSim: exact spans, shared entities, and the same corpus for the same seed."""

import re
from collections import Counter, defaultdict
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.corpora.agendas import FILLERS, SLOT_KINDS, agendas
from tacit.corpora.customersim import generate, stream
from tacit.corpus import Corpus
from tacit.detection.kinds import known_kinds
from tacit.errors import UsageError

SHAPES = {
    "PERSON": r"[A-Z][\w.' -]+",
    "PII/ADDRESS": r"\d+ [\w .'-]+, [\w .'-]+, [A-Z]{2} \d{5}",
    "PII/PHONE": r"\(?\d{3}\)?-?\d{3}-?\d{4}",
    "PII/EMAIL": r"[\w.]+@[\w.]*example\.(com|org|net)",
    "PII/ORDER": r"ORD-\d{4}-\d{4}",
    "PII/TRACKING": r"TRK(-[A-Z0-9]{4}){3}|[A-Z]{2}\d{9}US|[A-Z0-9]{10}",
    "ORG": r"[A-Z][\w,' -]+",
    "GPE": r"[A-Z][\w ']+",
    "PRODUCT": r"[A-Z][a-z]+ [a-z ]+",
    "DATE": r"[\w/, ]+",
}


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return generate(1500, 11)


@pytest.fixture(scope="module")
def reach(corpus: Corpus) -> dict[tuple[str, str], set[str]]:
    """The users whose dialogs name each entity."""
    users = defaultdict(set)
    for record in corpus.records():
        for span in record.spans or ():
            users[span.kind, record.text[span.start : span.end]].add(str(record.user))
    return users


def all_lines():
    for agenda in agendas():
        for exchange in agenda.exchanges:
            for lines in exchange.choices:
                yield from lines


def test_there_are_many_agendas_and_paraphrases():
    assert len(agendas()) >= 8
    for agenda in agendas():
        assert len(agenda.exchanges) >= 6
    for line in all_lines():
        assert line.speaker in ("SYS", "USR")
        assert len(line.variants) >= 2
        assert len(set(line.variants)) == len(line.variants)


def test_every_slot_has_a_kind_or_fillers():
    slots = {part.slot for line in all_lines() for v in line.variants for part in v if part.slot}
    assert slots == set(SLOT_KINDS) | set(FILLERS)
    assert set(SLOT_KINDS.values()) <= set(known_kinds())


def test_no_date_is_written_out_in_the_templates():
    words = " ".join(
        part.words.lower() for line in all_lines() for v in line.variants for part in v
    )
    days = "today|tomorrow|yesterday|tonight|(mon|tues|wednes|thurs|fri|satur|sun)day"
    months = "january|february|april|june|july|august|september|october|november|december"
    assert not re.search(rf"\b({days}|{months}|weeks?|weekend|months?|days?|years?)\b", words)
    assert not re.search(r"\d", words)


def test_every_span_looks_like_its_kind(corpus):
    kinds: Counter[str] = Counter()
    for record in corpus.records():
        end = 0
        for span in record.spans:
            assert span.start >= end
            end = span.end
            assert re.fullmatch(SHAPES[span.kind], record.text[span.start : span.end])
            kinds[span.kind] += 1
    assert set(kinds) == set(SHAPES)


def test_no_number_or_address_is_left_unmarked(corpus):
    for record in corpus.records():
        rest = list(record.text)
        for span in record.spans:
            rest[span.start : span.end] = " " * (span.end - span.start)
        assert not re.search(r"[\d@]", "".join(rest))


def test_a_dialog_is_lines_of_two_speakers(corpus):
    for record in corpus.records():
        lines = record.text.split("\n")
        assert len(lines) >= 5
        assert all(re.match(r"(SYS|USR): \S", line) for line in lines)
        speakers = "".join(line[0] for line in lines)
        assert speakers in ("SU" * len(lines))[: len(lines)]
        assert record.label in {agenda.name for agenda in agendas()}


def test_users_return_with_a_heavy_tail(corpus):
    dialogs = Counter(corpus.column("user").to_pylist())
    assert len(dialogs) == 500
    assert min(dialogs.values()) == 1
    assert max(dialogs.values()) >= 12
    assert all(re.fullmatch(r"c\d{5}", user) for user in dialogs)


def test_a_user_keeps_one_name_and_address(corpus):
    said = defaultdict(set)
    for record in corpus.records():
        found = re.search(r"My name is (.+?)\.\n", record.text)
        if found and record.text[: found.start()].endswith("USR: "):
            said[record.user].add(found.group(1))
    assert sum(len(names) for names in said.values()) == len(said) > 50


def test_entities_are_shared_but_not_all(reach):
    shares = {kind: [len(u) for (k, _), u in reach.items() if k == kind] for kind in SHAPES}
    # Households share addresses and telephones; a slip in a wrong box shares an order.
    for kind in ("PERSON", "PII/ADDRESS", "PII/PHONE", "PII/ORDER", "ORG", "GPE", "PRODUCT"):
        assert max(shares[kind]) >= 2, kind
    for kind in ("PERSON", "PII/ADDRESS", "PII/PHONE", "PII/ORDER"):
        assert min(shares[kind]) == 1, kind
    assert max(shares["PII/EMAIL"]) == 1
    # The commonest shop reaches far more users than the median one.
    shops = sorted(shares["ORG"])
    assert shops[-1] > 4 * shops[len(shops) // 2]


def test_a_gift_names_another_customer(corpus):
    names = defaultdict(set)
    for record in corpus.records():
        for match in re.finditer(
            r"USR: (?:My name is|It's|I am) ([A-Z]\S+ [^\n]+?)\.\n", record.text
        ):
            names[match.group(1)].add(record.user)
    gifts = 0
    for record in corpus.records():
        if record.label == "gift order":
            for span in record.spans:
                owner = names.get(record.text[span.start : span.end], set())
                gifts += span.kind == "PERSON" and bool(owner - {record.user})
    assert gifts > 5


def test_splits_are_by_user(corpus):
    split_of = defaultdict(set)
    for record in corpus.records():
        split_of[record.user].add(record.split)
    assert all(len(splits) == 1 for splits in split_of.values())
    counts = Counter(next(iter(splits)) for splits in split_of.values())
    assert counts == {"train": 400, "valid": 50, "test": 50}


def test_the_same_arguments_give_the_same_corpus(corpus):
    assert generate(1500, 11).digest() == corpus.digest()
    streamed = Corpus.from_records(stream(1500, 11), name="customersim")
    assert streamed.digest() == corpus.digest()


def test_another_seed_gives_other_people(corpus):
    def people(c: Corpus) -> set[str]:
        return {
            record.text[s.start : s.end]
            for record in c.records()
            for s in record.spans
            if s.kind == "PERSON" and " " in record.text[s.start : s.end]
        }

    here, there = people(corpus), people(generate(1500, 12))
    assert len(here & there) < len(here) / 10


@settings(max_examples=15)
@given(st.integers(1, 25), st.integers(0, 2**40), st.data())
def test_small_corpora_are_valid(dialogs, seed, data):
    users = data.draw(st.none() | st.integers(1, dialogs))
    small = generate(dialogs, seed, users)
    assert len(small) == dialogs
    assert len(small.users()) == (users or max(1, round(dialogs / 3)))


def test_a_stream_starts_at_once():
    assert len(list(islice(stream(3_000, 0), 3))) == 3


def test_the_documentation_shows_what_is_generated():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "corpora.md").read_text(
        encoding="utf-8"
    )
    (record,) = (r for r in generate(300, 5).records() if r.id == "d000018")
    assert f"```\n{record.text}\n```" in page
    assert f"user `{record.user}`" in page
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    for block in blocks:
        if "DATA" not in block:
            exec(block, {})
    assert len(blocks) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 0), "dialogs=0"),
        ((5, -1), "seed=-1"),
        ((5, 0, 6), "users=6 does not fit dialogs=5"),
        ((5, 0, 0), "users=0"),
    ],
)
def test_wrong_arguments_are_told_at_once(arguments, message):
    with pytest.raises(UsageError, match=message):
        stream(*arguments)
