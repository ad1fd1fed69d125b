"""The profile is the expectation of what the paper counts."""

from pathlib import Path

import numpy as np
import pytest

from tacit.errors import UsageError
from tacit.sanitization import Recipe, Sanitizer, choose_sensitive
from tacit.sanitization import profiling as module
from tacit.sanitization.embeddings import Embedding
from tacit.sanitization.profiling import DRAWS, plot_profile, profile


def made(method: str = "santext", words: int = 40) -> Sanitizer:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((words, 5)).astype(np.float32)
    embedding = Embedding("some", tuple(f"w{n}" for n in range(words)), vectors)
    sensitive = choose_sensitive(embedding, share=0.5) if method == "santext+" else None
    epsilon = None if method == "random" else 1.0
    return Sanitizer(embedding, Recipe(method, epsilon), sensitive, seed=1)


@pytest.mark.parametrize("method", ["santext", "santext+"])
@pytest.mark.parametrize("epsilon", [0.0, 1.5, 4.0])
def test_figures_are_the_formulas(method: str, epsilon: float) -> None:
    work = made(method)
    rows = work.space.probabilities(work.outputs, epsilon)
    seen = 1 - (1 - rows) ** DRAWS
    (found,) = profile(work, [epsilon])
    np.testing.assert_allclose(found.stays, np.diag(rows), rtol=1e-9)
    np.testing.assert_allclose(found.spread, seen.sum(1), rtol=1e-7)
    np.testing.assert_allclose(found.sources, seen.sum(0), rtol=1e-7)
    np.testing.assert_allclose(found.min_entropy, -np.log(rows.max(1)), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.hartley, np.log(seen.sum(1)), rtol=1e-7)


def test_a_thousand_real_draws_agree() -> None:
    work = made()
    (found,) = profile(work, [1.0])
    word = work.embedding.words[3]
    counts = [
        len(set(work([f"r{n}"], [" ".join([word] * DRAWS)])[0][0].split())) for n in range(30)
    ]
    assert np.mean(counts) == pytest.approx(found.spread[3], rel=0.05)


def test_a_large_vocabulary_is_looked_at_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    work = made()
    (whole,) = profile(work, [1.0])
    monkeypatch.setattr(module, "ALL_UP_TO", 10)
    monkeypatch.setattr(module, "PROBES", 20)
    (part,) = profile(work, [1.0])
    assert len(part.stays) == 20
    # Each one's figures are exact all the same.
    for values in ("stays", "spread", "sources"):
        of_all = getattr(whole, values)
        assert all(np.isclose(v, of_all, rtol=1e-9).any() for v in getattr(part, values))


def test_more_epsilon_means_less_spread() -> None:
    found = profile(made(), [0.5, 1, 2, 4, 8])
    stays = [np.median(p.stays) for p in found]
    spread = [np.median(p.spread) for p in found]
    assert stays == sorted(stays)
    assert spread == sorted(spread, reverse=True)


def test_a_method_without_rows_is_refused() -> None:
    with pytest.raises(UsageError, match="goes with santext"):
        profile(made("random"), [1.0])


@pytest.mark.parametrize(("ending", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_the_figure(tmp_path: Path, ending: str, begins: bytes) -> None:
    path = tmp_path / f"profile.{ending}"
    plot_profile(profile(made(), [1, 2, 3]), path, "What epsilon does")
    assert path.read_bytes().startswith(begins)
