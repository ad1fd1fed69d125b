"""What a step costs in a loop of one's own, or behind a Trainer, over the same of `tacit train`.

    python tools/bench_own_loops.py

Processor time of one thread for the gradient, noise, ledger and update of a step: the smallest
mean of several turns, the two in turn.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

import tacit.torch
from tacit.corpora import customersim
from tacit.corpus.writing import write
from tacit.hf import PrivateTrainer
from tacit.training.models.optimizers import make_optimizer
from tacit.training.phases import session
from tacit.training.phases.run_context import encode, open_run
from tacit.training.settings import Run

STEPS, TURNS = 6, 3
PLAN = {"protect": "users", "epsilon": 8, "users": 200, "user_rate": 0.15, "steps": STEPS}
MODELS: dict[str, dict[str, Any]] = {
    "GPT-2, 2 layers of 128": {
        "kind": "gpt2", "config": {"layers": 2, "hidden_size": 128, "heads": 4},
    },
    "LSTM of 200": {"kind": "lstm", "config": {"hidden_size": 200, "embedding_size": 200}},
}  # fmt: skip


def by_command(run: Run, folder: Path) -> float:
    """Seconds of a step of `tacit train`."""
    found = session.train(run, folder).metrics["time"]["train"]
    return float(found["cpu_seconds"] / found["steps"])


def by_loop(run: Run, folder: Path) -> float:
    """Seconds of a step of the same run in a loop of its own."""
    ctx = open_run(run)
    examples, model = encode(ctx, ctx.part), ctx.model
    longest = int(examples.lengths.max())
    private = tacit.torch.make_private(
        model, make_optimizer(model, run.optimizer), PLAN, ledger=folder / "ledger.jsonl",
        owners=ctx.part.column("user").to_pylist(), seed=run.seed,
    )  # fmt: skip
    for rows in private.batches(range(len(examples)), at_once=run.token_budget // longest):
        private.step(ctx.task.losses(model, examples.batch(rows.numpy())))
    timed = private.training.loop.timed  # type: ignore[union-attr]
    return timed.seconds / timed.steps


def by_trainer(run: Run, folder: Path) -> float:
    """Seconds of a step of the same run behind the Trainer of transformers."""
    ctx = open_run(run)
    examples = encode(ctx, ctx.part)
    longest = int(examples.lengths.max())

    class OfTask(PrivateTrainer):
        def record_losses(self, model: Any, inputs: Any) -> torch.Tensor:
            return ctx.task.losses(model, inputs)

    trainer = OfTask(
        ctx.model,
        TrainingArguments(
            str(folder), use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no",
            remove_unused_columns=False,
            per_device_train_batch_size=run.token_budget // longest,
        ),
        plan=PLAN, owners=ctx.part.column("user").to_pylist(), seed=run.seed,
        train_dataset=range(len(examples)), data_collator=lambda rows: {
            name: value for name, value in examples.batch(rows).items() if name != "record"
        },
        optimizers=(make_optimizer(ctx.model, run.optimizer), None),
    )  # fmt: skip
    trainer.train()
    timed = trainer.training.loop.timed  # type: ignore[union-attr]
    return timed.seconds / timed.steps


def main() -> None:
    """Print a table."""
    torch.set_num_threads(1)
    print("| ms a step of | tacit train | own loop | ratio | PrivateTrainer | ratio |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as place:
        corpus = Path(place) / "c.jsonl"
        write(customersim.generate(200, 3), corpus)
        for name, model in MODELS.items():
            run = Run(
                corpus=str(corpus), model=model, plan=PLAN, seed=1, context=64,
                tokenizer={"size": 2000}, device="cpu",
            )  # fmt: skip
            ways: tuple[Callable[[Run, Path], float], ...] = (by_command, by_loop, by_trainer)
            least = [
                min(way(run, Path(place) / f"{name} {way.__name__} {n}") for n in range(TURNS))
                for way in ways
            ]
            theirs = least[0]
            others = (f"{1000 * own:.1f} | {own / theirs:.2f}" for own in least[1:])
            print(f"| {name} | {1000 * theirs:.1f} | {' | '.join(others)} |", flush=True)


if __name__ == "__main__":
    main()
