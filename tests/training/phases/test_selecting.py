"""`select: best`: bounded, priced, asked once; and what releases say about a run for nothing."""

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from support.small import Record, Vectors, data_of, dialogs
from tacit.errors import PrivacyRefused, UsageError
from tacit.planning.plan import Plan, calibrated, prices
from tacit.privacy.events import SampledGaussian
from tacit.privacy.ledger import Ledger, read_ledger
from tacit.training.evaluation.verdicts import verdict_of
from tacit.training.phases import selecting, session
from tacit.training.phases.divergence import Watch
from tacit.training.phases.promising import allowed
from tacit.training.phases.selecting import CLIP, compared, gain
from tacit.training.settings import Run
from tacit.verification.runs import verify

USERS = {"protect": "users", "epsilon": 8, "steps": 3, "user_rate": 0.3, "users": 50}
BOTH = {"protect": "users+entities", "epsilon": 8, "steps": 3, "user_rate": 0.3}
RECORDS = {"protect": "records", "epsilon": 8, "steps": 3, "record_rate": 0.1, "records": 120}
FLAT = {
    "protect": "users+entities", "mechanism": "flat", "epsilon": 20, "steps": 3,
    "record_rate": 0.2, "records_per_user": 2, "records_per_entity": 2,
}  # fmt: skip
KINDS = {"users": USERS, "both": BOTH, "records": RECORDS, "flat": FLAT}
ENCODER = {"hidden_size": 8, "layers": 1, "heads": 2}
HARMFUL = {"name": "sgd", "learning_rate": 40.0, "momentum": 0.0}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return dialogs(tmp_path_factory.mktemp("data"))


# --- the sum ------------------------------------------------------------------------------------

RECORD = st.tuples(st.integers(0, 4), st.sets(st.integers(0, 3), max_size=2))
GAIN = st.floats(-3, 3) | st.sampled_from([np.inf, -np.inf, np.nan])


def _sum(plan: Plan, vectors: Vectors, gains: np.ndarray) -> np.ndarray:
    total = compared(plan, data_of(vectors, plan), gains)
    assert total.clip_norm == CLIP
    return total.tensors["weight"].double().numpy()[0]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(RECORD, min_size=2, max_size=9),
    st.data(),
    st.sampled_from([*KINDS, "share"]),
    st.integers(0, 4),
    st.integers(0, 3),
)
def test_a_neighbour_moves_the_comparison_by_no_more_than_the_event_says(
    rows: list[tuple[int, set[int]]], data: st.DataObject, kind: str, user: int, entity: int
) -> None:
    fields = KINDS.get(kind, BOTH | {"entity_share": 2.0, "users_per_entity": 2})
    plan = Plan(**fields)
    vectors = Vectors(tuple(Record(u, tuple(e), (0.0,)) for u, e in rows))
    two = (2, len(rows), 2)
    losses = np.array(data.draw(st.lists(GAIN, min_size=4 * len(rows), max_size=4 * len(rows))))
    with np.errstate(all="ignore"):
        gains = gain(*losses.reshape(two))
    whole = _sum(plan, vectors, gains)
    users = np.array([u for u, _ in rows])
    if plan.protect == "users":  # gone altogether
        left = [row for row in range(len(rows)) if users[row] != user]
        if not left:
            return
        rest = Vectors(tuple(vectors.records[row] for row in left))
        assert np.linalg.norm(whole - _sum(plan, rest, gains[left])) <= CLIP * 1.0001
        return
    if plan.protect == "records":
        rest = Vectors(vectors.records[1:])
        assert np.linalg.norm(whole - _sum(plan, rest, gains[1:])) <= CLIP * 1.0001
        return
    # The graph is held fixed: records of the user, or of the entity, contribute zero.
    names = np.array([entity in e for _, e in rows])
    for gone, bound in (
        (users == user, 1 if plan.mechanism == "userclip" else plan.records_per_user),
        (names, plan.users_per_entity * plan.entity_share if plan.mechanism == "userclip"
         else plan.records_per_entity),
    ):  # fmt: skip
        silent = np.where(gone[:, None], 0.0, gains)
        assert np.linalg.norm(whole - _sum(plan, vectors, silent)) <= bound * CLIP * 1.0001


def test_a_share_bounds_what_an_entity_moves_in_one_user() -> None:
    plan = Plan(**BOTH | {"entity_share": 0.5})
    vectors = Vectors((Record(0, (0,), (0.0,)), Record(0, (), (0.0,))))
    both, one = (_sum(plan, vectors, np.array(g)) for g in ([[CLIP], [CLIP]], [[0.0], [CLIP]]))
    assert both[0] == pytest.approx(CLIP)
    assert one[0] == pytest.approx(CLIP / 2)


