"""How much longer a step of private training takes than a plain one, and how much more memory.

    python tools/bench_training.py                      # all five models, all ways
    python tools/bench_training.py lstm gpt --repeats 9
    python tools/bench_training.py --memory             # peaks, each in a process of its own
    python tools/bench_training.py awd --way records --profile
    python tools/bench_training.py --threads 1 --clock cpu   # on a machine with other work

A plain step is forward, backward and SGD of the same model on the same batch, with torch's own
LSTM; a private step is the clipped sum, noise on every coordinate, and SGD. Both are run in turn
and medians are compared; the spread is that of the single ratios (quartiles).
"""

import argparse
import gc
import json
import multiprocessing
import os
import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

from tacit.training.gradients import ClippedSums
from tacit.training.lstm import GateLSTM

Batch = dict[str, Tensor]
WORDS = 8192


class Recurrent(nn.Module):
    """Embedding, LSTM layers, head."""

    def __init__(self, kind: type[nn.Module], width: int, sizes: list[int]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        inputs = [width, *sizes[:-1]]
        self.layers = nn.ModuleList(
            kind(a, b, batch_first=True) for a, b in zip(inputs, sizes, strict=True)
        )
        self.head = nn.Linear(sizes[-1], WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x, _ = layer(x)
        return self.head(x)


@dataclass(frozen=True)
class Contest:
    """A model, and the batches it is measured on: (records, tokens), (users, records, tokens)."""

    title: str
    make: Callable[[bool], nn.Module]
    records: tuple[int, int]
    users: tuple[int, int, int]
    classes: bool = False


def _gpt(layers: int, width: int) -> nn.Module:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=WORDS,
            n_positions=256,
            n_embd=width,
            n_layer=layers,
            n_head=width // 64,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def _bert(layers: int, width: int) -> nn.Module:
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=width // 64,
            intermediate_size=4 * width,
            num_labels=4,
        )
    )


def _recurrent(plain: bool, width: int, sizes: list[int]) -> nn.Module:
    torch.manual_seed(0)
    return Recurrent(nn.LSTM if plain else GateLSTM, width, sizes)


CONTESTS = {
    "lstm": Contest("LSTM 1x200", lambda p: _recurrent(p, 200, [200]), (64, 32), (20, 15, 16)),
    "gpt": Contest("GPT 4x256", lambda p: _gpt(4, 256), (64, 32), (20, 15, 16)),
    "bert": Contest("BERT 4x256", lambda p: _bert(4, 256), (64, 32), (20, 15, 16), True),
    "gpt-large": Contest("GPT 12x768", lambda p: _gpt(12, 768), (32, 32), (4, 15, 16)),
    "awd": Contest(
        "AWD-LSTM 3x1150", lambda p: _recurrent(p, 100, [1150] * 3), (32, 32), (4, 15, 16)
    ),
}
WAYS = ("records", "users", "two-level")
TARGETS = {"records": 1.30, "users": 1.20, "two-level": 1.35, "memory": 1.25}


class Steps:
    """A model and one batch, stepped in different ways."""

    def __init__(self, contest: Contest, way: str, *, plain: bool) -> None:
        torch.manual_seed(0)
        self._contest, self._way = contest, way
        self._model = contest.make(plain)
        self._model.train()
        users, records, tokens = contest.users
        if way == "records":
            (users, tokens), records = contest.records, 1
        self.owner = torch.arange(users).repeat_interleave(records)
        ids = torch.randint(0, WORDS, (users * records, tokens))
        labels = torch.randint(0, 4, (len(ids),)) if contest.classes else ids
        self.batch: Batch = {"input_ids": ids, "labels": labels}
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        self._pool = ThreadPoolExecutor(torch.get_num_threads())
        self._streams = [np.random.default_rng(i) for i in range(torch.get_num_threads())]

    def losses(self, batch: Batch) -> Tensor:
        ids, labels = batch["input_ids"], batch["labels"]
        if isinstance(self._model, Recurrent):
            logits = self._model(ids)
        elif self._contest.classes:
            return F.cross_entropy(self._model(ids).logits, labels, reduction="none")
        else:
            logits = self._model(ids, use_cache=False).logits
        flat = logits.view(-1, logits.shape[-1])
        return F.cross_entropy(flat, labels.view(-1), reduction="none").view(ids.shape).mean(1)

    def plain(self) -> None:
        self._optimizer.zero_grad()
        self.losses(self.batch).mean().backward()
        self._optimizer.step()

    def prepare(self) -> None:
        self._sums = ClippedSums(self._model)

    def private(self, *, noise: bool = True) -> None:
        call = self._sums.records if self._way == "records" else self._sums.users
        options = {"record_clip": 1.0} if self._way == "two-level" else {}
        total = call(self.losses, [(self.batch, self.owner)], clip_norm=1.0, **options)
        if noise:
            self._noise(total.tensors)
        for name, parameter in self._model.named_parameters():
            parameter.grad = total.tensors[name]
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _noise(self, tensors: dict[str, Tensor]) -> None:
        """Normal numbers on every coordinate, drawn on all cores from streams of their own."""
        size = 1 << 18
        blocks = [b for t in tensors.values() for b in t.view(-1).split(size)]

        def fill(number: int) -> None:
            rng = self._streams[number]
            space = np.empty(size, dtype=np.float32)
            for block in blocks[number :: len(self._streams)]:
                part = space[: block.numel()]
                rng.standard_normal(out=part, dtype=np.float32)
                block.add_(torch.from_numpy(part), alpha=1e-3)

        list(self._pool.map(fill, range(len(self._streams))))


