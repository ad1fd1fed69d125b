"""Counts of n-grams, released order by order, and a network that reads nothing else."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.small import dialogs
from tacit.audits.auditing import sums_of
from tacit.errors import PrivacyRefused, UsageError
from tacit.planning.plan import calibrated
from tacit.privacy.ledger import Ledger, read_ledger
from tacit.training.methods.method import MethodInputs
from tacit.training.methods.ngrams import NGRAMS, NgramSums, _nothing_counted, _totals
from tacit.training.models.noisy_ngrams import NoisyNgrams
from tacit.training.models.optimizers import make_optimizer
from tacit.training.models.weights import trainable
from tacit.training.phases.local_inputs import inputs_of, shared_method
from tacit.training.phases.loop import Loop
from tacit.training.phases.promising import allowed
from tacit.training.phases.run_context import open_run
from tacit.training.phases.selecting import put
from tacit.training.phases.session import train
from tacit.training.settings import Run

USERS = {"protect": "users", "epsilon": 8, "user_rate": 1.0, "users": 40, "steps": 4}
BOTH = {
    "protect": "users+entities", "epsilon": 8, "user_rate": 1.0, "steps": 4, "users_per_entity": 3,
}  # fmt: skip
FEW: dict[str, Any] = {"orders": [1, 2, 2, 3], "steps": 3, "batch": 4}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return dialogs(tmp_path_factory.mktemp("data")) | {
        "method": "ngrams", "ngrams": FEW,
        "tokenizer": {"kind": "words", "size": 300, "public_text": "generated"},
    }  # fmt: skip


def made(base: dict[str, Any], plan: dict[str, Any]) -> MethodInputs:
    run = Run(**base, plan=plan)
    asked = run.made_plan()
    assert asked is not None
    inputs, _ = inputs_of(open_run(run), calibrated(asked))
    return inputs


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "ledger.jsonl", {}) as opened:
        yield opened


def stepped(inputs: MethodInputs, ledger: Ledger) -> NgramSums:
    step = NGRAMS.step(replace(inputs, ledger=ledger))
    assert isinstance(step, NgramSums)
    return step


def naive(inputs: MethodInputs, ngrams: NoisyNgrams, users: list[int]) -> np.ndarray:
    """The same sum by the book: every record's vector written out, clipped; then every user's."""
    plan, data = inputs.need_plan(), inputs.training_data
    total = np.zeros(len(ngrams.now))
    for user in users:
        own = np.zeros(len(ngrams.now))
        for row in data.rows_of_user[user]:
            ids = data.examples.ids[row].astype(np.int64)  # type: ignore[attr-defined]
            found = set(ngrams.numbers(ids, np.arange(len(ids))).tolist()) - {-1}
            vector = np.zeros(len(own))
            for gram in found:
                vector[gram] = ngrams.weights[gram]
            length = np.linalg.norm(vector)
            if length > 0:
                own += vector * min(plan.clip_norm, plan.record_clip or np.inf) / length
        total += own * min(1.0, plan.clip_norm / max(np.linalg.norm(own), 1e-12))
    return total


@pytest.mark.parametrize("plan", [USERS, BOTH])
def test_sums_are_those_of_a_naive_loop_and_neighbours_move_them_by_their_bound(
    base: dict[str, Any], plan: dict[str, Any]
) -> None:
    inputs = made(base, plan | {"noise_multiplier": 1.0, "epsilon": 50})
    ngrams = _nothing_counted(inputs)
    total = _totals(inputs, ngrams)
    users = np.arange(inputs.training_data.users)
    for step in (1, 2, 3):
        found = total(step, users).tensors["weight"].view(-1).numpy()[: len(ngrams.now)]
        wanted = naive(inputs, ngrams, users.tolist())
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
        for user in users[:6].tolist():  # gone
            less = total(step, np.delete(users, user)).tensors["weight"].view(-1).numpy()
            gap = found - less[: len(found)]
            np.testing.assert_allclose(gap, naive(inputs, ngrams, [user]), rtol=1e-3, atol=1e-4)
            assert 0 < np.linalg.norm(gap) <= 1 + 1e-4
        ngrams.learn(found.astype(float), 0.01)


def test_a_record_that_names_somebody_moves_its_user_by_its_share(base: dict[str, Any]) -> None:
    inputs = made(base, BOTH)
    rows = inputs.training_data.rows_of_user
    many = next(user for user, own in enumerate(rows) if len(own) > 1)
    total = _totals(inputs, _nothing_counted(inputs))(1, np.array([many]))
    assert total.record_clip == 0.5
    for gone in rows[many]:
        own = tuple(r[r != gone] if u == many else r for u, r in enumerate(rows))
        part = replace(inputs, training_data=replace(inputs.training_data, rows_of_user=own))
        less = _totals(part, _nothing_counted(part))(1, np.array([many]))
        assert float((total.tensors["weight"] - less.tensors["weight"]).norm()) <= 0.5 + 1e-5


def test_every_look_is_in_the_ledger_before_it_is_one(
    ledger: Ledger, base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = made(base, USERS)
    step = stepped(inputs, ledger)
    seen = []
    learn = NoisyNgrams.learn

    def noted(self: NoisyNgrams, *given: Any) -> None:
        seen.append(len(read_ledger(ledger.path).entries))
        learn(self, *given)

    monkeypatch.setattr(NoisyNgrams, "learn", noted)
    for number in range(1, 5):
        assert step.gradient(number)[0] == {}
    assert seen == [1, 2, 3, 4]
    assert ledger.releases == inputs.need_plan().releases()


def test_the_network_reads_released_counts_and_nothing_else(
    ledger: Ledger, base: dict[str, Any]
) -> None:
    """Whoever has the releases alone, and no text, trains the very same network."""
    inputs = made(base, USERS)
    step = stepped(inputs, ledger)
    for number in range(1, 5):
        step.gradient(number)
    released = step.extra_state()
    empty = replace(inputs.training_data, rows=np.arange(0), rows_of_user=())
    other = stepped(replace(inputs, training_data=empty), ledger)
    other.load_extra_state(released)
    start = {name: p.detach().clone() for name, p in trainable(inputs.model).items()}
    ends = []
    for one in (step, other):
        put(inputs.model, start)
        reading = one.afterwards()
        assert reading is not None
        optimizer = torch.optim.SGD(inputs.model.parameters(), 1.0)
        settings = inputs.run.optimizer
        Loop(inputs.model, reading[0], optimizer, settings, reading[1], inputs.randomness).run()
        ends.append([p.detach().clone() for p in inputs.model.parameters()])
        assert one.afterwards() is None  # once
        assert one.extra_state() == {}
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(ends[0], start.values(), strict=True))


def test_a_budget_that_ends_early_leaves_a_network_of_what_was_released(
    tmp_path: Path, base: dict[str, Any]
) -> None:
    """As after a crash between a charge and its release, which is charged again."""
    inputs = made(base, USERS)
    plan, settings = inputs.need_plan(), inputs.run.optimizer
    before = [p.detach().clone() for p in inputs.model.parameters()]
    with Ledger(tmp_path / "ledger.jsonl", {}, allows=allowed(plan)) as ledger:
        ledger.charge(plan.event())
        loop = Loop(
            inputs.model, stepped(inputs, ledger), make_optimizer(inputs.model, settings),
            settings, 4, inputs.randomness,
        )  # fmt: skip
        assert loop.run() is not None
    assert loop.done == 3
    after = inputs.model.parameters()
    assert not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_counts_teach_what_the_corpus_says(tmp_path: Path, base: dict[str, Any]) -> None:
    fields = base | {"ngrams": FEW | {"steps": 60, "batch": 16}, "seed": None}
    plan = USERS | {"noise_multiplier": 0.05, "epsilon": 1e6}
    done = train(Run(**fields, plan=plan), tmp_path / "run")
    assert done.certificate.phases == {"train": 4}
    assert done.certificate.standing == "proved"
    assert "orders 1, 2, 2, 3" in done.certificate.context["n-grams"]
    assert done.metrics["valid"]["perplexity"] < 100  # uniform is 300


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ngrams": {"orders": [2, 3]}}, "begins at 1"),
        ({"ngrams": {"orders": [1, 3]}}, "rises by one"),
        ({"ngrams": {"orders": [1, 2]}}, "plan.steps=2"),
        ({"plan": USERS | {"user_rate": 0.5}}, "user_rate=1"),
        ({"optimizer": {"average": 0.5}}, "average"),
        ({"optimizer": {"name": "dp-adam"}}, "dp-adam"),
        ({"task": "classification"}, "serves the tasks next-word"),
        ({"plan": USERS | {"clip_quantile": 0.5}}, "clip_quantile"),
        ({"plan": {**USERS, "protect": "users+names", "name_share": 0.5}}, "shows no names"),
        ({"plan": {"protect": "records", "record_rate": 1.0, "epsilon": 8, "steps": 4,
                   "records": 40}}, "does not carry out"),
    ],
)  # fmt: skip
def test_what_counts_cannot_do_is_refused(
    base: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        Run(**base | {"plan": USERS} | changes)


def test_audits_and_several_processes_and_other_units_are_refused(
    ledger: Ledger, base: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match="one process"):
        shared_method(Run(**base, plan=USERS))
    assert not NGRAMS.federated
    inputs = made(base, USERS)
    with pytest.raises(UsageError, match="sums counts"):
        sums_of(inputs)
    plan = inputs.need_plan().model_copy(update={"protect": "users+entities", "entity_share": 0.5})
    event = plan.model_copy(update={"mechanism": "userclip"}).event(2.0)
    step = stepped(inputs, ledger)
    step._event = event  # a sum that clips users alone, and an event that asks for more
    with pytest.raises(PrivacyRefused, match="records clipped"):
        step.gradient(1)
    assert ledger.releases == {}
