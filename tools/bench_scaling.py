"""How the cost of a private step grows: users, records, tokens, vocabulary, parameters.

    python tools/bench_scaling.py            # measures, draws docs/figures/scaling.svg, prints
    python tools/bench_scaling.py --memory   # peaks instead, each in a process of its own

Processor time of one step of user-level training (clipped sum, ledger, noise, SGD), medians; a
straight line is fitted to each curve, and its largest miss is told as a share of the largest time.
"""

import argparse
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from tacit.training.dp.gradients import ClippedSums  # isort: skip  (sets how threads wait)

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit.planning.plan import Plan
from tacit.privacy.events import SampledGaussian
from tacit.privacy.ledger import Ledger
from tacit.training.data.training_data import TrainingData
from tacit.training.dp.noise import release
from tacit.training.dp.random_source import RandomSource
from tacit.training.dp.sampling import PoissonUsers
from tacit.training.methods.method import MethodInputs
from tacit.training.models.memory import keep_freed_memory
from tacit.training.models.recurrent import LSTMConfig, LSTMForCausalLM
from tacit.training.settings import Run
from tacit.training.tasks.examples import Examples

FIGURE = Path(__file__).resolve().parent.parent / "docs" / "figures" / "scaling.svg"
REPEATS = 7


@dataclass(frozen=True)
class Size:
    """One step: how many users of a corpus are drawn, what they have, and the model."""

    users: int = 20
    records: int = 4
    tokens: int = 32
    vocabulary: int = 4000
    layers: int = 1
    corpus: int = 1000

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return LSTMForCausalLM(
            LSTMConfig(
                vocab_size=self.vocabulary, embedding_size=96, hidden_size=96, layers=self.layers
            )
        )


CURVES: dict[str, tuple[str, Sequence[int]]] = {
    "users": ("users drawn", (10, 20, 40, 80)),
    "records": ("records of a user", (1, 2, 4, 8, 16)),
    "tokens": ("tokens of a record", (16, 32, 64, 128)),
    "vocabulary": ("words of the vocabulary", (1000, 2000, 4000, 8000, 16000)),
    "layers": ("parameters, millions (1, 2, 4, 8 layers)", (1, 2, 4, 8)),
    "corpus": ("users in the corpus, 20 of them drawn", (1000, 10_000, 100_000, 1_000_000)),
}


def losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The mean loss of a next word, for each record."""
    logits = model(batch["input_ids"][:, :-1]).logits
    wanted = batch["input_ids"][:, 1:]
    each = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none")
    return each.view(wanted.shape).mean(1)


def step_of(size: Size, ledger: Ledger) -> Callable[[], None]:
    """A step that can be done again and again."""
    model = size.model()
    sums = ClippedSums(model)
    rng = np.random.default_rng(0)
    event = SampledGaussian(unit="users", rate=0.1, noise_multiplier=1.0)
    sampler = PoissonUsers(size.corpus, size.users / size.corpus)
    ids = torch.randint(0, size.vocabulary, (size.users * size.records, size.tokens + 1))
    owner = torch.arange(size.users).repeat_interleave(size.records)

    def step() -> None:
        sampler.draw(rng)
        total = sums.users(partial(losses, model), [({"input_ids": ids}, owner)], clip_norm=1.0)
        noisy = release(total, event, ledger, RandomSource(), phase="train", step=1)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.sub_(noisy[name], alpha=1e-4)

    return step


def seconds(sizes: Sequence[Size], ledger: Ledger) -> list[float]:
    """Medians of repeats that take turns."""
    steps = [step_of(size, ledger) for size in sizes]
    took: list[list[float]] = [[] for _ in steps]
    for turn in range(REPEATS + 1):
        for step, times in zip(steps, took, strict=True):
            start = time.process_time()
            step()
            if turn:  # the first one warms up
                times.append(time.process_time() - start)
    return [statistics.median(times) for times in took]


def _peak(size: Size) -> float:
    """The peak of a few steps of the training loop's own method over the loaded corpus, in MB."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    records = size.corpus * size.records
    everything = np.arange(records)
    user = np.repeat(np.arange(size.corpus), size.records).astype(np.int32)
    ids = [rng.integers(size.vocabulary, size=size.tokens, dtype=np.int32) for _ in range(records)]
    training_data = TrainingData(
        Examples(ids, user, everything.astype(np.int32), pad=0),
        everything,
        tuple(everything.reshape(size.corpus, -1)),
        None,
        None,
    )
    plan = Plan.model_validate(
        {
            "protect": "users",
            "epsilon": 8.0,
            "users": size.corpus,
            "user_rate": size.users / size.corpus,
            "steps": 3,
            "clip_norm": 1.0,
            "noise_multiplier": 1.0,
        }
    )

    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder) / "l.jsonl", {}) as ledger:
        run = Run(corpus="none", plan=plan.model_dump(exclude_none=True), token_budget=2048)
        method: Any = run.spec.step(
            MethodInputs(run, size.model(), losses, training_data, RandomSource(0), plan, ledger)
        )
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        for step in range(3):
            method.gradient(step + 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return peak - pages * resource.getpagesize() / 2**20


def peaks() -> None:
    """Memory over users of the corpus, and over users drawn."""
    context = multiprocessing.get_context("spawn")
    print("| over | peak of a step over the loaded corpus, MB |\n|---|---|")
    for name, values in {"corpus": (1000, 10_000, 100_000), "users": (80, 320, 900)}.items():
        sizes = [replace(Size(), **{name: value}) for value in values]
        with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as fresh:
            found = [
                f"{value:,}: {peak:.0f}"
                for value, peak in zip(values, fresh.map(_peak, sizes), strict=True)
            ]
        print(f"| {CURVES[name][0]} | {', '.join(found)} |", flush=True)


def main() -> None:
    """Measure every curve, draw them, print them as a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memory", action="store_true", help="peaks of memory, not times")
    if parser.parse_args().memory:
        peaks()
        return
    torch.set_num_threads(1)
    keep_freed_memory()
    found: dict[str, tuple[list[float], list[float]]] = {}
    print("| over | from | to | time of a step, s | a line misses by |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder) / "l.jsonl", {}) as ledger:
        for name, (title, values) in CURVES.items():
            sizes = [replace(Size(), **{name: value}) for value in values]
            across = [float(value) for value in values]
            if name == "layers":
                counts = [sum(p.numel() for p in s.model().parameters()) for s in sizes]
                across = [round(count / 1e6, 3) for count in counts]
            times = seconds(sizes, ledger)
            found[title] = (across, times)
            line = np.polyfit(across, times, 1)
            miss = float(np.abs(np.polyval(line, across) - times).max()) / max(times)
            spread = f"{times[0]:.3g} to {times[-1]:.3g}"
            print(
                f"| {title} | {across[0]:,.10g} | {across[-1]:,.10g} | {spread} | {miss:.1%} |",
                flush=True,
            )
    _draw(found)


def _draw(found: dict[str, tuple[list[float], list[float]]]) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    from tacit.reports.plots import STYLE, save

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 5.2), layout="constrained")
        for axes, (title, (across, times)) in zip(
            figure.subplots(2, 3).flat, found.items(), strict=True
        ):
            line = np.polyfit(across, times, 1)
            axes.plot(across, np.polyval(line, across), color="#999999", linewidth=1)
            axes.plot(across, times, "o", color="#0072B2")
            axes.set_title(title, loc="left", fontsize=9)
            axes.set_ylim(0, max(times) * 1.1)
            axes.set_xlim(left=0)
            axes.set_ylabel("s for a step", fontsize=8)
            axes.locator_params(axis="x", nbins=5)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
            axes.tick_params(labelsize=8)
            axes.spines[["top", "right"]].set_visible(False)
        save(figure, FIGURE)


if __name__ == "__main__":
    main()
