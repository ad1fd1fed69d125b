"""One release of sums of features: what a user can move, and heads that cost nothing more."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from support.topics import posts, tiny_encoder
from tacit.cli import run as command
from tacit.errors import UsageError
from tacit.privacy.ledger import read_ledger
from tacit.training.evaluation.scoring import evaluate, predict
from tacit.training.methods.noisy_sums import LossMeter
from tacit.training.methods.statistics import STATISTICS, class_shares, fit
from tacit.training.models import networks
from tacit.training.models.features import CONSTANT, LENGTH
from tacit.training.phases.local_inputs import inputs_of
from tacit.training.phases.refitting import refit
from tacit.training.phases.run_context import encode, open_run
from tacit.training.phases.session import resume, train
from tacit.training.settings import Run
from tacit.verification.runs import verify

USERS = {"protect": "users", "epsilon": 8, "user_rate": 1.0, "users": 8}
BOTH = {"protect": "users+entities", "epsilon": 8, "user_rate": 1.0, "entity_share": 0.5}


def loaded(folder: Path) -> Any:
    return networks.load_model(folder, "classification", labels=["hill", "sea"])


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    encoder = {"kind": "features", "folder": tiny_encoder(folder / "encoder")}
    return posts(folder) | {"model": encoder, "method": "statistics", "plan": USERS} | changes


def plain_sums(run: Run, rows: list[np.ndarray]) -> tuple[np.ndarray, float]:
    """The same sums by the book: every user's vector written out, clipped, added."""
    ctx = open_run(run)
    examples = encode(ctx, ctx.part)
    assert examples.features is not None
    x = np.c_[examples.features.values, np.full(len(examples), CONSTANT)] / LENGTH
    t = np.eye(2)[examples.labels]
    total, longest = 0.0, 0.0
    for own in rows:
        each = [np.r_[np.outer(t[r], x[r]).ravel(), np.outer(x[r], x[r]).ravel()] for r in own]
        longest = max(longest, *(float(np.linalg.norm(one)) for one in each))
        mine = np.sqrt(0.5) * np.sum(each, axis=0)
        total = total + mine * min(1.0, run.plan["clip_norm"] / np.linalg.norm(mine))
    return np.asarray(total), longest * np.sqrt(0.5)


@pytest.mark.parametrize("clip_norm", [0.7, 50.0])  # all are clipped, or none
def test_the_sum_is_the_clipped_sum_of_users_statistics(tmp_path: Path, clip_norm: float) -> None:
    run = Run(**settings(tmp_path, plan=USERS | {"clip_norm": clip_norm, "noise_multiplier": 1.0}))
    ctx = open_run(run)
    inputs, _ = inputs_of(ctx, run.made_plan())
    rows = inputs.training_data.rows_of_user
    total = STATISTICS.totals(inputs, LossMeter(ctx.model, inputs.losses))
    found = total(1, np.arange(len(rows)))
    wanted, longest = plain_sums(run, list(rows))
    names = ("statistics.classes.weight", "statistics.moments.weight")
    flat = np.concatenate([found.tensors[name].flatten() for name in names])
    np.testing.assert_allclose(-flat, wanted, rtol=1e-4, atol=1e-5)
    assert longest <= 1 + 1e-6
    # Its neighbours: without any one user, the sum moves by the clip norm at most.
    for user in range(len(rows)):
        less = total(1, np.delete(np.arange(len(rows)), user))
        gap = sum(float((found.tensors[n] - t).square().sum()) for n, t in less.tensors.items())
        assert gap**0.5 <= found.clip_norm * (1 + 1e-5)


def test_an_entity_moves_a_user_by_its_share_at_most(tmp_path: Path) -> None:
    """Records are clipped first, so a record that names somebody can be taken out of a user."""
    run = Run(**settings(tmp_path, detect="patterns", plan=BOTH | {"noise_multiplier": 1.0}))
    ctx = open_run(run)
    inputs, _ = inputs_of(ctx, run.made_plan())
    total = STATISTICS.totals(inputs, LossMeter(ctx.model, inputs.losses))
    whole = total(1, np.array([0]))
    assert whole.record_clip == 0.5
    rows = inputs.training_data.rows_of_user
    for gone in rows[0]:
        own = (rows[0][rows[0] != gone], *rows[1:])
        part = replace(inputs, training_data=replace(inputs.training_data, rows_of_user=own))
        less = STATISTICS.totals(part, LossMeter(ctx.model, inputs.losses))(1, np.array([0]))
        gap = sum(float((whole.tensors[n] - t).square().sum()) for n, t in less.tensors.items())
        assert gap**0.5 <= 0.5 * (1 + 1e-5)


@pytest.mark.parametrize("head", ["ridge", "lda", "prototypes"])
def test_heads_learn_from_the_release(tmp_path: Path, head: str) -> None:
    pytest.importorskip("wordllama")
    fields = posts(tmp_path, users=300) | {"model": {"kind": "features"}, "method": "statistics"}
    fields["plan"] = USERS | {"users": 200}
    done = train(Run(**fields, statistics={"head": head}), tmp_path / "run")
    assert done.certificate.phases == {"train": 1}
    assert evaluate(tmp_path / "run", "test")["error_rate"] <= 0.1
    assert predict(tmp_path / "run", "the boat and the tide")["class"] == "sea"


