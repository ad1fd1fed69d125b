"""Optimizers: how a released gradient becomes an update; none of this touches private data."""

import math
from collections.abc import Callable

import torch
from torch import nn

from tacit.training.models.registries import OPTIMIZERS
from tacit.training.settings import OptimizerSettings

MakeOptimizer = Callable[[list[nn.Parameter], OptimizerSettings], torch.optim.Optimizer]


def sgd(parameters: list[nn.Parameter], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Stochastic gradient descent with momentum."""
    return torch.optim.SGD(
        parameters,
        lr=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )


def adam(parameters: list[nn.Parameter], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Adam; weight decay is part of the gradient."""
    return torch.optim.Adam(
        parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay
    )


def adamw(parameters: list[nn.Parameter], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay."""
    return torch.optim.AdamW(
        parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay
    )


def make_optimizer(model: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """The optimizer that the settings name, over the trainable parameters."""
    return OPTIMIZERS[settings.name]([p for p in model.parameters() if p.requires_grad], settings)


def make_schedule(
    optimizer: torch.optim.Optimizer, settings: OptimizerSettings, steps: int, done: int = 0
) -> torch.optim.lr_scheduler.LambdaLR:
    """The learning rate of every step, from the one after `done`; `step()` goes on to the next."""
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda before: factor(settings, before + 1, steps), last_epoch=done - 1
    )


def factor(settings: OptimizerSettings, step: int, steps: int) -> float:
    """The learning rate of a step over the given one.

    >>> factor(OptimizerSettings(schedule="linear", warmup=2), 1, 10)
    0.5
    """
    if step <= settings.warmup:
        return step / settings.warmup
    if settings.schedule == "constant":
        return 1.0
    share = (step - settings.warmup) / max(1, steps - settings.warmup)
    if settings.schedule == "linear":
        return max(0.0, 1.0 - share) + 1e-3
    return 0.5 * (1 + math.cos(math.pi * share)) + 1e-3
