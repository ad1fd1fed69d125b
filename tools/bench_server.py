"""How many records a second a server takes, and whether it loses or doubles any.

    python tools/bench_server.py                      # SQLite
    python tools/bench_server.py --postgresql         # a PostgreSQL started for it
    python tools/bench_server.py --kill               # the server is killed and restarted midway
    python tools/bench_server.py --questions          # while 200 long questions to a model wait
    python tools/bench_server.py --upload 200000      # while a file of so many records is stored
    python tools/bench_server.py --train --ask 50     # while a run trains and 50 questions a
                                                      # second are answered

Fifty clients append records of one kilobyte for some seconds, each with a key of its own, and send
again what was not answered. Everything happens on this machine, and it stops by itself.
"""

import argparse
import asyncio
import gzip
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "server"))
import httpx

from support.postgresql import NONE_FOUND, postgres_binaries, postgres_server
from tacit.corpora import customersim
from tacit.server.client import Client

TEXT = ("We met at noon and talked about the weather, the train and the garden. " * 15)[:1000]


LONG = {"text": "my order number is " * 1052, "words": 200, "choices": 5}
SHORT = {"text": "my order number is", "words": 5, "choices": 5}
MODEL = {
    "name": "asked", "context": 128, "tokenizer": {"size": 2000},
    "plan": {"protect": "users", "epsilon": 3, "steps": 2, "user_rate": 1.0, "users": 20},
    "model": {"kind": "gpt2", "config": {"hidden_size": 256, "layers": 4, "heads": 4}},
}  # fmt: skip
TRAINING = MODEL | {"name": "trains", "plan": MODEL["plan"] | {"steps": 100_000, "epsilon": 3}}
WAITING = 200


@dataclass(frozen=True)
class Beside:
    """A model, and those who ask it."""

    model: str = ""
    tokens: tuple[str, ...] = ()
    other: str = ""
    """Another dataset, for uploads."""


