"""A checkpoint: weights, optimizer and the place in the ledger, in one file that is whole or old.

No state of a generator is in it. It is safetensors, so reading one runs no code.

Beside it, models may be kept on the way, each a folder of its own. They are made of the noisy sums
that were released up to their step, and nothing else: the ledger covers them as it covers the last.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tacit.errors import DataError
from tacit.files import whole_file
from tacit.training.models.devices import device_of
from tacit.training.models.weights import flat_optimizer, put_optimizer, trainable

NAME = "checkpoint.safetensors"
KEPT = "checkpoints"


@dataclass(frozen=True)
class Place:
    """How far a run is: phase, step done, entries in the ledger, steps averaged.

    `ledger` is the hash that the ledger ended with then, `diverged` why no step may follow,
    `chosen` which weights are kept, once that is decided.
    """

    phase: str
    step: int
    entries: int
    averaged: int = 0
    ledger: str = ""
    diverged: str = ""
    chosen: str = ""


def save_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: dict[str, Tensor],
    place: Place,
    extra_state: dict[str, Tensor] | None = None,
) -> None:
    """Write the trainable weights, the optimizer's tensors and the running average.

    What a method keeps `aside`, beside the model, is written too.
    """
    tensors = {f"model/{n}": t for n, t in trainable(model).items()}
    held, numbers = flat_optimizer(optimizer)
    tensors |= {f"optimizer/{n}": t for n, t in held.items()}
    tensors |= {f"average/{n}": t for n, t in average.items()}
    tensors |= {f"aside/{n}": t for n, t in (extra_state or {}).items()}
    about = json.dumps({"place": place.__dict__, "numbers": numbers}, allow_nan=False)
    try:
        with whole_file(folder / NAME) as draft:
            save_file({n: t.clone() for n, t in tensors.items()}, draft, metadata={"tacit": about})
    except (SafetensorError, OSError):
        raise DataError(
            f"{folder / NAME} could not be written; is the disk full? The checkpoint before it and "
            f"the ledger are whole: make room, then --resume {folder}."
        ) from None


def read_place(folder: Path) -> Place | None:
    """How far the checkpoint of a folder is; None where there is none."""
    if not (folder / NAME).exists():
        return None
    return Place(**_read(folder / NAME)[0]["place"])


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["tacit"])
            Place(**about["place"])
            return about, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, ValueError, OSError):
        raise _not_ours(path) from None


def _not_ours(path: Path) -> DataError:
    return DataError(
        f"{path} is not a checkpoint of this run; give another folder, or remove it to begin "
        "again (what was spent stays in the ledger)."
    )


def load_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    load_extra_state: Callable[[dict[str, Tensor]], None] | None = None,
) -> tuple[Place, dict[str, Tensor]]:
    """Put a checkpoint back into model and optimizer, and what was kept aside where it belongs."""
    about, tensors = _read(folder / NAME)
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "average": {}, "aside": {}}
    try:
        for name, tensor in tensors.items():
            part, rest = name.split("/", 1)
            parts[part][rest] = tensor
        _fill(model, parts["model"])
        if load_extra_state is not None:
            load_extra_state(parts["aside"])
    except (KeyError, ValueError, RuntimeError):
        raise _not_ours(folder / NAME) from None
    put_optimizer(optimizer, parts["optimizer"], about["numbers"])
    device = device_of(model)
    average = {name: tensor.to(device) for name, tensor in parts["average"].items()}
    return Place(**about["place"]), average


def load_trained(folder: Path, model: nn.Module) -> None:
    """Put in place what a finished run's checkpoint ends with: the averaged weights, if any."""
    about, tensors = _read(folder / NAME)
    place = Place(**about["place"])
    part = "average/" if place.averaged and place.chosen != "last" else "model/"
    try:
        _fill(model, {n.removeprefix(part): t for n, t in tensors.items() if n.startswith(part)})
    except (KeyError, RuntimeError):
        raise _not_ours(folder / NAME) from None


def kept_steps(steps: int, count: int) -> frozenset[int]:
    """After which steps a model is kept: so many, evenly spread, before the last step.

    >>> sorted(kept_steps(100, 3))
    [25, 50, 75]
    """
    places = (round(steps * k / (count + 1)) for k in range(1, count + 1))
    return frozenset(step for step in places if 0 < step < steps)


def kept_folder(folder: Path, step: int) -> Path:
    """Where the model after a step is kept."""
    return folder / KEPT / f"step-{step:06d}"


def kept_models(folder: Path) -> dict[int, Path]:
    """The models that a run kept on the way, by step."""
    found = (folder / KEPT).glob("step-*")
    steps = {path.name.removeprefix("step-"): path for path in found if path.is_dir()}
    return {int(name): steps[name] for name in sorted(steps) if name.isdigit()}


def forget_after(folder: Path, step: int) -> None:
    """Take away models of steps that are to be done again."""
    for kept, place in kept_models(folder).items():
        if kept > step:
            shutil.rmtree(place)


def _fill(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    own = trainable(model)
    if own.keys() != tensors.keys():
        raise KeyError("other parameters")
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)


def save_weights(model: nn.Module, path: Path, *, private: bool = False) -> None:
    """Write what is trainable of a model; what private text went into is marked as ours."""
    about = {"tacit": "made of private text"} if private else None
    try:
        with whole_file(path) as draft:
            tensors = {name: t.detach().clone() for name, t in trainable(model).items()}
            save_file(tensors, draft, metadata=about)
    except (SafetensorError, OSError):
        raise DataError(
            f"{path} could not be written; is the disk full? Make room, then --resume "
            f"{path.parent}."
        ) from None


def load_weights(model: nn.Module, path: Path) -> bool:
    """Put weights in place; False if the file is not what it should be."""
    own: dict[str, Tensor] = dict(trainable(model))
    try:
        found = load_file(path)
    except (SafetensorError, OSError):
        return False
    if {n: t.shape for n, t in found.items()} != {n: t.shape for n, t in own.items()}:
        return False
    with torch.no_grad():
        for name, tensor in found.items():
            own[name].copy_(tensor)
    return True
