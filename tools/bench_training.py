"""How much longer a step of private training takes than a plain one, and how much more memory.

    python tools/bench_training.py                      # all five models, all ways, with peers
    python tools/bench_training.py lstm gpt --repeats 9 --no-peers
    python tools/bench_training.py --memory             # peaks, each in a process of its own
    python tools/bench_training.py --scaling            # twice the tokens, users, corpus
    python tools/bench_training.py awd --way records --profile
    python tools/bench_training.py --threads 1 --clock cpu   # on a machine with other work

A plain step is forward, backward and SGD of the same model on the same batch, with torch's own
LSTM; a private step is the clipped sum, its entry in a ledger, noise on every coordinate, and SGD.
All kinds of steps are run in turn and medians are compared; the spread is that of the single
ratios (quartiles).
"""

import argparse
import gc
import json
import math
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from tacit.training.dp.gradients import ClippedSums  # isort: skip  (sets how threads wait)

import torch
from bench_peers import PEERS, Peers
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

from tacit.privacy.events import SampledGaussian
from tacit.privacy.ledger import Ledger
from tacit.training.dp.noise import release
from tacit.training.dp.random_source import RandomSource
from tacit.training.models.lstm import GateLSTM
from tacit.training.models.memory import keep_freed_memory

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
    make: Callable[[bool, bool], nn.Module]
    """From whether it is for a plain step, and whether its embeddings are tied."""
    records: tuple[int, int]
    users: tuple[int, int, int]
    classes: bool = False


def _gpt(layers: int, width: int, tied: bool) -> nn.Module:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=WORDS,
            n_positions=256,
            n_embd=width,
            n_layer=layers,
            n_head=width // 64,
            bos_token_id=0,
            eos_token_id=0,
            tie_word_embeddings=tied,
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
    "lstm": Contest("LSTM 1x200", lambda p, t: _recurrent(p, 200, [200]), (64, 32), (20, 15, 16)),
    "gpt": Contest("GPT 4x256", lambda p, t: _gpt(4, 256, t), (64, 32), (20, 15, 16)),
    "bert": Contest("BERT 4x256", lambda p, t: _bert(4, 256), (64, 32), (20, 15, 16), True),
    "gpt-large": Contest("GPT 12x768", lambda p, t: _gpt(12, 768, t), (32, 32), (20, 15, 16)),
    "awd": Contest(
        "AWD-LSTM 3x1150", lambda p, t: _recurrent(p, 100, [1150] * 3), (32, 32), (20, 15, 16)
    ),
}
WAYS = ("records", "users", "two-level")