# --- the price ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_targets_cover_the_comparison_for_about_two_percent_of_noise(kind: str) -> None:
    without, plan = (calibrated(Plan(**KINDS[kind] | {"select": s})) for s in ("last", "best"))
    selection = plan.selection()
    assert selection is not None
    assert plan.releases() == {plan.event(): plan.steps, selection: 1}
    assert prices(plan)[plan.protect].epsilon <= plan.epsilon
    assert without.selection() is None
    ratio = (plan.noise_multiplier or 0) / (without.noise_multiplier or 1)
    assert 1.001 < ratio < 1.05
    # Without its share, the promise would be broken: the comparison has a price.
    bare = plan.model_copy(update={"noise_multiplier": without.noise_multiplier})
    assert prices(bare)[plan.protect].epsilon > plan.epsilon


# --- runs ---------------------------------------------------------------------------------------


def _selections(folder: Path) -> int:
    return sum(entry.phase == "select" for entry in read_ledger(folder / "ledger.jsonl").entries)


@pytest.mark.parametrize("kind", KINDS)
def test_what_training_spoilt_is_not_kept(tmp_path: Path, base: dict[str, Any], kind: str) -> None:
    run = base | {"pretrain": {"corpus": "generated", "steps": 8, "batch": 8}}
    run |= {"plan": KINDS[kind], "optimizer": HARMFUL, "select": "best"}
    done = session.train(Run(**run), tmp_path / "run")
    assert done.stopped is None
    assert _selections(tmp_path / "run") == 1
    assert "began with, by a comparison" in done.certificate.context["kept"]
    assert "began with" in (tmp_path / "run" / "README.md").read_text()
    assert any("Kept: the weights that training began with" in line for line in done.told)
    start = load_file(tmp_path / "run" / "public-start.safetensors")
    model = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(tensor, model[name]) for name, tensor in start.items() if name in model)
    valid = done.metrics["valid"]
    assert valid["perplexity"] == pytest.approx(valid["public_only_perplexity"])
    assert [c.what for c in verify(tmp_path / "run") if not c.ok] == []
    promised = done.certificate.costs[done.certificate.protect].epsilon
    assert float(promised) <= KINDS[kind]["epsilon"]


def test_noise_that_was_worth_keeping_is_not_called_noise(
    tmp_path: Path, base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watch, "signal", 0.0)
    told = {}
    for kept in (selecting.LAST, selecting.START):
        monkeypatch.setattr(session, "choose", lambda *_, kept=kept: kept)
        told[kept] = session.train(Run(**base, plan=USERS, select="best"), tmp_path / kept).told
    assert not any("noise alone" in line for line in told[selecting.LAST])
    assert any("noise alone" in line for line in told[selecting.START])
    assert any("made them no better" in line for line in told[selecting.START])


def test_a_card_says_whether_anybody_asked(tmp_path: Path, base: dict[str, Any]) -> None:
    session.train(Run(**base, plan=USERS), tmp_path / "run")
    assert "was not asked of the private text" in (tmp_path / "run" / "README.md").read_text()


def test_what_training_made_better_is_kept(tmp_path: Path, base: dict[str, Any]) -> None:
    plan = USERS | {"epsilon": 2000, "steps": 4, "user_rate": 1.0}
    run = Run(**base, plan=plan, select="best", optimizer={"momentum": 0.0, "average": 0.5})
    done = session.train(run, tmp_path / "run")
    assert "by a comparison" in done.certificate.context["kept"]
    assert "began with" not in done.certificate.context["kept"]
    assert "releases" not in done.certificate.context
    assert done.metrics["valid"]["perplexity"] < 400


@pytest.mark.parametrize("task", ["classification", "regression", "tagging"])
def test_every_task_can_be_asked(tmp_path: Path, base: dict[str, Any], task: str) -> None:
    rows = [json.loads(line) for line in Path(base["corpus"]).read_text().splitlines()]
    for number, row in enumerate(rows):
        row["label"] = str(number % 5) if task == "regression" else "ab"[number % 2]
        row["tokens"] = row["text"].split()
        row["pos"] = ["X" if len(word) > 4 else "Y" for word in row["tokens"]]
        row["text"] = " ".join(row["tokens"])
    kept = ("id", "user", "text", "split", "tokens", "pos", "label")
    lines = [json.dumps({k: r[k] for k in kept if k in r}) for r in rows]
    (tmp_path / "c.jsonl").write_text("\n".join(lines) + "\n")
    run = {k: v for k, v in base.items() if k != "mentions"} | {"corpus": str(tmp_path / "c.jsonl")}
    run |= {"task": task, "model": {"kind": "bert", "config": ENCODER}, "context": 16}
    done = session.train(Run(**run, plan=USERS, select="best"), tmp_path / "run")
    assert "by a comparison" in done.certificate.context["kept"]
    assert _selections(tmp_path / "run") == 1


class Kill(Exception):
    pass


