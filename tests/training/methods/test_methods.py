"""Each method does what its formula says: without noise and clipping it is plain arithmetic."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from support.small import Record, Two, Vectors, curved, data_of, step_of, uedp_event
from support.steps import make_step, totals_of
from tacit.errors import PrivacyRefused, UsageError
from tacit.planning.plan import Plan
from tacit.privacy.ledger import Ledger, read_ledger
from tacit.training.dp import noise
from tacit.training.dp.random_source import RandomSource
from tacit.training.dp.updates import ClippedUpdates
from tacit.training.methods.dp_fedavg import LocalSettings, local_batches
from tacit.training.methods.dp_sgd import contributions
from tacit.training.methods.uedp import UedpSettings, Weights
from tacit.training.models.optimizers import make_optimizer
from tacit.training.phases.loop import Loop
from tacit.training.settings import OptimizerSettings

QUIET: dict[str, Any] = {"epsilon": 1e9, "steps": 1, "noise_multiplier": 0.0, "clip_norm": 1e9}
CORPUS = Vectors(
    (
        Record(0, (0,), (0.3, -0.2)),
        Record(0, (0, 1), (0.1, 0.9)),
        Record(0, (), (-0.4, 0.5)),
        Record(1, (1,), (0.8, 0.1)),
        Record(1, (), (0.2, 0.2)),
        Record(2, (), (-0.6, -0.7)),
    )
)


def gradient(rows: Any, weights: Any = None, by: Any = curved) -> np.ndarray:
    """The weighted sum of the records' gradients, by one backward pass."""
    model = Two(2)
    rows = np.asarray(rows)
    values = by(model, CORPUS.batch(rows))
    (values * (1.0 if weights is None else torch.tensor(weights))).sum().backward()
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()]).double().numpy()


def test_records_without_noise_and_clipping_are_plain_sgd(tmp_path: Path) -> None:
    """Three steps of the loop itself, with momentum, on full batches: the same weights."""
    optimizer = OptimizerSettings(learning_rate=0.1, momentum=0.9)
    plan = Plan(protect="records", record_rate=1.0, records=6, **QUIET)
    ended = []
    for name in ("plain", "dp-sgd"):
        model = Two(2)
        training_data = data_of(CORPUS)
        with Ledger(tmp_path / name / "ledger.jsonl", {}) as ledger:
            method = make_step(name, model, curved, training_data, plan, ledger=ledger, batch=6)
            made = make_optimizer(model, optimizer)
            Loop(model, method, made, optimizer, 3, RandomSource(1)).run()
        ended.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    assert torch.allclose(ended[0], ended[1], rtol=1e-5, atol=1e-7)
    assert not torch.allclose(ended[0], torch.cat([p.reshape(-1) for p in Two(2).parameters()]))