class Steps:
    """A model and one batch, stepped in different ways."""

    def __init__(
        self, contest: Contest, way: str, *, plain: bool, tied: bool = True, times: int = 1
    ) -> None:
        torch.manual_seed(0)
        self._contest, self._way = contest, way
        self.model = contest.make(plain, tied)
        self.model.train()
        users, records, tokens = contest.users
        users = int(os.environ.get("BENCH_USERS", users))
        if way == "records":
            (users, tokens), records = contest.records, 1
            users = int(os.environ.get("BENCH_RECORDS", users))
        self.owner = torch.arange(users * times).repeat_interleave(records)
        ids = torch.randint(0, WORDS, (users * times * records, tokens))
        labels = torch.randint(0, 4, (len(ids),)) if contest.classes else ids
        self.batch: Batch = {"input_ids": ids, "labels": labels}
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def losses(self, batch: Batch, forward: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        ids, labels = batch["input_ids"], batch["labels"]
        logits = (forward or self._logits)(ids)
        if self._contest.classes:
            return F.cross_entropy(logits, labels, reduction="none")
        flat = logits.view(-1, logits.shape[-1])
        return F.cross_entropy(flat, labels.view(-1), reduction="none").view(ids.shape).mean(1)

    def _logits(self, ids: Tensor) -> Tensor:
        if isinstance(self.model, Recurrent):
            return self.model(ids)
        if self._contest.classes:
            return self.model(ids).logits
        return self.model(ids, use_cache=False).logits

    def plain(self) -> None:
        self._optimizer.zero_grad()
        self.losses(self.batch).mean().backward()
        self._optimizer.step()

    def prepare(self, ledger: Ledger) -> None:
        self._sums, self._ledger = ClippedSums(self.model), ledger
        unit = "records" if self._way == "records" else "users"
        self._event = SampledGaussian(unit=unit, rate=0.1, noise_multiplier=1.0)

    def private(self, *, noise: bool = True) -> None:
        call = self._sums.records if self._way == "records" else self._sums.users
        options = {"record_clip": 1.0} if self._way == "two-level" else {}
        total = call(self.losses, [(self.batch, self.owner)], clip_norm=1.0, **options)
        tensors = total.tensors
        if noise:
            tensors = release(
                total, self._event, self._ledger, RandomSource(), phase="train", step=1
            )
        del total
        for name, parameter in self.model.named_parameters():
            parameter.grad = tensors.pop(name)
        self._optimizer.step()
        self._optimizer.zero_grad()


def _timed(step: Callable[[], None], clock: Callable[[], float]) -> float:
    gc.collect()
    start = clock()
    step()
    return clock() - start


def measure(
    name: str, way: str, repeats: int, clock: str, *, peers: bool, ledger: Ledger
) -> dict[str, object]:
    """Medians of interleaved repeats, and the ratio with its quartiles."""
    contest = CONTESTS[name]
    now = time.perf_counter if clock == "wall" else time.process_time
    plain = Steps(contest, way, plain=True)
    ours = Steps(contest, way, plain=False)
    ours.prepare(ledger)
    steps: dict[str, Callable[[], float]] = {
        "plain": lambda: _timed(plain.plain, now),
        "private": lambda: _timed(ours.private, now),
    }
    if way == "records":
        steps["without noise"] = lambda: _timed(lambda: ours.private(noise=False), now)
    others = Peers(name, torch.get_num_threads(), clock) if peers else None
    if others:
        steps |= {peer: lambda peer=peer: others.step(peer) for peer in PEERS}
    times: dict[str, list[float]] = {kind: [] for kind in steps}
    for turn in range(repeats + 1):  # the first one warms up
        for kind, step in steps.items():
            slow = kind in PEERS and times[kind] and times[kind][-1] > 20 * times["plain"][-1]
            if slow:
                continue  # far behind: one step tells it
            took = step()
            if turn:
                times[kind].append(took)
    if others:
        others.close()
    return {"model": contest.title, "way": way} | _ratios(times)


def _ratios(times: dict[str, list[float]]) -> dict[str, object]:
    base = times.pop("plain")
    result: dict[str, object] = {"plain_ms": round(1000 * statistics.median(base), 1)}
    for kind, own in times.items():
        ratios = sorted(a / b for a, b in zip(own, base, strict=False) if not math.isnan(a))
        if not ratios:
            result[kind] = "refused"
            continue
        cut = len(ratios) // 4
        result[kind] = round(statistics.median(own) / statistics.median(base), 3)
        result[f"{kind} spread"] = [round(ratios[cut], 2), round(ratios[-1 - cut], 2)]
    return result


def scaling(name: str, repeats: int, ledger: Ledger) -> dict[str, object]:
    """What twice the records, and twice the users, do to a private step (CPU time)."""
    result: dict[str, object] = {"model": CONTESTS[name].title}
    for way in WAYS:
        sizes = {times: Steps(CONTESTS[name], way, plain=False, times=times) for times in (1, 2)}
        took: dict[int, list[float]] = {times: [] for times in sizes}
        for steps in sizes.values():
            steps.prepare(ledger)
            steps.private(noise=False)
        for _ in range(repeats):
            for times, steps in sizes.items():
                took[times].append(
                    _timed(lambda steps=steps: steps.private(noise=False), time.process_time)
                )
        result[way] = round(statistics.median(took[2]) / statistics.median(took[1]), 2)
    return result


def _peak(name: str, way: str, kind: str, answer: "multiprocessing.SimpleQueue[float]") -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    steps = Steps(CONTESTS[name], way, plain=kind == "plain")
    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder) / "l.jsonl", {}) as ledger:
        if kind == "private":
            steps.prepare(ledger)
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


def profile(name: str, way: str, kind: str, ledger: Ledger) -> None:
    """Where one step spends its time."""
    steps = Steps(CONTESTS[name], way, plain=kind == "plain")
    if kind == "private":
        steps.prepare(ledger)
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
    parser.add_argument("--records", type=int, help="other than the model's own batch")
    parser.add_argument("--users", type=int, help="other than 20")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--scaling", action="store_true")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    keep_freed_memory()  # for plain and private steps alike; peers get the same
    torch.set_num_threads(options.threads)
    for name, value in (("RECORDS", options.records), ("USERS", options.users)):
        if value:  # through the environment: other processes measure, too
            os.environ[f"BENCH_{name}"] = str(value)
    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder) / "l.jsonl", {}) as ledger:
        for name in options.models or CONTESTS:
            if options.scaling:
                print(json.dumps(scaling(name, options.repeats, ledger)), flush=True)
                continue
            for way in options.way or WAYS:
                if options.profile:
                    profile(name, way, "plain", ledger)
                    profile(name, way, "private", ledger)
                elif options.memory:
                    print(json.dumps(memory(name, way)), flush=True)
                else:
                    peers = options.peers and way == "records"
                    found = measure(
                        name, way, options.repeats, options.clock, peers=peers, ledger=ledger
                    )
                    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
