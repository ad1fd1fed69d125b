"""Bugs of the field that nothing else looks at: vocabularies, forked workers, silent adapters."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.steps import make_step
from tacit.corpora import customersim
from tacit.planning.plan import Plan
from tacit.privacy.events import SampledGaussian
from tacit.privacy.ledger import Ledger
from tacit.training.data.training_data import TrainingData
from tacit.training.dp.gradients import ClippedSums
from tacit.training.dp.noise import release
from tacit.training.dp.random_source import RandomSource
from tacit.training.models import networks, weights
from tacit.training.models.tokens import byte_level_bpe
from tacit.training.phases.run_context import _tokenizer
from tacit.training.settings import Run
from tacit.training.tasks.tasks import NextWord

PLAN: dict[str, Any] = {"protect": "users", "epsilon": 8, "steps": 1, "user_rate": 1.0, "users": 9}


def test_no_vocabulary_is_counted_from_private_text_without_a_word() -> None:
    one, other = customersim.generate(30, 1), customersim.generate(30, 2)
    bpe = Run(corpus="x", plan=PLAN, tokenizer={"size": 500})
    (first, leaks), (second, _) = (_tokenizer(bpe, corpus) for corpus in (one, other))
    assert first.get_vocab() == second.get_vocab()
    assert leaks == []
    words = Run(corpus="x", plan=PLAN, tokenizer={"kind": "words", "min_count": 2})
    (first, leaks), (second, _) = (_tokenizer(words, corpus) for corpus in (one, other))
    assert first.get_vocab() != second.get_vocab()
    assert len(leaks) == 1


FORKING = """
import os
from tacit.training.dp.random_source import RandomSource
for _ in range(2):
    if os.fork() == 0:
        print(RandomSource().key(1).hex(), flush=True)
        os._exit(0)
for _ in range(2):
    os.wait()
print(RandomSource().key(1).hex())
"""


def test_forked_workers_draw_their_own_noise() -> None:
    """In a process of its own: torch must not be there when it forks."""
    done = subprocess.run(
        [sys.executable, "-c", FORKING],
        capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert len(set(done.stdout.split())) == 3


def test_parameters_of_one_shape_get_noise_of_their_own(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(40, 40), torch.nn.Linear(40, 40))
    total = ClippedSums(model).users(lambda b: b["x"].sum(1), [], clip_norm=1.0, units=0)
    event = SampledGaussian(unit="users", rate=1.0, noise_multiplier=1.0)
    with Ledger(tmp_path / "ledger.jsonl", {}) as ledger:
        out = release(total, event, ledger, RandomSource(1), phase="train", step=1)
    one, other = (out[f"{i}.weight"].flatten().numpy() for i in (0, 1))
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.15


def test_every_adapter_moves_in_a_private_step(tmp_path: Path) -> None:
    """LoRA factors are summed, noised and updated, all of them and nothing else."""
    pytest.importorskip("peft")
    tokenizer = byte_level_bpe(None, 400)
    config = {"kind": "gpt2", "layers": 1, "hidden_size": 8, "heads": 2, "context": 16}
    scratch = networks.scratch_model(config, "next-word", tokenizer=tokenizer)
    model = weights.with_lora(scratch, 2)
    corpus = customersim.generate(8, 1)
    task = NextWord()
    examples = task.encode(corpus, tokenizer, context=12)
    rows = np.arange(len(examples))
    training_data = TrainingData(examples, rows, tuple(np.split(rows, len(rows))), None, None)
    plan = Plan(**PLAN, noise_multiplier=1.0)
    before = weights.snapshot(model)
    with Ledger(tmp_path / "ledger.jsonl", {}) as ledger:
        made = make_step(
            "dp-sgd", model, task.losses, training_data, plan, ledger=ledger, token_budget=256
        )
        gradient, _ = made.gradient(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in gradient:
                parameter.sub_(gradient[name])
    moved = weights.moved(before, model)
    adapters = {name for name, _ in model.named_parameters() if "lora_" in name}
    assert adapters
    assert set(moved.moved) == adapters
