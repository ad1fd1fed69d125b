"""What strangers, broken disks and lost databases may do to a server: little, not for long."""

import asyncio
import contextlib
import os
import random
import shutil
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
import uvicorn
from argon2 import PasswordHasher
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from fastapi.testclient import TestClient

from support.people import somebody
from tacit.errors import TacitError
from tacit.server import child_processes, connections, identity
from tacit.server.api import make_app
from tacit.server.client import Client
from tacit.server.errors import Conflict, NotAuthenticated, Unavailable, without_paths
from tacit.server.identity import Caller
from tacit.server.records import Draft
from tacit.server.run_requests import RunRequest
from tacit.server.services import Services
from tacit.server.settings import ServerSettings
from tacit.server.storage import Job, Storage, new_id

PLAN = {"protect": "users", "epsilon": 2, "steps": 3, "user_rate": 1.0, "users": 50}


def token_of(services: Services, role: str = "admin") -> tuple[str, Caller]:
    account = services.identity.add_account(f"{role} {new_id()}", role)  # type: ignore[arg-type]
    secret = services.identity.add_token(account["id"])["token"]
    return secret, services.identity.caller(secret)


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def dataset_with_text(services: Services, caller: Caller, limits: float = 8.0) -> str:
    made = services.datasets.add(f"diary {new_id()}", caller, limits={"users": limits})["id"]
    services.records.append(made, caller, [Draft("a text", "ann")]).result(30)
    return str(made)


# --- a database that is away --------------------------------------------------------------------


def test_a_database_that_is_away_is_said_so_everywhere(
    lite: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking up a token, reading, and writing: 503, and when to come back."""
    secret, caller = token_of(lite)
    dataset = dataset_with_text(lite, caller)
    lite.identity._drop_cache()
    client = TestClient(make_app(lite), raise_server_exceptions=False)
    nowhere = sa.create_engine("postgresql+psycopg://nobody@127.0.0.1:1/x")
    path = f"/v1/datasets/{dataset}/records"
    with monkeypatch.context() as patch:
        patch.setattr(lite.storage, "_reader", nowhere)
        patch.setattr(lite.storage, "_writer", nowhere)
        answers = [client.get("/v1/me", headers=bearer(secret)), client.get("/metrics")]
        lite.identity._cache[identity.digest_of(secret)] = (time.monotonic(), caller)
        answers.append(client.get(path, headers=bearer(secret)))
        body = {"text": "another", "user": "bob"}
        answers.append(client.post(path, json=body, headers=bearer(secret)))
        for answer in answers:
            assert answer.status_code == 503, answer.text
            assert answer.headers["Retry-After"] == "1"
            assert answer.json()["error"] == "Unavailable"
        health = client.get("/healthz")
        assert (health.status_code, health.json()["database"]) == (503, False)
    assert client.post(path, json=body, headers=bearer(secret)).status_code == 201
    assert client.get("/healthz").status_code == 200


def test_the_client_comes_back_when_the_server_says_later(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        if len(seen) < 3:
            return httpx.Response(503, json={"error": "Unavailable", "message": "Not now."})
        return httpx.Response(202, json={"id": "7"})

    client = Client("http://127.0.0.1:1", "t")
    client._http = httpx.Client(base_url="http://x/v1", transport=httpx.MockTransport(answer))
    assert client.start_run("d", {}) == {"id": "7"}
    keys = {request.headers["Idempotency-Key"] for request in seen}
    assert (len(seen), len(keys)) == (3, 1), "the same call, made again"


def test_health_looks_at_disk_database_and_writer(
    lite: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = TestClient(make_app(lite))
    assert client.get("/healthz").json() == dict.fromkeys(
        ("ok", "disk", "database", "writer"), True
    )
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json()["lease"], ready.json()["queue"]) == (200, True, True)
    with monkeypatch.context() as patch:
        patch.setitem(lite.settings.__dict__, "free_bytes", 1 << 60)
        assert client.get("/healthz").json()["disk"] is False
    with monkeypatch.context() as patch:
        patch.setattr(lite.records, "_since", time.monotonic() - 3600)
        stuck = client.get("/healthz")
        assert (stuck.status_code, stuck.json()["writer"]) == (503, False)
    lite.lease.held = False
    assert client.get("/healthz").status_code == 200
    assert client.get("/readyz").status_code == 503


def test_who_waits_while_a_server_stops_is_told_to_come_back(lite: Services) -> None:
    app = make_app(lite)

    @app.get("/waits")
    async def waits() -> None:
        raise asyncio.CancelledError

    answer = TestClient(app).get("/waits")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")


# --- signing in ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bob", "nobody", "without a password", "gone"])
def test_a_refused_sign_in_computes_the_same_for_every_name(
    lite: Services, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lite.identity.add_account("bob", "analyst", "a long enough one")
    lite.identity.add_account("without a password", "analyst")
    gone = lite.identity.add_account("gone", "analyst", "a long enough one")
    lite.identity.change_account(gone["id"], disabled=True)
    done: list[str] = []

    class Counted(PasswordHasher):
        def hash(self, password: Any, *, salt: bytes | None = None) -> str:
            done.append("hash")
            return super().hash(password, salt=salt)

        def verify(self, hash: Any, password: Any) -> Any:
            done.append("verify")
            return super().verify(hash, password)

    hasher = Counted()
    identity._of_nobody(hasher)
    monkeypatch.setattr(lite.identity, "_hasher", hasher)
    done.clear()
    with pytest.raises(NotAuthenticated):
        lite.identity.check_password(name, "another long one")
    assert done == ["verify"]


# --- connections --------------------------------------------------------------------------------


@pytest.fixture
def listening(lite: Services) -> Iterator[Callable[..., int]]:
    """A server in a thread, as `tacit serve` makes it, with limits of the test's own."""
    stops: list[tuple[uvicorn.Server, threading.Thread]] = []

    def listen(tls: ssl.SSLContext | None = None, **limits: Any) -> int:
        lite.settings.__dict__.update(limits)
        listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
        own = connections.limited(lite.settings, tls)
        config = uvicorn.Config(make_app(lite), http=own, log_level="critical")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        stops.append((server, thread))
        return int(listener.getsockname()[1])

    yield listen
    for server, thread in stops:
        server.should_exit = True
        thread.join(30)


def well(port: int) -> bool:
    return httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False, timeout=30).is_success


