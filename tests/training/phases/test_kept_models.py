"""What a run keeps beside its model: models on the way, canaries, what was found and dropped."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from tacit.attacks.running import last_step
from tacit.attacks.target import open_target
from tacit.corpora import customersim
from tacit.corpus.writing import write
from tacit.training.phases import session
from tacit.training.phases.checkpoints import kept_models, kept_steps
from tacit.training.phases.loop import Progress
from tacit.training.settings import Run
from tacit.verification.runs import verify

BOTH = {"protect": "users+entities", "epsilon": 8, "steps": 2, "user_rate": 0.3, "clip_norm": 0.5}
TWO_PHASES: dict[str, Any] = {
    "method": "redact-then-private",
    "policy": "gold",
    "redact-then-private": {"steps": 4, "batch": 8},
    "plan": {"epsilon": 3, "steps": 4, "record_rate": 0.1, "noise_multiplier": 2.0},
    "keep_checkpoints": 7,
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("data")
    write(customersim.generate(80, 3), folder / "c.jsonl")
    return {
        "corpus": str(folder / "c.jsonl"),
        "detect": "gold",
        "model": {"kind": "lstm", "config": {"embedding_size": 8, "hidden_size": 8, "layers": 1}},
        "tokenizer": {"size": 400},
        "context": 24,
        "seed": 1,
    }


class Kill(Exception):
    pass


def same(one: Path, other: Path) -> bool:
    a, b = (load_file(folder / "model.safetensors") for folder in (one, other))
    return a.keys() == b.keys() and all(bool((a[n] == b[n]).all()) for n in a)


@given(st.integers(1, 500), st.integers(0, 20))
def test_models_are_kept_evenly_and_before_the_end(steps: int, count: int) -> None:
    kept = sorted(kept_steps(steps, count))
    assert len(kept) <= count
    assert all(0 < step < steps for step in kept)
    if count < steps:
        assert len(kept) == count
        gaps = [b - a for a, b in zip([0, *kept], [*kept, steps], strict=True)]
        assert max(gaps) - min(gaps) <= 1


def test_a_kept_model_is_the_one_that_stood_there(tmp_path: Path, base: dict[str, Any]) -> None:
    plain = base | {"method": "plain", "batch": 8}
    session.train(Run(**plain, steps=4, keep_checkpoints=1), tmp_path / "long")
    session.train(Run(**plain, steps=2), tmp_path / "short")
    assert list(kept_models(tmp_path / "long")) == [2]
    assert same(kept_models(tmp_path / "long")[2], tmp_path / "short")
    assert not same(tmp_path / "long", tmp_path / "short")
    assert kept_models(tmp_path / "short") == {}
    assert [c.what for c in verify(tmp_path / "long") if not c.ok] == []


def test_resuming_keeps_what_an_uninterrupted_run_keeps(
    tmp_path: Path, base: dict[str, Any]
) -> None:
    """Stopped between a kept model and the next checkpoint: the step is done and kept again."""
    run = Run(
        **base, method="plain", batch=8, steps=6, keep_checkpoints=2, checkpoint_every=3,
        optimizer={"momentum": 0.9},
    )  # fmt: skip
    session.train(run, tmp_path / "whole")

    def stop(at: Progress) -> None:
        if at.step == 5:
            raise Kill

    with pytest.raises(Kill):
        session.train(run, tmp_path / "cut", on_progress=stop)
    spoilt = kept_models(tmp_path / "cut")[4] / "model.safetensors"
    spoilt.write_bytes(b"of a step that is done again")
    session.resume(tmp_path / "cut")
    assert list(kept_models(tmp_path / "cut")) == [2, 4]
    for step, place in kept_models(tmp_path / "whole").items():
        assert same(place, kept_models(tmp_path / "cut")[step])
    assert same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize(("phase", "at"), [("redacted", 3), ("train", 2)])
def test_both_phases_of_redact_then_private_keep_models(
    tmp_path: Path, base: dict[str, Any], phase: str, at: int
) -> None:
    """Steps are counted from the first on masked text, also after a stop in either phase."""
    run = Run(**base, **TWO_PHASES, checkpoint_every=2)
    session.train(run, tmp_path / "whole")
    kept = kept_models(tmp_path / "whole")
    assert list(kept) == [1, 2, 3, 4, 5, 6, 7]
    masked_only = load_file(tmp_path / "whole" / "redacted-start.safetensors")
    last_masked, first_noisy = (load_file(kept[step] / "model.safetensors") for step in (4, 5))
    assert all(bool((last_masked[name] == masked_only[name]).all()) for name in masked_only)
    assert any(bool((last_masked[name] != first_noisy[name]).any()) for name in last_masked)
    assert last_step(open_target(tmp_path / "whole")) == 8

    def stop(now: Progress) -> None:
        if (now.phase, now.step) == (phase, at):
            raise Kill

    with pytest.raises(Kill):
        session.train(run, tmp_path / "cut", on_progress=stop)
    session.resume(tmp_path / "cut")
    again = kept_models(tmp_path / "cut")
    assert list(again) == list(kept)
    assert all(same(kept[step], again[step]) for step in kept)


def test_models_of_the_masked_phase_do_not_know_a_sensitive_token(
    tmp_path: Path, base: dict[str, Any]
) -> None:
    """Every secret of a neighbour is another word: until noise is added nothing differs."""
    lines = [json.loads(line) for line in Path(base["corpus"]).read_text().splitlines()]
    for record in lines:
        text = record["text"]
        for span in record["spans"]:
            text = text[: span["start"]] + "x" * (span["end"] - span["start"]) + text[span["end"] :]
        record["text"] = text
    neighbour = tmp_path / "neighbour.jsonl"
    neighbour.write_text("".join(json.dumps(record) + "\n" for record in lines))
    assert neighbour.read_text() != Path(base["corpus"]).read_text()
    kept: list[Any] = []
    for corpus in (base["corpus"], str(neighbour)):
        session.train(Run(**base | {"corpus": corpus}, **TWO_PHASES), tmp_path / str(len(kept)))
        kept.append(kept_models(tmp_path / str(len(kept))))
    alike = [step for step in kept[0] if same(kept[0][step], kept[1][step])]
    assert alike == [1, 2, 3, 4]


def test_keeping_models_changes_no_digest(base: dict[str, Any]) -> None:
    plain = base | {"method": "plain", "steps": 4}
    assert Run(**plain, keep_checkpoints=3).digest() == Run(**plain).digest()


def test_the_plan_of_canaries_is_kept_with_the_run(tmp_path: Path, base: dict[str, Any]) -> None:
    import numpy as np

    from tacit.attacks.canaries import TEMPLATES, beside, plant, read_planted

    corpus = tmp_path / "planted.jsonl"
    planted, plan = plant(
        customersim.generate(30, 3), TEMPLATES["name"], each=2, repetitions=(1,), held_out=2,
        rng=np.random.default_rng(0),
    )  # fmt: skip
    write(planted, corpus)
    plan.write(beside(corpus))
    run = Run(**base | {"corpus": str(corpus)}, method="plain", steps=1)
    session.train(run, tmp_path / "run")
    assert read_planted(tmp_path / "run" / "canaries.json") == plan
    assert [c.what for c in verify(tmp_path / "run") if not c.ok] == []


def test_what_was_found_kept_and_dropped_is_counted(tmp_path: Path, base: dict[str, Any]) -> None:
    run = Run(**base, plan=BOTH | {"kinds": ["PERSON"], "users_per_entity": 1})
    metrics = session.train(run, tmp_path / "run").metrics
    found, bounding = metrics["detected"], metrics["bounding"]
    assert found["mentions"] == sum(metrics["detected_kinds"].values())
    assert 0 < found["records_with_a_mention"] <= found["records"]
    assert bounding["records_kept"] + bounding["records_dropped"] == bounding["records_before"]
    assert bounding["records_kept"] == metrics["training"]["records"]
    assert sum(metrics["dropped_by"].values()) == bounding["records_dropped"]
    assert bounding["entities_kept"] <= bounding["entities_before"]
    assert metrics["bounding_caps"]["users_per_entity"] == 1
