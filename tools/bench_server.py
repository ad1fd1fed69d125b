"""How many records a second a server takes, and whether it loses or doubles any.

    python tools/bench_server.py                      # SQLite
    python tools/bench_server.py --postgresql         # a PostgreSQL started for it
    python tools/bench_server.py --kill               # the server is killed and restarted midway

Fifty clients append records of one kilobyte for some seconds, each with a key of its own, and send
again what was not answered. Everything happens on this machine, and it stops by itself.
"""

import argparse
import asyncio
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "server"))
from support.postgresql import NONE_FOUND, postgres_binaries, postgres_server
from tacit.server.client import Client

TEXT = ("We met at noon and talked about the weather, the train and the garden. " * 15)[:1000]


class Served:
    """A server on one folder and port."""

    def __init__(self, folder: Path, database: str | None) -> None:
        self._words = ["--folder", str(folder), *(["--database", database] if database else [])]
        self.port, self.token = 0, ""
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "tacit", "serve", "--port", str(self.port), *self._words]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := re.search(r"tacit_\S+", line):
                self.token = found.group()
            if found := re.search(r"http://127.0.0.1:(\d+)", line):
                self.port = int(found.group(1))
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


def main() -> None:
    words = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    words.add_argument("--clients", type=int, default=50)
    words.add_argument("--seconds", type=float, default=10)
    words.add_argument("--postgresql", action="store_true")
    words.add_argument("--kill", action="store_true")
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
            began, busy = time.monotonic(), os.getloadavg()[0]
            computed = served.cpu_seconds()
            took = asyncio.run(load(served, dataset, tokens, seconds, given.kill))
            passed = time.monotonic() - began
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
