"""How large a step is, and which weights are averaged at the end."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tacit.training.dp.random_source import RandomSource
from tacit.training.methods.method import StepStats
from tacit.training.models.optimizers import factor, make_optimizer, make_schedule
from tacit.training.phases.loop import Loop
from tacit.training.settings import OptimizerSettings


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_rates_rise_at_first_and_never_again(schedule: Any) -> None:
    settings = OptimizerSettings(schedule=schedule, warmup=4)
    rates = [factor(settings, step, 40) for step in range(1, 41)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert all(a >= b for a, b in pairwise(rates[3:]))
    assert all(rate > 0 for rate in rates)
    assert rates[-1] == 1.0 if schedule == "constant" else rates[-1] < 0.01


def test_the_rates_are_those_of_the_formulas() -> None:
    linear = [factor(OptimizerSettings(schedule="linear"), step, 10) for step in range(1, 11)]
    np.testing.assert_allclose(linear, 1 - np.arange(1, 11) / 10 + 1e-3)
    cosine = [factor(OptimizerSettings(schedule="cosine"), step, 10) for step in range(1, 11)]
    np.testing.assert_allclose(cosine, 0.5 * (1 + np.cos(np.pi * np.arange(1, 11) / 10)) + 1e-3)


@pytest.mark.parametrize("done", [0, 1, 5])
def test_a_schedule_goes_on_where_a_run_was_stopped(done: int) -> None:
    settings = OptimizerSettings(schedule="cosine", warmup=3, learning_rate=0.7)
    optimizer = make_optimizer(nn.Linear(2, 1), settings)
    schedule, rates = make_schedule(optimizer, settings, 10, done), []
    for _ in range(done, 10):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == [0.7 * factor(settings, step, 10) for step in range(done + 1, 11)]


class Downhill:
    """The same gradient in every step."""

    def gradient(self, step: int) -> tuple[dict[str, Tensor], StepStats]:
        return {"weight": torch.ones(1, 2), "bias": torch.full((1,), 2.0)}, StepStats(1, 0, 0, 0.0)


def test_the_last_share_of_the_weights_is_averaged() -> None:
    model = nn.Linear(2, 1)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    settings = OptimizerSettings(name="sgd", learning_rate=0.5, momentum=0, average=0.4)
    loop = Loop(model, Downhill(), make_optimizer(model, settings), settings, 10, RandomSource(1))
    assert loop.run() is None
    last = {name: p.detach().clone() for name, p in model.named_parameters()}
    loop.finish()
    # Steps 7 to 10 moved by 3.5 to 5 times the gradient; their mean is 4.25.
    for name, pull in (("weight", 1.0), ("bias", 2.0)):
        now = dict(model.named_parameters())[name].detach()
        torch.testing.assert_close(last[name], start[name] - 5.0 * pull)
        torch.testing.assert_close(now, start[name] - 4.25 * pull)
