"""What one record adds to the gradient of a layer's parameters: a small rule for each kind.

A rule sees what a layer read and the gradient at what it said, and answers with one of three
shapes in which a record's gradient can be written without computing it: a product, rows of a
table, or the small thing itself.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from tacit.training.models.lstm import Gated


@dataclass(frozen=True)
class Product:
    """Record b adds `left[b]^T right[b]`, times `factor` entry by entry where there is one."""

    left: Tensor
    right: Tensor
    factor: Tensor | None = None


@dataclass(frozen=True)
class Lookup:
    """Record b adds `rows[b, t]` to the row `ids[b, t]` of the table, for every t."""

    ids: Tensor
    rows: Tensor


@dataclass(frozen=True)
class Whole:
    """Record b adds `values[b]`."""

    values: Tensor


Part = Product | Lookup | Whole


def of_rows(part: Part, rows: Tensor, size: int) -> Part:
    """The part of some rows of a table with `size` of them; nothing of the others is left."""
    if isinstance(part, Product):
        return replace(part, left=part.left.index_select(2, rows))
    if isinstance(part, Whole):
        return Whole(part.values.index_select(1, rows))
    place = torch.full((size,), -1, device=rows.device)
    place[rows] = torch.arange(len(rows), device=rows.device)
    ids = place[part.ids]
    return Lookup(ids.clamp(min=0), part.rows.masked_fill((ids < 0).unsqueeze(-1), 0))


def times(part: Part, factor: Tensor) -> Part:
    """The part of a gradient that is multiplied by `factor`, entry by entry."""
    if isinstance(part, Product):
        return replace(part, factor=factor if part.factor is None else part.factor * factor)
    if isinstance(part, Whole):
        return Whole(part.values * factor)
    return Lookup(part.ids, part.rows * factor[part.ids])


Rule = Callable[[nn.Module, Tensor, Tensor], Part]
"""From the layer, its input (batch x tokens x width) and the gradient at its output, to a part."""

_F = TypeVar("_F", bound=Rule)
_RULES: dict[type[nn.Module], dict[str, Rule]] = {}


def rule(kind: type[nn.Module], parameter: str) -> Callable[[_F], _F]:
    """Register the rule for one parameter of one kind of layer."""

    def register(function: _F) -> _F:
        _RULES.setdefault(kind, {})[parameter] = function
        return function

    return register


@rule(nn.Linear, "weight")
def _linear(layer: nn.Module, x: Tensor, gradient: Tensor) -> Part:
    return Product(gradient, x)


@rule(Conv1D, "weight")
def _transposed_linear(layer: nn.Module, x: Tensor, gradient: Tensor) -> Part:
    return Product(x, gradient)


@rule(nn.Conv1d, "weight")
def _convolution(layer: nn.Module, x: Tensor, gradient: Tensor) -> Part:
    """Every place is a token that reads the places around it."""
    assert isinstance(layer, nn.Conv1d)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    wide = F.pad(x, layer._reversed_padding_repeated_twice, mode=mode)
    (size,), (step,), (apart,) = layer.kernel_size, layer.stride, layer.dilation
    read = wide.unfold(2, (size - 1) * apart + 1, step)[..., ::apart]
    groups = (layer.groups, -1)
    values = torch.einsum(
        "bgot,bgitk->bgoik", gradient.unflatten(1, groups), read.unflatten(1, groups)
    )
    return Whole(values.flatten(1, 2))


@rule(nn.Conv1d, "bias")
def _convolution_bias(layer: nn.Module, x: Tensor, gradient: Tensor) -> Part:
    return Whole(gradient.sum(2))


@rule(nn.Linear, "bias")
@rule(Conv1D, "bias")
@rule(nn.LayerNorm, "bias")
def _bias(layer: nn.Module, x: Tensor, gradient: Tensor) -> Part:
    return Whole(gradient.sum(1))


@rule(nn.Embedding, "weight")
def _table(layer: nn.Module, ids: Tensor, gradient: Tensor) -> Part:
    assert isinstance(layer, nn.Embedding)
    if layer.padding_idx is not None:
        gradient = gradient.masked_fill((ids == layer.padding_idx).unsqueeze(-1), 0)
    return Lookup(ids, gradient)


@rule(nn.LayerNorm, "weight")
def _scale(layer: nn.Module, x: Tensor, gradient: Tensor) -> Part:
    assert isinstance(layer, nn.LayerNorm)
    return Whole(_dot(F.layer_norm(x, (x.shape[-1],), eps=layer.eps), gradient))


@rule(nn.RMSNorm, "weight")
def _rms_scale(layer: nn.Module, x: Tensor, gradient: Tensor) -> Part:
    assert isinstance(layer, nn.RMSNorm)
    return Whole(_dot(F.rms_norm(x, (x.shape[-1],), eps=layer.eps), gradient))


def _llama_rms_scale(layer: nn.Module, x: Tensor, gradient: Tensor) -> Part:
    """Models in the style of Llama normalize in single precision, whatever theirs is."""
    eps = getattr(layer, "variance_epsilon", getattr(layer, "eps", None))
    normal = F.rms_norm(x.to(torch.float32), (x.shape[-1],), eps=eps).to(x.dtype)
    return Whole(_dot(normal, gradient))


def _dot(x: Tensor, gradient: Tensor) -> Tensor:
    """The sum over tokens of x times gradient."""
    return (x * gradient).sum(1)


def find_rules(layer: nn.Module) -> dict[str, Rule] | None:
    """The rules of a layer by parameter, or None if it has none.

    A subclass has the rules of its parent only if it computes the same: if it left `forward`
    alone. RMSNorm is written anew in every Llama-style model and is known by its name.
    """
    for kind in type(layer).__mro__:
        if kind in _RULES and type(layer).forward is kind.forward:
            return _RULES[kind]
    own = dict(layer.named_parameters(recurse=False))
    if type(layer).__name__.endswith("RMSNorm") and set(own) == {"weight"}:
        return {"weight": _llama_rms_scale} if own["weight"].dim() == 1 else None
    return None


def why_refused(layer: nn.Module) -> str | None:
    """Why gradients of a layer with trainable parameters cannot be split by record, and what then.

    None if they can.
    """
    kind = type(layer).__name__
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        return f"is a {kind}, which mixes the records of a batch; use a LayerNorm or a GroupNorm"
    if isinstance(layer, nn.LSTM):
        return "is torch's own LSTM, which hides its gates; use tacit.training.models.lstm.GateLSTM"
    if isinstance(layer, nn.GRU):
        return "is torch's own GRU, which hides its gates; use tacit.training.models.gru.GateGRU"
    if isinstance(layer, Gated):
        return None
    if isinstance(layer, nn.Embedding) and layer.max_norm is not None:
        return "is an Embedding with max_norm, which changes its weights; leave max_norm out"
    if isinstance(layer, nn.Embedding) and layer.scale_grad_by_freq:
        return "is an Embedding with scale_grad_by_freq, which counts over the batch; leave it out"
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm) and len(layer.normalized_shape) != 1:
        return f"is a {kind} over several dimensions; normalize over the last one only"
    rules = find_rules(layer)
    missing = [
        name
        for name, parameter in layer.named_parameters(recurse=False)
        if parameter.requires_grad and name not in (rules or {})
    ]
    if missing:
        return (
            f"is a {kind}, and there is no rule for its {', '.join(missing)}; freeze it "
            "(requires_grad_(False)), or register one with tacit.training.dp.grad_sample_rules.rule"
        )
    return None


def gate_parts(
    names: tuple[str, ...],
    inputs: Tensor,
    states: Tensor,
    gates: tuple[Tensor, Tensor],
    used: dict[str, Tensor],
) -> dict[str, Part]:
    """The parts of one layer of a `Gated`: two products, and sums for the biases."""
    parts: dict[str, Part] = {}
    for name, read, said in zip(names[:2], (inputs, states), gates, strict=True):
        parts[name] = Product(said, read, _factor(used[name]))
    if len(names) > 2:
        first = Whole(gates[0].sum(1))
        parts[names[2]] = first
        parts[names[3]] = first if gates[1] is gates[0] else Whole(gates[1].sum(1))
    return parts


def _factor(used: Tensor) -> Tensor | None:
    """The entrywise factor that made a weight from its parameter, if it was made from one.

    It is read off the tensor's own history: weight-drop multiplies by a mask.
    """
    if used.is_leaf:
        return None
    source = _source(used)
    with torch.enable_grad():
        (factor,) = torch.autograd.grad(used, source, torch.ones_like(used), retain_graph=True)
        probe = torch.linspace(-1, 1, used.numel(), dtype=used.dtype, device=used.device).view_as(
            used
        )
        (answer,) = torch.autograd.grad(used, source, probe)
    if not torch.allclose(answer, factor * probe):
        raise ValueError("a recurrent weight is made from its parameter, but not entry by entry")
    return factor


def _source(used: Tensor) -> Tensor:
    """The one parameter that a tensor was made from."""
    found: dict[int, Tensor] = {}
    todo = [used.grad_fn]
    while todo:
        node = todo.pop()
        if node is None:
            continue
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            found[id(leaf)] = leaf
        todo += [parent for parent, _ in node.next_functions]
    if len(found) != 1 or (source := next(iter(found.values()))).shape != used.shape:
        raise ValueError("a recurrent weight is made from something else than its parameter")
    return source
