"""Optimizers: how a released gradient becomes an update; none of this touches private data."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from tacit.training.settings import OptimizerSettings


def make_optimizer(model: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """SGD, Adam or AdamW over the trainable parameters."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if settings.name == "sgd":
        return torch.optim.SGD(
            parameters,
            lr=settings.learning_rate,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        )
    kind = torch.optim.Adam if settings.name == "adam" else torch.optim.AdamW
    return kind(parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay)


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


def flat_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's memory: tensors, and what else it holds, by parameter and name."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for key, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"{key}/{name}"] = value.detach().contiguous()
            else:
                numbers[f"{key}/{name}"] = value
    return tensors, numbers


def put_optimizer(
    optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], numbers: dict[str, Any]
) -> None:
    """Put back what `flat_optimizer` gave."""
    state: dict[int, dict[str, Any]] = {}
    for name, value in (tensors | numbers).items():
        key, slot = name.split("/", 1)
        state.setdefault(int(key), {})[slot] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
