"""Short posts of a few users on two topics, and encoders small enough to be made in a test."""

from pathlib import Path
from typing import Any

import numpy as np

from tacit.corpus import Corpus
from tacit.corpus.writing import write
from tacit.training.models import networks, tokens, weights

WORDS = {"sea": "sail wave tide shore boat", "hill": "rock peak climb snow path"}
TOKENIZER = tokens.byte_level_bpe(size=400)


def posts(folder: Path, users: int = 12, each: int = 4, seed: int = 0) -> dict[str, Any]:
    """Settings of a run that tells the topics of posts apart; a third of them are for test."""
    rng = np.random.default_rng(seed)
    records = []
    for number in range(users * each):
        topic = str(rng.choice(sorted(WORDS)))
        words = rng.choice(WORDS[topic].split(), rng.integers(2, 9))
        user = number % users
        records.append(
            {
                "id": str(number),
                "user": f"u{user}",
                "text": " ".join(words),
                "label": topic,
                "split": "test" if user % 3 == 0 else "train",
            }
        )
    write(Corpus.from_records(records), folder / "posts.jsonl")
    return {
        "corpus": str(folder / "posts.jsonl"),
        "task": "classification",
        "labels": ["hill", "sea"],
        "context": 16,
        "seed": 1,
    }


def tiny_encoder(folder: Path) -> str:
    """The folder of a BERT with random weights and dropout, as public as can be."""
    sizes = {"kind": "bert", "layers": 1, "hidden_size": 8, "heads": 2, "context": 16}
    model = networks.scratch_model(
        sizes | {"dropout": 0.5}, "masked-word", tokenizer=TOKENIZER, seed=5
    )
    weights.save_model(model, TOKENIZER, folder)
    return str(folder)
