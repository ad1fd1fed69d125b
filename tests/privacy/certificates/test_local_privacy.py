"""What the certificate of a sanitized corpus says, against figures that are computed here."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.errors import DataError
from tacit.privacy.certificates.local_privacy import LocalCertificate, pages, read_local
from tacit.privacy.certificates.local_wording import epsilon_0
from tacit.privacy.events import SanitizedText
from tacit.sanitization import Recipe, Sanitizer, choose_sensitive
from tacit.sanitization.certification import Certified, distances
from tacit.sanitization.embeddings import Embedding


def embedding(words: int = 300) -> Embedding:
    rng = np.random.default_rng(4)
    vectors = rng.standard_normal((words, 6)).astype(np.float32)
    return Embedding("made", tuple(f"w{n}" for n in range(words)), vectors)


def sanitizer(method: str = "santext", epsilon: float | None = 2.5) -> Sanitizer:
    made = embedding()
    sensitive = choose_sensitive(made, share=0.5) if method == "santext+" else None
    return Sanitizer(made, Recipe(method, epsilon), sensitive)


def certified(folder: Path, work: Sanitizer) -> LocalCertificate:
    out = folder / "out.txt"
    out.write_text("w1 w2\n")
    paper = Certified(folder, work, more={})
    paper.charge("0" * 64)
    return paper.issue(out, out.name)


def neighbours(points: np.ndarray) -> np.ndarray:
    """Distances to the others the slow way, the nearest first."""
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    return np.sort(apart, axis=1)[:, 1:]


@pytest.mark.parametrize(
    ("method", "kind"), [("santext", ""), ("fbdd", ""), ("santext+", "sensitive ")]
)
def test_the_table_is_epsilon_times_distance(tmp_path: Path, method: str, kind: str) -> None:
    work = sanitizer(method)
    points = work.embedding.vectors[work.outputs].astype(np.float64)
    near = neighbours(points)
    found = certified(tmp_path, work).reach
    assert list(found) == [
        *(f"its {n} {kind}neighbour" for n in ("1st", "10th", "100th")), f"any other {kind}word",
    ]  # fmt: skip
    for (name, reach), n in zip(found.items(), (1, 10, 100), strict=False):
        wanted = np.quantile(near[:, n - 1], [0.1, 0.5, 0.9])
        np.testing.assert_allclose(list(reach.distance.values()), wanted, rtol=1e-6, err_msg=name)
        np.testing.assert_allclose(
            [float(e) for e in reach.epsilon.values()], 2.5 * wanted, rtol=1e-6
        )
        # A text of n words that all differ: the exponents add up.
        assert reach.texts == {
            str(k): pytest.approx(k * 2.5 * wanted[1], rel=1e-6) for k in (1, 10, 50)
        }


def test_a_small_vocabulary_has_fewer_neighbours() -> None:
    little = Sanitizer(embedding(5), Recipe("santext", 1.0))
    assert list(distances(little)) == ["its 1st neighbour", "any other word"]


@pytest.mark.parametrize(
    ("mechanism", "rate", "extra"),
    [
        ("santext+", 1.0, 0.0),
        ("santext+", 0.5, math.log(2)),
        ("santext+", 0.1, math.log(10)),
        ("santext+", 0.0, math.inf),
        ("santext", None, 0.0),
        ("fbdd", None, 0.0),
    ],
)
def test_what_is_added_between_a_sensitive_and_a_plain_word(
    mechanism: Any, rate: float | None, extra: float
) -> None:
    event = SanitizedText(
        mechanism=mechanism, epsilon_per_distance=1.0, replace_plain_rate=rate, vocabulary=10,
        output_vocabulary=9, unknown="random",
    )  # fmt: skip
    assert epsilon_0(event) == pytest.approx(extra)


def test_twins_are_reported(tmp_path: Path) -> None:
    made = embedding(20)
    made.vectors[7] = made.vectors[3]
    found = certified(tmp_path, Sanitizer(made, Recipe("santext", 1.0)))
    assert found.context["words with the same vector as another"] == 1
    assert "words with the same vector as another: 1" in pages(found)["certificate.md"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sentence", "All is well.\nSigned, somebody"),
        ("assumptions", ["None.\n- Nothing is assumed."]),
        ("context", {"embeddings": {"name": "a\nb"}}),
        ("reach", {"any\nword": {}}),
    ],
)
def test_a_line_break_inside_a_value_is_refused(tmp_path: Path, field: str, value: object) -> None:
    fields = json.loads(certified(tmp_path, sanitizer()).to_json())
    path = tmp_path / "certificate.json"
    assert read_local(path).to_json() == path.read_text()
    path.write_text(json.dumps({**fields, field: value}))
    with pytest.raises(DataError, match="control characters"):
        read_local(path)
