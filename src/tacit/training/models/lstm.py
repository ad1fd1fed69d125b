"""Recurrent layers that show the gradients at their gates, and the LSTM among them.

PyTorch's own layers keep them to themselves: a backward pass returns finished sums over the batch.
Every gradient of such weights is a product of the gate gradients with what the gates read
(the input, the state before), so who has these has the gradient of every record.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

State = tuple[Tensor, Tensor]

_WORTH_SHARING = 1 << 22
"""Multiplications in a step from which several threads are faster than one."""

_LARGE_MATRIX, _MANY_ROWS = 1 << 20, 128
"""Weights of a matrix, and rows it is multiplied by in all, from which laying it out anew pays."""


class Listener(Protocol):
    """Hears of one layer's gates in the backward pass; all tensors are batch x time x width."""

    def __call__(
        self,
        number: int,
        inputs: Tensor,
        states: Tensor,
        gates: tuple[Tensor, Tensor],
        used: dict[str, Tensor],
    ) -> None:
        """Layer `number` read `inputs` and `states`; `gates` are the gradients at what each said.

        `used` has the weights as they were used, by name: a recurrent matrix that was made from
        a parameter (weight-drop) still knows where it came from.
        """


OnBackward = Callable[[Tensor, Tensor, tuple[Tensor, Tensor]], None]


