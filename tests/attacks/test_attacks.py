"""Every registered attack on a model that has learnt its text by heart."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tacit.attacks import ATTACKS, read_scores, write_scores
from tacit.attacks.attack import NEEDS, Scores, chosen, missing, require_all
from tacit.attacks.canaries import TEMPLATES, Planted
from tacit.attacks.exposure import Exposing, _all_ids, _before, _secret_ids, exposures
from tacit.attacks.target import Target, open_target
from tacit.corpus import Corpus
from tacit.errors import DataError, UsageError

ON_MODELS = [name for name in ATTACKS.names() if name != "masks"]  # which has tests of its own


@pytest.mark.parametrize("name", ATTACKS.names())
def test_every_attack_says_what_it_is_and_needs(name: str) -> None:
    attack = ATTACKS[name]
    assert attack.name == name
    assert attack.says
    assert {*attack.needs, *attack.uses} <= set(NEEDS)
    assert attack.presentation.headlines


@pytest.mark.parametrize("name", ON_MODELS)
def test_every_attack_gives_scores_that_save(name: str, target: Target, tmp_path: Path) -> None:
    attack = ATTACKS[name]
    assert not missing(attack, target.has())
    scores = attack.run(target, rng=np.random.default_rng(0))
    assert scores.attack == name
    assert scores.perplexity == target.perplexity
    assert scores.key(attack.presentation.headlines[0])
    for figure, (low, high) in scores.intervals.items():
        assert low <= scores.figures[figure] <= high, figure
    again = attack.run(target, rng=np.random.default_rng(0))
    assert again.as_dict() == scores.as_dict()
    write_scores(tmp_path / "attacks.json", [scores])
    write_scores(tmp_path / "attacks.json", [replace(scores, attack="other")])
    assert [s.attack for s in read_scores(tmp_path / "attacks.json")] == [name, "other"]
    text = (tmp_path / "attacks.json").read_text()
    assert target.planted is not None
    for canary in target.planted.canaries:
        assert canary.secret not in text


def test_repeated_canaries_are_exposed_and_controls_are_not(target: Target) -> None:
    scores = ATTACKS["exposure"].run(target, rng=np.random.default_rng(0))
    bits = {row["repetitions"]: row["mean_bits"] for row in scores.rows}
    assert bits[20] > 11
    assert bits[0] < 5
    assert bits[20] <= scores.figures["most_possible_bits"]
    assert "exact" in scores.notes[0]


def test_sampling_agrees_with_enumeration(target: Target, plan: Planted) -> None:
    """In the middle of the distribution, where nothing is extrapolated."""
    exact = exposures(target.reader, plan, rng=np.random.default_rng(0))
    drawn = exposures(target.reader, plan, enumerated=0, drawn=4000, rng=np.random.default_rng(0))
    assert drawn.fit is not None
    for canary, one, other in zip(plan.canaries, exact.bits, drawn.bits, strict=True):
        if not canary.planted:
            assert one == pytest.approx(other, abs=1.0)
        if canary.repetitions == 20:
            assert other > 8


def test_ranks_are_those_of_sorting(target: Target, plan: Planted) -> None:
    """A space small enough to be ranked by hand."""
    template = replace(plan.template, slots=plan.template.slots[:2])
    canaries = tuple(replace(c, secret=" ".join(c.secret.split()[:2])) for c in plan.canaries[:4])
    small = replace(plan, template=template, canaries=canaries)
    found = exposures(target.reader, small, rng=np.random.default_rng(0))
    texts = [template.text(s) for s in template.all()]
    examples = replace(target.reader, task=type(target.reader.task)(end=False)).total_losses(
        Corpus.from_records({"id": str(i), "text": t} for i, t in enumerate(texts))
    )
    order = list(np.argsort(examples))
    for canary, bits in zip(canaries, found.bits, strict=True):
        rank = order.index(texts.index(template.text(canary.secret))) + 1
        assert bits == pytest.approx(np.log2(100 / rank), abs=1e-6)


def test_members_are_told_from_others(target: Target) -> None:
    scores = ATTACKS["membership"].run(target, rng=np.random.default_rng(0))
    assert scores.figures["records_auc"] > 0.8
    assert scores.intervals["records_auc"][0] > 0.6
    assert {row["of"] for row in scores.rows} == {"records", "users"}
    # Canaries are no members: repeated as they are, they would be found too easily.
    assert {row["members"] for row in scores.rows if row["of"] == "records"} == {60}


def test_a_reference_joins_in(learnt: Path) -> None:
    target = open_target(learnt / "run", reference=learnt / "run", perplexity=False)
    scores = ATTACKS["membership"].run(target, rng=np.random.default_rng(0))
    own = [row for row in scores.rows if row["by"] == "reference"]
    # A model is no reference for itself: everything ties.
    assert all(row["auc"] == pytest.approx(0.5, abs=0.02) for row in own)
    assert ATTACKS["tab"].run(target, rng=np.random.default_rng(0)).rows[-1]["tried"] > 0


def test_canaries_come_out_when_prompted(target: Target) -> None:
    scores = ATTACKS["tab"].run(target, rng=np.random.default_rng(0))
    by_count = {row["repetitions"]: row for row in scores.rows}
    assert by_count[0]["reproduced"] == 0
    assert by_count[0]["reproduced_when_prompted"] == 0
    for row in scores.rows:  # one end for each beginning
        assert row["reproduced_when_begun"] <= row["beginnings"] <= row["tried"]


def test_the_needs_are_named_when_they_are_missing(target: Target) -> None:
    bare = Target(target.folder, target.reader)
    with pytest.raises(DataError, match="tacit canaries plant"):
        require_all(ATTACKS["exposure"], bare.has())
    with pytest.raises(DataError, match="--corpus"):
        require_all(ATTACKS["membership"], bare.has())


def test_unknown_attacks_and_taken_names_are_refused() -> None:
    with pytest.raises(UsageError, match="exposure"):
        chosen("telepathy")
    with pytest.raises(UsageError, match="names no attack"):
        chosen(" , ")
    with pytest.raises(UsageError, match="there already"):
        ATTACKS.add("exposure", Exposing())


def test_scores_hold_what_is_not_finite_as_null() -> None:
    made = Scores("x", {"a": float("nan")}).as_dict()
    assert made["figures"]["a"] is None


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a folder"):
        open_target(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no trained model"):
        open_target(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(DataError, match="no weights"):
        open_target(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(DataError, match="pickled weights are never loaded"):
        open_target(tmp_path)


@pytest.mark.parametrize("name", ["digits", "spaced-digits", "name"])
def test_the_quick_way_to_all_tokens_is_the_slow_one(target: Target, name: str) -> None:
    """Words read one by one, where that is allowed, give the tokens of the whole text."""
    template = replace(TEMPLATES[name], slots=tuple(s[:6] for s in TEMPLATES[name].slots[:3]))
    before = _before(target.reader, template)
    quick = _all_ids(target.reader, template, before)
    slow = _secret_ids(target.reader, template, template.all(), before)
    np.testing.assert_array_equal(quick, slow)