def half_sent(port: int, content: bytes = b"GET /v1/me HTTP/1.1\r\nHost: x\r\nX-") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=30)
    made.sendall(content)
    return made


def closed(one: socket.socket) -> bool:
    with contextlib.suppress(ConnectionError):
        return one.recv(4096) == b""
    return True


def test_half_sent_requests_give_way_to_whole_ones(listening: Callable[..., int]) -> None:
    port = listening(connections=16)
    held = []
    for _ in range(3):
        held += [half_sent(port) for _ in range(20)]
        assert well(port), "whoever asks for something is answered"
    assert closed(held[0]), "the one that waited longest was dropped"
    for one in held:
        one.close()


def test_handshakes_that_never_end_give_way_too(
    listening: Callable[..., int], tmp_path: Path
) -> None:
    with pytest.raises(TacitError, match="PEM"):
        connections.context_of(tmp_path / "none.pem", None)
    tls = connections.context_of(*certificate(tmp_path))
    port = listening(tls, connections=16, head_seconds=0.5)
    silent = [half_sent(port, b"") for _ in range(40)]
    trusting = ssl.create_default_context(cafile=str(tmp_path / "certificate.pem"))
    for _ in range(2):
        answer = httpx.get(f"https://localhost:{port}/healthz", verify=trusting, trust_env=False)
        assert answer.is_success
        assert answer.headers["Strict-Transport-Security"]
    assert all(closed(one) for one in silent)


