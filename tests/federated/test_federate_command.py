"""`tacit federate` as it is typed: what it refuses, and, when there are minutes, all of it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.forking import start_python
from support.small_federation import write_corpus
from tacit.cli import run
from tacit.federated.demo import demo
from tacit.federated.processes import Processes, Transport, submit
from tacit.privacy.ledger import read_ledger
from tacit.verification.runs import verify

RUN = """
corpus: {corpus}
method: dp-sgd
plan: {{protect: users, epsilon: 8, steps: 2, user_rate: 0.5, users: 12, clip_norm: 0.5}}
tokenizer: {{kind: folder, folder: {tokenizer}}}
model: {{kind: lstm, config: {{hidden_size: 12, embedding_size: 12}}}}
context: 24
federation: {{clients: 3}}
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("text"))


@pytest.fixture
def file(tmp_path: Path, corpus: Path) -> Path:
    path = tmp_path / "run.yml"
    path.write_text(RUN.format(corpus=corpus, tokenizer=corpus.parent / "tokenizer"))
    return path


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["run"], 2, "Give a run file and -o FOLDER"),
        (["run", "FILE", "-o", "OUT", "--listen", "0.0.0.0:9000"], 2, "not this machine"),
        (["run", "FILE", "-o", "OUT", "--set", "federation.client=3"], 2, "not a setting"),
        (["run", "FILE", "-o", "OUT", "--set", "tokenizer.kind=words",
          "--set", "tokenizer.folder=null"], 2, "public_text"),
        (["run", "--resume", "HERE"], 3, "holds no federated run"),
        (["simulate", "-o", "OUT"], 2, "either a run file or --users"),
        (["simulate", "FILE", "--users", "5", "-o", "OUT"], 2, "either a run file or --users"),
        (["simulate", "FILE", "-o", "OUT", "--clients", "500"], 2, "clients=500 does not fit"),
        (["simulate", "FILE", "-o", "HERE"], 2, "is not empty"),
        (["demo", "-o", "HERE"], 2, "is not empty"),
        (["join", "127.0.0.1:9", "--corpus", "FILE", "--key", "FILE", "--home", "OUT"], 3,
         "holds no key"),
        (["key", "FILE"], 2, "exists"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_sentence(
    tmp_path: Path, file: Path, capsys: Any, words: list[str], code: int, says: str
) -> None:
    names = {"FILE": str(file), "OUT": str(tmp_path / "out"), "HERE": str(tmp_path)}
    assert run(["federate", *[names.get(word, word) for word in words]]) == code
    assert says in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out" / "run.yml").exists()


def test_a_key_is_for_its_owner_alone(tmp_path: Path) -> None:
    assert run(["federate", "key", str(tmp_path / "key")]) == 0
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert len(bytes.fromhex((tmp_path / "key").read_text())) == 32


def alive(marker: str) -> list[int]:
    """Processes whose environment names a folder of ours."""
    found = []
    for place in Path("/proc").iterdir():
        try:
            if place.name.isdigit() and marker.encode() in (place / "environ").read_bytes():
                found.append(int(place.name))
        except OSError:
            continue
    return [number for number in found if number != os.getpid()]


def tacit(*words: str, tmp: Path) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, with a folder for its temporary files."""
    tmp.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "tacit", *words],
        env={**os.environ, "TMPDIR": str(tmp), "OMP_NUM_THREADS": "1", "HOME": str(tmp)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert alive(str(tmp)) == []
    return done


STARTS = """
import time
from tacit.federated.processes import processes

with processes() as running:
    child = running.start("child", ["sh", "-c", "sleep 1000 & sleep 1000"])
    print(child.pid, flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_us_ends_what_we_started(number: signal.Signals) -> None:
    parent = start_python("-c", STARTS)
    child = int(parent.stdout.readline())
    parent.send_signal(number)
    parent.wait()
    parent.stdout.close()
    try:
        gone(lambda: os.kill(child, 0))
    finally:
        if number == signal.SIGKILL:
            # Nobody was left to end the rest of the group; Flower's programs do so themselves.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
    gone(lambda: os.killpg(child, 0))


def gone(look: Callable[[], None]) -> None:
    """Wait until there is nothing to be seen."""
    for _ in range(600):
        try:
            look()
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise AssertionError("still there")


def test_runs_are_started_from_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A SuperLink that listens everywhere is spoken to at loopback, which its doors let in."""
    running = Processes(tmp_path)
    monkeypatch.setattr(running, "start", lambda *_: None)
    (tmp_path / "run" / "federation").mkdir(parents=True)
    for name in ("ca.pem", "c.pem", "k.pem"):
        (tmp_path / name).touch()
    at = Transport("0.0.0.0", 9092, tmp_path / "c.pem", tmp_path / "k.pem", tmp_path / "ca.pem")
    submit(running, at, tmp_path / "run")
    assert 'address = "127.0.0.1:9092"' in (tmp_path / "config.toml").read_text()


def test_a_superlink_and_two_supernodes_are_processes_of_their_own(tmp_path: Path) -> None:
    """Flower's own programs on loopback, each client with its own file; one round, certified."""
    told: list[str] = []
    out = demo(tmp_path, on_progress=told.append, users=30, rounds=1, clients=2, kill=False)
    assert any("round 1/1" in line for line in told)
    assert [check.what for check in verify(out) if not check.ok] == []
    assert len(read_ledger(out / "ledger.jsonl").entries) == 1


@pytest.mark.slow
def test_the_demo_survives_a_killed_client_and_is_certified(tmp_path: Path) -> None:
    tmp = Path("/tmp") / f"tf{os.getpid()}"  # short: sockets lie in it
    done = tacit("federate", "demo", "-o", str(tmp_path / "demo"), tmp=tmp)
    assert done.returncode == 0, done.stderr
    assert "killing the last one" in done.stderr
    assert "round 2/2" in done.stderr
    folder = tmp_path / "demo" / "run"
    assert [check.what for check in verify(folder) if not check.ok] == []
    assert len(read_ledger(folder / "ledger.jsonl").entries) == 2
    lines = (folder / "federation" / "progress.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["not_private"]["answered"] > 0
    assert list(tmp.iterdir()) == []  # neither Flower's files nor ours
    tmp.rmdir()


@pytest.mark.slow
def test_a_simulation_is_the_same_run(tmp_path: Path, file: Path) -> None:
    """One client for each user in Flower's simulation; with a fixed seed, as in this process."""
    from support.local_grid import FakeClock, LocalGrid, dealt
    from tacit.federated.server import serve
    from tacit.federated.settings import read_federated
    from tacit.federated.simulation import begin_simulated, clients_home

    tmp = Path("/tmp") / f"ts{os.getpid()}"
    out = tmp_path / "out"
    words = ("federate", "simulate", str(file), "-o", str(out), "--set", "seed=1")
    done = tacit(*words, tmp=tmp)
    assert done.returncode == 0, done.stderr
    assert "round 2/2 · epsilon <= 8 of 8" in done.stderr
    assert [check.what for check in verify(out) if not check.ok] == []
    other = tmp_path / "other"
    begin_simulated(*read_federated(file, {"seed": 1}), other)
    # The same federation under the same key, hence the same keyed names.
    (other / "federation" / "id").write_text((out / "federation" / "id").read_text())
    (clients_home(other) / "key").write_text((clients_home(out) / "key").read_text())
    serve(LocalGrid(dealt(12, clients_home(other))), other, clock=FakeClock())
    one, two = (folder / "model.safetensors" for folder in (out, other))
    assert one.read_bytes() == two.read_bytes()
    tmp.rmdir()
