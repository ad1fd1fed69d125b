"""Canaries: what is planted is what the plan says, and nothing else changes."""

from pathlib import Path

import numpy as np
import pytest

from tacit.attacks.canaries import PLACINGS, TEMPLATES, beside, plant, read_planted
from tacit.corpus import Corpus
from tacit.errors import DataError, UsageError


def corpus(**more: object) -> Corpus:
    return Corpus.from_records(
        {"id": str(i), "user": f"u{i % 12}", "text": f"text {i}", **more} for i in range(40)
    )


@pytest.mark.parametrize("placing", PLACINGS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_what_is_planted_is_what_the_plan_says(placing: str, template: str, tmp_path: Path) -> None:
    before = corpus()
    after, plan = plant(
        before, TEMPLATES[template], repetitions=(1, 5), each=2, held_out=3,
        placing=placing, rng=np.random.default_rng(0),  # type: ignore[arg-type]
    )  # fmt: skip
    assert len(after) == 40 + 2 * (1 + 5)
    texts = dict(zip(after.column("id").to_pylist(), after.column("text").to_pylist(), strict=True))
    users = dict(zip(after.column("id").to_pylist(), after.column("user").to_pylist(), strict=True))
    for canary in plan.canaries:
        same = [i for i, text in texts.items() if text == plan.text(canary)]
        assert sorted(same) == sorted(canary.records)
        assert len(same) == (canary.repetitions if canary.planted else 0)
        writers = {users[i] for i in same}
        assert writers == set(canary.users)
        if canary.planted:
            assert len(writers) == (canary.repetitions if placing in ("users", "entity") else 1)
    kept = [r.text for r in after.records() if not r.id.startswith("canary")]
    assert kept == before.column("text").to_pylist()
    plan.write(tmp_path / "plan.json")
    assert read_planted(tmp_path / "plan.json") == plan


def test_shared_entities_are_marked() -> None:
    after, plan = plant(
        corpus(), TEMPLATES["name"], repetitions=(3,), each=1, held_out=0, placing="entity",
        rng=np.random.default_rng(0),
    )  # fmt: skip
    marked = [r for r in after.records() if r.spans]
    assert {r.text[s.start : s.end] for r in marked for s in r.spans or ()} == {
        plan.canaries[0].secret
    }
    assert len({r.user for r in marked}) == 3


def test_coins_are_fair_and_leave_a_place_empty() -> None:
    _, plan = plant(
        corpus(), TEMPLATES["digits"], repetitions=(1,), each=200, held_out=0, coins=True,
        rng=np.random.default_rng(0),
    )  # fmt: skip
    assert plan.coins
    assert 70 < len(plan.inside()) < 130
    assert all(c.repetitions == 1 for c in plan.canaries)


def test_canaries_join_the_training_split() -> None:
    both = Corpus.from_records(
        {"id": str(i), "user": "u", "text": "t", "split": "train" if i else "test"}
        for i in range(4)
    )
    after, _ = plant(both, TEMPLATES["digits"], each=1, rng=np.random.default_rng(0))
    assert len(after.only("test")) == 1


BAD = {
    "no repetition": ({"repetitions": ()}, "at least one"),
    "too often": ({"repetitions": (5000,)}, "1 to 1000"),
    "placing": ({"placing": "moon"}, "own-user"),
    "few users": ({"repetitions": (50,), "placing": "users"}, "as many users"),
    "no such split": ({"split": "moon"}, "no split"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_wishes_get_one_sentence(name: str) -> None:
    wishes, said = BAD[name]
    with pytest.raises((UsageError, DataError), match=said):
        plant(corpus(), TEMPLATES["digits"], rng=np.random.default_rng(0), **wishes)  # type: ignore[arg-type]


def test_planting_twice_is_refused() -> None:
    after, _ = plant(corpus(), TEMPLATES["digits"], rng=np.random.default_rng(0))
    with pytest.raises(UsageError, match="already"):
        plant(after, TEMPLATES["digits"], rng=np.random.default_rng(1))


def test_the_plan_lies_beside_the_corpus() -> None:
    assert beside(Path("a/dialogs.jsonl.gz")) == Path("a/dialogs.canaries.json")
    assert beside(Path("a/dialogs.parquet")) == Path("a/dialogs.canaries.json")