def certificate(folder: Path) -> tuple[Path, Path]:
    """Of this machine, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    day = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    made = x509.CertificateBuilder(name, name, key.public_key(), 7, day, day + timedelta(1))
    signed = made.add_extension(names, critical=False).sign(key, hashes.SHA256())
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(signed.public_bytes(Encoding.PEM))
    kind = PrivateFormat.PKCS8
    paths[1].write_bytes(key.private_bytes(Encoding.PEM, kind, NoEncryption()))
    return paths


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n",
        b"POST /v1/certificates/verify HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\nhalf",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /h",
    ],
    ids=["nothing", "half a head", "half a body", "half a second request"],
)
def test_who_does_not_go_on_is_dropped(listening: Callable[..., int], content: bytes) -> None:
    port = listening(head_seconds=0.1, body_seconds=0.1)
    sent = half_sent(port, content)
    if b"healthz" in content:
        assert sent.recv(4096).startswith(b"HTTP/1.1 200")
        sent.sendall(b"ealth")  # on and on, and never whole
    while not closed(sent):
        pass
    assert well(port)


def test_a_head_has_an_end(listening: Callable[..., int]) -> None:
    sent = half_sent(listening(), b"GET / HTTP/1.1\r\n")
    with pytest.raises(ConnectionError):  # noqa: PT012 - whichever of them meets the closed door
        for number in range(100_000):
            sent.sendall(b"X-%d: %s\r\n" % (number, b"x" * 1000))


def test_there_are_as_many_connections_as_files_allow(
    lite: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    for limits, most, raised in (
        ((1024, 1024), 768, []), ((256, 10_000), 1000, [(1256, 10_000)]), ((-1, -1), 1000, []),
    ):  # fmt: skip
        asked.clear()
        stub = SimpleNamespace(
            getrlimit=lambda _, found=limits: found, RLIMIT_NOFILE=7, RLIM_INFINITY=-1,
            setrlimit=lambda _, wanted: asked.append(wanted),
        )  # fmt: skip
        monkeypatch.setattr(connections, "resource", stub)
        assert connections.most_connections(lite.settings) == most
        assert asked in (raised, [(1024, 1024)])


def test_only_a_trusted_proxy_says_where_a_request_came_from(lite: Services) -> None:
    """And over https a browser is told to stay there."""
    from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

    app = make_app(lite)
    asked: list[Any] = []
    lite_gate = app.state.access
    lite_gate.limit_anonymous = lambda scope: asked.append(scope["client"][0])
    head = {"X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "https"}
    for trusted, where, secure in (("testclient", "203.0.113.9", True), ("", "testclient", False)):
        client = TestClient(ProxyHeadersMiddleware(app, trusted))  # type: ignore[arg-type]
        answer = client.get("/v1/me", headers=head)
        assert answer.status_code == 401
        assert asked.pop() == where
        assert ("Strict-Transport-Security" in answer.headers) == secure
    with pytest.raises(TacitError, match="trusted_proxies"):
        ServerSettings(folder=lite.settings.folder, trusted_proxies="10.0.0.0/8,everybody")


# --- the same call made again -------------------------------------------------------------------


def test_a_key_starts_one_run_for_its_caller_and_content(services: Services) -> None:
    services.jobs.close()
    _, ann = token_of(services, "analyst")
    _, bob = token_of(services, "analyst")
    _, admin = token_of(services)
    dataset = dataset_with_text(services, admin)
    asked = RunRequest(plan=PLAN)
    services.plans.prepare(dataset, asked)  # what is priced once is known to all
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: services.jobs.train(dataset, asked, ann, "k"), range(4)))
    assert len({run["id"] for run in made}) == 1
    assert sum("repeated" in run for run in made) == 3
    spent = services.budgets.status(dataset)
    assert len(spent["history"]) == 1, "reserved once"
    with pytest.raises(Conflict, match="another request"):
        services.jobs.train(dataset, RunRequest(plan=PLAN, name="other"), ann, "k")
    assert services.jobs.train(dataset, asked, bob, "k")["id"] != made[0]["id"]
    once = services.jobs.order(dataset, ann, "detect", {"with": "patterns"}, key="k")
    assert services.jobs.order(dataset, ann, "detect", {"with": "patterns"}, key="k")["repeated"]
    with pytest.raises(Conflict):
        services.jobs.order(dataset, ann, "detect", {"with": "lists"}, key="k")
    assert once["id"] != made[0]["id"]


def test_every_list_has_pages(lite: Services) -> None:
    lite.jobs.close()
    secret, admin = token_of(lite)
    client = TestClient(make_app(lite), headers=bearer(secret))
    datasets = [dataset_with_text(lite, admin) for _ in range(5)]
    first = f"/v1/datasets/{datasets[0]}"
    for number in range(4):
        somebody(lite, "consumer", f"consumer {number}")
        lite.datasets.add_list(datasets[0], f"list {number}", ["Ann"], admin)
        lite.jobs.order(datasets[0], admin, "detect", {})
        job = Job(id=new_id(), kind="train", dataset_id=datasets[0], request={}, state="failed",
                  unproved=False, created_by=admin.account)  # fmt: skip
        lite.storage.add(job)
    lite.jobs.order(datasets[0], admin, "attack", {}, target=job.id)
    lists = ["/v1/accounts", "/v1/tokens", "/v1/datasets", f"{first}/entity-lists",
             f"{first}/detections", "/v1/runs", f"/v1/runs/{job.id}/jobs"]  # fmt: skip
    for path in lists:
        whole = [one["id"] for one in client.get(path).json()]
        assert whole, path
        paged, after = [], ""
        while page := client.get(path, params={"after": after, "limit": 2}).json():
            assert len(page) <= 2
            after = page[-1]["id"]
            paged += [one["id"] for one in page]
        assert paged == whole, path


# --- what is said of this machine ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Cannot read /srv/tacit/jobs/7/run/ledger.jsonl now.", "Cannot read ledger.jsonl now."),
        ("'/tmp/x/a b'", "'a b'"),
        ("users and/or names, 1/2, https://example.org/a/b", None),
    ],
)
def test_messages_name_files_and_no_folders(said: str, shown: str | None) -> None:
    assert without_paths(said) == (shown or said)


# --- children, databases and files that are not as they should be -------------------------------


def test_a_child_whose_number_was_never_stored_is_cancelled(lite: Services) -> None:
    """The server died between starting it and writing its number down."""
    _, admin = token_of(lite)
    dataset = dataset_with_text(lite, admin)
    lite.jobs.close()
    job = Job(id=new_id(), kind="detect", dataset_id=dataset, request={}, state="running",
              unproved=False, created_by=admin.account)  # fmt: skip
    folder = lite.settings.job_folder(job.id)
    folder.mkdir(parents=True)
    (folder / child_processes.LOCK).write_text("1\n")  # of an earlier one
    child = child_processes.start(folder, ["serve", "--folder", "s", "--port", "0"], home=folder)
    while child_processes._own_number(folder / child_processes.LOCK) is None:
        time.sleep(0.01)
    os.kill(child.process or 0, signal.SIGSTOP)
    lite.storage.add(job)
    lite.settings.__dict__["kill_after_seconds"] = 0.0
    lite.jobs.cancel(job.id)
    while lite.jobs.get(job.id)["state"] != "cancelled":
        lite.jobs._poll()
    assert child.own is not None
    assert child.own.wait(30) == -signal.SIGKILL


def test_a_database_of_a_newer_schema_is_refused_with_a_sentence(settings: ServerSettings) -> None:
    storage = Storage(settings)
    with storage.write() as session:
        session.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    storage.close()
    with pytest.raises(TacitError, match="serve it with that version"):
        Services.open(settings)


def test_a_damaged_database_is_refused_with_a_sentence(lite: Services, tmp_path: Path) -> None:
    """Wherever the header of the file is damaged, a start works, or says one sentence."""
    lite.close()
    rng = random.Random(5)
    for number in range(30):
        folder = tmp_path / f"copy {number}"
        shutil.copytree(lite.settings.folder, folder)
        content = bytearray((folder / "tacit.db").read_bytes())
        place = number if number < 20 else rng.randrange(100)
        content[place] ^= 1 << rng.randrange(8)
        (folder / "tacit.db").write_bytes(content)
        with contextlib.suppress(TacitError, Unavailable):
            Services.open(ServerSettings(folder=folder)).close()
