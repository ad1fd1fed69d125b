"""Dropout by keyed random numbers: who else is drawn never changes a record's masks.

A mask that all records share (words of the vocabulary, entries of a matrix) is a function of the
step and the layer. A record's own mask is a function of the step, the record's number, which mask
of the pass it is, the place in the record and the coordinate: never of the batch, of the record's
row in it, or of how far it is padded. `step` sets the key of a step, `keyed` says which records
a batch holds; whoever draws from torch's own generator is refused by `refuse_torch_draws`.

Source: Steele et al. 2014 (SplitMix64's finalizer, which mixes each number by itself).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tacit.errors import PrivacyRefused

RECORD = "record"
"""The name in a batch of the records' numbers, by which their masks are keyed."""

DRAWS = (
    "The model draws random numbers of its own in a pass, by a record's place in the batch, so one "
    "unit's gradient would depend on who else is drawn; set that dropout (layerdrop, noise) to 0, "
    "or use nn.Dropout on tensors whose first dimension is the record."
)
_GOLDEN, _FIRST, _SECOND = -7046029254386353131, -4658895280553007687, -7723592293110705685
_LANES = 4
"""Masks made of one mixed number, 16 bits each."""


@dataclass
class _Step:
    """The key of one step, or of one part of it; `shared` and `drops` remember what was asked."""

    key: int
    seed: int
    shared: dict[tuple[Any, ...], Tensor] = field(default_factory=dict)
    drops: dict[int, bool] = field(default_factory=dict)

    def keys(self, numbers: Tensor) -> Tensor:
        """A key for each record; masks of all records have numbers below zero."""
        return _mix(numbers.to(torch.int64) * _GOLDEN + self.key)


@dataclass
class _Records:
    """The records of a batch, and how many masks their pass has asked for."""

    keys: Tensor
    masks: int = 0

    def next_keys(self, device: torch.device) -> Tensor:
        """Keys of the next mask of each record."""
        self.masks += 1
        self.keys = self.keys.to(device)
        return _mix(self.keys + _wrapped(self.masks * _GOLDEN))


_STEP: ContextVar[_Step | None] = ContextVar("step", default=None)
_RECORDS: ContextVar[_Records | None] = ContextVar("records", default=None)


# --- keys of steps and records ------------------------------------------------------------------


@contextmanager
def step(seed: int) -> Iterator[None]:
    """The masks of one step of training come from `seed`, in every process that takes part.

    So does torch's generator, for whatever a model without protection draws besides.
    """
    torch.manual_seed(seed)
    with _as_now(_Step(_wrapped(seed), seed)):
        yield


@contextmanager
def part(number: int) -> Iterator[None]:
    """Other masks for a part of the step, such as a local step; the same part, the same masks."""
    now = _STEP.get()
    if now is None:
        yield
        return
    key = int(_mix(torch.tensor([now.key + 1]) + _wrapped((number + 1) * _GOLDEN)))
    with _as_now(_Step(key, now.seed)):
        yield


@contextmanager
def _as_now(current: _Step) -> Iterator[None]:
    token = _STEP.set(current)
    try:
        yield
    finally:
        _STEP.reset(token)


def current_seed() -> int:
    """The seed of this step; 0 outside of one."""
    now = _STEP.get()
    return now.seed if now is not None else 0


@contextmanager
def keyed(model: nn.Module, batch: Mapping[str, Tensor]) -> Iterator[None]:
    """A pass of the model over these records: every dropout in it takes their own masks.

    Without a step, or without numbers of records, torch's generator is left to it.
    """
    now, numbers = _STEP.get(), batch.get(RECORD)
    if now is None or numbers is None:
        yield
        return
    if id(model) not in now.drops:
        now.drops[id(model)] = any(_has_dropout(module) for module in model.modules())
    token = _RECORDS.set(_Records(now.keys(numbers)))
    try:
        with _ByRecord() if now.drops[id(model)] else nullcontext():
            yield
    finally:
        _RECORDS.reset(token)


