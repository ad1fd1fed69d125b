"""A federation on one machine: a SuperLink, three SuperNodes, one of which is killed."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tacit.corpora import customersim
from tacit.corpus import Corpus
from tacit.corpus.writing import write
from tacit.federated.keyed_names import new_key
from tacit.federated.processes import (
    Processes,
    Transport,
    free_port,
    processes,
    start_link,
    start_node,
    submit,
    wait_for_run,
)
from tacit.federated.server import begin
from tacit.federated.settings import FOLDER, Federation
from tacit.training.settings import Run


def demo(
    folder: Path,
    *,
    on_progress: Callable[[str], None],
    users: int = 90,
    rounds: int = 2,
    clients: int = 3,
    kill: bool = True,
) -> Path:
    """Clients with files of their own learn together; the last one is killed on the way.

    Gives the folder of the run. Everything beside it belongs to the clients: each has its own
    text, and they share a key that the server does not have.
    """
    run, homes = _deal(folder, users, rounds, clients)
    out = folder / "run"
    begin(run, Federation(clients=clients, join_seconds=240, round_seconds=75), out)
    with processes() as running:
        at = Transport(port=free_port())
        on_progress(f"starting Flower's SuperLink and {clients} SuperNodes on this machine")
        start_link(running, at)
        for number, home in enumerate(homes):
            config = {
                "corpus": str(home / "corpus.jsonl"),
                "key": str(home / "key"),
                "home": str(home),
            }
            start_node(running, f"client-{number}", at, config)
        child = submit(running, at, out)

        def meanwhile() -> None:
            if kill:
                _kill_one(running, f"client-{clients - 1}", out, on_progress)

        wait_for_run(running, child, out, on_progress=on_progress, meanwhile=meanwhile)
    return out


def _kill_one(running: Processes, last: str, out: Path, on_progress: Callable[[str], None]) -> None:
    """Kill the last client once all have joined: it vanishes in the first round."""
    if last in running.children and (out / FOLDER / "cohort.json").exists():
        on_progress("all have joined; killing the last one, in the middle of the first round")
        running.end(last, at_once=True)


def _deal(folder: Path, users: int, rounds: int, clients: int) -> tuple[Run, list[Path]]:
    """Made-up dialogs: to each client those of its users, to the server some that nobody learns."""
    whole = customersim.generate(users * 4, 1, users)
    held_out = Corpus.from_records(r for r in whole.records() if r.split != "train")
    (folder / "server").mkdir(parents=True, exist_ok=True)
    write(held_out, folder / "server" / "held-out.jsonl")
    train = whole.only("train")
    number = {user: n for n, user in enumerate(train.users())}
    of_client = np.array([number[u] % clients for u in train.require_users().to_pylist()])
    key = folder / "clients" / "key"
    new_key(key)
    homes = []
    for client in range(clients):
        home = folder / "clients" / f"client-{client}"
        home.mkdir(parents=True)
        write(train.take(np.flatnonzero(of_client == client)), home / "corpus.jsonl")
        (home / "key").touch(mode=0o600)
        (home / "key").write_bytes(key.read_bytes())
        homes.append(home)
    run = Run(
        corpus=str(folder / "server" / "held-out.jsonl"),
        detect="gold",
        method="dp-sgd",
        plan={
            "protect": "users+entities",
            "epsilon": 8,
            "steps": rounds,
            "user_rate": 0.5,
            "kinds": ["PERSON"],
            "clip_norm": 0.3,
        },
        model={"kind": "lstm", "config": {"hidden_size": 32, "embedding_size": 32}},
        tokenizer={"size": 1000},
        context=64,
        optimizer={"name": "sgd", "learning_rate": 2.0, "momentum": 0.9},
    )
    return run, homes
