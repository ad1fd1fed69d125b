"""A small federation in this process, with everything of it at hand."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from support.local_grid import FakeClock, LocalGrid, dealt
from tacit.corpora import customersim
from tacit.corpus.writing import write
from tacit.federated import server
from tacit.federated.client import frozen_digest
from tacit.federated.clients import Clients
from tacit.federated.keyed_names import new_key
from tacit.federated.messaging import Messenger
from tacit.federated.rounds import RoundCounts, federated_step
from tacit.federated.server import begin, make_kit
from tacit.federated.settings import Federation
from tacit.planning.plan import Plan
from tacit.privacy.ledger import Ledger
from tacit.training.data.training_data import prepare, rows_by_user
from tacit.training.methods.method import MethodInputs
from tacit.training.methods.noisy_sums import NoisySums
from tacit.training.models.tokens import byte_level_bpe
from tacit.training.models.weights import trainable
from tacit.training.phases.run_context import RunContext, encode, open_run
from tacit.training.settings import Run

USERS = 16
PLANS: dict[str, dict[str, Any]] = {
    "users": {"protect": "users", "users": 40, "clip_norm": 0.5},
    "both": {
        "protect": "users+entities",
        "clip_norm": 0.5,
        "kinds": ["PERSON"],
        "users": 40,
        "epsilon": 1e9,
    },
}


def write_corpus(folder: Path, users: int = USERS) -> Path:
    """Made-up dialogs with their gold spans."""
    path = folder / "corpus.jsonl"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write(customersim.generate(users * 3, 5, users), path)
        byte_level_bpe(None, 400).save_pretrained(str(folder / "tokenizer"))
    return path


def small_run(corpus: Path, **changes: Any) -> Run:
    """A run of a tiny model; every field can be given."""
    # The noise is given, and the target not far above its price: both spare a search.
    plan = {"epsilon": 3, "noise_multiplier": 2.0, "steps": 2, "user_rate": 0.5}
    plan |= PLANS["users"] | changes.pop("plan", {})
    fields: dict[str, Any] = {
        "corpus": str(corpus),
        "method": "dp-sgd",
        "seed": 1,
        "plan": plan,
        "model": {"kind": "lstm", "config": {"hidden_size": 12, "embedding_size": 12}},
        "tokenizer": {"kind": "folder", "folder": str(corpus.parent / "tokenizer")},
        "context": 24,
        "optimizer": {"name": "sgd", "learning_rate": 1.0, "momentum": 0.0},
    }
    if "entities" in plan["protect"]:
        fields["detect"] = "gold"
    fields |= changes
    if fields["method"] in ("plain", "uedp"):
        del fields["plan"]
    return Run(**fields)


def begun(root: Path, run: Run, *, clients: int = 3, **federation: Any) -> tuple[Path, LocalGrid]:
    """A new run's folder, and a grid with so many clients to which its corpus is dealt."""
    home = root / "home"
    if not (home / "key").exists():
        new_key(home / "key")
    folder = begin(
        run,
        Federation(**{"clients": clients} | federation),
        root / "run",
        dealt={"corpus": run.corpus},
    )
    return folder, LocalGrid(dealt(clients, home))


@dataclass
class Step:
    """One round without noise, up to the noise."""

    ctx: RunContext
    clients: Clients
    grid: LocalGrid
    method: NoisySums[Any]
    counted: RoundCounts
    ledger: Ledger

    def gradient(self) -> np.ndarray:
        """All of it, flat."""
        return flat(self.method.gradient(1)[0])


@contextmanager
def one_round(
    root: Path, run: Run, *, clients: int = 3, noise: float = 0.0, **federation: Any
) -> Iterator[Step]:
    """The server of a run, up to its first round; without noise unless some is asked for."""
    folder, grid = begun(root, run, clients=clients, **federation)
    ctx = server._open(run)
    plan = quiet(run, noise)
    settings = Federation(**{"clients": clients} | federation)
    server.keep_personal(ctx.model, settings, folder)
    shared = trainable(ctx.model)
    kit = make_kit(ctx, plan, settings, folder, shared)
    messenger = Messenger(grid, at_once=settings.at_once, clock=FakeClock())
    frozen = frozen_digest(ctx.model, shared, settings.personal)
    there = Clients(messenger, kit, settings, plan, frozen)
    there.gather(None)
    counted = RoundCounts()
    with Ledger(folder / "ledger.jsonl", {}) as ledger:
        data = there.cohort.training_data()
        inputs = MethodInputs(run, ctx.model, ctx.task.losses, data, ctx.randomness, plan, ledger)
        method: Any = federated_step(inputs, there, settings, counted)
        yield Step(ctx, there, grid, method, counted, ledger)


def quiet(run: Run, noise: float = 0.0) -> Plan:
    plan = run.made_plan()
    assert plan is not None
    return plan.model_copy(update={"noise_multiplier": noise})


def central_gradient(
    root: Path, run: Run, users: set[str] | None = None, rows: list[int] | None = None
) -> np.ndarray:
    """The same step where everything is in one place; of some users or records only, if said."""
    ctx, plan = open_run(run), quiet(run)
    part = ctx.part
    if users is not None:
        part = part.take([i for i, u in enumerate(part.require_users().to_pylist()) if u in users])
    examples = encode(ctx, part)
    training_data = prepare(examples, part, ctx.mentions, plan, ctx.protected)
    if rows is not None:  # the records that somebody else's caps keep
        kept = np.asarray(rows)
        training_data = replace(training_data, rows=kept, rows_of_user=rows_by_user(examples, kept))
    with Ledger(root / "central" / "ledger.jsonl", {}) as ledger:
        inputs = MethodInputs(
            run, ctx.model, ctx.task.losses, training_data, ctx.randomness, plan, ledger
        )
        method: Any = run.spec.step(inputs)
        return flat(method.gradient(1)[0])


def flat(tensors: dict[str, Tensor]) -> np.ndarray:
    return torch.cat([tensors[name].reshape(-1) for name in sorted(tensors)]).double().numpy()
