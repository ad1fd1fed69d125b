"""How much longer a step of the papers' methods takes than a plain step of the same model.

    OMP_NUM_THREADS=1 python tools/bench_methods.py paper      # adversarial, triplet, records
    OMP_NUM_THREADS=1 python tools/bench_methods.py selective  # at most 4 sensitive segments
    OMP_NUM_THREADS=1 python tools/bench_methods.py names      # against a step for users
    OMP_NUM_THREADS=1 python tools/bench_methods.py selective --profile selective

Steps are those of the training loop: what is drawn, losses, gradients, noise and the ledger where
there are any, and the optimizer. All take turns on the same records, the first turn warms up;
medians are compared, and quartiles of the single ratios are the spread. Wall and CPU time are
those of the same steps.
"""

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tacit.training.models.memory import keep_freed_memory  # isort: skip  (sets how threads wait)

import numpy as np
import torch

from tacit.privacy.ledger import Ledger
from tacit.training.data.attributes import Attribute
from tacit.training.data.shown_names import Copies, ShownNames
from tacit.training.data.substitution import Name
from tacit.training.data.training_data import TrainingData, prepare
from tacit.training.dp.random_source import RandomSource
from tacit.training.methods.method import MethodInputs
from tacit.training.models.optimizers import make_optimizer
from tacit.training.models.recurrent import LSTMConfig, LSTMForCausalLM
from tacit.training.phases.loop import Loop
from tacit.training.settings import OptimizerSettings, Run
from tacit.training.tasks.examples import Examples
from tacit.training.tasks.tasks import NextWord


@dataclass(frozen=True)
class Contest:
    """A model, a batch of records, and whose steps are compared with plain ones."""

    layers: int
    width: int
    words: int
    records: int
    tokens: int
    optimizer: OptimizerSettings
    methods: tuple[str, ...]
    base: str = "plain"
    records_per_user: int = 1


CONTESTS = {
    "paper": Contest(
        2, 550, 40_000, 100, 20, OptimizerSettings(name="adam", learning_rate=1e-3),
        ("adversarial", "triplet", "records"),
    ),
    "selective": Contest(
        1, 200, 8192, 64, 32,
        OptimizerSettings(name="sgd", learning_rate=0.1, momentum=0.0), ("selective",),
    ),
    "names": Contest(
        1, 200, 8192, 240, 32, OptimizerSettings(name="sgd", learning_rate=0.1, momentum=0.0),
        ("names", "shown"), "users", 15,
    ),
}  # fmt: skip


def records(contest: Contest) -> TrainingData:
    """Records of random tokens, up to 4 of which stand for something sensitive."""
    rng = np.random.default_rng(0)
    ids = [
        rng.integers(0, contest.words, contest.tokens).astype(np.int32)
        for _ in range(contest.records)
    ]
    marks = []
    for _ in ids:
        own = np.zeros(contest.tokens, dtype=bool)
        for at in rng.choice(np.arange(2, contest.tokens - 2, 6), rng.integers(1, 5)):
            own[at : at + rng.integers(1, 4)] = True
        marks.append(own)
    each = np.arange(len(ids), dtype=np.int32)
    user = each // contest.records_per_user
    examples = Examples(ids=ids, user=user, record=each, pad=0, sensitive=marks)
    return prepare(examples, None, [], None)  # type: ignore[arg-type]


class FirstNames(ShownNames):
    """Every user shows as many names as the defaults allow, each in one of the first records."""

    def __init__(self, training_data: TrainingData, most: int = 4) -> None:
        self._rows = {int(row) for own in training_data.rows_of_user for row in own[:most]}
        rng, base = np.random.default_rng(1), training_data.examples
        assert isinstance(base, Examples)
        ids = [own.copy() for own in base.ids]
        for own in ids:
            own[5:8] = rng.integers(0, 8192, 3)
        self._copies = replace(base, ids=ids)

    def copies(self, step: int, examples: Any, units: Any) -> Copies:
        """The same copies in every step."""
        wanted = [(int(r), Name("PERSON", str(r))) for own in units for r in own if r in self._rows]
        return Copies(examples, units, wanted, {one: (self._copies, one[0]) for one in wanted})


