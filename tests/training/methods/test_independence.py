"""Models in which one unit moves another are refused before anything is charged; others never."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from support import steps
from support.small import dialogs
from support.steps import make_step
from support.units import BOTH, KINDS, RECORDS, TASKS, USERS, model_of, records, suits
from tacit.errors import PrivacyRefused, UsageError
from tacit.privacy.ledger import Ledger, read_ledger
from tacit.training.dp.random_source import RandomSource
from tacit.training.methods import independence
from tacit.training.methods.dp_fedavg import LocalSettings
from tacit.training.methods.independence import UnitCheck
from tacit.training.models.optimizers import make_optimizer
from tacit.training.phases import run_context, session
from tacit.training.phases.loop import Loop
from tacit.training.settings import OptimizerSettings, Run
from tacit.training.tasks.tasks import NextWord

PLANS = {"users": USERS, "records": RECORDS, "both": BOTH}


def check_of(model: nn.Module, task: str = "next-word", plan: str = "users") -> UnitCheck:
    return steps.check_of(
        "dp-sgd", model, TASKS[task].losses, records(task), PLANS[plan], token_budget=4096
    )


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("kind", [*KINDS, "gpt2 lora", "bert lora", "llama lora"])
def test_good_models_are_accepted(kind: str, plan: str) -> None:
    task = next(
        t for t in (("masked-word", "tagging") if plan == "both" else TASKS) if suits(kind, t)
    )
    model = model_of(kind, task).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generator = torch.get_rng_state()
    check_of(model, task, plan).need(first=True)
    assert not any(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), generator)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert all(p.grad is None and p.dtype == torch.float32 for p in model.parameters())


# --- what is refused --------------------------------------------------------------------------


class Planted(nn.Module):
    """A fault between the layers of a model."""

    def __init__(self, fault: Callable[["Planted", Tensor], Tensor]) -> None:
        super().__init__()
        self.fault, self.calls = fault, 0
        self.register_buffer("mean", torch.zeros(()), persistent=True)
        self.own = torch.Generator().manual_seed(0)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.fault(self, x) if self.training else x


def packed(_: Planted, x: Tensor) -> Tensor:
    """Attention over all records in one row, as if they were one text."""
    whole = x.reshape(1, -1, x.shape[-1])
    return x + F.scaled_dot_product_attention(whole, whole, whole, is_causal=True).view_as(x)


def counted(own: Planted, x: Tensor) -> Tensor:
    own.mean.add_(1e-3 * x.detach().mean())
    return x


def dropped_layer(_: Planted, x: Tensor) -> Tensor:
    return x if random.random() < 0.01 else x * 1.0


class Backwards(torch.autograd.Function):
    """Gradients of records that meet, behind values that do not."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] + gradients[0].mean(0, keepdim=True)


class Counting(Backwards):
    """Gradients that grow from call to call."""

    calls = 0

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> Tensor:
        Counting.calls += 1
        return gradients[0] * (1 + 0.1 * Counting.calls)


class Faintly(Backwards):
    """The same, too little for any comparison of numbers."""

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] + 1e-9 * gradients[0].mean(0, keepdim=True)


FAULTS: dict[str, Callable[[Planted, Tensor], Tensor]] = {
    "mean over the batch": lambda _, x: x + 0.1 * x.mean(0, keepdim=True),
    "a trace of the mean": lambda _, x: x + 1e-9 * x.mean(0, keepdim=True),
    "statistics of the batch": lambda _, x: F.batch_norm(
        x.transpose(1, 2), None, None, training=True
    ).transpose(1, 2),
    "packed": packed,
    "one mask for a batch": lambda own, x: x * torch.rand(x.shape[-1], generator=own.own).gt(0.3),
    "a mask by place": lambda _, x: x * torch.linspace(1, 2, len(x)).view(-1, 1, 1),
    "by the longest": lambda _, x: x * x.shape[1],
    "by how many": lambda _, x: x / len(x),
    "torch's generator": lambda _, x: x + 1e-6 * torch.rand_like(x),
    "a generator of its own": lambda own, x: x + 0.1 * torch.rand(x.shape, generator=own.own),
    "Python's generator": dropped_layer,
    "numpy's generator": lambda _, x: x + 0.0 * np.random.rand(),  # noqa: NPY002
    "a count of calls": lambda own, x: x * (1 + 0.01 * own.calls),
    "statistics kept": counted,
    "gradients that meet": lambda _, x: Backwards.apply(x),
}


