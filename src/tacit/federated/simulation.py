"""Federations whose clients are made up: a corpus dealt to them, by whole users."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tacit.corpora import customersim, open_corpus
from tacit.corpus.splitting import training_part
from tacit.corpus.writing import write
from tacit.errors import DataError, UsageError
from tacit.federated.keyed_names import new_key
from tacit.federated.processes import LOOPBACK, processes, wait_for_run
from tacit.federated.server import begin
from tacit.federated.settings import FOLDER, Federation, read_federated
from tacit.training.settings import Run

_GENERATED = """\
corpus: {corpus}
method: dp-sgd
plan: {{protect: users, epsilon: 8, steps: 10, user_rate: 0.05, users: {users}, clip_norm: 0.3}}
model: {{kind: lstm, config: {{hidden_size: 32, embedding_size: 32}}}}
tokenizer: {{size: 1000}}
context: 64
optimizer: {{name: sgd, learning_rate: 2.0, momentum: 0.9}}
"""


def clients_home(folder: Path) -> Path:
    """What the clients of a simulated federation keep; beside the run, not in it."""
    return folder.with_name(folder.name + ".clients")


def begin_simulated(
    run: Run, federation: Federation, folder: Path, *, clients: int | None = None
) -> Path:
    """Begin a run whose own corpus is dealt to clients: one for each user, if not said."""
    users = len(training_part(open_corpus(run.corpus, run.data)).users())
    clients = users if clients is None else clients
    if not 1 <= clients <= users:
        raise UsageError(f"clients={clients} does not fit {users} users; give 1 up to {users}.")
    dealt = {
        "corpus": str(Path(run.corpus).resolve()) if Path(run.corpus).exists() else run.corpus,
        "data": run.data,
        "mentions": str(Path(run.mentions).resolve()) if run.mentions else None,
        "clients": clients,
    }
    # All of them are started by us, so all are waited for.
    federation = federation.model_copy(update={"clients": clients})
    begin(run, federation, folder, dealt=dealt)
    home = clients_home(folder)
    if not (home / "key").exists():
        new_key(home / "key")
    return folder


def begin_generated(
    users: int, folder: Path, *, clients: int | None = None, changes: Mapping[str, Any]
) -> Path:
    """Begin a run on made-up dialogs of so many users, and of some more to score on."""
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty; give a new folder, or --resume {folder}.")
    home = clients_home(folder)
    corpus = home / "corpus.jsonl"
    if corpus.exists():
        raise UsageError(f"{home} is there from another run; remove it, or give a new folder.")
    made = customersim.generate(-(-users * 15 // 4), 1, -(-users * 5 // 4))
    train = set(made.only("train").users()[:users])
    rows = [
        row
        for row, (user, split) in enumerate(
            zip(made.require_users().to_pylist(), made.column("split").to_pylist(), strict=True)
        )
        if split != "train" or user in train
    ]
    home.mkdir(parents=True, exist_ok=True)
    write(made.take(rows), corpus)
    with TemporaryDirectory() as scratch:
        settings = Path(scratch) / "run.yml"
        name = json.dumps(str(corpus.resolve()), allow_nan=False)
        text = _GENERATED.format(corpus=name, users=len(train))
        settings.write_text(text, encoding="utf-8")
        run, federation = read_federated(settings, changes)
    return begin_simulated(run, federation, folder, clients=clients)


def go_on(folder: Path, *, on_progress: Callable[[str], None], workers: int = 2) -> None:
    """Carry out a simulated run, from where it is, in a process that ends with all of Ray's."""
    if not (folder / FOLDER / "dealt.json").exists():
        raise DataError(
            f"{folder} is not a simulated run; go on with `tacit federate run --resume`."
        )
    (folder / FOLDER / "ended.json").unlink(missing_ok=True)
    with processes() as running:
        child = running.start(
            "simulation",
            [sys.executable, "-m", "tacit.federated.simulation", str(workers)],
            TACIT_FEDERATION=str(folder.resolve()),
            TACIT_CLIENT_HOME=str(clients_home(folder).resolve()),
        )
        wait_for_run(running, child, folder, on_progress=on_progress)


def simulate(folder: Path, workers: int) -> None:
    """The same apps in Flower's simulation: many clients, of which a few are alive at once.

    Each worker is a process that answers for one client after the other.
    """
    from flwr.simulation import run_simulation

    from tacit.federated.app import client_app, server_app

    dealt = json.loads((folder / FOLDER / "dealt.json").read_text(encoding="utf-8"))
    started: dict[str, Any] = {
        "num_cpus": workers,
        "include_dashboard": False,
        "log_to_driver": False,
        "_node_ip_address": LOOPBACK,
    }
    scratch = Path(os.environ["FLWR_HOME"]) / "ray"
    if len(str(scratch)) < _LONGEST:
        started["_temp_dir"] = str(scratch)
    run_simulation(
        server_app,
        client_app,
        num_supernodes=int(dealt["clients"]),
        backend_config={"init_args": started, "client_resources": {"num_cpus": 1}},
    )


_LONGEST = 40
"""Ray keeps sockets below its folder, whose names the system limits to some hundred letters."""

if __name__ == "__main__":
    simulate(Path(os.environ["TACIT_FEDERATION"]), int(sys.argv[1]))