def _has_dropout(module: nn.Module) -> bool:
    """Whether there is a dropout to listen for: without one, a pass costs nothing more."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    shares = (value for name, value in vars(module).items() if "drop" in name)
    return any(isinstance(value, float) and value > 0 for value in shares)


# --- masks ------------------------------------------------------------------------------------


def shared_mask(layer: int, shape: Sequence[int], share: float, like: Tensor) -> Tensor:
    """The factor by which all records of the step drop the same things: 0, or 1 / (1 - share).

    A function of the step and of `layer`, which is this mask's number in the model.
    """
    now = _STEP.get()
    if now is None:
        return _torch_mask(like.new_empty(tuple(shape)), share)
    name = (layer, *shape, share, like.dtype, like.device)
    if name not in now.shared:
        key = now.keys(torch.tensor([-1 - layer])).to(like.device)
        now.shared[name] = _factor(key, (1, *shape), share, like).squeeze(0)
    return now.shared[name]


def record_mask(shape: Sequence[int], share: float, like: Tensor) -> Tensor:
    """The factor by which each record, along the first dimension, drops things of its own."""
    records = _RECORDS.get()
    if records is None or shape[0] != len(records.keys):
        return _torch_mask(like.new_empty(tuple(shape)), share)
    return _factor(records.next_keys(like.device), shape, share, like)


def record_uniform(width: int, device: torch.device) -> Tensor | None:
    """A number in [0, 1) for each of the first `width` places of each record; None without keys."""
    records = _RECORDS.get()
    if records is None:
        return None
    mixed = _spread(records.next_keys(device), (width,))
    return (mixed >> 11 & (1 << 53) - 1) * 2.0**-53


def _torch_mask(mask: Tensor, share: float) -> Tensor:
    return mask.bernoulli_(1 - share).div_(1 - share)


def _factor(keys: Tensor, shape: Sequence[int], share: float, like: Tensor) -> Tensor:
    """0 or 1 / (1 - share), at shares of 65536, each place a function of its key and indices."""
    if share >= 1:
        return like.new_zeros(tuple(shape))
    gone = min(max(round(share * 65536), 1), 65535)
    *before, width = shape[1:]
    mixed = _spread(keys, (*before, -(-width // _LANES)))
    kept = mixed.view(torch.int16)[..., :width] >= gone - 32768
    return kept.to(like.dtype).mul_(65536 / (65536 - gone))


def _spread(keys: Tensor, shape: Sequence[int]) -> Tensor:
    """A mixed number for every key and index; no index is scaled by the length of a dimension."""
    mixed = keys
    for size in shape:
        places = torch.arange(1, size + 1, device=keys.device) * _GOLDEN
        mixed = _mix(mixed.unsqueeze(-1) + places)
    return mixed


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finalizer, in place; torch shifts in copies of the sign, which are cut off."""
    moved = torch.empty_like(z)
    for bits, factor in ((30, _FIRST), (27, _SECOND), (31, 1)):
        torch.bitwise_right_shift(z, bits, out=moved)
        z.bitwise_xor_(moved.bitwise_and_((1 << 64 - bits) - 1))
        if factor != 1:
            z.mul_(factor)
    return z


def _wrapped(number: int) -> int:
    """A whole number as 64 bits with a sign, as torch has them."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


# --- where models ask for them ----------------------------------------------------------------


class _ByRecord(TorchFunctionMode):
    """Every dropout of a pass, whoever calls it, by the keys of the records.

    One whose first dimension is not the record is left to torch's generator.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if func is F.dropout or func is torch.dropout:
            return _dropout(func, *args, **given)
        if func is F.scaled_dot_product_attention and (
            given.get("dropout_p", args[4] if len(args) > 4 else 0.0) > 0
        ):
            return _attention(*args, **given)
        return func(*args, **given)


def _dropout(
    func: Callable[..., Any],
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    **named: Any,
) -> Tensor:
    training = bool(named.get("train", training))
    records = _RECORDS.get()
    # The first dimension is the record, alone or with what follows it (heads, tokens).
    if (
        not training
        or p == 0
        or records is None
        or not (input.dim() > 0 and input.numel() > 0 and input.shape[0] % len(records.keys) == 0)
    ):
        same: Tensor = func(input, p, training, *([inplace] if func is F.dropout else []))
        return same
    count = len(records.keys)
    each = (count, input.shape[0] // count, *input.shape[1:])
    mask = record_mask(each, p, input).view(input.shape)
    return input.mul_(mask) if inplace else input * mask


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention written out, as torch itself does it where there is dropout on a processor."""
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    weight = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        later = torch.ones(weight.shape[-2:], dtype=torch.bool, device=weight.device).triu(1)
        weight = weight.masked_fill(later, float("-inf"))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        weight = weight.masked_fill(~attn_mask, float("-inf"))
    elif attn_mask is not None:
        weight = weight + attn_mask
    return _dropout(F.dropout, torch.softmax(weight, -1), dropout_p) @ value


# --- who draws otherwise ----------------------------------------------------------------------


@contextmanager
def refuse_torch_draws() -> Iterator[None]:
    """Refuse a pass that draws from torch's own generator, whose numbers go by place in a batch."""
    before = _generators()
    yield
    if any(not torch.equal(*pair) for pair in zip(before, _generators(), strict=True)):
        raise PrivacyRefused(DRAWS)


def _generators() -> list[Tensor]:
    cuda = [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *cuda]