def test_another_head_costs_nothing_more(tmp_path: Path) -> None:
    fields = settings(tmp_path, seed=None)
    done = train(Run(**fields), tmp_path / "run")
    Path(fields["corpus"]).unlink()  # no text is needed any more
    certificate, shares = refit(tmp_path / "run", tmp_path / "two", "prototypes", ridge=2.0)
    before, after = (read_ledger(tmp_path / n / "ledger.jsonl") for n in ("run", "two"))
    assert after.releases() == before.releases()
    assert certificate.costs == done.certificate.costs
    assert certificate.standing == "proved"
    assert "nothing more was spent" in certificate.context["head"]
    assert [c for c in verify(tmp_path / "two") if not c.ok] == []
    assert [c for c in verify(tmp_path / "run") if not c.ok] == []
    assert sum(shares.values()) == pytest.approx(1)
    one, two = (loaded(tmp_path / name) for name in ("run", "two"))
    assert torch.equal(one.statistics.classes.weight, two.statistics.classes.weight)
    assert not torch.equal(one.classifier.weight, two.classifier.weight)
    assert (
        command(["refit", str(tmp_path / "run"), "--head", "lda", "-o", str(tmp_path / "3")]) == 0
    )


def test_stopped_and_resumed_it_has_the_same_head(tmp_path: Path) -> None:
    """What was released is in the checkpoint; the head is fitted from it, and nothing again."""
    run = Run(**settings(tmp_path))

    def stop(_: Any) -> None:
        raise KeyboardInterrupt

    train(run, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(
            run, tmp_path / "cut", on_progress=lambda at: stop(at) if at.phase == "train" else None
        )
    done = resume(tmp_path / "cut")
    assert done.certificate.phases == {"train": 1}
    one, other = (load_file(tmp_path / n / "model.safetensors") for n in ("whole", "cut"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_changed_folder_is_not_refitted(tmp_path: Path) -> None:
    train(Run(**settings(tmp_path)), tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(Exception, match="does not verify"):
        refit(tmp_path / "run", tmp_path / "two", "lda")


def test_a_regression_is_a_ridge(tmp_path: Path) -> None:
    pytest.importorskip("wordllama")
    fields = posts(tmp_path, users=300) | {"task": "regression", "label_range": (0, 1)}
    del fields["labels"]
    file = Path(fields["corpus"])
    file.write_text(file.read_text().replace('"sea"', '"1"').replace('"hill"', '"0"'))
    fields |= {"model": {"kind": "features"}, "method": "statistics"}
    train(Run(**fields, plan=USERS | {"users": 200}), tmp_path / "run")
    assert evaluate(tmp_path / "run", "test")["pearson"] >= 0.8
    with pytest.raises(UsageError, match="a regression needs ridge"):
        Run(**fields, plan=USERS, statistics={"head": "lda"})


def test_without_noise_ridge_is_least_squares(tmp_path: Path) -> None:
    plan = USERS | {"noise_multiplier": 0.0, "epsilon": 1e9, "clip_norm": 1e6, "users": 8}
    run = Run(**settings(tmp_path, plan=plan))
    ctx = open_run(run)
    inputs, _ = inputs_of(ctx, run.made_plan())
    total = STATISTICS.totals(inputs, LossMeter(ctx.model, inputs.losses))(1, np.arange(8))
    with torch.no_grad():
        for name, tensor in total.tensors.items():
            ctx.model.get_parameter(name).copy_(-tensor / 8)
    ctx.model.config.statistics["noise"] = 0.0
    fit(ctx.model, "ridge")
    examples = encode(ctx, ctx.part)
    x = np.c_[examples.features.values, np.full(len(examples), CONSTANT)].astype(float)
    gram = x.T @ x
    little = 1e-6 * np.linalg.eigvalsh(gram)[-1] * np.eye(9)
    right = np.linalg.solve(gram + little, x.T @ np.eye(2)[examples.labels])
    made = ctx.model.classifier.weight.detach().numpy() / 10
    np.testing.assert_allclose(made[:, :-1], right[:-1].T, rtol=0.05, atol=0.02)
    shares = class_shares(ctx.model)
    assert shares["sea"] == pytest.approx(float((examples.labels == 1).mean()), abs=1e-4)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": {"kind": "lstm"}}, "model.kind=features"),
        ({"plan": USERS | {"user_rate": 0.5}}, "asks everybody once"),
        ({"optimizer": {"name": "adam"}}, "without an optimizer"),
        ({"statistics": {"moments": False}}, "ridge needs second moments"),
        ({"statistics": {"head": "lda", "moments": False}}, "or a statistics.public_text"),
        ({"plan": USERS | {"steps": 2}}, "does not carry out"),
    ],
)
def test_what_it_cannot_do_is_refused(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Run(**settings(tmp_path) | changes)
