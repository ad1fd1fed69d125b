"""The LSTM layer against torch's own."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from tacit.training.models import lstm
from tacit.training.models.lstm import GateLSTM


def twins(*sizes: Any, dtype: torch.dtype = torch.float64, **options) -> tuple[nn.LSTM, GateLSTM]:
    theirs = nn.LSTM(*sizes, **options).to(dtype)
    ours = GateLSTM(*sizes, **options).to(dtype)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def everything(layer: nn.Module, x: Tensor, state: tuple[Tensor, Tensor] | None) -> list[Tensor]:
    """Outputs, last state, and the gradients of a loss that uses all of them."""
    out, (hidden, cells) = layer(x, state)
    loss = out.sin().sum() + hidden.square().sum() + cells.pow(3).sum()
    wanted = [x, *(state or ()), *layer.parameters()]
    return [out, hidden, cells, *torch.autograd.grad(loss, wanted)]


@settings(max_examples=40, deadline=None)
@given(
    layers=st.integers(1, 3),
    steps=st.integers(1, 5),
    batch=st.integers(1, 4),
    bias=st.booleans(),
    first=st.booleans(),
    start=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_equals_torch(
    layers: int, steps: int, batch: int, bias: bool, first: bool, start: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    theirs, ours = twins(3, 4, layers, bias=bias, batch_first=first)
    shape = (batch, steps, 3) if first else (steps, batch, 3)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    state: Any = None
    if start:
        state = tuple(
            torch.randn(layers, batch, 4, dtype=torch.float64, requires_grad=True) for _ in "hc"
        )
    for right, got in zip(everything(theirs, x, state), everything(ours, x, state), strict=True):
        torch.testing.assert_close(got, right, rtol=1e-10, atol=1e-12)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
@pytest.mark.parametrize("bias", [True, False])
def test_equals_torch_with_matrices_laid_out_once(
    monkeypatch: pytest.MonkeyPatch, bias: bool
) -> None:
    torch.manual_seed(0)
    theirs, ours = twins(3, 4, 2, dtype=torch.float32, bias=bias)
    x = torch.randn(5, 3, 3, requires_grad=True)
    packed: list[tuple[int, ...]] = []
    monkeypatch.setattr(lstm, "_LARGE_MATRIX", 1)
    monkeypatch.setattr(lstm, "_MANY_ROWS", 15)
    real = lstm._packs
    monkeypatch.setattr(
        lstm, "_packs", lambda m, rows: real(m, rows) and not packed.append(tuple(m.shape))
    )
    for right, got in zip(everything(theirs, x, None), everything(ours, x, None), strict=True):
        torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-6)
    forwards = [(16, 3), (16, 4), (16, 4), (16, 4)]
    backwards = [(4, 16), (4, 16), (4, 16), (3, 16)]
    assert packed == forwards + backwards


def test_equals_torch_in_single_precision() -> None:
    torch.manual_seed(0)
    theirs, ours = twins(20, 30, 2, dtype=torch.float32, batch_first=True)
    x = torch.randn(8, 12, 20, requires_grad=True)
    for right, got in zip(everything(theirs, x, None), everything(ours, x, None), strict=True):
        torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4)


def test_begins_like_torch() -> None:
    ours = GateLSTM(3, 16, 2)
    theirs = nn.LSTM(3, 16, 2)
    assert {n: p.shape for n, p in ours.named_parameters()} == {
        n: p.shape for n, p in theirs.named_parameters()
    }
    assert all(p.abs().max() <= 0.25 for p in ours.parameters())


def test_weights_may_be_made_from_parameters() -> None:
    torch.manual_seed(0)
    theirs, ours = twins(3, 4, batch_first=True)
    mask = torch.bernoulli(torch.full((16, 4), 0.5)).double() * 2
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    found = []
    for layer in (theirs, ours):
        used = {"weight_hh_l0": layer.weight_hh_l0 * mask}
        out, _ = functional_call(layer, used, (x,))
        found.append(torch.autograd.grad(out.sin().sum(), list(layer.parameters())))
    for right, got in zip(*found, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-10, atol=1e-12)


def test_padding_on_the_right_changes_nothing_before_it() -> None:
    torch.manual_seed(0)
    layer = GateLSTM(3, 4, 2, batch_first=True).double()
    x = torch.randn(2, 6, 3, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[0][:, :4], layer(x[:, :4])[0])


def test_the_listener_hears_the_gates() -> None:
    torch.manual_seed(0)
    layer = GateLSTM(3, 4, 2, batch_first=True).double()
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    (layer(x)[0].sin().sum()).backward()
    heard: dict[int, Any] = {}
    layer.listener = lambda number, *rest: heard.__setitem__(number, rest)
    (layer(x)[0].sin().sum()).backward()
    for number, (inputs, states, (gates, same), used) in heard.items():
        assert same is gates
        names = layer.names(number)
        assert tuple(used) == names
        for name, read in zip(names[:2], (inputs, states), strict=True):
            torch.testing.assert_close(
                layer.get_parameter(name).grad, torch.einsum("btg,bti->gi", gates, read)
            )
        for name in names[2:]:
            torch.testing.assert_close(layer.get_parameter(name).grad, gates.sum((0, 1)))
    assert sorted(heard) == [0, 1]


def test_a_second_backward_pass_is_refused() -> None:
    layer = GateLSTM(3, 4)
    out, _ = layer(torch.randn(2, 5, 3))
    out.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="forward pass again"):
        out.sum().backward()


def test_dropout_between_layers() -> None:
    torch.manual_seed(0)
    layer = GateLSTM(3, 4, 2, dropout=0.5)
    x = torch.randn(2, 5, 3)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])
