"""Texts in, texts out: streams, unknown words, methods."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit.corpus import Corpus
from tacit.errors import UsageError
from tacit.sanitization import (
    Recipe,
    Sanitizer,
    as_it_stands,
    choose_sensitive,
    open_embeddings,
    sanitize,
    streaming,
)
from tacit.sanitization.embeddings import Embedding
from tacit.sanitization.random_streams import Streams
from tacit.sanitization.streaming import Passing
from tacit.sanitization.words import Words

WORDS = ("the", ",", "a", "good", "bad", "film", "day", "anna", "'s", "rome", "10", "don't")


def little(seed: int = 0) -> Embedding:
    rng = np.random.default_rng(seed)
    return Embedding("little", WORDS, rng.standard_normal((len(WORDS), 4)).astype(np.float32))


def made(method: str, epsilon: float | None, *, unknown: str = "random", seed: int | None = 1,
         workers: int = 1) -> Sanitizer:  # fmt: skip
    embedding = little()
    sensitive = choose_sensitive(embedding, share=0.5) if method == "santext+" else None
    recipe = Recipe(method, epsilon, None, unknown)  # type: ignore[arg-type]
    return Sanitizer(embedding, recipe, sensitive, seed=seed, workers=workers)


METHODS = [("santext", 2.0), ("santext+", 2.0), ("fbdd", 4.0), ("random", None)]
TEXTS = ["The good film, a BAD day", "anna's rome", "", "zebra 10 don't quux", "film " * 40]
NAMES = [f"r{n}" for n in range(len(TEXTS))]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The good film", ["the", "good", "film"]),
        ("A day,a film", ["a", "day", ",", "a", "film"]),
        ("Anna's", ["anna", "'s"]),
        ("anna’s", ["anna", "'s"]),
        ("Don't", ["don't"]),
        ("10", ["10"]),
        ("  rome\n\trome ", ["rome", "rome"]),
        ("good-day", ["good", None, "day"]),
        ("1,000", [None, ",", None]),
        ("", []),
    ],
)
def test_how_text_is_cut(text: str, words: list[str | None]) -> None:
    units = Words(little().places)
    places, strange = units.encode(text)
    assert [WORDS[p] if p >= 0 else None for p in places] == words
    assert len(strange) == words.count(None)
    assert units.encode(text) == (places, strange)


@pytest.mark.parametrize(("method", "epsilon"), METHODS)
def test_as_many_words_as_before(method: str, epsilon: float | None) -> None:
    work = made(method, epsilon)
    found, counted = work(NAMES, TEXTS)
    units = Words(little().places)
    assert [len(t.split()) for t in found] == [len(units.encode(t)[0]) for t in TEXTS]
    assert set(" ".join(found).split()) <= set(WORDS)
    # Unknown are zebra and quux.
    assert (counted.texts, counted.unknown) == (5, 2)


@pytest.mark.parametrize(("method", "epsilon"), METHODS)
def test_batches_order_and_workers_do_not_matter(method: str, epsilon: float | None) -> None:
    whole, _ = made(method, epsilon)(NAMES, TEXTS)
    one_by_one = [made(method, epsilon)([n], [t])[0][0] for n, t in zip(NAMES, TEXTS, strict=True)]
    assert one_by_one == whole
    backwards, _ = made(method, epsilon, workers=2)(NAMES[::-1], TEXTS[::-1])
    assert backwards[::-1] == whole


@pytest.mark.parametrize(("method", "epsilon"), METHODS)
def test_without_a_seed_nothing_repeats(method: str, epsilon: float | None) -> None:
    text = " ".join(WORDS * 20)
    draws = {made(method, epsilon, seed=None)(["r"], [text])[0][0] for _ in range(3)}
    assert len(draws) == 3


def test_two_corpora_through_one_sanitizer_share_no_chance() -> None:
    corpus = Corpus.from_records([{"id": "1", "text": " ".join(WORDS * 20)}])
    work = made("santext", 1.0, seed=None)
    one, two = (
        [b.column("text")[0].as_py() for b in Passing(work)(corpus.table.to_batches())]
        for _ in range(2)
    )
    assert one != two


def test_records_have_independent_streams() -> None:
    """Equal texts in different records come out differently, and uncorrelated."""
    streams = Streams(3)
    one, other = (streams.uniforms([name], [20_000]) for name in ("a", "b"))
    assert stats.kstest(one, "uniform").pvalue > 1e-6
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.04
    assert abs(np.corrcoef(one[:-1], one[1:])[0, 1]) < 0.04


@pytest.mark.parametrize(
    ("unknown", "expected"), [("keep", ["zebra", "quux"]), ("drop", []), ("random", None)]
)
def test_unknown_words(unknown: str, expected: list[str] | None) -> None:
    found = made("santext", 1e6, unknown=unknown)(["r"], ["zebra good quux"])[0][0].split()
    if expected is None:
        assert len(found) == 3
        assert set(found) <= set(WORDS)
    else:
        assert found == [w for w in ["zebra", "good", "quux"] if w == "good" or w in expected]


def test_text_as_it_stands_keeps_known_and_unknown_words() -> None:
    text = "zebra the good film , quux anna 's day"
    assert as_it_stands(little())(["r"], [text])[0] == [text]


def test_plain_words_stay_as_often_as_they_should() -> None:
    embedding = little()
    sensitive = choose_sensitive(embedding, share=0.5)
    work = Sanitizer(embedding, Recipe("santext+", 1.0, 0.3), sensitive, seed=5)
    plain = [w for w, s in zip(WORDS, sensitive.mask, strict=True) if not s]
    hidden = {w for w, s in zip(WORDS, sensitive.mask, strict=True) if s}
    times = 20_000
    out = work(["r"], [" ".join([plain[0]] * times)])[0][0].split()
    stayed = sum(word == plain[0] for word in out)
    assert stats.binomtest(stayed, times, 0.7).pvalue > 1e-6
    assert set(out) <= hidden | {plain[0]}
    # A sensitive word becomes sensitive words only.
    out = work(["s"], [" ".join([sorted(hidden)[0]] * 500)])[0][0].split()
    assert set(out) <= hidden


def test_draws_of_santext_plus_are_those_of_both_equations() -> None:
    """Each word's outputs against its whole row by chi-square; a false alarm in a million runs.

    The row is made here from the vectors: sensitive words are always drawn anew, plain words stay
    with probability 1 - p, and whatever is drawn is sensitive.
    """
    embedding, epsilon, rate, times = little(), 1.5, 0.3, 10_000
    sensitive = choose_sensitive(embedding, share=0.5)
    work = Sanitizer(embedding, Recipe("santext+", epsilon, rate), sensitive, seed=6)
    points = embedding.vectors.astype(np.float64)
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    weights = np.exp(-0.5 * epsilon * apart) * sensitive.mask
    rows = weights / weights.sum(1, keepdims=True)
    plain = np.flatnonzero(~sensitive.mask)
    rows[plain] *= rate
    rows[plain, plain] += 1 - rate
    for x, word in enumerate(WORDS):
        out = work([word], [" ".join([word] * times)])[0][0].split()
        counts = np.array([out.count(other) for other in WORDS])
        can = rows[x] > 0
        assert counts[~can].sum() == 0
        assert stats.chisquare(counts[can], rows[x][can] * times).pvalue > 1e-6 / len(WORDS)


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize(("method", "epsilon"), METHODS)
def test_no_two_texts_of_a_corpus_share_chance(
    method: str, epsilon: float | None, seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal texts come out differently: as text and pair, in one window and in another."""
    monkeypatch.setattr(streaming, "windows", lambda batches: batches)
    same = " ".join(WORDS * 20)
    corpus = Corpus.from_records([{"id": str(n), "text": same, "pair": same} for n in range(6)])
    batches = corpus.table.combine_chunks().to_batches(max_chunksize=2)
    passing = Passing(made(method, epsilon, seed=seed))
    full = (streaming._full(batch) for batch in batches)
    found = [b.column(c).to_pylist() for b in passing(full) for c in ("text", "pair")]
    assert len(found) == 6
    assert len({text for texts in found for text in texts}) == 12