def test_nobody_looks_twice_for_one_charge(
    tmp_path: Path, base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(**base, plan=USERS, select="best")

    def dies(total: Any, event: Any, ledger: Ledger, *_: Any, phase: str, **__: Any) -> None:
        ledger.charge(event, phase=phase)
        raise Kill

    with monkeypatch.context() as patch:
        patch.setattr(selecting, "release", dies)
        with pytest.raises(Kill):
            session.train(run, tmp_path / "run")
    assert _selections(tmp_path / "run") == 1
    done = session.resume(tmp_path / "run")
    assert _selections(tmp_path / "run") == 1
    assert "no room for a comparison" in done.certificate.context["kept"]
    assert [c.what for c in verify(tmp_path / "run") if not c.ok] == []


def test_a_choice_that_was_made_is_not_made_again(
    tmp_path: Path, base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: Any) -> None:
        raise Kill

    with monkeypatch.context() as patch:
        patch.setattr(session.Session, "_finish", dies)
        with pytest.raises(Kill):
            session.train(Run(**base, plan=USERS, select="best"), tmp_path / "run")
    assert _selections(tmp_path / "run") == 1
    session.resume(tmp_path / "run")
    assert _selections(tmp_path / "run") == 1


def test_steps_leave_room_for_the_comparison(tmp_path: Path) -> None:
    # Steps that are each cheaper than the comparison.
    plan = calibrated(Plan(**USERS | {"select": "best", "steps": 100, "user_rate": 1.0}))
    selection = plan.selection()
    assert selection is not None
    with Ledger(tmp_path / "ledger.jsonl", {}, allows=allowed(plan)) as ledger:
        with contextlib.suppress(PrivacyRefused):
            while len(ledger) < 2 * plan.steps:
                ledger.charge(plan.event())
        assert plan.steps <= len(ledger) < 2 * plan.steps
        ledger.charge(selection, phase="select")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"method": "plain", "steps": 3}, "a plan pays for"),
        ({"plan": USERS | {"selection_noise": 3.0}}, "goes with select=best"),
        ({"method": "redact-then-private", "select": "best",
          "plan": {"protect": "tokens", "epsilon": 8, "steps": 3, "record_rate": 0.1}},
         "whole records"),
    ],
)  # fmt: skip
def test_what_cannot_be_selected_is_refused(
    base: dict[str, Any], changes: dict[str, Any], says: str
) -> None:
    fields = base | ({"select": "best"} if "plan" not in changes else {}) | changes
    with pytest.raises(UsageError, match=says):
        Run(**fields)


# --- what releases say --------------------------------------------------------------------------


def test_a_run_that_diverges_stops_and_is_its_start(tmp_path: Path, base: dict[str, Any]) -> None:
    run = base | {"optimizer": {"learning_rate": 1e5, "momentum": 0.9}}
    run |= {"plan": USERS | {"steps": 20}, "select": "best"}
    done = session.train(Run(**run), tmp_path / "run")
    assert done.stopped is not None
    assert "diverged at step 1 of 20" in done.stopped
    assert done.certificate.phases == {"train": 1}  # nor was anybody asked
    assert "since training diverged" in done.certificate.context["kept"]
    assert done.certificate.context["stopped"] == "after 1 of 20 steps, which diverged"
    assert float(done.certificate.costs["users"].epsilon) < 8
    assert done.metrics["valid"]["perplexity"] < 420  # a new model, which knows nothing
    again = session.resume(tmp_path / "run")
    assert again.certificate.phases == {"train": 1}
    for metrics in (done.metrics, again.metrics):
        assert verdict_of(metrics).words.startswith("Training diverged at step 1 of 20")
        assert verdict_of(metrics).grade == "bad"
    assert "since training diverged" in (tmp_path / "run" / "README.md").read_text()
    assert [c.what for c in verify(tmp_path / "run") if not c.ok] == []


def test_weights_that_are_no_numbers_are_seen() -> None:
    start = {"a": torch.zeros(4)}
    watch = Watch(start)
    assert watch.diverged({"a": torch.full((4,), 5.0)}) is None
    assert "no number" in str(watch.diverged({"a": torch.tensor([0.0, torch.nan, 0, 0])}))
    assert "far too much" in str(watch.diverged({"a": torch.full((4,), 50.0)}))


@pytest.mark.parametrize(("signal", "told"), [(0.0, True), (0.02, True), (1.0, False)])
def test_sums_that_are_noise_alone_are_told_from_others(signal: float, told: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    watch = Watch({"a": torch.zeros(1000)})
    for _ in range(10):
        noise = 0.5 * torch.randn(1000, generator=generator)
        watch.saw({"a": noise + 0.5 * signal * torch.ones(1000)}, 0.5)
    assert (watch.told is not None) == told
    assert Watch({}).told is None


def test_an_event_of_everybody_is_what_the_comparison_is() -> None:
    plan = calibrated(Plan(**USERS | {"select": "best"}))
    noise = plan.selection_noise or 0.0
    assert plan.selection() == SampledGaussian(unit="users", rate=1.0, noise_multiplier=noise)
