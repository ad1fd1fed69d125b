"""Optimizers: how a released gradient becomes an update; none of this touches private data."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from tacit.training.models.registries import OPTIMIZERS
from tacit.training.settings import OptimizerSettings


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
    return torch.optim.Adam(parameters, **_adam_settings(settings))


def adamw(parameters: list[nn.Parameter], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay."""
    return torch.optim.AdamW(parameters, **_adam_settings(settings))


def dp_adam(parameters: list[nn.Parameter], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Adam whose second moment is freed of the noise that a private step is known to add."""
    return DpAdam(parameters, **_adam_settings(settings), noise_floor=settings.noise_floor)


def _adam_settings(settings: OptimizerSettings) -> dict[str, Any]:
    return {
        "lr": settings.learning_rate,
        "betas": (settings.momentum, settings.beta2),
        "weight_decay": settings.weight_decay,
    }


class DpAdam(torch.optim.Optimizer):
    """Adam with the variance of the noise subtracted from its second moment.

    Noise has the same variance in every coordinate, so it makes Adam's second moments alike, and
    Adam a slow gradient descent. Its standard deviation is public: `noise_std` of each group,
    which whoever takes the steps sets before each of them (`tell_noise`). What is left of a second
    moment is at least (noise_floor * noise_std)^2. Without noise this is Adam.

    *Guarantee*: post-processing of what was released; it sees neither data nor exact sums.
    Source: Tang, Shpilevskiy and Lécuyer 2024 (DP-AdamBC). Departs: their floor is a constant.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        noise_floor: float = 1.0,
        eps: float = 1e-8,
    ) -> None:
        group = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "eps": eps}
        super().__init__(parameters, group | {"noise_floor": noise_floor, "noise_std": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update from the gradients as they stand."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        state, (first, second) = self.state[parameter], group["betas"]
        if not state:
            state |= {"step": 0, "noise": 0.0}
            state |= {n: torch.zeros_like(parameter) for n in ("exp_avg", "exp_avg_sq")}
        if group["weight_decay"]:
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
        state["step"] += 1
        state["exp_avg"].lerp_(gradient, 1 - first)
        state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        # Averaged as the squares are: clip norms, and with them the noise, may differ by step.
        state["noise"] = second * state["noise"] + (1 - second) * group["noise_std"] ** 2
        seen = 1 - second ** state["step"]
        noise = state["noise"] / seen
        moment = (
            state["exp_avg_sq"].div(seen).sub_(noise).clamp_(min=group["noise_floor"] ** 2 * noise)
        )
        rate = group["lr"] / (1 - first ** state["step"])
        parameter.addcdiv_(state["exp_avg"], moment.sqrt_().add_(group["eps"]), value=-rate)


def tell_noise(optimizer: torch.optim.Optimizer, noise_std: float) -> None:
    """Tell an optimizer that asks for it how much noise is in each coordinate of its gradients."""
    for group in optimizer.param_groups:
        if "noise_std" in group:
            group["noise_std"] = noise_std


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
