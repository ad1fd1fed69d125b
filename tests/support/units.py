"""Small models of every kind, a few records for every task, and what units give to a sum."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from support.steps import totals_of
from tacit.planning.plan import Plan
from tacit.training.data.training_data import TrainingData
from tacit.training.dp import dropout
from tacit.training.methods.independence import Losses
from tacit.training.models import networks, weights
from tacit.training.tasks.examples import Examples
from tacit.training.tasks.masked_words import MaskedWord
from tacit.training.tasks.tagging import Tagging
from tacit.training.tasks.tasks import Classification, NextWord, Regression

WORDS, LABELS = 40, ("a", "b", "c")
TASKS: dict[str, Any] = {
    "next-word": NextWord(),
    "masked-word": MaskedWord(3, (0, 1, 2, 3)),
    "classification": Classification(LABELS),
    "regression": Regression(0.0, 1.0),
    "tagging": Tagging(LABELS),
}
_LSTM = {"kind": "lstm", "embedding_size": 6, "hidden_size": 8, "layers": 2}
_OURS = ("embedding_dropout", "input_dropout", "hidden_dropout", "output_dropout", "weight_drop")
_TRANSFORMER = {"layers": 1, "hidden_size": 8, "heads": 2, "context": 16, "pad_token_id": 0}
_SHARES = {"dropout": 0.3, "attention_dropout": 0.3}
KINDS: dict[str, dict[str, Any]] = {
    "lstm": _LSTM,
    "awd-lstm": {"kind": "awd-lstm", "embedding_size": 6, "hidden_size": 8},
    **{name: _LSTM | {name: 0.4} for name in _OURS},
    "gpt2": {"kind": "gpt2"} | _TRANSFORMER | _SHARES,
    "bert": {"kind": "bert"} | _TRANSFORMER | _SHARES,
    "llama": {"kind": "llama", "attention_dropout": 0.3} | _TRANSFORMER,
}
USERS = Plan(
    protect="users", epsilon=1e9, noise_multiplier=0.0, steps=1, user_rate=1.0, users=8,
    clip_norm=0.1,
)  # fmt: skip
RECORDS = Plan(
    protect="records", epsilon=1e9, noise_multiplier=0.0, steps=1, record_rate=1.0, records=8,
    clip_norm=0.1,
)  # fmt: skip
BOTH = Plan(
    protect="users+entities", epsilon=1e9, noise_multiplier=0.0, steps=1, user_rate=1.0,
    clip_norm=0.1, entity_share=0.5, records_per_user_entity=1, users_per_entity=1,
)  # fmt: skip


def suits(kind: str, task: str) -> bool:
    """Encoders guess masked words, all others the next one."""
    return task not in ("next-word", "masked-word") or (task == "masked-word") == ("bert" in kind)


def model_of(kind: str, task: str, **changes: Any) -> nn.Module:
    """A new model, with adapters where the kind ends so."""
    labels = LABELS if task in ("classification", "tagging") else None
    config = KINDS[kind.removesuffix(" lora")] | {"vocab_size": WORDS} | changes
    made = networks.scratch_model(config, task, labels=labels)  # type: ignore[arg-type]
    return weights.with_lora(made, 2, dropout=0.3) if kind.endswith(" lora") else made


def records(task: str, lengths: tuple[int, ...] = (3, 9, 2, 5, 9, 4, 6, 3)) -> TrainingData:
    """Records of these lengths, two a user."""
    rng = np.random.default_rng(1)
    ids = [rng.integers(4, WORDS, length).astype(np.int32) for length in lengths]
    rows = np.arange(len(ids))
    labels: Any = {
        "classification": rng.integers(0, 3, len(ids)),
        "regression": rng.random(len(ids)) + 1.0,
        "tagging": [rng.integers(0, 3, length) for length in lengths],
    }.get(task)
    examples = Examples(ids, rows.astype(np.int32) // 2, rows.astype(np.int32), 0, labels)
    users = tuple(np.split(rows, np.arange(2, len(rows), 2)))
    return TrainingData(examples, rows, users, None, None)


def sum_over(
    model: nn.Module,
    losses: Losses,
    training_data: TrainingData,
    units: Any,
    *,
    plan: Plan = USERS,
    token_budget: int = 4096,
    seed: int = 5,
) -> torch.Tensor:
    """The clipped sum over some units of one step, flat and in double precision."""
    total = totals_of("dp-sgd", model, losses, training_data, plan, token_budget=token_budget)
    model.train()
    with dropout.step(seed):
        sums = total(1, np.asarray(units)).tensors
    return torch.cat([tensor.reshape(-1) for tensor in sums.values()]).double()


def renumbered(training_data: TrainingData, users: list[list[int]]) -> TrainingData:
    """The same records, by other users."""
    rows = np.asarray([row for own in users for row in own])
    return replace(training_data, rows=rows, rows_of_user=tuple(np.asarray(own) for own in users))