def test_plain_batches_are_passed_in_parts_of_like_length(tmp_path: Path) -> None:
    """The gradient is that of the whole batch, whose mean is over records and not over parts."""
    draws = np.random.default_rng(2)
    vectors = Vectors(tuple(Record(0, (), tuple(pull)) for pull in draws.normal(size=(40, 2))))
    object.__setattr__(vectors, "lengths", draws.permutation(40) + 1)
    passes: list[int] = []

    def heard(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        passes.append(len(batch["x"]))
        return curved(model, batch)

    with Ledger(tmp_path / "ledger.jsonl", {}) as ledger:
        made = make_step("plain", Two(2), heard, data_of(vectors), ledger=ledger, batch=40)
        got, stats = made.gradient(1)
    assert len(passes) > 1
    assert sum(passes) == stats.records == 40
    model = Two(2)
    curved(model, vectors.batch(np.arange(40))).mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(got[name], parameter.grad)


def test_users_without_noise_and_clipping_are_the_sum_over_the_denominator(tmp_path: Path) -> None:
    plan = Plan(protect="users", user_rate=1.0, users=50, **QUIET)
    got, seen = step_of("dp-sgd", CORPUS, plan, tmp_path, by=curved)
    assert np.allclose(got, gradient(range(6)) / 50, rtol=1e-5)
    assert (seen.units, seen.records) == (3, 6)


def test_one_local_step_is_a_mean_gradient_and_several_are_local_sgd(tmp_path: Path) -> None:
    plan = Plan(protect="users", user_rate=1.0, users=50, **QUIET)
    of_users = [[0, 1, 2], [3, 4], [5]]
    local = LocalSettings(local_batch=99, local_learning_rate=0.25)
    got, seen = step_of("dp-fedavg", CORPUS, plan, tmp_path, local=local, by=curved)
    assert (seen.units, seen.records) == (3, 6)
    wanted = sum(gradient(rows) / len(rows) for rows in of_users) * 0.25 / 50
    assert np.allclose(got, wanted, rtol=1e-5)
    several = LocalSettings(local_epochs=3, local_batch=99, local_learning_rate=0.25)
    got, _ = step_of("dp-fedavg", CORPUS, plan, tmp_path, local=several, by=curved)
    wanted = np.zeros_like(got)
    for rows in of_users:
        model = Two(2)
        before = torch.cat([p.detach().clone().reshape(-1) for p in model.parameters()])
        sgd = torch.optim.SGD(model.parameters(), lr=0.25)
        for _ in range(3):
            sgd.zero_grad()
            curved(model, CORPUS.batch(np.asarray(rows))).mean().backward()
            sgd.step()
        after = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        wanted += (before - after).double().numpy() / 50
    assert np.allclose(got, wanted, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("estimator", ["f_E", "f_E+"])
@pytest.mark.parametrize("rule", ["any", "all"])
def test_the_published_update_is_the_published_formula(
    tmp_path: Path, estimator: Any, rule: Any
) -> None:
    """Equations 4 and 6 with everybody drawn: weights, a record twice if it names two."""
    settings = UedpSettings(
        estimator=estimator, entity_rule=rule, user_rate=1.0, entity_rate=1.0, plain_rate=1.0,
        noise_multiplier=0.0, clip_norm=1e9, local_learning_rate=0.5, user_weight_cap=2,
        entity_weight_cap=4, plain_weight_cap=6,
    )  # fmt: skip
    got, seen = step_of("uedp", CORPUS, settings, tmp_path, by=curved)
    w_u, w_e, w_s = (1.0, 1.0, 0.5), (2 / 4, 2 / 4), 3 / 6  # capped: min(n / cap, 1)
    record = np.array([w_e[0], w_e[0] + w_e[1], w_s, w_e[1], w_s, w_s])
    if estimator == "f_E":
        record[[2, 4, 5]] = 0.0
    weight = record * np.array([w_u[r.user] for r in CORPUS.records])
    below = sum(w_u) * (sum(w_e) + (3 * w_s if estimator == "f_E+" else 0.0))
    assert np.allclose(got, 0.5 * gradient(range(6), weight) / below, rtol=1e-5)
    assert (seen.units, seen.records) == (3, 6 if estimator == "f_E+" else 3)


def test_published_records_take_part_if_any_or_if_all_of_their_entities_do(tmp_path: Path) -> None:
    """Entity 1 is never drawn: `any` still uses the record that names both, `all` does not."""
    seeds = [s for s in range(200) if _entities(s).tolist() == [True, False]]
    base = {"estimator": "f_E", "user_rate": 1.0, "noise_multiplier": 0.0, "clip_norm": 1e9}
    for rule, rows in (("any", [0, 1]), ("all", [0])):
        settings = UedpSettings.model_validate({"entity_rule": rule} | base)
        got, _ = step_of(
            "uedp", CORPUS, settings, tmp_path, by=curved, randomness=RandomSource(seeds[0])
        )
        assert np.allclose(got, gradient(rows) / (3 * 0.5 * 2), rtol=1e-5)


def _entities(seed: int) -> np.ndarray:
    rng = RandomSource(seed).stream("coins", 1)
    rng.random(3)
    return rng.random(2) < 0.5


@pytest.mark.parametrize(("how", "units"), [("lemma", 0.5 * 400 + 1), ("patent", 400 + 1)])
def test_published_noise_has_the_published_deviation(
    tmp_path: Path, how: Any, units: float
) -> None:
    """sigma = z (users in a step + 1) max(w_u) clip / denominator, as a deviation."""
    many = Vectors(tuple(Record(u, (0,) if u == 0 else (), (0.0,) * 500) for u in range(400)))
    settings = UedpSettings(
        noise=how, user_rate=0.5, entity_rate=0.5, noise_multiplier=2.0, clip_norm=0.1,
        user_weight_cap=4, local_learning_rate=0.2,
    )  # fmt: skip
    got, _ = step_of("uedp", many, settings, tmp_path)
    weight = 1 / 4
    below = 0.5 * 400 * weight * (0.5 * 1 + 1.0 * 399)
    assert got.std() == pytest.approx(2.0 * units * weight * 0.1 / below, rel=0.1)
    assert uedp_event(data_of(many), settings).noise_multiplier == 2.0 * units
    assert Weights.count(data_of(many), many.owners(), settings).denominator(
        settings
    ) == pytest.approx(below)


NOISY = {"epsilon": 1e9, "steps": 1, "noise_multiplier": 1.5, "clip_norm": 0.5}
EVERY: dict[str, tuple[str, Any]] = {
    "records": ("dp-sgd", Plan(protect="records", record_rate=0.5, records=6, **NOISY)),
    "users": ("dp-sgd", Plan(protect="users", user_rate=0.5, users=3, **NOISY)),
    "both": ("dp-sgd", Plan(protect="users+entities", user_rate=0.5, **NOISY)),
    "dp-fedavg": ("dp-fedavg", Plan(protect="users", user_rate=0.5, users=3, **NOISY)),
    "uedp": ("uedp", UedpSettings(user_rate=0.5)),
}


@pytest.mark.parametrize("name", EVERY)
def test_every_noise_draw_has_its_entry_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    method, settings = EVERY[name]
    path = tmp_path / "ledger.jsonl"
    at_draw: list[int] = []
    add = noise._add

    def counted(*given: Any) -> None:
        at_draw.append(len(read_ledger(path).entries))
        add(*given)

    monkeypatch.setattr(noise, "_add", counted)
    for step in range(1, 6):
        step_of(method, CORPUS, settings, tmp_path, step=step)
    assert at_draw == [1, 2, 3, 4, 5]
    (event,) = read_ledger(path).releases()
    wanted = (
        settings.event() if isinstance(settings, Plan) else uedp_event(data_of(CORPUS), settings)
    )
    assert event == wanted


@pytest.mark.parametrize("name", EVERY)
def test_a_step_to_which_nobody_comes_is_noise_all_the_same(tmp_path: Path, name: str) -> None:
    method, settings = EVERY[name]
    for seed in range(200):
        got, seen = step_of(method, CORPUS, settings, tmp_path, randomness=RandomSource(seed))
        if seen.units == 0:
            break
    assert seen.units == 0
    assert np.all(got != 0)


@pytest.mark.parametrize("name", [*EVERY, "plain"])
def test_a_record_whose_loss_is_nan_changes_nothing_but_a_count(tmp_path: Path, name: str) -> None:
    """It is dropped before clipping: the step is the one without it."""

    def broken(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        bad = (batch["x"] - torch.tensor([0.1, 0.9])).abs().sum(1) < 1e-6
        return curved(model, batch) * torch.where(bad, float("nan"), 1.0)

    if name == "plain":
        with Ledger(tmp_path / "ledger.jsonl", {}) as ledger:
            method = make_step("plain", Two(2), broken, data_of(CORPUS), ledger=ledger, batch=6)
            plain, seen = method.gradient(1)
        got = torch.cat([t.reshape(-1) for t in plain.values()]).double().numpy()
        assert np.allclose(got, gradient([0, 2, 3, 4, 5]) / 5, rtol=1e-5)
        assert seen.not_finite == 1
        return
    which, settings = EVERY[name]
    quiet = {"noise_multiplier": 0.0, "user_rate": 1.0} | (
        {"user_rate": None, "record_rate": 1.0} if name == "records" else {}
    )
    settings = type(settings)(**settings.model_dump() | quiet)
    local = LocalSettings(local_batch=99)
    if isinstance(settings, UedpSettings):
        settings = UedpSettings(**settings.model_dump() | {"entity_rate": 1.0})
    got, seen = step_of(which, CORPUS, settings, tmp_path, by=broken, local=local)
    assert seen.not_finite == 1
    assert np.all(np.isfinite(got))
    if name in ("records", "users", "dp-fedavg"):
        without = Vectors(CORPUS.records[:1] + CORPUS.records[2:])
        wanted, _ = step_of(which, without, settings, tmp_path, by=curved, local=local)
        assert np.allclose(got, wanted, rtol=1e-5)


def test_a_user_may_give_a_few_records_chosen_afresh() -> None:
    """Every record of a large user comes equally often, never more than so many at once."""
    crowd = Vectors((*(Record(0, (), (1.0, 0.0)) for _ in range(5)), Record(1, (), (0.0, 1.0))))
    plan = Plan(protect="users", user_rate=1.0, users=2, records_per_step=2, **QUIET)
    training_data = data_of(crowd)
    seen = np.zeros(6)
    for step in range(2000):
        mine, other = contributions(plan, training_data, RandomSource(3), step, np.array([0, 1]))
        assert len(mine) == 2
        assert other.tolist() == [5]
        seen[mine] += 1
    assert np.all(np.abs(seen[:5] / 2000 - 0.4) < 0.06)
    alone = contributions(plan, training_data, RandomSource(3), 7, np.array([0]))[0]
    beside = contributions(plan, training_data, RandomSource(3), 7, np.array([0, 1]))[0]
    assert alone.tolist() == beside.tolist()  # who else was drawn does not matter
    with pytest.raises(UsageError, match="records_per_step"):
        Plan(protect="records", record_rate=0.5, records=6, records_per_step=2, **NOISY)


@pytest.mark.parametrize("name", ["some records", "local steps"])
def test_who_else_is_drawn_decides_nothing_about_a_user(name: str) -> None:
    """Which records a user gives, and in which order it reads them, go by coins of its own."""
    plan = Plan(protect="users", user_rate=0.5, users=3, **QUIET | {"clip_norm": 0.5})
    training_data, model = data_of(CORPUS, plan), Two(2)
    if name == "some records":
        plan = plan.model_copy(update={"records_per_step": 1})
        total = totals_of("dp-sgd", model, curved, training_data, plan, randomness=RandomSource(3))
    else:
        local = LocalSettings(local_epochs=2, local_batch=1, local_learning_rate=0.9)
        total = totals_of(
            "dp-fedavg", model, curved, training_data, plan, randomness=RandomSource(3),
            options=local,
        )  # fmt: skip

    def over(*users: int) -> np.ndarray:
        tensors = total(1, np.array(users)).tensors
        return torch.cat([t.reshape(-1) for t in tensors.values()]).double().numpy()

    for user in range(3):
        others = [other for other in range(3) if other != user]
        alone = over(0, 1, 2) - over(*others)
        assert np.abs(alone - over(user)).max() < 1e-6


def test_local_batches_are_whole_passes_in_a_new_order() -> None:
    rng = np.random.default_rng(1)
    found = list(local_batches(np.arange(7), LocalSettings(local_epochs=3, local_batch=3), rng))
    assert [len(b) for b in found] == [3, 3, 1] * 3
    for start in (0, 3, 6):
        assert sorted(np.concatenate(found[start : start + 3]).tolist()) == list(range(7))
    assert found[0].tolist() != found[3].tolist()
    assert list(local_batches(np.arange(0), LocalSettings(local_steps=5), rng)) == []


def test_updates_leave_the_weights_and_refuse_what_they_cannot_bound() -> None:
    model = Two(2)
    before = [p.detach().clone() for p in model.parameters()]

    def train(unit: int) -> int:
        with torch.no_grad():
            for p in model.parameters():
                p.add_(unit + 1.0)
        return 0

    total = ClippedUpdates(model).users(train, 3, clip_norm=0.5)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    norm = sum(float(t.double().square().sum()) for t in total.tensors.values()) ** 0.5
    assert norm == pytest.approx(1.5)  # three whole updates of norm 0.5, all one way
    assert (total.units, total.clipped, total.clip_norm, total.unit) == (3, 3, 0.5, "users")
    with pytest.raises(UsageError, match="statistics"):
        ClippedUpdates(nn.BatchNorm1d(3))
    with pytest.raises(UsageError, match="not a norm"):
        ClippedUpdates(model).users(train, 1, clip_norm=0.0)
    with pytest.raises(UsageError, match="between 0 and 1"):
        ClippedUpdates(model).users(train, 1, clip_norm=1.0, weights=torch.tensor([2.0]))


def test_fedavg_cannot_promise_a_small_share_of_an_entity(tmp_path: Path) -> None:
    """Nothing clips its records one by one, and noise refuses what the sum does not bound."""
    plan = Plan(protect="users+entities", user_rate=1.0, entity_share=0.5, **NOISY)
    with pytest.raises(PrivacyRefused, match="records clipped before users are"):
        step_of("dp-fedavg", CORPUS, plan, tmp_path)