class Gated(nn.Module):
    """A recurrent layer whose gates can be listened to: parameters as torch's own has them."""

    gates: ClassVar[int]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = dropout
        self.listener: Listener | None = None
        rows = self.gates * hidden_size
        for number in range(num_layers):
            width = hidden_size if number else input_size
            shapes: dict[str, tuple[int, ...]] = {
                f"weight_ih_l{number}": (rows, width),
                f"weight_hh_l{number}": (rows, hidden_size),
            }
            if bias:
                shapes[f"bias_ih_l{number}"] = (rows,)
                shapes[f"bias_hh_l{number}"] = (rows,)
            for name, shape in shapes.items():
                self.register_parameter(name, nn.Parameter(torch.empty(shape)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within 1/sqrt(hidden_size), as torch's own layers begin."""
        bound = 1 / math.sqrt(self.hidden_size)
        for weight in self.parameters():
            nn.init.uniform_(weight, -bound, bound)

    def names(self, number: int) -> tuple[str, ...]:
        """The parameters of one layer: input, recurrent, and the two biases if it has them."""
        kinds = ("weight_ih", "weight_hh") + (("bias_ih", "bias_hh") if self.bias else ())
        return tuple(f"{kind}_l{number}" for kind in kinds)

    def used(self, number: int) -> tuple[list[Tensor | None], OnBackward | None]:
        """The four weights of a layer for one pass, and who wants to hear of it.

        Who listens wants no sums: the weights stay outside autograd, the gates inside.
        """
        used: dict[str, Tensor] = {name: getattr(self, name) for name in self.names(number)}
        weights: list[Tensor | None] = [*used.values(), *[None] * (4 - len(used))]
        listener = self.listener
        if listener is None:
            return weights, None

        def on_backward(inputs: Tensor, states: Tensor, gates: tuple[Tensor, Tensor]) -> None:
            listener(number, inputs, states, gates, used)

        return [None if weight is None else weight.detach() for weight in weights], on_backward


class GateLSTM(Gated):
    """`nn.LSTM` in one direction: same names of parameters, same results.

    A batch is padded on the right; what stands past the end of a record comes later in time and
    changes nothing before it, so no lengths are asked for. Weights may be replaced for one call
    by tensors made from them (`torch.func.functional_call`), which is how weight-drop is done.
    """

    gates = 4

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Outputs of the last layer for every step, and the last state of every layer."""
        x = x.transpose(0, 1) if self.batch_first else x
        batch = x.shape[1]
        if state is None:
            zeros = x.new_zeros(self.num_layers, batch, self.hidden_size)
            state = (zeros, zeros)
        hidden: list[Tensor] = []
        cells: list[Tensor] = []
        for number in range(self.num_layers):
            if number and self.dropout:
                # The record in front, by which its mask is found.
                x = F.dropout(x.transpose(0, 1), self.dropout, self.training).transpose(0, 1)
            x, cell = self._layer(number, x, (state[0][number], state[1][number]))
            hidden.append(x[-1])
            cells.append(cell)
        # Contiguous, or the linear layer that reads it would multiply record by record.
        out = x.transpose(0, 1).contiguous() if self.batch_first else x
        return out, (torch.stack(hidden), torch.stack(cells))

    def _layer(self, number: int, x: Tensor, state: State) -> tuple[Tensor, Tensor]:
        weights, on_backward = self.used(number)
        if on_backward is not None and not x.requires_grad:
            x = x.detach().requires_grad_()
        out: tuple[Tensor, Tensor] = _Layer.apply(x, *weights, *state, on_backward)
        return out


class _Layer(torch.autograd.Function):
    """One layer over all steps, time first.

    Legend: i, f, g, o are the gates after their nonlinearity, c the cells, h the outputs;
    c_t = f_t c_{t-1} + i_t g_t and h_t = o_t tanh(c_t).
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None,
        b_hh: Tensor | None,
        h0: Tensor,
        c0: Tensor,
        on_backward: Any,
    ) -> tuple[Tensor, Tensor]:
        steps, batch, width = x.shape
        units = w_hh.shape[1]
        x = x.contiguous()
        gates = x.new_zeros(steps * batch, 4 * units)
        if b_ih is not None and b_hh is not None:
            gates.copy_(b_ih + b_hh)
        _Matrix(w_ih, steps * batch, 1).add(x.view(-1, width), gates)
        gates = gates.view(steps, batch, 4 * units)
        # One more step in front: `hs[:-1]` is what the gates read, `hs[1:]` what the layer says.
        hs = x.new_empty(steps + 1, batch, units)
        cs = x.new_empty(steps + 1, batch, units)
        hs[0], cs[0] = h0, c0
        with _threads_for(batch * w_hh.numel()):
            recurrent = _Matrix(w_hh, batch, steps)
            for step in range(steps):
                now = recurrent.add(hs[step], gates[step])
                now[:, : 2 * units].sigmoid_()
                i, f, g, o = now.chunk(4, 1)
                g.tanh_()
                o.sigmoid_()
                cell = torch.mul(f, cs[step], out=cs[step + 1]).addcmul_(i, g)
                torch.tanh(cell, out=hs[step + 1]).mul_(o)
        ctx.save_for_backward(x, w_ih, w_hh)
        ctx.kept = (gates, hs, cs)
        ctx.on_backward = on_backward
        return hs[1:], cs[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, d_cell: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.kept is None:
            raise RuntimeError(
                "GateLSTM forgets its gates in the backward pass; compute the forward pass again."
            )
        x, w_ih, w_hh = ctx.saved_tensors
        gates, hs, cs = ctx.kept
        ctx.kept = None
        needs = ctx.needs_input_grad
        with _threads_for(gates.shape[1] * w_hh.numel()):
            d_h0, d_c0 = _through_time(gates, cs, w_hh, d_out, d_cell)
        flat = gates.view(-1, gates.shape[-1])
        d_x = _Matrix(w_ih.t(), len(flat), 1)(flat).view_as(x) if needs[0] else None
        if ctx.on_backward is not None:
            own = gates.transpose(0, 1)
            ctx.on_backward(x.transpose(0, 1), hs[:-1].transpose(0, 1), (own, own))
            return d_x, None, None, None, None, d_h0, d_c0, None
        d_ih = flat.t() @ x.view(-1, x.shape[-1]) if needs[1] else None
        d_hh = flat.t() @ hs[:-1].reshape(-1, w_hh.shape[1]) if needs[2] else None
        d_bias = flat.sum(0) if needs[3] or needs[4] else None
        return d_x, d_ih, d_hh, d_bias, d_bias, d_h0, d_c0, None


def _through_time(
    gates: Tensor, cs: Tensor, w_hh: Tensor, d_out: Tensor, d_cell: Tensor
) -> tuple[Tensor, Tensor]:
    """Turn gates into their gradients, in place; the gradients of the first state.

    All that does not wait for a later step is computed for all steps at once: what is left in
    the loop are a few products and the way back through the recurrent matrix.
    """
    steps, batch, _ = gates.shape
    i, f, g, o = gates.chunk(4, 2)
    tanh = torch.tanh(cs[1:])
    forget = f.clone()
    to_cell = torch.addcmul(o, o * tanh, tanh, value=-1)  # o (1 - tanh^2)
    o.addcmul_(o, o, value=-1).mul_(tanh)  # tanh o (1 - o)
    f.addcmul_(f, f, value=-1).mul_(cs[:-1])  # c f (1 - f)
    to_g = torch.addcmul(i, i * g, g, value=-1)  # i (1 - g^2)
    i.addcmul_(i, i, value=-1).mul_(g)  # g i (1 - i)
    g.copy_(to_g)
    dc = d_cell.clone()
    dh: Tensor | None = None
    back = _Matrix(w_hh.t(), batch, steps)
    for step in reversed(range(steps)):
        dh = d_out[step] if dh is None else d_out[step] + dh
        dc.addcmul_(dh, to_cell[step])
        by_gate = gates[step].view(batch, 4, -1)
        by_gate[:, 3].mul_(dh)
        by_gate[:, :3].mul_(dc.unsqueeze(1))
        dh = back(gates[step])
        dc.mul_(forget[step])
    return (torch.zeros_like(dc) if dh is None else dh), dc


class _Matrix:
    """What multiplies so many rows by `matrix` transposed, so many times.

    A matrix product begins by copying the matrix into the order in which the processor reads it;
    a large one is copied once for all steps, by the operators that `torch.compile` uses for it.
    """

    def __init__(self, matrix: Tensor, rows: int, times: int) -> None:
        self._turned, self._packed = matrix.t(), None
        if _packs(matrix, rows * times):
            self._packed = torch.ops.mkldnn._reorder_linear_weight(matrix.contiguous(), rows)

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed is None:
            return x @ self._turned
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, None, "none", [], "")
        return product

    def add(self, x: Tensor, onto: Tensor) -> Tensor:
        """Add the product to `onto`, in place."""
        return onto.addmm_(x, self._turned) if self._packed is None else onto.add_(self(x))


def _packs(matrix: Tensor, rows: int) -> bool:
    return (
        matrix.numel() >= _LARGE_MATRIX
        and rows >= _MANY_ROWS
        and matrix.device.type == "cpu"
        and matrix.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
    )


@contextmanager
def _threads_for(work: int) -> Iterator[None]:
    """One thread where steps are small.

    Every step waits for all threads of the one before. Small steps gain nothing by sharing, and
    where others use the machine too, a thread that has to be waited for hundreds of times makes
    a pass many times slower.
    """
    before = torch.get_num_threads()
    if before == 1 or work >= _WORTH_SHARING:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
