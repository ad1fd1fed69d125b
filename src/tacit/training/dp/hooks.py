"""One forward and one backward pass that leave every record's part of the gradient behind.

Parameters take no part in autograd meanwhile: the backward pass computes gradients at the
outputs of layers and no gradient of a weight. Flags and hooks are as before afterwards, also
after an error; `.grad` is never touched.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tacit.errors import UsageError
from tacit.training.dp.dropout import refuse_torch_draws
from tacit.training.dp.grad_sample_rules import Part, find_rules, gate_parts, why_refused
from tacit.training.models.lstm import Gated

Parts = dict[str, list[Part]]
"""What was captured, by the name of the parameter in the model."""


@dataclass(frozen=True)
class Layer:
    """A layer with trainable parameters of its own."""

    name: str
    module: nn.Module
    parameters: dict[str, str]
    """From the parameter's name in the layer to its (first) name in the model."""


def find_layers(model: nn.Module) -> list[Layer]:
    """The layers to listen to; a layer without a rule is refused."""
    if getattr(model, "is_gradient_checkpointing", False):
        raise UsageError(
            "The model uses gradient checkpointing, which runs layers twice; "
            "call model.gradient_checkpointing_disable() first."
        )
    public = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    layers: list[Layer] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            _refuse(name, module)
        own = {
            local: public[id(p)]
            for local, p in module.named_parameters(recurse=False, remove_duplicate=False)
            if p.requires_grad
        }
        if not own or _only_held(module):
            continue
        _refuse(name, module)
        if len(set(own.values())) < len(own):
            raise UsageError(f"Layer '{name}' has one parameter under two names; untie them.")
        layers.append(Layer(name, module, own))
    if not layers:
        raise UsageError("The model has no trainable parameter; call requires_grad_(True) on some.")
    _check_shared(layers)
    return layers


def _only_held(module: nn.Module) -> bool:
    """Whether all parameters of a module without a rule belong to linear layers inside it.

    Heads for masked words hold the bias of their last layer under a name of their own.
    """
    if find_rules(module) is not None:
        return False
    inside = {
        id(p)
        for part in module.modules()
        if part is not module and isinstance(part, nn.Linear) and find_rules(part) is not None
        for p in part.parameters(recurse=False)
    }
    return all(id(p) in inside for p in module.parameters(recurse=False))


def _refuse(name: str, module: nn.Module) -> None:
    reason = why_refused(module)
    if reason:
        raise UsageError(f"Layer '{name}' {reason}.")


def _check_shared(layers: list[Layer]) -> None:
    """A parameter may be shared among tables and linear maps, as tied embeddings are."""
    users: dict[str, list[Layer]] = {}
    for layer in layers:
        for name in layer.parameters.values():
            users.setdefault(name, []).append(layer)
    for name, sharing in users.items():
        plain = all(isinstance(layer.module, nn.Linear | nn.Embedding) for layer in sharing)
        if len(sharing) > 1 and not plain:
            places = ", ".join(f"'{layer.name}'" for layer in sharing)
            raise UsageError(
                f"Parameter '{name}' is shared by the layers {places}; only Embedding and Linear "
                "may share one. Untie them, or freeze it."
            )


