"""The only place where noise is added.

`release` takes a bounded sum and nothing else, writes the ledger first, and takes the standard
deviation from the event that it wrote: clip norm, noise and entry cannot drift apart.
"""

from concurrent.futures import ThreadPoolExecutor
from math import frexp, ldexp

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import PrivacyRefused
from tacit.privacy.events import (
    AnyEvent,
    Flat,
    MentionSubstitution,
    ReplaceOne,
    SampledGaussian,
    SelectivePart,
    UserClip,
)
from tacit.privacy.ledger import Ledger
from tacit.training.dp.gradients import BoundedSum
from tacit.training.dp.random_source import Normals, RandomSource

GRID_BITS = 10
"""Released values are rounded to a multiple of about noise_std / 2^10."""


def release(
    total: BoundedSum,
    event: AnyEvent,
    ledger: Ledger,
    randomness: RandomSource,
    *,
    phase: str,
    step: int,
    part: int = 0,
) -> dict[str, Tensor]:
    """The sum with Gaussian noise on every coordinate, after the ledger has the event.

    *Guarantee*: one unit moves the sum by at most `total.clip_norm`; the noise has standard
    deviation `event.noise_multiplier * total.clip_norm`, drawn afresh and independently for every
    coordinate. The result is rounded to a grid of about a thousandth of the noise, which is
    post-processing: every cell holds thousands of single-precision numbers, so the uneven spacing
    of floating-point noise, which attacks on its low bits use, does not show. Several releases of
    one step have each a `part` of their own, so that no noise is used twice under a fixed seed.
    """
    noise_std = noise_std_of(total, event)
    ledger.charge(event, phase=phase)
    tensors = {name: tensor.detach().clone() for name, tensor in total.tensors.items()}
    _add(tensors, noise_std, randomness, step, part)
    return tensors


def noise_std_of(total: BoundedSum, event: AnyEvent) -> float:
    """The standard deviation that the event asks for, if the sum is bounded as the event says."""
    match event:
        case UserClip():
            unit, multiplier = "users", event.noise_multiplier
            if event.entity_share < 2 and total.record_clip is None:
                raise PrivacyRefused(
                    f"entity_share={event.entity_share:g} needs records clipped before users are; "
                    "this sum clips users only."
                )
        case MentionSubstitution():
            unit, multiplier = "users", event.noise_multiplier
            allowed = event.name_share * total.clip_norm if event.shows else 0.0
            if total.name_clip > allowed:
                raise PrivacyRefused(
                    f"name_share={event.name_share:g} lets a shown name move its user by "
                    f"{allowed:g}, and this sum lets it move by {total.name_clip:g}."
                )
        case SampledGaussian() | ReplaceOne():
            unit, multiplier = event.unit, event.noise_multiplier
            unit = "records" if unit == "tokens" else unit
        case Flat():
            unit, multiplier = "records", event.noise_multiplier
        case SelectivePart():
            unit = "records"
            multiplier = event.state_noise_multiplier if event.state else event.noise_multiplier
        case _:
            raise PrivacyRefused(f"The event '{event.event}' adds no noise to a sum.")
    if total.unit != unit:
        raise PrivacyRefused(
            f"The sum bounds {total.unit}, and the event '{event.event}' speaks of {unit}."
        )
    return multiplier * total.clip_norm


def _add(
    tensors: dict[str, Tensor], noise_std: float, randomness: RandomSource, step: int, part: int = 0
) -> None:
    """Noise and rounding in place, piece by piece on all cores, a stream for each piece."""
    if noise_std == 0:
        return
    pieces = [p for tensor in tensors.values() for p in tensor.view(-1).split(Normals.LENGTH)]
    key = randomness.key(step, part)
    workers = min(torch.get_num_threads(), len(pieces))

    def fill(first: int) -> None:
        normals = Normals(key, max(piece.numel() for piece in pieces))
        for number in range(first, len(pieces), workers):
            _disturb(pieces[number], normals.draw(number, pieces[number].numel()), noise_std)

    if workers == 1:  # nothing to share, so nobody to wait for
        fill(0)
        return
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(fill, range(workers)))


def _disturb(piece: Tensor, noise: NDArray[np.float32], noise_std: float) -> None:
    """Noise and rounding, in units of the grid: a power of two, so that scaling loses nothing."""
    grid = _grid(noise_std)
    noise *= np.float32(noise_std / grid)
    if piece.device.type == "cpu" and piece.dtype in (torch.float32, torch.float64):
        values = piece.numpy()  # torch would share each of these among threads of its own
        values *= values.dtype.type(1 / grid)
        values += noise
        np.rint(values, out=values)
        values *= values.dtype.type(grid)
        return
    piece.mul_(1 / grid).add_(torch.from_numpy(noise).to(piece)).round_().mul_(grid)


def _grid(noise_std: float) -> float:
    """A power of two at or below noise_std / 2^GRID_BITS.

    >>> _grid(1.0) == 2.0**-10, _grid(1.5) == 2.0**-10, _grid(3.0) == 2.0**-9
    (True, True, True)
    """
    _, exponent = frexp(noise_std)
    return ldexp(1.0, exponent - 1 - GRID_BITS)