def loop_of(name: str, contest: Contest, training_data: TrainingData, ledger: Ledger) -> Loop:
    """A model of its own, trained by a method."""
    torch.manual_seed(0)
    config = LSTMConfig(
        vocab_size=contest.words, embedding_size=contest.width, hidden_size=contest.width,
        layers=contest.layers, tie_word_embeddings=False,
    )  # fmt: skip
    model = LSTMForCausalLM(config)
    randomness, size = RandomSource(0), contest.records
    # Everybody comes to every step, so that all steps are on the same records.
    plan = {"record_rate": 1.0, "noise_multiplier": 1.0, "epsilon": 1e6, "steps": 10**6}
    settings: dict[str, Any] = {"method": name, "steps": 10**6, "batch": size, "corpus": "none"}
    if name in ("users", "names", "shown"):
        own = {name: value for name, value in plan.items() if name != "record_rate"}
        own |= {"user_rate": 1.0, "users": size, "delta": 1e-9}
        whom = "users" if name == "users" else "users+names"
        share = {"name_share": 0.05} if name == "shown" else {}
        settings |= {"method": "dp-sgd", "plan": own | {"protect": whom} | share}
        settings |= {"detect": "patterns"} if name != "users" else {}
        training_data = replace(
            training_data, names=FirstNames(training_data) if name == "shown" else None
        )
    if name == "records":
        settings |= {"method": "dp-sgd", "plan": plan | {"protect": "records", "records": size}}
    if name == "selective":
        settings |= {"plan": plan | {"segments": 4, "states": 2}, "policy": "digits",
                     "selective": {"state_clip": 1.0}}  # fmt: skip
    run = Run(**settings)
    method = run.spec.step(
        MethodInputs(
            run,
            model,
            NextWord().losses,
            training_data,
            randomness,
            run.made_plan(),
            ledger,
            Attribute(np.arange(size), size),
        )
    )
    optimizer = make_optimizer(model, contest.optimizer)
    return Loop(model.train(), method, optimizer, contest.optimizer, 10**6, randomness)


def measure(name: str, repeats: int, ledger: Ledger) -> dict[str, object]:
    """Every method's ratio to plain, with its quartiles, by wall and by CPU time."""
    contest = CONTESTS[name]
    training_data = records(contest)
    names = (contest.base, *contest.methods)
    loops = {m: loop_of(m, contest, training_data, ledger) for m in names}
    clocks: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
    times: dict[tuple[str, str], list[float]] = {(c, m): [] for c in clocks for m in loops}
    for turn in range(repeats + 1):
        for method, loop in loops.items():
            gc.collect()
            before = {c: now() for c, now in clocks.items()}
            loop._step(turn + 1)
            for c, now in clocks.items():
                times[c, method].append(now() - before[c])
    found: dict[str, object] = {
        "model": f"LSTM {contest.layers}x{contest.width}, {contest.words:,} words",
        "batch": f"{contest.records} records of {contest.tokens} tokens",
        f"{contest.base}_s": round(statistics.median(times["wall", contest.base][1:]), 3),
    }
    for method in contest.methods:
        for c in clocks:
            base, own = times[c, contest.base][1:], times[c, method][1:]
            each = sorted(a / b for a, b in zip(own, base, strict=True))
            cut = len(each) // 4
            found[f"{method} {c}"] = round(statistics.median(own) / statistics.median(base), 3)
            found[f"{method} {c} spread"] = [round(each[cut], 2), round(each[-1 - cut], 2)]
    return found


def profile(name: str, method: str, ledger: Ledger) -> None:
    """Where one step spends its time."""
    contest = CONTESTS[name]
    loop = loop_of(method, contest, records(contest), ledger)
    loop._step(1)
    with torch.profiler.profile() as seen:
        loop._step(2)
    print(seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=20))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("contests", nargs="*", choices=[*CONTESTS, []], default=[])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--profile", metavar="METHOD", help="of one method, plain included")
    options = parser.parse_args()
    keep_freed_memory()  # as every run does
    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder) / "l.jsonl", {}) as ledger:
        for name in options.contests or CONTESTS:
            if options.profile:
                profile(name, options.profile, ledger)
            else:
                print(json.dumps(measure(name, options.repeats, ledger), indent=2), flush=True)


if __name__ == "__main__":
    main()