def planted(fault: str, kind: str = "gpt2") -> nn.Module:
    """A model whose embedding is followed by a fault."""
    model = model_of(kind, "next-word")
    inside = Planted(FAULTS[fault])
    model.planted = inside
    table = model.get_input_embeddings()
    table.register_forward_hook(lambda _module, _given, out: inside(out))
    return model.eval()


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("fault", FAULTS)
def test_what_couples_units_is_refused(fault: str, plan: str) -> None:
    with pytest.raises(PrivacyRefused):
        check_of(planted(fault, "lstm"), plan=plan).need(first=True)


def test_gradients_that_meet_ever_so_little_are_refused() -> None:
    model = model_of("lstm", "next-word")
    model.body.layers[0].register_forward_hook(
        lambda _module, _given, out: (Faintly.apply(out[0]), out[1])
    )
    with pytest.raises(PrivacyRefused, match="records beside it"):
        check_of(model).need()


def test_a_frozen_batchnorm_that_would_train_later_is_refused() -> None:
    model = model_of("gpt2", "next-word")
    norm = nn.BatchNorm1d(8, affine=False)
    model.norm = norm
    model.get_input_embeddings().register_forward_hook(
        lambda _module, _given, out: norm(out.transpose(1, 2)).transpose(1, 2)
    )
    with pytest.raises(UsageError, match="mixes the records of a batch"):
        check_of(model.eval()).need()


@pytest.mark.parametrize(
    "fault", ["statistics kept", "a count of calls", "torch's generator", "a generator of its own"]
)
def test_users_who_train_for_themselves_must_not_meet_in_the_model(fault: str) -> None:
    model, training_data = planted(fault, "lstm"), records("next-word")
    with pytest.raises(PrivacyRefused):
        steps.check_of("dp-fedavg", model, NextWord().losses, training_data, USERS).need()


def test_records_of_a_user_may_meet_where_the_user_trains_for_itself() -> None:
    model, training_data = planted("mean over the batch", "lstm"), records("next-word")
    local = LocalSettings(local_steps=2)
    steps.check_of(
        "dp-fedavg", model, NextWord().losses, training_data, USERS, options=local
    ).need()


def test_a_head_that_begins_at_zero_hides_nothing() -> None:
    """Its gradient is not zero, but the body's is until it has moved."""
    model = model_of("lstm", "next-word")
    model.body.layers[0].register_forward_hook(
        lambda _module, _given, out: (Counting.apply(out[0]), out[1])
    )
    nn.init.zeros_(model.head.weight)  # type: ignore[arg-type]
    check = check_of(model)
    check.need()
    with pytest.raises(PrivacyRefused):
        check.need(first=True)
    assert not model.head.weight.any()


def test_rounding_alone_refuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """What single precision cannot tell is decided in double."""
    looked: list[torch.dtype] = []
    monkeypatch.setattr(independence, "TOLERANCE", 0.0)
    model = model_of("gpt2", "next-word")
    model.lm_head.register_forward_hook(lambda _m, _x, out: looked.append(out.dtype))
    check_of(model).need()
    assert set(looked) == {torch.float32, torch.float64}
    assert all(tensor.dtype == torch.float32 for tensor in model.parameters())


def test_one_record_has_nobody_to_be_among() -> None:
    model, training_data = planted("mean over the batch", "lstm"), records("next-word", (5,))
    steps.check_of(
        "dp-sgd", model, NextWord().losses, training_data, USERS, token_budget=4096
    ).need()


