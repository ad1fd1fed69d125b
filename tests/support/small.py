"""Small corpora: a few dialogs, and vectors whose gradient is whatever a test wants it to be."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from support.steps import inputs_of, make_step
from tacit.corpora import customersim
from tacit.corpus.writing import write
from tacit.detection import detect
from tacit.detection.mentions import write_lines
from tacit.owners import Owners
from tacit.planning.dry_run import apply_caps
from tacit.planning.plan import Plan
from tacit.privacy.ledger import Ledger
from tacit.training.data.training_data import TrainingData
from tacit.training.dp.random_source import RandomSource
from tacit.training.methods.dp_fedavg import LocalSettings
from tacit.training.methods.method import StepStats
from tacit.training.methods.uedp import UEDP, UedpSettings


def dialogs(folder: Path, customers: int = 120) -> dict[str, Any]:
    """Settings of a run on a few generated dialogs, whose names are given, by a tiny LSTM."""
    corpus = customersim.generate(customers, 3)
    found = detect(corpus, "gold", kinds=["PERSON", "PII"])
    write(corpus, folder / "c.jsonl")
    write_lines(folder / "m.jsonl", found.mentions)
    write_lines(folder / "m.entities.jsonl", found.entities)
    return {
        "corpus": str(folder / "c.jsonl"),
        "mentions": str(folder / "m.jsonl"),
        "model": {"kind": "lstm", "config": {"embedding_size": 8, "hidden_size": 8, "layers": 1}},
        "tokenizer": {"size": 400},
        "context": 24,
        "seed": 1,
    }


@dataclass(frozen=True)
class Record:
    """One record: who wrote it, what it names, and where it pulls."""

    user: int
    entities: tuple[int, ...]
    pull: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Vectors:
    """Records as examples; `owners` is the graph, which zeroing out leaves alone."""

    records: tuple[Record, ...]
    silent: frozenset[int] = frozenset()
    user: np.ndarray = field(init=False)
    record: np.ndarray = field(init=False)
    lengths: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "user", np.array([r.user for r in self.records]))
        object.__setattr__(self, "record", np.arange(len(self.records)))
        object.__setattr__(self, "lengths", np.ones(len(self.records), dtype=np.int64))

    def __len__(self) -> int:
        return len(self.records)

    def batch(self, rows: np.ndarray) -> dict[str, Tensor]:
        wide = [
            np.zeros(len(self.records[0].pull)) if r in self.silent else self.records[r].pull
            for r in rows.tolist()
        ]
        return {"x": torch.tensor(np.array(wide), dtype=torch.float32)}

    def owners(self) -> Owners:
        return Owners.from_rows(
            [
                (f"r{i}", f"u{r.user}", [f"e{e}" for e in r.entities])
                for i, r in enumerate(self.records)
            ]
        )

    def without(self, user: int | None, entity: int | None) -> "Vectors":
        """The neighbour: these records contribute zero, and the graph is the same."""
        gone = {i for i, r in enumerate(self.records) if r.user == user or entity in r.entities}
        return replace(self, silent=frozenset(gone))


class Two(nn.Module):
    """Two linear maps of one input: a gradient of more than one tensor."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(width, 1, bias=False)
        self.b = nn.Linear(width, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return (self.a(x) + 0.5 * self.b(x)).squeeze(-1)


def losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Linear: the gradient of a record is its vector, wherever the weights are."""
    return model(batch["x"])


def curved(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Not linear, so that local steps differ from one large step."""
    return (model(batch["x"]) - 1.0).square()


def data_of(vectors: Vectors, plan: Plan | None = None) -> TrainingData:
    """What the caps keep of it."""
    owners = vectors.owners()
    kept = np.arange(len(vectors))
    bounded = None
    if plan is not None and "entities" in plan.protect:
        bounded = apply_caps(plan, owners)
        kept = np.flatnonzero(bounded.kept)
    users = [r.user for r in vectors.records]
    rows = tuple(
        np.array([i for i in kept if users[i] == user], dtype=np.int64)
        for user in sorted(set(users))
    )
    return TrainingData(vectors, kept, rows, owners, bounded)


def step_of(
    method: str,
    vectors: Vectors,
    settings: Plan | UedpSettings,
    folder: Path,
    *,
    local: LocalSettings | None = None,
    randomness: RandomSource | None = None,
    model: nn.Module | None = None,
    by: Any = losses,
    step: int = 1,
) -> tuple[np.ndarray, StepStats]:
    """The direction of one step of a method, flat, and what it saw."""
    plan = settings if isinstance(settings, Plan) else None
    training_data = data_of(vectors, plan)
    model = model or Two(len(vectors.records[0].pull))
    randomness = randomness or RandomSource(1)
    with Ledger(folder / "ledger.jsonl", {}) as ledger:
        own = settings if isinstance(settings, UedpSettings) else local
        made = make_step(
            method if method in ("uedp", "dp-fedavg") else "dp-sgd", model, by, training_data, plan,
            ledger=ledger, randomness=randomness, options=own,
        )  # fmt: skip
        gradient, seen = made.gradient(step)
    return torch.cat([t.reshape(-1) for t in gradient.values()]).double().numpy(), seen


def uedp_event(training_data: TrainingData, settings: UedpSettings) -> Any:
    """What one step of the published algorithm really releases."""
    return UEDP.event(inputs_of("uedp", Two(2), losses, training_data, options=settings))
