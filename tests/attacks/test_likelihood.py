"""Shared beginnings: the same numbers as reading every sequence by itself."""

import numpy as np
import pytest
import torch
from torch import nn

from tacit.attacks.likelihood import log_likelihoods
from tacit.errors import DataError
from tacit.training.models.networks import scratch_model
from tacit.training.tasks.measuring import forward

CONFIGS = {
    "lstm": {"kind": "lstm", "vocab_size": 12, "hidden_size": 8, "embedding_size": 8},
    "two layers": {
        "kind": "lstm", "vocab_size": 12, "hidden_size": 8, "embedding_size": 8, "layers": 2,
    },
    "gpt2": {
        "kind": "gpt2", "vocab_size": 12, "layers": 2, "hidden_size": 8, "heads": 2, "context": 16,
    },
    "llama": {
        "kind": "llama", "vocab_size": 12, "layers": 1, "hidden_size": 8, "heads": 2, "context": 16,
        "num_key_value_heads": 2,
    },
}  # fmt: skip


def slowly(model: nn.Module, before: list[int], sequence: list[int]) -> float:
    ids = torch.tensor([[*before, *sequence]])
    model.eval()
    with torch.no_grad():
        rows = forward(model, {"input_ids": ids}, mask=False)[0].double().log_softmax(-1)
    return sum(float(rows[len(before) - 1 + i, token]) for i, token in enumerate(sequence))


@pytest.mark.parametrize("name", CONFIGS)
def test_shared_beginnings_change_no_number(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = scratch_model(CONFIGS[name], "next-word", seed=1)
    rng = np.random.default_rng(0)
    sequences = [rng.integers(12, size=rng.integers(1, 6)).tolist() for _ in range(60)]
    sequences += [[1, 2, 3], [1, 2, 3], [1, 2], [1]]
    before = [4, 5]
    # Small windows and few nodes at once, so that both are crossed.
    monkeypatch.setattr("tacit.attacks.likelihood._WINDOW", 17)
    monkeypatch.setattr("tacit.attacks.likelihood._NODES", 3)
    found = log_likelihoods(model, before, sequences)
    wanted = [slowly(model, before, sequence) for sequence in sequences]
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert found[60] == found[61]


def test_sequences_need_a_beginning() -> None:
    model = scratch_model(CONFIGS["lstm"], "next-word", seed=1)
    with pytest.raises(DataError, match="beginning"):
        log_likelihoods(model, [], [[1]])
