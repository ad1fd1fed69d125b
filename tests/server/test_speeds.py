"""Guesses of how long a run takes, before any run of its kind has ended."""

import pytest

from tacit.server.throughput import operations_per_token
from tacit.training.settings import Run


def cost(kind: str, **config: int) -> float:
    found = operations_per_token(
        Run(corpus="c.jsonl", method="plain", steps=1, model={"kind": kind, "config": config},
            tokenizer={"size": 4000})
    )  # fmt: skip
    assert found is not None
    return found


# Microseconds that a token took in a private step, over those of the LSTM of 96.
@pytest.mark.parametrize(
    ("model", "measured"),
    [
        ({"kind": "lstm", "embedding_size": 16, "hidden_size": 16}, 70 / 124),
        ({"kind": "lstm", "embedding_size": 256, "hidden_size": 256, "layers": 2}, 310 / 124),
        ({"kind": "gpt2", "hidden_size": 256, "layers": 4}, 765 / 124),
    ],
    ids=["lstm-16", "lstm-2x256", "gpt2-4x256"],
)
def test_the_guess_is_near_what_was_measured(model: dict, measured: float) -> None:
    guessed = cost(**model) / cost("lstm", embedding_size=96, hidden_size=96)
    assert guessed == pytest.approx(measured, rel=0.2)


def test_a_model_that_is_not_described_is_not_guessed() -> None:
    folder = Run(corpus="c.jsonl", method="plain", steps=1,
                 model={"kind": "folder", "folder": "m"})  # fmt: skip
    assert operations_per_token(folder) is None
    odd = Run(corpus="c.jsonl", method="plain", steps=1,
              model={"kind": "lstm", "config": {"hidden_size": "wide"}})  # fmt: skip
    assert operations_per_token(odd) is None
