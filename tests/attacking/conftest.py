"""A small model that has learnt its text by heart, canaries included."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tacit.attacking.canaries import TEMPLATES, Planted, beside, plant
from tacit.attacking.target import Target, open_target
from tacit.corpus import Corpus
from tacit.training.runs import train
from tacit.training.settings import Run
from tacit.writing import write

DIGITS = replace(TEMPLATES["spaced-digits"], slots=TEMPLATES["spaced-digits"].slots[:4])
"""Ten thousand secrets: a million are ranked in the same way, and take a minute."""
WORDS = ["the", "parcel", "came", "late", "today", "please", "send", "it", "again", "soon", "now"]


def sentences(count: int, seed: int, split: str) -> list[dict[str, object]]:
    """Records of ten users, each with a name in it that is marked."""
    rng = np.random.default_rng(seed)
    made: list[dict[str, object]] = []
    for number in range(count):
        name = f"Mr{rng.choice(list('abcdefgh'))}{rng.integers(1000):03d}"
        text = f"{' '.join(rng.choice(WORDS, 5))} says {name}"
        made.append(
            {
                "id": f"{split}{number}",
                "user": f"{split}-user{number % 10}",
                "text": text,
                "split": split,
                "spans": [{"start": len(text) - len(name), "end": len(text), "kind": "PERSON"}],
            }
        )
    return made


@pytest.fixture(scope="session")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a planted corpus and a run on it."""
    folder = tmp_path_factory.mktemp("attacked")
    corpus = Corpus.from_records([*sentences(60, 1, "train"), *sentences(60, 2, "test")])
    planted, plan = plant(
        corpus, DIGITS, repetitions=(1, 20), each=2, held_out=8, rng=np.random.default_rng(3),
    )  # fmt: skip
    source = folder / "corpus.jsonl"
    write(planted, source)
    plan.write(beside(source))
    run = Run(
        corpus=str(source), detect="given", method="plain", steps=250, batch=16, context=48, seed=1,
        model={"kind": "lstm", "config": {"hidden_size": 48, "embedding_size": 24}},
        tokenizer={"kind": "bpe", "size": 300},
        optimizer={"name": "adam", "rate": 0.01}, checkpoint_every=250,
        keep_checkpoints=2,
    )  # fmt: skip
    train(run, folder / "run")
    return folder


@pytest.fixture(scope="session")
def target(learnt: Path) -> Target:
    """The run, opened for attacks."""
    return open_target(learnt / "run")


@pytest.fixture(scope="session")
def plan(target: Target) -> Planted:
    """The canaries of the run."""
    assert target.planted is not None
    return target.planted
