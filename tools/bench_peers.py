"""Steps of Opacus on the models of `bench_training`, timed one by one at a caller's word.

Runs in an environment of its own, which `ready` makes under build/ once: Opacus beside the very
torch and transformers that the project uses, so that the step is all that differs.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build" / "peers"
PINS = ("opacus==1.6.0", "opt_einsum==3.4.0")
PEERS = ("opacus hooks", "opacus ghost")


def ready() -> Path:
    """The peers' python, installed if it is not there."""
    python = FOLDER / "bin" / "python"
    if not (FOLDER / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(FOLDER)], check=True)
        quiet = ["-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([str(python), *quiet, *PINS], check=True)
        (FOLDER / ".ready").touch()
    return python


class Peers:
    """The worker process for one model."""

    def __init__(self, model: str, threads: int, clock: str) -> None:
        beside = [p for p in sys.path if p.endswith("site-packages")]
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tools"), *beside])
        self._process = subprocess.Popen(
            [str(ready()), __file__, model, str(threads), clock],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ
            | {"PYTHONPATH": path}
            # What `keep_freed_memory` does for ours.
            | {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)},
        )

    def step(self, peer: str) -> float:
        """Seconds of one step; NaN if the peer refuses the model or fails."""
        assert self._process.stdin
        assert self._process.stdout
        try:
            self._process.stdin.write(peer + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        return float(json.loads(line)) if line else float("nan")

    def close(self) -> None:
        """No more steps."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def _hooks(steps: Any, model: Any, forward: Callable[[Any], Any]) -> Callable[[], None]:
    import torch
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    wrapped = GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=1e-3),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=len(steps.owner),
    )

    def step() -> None:
        optimizer.zero_grad()
        steps.losses(steps.batch, forward(wrapped)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _ghost(steps: Any, model: Any, forward: Callable[[Any], Any]) -> Callable[[], None]:
    import torch
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(model, max_grad_norm=1.0)
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(wrapped.parameters(), lr=1e-3),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=len(steps.owner),
    )
    criterion = DPLossFastGradientClipping(wrapped, optimizer, torch.nn.CrossEntropyLoss())
    labels = steps.batch["labels"]
    shape = {} if labels.dim() == 1 else {"shape": tuple(labels.shape)}

    def step() -> None:
        optimizer.zero_grad()
        logits = forward(wrapped)(steps.batch["input_ids"])
        loss = criterion(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), **shape)
        loss.backward()
        optimizer.step()

    return step


def _make(name: str, peer: str) -> Callable[[], None]:
    """A peer's step; it wants its own LSTM, ids of positions for every record, and no ties."""
    import torch
    from bench_training import CONTESTS, Recurrent, Steps
    from opacus.layers import DPLSTM

    contest = CONTESTS[name]
    steps = Steps(contest, "records", plain=True, tied=peer != "opacus ghost")
    model = steps.model
    records, tokens = steps.batch["input_ids"].shape
    if isinstance(model, Recurrent):
        for number, layer in enumerate(model.layers):
            model.layers[number] = DPLSTM(layer.input_size, layer.hidden_size, batch_first=True)
    places = torch.arange(tokens).repeat(records, 1)
    named = {"position_ids": places}
    if contest.classes:
        named["token_type_ids"] = torch.zeros_like(places)

    def forward(wrapped: Any) -> Callable[[Any], Any]:
        if isinstance(model, Recurrent):
            return wrapped
        return lambda ids: wrapped(ids, **named).logits

    model.train()
    return (_hooks if peer == "opacus hooks" else _ghost)(steps, model, forward)


def main(name: str, threads: str, clock: str) -> None:
    """Make a step for each line that names a peer, and say how long it took."""
    import torch

    torch.set_num_threads(int(threads))
    now = time.perf_counter if clock == "wall" else time.process_time
    made: dict[str, Callable[[], None] | None] = {}
    for line in sys.stdin:
        peer = line.strip()
        took = float("nan")
        try:
            if peer not in made:
                made[peer] = _make(name, peer)
            step = made[peer]
            if step is not None:
                start = now()
                step()
                took = now() - start
        except Exception as error:  # a refusal is a result, too
            print(f"{peer} on {name}: {error}", file=sys.stderr)
            made[peer] = None
        print(json.dumps(took), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
