"""The GRU layer against torch's own."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tacit.training.models.gru import GateGRU


def twins(*sizes: Any, **options: Any) -> tuple[nn.GRU, GateGRU]:
    theirs = nn.GRU(*sizes, **options).double()
    ours = GateGRU(*sizes, **options).double()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def everything(layer: nn.Module, x: Tensor, state: Tensor | None) -> list[Tensor]:
    """Outputs, last state, and the gradients of a loss that uses both."""
    out, hidden = layer(x, state)
    loss = out.sin().sum() + hidden.square().sum()
    wanted = [x, *(() if state is None else (state,)), *layer.parameters()]
    return [out, hidden, *torch.autograd.grad(loss, wanted)]


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("start", [True, False])
def test_equals_torch(layers: int, bias: bool, first: bool, start: bool) -> None:
    torch.manual_seed(layers)
    theirs, ours = twins(3, 4, layers, bias=bias, batch_first=first)
    x = torch.randn((2, 5, 3) if first else (5, 2, 3), dtype=torch.float64, requires_grad=True)
    state = torch.randn(layers, 2, 4, dtype=torch.float64, requires_grad=True) if start else None
    for right, got in zip(everything(theirs, x, state), everything(ours, x, state), strict=True):
        torch.testing.assert_close(got, right, rtol=1e-10, atol=1e-12)


def test_padding_on_the_right_changes_nothing_before_it() -> None:
    torch.manual_seed(0)
    layer = GateGRU(3, 4, 2, batch_first=True).double()
    x = torch.randn(2, 6, 3, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[0][:, :4], layer(x[:, :4])[0])


def test_dropout_between_layers() -> None:
    torch.manual_seed(0)
    layer = GateGRU(3, 4, 2, dropout=0.5)
    x = torch.randn(2, 5, 3)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])