def _opacus(contest: Contest) -> Callable[[], None] | None:
    """A step of Opacus on the records' batch, where it is installed."""
    if find_spec("opacus") is None:
        return None
    from opacus import GradSampleModule, layers

    class Theirs(layers.DPLSTM):
        pass

    steps = Steps(contest, "records", plain=True)
    model = steps._model
    if isinstance(model, Recurrent):
        for number, layer in enumerate(model.layers):
            model.layers[number] = Theirs(layer.input_size, layer.hidden_size, batch_first=True)
    wrapped = GradSampleModule(model)
    positions = torch.arange(contest.records[1]).repeat(contest.records[0], 1)

    def logits(ids: Tensor) -> Tensor:
        if isinstance(model, Recurrent):
            return wrapped(ids)
        return wrapped(ids, position_ids=positions).logits

    def step() -> None:
        ids, labels = steps.batch["input_ids"], steps.batch["labels"]
        out = logits(ids)
        each = F.cross_entropy(out.view(-1, out.shape[-1]), labels.view(-1), reduction="none")
        each.view(len(ids), -1).mean(1).sum().backward()
        own = [p for p in model.parameters() if p.requires_grad]
        squares = torch.stack([p.grad_sample.flatten(1).square().sum(1) for p in own]).sum(0)
        factor = (1 / squares.sqrt()).clamp(max=1)
        for p in own:
            total = torch.einsum("b,b...->...", factor, p.grad_sample)
            p.grad = total + 1e-3 * torch.randn_like(total)
            p.grad_sample = None
        steps._optimizer.step()
        steps._optimizer.zero_grad()

    return step


def _timed(step: Callable[[], None], clock: Callable[[], float]) -> float:
    gc.collect()
    start = clock()
    step()
    return clock() - start


def measure(name: str, way: str, repeats: int, clock: Callable[[], float]) -> dict[str, object]:
    """Medians of interleaved repeats, and the ratio with its quartiles."""
    contest = CONTESTS[name]
    plain = Steps(contest, way, plain=True)
    ours = Steps(contest, way, plain=False)
    ours.prepare()
    steps: dict[str, Callable[[], None]] = {
        "plain": plain.plain,
        "private": ours.private,
        "without noise": lambda: ours.private(noise=False),
    }
    peer = _opacus(contest) if way == "records" else None
    if peer:
        steps["opacus"] = peer
    times: dict[str, list[float]] = {kind: [] for kind in steps}
    for step in steps.values():
        step()
    for _ in range(repeats):
        for kind, step in steps.items():
            times[kind].append(_timed(step, clock))
    base = times["plain"]
    result: dict[str, object] = {"model": contest.title, "way": way}
    result["plain_ms"] = round(1000 * statistics.median(base), 1)
    for kind in [kind for kind in steps if kind != "plain"]:
        ratios = sorted(a / b for a, b in zip(times[kind], base, strict=True))
        cut = len(ratios) // 4
        result[kind] = round(statistics.median(times[kind]) / statistics.median(base), 3)
        result[f"{kind} spread"] = [round(ratios[cut], 2), round(ratios[-1 - cut], 2)]
    return result


def _peak(name: str, way: str, kind: str, answer: "multiprocessing.SimpleQueue[float]") -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    steps = Steps(CONTESTS[name], way, plain=kind == "plain")
    if kind == "private":
        steps.prepare()
    for _ in range(2):
        steps.plain() if kind == "plain" else steps.private()
    answer.put((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


def memory(name: str, way: str) -> dict[str, object]:
    """Peak memory of two steps over what the process had before, in megabytes."""
    context = multiprocessing.get_context("spawn")
    peaks = {}
    for kind in ("plain", "private"):
        answer = context.SimpleQueue()
        process = context.Process(target=_peak, args=(name, way, kind, answer))
        process.start()
        process.join()
        peaks[kind] = answer.get()
    return {
        "model": CONTESTS[name].title,
        "way": way,
        "plain_mb": round(peaks["plain"]),
        "private_mb": round(peaks["private"]),
        "ratio": round(peaks["private"] / peaks["plain"], 3),
    }


def profile(name: str, way: str, kind: str) -> None:
    """Where one step spends its time."""
    steps = Steps(CONTESTS[name], way, plain=kind == "plain")
    if kind == "private":
        steps.prepare()
    step = steps.plain if kind == "plain" else lambda: steps.private(noise=False)
    step()
    with torch.profiler.profile() as found:
        step()
    print(kind)
    print(found.key_averages().table(sort_by="self_cpu_time_total", row_limit=18))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", choices=[*CONTESTS, []], default=[])
    parser.add_argument("--way", choices=WAYS, action="append")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    for name in options.models or CONTESTS:
        for way in options.way or WAYS:
            if options.profile:
                profile(name, way, "plain")
                profile(name, way, "private")
            elif options.memory:
                print(json.dumps(memory(name, way)), flush=True)
            else:
                print(json.dumps(measure(name, way, options.repeats, clock)), flush=True)


if __name__ == "__main__":
    main()
