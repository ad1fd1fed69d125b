"""Tokenizers: the same from the same text, whole through a folder, and honest about leaks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from tacit.corpora.preprocessing import Leak
from tacit.corpus import Corpus
from tacit.errors import DataError, UsageError
from tacit.training.models import networks, tokens

TEXTS = [
    "the old house by the river",
    "the river by the old mill",
    "a house, a mill: 3.5 acres",
] * 4


@pytest.fixture(scope="module")
def bpe() -> PreTrainedTokenizerFast:
    return tokens.byte_level_bpe(TEXTS, size=300)


def _corpus(**columns: list[str]) -> Corpus:
    names = list(columns)
    rows = zip(*columns.values(), strict=True)
    return Corpus.from_records(
        [{"id": str(n), **dict(zip(names, row, strict=True))} for n, row in enumerate(rows)]
    )


def test_bpe_is_the_same_each_time(bpe: PreTrainedTokenizerFast) -> None:
    again = tokens.byte_level_bpe(iter(TEXTS), size=300)
    assert again.backend_tokenizer.to_str() == bpe.backend_tokenizer.to_str()
    assert len(bpe) <= 300


def test_bpe_of_our_own_text_needs_none_given() -> None:
    made = tokens.byte_level_bpe(size=600)
    assert len(made) == 600
    assert len(made("Hello, how can I help you today?")["input_ids"]) < 20


def test_special_tokens_are_there_and_differ(bpe: PreTrainedTokenizerFast) -> None:
    ids = {bpe.pad_token_id, bpe.bos_token_id, bpe.eos_token_id, bpe.unk_token_id}
    assert ids == {0, 1, 2, 3}


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30))
def test_bpe_writes_every_text(text: str) -> None:
    made = _small_bpe()
    ids = made(text, add_special_tokens=False)["input_ids"]
    if not any(mark in text for mark in tokens.SPECIAL):
        assert made.unk_token_id not in ids
        # A space before the first word is the tokenizer's own.
        assert made.decode(ids).removeprefix(" ") == text.removeprefix(" ")


_made: list[PreTrainedTokenizerFast] = []


def _small_bpe() -> PreTrainedTokenizerFast:
    if not _made:
        _made.append(tokens.byte_level_bpe(TEXTS, size=300))
    return _made[0]


def test_offsets_leave_out_the_space_before_a_word(bpe: PreTrainedTokenizerFast) -> None:
    text = "by the river"
    made = bpe(text, return_offsets_mapping=True)
    assert not any(text[a:b].startswith(" ") for a, b in made["offset_mapping"])


def test_tokenizer_goes_through_a_folder(tmp_path: Path, bpe: PreTrainedTokenizerFast) -> None:
    bpe.save_pretrained(str(tmp_path))
    back = tokens.load_tokenizer(tmp_path)
    assert back(TEXTS)["input_ids"] == bpe(TEXTS)["input_ids"]
    assert (back.pad_token_id, back.eos_token_id) == (bpe.pad_token_id, bpe.eos_token_id)


def test_words_are_the_papers_and_leak() -> None:
    corpus = _corpus(
        user=["ann", "ann", "bob"],
        text=["The Plumber's fee: 3.5!", "the plumber's <unk> fee", "the fee --"],
    )
    tokenizer, leak = tokens.word_vocabulary(corpus, min_count=2)
    words = set(tokenizer.get_vocab()) - set(tokens.SPECIAL)
    assert words == {"the", "plumber's", "fee"}
    assert leak == Leak("3 records", "seen at least 2 times", 4, 3, 1)
    assert "one user alone" in str(leak)


@pytest.mark.parametrize(
    ("options", "text", "expected"),
    [
        ({}, "The CAT, sat!", ["the", "cat", "sat"]),
        ({"lower": False}, "The CAT sat", ["<unk>", "<unk>", "sat"]),
        ({"punctuation": True}, "cat, sat", ["cat", ",", "sat"]),
        ({}, "cat <unk> dog", ["cat", "<unk>", "<unk>"]),
        ({}, "...", []),
    ],
)
def test_words_of_raw_text(options: dict[str, bool], text: str, expected: list[str]) -> None:
    tokenizer, _ = tokens.word_vocabulary(_corpus(text=["the cat , sat"]), min_count=1, **options)
    assert tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"]) == expected


def test_words_are_counted_in_the_train_split() -> None:
    corpus = _corpus(text=["one two", "three four"], split=["train", "test"])
    tokenizer, leak = tokens.word_vocabulary(corpus, size=10)
    assert set(tokenizer.get_vocab()) - set(tokens.SPECIAL) == {"one", "two"}
    assert "train split" in leak.counted_from
    assert leak.words_of_one_user is None


def test_the_most_frequent_words_with_ties_by_alphabet() -> None:
    tokenizer, _ = tokens.word_vocabulary(_corpus(text=["b a c c"]), size=2)
    assert set(tokenizer.get_vocab()) - set(tokens.SPECIAL) == {"a", "c"}


def test_word_tokenizer_goes_through_a_folder(tmp_path: Path) -> None:
    tokenizer, _ = tokens.word_vocabulary(_corpus(text=["The cat sat"]), min_count=1)
    tokenizer.save_pretrained(str(tmp_path))
    back = tokens.load_tokenizer(tmp_path)
    text = "THE cat, ran"
    assert back(text)["input_ids"] == tokenizer(text)["input_ids"]
    made = back(text, return_offsets_mapping=True)["offset_mapping"]
    assert [text[a:b] for a, b in made] == ["THE", "cat", "ran"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": 5, "min_count": 2}, "both given"),
        ({"size": 0}, "size=0"),
        ({"min_count": 0}, "min_count=0"),
    ],
)
def test_bad_word_rules_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        tokens.word_vocabulary(_corpus(text=["a"]), **options)


def test_too_small_a_bpe_is_refused() -> None:
    with pytest.raises(UsageError, match="size=100"):
        tokens.byte_level_bpe(TEXTS, size=100)


def test_a_folder_without_a_tokenizer_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        tokens.load_tokenizer(tmp_path / "no")
    with pytest.raises(DataError, match="no tokenizer"):
        tokens.load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{broken")
    with pytest.raises(DataError, match="no tokenizer"):
        tokens.load_tokenizer(tmp_path)


def test_a_new_model_begins_with_the_frequencies_of_public_text() -> None:
    texts = ["a a a b", "a b c"]
    public = Corpus.from_records({"id": str(n), "text": t} for n, t in enumerate(texts))
    tokenizer, _ = tokens.word_vocabulary(public, size=300)
    shares = tokens.frequencies(tokenizer, public)
    known = tokenizer.get_vocab()
    counted = {"a": 4.5, "b": 2.5, "c": 1.5, "</s>": 2.5, "<unk>": 0.5}
    assert shares.sum() == pytest.approx(1)
    for word, count in counted.items():
        assert shares[known[word]] / shares[known["c"]] == pytest.approx(count / 1.5)

    config = {"kind": "lstm", "embedding_range": 1e-6, "embedding_size": 8, "hidden_size": 8}
    model = networks.scratch_model(config, "next-word", tokenizer=tokenizer)
    networks.begin_with_frequencies(model, shares)
    predicted = model(torch.tensor([[known["b"], known["c"]]])).logits.softmax(-1)
    for place in predicted[0]:
        assert place.detach().numpy() == pytest.approx(shares, rel=1e-3)


def test_frequencies_need_an_output_bias() -> None:
    tokenizer = tokens.byte_level_bpe(["nothing"], 300)
    model = networks.scratch_model(
        {"kind": "gpt2", "hidden_size": 8, "layers": 1, "heads": 1},
        "next-word",
        tokenizer=tokenizer,
    )
    with pytest.raises(UsageError, match="with a bias; gpt2 has none"):
        networks.begin_with_frequencies(model, np.full(len(tokenizer), 1 / len(tokenizer)))


def test_numbers_can_be_spelled() -> None:
    text = "My ID is 341752, it's 3.5 km"
    corpus = _corpus(text=[text] * 3)
    for digits, cut in {
        False: ["my", "id", "is", "341752", ",", "it's", "3.5", "km"],
        True: [*["my", "id", "is", "3", "4", "1", "7", "5", "2", ",", "it's", "3", ".", "5", "km"]],
    }.items():
        tokenizer, _ = tokens.word_vocabulary(corpus, size=40, punctuation=True, digits=digits)
        assert tokenizer.tokenize(text) == cut
