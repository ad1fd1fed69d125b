"""N-gram baselines: proper probabilities, tuned sensibly, and better with more history."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit import corpora
from tacit.corpora import customersim
from tacit.corpus import Corpus
from tacit.errors import DataError, UsageError
from tacit.training.evaluation.baselines import Ngram, baseline_perplexities, baseline_scores
from tacit.training.models.tokens import byte_level_bpe, word_vocabulary
from tacit.training.tasks.examples import IGNORED, UNKNOWN_LABEL, Examples
from tacit.training.tasks.tagging import Tagging
from tacit.training.tasks.tasks import Classification, NextWord, Regression


def examples(rows: list[list[int]]) -> Examples:
    return Examples(
        ids=[np.asarray(row, dtype=np.int32) for row in rows],
        user=np.zeros(len(rows), dtype=np.int32),
        record=np.arange(len(rows), dtype=np.int32),
        pad=0,
    )


SIZE = 5
ROWS = st.lists(st.lists(st.integers(0, SIZE - 1), max_size=6), min_size=1, max_size=8)


@given(ROWS, st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=3), st.integers(1, 3))
def test_probabilities_after_any_history_add_up_to_one(
    rows: list[list[int]], past: list[int], order: int
) -> None:
    if not any(len(row) > 1 for row in rows):
        return
    model = Ngram.fit(examples(rows), SIZE, order, rng=np.random.default_rng(0))
    chances = [model.probabilities(examples([[*past, word]]))[-1] for word in range(SIZE)]
    assert sum(chances) == pytest.approx(1)
    assert min(chances) > 0


def test_unigram_is_counting_mixed_with_the_uniform() -> None:
    rows = [[0, 1, 1, 1, 2]] * 20
    model = Ngram.fit(examples(rows), 4, 1, rng=np.random.default_rng(0))
    often, seldom, never = model.probabilities(examples([[0, 1, 2, 3]]))
    trust = 1 - 4 * never
    assert 0.8 < trust < 1
    assert often == pytest.approx(trust * 0.75 + never)
    assert seldom == pytest.approx(trust * 0.25 + never)


def test_uniform_text_has_the_perplexity_of_its_vocabulary() -> None:
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 8, size=(400, 30)).tolist()
    found = baseline_perplexities(examples(rows), examples(rows[:50]), 8, rng=rng)
    assert found["unigram"] == pytest.approx(8, rel=0.02)
    assert found["trigram"] == pytest.approx(8, rel=0.15)


def test_trigram_beats_unigram_on_generated_dialogs() -> None:
    corpus = customersim.generate(150, 5)
    tokenizer = byte_level_bpe([r.text for r in customersim.generate(50, 6).records()], size=600)
    task = NextWord()
    train = task.encode(corpus.only("train"), tokenizer)
    test = task.encode(corpus.only("test"), tokenizer)
    found = baseline_perplexities(train, test, len(tokenizer), rng=np.random.default_rng(0))
    assert found["trigram"] < found["unigram"] / 5
    assert found["unigram"] < len(tokenizer)


def test_conll_2003(data_dir: Path) -> None:
    corpus = corpora.load("conll2003", data_dir)
    tokenizer, _ = word_vocabulary(corpus, min_count=3)
    task = NextWord()
    train, test = (task.encode(corpus.only(s), tokenizer) for s in ("train", "test"))
    found = baseline_perplexities(train, test, len(tokenizer), rng=np.random.default_rng(0))
    assert found["trigram"] < 0.5 * found["unigram"]


def test_the_second_word_back_is_used() -> None:
    # What follows 3 is decided by what stood before it.
    rows = [[0, 1, 3, 1], [0, 2, 3, 2]] * 50
    rng = np.random.default_rng(0)
    two, three = (Ngram.fit(examples(rows), 4, n, rng=rng) for n in (2, 3))
    assert three.probabilities(examples([[0, 1, 3, 1]]))[-1] > 0.9
    assert two.probabilities(examples([[0, 1, 3, 1]]))[-1] < 0.6


def test_same_seed_same_numbers() -> None:
    rows = np.random.default_rng(2).integers(0, 9, size=(60, 12)).tolist()
    made = [
        baseline_perplexities(examples(rows), examples(rows), 9, rng=np.random.default_rng(7))
        for _ in range(2)
    ]
    assert made[0] == made[1]


def test_records_of_one_token_have_no_target() -> None:
    model = Ngram.fit(examples([[1], [], [1, 2]]), 3, 3, rng=np.random.default_rng(0))
    assert len(model.probabilities(examples([[1], []]))) == 0
    with pytest.raises(DataError, match="no token"):
        model.perplexity(examples([[1], []]))
    assert math.isfinite(model.perplexity(examples([[1, 2, 0]])))


@pytest.mark.parametrize(
    ("rows", "size", "order", "share", "said"),
    [
        ([[1, 2]], 3, 4, 0.1, "order=4"),
        ([[1, 2]], 3, 0, 0.1, "order=0"),
        ([[1, 2]], 2, 1, 0.1, "vocabulary_size=2"),
        ([[1, 2]], 3, 1, 1.0, "held_out=1.0"),
        ([[1, 2]], 3_000_000, 1, 0.1, "too large"),
    ],
)
def test_bad_arguments_are_refused(
    rows: list[list[int]], size: int, order: int, share: float, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        Ngram.fit(examples(rows), size, order, held_out=share, rng=np.random.default_rng(0))


def test_nothing_to_count_is_refused() -> None:
    with pytest.raises(DataError, match="no token"):
        Ngram.fit(examples([[1]]), 2, 1, rng=np.random.default_rng(0))


def labelled(labels: list[int]) -> Examples:
    made = examples([[0, 1]] * len(labels))
    return dataclasses.replace(made, labels=np.asarray(labels))


def test_guesses_for_labels_count_training_labels_and_score_test_ones() -> None:
    task = Classification(("a", "b", "c"))
    train, test = labelled([1, 1, 2, 0]), labelled([1, 2, 2, UNKNOWN_LABEL, IGNORED])
    found = baseline_scores(task, train, test, 9)
    assert found["majority_error_rate"] == pytest.approx(3 / 4)
    assert found["uniform_error_rate"] == pytest.approx(1 - 3 / 4 / 3)
    assert baseline_scores(task, None, test, 9).keys() == {"uniform_error_rate"}
    tags = [np.array([1, IGNORED]), np.array([1, 0])]
    tagged = dataclasses.replace(examples([[0, 1]] * 2), labels=tags)
    found = baseline_scores(Tagging(("a", "b")), tagged, tagged, 9)
    assert found == {
        "uniform_accuracy": pytest.approx(0.5),
        "majority_accuracy": pytest.approx(2 / 3),
    }


def test_the_mean_of_a_regression_is_on_its_labels_scale() -> None:
    task = Regression(0, 5)
    train, test = labelled([0, 1]), labelled([0, 1])
    assert baseline_scores(task, train, test, 9) == {"constant_squared_error": pytest.approx(6.25)}


def test_bits_of_a_character_do_not_depend_on_the_tokenizer() -> None:
    # A uniform model of bytes, and one of pairs of bytes, over text of as many characters.
    one = dataclasses.replace(examples([[0] * 9]), characters=np.array([8]))
    two = dataclasses.replace(examples([[0] * 5]), characters=np.array([8]))
    task = NextWord()
    bits = [
        baseline_scores(task, None, made, size)["uniform_bits_per_character"]
        for made, size in ((one, 4), (two, 16))
    ]
    assert bits == [pytest.approx(2), pytest.approx(2)]


def test_characters_are_those_of_the_predicted_tokens() -> None:
    tokenizer = byte_level_bpe(None, 300)
    corpus = Corpus.from_records([{"id": "1", "text": "hello there"}, {"id": "2", "text": ""}])
    whole = NextWord().encode(corpus, tokenizer, context=64)
    assert whole.characters is not None
    assert whole.characters.tolist() == [11, 0]
    parts = NextWord(long="split").encode(corpus, tokenizer, context=4)
    assert parts.characters is not None
    assert int(parts.characters.sum()) == 11
    cut = NextWord().encode(corpus, tokenizer, context=4)
    assert cut.characters is not None
    assert 0 < int(cut.characters[0]) < 11
