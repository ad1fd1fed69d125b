"""A record's masks are its own: not of the batch, of its place there, of padding or of order."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from support.steps import make_step, totals_of
from support.units import (
    KINDS,
    RECORDS,
    TASKS,
    USERS,
    WORDS,
    model_of,
    records,
    renumbered,
    suits,
    sum_over,
)
from tacit.errors import PrivacyRefused
from tacit.planning.plan import Plan
from tacit.privacy.ledger import Ledger
from tacit.training.data.training_data import TrainingData
from tacit.training.dp import dropout
from tacit.training.dp.dropout import RECORD
from tacit.training.dp.gradients import ClippedSums
from tacit.training.methods.dp_fedavg import LocalSettings
from tacit.training.methods.noisy_sums import LossMeter
from tacit.training.models.lstm import GateLSTM
from tacit.training.models.recurrent import AWD_LSTM, LSTMConfig, LSTMForCausalLM
from tacit.training.tasks.examples import Examples
from tacit.training.tasks.tasks import NextWord

CASES = [
    (kind, task)
    for kind in (*KINDS, "gpt2 lora", "bert lora", "llama lora")
    for task in TASKS
    if suits(kind, task)
]


@pytest.mark.parametrize(("kind", "task"), CASES)
def test_a_unit_gives_alone_what_it_gives_among_others(kind: str, task: str) -> None:
    """Every kind of model, every task, every dropout; other orders, batches and paddings."""
    model, losses, training_data = model_of(kind, task).double(), TASKS[task].losses, records(task)
    for plan, units in ((USERS, 4), (RECORDS, 8)):
        alone = [sum_over(model, losses, training_data, [unit], plan=plan) for unit in range(units)]
        assert sum(bool(one.any()) for one in alone) >= units - 1  # a mask may leave nothing
        for chosen, budget in ((range(units), 4096), (range(units - 1, 0, -1), 12), ([0, 2], 99)):
            wanted = torch.stack([alone[unit] for unit in chosen]).sum(0)
            got = sum_over(model, losses, training_data, [*chosen], plan=plan, token_budget=budget)
            torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "lstm"])
def test_every_dropout_acts_and_is_drawn_anew_in_every_step(kind: str) -> None:
    task = "masked-word" if kind == "bert" else "next-word"
    model, losses, training_data = model_of(kind, task), TASKS[task].losses, records(task)
    one, again, other = (
        sum_over(model, losses, training_data, [0], seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(one, again)
    assert not torch.allclose(one, other)


def test_one_short_user_does_not_move_the_others(tmp_path: Path) -> None:
    """The dropouts of the AWD-LSTM; masks drawn for a batch moved the others by three norms."""
    config = LSTMConfig(
        **AWD_LSTM.defaults | {"vocab_size": 60, "embedding_size": 12, "hidden_size": 20}
    )
    rng = np.random.default_rng(3)
    lengths = [*rng.integers(20, 30, 40), 9]
    ids = [rng.integers(2, 60, length).astype(np.int32) for length in lengths]
    numbers = np.arange(len(ids))
    examples = Examples(ids, numbers.astype(np.int32), numbers.astype(np.int32), 0)
    plan = Plan(**USERS.model_dump() | {"users": 41, "clip_norm": 0.5})

    def step(users: int) -> Tensor:
        torch.manual_seed(0)
        model = LSTMForCausalLM(config).train()
        for parameter in model.parameters():
            parameter.data.mul_(8)  # as after training: what is dropped matters
        rows = numbers[:users]
        training_data = TrainingData(examples, rows, tuple(np.split(rows, users)), None, None)
        with Ledger(tmp_path / f"{users}.jsonl", {}) as ledger:
            method = make_step(
                "dp-sgd", model, NextWord().losses, training_data, plan, ledger=ledger,
                token_budget=256,
            )  # fmt: skip
            gradient, _ = method.gradient(1)
        return torch.cat([t.reshape(-1) for t in gradient.values()]) * 41

    assert float((step(41) - step(40)).norm()) <= plan.clip_norm * (1 + 1e-4)


def test_local_steps_have_masks_of_their_own_which_all_users_share() -> None:
    """Else what is dropped in a round would be trained by nobody in it."""
    model, training_data = model_of("weight_drop", "next-word"), records("next-word")
    seen: list[Tensor] = []
    layer = model.body.layers[0]
    layer.register_forward_pre_hook(
        lambda module, _: seen.append((module.weight_hh_l0 == 0).detach().clone())
    )
    total = totals_of(
        "dp-fedavg", model.train(), NextWord().losses, training_data, USERS,
        options=LocalSettings(local_steps=2),
    )  # fmt: skip
    with dropout.step(5):
        total(1, np.arange(2))
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(seen[1], seen[3])
    assert not torch.equal(seen[0], seen[1])


def test_a_record_that_two_users_hand_in_has_the_same_masks() -> None:
    """Coins are keyed by the record, not by who it counts for."""
    model, training_data = model_of("awd-lstm", "next-word"), records("next-word")
    one, other = (renumbered(training_data, users) for users in ([[0], [1, 2]], [[1, 2, 3], [0]]))
    first, second = (
        sum_over(model, NextWord().losses, those, [at]) for those, at in ((one, 0), (other, 1))
    )
    torch.testing.assert_close(first, second)


# --- masks ------------------------------------------------------------------------------------


def masks(numbers: list[int], *shape: int, before: int = 0, seed: int = 1) -> Tensor:
    """The mask of a few records, after some others of the same pass."""
    with dropout.step(seed), dropout.keyed(nn.Identity(), {RECORD: torch.tensor(numbers)}):
        for _ in range(before):
            dropout.record_mask((len(numbers), 3), 0.5, torch.zeros(()))
        return dropout.record_mask((len(numbers), *shape), 0.3, torch.zeros(()))


def test_a_mask_is_a_function_of_record_place_and_coordinate() -> None:
    whole = masks([4, 7, 2], 2, 9, 10)
    assert torch.equal(masks([7], 2, 9, 10), whole[1:2])
    assert torch.equal(masks([2, 4], 2, 9, 10), whole[[2, 0]])
    assert torch.equal(masks([4, 7, 2], 2, 5, 6), whole[:, :, :5, :6])
    assert torch.equal(masks([4, 7, 2], 1, 9, 7), whole[:, :1, :, :7])


def test_masks_differ_between_records_places_calls_and_steps() -> None:
    whole = masks(list(range(40)), 30, 32)
    others = [
        masks(list(range(40)), 30, 32, before=1),
        masks(list(range(40)), 30, 32, seed=2),
        masks(list(range(40, 80)), 30, 32),
        whole.roll(1, 0), whole.roll(1, 1), whole.roll(1, 2), whole.roll(4, 2),
    ]  # fmt: skip
    gone = (whole == 0).double().flatten()
    assert abs(float(gone.mean()) - 0.3) < 5 * (0.21 / len(gone)) ** 0.5
    assert whole.unique().tolist() == pytest.approx([0.0, 1 / 0.7], rel=1e-4)
    for other in others:
        together = torch.stack([gone, (other == 0).double().flatten()])
        assert abs(float(torch.corrcoef(together)[0, 1])) < 5 / len(gone) ** 0.5


def test_shared_masks_are_those_of_the_step_and_the_layer() -> None:
    like = torch.zeros(())

    def drawn(seed: int, layer: int, numbers: list[int]) -> Tensor:
        with dropout.step(seed), dropout.keyed(nn.Identity(), {RECORD: torch.tensor(numbers)}):
            return dropout.shared_mask(layer, (30, 20), 0.4, like)

    one = drawn(1, 2, [3, 4])
    assert torch.equal(one, drawn(1, 2, [9]))
    assert not torch.equal(one, drawn(2, 2, [3, 4]))
    assert not torch.equal(one, drawn(1, 3, [3, 4]))
    assert 0.3 < float((one == 0).double().mean()) < 0.5


def test_a_share_of_one_drops_everything_and_a_tiny_one_next_to_nothing() -> None:
    keys, like = torch.arange(5), torch.zeros(())
    assert not dropout._factor(keys, (5, 100), 1.0, like).any()
    assert float((dropout._factor(keys, (5, 100), 1e-9, like) == 0).double().mean()) < 0.01


def test_coins_of_masked_words_are_uniform_and_the_records_own() -> None:
    def drawn(numbers: list[int], width: int) -> Tensor:
        with dropout.step(1), dropout.keyed(nn.Identity(), {RECORD: torch.tensor(numbers)}):
            found = dropout.record_uniform(width, torch.device("cpu"))
        assert found is not None
        return found

    whole = drawn(list(range(50)), 40)
    assert torch.equal(drawn([9, 3], 7), whole[[9, 3], :7])
    ordered = whole.flatten().sort().values
    assert float((ordered - torch.linspace(0, 1, len(ordered))).abs().max()) < 0.04
    assert dropout.record_uniform(3, torch.device("cpu")) is None


# --- every way to ask for dropout -------------------------------------------------------------


class Asks(nn.Module):
    """A dropout as somebody calls it."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self.call, self.dropout = call, 0.5

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x)


