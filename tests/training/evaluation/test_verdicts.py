"""A verdict says what the figures say, and the worst of it first."""

import math

import pytest

from tacit.training.evaluation.verdicts import so_far, verdict, verdict_of

BESIDE = {
    "public_only_perplexity": 100.0,
    "trigram_perplexity": 60.0,
    "unigram_perplexity": 300.0,
    "uniform_perplexity": 4000.0,
}


@pytest.mark.parametrize(
    ("value", "words", "grade"),
    [
        (50.0, "Better than its public start and counted trigrams.", "good"),
        (
            80.0,
            "Worse than counted trigrams; better than its public start and counted words.",
            "warn",
        ),
        (
            100.2,
            "Worse than counted trigrams; no better than its public start; better than counted "
            "words.",
            "bad",
        ),
        (
            2154.0,
            "Worse than its public start, counted trigrams and counted words; better than "
            "guessing uniformly.",
            "bad",
        ),
        (math.inf, "Worse than its public start, counted trigrams, counted words and "
         "guessing uniformly.", "bad"),
    ],
)  # fmt: skip
def test_a_perplexity_beside_what_it_has_to_beat(value: float, words: str, grade: str) -> None:
    found = verdict({"perplexity": value, "accuracy": 0.2, **BESIDE})
    assert (found.words, found.grade) == (words, grade)
    assert found.figures.startswith("Perplexity ")


def test_figures_stand_in_the_sentence_for_those_inside_only() -> None:
    found = verdict({"perplexity": 80.0, **BESIDE})
    assert "its public start (100)" in found.figures
    assert not any(character.isdigit() for character in found.words)


def test_labels_numbers_and_tags_are_judged_by_their_own_measures() -> None:
    labels = {"error_rate": 0.75, "accuracy": 0.25, "majority_error_rate": 0.6}
    assert verdict(labels).words == "Worse than always naming the most frequent label."
    numbers = {"pearson": 0.9, "squared_error": 0.2, "constant_squared_error": 1.0}
    assert verdict(numbers).words == "Better than always naming the mean."
    tags = {"accuracy": 0.5, "majority_accuracy": 0.3, "uniform_accuracy": 0.1}
    assert verdict(tags).words == "Better than always naming the most frequent label."


def test_what_was_not_measured_or_is_no_number_is_said() -> None:
    assert verdict({}).grade == verdict_of({"training": {"records": 3}}).grade == "none"
    assert verdict({"perplexity": None, **BESIDE}).grade == "bad"
    assert verdict({"perplexity": "infinity", **BESIDE}).grade == "bad"
    assert verdict({"perplexity": 5.0}).grade == "warn"


def test_test_counts_before_validation() -> None:
    metrics = {"valid": {"perplexity": 50.0, **BESIDE}, "test": {"perplexity": 500.0, **BESIDE}}
    assert verdict_of(metrics).grade == "bad"


@pytest.mark.parametrize(
    ("loss", "began", "words"),
    [
        (6.2, None, "better than guessing uniformly (8.3)"),
        (5.0, 6.2, "better than step 1 (6.2) and guessing uniformly (8.3)"),
        (7.0, 6.2, "worse than step 1 (6.2); better than guessing uniformly (8.3)"),
        (9.0, 6.2, "worse than step 1 (6.2) and guessing uniformly (8.3)"),
        (math.nan, 6.2, "no number"),
    ],
)
def test_a_step_is_held_against_the_first_and_guessing(
    loss: float, began: float | None, words: str
) -> None:
    assert so_far(loss, began, 8.3) == words


def test_what_diverged_says_so_first() -> None:
    found = verdict_of(
        {"diverged": "Training diverged: a reason.", "valid": {"perplexity": 50.0, **BESIDE}}
    )
    assert found.words == "Training diverged. Better than its public start and counted trigrams."
    assert found.figures.startswith("Training diverged: a reason. Perplexity 50")
    assert found.grade == "bad"