class Served:
    """A server on one folder and port."""

    def __init__(self, folder: Path, database: str | None) -> None:
        self._words = ["--folder", str(folder), *(["--database", database] if database else [])]
        self._folder, self.port, self.token = folder, 0, ""
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "tacit", "serve", "--port", str(self.port), *self._words]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := re.search(r"http://127.0.0.1:(\d+)", line):
                self.port = int(found.group(1))
                said = (self._folder / "first-sign-in.txt").read_text()
                found = re.search(r"tacit_\S+", said)
                assert found is not None
                self.token = found.group()
                return
        raise SystemExit("the server did not start")

    def cpu_seconds(self) -> float:
        """What the server has computed so far, whoever else kept the cores busy."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        self._process.wait()


async def client(port: int, path: str, token: str, name: str, until: float) -> list[float]:
    """Append until the time is over; the seconds that each record took, retries included."""
    took = []
    reader = writer = None
    while time.monotonic() < until:
        key, began = f"{name}.{len(took)}", time.monotonic()
        body = json.dumps({"text": f"{key} {TEXT}"}).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
            f"Idempotency-Key: {key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        while True:
            try:
                if writer is None:
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                assert reader is not None
                writer.write(head + body)
                answer = await reader.readuntil(b"\r\n\r\n")
                size = re.search(rb"content-length: (\d+)", answer)
                await reader.readexactly(int(size.group(1)) if size else 0)
                status = int(answer[9:12])
                if status in (200, 201):
                    break
                if status != 429:
                    raise SystemExit(f"the server answered {status}")
            except (OSError, asyncio.IncompleteReadError):
                if writer is not None:
                    writer.close()
                writer = None
            await asyncio.sleep(0.05)
        took.append(time.monotonic() - began)
    if writer is not None:
        writer.close()
    return took


async def ask_all(base: str, model: str, tokens: Sequence[str], until: float) -> Counter[int]:
    """Keep so many long questions waiting; what the server answered to how many."""
    answers: Counter[int] = Counter()
    async with httpx.AsyncClient(base_url=base, timeout=120, trust_env=False,
                                 limits=httpx.Limits(max_connections=None)) as http:  # fmt: skip

        async def one(token: str) -> None:
            head = {"Authorization": f"Bearer {token}"}
            while time.monotonic() < until:
                path = f"/v1/models/{model}/predict"
                answer = await http.post(path, headers=head, json=LONG)
                answers[answer.status_code] += 1
                if answer.status_code == 429:
                    await asyncio.sleep(float(answer.headers["Retry-After"]))

        await asyncio.gather(*(one(token) for token in tokens))
    return answers


async def ask_steadily(
    base: str, model: str, tokens: Sequence[str], until: float, rate: float
) -> list[float]:
    """Short questions at a steady rate; the seconds that each answer took."""
    took: list[float] = []
    async with httpx.AsyncClient(base_url=base, timeout=120, trust_env=False,
                                 limits=httpx.Limits(max_connections=None)) as http:  # fmt: skip

        async def one(token: str) -> None:
            began = time.monotonic()
            head = {"Authorization": f"Bearer {token}"}
            answer = await http.post(f"/v1/models/{model}/predict", headers=head, json=SHORT)
            if answer.status_code == 200:
                took.append(time.monotonic() - began)

        tasks, number, began = [], 0, time.monotonic()
        while time.monotonic() < until:
            tasks.append(asyncio.create_task(one(tokens[number % len(tokens)])))
            number += 1
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        await asyncio.gather(*tasks)
    late = number - len(took)
    print(f"questions: {number} asked, {late} refused since they waited too long or were too many")
    return took


async def upload(base: str, token: str, dataset: str, records: int) -> float:
    """Send one file of many records; the seconds until it is stored."""
    lines = "".join(json.dumps({"user": f"u{n % 500}", "text": f"{n} {TEXT[:200]}"}) + "\n"
                    for n in range(records))  # fmt: skip
    began = time.monotonic()
    async with httpx.AsyncClient(base_url=base, timeout=600, trust_env=False) as http:
        answer = await http.post(
            f"/v1/datasets/{dataset}/records/file", headers={"Authorization": f"Bearer {token}"},
            files={"file": ("many.jsonl.gz", gzip.compress(lines.encode(), 1))},
        )  # fmt: skip
    assert answer.status_code == 201, answer.text
    return time.monotonic() - began


async def look(base: str, token: str, until: float) -> tuple[list[float], list[float]]:
    """How long a look at the health and a sign-in take, some of each a second."""
    health, sign_in = [], []
    while time.monotonic() < until:
        async with httpx.AsyncClient(base_url=base, timeout=60, trust_env=False) as http:
            for _ in range(10):
                began = time.monotonic()
                assert (await http.get("/healthz")).status_code == 200
                health.append(time.monotonic() - began)
                await asyncio.sleep(0.03)
            began = time.monotonic()
            form = (await http.get("/sign-in")).text
            found = re.search(r'name="key" value="([^"]+)"', form)
            if found is None:
                continue  # strangers are slowed down
            fields = {"key": found.group(1), "token": token}
            if (await http.post("/sign-in", data=fields)).status_code == 303:
                sign_in.append(time.monotonic() - began)
    return health, sign_in


async def load(served: Served, dataset: str, tokens: list[str], seconds: float, kill: bool):  # type: ignore[no-untyped-def]
    until = time.monotonic() + seconds
    path = f"/v1/datasets/{dataset}/records"
    tasks = [
        asyncio.create_task(client(served.port, path, token, f"c{n}", until))
        for n, token in enumerate(tokens)
    ]
    if kill:
        await asyncio.sleep(seconds / 3)
        await asyncio.to_thread(served.end, signal.SIGKILL)
        await asyncio.to_thread(served.start)
    return await asyncio.gather(*tasks)


async def load_beside(  # type: ignore[no-untyped-def]
    served: Served, dataset: str, tokens: list[str], given: argparse.Namespace, beside: Beside
):
    """Appends, with whatever else the server is asked for at the same time."""
    until = time.monotonic() + given.seconds
    base, work = f"http://127.0.0.1:{served.port}", []
    if given.questions:
        work.append(ask_all(base, beside.model, beside.tokens * (WAITING // 10), until))
    if given.ask:
        work.append(ask_steadily(base, beside.model, beside.tokens, until, given.ask))
    if given.upload:
        work.append(upload(base, served.token, beside.other, given.upload))
    looking = look(base, served.token, until)
    appended, looked, *others = await asyncio.gather(
        load(served, dataset, tokens, given.seconds, given.kill), looking, *work
    )
    for name, took in zip(("health", "sign-in"), looked, strict=True):
        print(f"{name}: {spread(took)}")
    for found in others:
        if isinstance(found, float):
            print(f"{given.upload:,} records uploaded in {found:.1f} s")
        elif isinstance(found, Counter):
            print(f"long questions, by the code of the answer: {dict(found)}")
        else:
            print(f"answers: {len(found) / given.seconds:.0f} a second; {spread(found)}")
    return appended


def trained(admin: Client, train: bool) -> Beside:
    """A model to be asked, ten consumers, and if wanted a run that goes on training."""
    dataset = admin.add_dataset("dialogs", limits={"users": 8})["id"]
    admin.add_corpus(dataset, customersim.generate(20, 3))
    model = admin.wait(admin.start_run(dataset, MODEL)["id"])["id"]
    consumers = [admin.add_account(f"consumer {n}", "consumer")["id"] for n in range(10)]
    if train:
        admin.start_run(dataset, TRAINING)
    return Beside(model, tuple(admin.add_token(one) for one in consumers))


def spread(took: list[float]) -> str:
    """The middle and the end of some times."""
    each = sorted(took) or [0.0]
    half, late = (each[int((len(each) - 1) * q)] * 1000 for q in (0.5, 0.99))
    said = f"p50 {half:.0f} ms, p99 {late:.0f} ms, slowest {each[-1] * 1000:.0f} ms"
    return f"{len(took)} times, {said}"


def main() -> None:
    words = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    words.add_argument("--clients", type=int, default=50)
    words.add_argument("--seconds", type=float, default=10)
    words.add_argument("--postgresql", action="store_true")
    words.add_argument("--kill", action="store_true")
    words.add_argument("--questions", action="store_true")
    words.add_argument("--train", action="store_true")
    words.add_argument("--ask", type=float, default=0)
    words.add_argument("--upload", type=int, default=0)
    given = words.parse_args()
    clients, seconds = min(given.clients, 200), min(given.seconds, 120.0)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = None
        if given.postgresql:
            binaries = postgres_binaries()
            if binaries is None:
                raise SystemExit(NONE_FOUND)
            database = stack.enter_context(postgres_server(binaries, durable=True))()
        served = Served(folder / "server", database)
        with Client(f"http://127.0.0.1:{served.port}", served.token) as admin:
            dataset = admin.add_dataset("load")["id"]
            tokens = [
                admin.add_token(admin.add_account(f"client {n}", "contributor")["id"])
                for n in range(clients)
            ]
            asked = given.questions or given.train or given.ask
            beside = trained(admin, given.train) if asked else Beside()
            if given.upload:
                beside = replace(beside, other=admin.add_dataset("uploads")["id"])
            others = asked or given.upload
            began, busy = time.monotonic(), os.getloadavg()[0]
            computed = served.cpu_seconds()
            run = load_beside(served, dataset, tokens, given, beside) if others else load(
                served, dataset, tokens, seconds, given.kill)  # fmt: skip
            took = asyncio.run(run)
            passed = time.monotonic() - began if not others else given.seconds
            computed = served.cpu_seconds() - computed
            stored = admin.call("GET", f"/datasets/{dataset}")["not_private"]["records"]
        served.end(signal.SIGTERM)
    each = sorted(second for one in took for second in one)
    sent = len(each)
    print(f"{platform.machine()}, {os.cpu_count()} cores, load before {busy:.1f}")
    print(f"{'PostgreSQL' if given.postgresql else 'SQLite'}, {clients} clients, {passed:.1f} s"
          + (", killed and restarted midway" if given.kill else ""))  # fmt: skip
    print(f"acknowledged {sent:,}, stored {stored:,}: lost or doubled {stored - sent:,}")
    half, late, last = (each[int(sent * q)] * 1000 for q in (0.5, 0.99, 1 - 1e-9))
    print(f"{sent / passed:,.0f} records a second; p50 {half:.0f} ms, "
          f"p99 {late:.0f} ms, slowest {last:.0f} ms")  # fmt: skip
    if not given.kill:
        print(f"{computed / sent * 1000:.2f} ms of computing in the server for each record")
    sys.exit(0 if stored == sent else 1)


if __name__ == "__main__":
    main()