def test_fbdd_at_a_huge_epsilon_is_the_identity() -> None:
    text = " ".join(WORDS)
    assert made("fbdd", 1e6)(["r"], [text])[0][0] == text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("santext", -1.0), "epsilon_per_distance=-1.0"),
        (("santext", float("nan")), "epsilon_per_distance=nan"),
        (("santext", float("inf")), "epsilon_per_distance=inf"),
        (("santext", None), "needs epsilon_per_distance"),
        (("random", 1.0), "takes no epsilon"),
        (("fbdd", 0.0), "above 0"),
        (("santext", 1.0, 0.3), "goes with method=santext+"),
        (("santext+", 1.0, 1.5), "replace_plain_rate=1.5"),
        (("magic", 1.0), "method 'magic'"),
        (("santext", 1.0, None, "shout"), "unknown=shout"),
    ],
)
def test_recipes_that_cannot_be(arguments: tuple, says: str) -> None:
    with pytest.raises(UsageError, match=says.replace("+", r"\+")):
        Recipe(*arguments)


@settings(max_examples=40)
@given(st.text(max_size=60))
def test_any_text_is_accepted(text: str) -> None:
    found = made("santext", 1.0)(["r"], [text])[0][0]
    assert set(found.split()) <= set(WORDS)


def test_a_corpus_with_pairs() -> None:
    corpus = Corpus.from_records(
        [
            {"id": "1", "text": "hello there", "pair": "my order", "label": "x", "user": "u"},
            {"id": "2", "text": "thanks", "label": "y", "user": "v"},
        ]
    )
    done = sanitize(corpus, Recipe("santext", 1.0), seed=1)
    rows = list(done.records())
    assert [len(r.text.split()) for r in rows] == [2, 1]
    assert len((rows[0].pair or "").split()) == 2
    assert rows[1].pair is None
    assert [r.label for r in rows] == ["x", "y"]
    assert done.columns == ("id", "user", "text", "pair", "label")


def test_the_own_vectors_are_there() -> None:
    own = open_embeddings()
    assert own.twins == 0
    assert len(own) > 4000
    assert {"order", ".", "thanks", "monday"} <= set(own.places)