def attention(x: Tensor, **given: Any) -> Tensor:
    x = x.unsqueeze(1)
    return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5, **given).squeeze(1)


@pytest.mark.parametrize(
    "call",
    [
        nn.Dropout(0.5).train(),
        nn.Dropout(0.5, inplace=True).train(),
        F.dropout,
        lambda x: F.dropout(x, p=0.5, training=True),
        lambda x: torch.dropout(x, 0.5, True),
        lambda x: F.dropout(x.reshape(-1, x.shape[-1])).view_as(x),
        lambda x: F.dropout(x[:, 0, 0]).view(-1, 1, 1) * torch.ones_like(x),
        attention,
        lambda x: attention(x, is_causal=True),
        lambda x: F.scaled_dot_product_attention(  # type: ignore[call-arg]
            *[x.unsqueeze(1)] * 3, None, 0.5
        ).squeeze(1),
        GateLSTM(4, 4, 2, batch_first=True, dropout=0.5).train().forward,
    ],
)
def test_whoever_asks_gets_the_records_coins(call: Any) -> None:
    model, x = Asks(call), torch.randn(5, 3, 4)

    def ask(rows: list[int]) -> Tensor:
        batch = {RECORD: torch.tensor(rows)}
        with dropout.step(1), dropout.keyed(model, batch), dropout.refuse_torch_draws():
            made = model(x[rows].clone())
        return made[0] if isinstance(made, tuple) else made

    whole = ask([0, 1, 2, 3, 4])
    torch.testing.assert_close(ask([3, 1]), whole[[3, 1]])
    quiet = Asks(lambda given: given)
    assert not torch.allclose(whole, quiet(x))