# --- before anything is charged, and later ----------------------------------------------------


def faulty_runs(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Every model that is made has a fault."""
    made = run_context.make_model

    def make(*given: Any) -> nn.Module:
        model = made(*given)
        inside = Planted(FAULTS[fault])
        model.planted = inside
        model.get_input_embeddings().register_forward_hook(lambda _m, _x, out: inside(out))
        return model

    monkeypatch.setattr(run_context, "make_model", make)


METHODS: dict[str, dict[str, Any]] = {
    "users": {"plan": {"protect": "users", "user_rate": 0.3, "users": 50}},
    "records": {"plan": {"protect": "records", "record_rate": 0.1, "records": 120}},
    "both": {"plan": {"protect": "users+entities", "user_rate": 0.3}},
    "dp-fedavg": {
        "method": "dp-fedavg",
        "plan": {"protect": "users", "user_rate": 0.3, "users": 50},
    },
    "redacted": {
        "method": "redact-then-private",
        "plan": {"protect": "tokens", "record_rate": 0.1},
        "redact-then-private": {"steps": 1},
    },
    "residual": {
        "method": "residual-tokens",
        "plan": {"protect": "tokens", "mechanism": "residual-tokens", "record_rate": 0.1},
        "residual-tokens": {"steps": 1},
    },
    "selective": {"method": "selective", "plan": {"protect": "tokens", "mechanism": "selective",
                  "record_rate": 0.1, "segments": 2, "states": 2}},
    "uedp": {"method": "uedp", "steps": 2, "uedp": {"user_rate": 0.3, "entity_rate": 0.5}},
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_a_run_is_refused_before_anything_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    given = {key: dict(value) if isinstance(value, dict) else value
             for key, value in METHODS[name].items()}  # fmt: skip
    if "plan" in given:
        given["plan"] |= {"epsilon": 1e6, "noise_multiplier": 2.0, "steps": 2, "clip_norm": 0.5}
    settings = Run(**dialogs(tmp_path, customers=40), **given)
    charged: list[Any] = []
    monkeypatch.setattr(Ledger, "charge", lambda *event, **_: charged.append(event))
    faulty_runs(monkeypatch, "a count of calls")
    with pytest.raises(PrivacyRefused, match="among others than by itself"):
        session.train(settings, tmp_path / "run")
    assert charged == []
    assert not (tmp_path / "run").exists()


def test_plain_training_asks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faulty_runs(monkeypatch, "mean over the batch")
    run = Run(**dialogs(tmp_path, customers=40), method="plain", steps=1)
    assert session.train(run, tmp_path / "run").stopped is None


def test_what_begins_later_is_refused_before_its_release(tmp_path: Path) -> None:
    """After four steps a layer begins to mix: step 8 is looked at, and not released."""
    model, training_data = model_of("lstm", "next-word"), records("next-word")
    steps = 0

    def mixing(_module: nn.Module, _given: Any, out: Tensor) -> Tensor:
        return out + out.mean(0, keepdim=True) if steps > 4 else out

    model.get_input_embeddings().register_forward_hook(mixing)
    plan = USERS.model_copy(update={"noise_multiplier": 1.0, "steps": 20})
    with Ledger(tmp_path / "ledger.jsonl", {}) as ledger:
        method = make_step(
            "dp-sgd", model, NextWord().losses, training_data, plan, ledger=ledger,
            token_budget=4096,
        )  # fmt: skip
        settings = OptimizerSettings()
        loop = Loop(
            model,
            method,
            make_optimizer(model, settings),
            settings,
            20,
            RandomSource(1),
            ledger=ledger,
        )

        def told(at: Any) -> None:
            nonlocal steps
            steps = at.step

        with pytest.raises(PrivacyRefused, match="who else is drawn would move it"):
            loop.run(told)
    assert len(read_ledger(tmp_path / "ledger.jsonl").entries) == 7
