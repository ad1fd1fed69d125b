"""Optimizers see released gradients and public constants: what they make of them, and no more."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from support.small import Record, Two, Vectors, curved, data_of, dialogs
from support.steps import make_step
from tacit.errors import UsageError
from tacit.planning.plan import Plan
from tacit.privacy.ledger import Ledger
from tacit.training.dp.random_source import RandomSource
from tacit.training.models.optimizers import make_optimizer, tell_noise
from tacit.training.phases.loop import Loop
from tacit.training.settings import OptimizerSettings, Run

DP_ADAM = OptimizerSettings(name="dp-adam", learning_rate=0.1, noise_floor=0.5)


def gradients(steps: int, size: int = 50) -> np.ndarray:
    return np.random.default_rng(4).normal(size=(steps, size)).astype(np.float32)


def walked(settings: OptimizerSettings, steps: np.ndarray, noise: Any = 0.0) -> np.ndarray:
    """Where an optimizer ends that is given these gradients."""
    model = nn.Linear(steps.shape[1], 1, bias=False)
    nn.init.constant_(model.weight, 0.3)
    optimizer = make_optimizer(model, settings)
    for gradient, std in zip(steps, np.broadcast_to(noise, len(steps)), strict=True):
        model.weight.grad = torch.from_numpy(gradient).view(1, -1)
        tell_noise(optimizer, float(std))
        optimizer.step()
    return model.weight.detach().numpy()[0]


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_without_noise_it_is_adam(decay: float) -> None:
    change = {"weight_decay": decay, "momentum": 0.8, "beta2": 0.95}
    adam = DP_ADAM.model_copy(update={"name": "adam", **change})
    given = gradients(7)
    own = walked(DP_ADAM.model_copy(update=change), given)
    np.testing.assert_allclose(own, walked(adam, given), rtol=1e-5)


def test_the_variance_of_the_noise_is_taken_from_the_second_moment() -> None:
    """The paper's formula in double precision, the noise another one in every step."""
    given, noise = gradients(9), np.linspace(0.2, 1.1, 9)
    first = second = known = np.zeros(given.shape[1])
    place = np.full(given.shape[1], 0.3)
    for t, (g, std) in enumerate(zip(given.astype(np.float64), noise, strict=True), start=1):
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
        known = 0.999 * known + 0.001 * std**2
        phi = known / (1 - 0.999**t)
        left = np.maximum(second / (1 - 0.999**t) - phi, 0.25 * phi)
        place = place - 0.1 * first / (1 - 0.9**t) / (np.sqrt(left) + 1e-8)
    np.testing.assert_allclose(walked(DP_ADAM, given, noise), place, rtol=2e-4, atol=1e-5)
    assert not np.allclose(walked(DP_ADAM, given), place, atol=1e-2)


def test_a_private_step_says_how_much_noise_its_gradient_has(tmp_path: Path) -> None:
    """Noise multiplier times clip norm over the denominator, whatever the records say."""
    plan = Plan(
        protect="users", user_rate=1.0, users=50, epsilon=8, steps=3, noise_multiplier=1.5,
        clip_norm=0.2,
    )  # fmt: skip
    corpus = Vectors((Record(0, (), (0.3, -0.2)), Record(1, (), (0.8, 0.1))))
    model, seen = Two(2), []
    with Ledger(tmp_path / "ledger.jsonl", {}) as ledger:
        method = make_step("dp-sgd", model, curved, data_of(corpus), plan, ledger=ledger)
        released = method.gradient

        def heard(step: int) -> Any:
            seen.append(released(step))
            return seen[-1]

        method.gradient = heard
        before = [p.detach().clone() for p in model.parameters()]
        optimizer = make_optimizer(model, DP_ADAM)
        Loop(model, method, optimizer, DP_ADAM, 3, RandomSource(1)).run()
    assert [stats.noise_std for _, stats in seen] == [pytest.approx(1.5 * 0.2 / 50)] * 3
    assert optimizer.param_groups[0]["noise_std"] == seen[0][1].noise_std
    # Nothing but the releases and that constant went into the weights.
    again = nn.ParameterList(before)
    replayed = make_optimizer(again, DP_ADAM)
    for gradient, stats in seen:
        for parameter, tensor in zip(again, gradient.values(), strict=True):
            parameter.grad = tensor
        tell_noise(replayed, stats.noise_std)
        replayed.step()
    assert all(torch.equal(a, b) for a, b in zip(again, model.parameters(), strict=True))


def test_a_method_that_does_not_tell_its_noise_is_refused(tmp_path: Path) -> None:
    plan = {"protect": "tokens", "epsilon": 8, "steps": 2, "record_rate": 0.1}
    base = dialogs(tmp_path) | {"plan": plan, "optimizer": {"name": "dp-adam"}}
    with pytest.raises(UsageError, match="has to know the noise of each update"):
        Run(**base, method="selective", policy="digits")
    Run(**base, method="redact-then-private", policy="digits")