@pytest.mark.parametrize(
    "given",
    [
        {"is_causal": True},
        {"attn_mask": torch.ones(5, 5, dtype=torch.bool).tril()},
        {"attn_mask": torch.linspace(-2, 2, 25).view(5, 5)},
        {"scale": 0.3},
        {"enable_gqa": True},
    ],
)
def test_attention_written_out_is_torchs(given: dict[str, Any]) -> None:
    q, k, v = (torch.randn(3, 4 if n == 0 or len(given) == 0 else 2, 5, 6) for n in range(3))
    if "enable_gqa" not in given:
        q = q[:, :2]
    got = dropout._attention(q, k, v, **given)
    torch.testing.assert_close(got, F.scaled_dot_product_attention(q, k, v, **given))


def test_without_a_dropout_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropout, "_ByRecord", None)
    still = model_of("gpt2", "next-word", dropout=0.0, attention_dropout=0.0)
    for model in (still, model_of("awd-lstm", "next-word")):
        sum_over(model, NextWord().losses, records("next-word"), [0, 1])


# --- who draws otherwise ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: x + torch.rand(1),
        lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)),
        lambda x: F.dropout(x.transpose(0, 1), 0.5).transpose(0, 1),
        lambda x: F.dropout1d(x, 0.5),
        lambda x: F.alpha_dropout(x, 0.5, training=True),
    ],
)
def test_a_sum_refuses_a_pass_that_draws_by_place(draw: Any) -> None:
    layer = nn.Linear(4, 1)
    model = nn.Sequential(Asks(draw), layer)

    def losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return model(batch["x"]).sum((1, 2))

    meter = LossMeter(model, losses)
    batch = {"x": torch.randn(2, 3, 4), RECORD: torch.arange(2)}
    with dropout.step(1), pytest.raises(PrivacyRefused, match="random numbers of its own"):
        ClippedSums(model).users(meter, [(batch, torch.tensor([0, 1]))], clip_norm=1.0)


def test_a_sum_outside_of_a_step_refuses_dropout() -> None:
    """Nobody said whose coins: then they would go by place."""
    model, training_data = model_of("awd-lstm", "next-word").train(), records("next-word")
    batch, owner = training_data.examples.batch(training_data.rows), torch.arange(8)
    with pytest.raises(PrivacyRefused, match="random numbers of its own"):
        ClippedSums(model).users(
            lambda b: NextWord().losses(model, b), [(batch, owner)], clip_norm=1.0
        )


def test_an_update_refuses_training_that_draws_by_place() -> None:
    model, training_data = model_of("lstm", "next-word"), records("next-word")

    def losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return NextWord().losses(model, batch) * (1 + torch.rand(1))

    total = totals_of("dp-fedavg", model, losses, training_data, USERS)
    with dropout.step(1), pytest.raises(PrivacyRefused, match="random numbers of its own"):
        total(1, np.arange(2))


def test_words_of_the_vocabulary_are_dropped_in_all_batches_alike() -> None:
    model = model_of("embedding_dropout", "next-word").train()
    ids = torch.arange(WORDS).view(2, -1)
    with dropout.step(1):
        gone = [
            (model.body._embed(part) == 0).all(-1).flatten() for part in (ids, ids[:1], ids[1:])
        ]
    assert torch.equal(gone[0], torch.cat(gone[1:]))
    assert gone[0].any()