class GradientCapture:
    """What is captured in one pass over a batch of `size` records."""

    def __init__(self, layers: list[Layer], size: int) -> None:
        self.parts: Parts = {}
        self.captured: set[str] = set()
        self._layers, self._size = layers, size

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Hooks on and parameters out of autograd; back as it was at the end."""
        flags: list[nn.Parameter] = []
        hooks: list[Any] = []
        try:
            for layer in self._layers:
                for local in layer.parameters:
                    parameter = layer.module.get_parameter(local)
                    # A gated layer listens for itself, and looks at how its weights were made.
                    if parameter.requires_grad and not isinstance(layer.module, Gated):
                        flags.append(parameter)
                hooks += self._hook(layer)
            for parameter in flags:
                parameter.requires_grad_(False)
            with torch.enable_grad():
                yield
        finally:
            for parameter in flags:
                parameter.requires_grad_(True)
            for hook in hooks:
                hook.remove()
            for layer in self._layers:
                if isinstance(layer.module, Gated):
                    layer.module.listener = None

    def _hook(self, layer: Layer) -> list[Any]:
        if isinstance(layer.module, Gated):
            layer.module.listener = partial(self._gates, layer)
            return []
        hooks = [layer.module.register_forward_hook(partial(self._after, layer), with_kwargs=True)]
        if isinstance(layer.module, nn.Embedding):
            hooks.append(layer.module.register_forward_pre_hook(self._widen))
        return hooks

    def _widen(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Positions are looked up once for all records; here once for each, to tell them apart."""
        if inputs and inputs[0].dim() > 1 and inputs[0].shape[0] == 1 < self._size:
            return (inputs[0].expand(self._size, *inputs[0].shape[1:]), *inputs[1:])
        return None

    def _after(
        self,
        layer: Layer,
        module: nn.Module,
        inputs: tuple[Any, ...],
        named: dict[str, Any],
        out: Tensor,
    ) -> None:
        x: Tensor = (inputs or tuple(named.values()))[0].detach()
        self._check_shape(layer, x, lookup=isinstance(module, nn.Embedding))
        version = x._version
        rules = find_rules(module) or {}
        waiting = [x]  # hooks live as long as the whole graph; what they hold should not
        del x

        def on_gradient(gradient: Tensor) -> None:
            x = waiting.pop()
            if x._version != version:
                raise UsageError(
                    f"The input of layer '{layer.name}' is changed in place after use; "
                    "write a new tensor instead (no inplace=True)."
                )
            wide = gradient.detach().reshape(self._size, -1, gradient.shape[-1])
            read = x.reshape(self._size, -1)
            if not isinstance(module, nn.Embedding):
                read = x.reshape(self._size, -1, x.shape[-1])
            for local in layer.parameters:
                self._keep(layer, local, rules[local](module, read, wide))

        if not out.requires_grad:
            out.requires_grad_()
        out.register_hook(on_gradient)

    def _gates(
        self,
        layer: Layer,
        number: int,
        inputs: Tensor,
        states: Tensor,
        gates: tuple[Tensor, Tensor],
        used: dict[str, Tensor],
    ) -> None:
        self._check_shape(layer, gates[0], lookup=False)
        assert isinstance(layer.module, Gated)
        try:
            parts = gate_parts(layer.module.names(number), inputs, states, gates, used)
        except ValueError as error:
            raise UsageError(f"In layer '{layer.name}' {error}.") from error
        for local, part in parts.items():
            if local in layer.parameters:
                self._keep(layer, local, part)

    def _check_shape(self, layer: Layer, x: Tensor, *, lookup: bool) -> None:
        if x.dim() < 2 or x.shape[0] != self._size:
            what = "token ids" if lookup else "an input"
            raise UsageError(
                f"Layer '{layer.name}' got {what} of shape {tuple(x.shape)} for {self._size} "
                "records; the first dimension has to be the record, and a second one is needed."
            )

    def _keep(self, layer: Layer, local: str, part: Part) -> None:
        self.parts.setdefault(layer.parameters[local], []).append(part)
        self.captured.add(f"{layer.name}.{local}")


def run(
    layers: list[Layer],
    losses: Callable[[dict[str, Tensor]], Tensor],
    batch: dict[str, Tensor],
    size: int,
) -> tuple[Parts, Tensor]:
    """Every record's part of every gradient, and the records' losses."""
    capture = GradientCapture(layers, size)
    with capture.hooked(), refuse_torch_draws():
        values = losses(batch)
        if values.shape != (size,):
            raise UsageError(
                f"losses gave a tensor of shape {tuple(values.shape)} for {size} records; "
                "it has to give one number for each record."
            )
        if not values.requires_grad:
            raise UsageError("The losses depend on no trainable layer; is the model detached?")
        values.sum().backward()
    for layer in layers:
        for local in layer.parameters:
            if f"{layer.name}.{local}" not in capture.captured:
                raise UsageError(
                    f"Parameter '{local}' of layer '{layer.name}' is trainable but gets no "
                    "gradient there; freeze it (requires_grad_(False)), or call the layer."
                )
    return capture.parts, values.detach()
