"""The papers' preprocessing: what words become, and that everything stays in step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.corpora.customersim import generate
from tacit.corpora.preprocessing import Leak, preprocess
from tacit.corpus import Corpus, Record, Span
from tacit.errors import DataError, UsageError


def corpus_of(*texts: str, **columns: object) -> Corpus:
    return Corpus.from_records(
        {"id": str(n), "user": f"u{n}", "text": text, **columns} for n, text in enumerate(texts)
    )


CASES = [
    ({}, "It's A test, isn't it?", "it's a test isn't it"),
    ({"lower": False}, "It's A test.", "It's A test"),
    ({"punctuation": True}, "Well (3.5%)...", "well ( 3.5 % ) . . ."),
    ({}, "A <unk> word @-@ here", "a <unk> word here"),
    ({}, "SYS: Hello\nUSR: Hi!", "sys hello usr hi"),
    ({}, "mail ann@example.org, call 555-0100.", "mail ann@example.org call 555-0100"),
    ({}, "?! ...", ""),
    ({}, "ÉTÉ – Straße", "été straße"),
]


@pytest.mark.parametrize(("options", "text", "wanted"), CASES)
def test_words_become(options, text, wanted):
    new, _ = preprocess(corpus_of(text), min_count=1, **options)
    assert new.column("text").to_pylist() == [wanted]


def test_rare_words_are_replaced():
    corpus = corpus_of("a a a b", "B c <unk>", "b")
    new, leak = preprocess(corpus)
    assert new.column("text").to_pylist() == ["a a a b", "b <unk> <unk>", "b"]
    assert leak == Leak("3 records", "seen at least 3 times", 3, 2, 1)


def test_the_most_frequent_are_kept_and_ties_go_by_the_alphabet():
    new, leak = preprocess(corpus_of("a a c b b", "d"), vocabulary_size=2)
    assert new.column("text").to_pylist() == ["a a <unk> b b", "<unk>"]
    assert (leak.words_seen, leak.words_kept) == (4, 2)
    assert "the 2 most frequent" in str(leak)


def test_words_are_counted_in_the_train_split_alone():
    corpus = Corpus.from_records(
        [
            {"id": "1", "text": "a a b", "split": "train"},
            {"id": "2", "text": "b b c", "split": "test"},
        ]
    )
    new, leak = preprocess(corpus, min_count=2)
    assert new.column("text").to_pylist() == ["a a <unk>", "<unk> <unk> <unk>"]
    assert leak.counted_from == "the 1 records of the train split"
    assert leak.words_of_one_user is None


def test_the_leak_is_a_plain_sentence_without_words_of_the_text():
    _, leak = preprocess(corpus_of("xylophone xylophone xylophone", "violin"))
    assert str(leak) == (
        "The vocabulary was counted from the private text itself (2 records) without noise: "
        "1 of 2 words are kept (seen at least 3 times), and which ones is released outside every "
        "guarantee; 1 of them were written by one user alone."
    )


def test_tokens_and_tags_stay_in_step():
    record = Record(
        id="1",
        text='" St. Ann , meets Bo',
        tokens=('"', "St.", "Ann", ",", "meets", "Bo"),
        tags=("B-PER", "I-PER", "I-PER", "O", "O", "B-PER"),
        pos=('"', "NNP", "NNP", ",", "VBZ", "NNP"),
    )
    new, _ = preprocess(Corpus.from_records([record]), min_count=1)
    (result,) = new.records()
    assert result.tokens == ("st.", "ann", "meets", "bo")
    # The quotation mark opened the entity; without it the next token does.
    assert result.tags == ("B-PER", "I-PER", "O", "B-PER")
    assert result.pos == ("NNP", "NNP", "VBZ", "NNP")
    assert result.text == "st. ann meets bo"


def test_tags_without_tokens_are_refused():
    corpus = Corpus.from_records([{"id": "1", "text": "three words here", "tags": ["O"]}])
    with pytest.raises(DataError, match="record 1, has tags but no tokens"):
        preprocess(corpus)


def test_pairs_are_treated_alike_and_counted():
    corpus = corpus_of("A b", pair="b, B!")
    new, _ = preprocess(corpus, min_count=3)
    assert new.column("pair").to_pylist() == ["b b"]
    assert new.column("text").to_pylist() == ["<unk> b"]


def test_spans_move_to_whole_words_or_go():
    text = "Call (Ann Lee's) now!"
    spans = (Span(6, 13, "PERSON"), Span(20, 21, "MISC"))
    corpus = Corpus.from_records([Record(id="1", text=text, spans=spans)])
    (record,) = preprocess(corpus, min_count=1)[0].records()
    assert record.text == "call ann lee's now"
    assert record.spans == (Span(5, 14, "PERSON"),)
    assert record.text[5:14] == "ann lee's"


def test_spans_of_generated_dialogs_say_the_same():
    corpus = generate(60, 3).only("train")
    new, _ = preprocess(corpus, min_count=1, lower=False)

    def letters(text: str) -> str:
        return "".join(c for c in text if c.isalnum())

    for old, made in zip(corpus.records(), new.records(), strict=True):
        assert old.spans is not None
        assert made.spans is not None
        for before, after in zip(old.spans, made.spans, strict=True):
            assert before.kind == after.kind
            was = letters(old.text[before.start : before.end])
            now = letters(made.text[after.start : after.end])
            assert now.startswith(was)
            assert now[len(was) :] in ("", "s")


def test_other_columns_are_kept():
    corpus = corpus_of("a b", label="x", split="train")
    new, _ = preprocess(corpus)
    for name in ("id", "user", "label", "split"):
        assert new.column(name).to_pylist() == corpus.column(name).to_pylist()


words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


@given(st.lists(words, min_size=1, max_size=12), st.booleans(), st.booleans(), st.data())
def test_odd_texts_keep_their_tokens_in_step(tokens, lower, punctuation, data):
    text = " ".join(tokens)
    starts = st.integers(0, max(0, len(text) - 1))
    spans = [
        {"start": s, "end": data.draw(st.integers(s + 1, len(text))), "kind": "MISC"}
        for s in (data.draw(st.lists(starts, max_size=3)) if text else [])
    ]
    rows = [
        {"id": "1", "text": text, "tokens": tokens, "tags": ["O"] * len(tokens), "spans": spans},
        {"id": "2", "text": text, "spans": spans},
    ]
    corpus = Corpus.from_records(rows)
    # The result is checked as a corpus is: spans in their text, as many tags as tokens.
    new, leak = preprocess(corpus, lower=lower, punctuation=punctuation, min_count=1)
    first, second = new.records()
    assert first.tokens is not None
    assert first.tags is not None
    assert len(first.tokens) == len(first.tags)
    assert first.text == " ".join(first.tokens)
    assert second.tokens is None
    assert leak.words_kept == leak.words_seen
    if punctuation and not lower:
        assert first.tokens == tuple(tokens)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_count": 3, "vocabulary_size": 9}, "give one of them"),
        ({"min_count": 0}, "min_count=0"),
        ({"vocabulary_size": -1}, "vocabulary_size=-1"),
        ({"unknown": "two words"}, "not one word"),
        ({"unknown": ""}, "not one word"),
    ],
)
def test_wrong_options_are_told(options, message):
    with pytest.raises(UsageError, match=message):
        preprocess(corpus_of("a"), **options)
