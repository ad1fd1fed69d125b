"""A small model that has learnt its text by heart, canaries included."""

from pathlib import Path

import numpy as np
import pytest

from support.sentences import DIGITS, sentences
from tacit.attacks.canaries import Planted, beside, plant
from tacit.attacks.target import Target, open_target
from tacit.corpus import Corpus
from tacit.corpus.writing import write
from tacit.training.phases.session import train
from tacit.training.settings import Run


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
        corpus=str(source), detect="gold", method="plain", steps=250, batch=16, context=48, seed=1,
        model={"kind": "lstm", "config": {"hidden_size": 48, "embedding_size": 24}},
        tokenizer={"kind": "bpe", "size": 300},
        optimizer={"name": "adam", "learning_rate": 0.01}, checkpoint_every=250,
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
