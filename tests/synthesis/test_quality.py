"""The quality card and the audit of the text: each figure is what a loop finds, and is marked."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tacit
from tacit.attacks.canaries import TEMPLATES, beside, plant
from tacit.audits.audit import audit_run
from tacit.audits.released_text import likelihoods
from tacit.corpus import Corpus
from tacit.corpus.reading import read
from tacit.corpus.writing import write
from tacit.errors import DataError, UsageError
from tacit.synthesis.quality import (
    Texts,
    apart,
    card,
    error_rate,
    frontier,
    longest_shared,
    write_card,
)
from tacit.synthesis.space import Space, whole
from tacit.verification.runs import verify

TEXTS = ["the lamp is broken again today", "where is my parcel please", "it rained all day here"]


@pytest.fixture(scope="module")
def space() -> Space:
    return Space("wordllama", 64)


def texts_of(texts: list[str], labels: list[str], space: Space) -> Texts:
    rows = zip(texts, labels, strict=True)
    records = [{"id": str(n), "text": t, "label": label} for n, (t, label) in enumerate(rows)]
    return Texts.of(Corpus.from_records(records), space)


def test_shared_runs_are_those_that_a_loop_finds() -> None:
    rng = np.random.default_rng(1)
    some, others = (
        [" ".join(rng.choice(list("abc"), 12)) for _ in range(8)] for _ in range(2)
    )  # fmt: skip
    found = longest_shared(some, others)
    for text, longest in zip(some, found.tolist(), strict=True):
        words = text.split()
        runs = {
            size
            for size in range(1, 13)
            for at in range(13 - size)
            if any(f" {' '.join(words[at : at + size])} " in f" {one} " for one in others)
        }
        assert longest == max(runs, default=0)


def test_the_same_sample_is_nearest_and_another_is_farther() -> None:
    rng = np.random.default_rng(2)
    one, same, other = (
        np.stack([whole(v) for v in rng.normal(loc, 1, size=(300, 8))])
        for loc in (0.0, 0.0, [2.0] + [0.0] * 7)
    )
    assert frontier(one, one) == pytest.approx(1, abs=0.02)
    assert frontier(one, other) < frontier(one, same) - 0.2


def test_a_card_finds_copies_and_says_what_is_private(space: Space, tmp_path: Path) -> None:
    private = texts_of([*TEXTS, " ".join(str(n) for n in range(20))], list("abca"), space)
    made = texts_of([TEXTS[0], " ".join(str(n) for n in range(15)), "else"], list("aba"), space)
    test = texts_of(["a parcel", "a lamp that is broken"], list("ba"), space)
    figures = {one.name: one for one in card(made, private, test, {"unselected": private})}
    assert figures["exact copies"].value == 1
    assert figures["near-copies"].value == 1
    assert figures["longest run"].value == 15
    assert figures["to private"].value <= 0.05
    assert {n for n, f in figures.items() if not f.private} == {
        "texts", "distinct", "words", "rarest label"
    }  # fmt: skip
    assert {"error, synthetic", "error, real", "error, unselected", "error, guessing"} <= set(
        figures
    )
    fields, page = write_card(list(figures.values()), tmp_path / "out.jsonl")
    assert "Keep this card inside" in page.read_text()
    assert TEXTS[0] not in fields.read_text() + page.read_text()
    assert len(json.loads(fields.read_text())["figures"]) == len(figures)


def test_a_classifier_learns_what_tells_labels_apart(space: Space) -> None:
    lamps = [f"the lamp number {n} is broken" for n in range(20)]
    parcels = [f"where is my parcel number {n}" for n in range(20)]
    right = texts_of(lamps + parcels, ["lamp"] * 20 + ["parcel"] * 20, space)
    swapped = texts_of(lamps + parcels, ["parcel"] * 20 + ["lamp"] * 20, space)
    test = texts_of(["my lamp is broken", "a parcel is lost"], ["lamp", "parcel"], space)
    assert (error_rate(right, test), error_rate(swapped, test)) == (0.0, 1.0)


def test_words_apart_are_symmetric() -> None:
    one, other = Counter("aabbbc"), Counter("abcd")
    assert apart(one, other) == pytest.approx(apart(other, one))
    assert 0 < apart(one, other) < 1


# --- the audit ----------------------------------------------------------------------------------


def planted(given: dict[str, Any], tmp_path: Path) -> Path:
    corpus, plan = plant(
        read(Path(given["corpus"])), TEMPLATES["digits"], each=100, coins=True,
        rng=np.random.default_rng(3),
    )  # fmt: skip
    path = tmp_path / "planted.jsonl"
    write(corpus, path)
    plan.write(beside(path))
    return path


def test_a_text_without_canaries_gives_none_away_and_one_with_them_does(
    given: dict[str, Any], tmp_path: Path
) -> None:
    fields = given | {"corpus": planted(given, tmp_path), "labels": None, "seed": None}
    like, plan = fields.pop("generator"), fields.pop("plan") | {"users": 140}
    done = tacit.synthesize(fields.pop("corpus"), tmp_path / "out.jsonl", like=like, plan=plan,
                            **fields)  # fmt: skip
    (audit,) = audit_run(done.folder)
    assert audit.lower < 1.5
    assert audit.verdict in ("consistent", "inconclusive")
    assert [c.what for c in verify(done.folder) if not c.ok] == []
    with pytest.raises(UsageError, match="A text is audited by the canaries"):
        audit_run(done.folder, unit="entities")
    done.file.write_text(done.file.read_text() + "\n")
    with pytest.raises(DataError, match="not the text that was certified"):
        audit_run(done.folder)
    (done.folder / "canaries.json").unlink()
    with pytest.raises(UsageError, match="no canaries of users by coins"):
        audit_run(done.folder)


def test_what_stands_in_the_text_is_found_likelier() -> None:
    inside, outside = ("My ID is 482911", "My ID is 375620")
    found = likelihoods([inside] * 5 + TEXTS * 5, {"in": inside, "out": outside})
    assert found["in"] > found["out"] + 5


# --- from Python --------------------------------------------------------------------------------


def test_a_corpus_as_an_object(given: dict[str, Any], tmp_path: Path) -> None:
    corpus = read(Path(given["corpus"]))
    to = tmp_path / "out.jsonl"
    done = tacit.synthesize(
        corpus, to, like=given["generator"], plan=given["plan"], texts=6, histogram=False
    )
    assert done.certificate.phases == {"votes 1": 1}
    assert {"to private", "clusters"} <= {figure.name for figure in done.quality()}
    kept = to.with_name("out.jsonl.private.parquet")
    assert kept.exists()
    with pytest.raises(UsageError, match="exists"):
        tacit.synthesize(corpus, to, like=given["generator"], plan=given["plan"])
    other = tmp_path / "other.jsonl"
    with pytest.raises(UsageError, match="too few"):
        tacit.synthesize(corpus, other, plan=given["plan"], texts=9999)
    assert not list(tmp_path.glob("other*"))
