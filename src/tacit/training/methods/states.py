"""The states of an LSTM between segments: where a record ends, and bounded so that noise may come.

The third maker of a `BoundedSum`, beside `ClippedSums` and `ClippedUpdates`: a sum in which every
record has a row to itself.
"""

import torch
from torch import Tensor

from tacit.errors import UsageError
from tacit.training.dp.gradients import _MADE_HERE, BoundedSum
from tacit.training.models.lstm import GateLSTM
from tacit.training.models.recurrent import LSTMBody, State


def clipped_rows(rows: Tensor, clip_norm: float) -> BoundedSum:
    """One vector for each record, each clipped to `clip_norm`; what is not finite becomes zero.

    *Guarantee*: with everything else the same, a record's vector moves its own row and no other,
    and that row has norm at most `clip_norm`, up to rounding.
    """
    if not clip_norm > 0:
        raise UsageError(f"clip_norm={clip_norm} is not a norm; give a number above 0.")
    norms = rows.detach().double().norm(dim=1)
    finite = torch.isfinite(norms)
    factors = torch.where(norms > clip_norm, clip_norm / norms, torch.ones_like(norms))
    made = rows.detach() * factors.to(rows.dtype).unsqueeze(1)
    made = made.masked_fill(~finite.unsqueeze(1), 0).contiguous()
    return BoundedSum(
        {"state": made},
        clip_norm,
        "records",
        None,
        len(rows),
        int((norms > clip_norm).sum()),
        int((~finite).sum()),
        made=_MADE_HERE,
    )


@torch.no_grad()
def states_after(body: LSTMBody, ids: Tensor, lengths: Tensor, state: State) -> State:
    """The state of every record after its own last token, whatever stands in the padding.

    Without dropout: what is passed on is the state that the whole network has.
    """
    order = torch.argsort(lengths, descending=True, stable=True)
    back = torch.argsort(order)
    ids, lengths = ids[order], lengths[order]
    x: Tensor = body.embedding(ids)
    after: list[tuple[Tensor, Tensor]] = []
    for layer, (hidden, cell) in zip(body.layers, state, strict=True):
        assert isinstance(layer, GateLSTM)
        x, h, c = _through(layer, x, lengths, hidden[0][order], cell[0][order])
        after.append((h[back].unsqueeze(0), c[back].unsqueeze(0)))
    return tuple(after)


def _through(
    layer: GateLSTM, x: Tensor, lengths: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer over records of falling length; those that have ended are left alone."""
    w_ih, w_hh, *biases = (getattr(layer, name) for name in layer.names(0))
    read = x @ w_ih.t()
    for bias in biases:
        read = read + bias
    out = x.new_zeros(*x.shape[:2], layer.hidden_size)
    h, c = h.clone(), c.clone()
    alive = [int((lengths > step).sum()) for step in range(x.shape[1])]
    for step, count in enumerate(alive):
        if count == 0:
            break
        i, f, g, o = torch.addmm(read[:count, step], h[:count], w_hh.t()).chunk(4, 1)
        c[:count] = torch.sigmoid(f) * c[:count] + torch.sigmoid(i) * torch.tanh(g)
        h[:count] = torch.sigmoid(o) * torch.tanh(c[:count])
        out[:count, step] = h[:count]
    return out, h, c
