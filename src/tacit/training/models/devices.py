"""Where a model lives: on the processor, or on a GPU, each process of a run on one of its own."""

import os

import torch
from torch import Tensor, nn

from tacit.errors import UsageError


def chosen_device(choice: str) -> torch.device:
    """The device that a run asks for; `auto` takes a GPU where there is one."""
    if choice == "cpu" or (choice == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UsageError(
            "device=cuda, but torch finds no GPU here; install a build of torch for it, or give "
            "device=cpu."
        )
    number = int(os.environ.get("LOCAL_RANK", "0"))
    if number >= torch.cuda.device_count():
        raise UsageError(
            f"Process {number} of this machine has no GPU of its own, there are "
            f"{torch.cuda.device_count()}; start as many processes, or give device=cpu."
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def device_of(model: nn.Module) -> torch.device:
    """Where a model lives."""
    return next(model.parameters()).device


def placed(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """A batch where the model lives."""
    device = device_of(model)
    return {name: tensor.to(device) for name, tensor in batch.items()}
