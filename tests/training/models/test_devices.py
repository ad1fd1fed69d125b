"""Training on another device: every tensor is where the model is, and the result is the same.

There is no GPU where these tests run. A second device is played by a kind of tensor that says it
is elsewhere, computes on the processor, and refuses to be mixed with tensors that are here, as a
GPU does.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from support.small import dialogs
from tacit.errors import UsageError
from tacit.privacy.ledger import Ledger
from tacit.training.evaluation.scoring import scores
from tacit.training.models.devices import chosen_device
from tacit.training.models.optimizers import make_optimizer
from tacit.training.phases import run_context
from tacit.training.phases.local_inputs import inputs_of
from tacit.training.phases.loop import Loop
from tacit.training.settings import Run

ELSEWHERE = torch.device("meta")  # the one device that torch takes for granted and never has
MOVING = {"_to_copy", "copy_", "set_"}
INDEXING = {"index", "index_put_", "index_put"}  # a GPU takes indices from the processor


class Elsewhere(torch.Tensor):
    """A tensor of the second device."""

    inner: Any

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Elsewhere":
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(),
            dtype=inner.dtype, device=ELSEWHERE, requires_grad=inner.requires_grad,
        )  # fmt: skip

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def tolist(self) -> Any:
        return self.inner.tolist()

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert a tensor of another device to numpy")

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, _: Any, args: Any = (), named: Any = None
    ) -> Any:
        return carry_out(function, args, named or {})


class TwoDevices(TorchDispatchMode):
    """While it lasts, tensors can be made on the second device and moved there."""

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), named: Any = None) -> Any:
        return carry_out(function, args, named or {})


def carry_out(function: Any, args: Any, named: dict[str, Any]) -> Any:
    """Compute on the processor what stands elsewhere, if all of it stands there."""
    name = function.overloadpacket.__name__
    given = [x for x in tree_leaves((args, named)) if isinstance(x, torch.Tensor)]
    there = any(isinstance(x, Elsewhere) for x in given)
    assert all(x.device != ELSEWHERE or isinstance(x, Elsewhere) for x in given), "not made by us"
    asked = named.get("device")
    if asked is not None:
        there = torch.device(asked) == ELSEWHERE
        named = named | {"device": torch.device("cpu")}
    elif there and name not in MOVING | INDEXING:
        mixed = [x for x in given if not isinstance(x, Elsewhere) and x.dim() > 0]
        if mixed:
            raise RuntimeError(f"{function}: tensors on two devices")
    inside = tree_map(lambda x: x.inner if isinstance(x, Elsewhere) else x, (args, named))
    made = function(*inside[0], **inside[1])
    if "out" in named:
        return named["out"]
    if name.endswith("_") and not name.endswith("__"):
        return args[0]
    return tree_map(lambda x: Elsewhere(x) if there and isinstance(x, torch.Tensor) else x, made)


def test_the_second_device_refuses_what_a_gpu_refuses() -> None:
    with TwoDevices():
        there = torch.ones(3, 4).to(ELSEWHERE)
        assert (there @ there.t()).device == ELSEWHERE
        assert (there @ there.t()).tolist() == [[4.0] * 3] * 3
        assert there[torch.tensor([2, 0])].device == ELSEWHERE
        assert there.cpu().device.type == "cpu"
        with pytest.raises(RuntimeError, match="two devices"):
            there + torch.ones(4)
        with pytest.raises(TypeError):
            there.numpy()


@pytest.fixture
def second_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Models are made elsewhere once this is called; by one thread, which alone knows of it."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield lambda: monkeypatch.setattr(run_context, "chosen_device", lambda _: ELSEWHERE)
    torch.set_num_threads(threads)
    torch.__future__.set_swap_module_params_on_conversion(False)


USERS = {
    "protect": "users",
    "epsilon": 100,
    "noise_multiplier": 1.0,
    "steps": 2,
    "user_rate": 0.3,
    "users": 30,
}
BOTH = USERS | {"protect": "users+entities", "users_per_entity": 2, "entity_share": 0.5}
TOKENS = {
    "protect": "tokens",
    "epsilon": 100,
    "noise_multiplier": 1.0,
    "steps": 2,
    "record_rate": 0.3,
    "segments": 2,
}
RECORDS = {
    "protect": "records",
    "epsilon": 100,
    "noise_multiplier": 1.0,
    "steps": 2,
    "record_rate": 0.3,
    "records": 60,
}
TINY = {"n_embd": 8, "n_layer": 1, "n_head": 2}
RUNS: dict[str, dict[str, Any]] = {
    "plain": {"method": "plain", "steps": 2},
    "users": {"plan": USERS},
    "users and entities": {"plan": BOTH},
    "records": {
        "plan": RECORDS,
        "optimizer": {"name": "adam", "learning_rate": 0.01, "average": 0.5},
    },
    "local steps": {"method": "dp-fedavg", "plan": USERS, "dp-fedavg": {"local_epochs": 2}},
    "published": {"method": "uedp", "steps": 2, "uedp": {"user_rate": 0.5}},
    "selective": {"method": "selective", "plan": TOKENS},
    "adversarial": {"method": "adversarial", "steps": 2},
    "triplet": {"method": "triplet", "steps": 2},
    "weight-drop": {"plan": USERS, "model": {"kind": "awd-lstm", "config": {
        "embedding_size": 8, "hidden_size": 8, "layers": 2}}},
    "gpt": {"plan": BOTH, "model": {"kind": "gpt2", "config": TINY}},
    "lora": {"plan": USERS, "model": {"kind": "gpt2", "config": TINY, "lora_rank": 2}},
}  # fmt: skip


def trained(settings: dict[str, Any], folder: Path) -> tuple[nn.Module, dict[str, Any]]:
    """The model that a run ends with, and its scores; nothing is priced, nothing is saved."""
    run = Run(**settings)
    plan, ctx = run.made_plan(), run_context.open_run(run)
    inputs, _ = inputs_of(ctx, plan)
    model, optimizer = ctx.model, make_optimizer(ctx.model, run.optimizer)
    with Ledger(folder / "ledger.jsonl", {}) as ledger:
        method = run.spec.step(replace(inputs, ledger=ledger))
        loop = Loop(model, method, optimizer, run.optimizer, 2, ctx.randomness)
        loop.run()
        loop.finish()
    return model, scores(ctx, "valid")


@pytest.mark.parametrize("name", RUNS)
def test_a_run_elsewhere_is_the_run_here(
    name: str, tmp_path: Path, second_device: Callable[[], None]
) -> None:
    """The same coins, noise and scores; dropout's coins are torch's own, and the same here."""
    settings = dialogs(tmp_path, 40) | {"context": 10} | RUNS[name]
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    here, wanted = trained(settings, tmp_path / "here")
    second_device()
    with TwoDevices():
        there, found = trained(settings, tmp_path / "there")
    assert {p.device for p in there.parameters()} == {ELSEWHERE}
    for one, other in zip(here.parameters(), there.parameters(), strict=True):
        assert torch.allclose(one, other.inner, rtol=1e-4, atol=1e-6)  # type: ignore[arg-type]
    assert found == pytest.approx(wanted, rel=1e-4)


def test_a_gpu_that_is_not_there_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert chosen_device("auto") == chosen_device("cpu") == torch.device("cpu")
    with pytest.raises(UsageError, match="finds no GPU"):
        chosen_device("cuda")


def test_each_process_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert chosen_device("auto") == torch.device("cuda", 1)
    assert chosen == [1]
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UsageError, match="no GPU of its own"):
        chosen_device("cuda")
