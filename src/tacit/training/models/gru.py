"""A GRU layer that shows the gradients at its gates, as `GateLSTM` does."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from tacit.training.models.lstm import Gated


class GateGRU(Gated):
    """`nn.GRU` in one direction: same names of parameters, same results.

    A batch is padded on the right, as for `GateLSTM`.
    """

    gates = 3

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Outputs of the last layer for every step, and the last state of every layer."""
        x = x.transpose(0, 1) if self.batch_first else x
        if state is None:
            state = x.new_zeros(self.num_layers, x.shape[1], self.hidden_size)
        hidden: list[Tensor] = []
        for number in range(self.num_layers):
            if number and self.dropout:
                # The record in front, by which its mask is found.
                x = F.dropout(x.transpose(0, 1), self.dropout, self.training).transpose(0, 1)
            weights, listener = self.used(number)
            if listener is not None and not x.requires_grad:
                x = x.detach().requires_grad_()
            x = _Layer.apply(x, *weights, state[number], listener)
            hidden.append(x[-1])
        out = x.transpose(0, 1).contiguous() if self.batch_first else x
        return out, torch.stack(hidden)


class _Layer(torch.autograd.Function):
    """One layer over all steps, time first.

    Legend: r, z, n are the gates after their nonlinearity, m what the recurrent matrix says to n,
    h the outputs; n_t = tanh(x_n + r_t m_t) and h_t = (1 - z_t) n_t + z_t h_{t-1}.
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
        on_backward: Any,
    ) -> Tensor:
        steps, batch, _ = x.shape
        units = w_hh.shape[1]
        x = x.contiguous()
        gates = F.linear(x, w_ih, b_ih)
        recurrent = x.new_empty(steps, batch, units)
        # One more step in front: `hs[:-1]` is what the gates read, `hs[1:]` what the layer says.
        hs = x.new_empty(steps + 1, batch, units)
        hs[0] = h0
        for step in range(steps):
            said = F.linear(hs[step], w_hh, b_hh)
            now = gates[step]
            now[:, : 2 * units].add_(said[:, : 2 * units]).sigmoid_()
            r, z, n = now.chunk(3, 1)
            recurrent[step] = said[:, 2 * units :]
            n.addcmul_(r, recurrent[step]).tanh_()
            torch.lerp(n, hs[step], z, out=hs[step + 1])
        ctx.save_for_backward(x, w_ih, w_hh)
        ctx.kept, ctx.on_backward = (gates, recurrent, hs), on_backward
        return hs[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        x, w_ih, w_hh = ctx.saved_tensors
        gates, recurrent, hs = ctx.kept
        needs = ctx.needs_input_grad
        read, own, d_h0 = _through_time(gates, recurrent, hs, w_hh, d_out)
        d_x = read @ w_ih if needs[0] else None
        if ctx.on_backward is not None:
            ctx.on_backward(
                x.transpose(0, 1),
                hs[:-1].transpose(0, 1),
                (read.transpose(0, 1), own.transpose(0, 1)),
            )
            return d_x, None, None, None, None, d_h0, None
        flat, states = read.flatten(0, 1), hs[:-1].flatten(0, 1)
        d_ih = flat.t() @ x.flatten(0, 1) if needs[1] else None
        d_hh = own.flatten(0, 1).t() @ states if needs[2] else None
        d_bias = (flat.sum(0) if needs[3] else None, own.sum((0, 1)) if needs[4] else None)
        return d_x, d_ih, d_hh, *d_bias, d_h0, None


def _through_time(
    gates: Tensor, recurrent: Tensor, hs: Tensor, w_hh: Tensor, d_out: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients at what the gates read of the input, and of the state; that of the first state.

    They differ in n, to which the state speaks through r.
    """
    r, z, n = gates.chunk(3, 2)
    to_n = (1 - z) * (1 - n * n)
    to_z = (hs[:-1] - n) * z * (1 - z)
    to_r = recurrent * r * (1 - r)
    read, own = torch.empty_like(gates), torch.empty_like(gates)
    dh = torch.zeros_like(hs[0])
    for step in reversed(range(len(d_out))):
        dh = d_out[step] + dh
        d_n = dh * to_n[step]
        d_r, d_z = d_n * to_r[step], dh * to_z[step]
        torch.cat((d_r, d_z, d_n), 1, out=read[step])
        torch.cat((d_r, d_z, d_n * r[step]), 1, out=own[step])
        dh = dh * z[step] + own[step] @ w_hh
    return read, own, dh
