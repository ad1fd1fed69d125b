"""The API: who may do what, what is refused, and what is never said."""

import io
import json
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from support.people import MATRIX, everybody
from support.runs import make_run
from tacit.privacy.certificates.certificate import amend
from tacit.server.api import make_app
from tacit.server.identity import ROLES
from tacit.server.services import Services
from tacit.server.settings import ServerSettings
from tacit.server.storage import Account, Job, new_id

SECRET = "Zanzibar-Quetzal-4711"
USERS_RUN = {
    "plan": {"protect": "users", "epsilon": 3, "steps": 3, "user_rate": 1.0, "users": 50},
    "model": {"config": {"embedding_size": 8, "hidden_size": 8, "layers": 1}},
    "tokenizer": {"size": 400},
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """One server for all tests here, whose queue does not move."""
    settings = ServerSettings(
        folder=tmp_path_factory.mktemp("api") / "server", upload_bytes=1 << 20, body_bytes=1 << 16,
        requests_per_second=1e6, burst=10**6,
    )  # fmt: skip
    services = Services.open(settings)
    services.jobs.close()
    yield services
    services.close()


@pytest.fixture(scope="module")
def tokens(served: Services) -> dict[str, str]:
    """A token of each role, and none for a stranger."""
    return {
        role: served.identity.add_token(caller.account)["token"]
        for role, caller in everybody(served).items()
    } | {"stranger": ""}


Call = Callable[..., Any]


@pytest.fixture(scope="module")
def call(served: Services, tokens: dict[str, str]) -> Call:
    client = TestClient(make_app(served), raise_server_exceptions=True)

    def asked(role: str, method: str, path: str, **options: Any) -> Any:
        headers = dict(options.pop("headers", {}))
        if tokens[role]:
            headers["Authorization"] = f"Bearer {tokens[role]}"
        return client.request(method, path, headers=headers, **options)

    return asked


@pytest.fixture(scope="module")
def dataset(call: Call) -> str:
    made = call("admin", "POST", "/v1/datasets", json={"name": "diary", "limits": {"users": 8}})
    assert made.status_code == 201
    name = str(made.json()["id"])
    record = {"text": "Somebody wrote this.", "user": "zoe"}
    assert call("admin", "POST", f"/v1/datasets/{name}/records", json=record).status_code == 201
    return name


@pytest.mark.parametrize("role", [*ROLES, "stranger"])
def test_who_may_do_what(call: Call, dataset: str, role: str) -> None:
    """Allowed calls are about nothing, or wrong, so that none of them changes anything."""
    for method, path, body, allowed in MATRIX:
        if (method, path) == ("DELETE", "/v1/datasets/{d}/records") and role == "contributor":
            continue  # that would delete something
        answer = call(role, method, path.replace("{d}", dataset), json=body)
        refused = answer.status_code in (401, 403)
        assert refused == (role not in allowed), (method, path, answer.status_code)
        assert answer.status_code == 401 if role == "stranger" else answer.status_code != 401
        assert answer.status_code < 500, (method, path)


def test_the_matrix_is_of_every_call(served: Services) -> None:
    described = make_app(served).openapi()["paths"]
    calls = {(m.upper(), p) for p, found in described.items() for m in found if p.startswith("/v1")}
    named = {(method, path) for method, path, *_ in MATRIX}
    assert {(m, re.sub(r"{\w+}", "*", p)) for m, p in calls} == {
        (m, re.sub(r"/(0|{d})(?=/|$)", "/*", p)) for m, p in named
    }


def test_text_is_shown_to_its_owner_and_to_admins(call: Call, dataset: str) -> None:
    path = f"/v1/datasets/{dataset}/records"
    body = {"text": f"my secret is {SECRET}"}
    made = call("contributor", "POST", path, json=body, headers={"Idempotency-Key": "k1"})
    assert made.status_code == 201
    again = call("contributor", "POST", path, json=body, headers={"Idempotency-Key": "k1"})
    assert (again.status_code, again.json()["repeated"]) == (200, True)
    assert again.json()["record"] == made.json()["record"]
    for role in ("admin", "contributor"):
        assert SECRET in call(role, "GET", path).text
    for role in ("analyst", "consumer", "stranger"):
        for method, other, *_ in MATRIX:
            if method == "GET" and "events" not in other:
                assert SECRET not in call(role, method, other.replace("{d}", dataset)).text
    log = call("admin", "GET", "/v1/audit-log").json()
    assert "read records" in {line["what"] for line in log}
    gone = call("contributor", "DELETE", path)
    assert gone.json()["deleted"] == 1
    assert "stays spent" in gone.json()["consequence"]
    assert SECRET not in call("admin", "GET", path).text
    # Another's records are not a contributor's to delete, nor all an admin's by mistake.
    assert call("contributor", "DELETE", path, params={"user": "bob"}).status_code == 403
    assert call("admin", "DELETE", path).status_code == 422


def test_nothing_is_given_to_a_public_dataset_without_consent(call: Call) -> None:
    """A contributor is told that nothing protects it, and says that they know."""
    made = call("admin", "POST", "/v1/datasets", json={"name": "open letters", "public": True})
    shown = call("contributor", "GET", "/v1/datasets").json()
    (found,) = [one for one in shown if one["id"] == made.json()["id"]]
    assert found["protected"] is False
    assert "word by word" in found["protection"]
    path = f"/v1/datasets/{made.json()['id']}/records"
    body, file = {"text": SECRET}, {"file": ("a.jsonl", b'{"text": "one"}\n')}
    for refused in (call("contributor", "POST", path, json=body),
                    call("contributor", "POST", f"{path}/file", files=file)):  # fmt: skip
        assert refused.status_code == 409
        assert "word by word" in refused.json()["message"]
    assert call("contributor", "GET", path).json() == []
    agreed = call("contributor", "POST", path, json=body | {"consent": True})
    assert agreed.status_code == 201
    form = {"consent": "true"}
    assert call("contributor", "POST", f"{path}/file", files=file, data=form).status_code == 201
    said = [line["what"] for line in call("admin", "GET", "/v1/audit-log").json()]
    assert said.count("give unprotected text") == 2
    # Whoever marked it as public knows already.
    mine = {"text": "a text", "user": "zoe"}
    assert call("admin", "POST", path, json=mine).status_code == 201


def test_a_contributor_sees_the_marks_before_sending(call: Call, dataset: str) -> None:
    text = "Write to bob@example.org tomorrow."
    path = f"/v1/datasets/{dataset}/records"
    before = call("contributor", "GET", path).json()
    seen = call("contributor", "POST", f"{path}/preview", json={"text": text}).json()
    assert [text[m["start"] : m["end"]] for m in seen["marks"]] == ["bob@example.org"]
    assert seen["protected"] is True
    assert "limited by the budget" in seen["protection"]
    assert call("contributor", "GET", path).json() == before, "it is not kept"


@pytest.mark.parametrize(
    ("name", "content", "status"),
    [
        ("a.jsonl", b'{"user": "ann", "text": "one"}\n{"user": "bob", "text": "two"}\n', 201),
        ("a.csv", b"user,text\nann,three\n", 201),
        ("a.csv", b"user,text\nann\n", 422),
        ("a.jsonl", b'{"user": "ann", "text": "' + SECRET.encode() + b'"', 422),
        ("a.jsonl", b"[" * 100_000, 422),
        ("a.jsonl", b'{"text": ' + b"9" * 10_000 + b"}\n", 422),
        ("a.jsonl", b"\xff\xfe\x00", 422),
        ("a.txt", b"no user in sight\n", 422),
        ("a.parquet", b"PAR1", 422),
        ("a.jsonl.gz", b"\x1f\x8b", 422),
        ("../../a.pkl", b"x", 422),
        ("", b"x", 422),
        ("a.jsonl", b'{"user": "ann", "text": "x"}\n' * 60_000, 413),
    ],
)
def test_files(call: Call, dataset: str, name: str, content: bytes, status: int) -> None:
    answer = call(
        "admin", "POST", f"/v1/datasets/{dataset}/records/file", files={"file": (name, content)}
    )
    assert answer.status_code == status, answer.text
    assert SECRET not in answer.text
    assert tempfile.gettempdir() not in answer.text


def test_a_file_stored_twice_with_one_key_is_stored_once(call: Call, dataset: str) -> None:
    path = f"/v1/datasets/{dataset}/records/file"
    files = {"file": ("a.jsonl", b'{"text": "one"}\n{"text": "two"}\n')}
    for repeated in (0, 2):
        answer = call(
            "contributor", "POST", path, files=files, headers={"Idempotency-Key": "file-1"}
        )
        assert answer.json() == {"records": 2, "repeated": repeated}


@pytest.mark.parametrize(
    "body",
    [
        b'{"text": "' + b"x" * 70_000 + b'"}',
        b'{"text": ' + b"[" * 60_000,
        b'{"text": "\\u0000"}',
        b'{"text": "\\ud800"}',
        b'{"text": "fine", "tokens": ["\\ud800"]}',
        b'{"text": "fine", "spans": [{"start": 1, "end": 99, "kind": "PII"}]}',
        b'{"text": "fine", "tokens": ["fine"], "tags": []}',
        b'{"text": "fine", "label": "\\u0000"}',
        b'{"text": 7}',
        b"not JSON",
        b"",
    ],
)
def test_bodies_that_cannot_be(call: Call, dataset: str, body: bytes) -> None:
    answer = call(
        "contributor", "POST", f"/v1/datasets/{dataset}/records", content=body,
        headers={"Content-Type": "application/json"},
    )  # fmt: skip
    assert answer.status_code in (400, 413, 422), answer.text
    assert len(answer.text) < 2000


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"kind": "folder", "folder": "/etc"}},
        {"model": {"config": {"file": "/etc/passwd"}}},
        {"tokenizer": {"kind": "folder", "folder": "/etc"}},
        {"detectors": ["lists=/etc/passwd"]},
        {"detectors": ["tagger"]},
        {"policy": "os:system"},
        {"plan": USERS_RUN["plan"] | {"entity_list": "/etc/passwd"}},
        {"plan": USERS_RUN["plan"] | {"kinds": ["../x"]}},
        {"method": "uedp", "steps": 3, "plan": {}, "method_settings": {"entity_list": "/etc/x"}},
        {"corpus": "/etc/passwd"},
        {"public_start": {"dataset": "../x"}},
        {"continue_from": "../../x"},
        {"entity_list": "nothing"},
        {"method": "nothing"},
        {"plan": {"protect": "users"}},
        {"plan": USERS_RUN["plan"] | {"epsilon": -1}},
    ],
)
def test_a_request_for_a_run_names_no_file_and_makes_sense(
    call: Call, dataset: str, change: dict[str, Any]
) -> None:
    for where in ("plans", "runs"):
        answer = call("analyst", "POST", f"/v1/datasets/{dataset}/{where}", json=USERS_RUN | change)
        assert answer.status_code in (404, 409, 422), (where, answer.text)
    assert call("analyst", "GET", "/v1/runs", params={"dataset": dataset}).json() == []


def test_runs_that_are_refused_before_they_start(call: Call, dataset: str) -> None:
    start = f"/v1/datasets/{dataset}/runs"
    for change, said in (
        ({"plan": USERS_RUN["plan"] | {"epsilon": 9}}, "over its budget of 8"),
        ({"method": "plain", "plan": {}, "steps": 3}, "An admin may allow"),
        ({"seed": 3}, "noise can be subtracted"),
        ({"tokenizer": {"kind": "words"}}, "a leak that no epsilon covers"),
        (
            {"plan": {"protect": "records", "epsilon": 1, "steps": 3, "record_rate": 1.0,
                      "records": 100}},
            "has no bound for users",
        ),
    ):  # fmt: skip
        answer = call("analyst", "POST", start, json=USERS_RUN | change)
        assert answer.status_code == 409, answer.text
        assert said in answer.json()["message"]
        dry = call("analyst", "POST", f"/v1/datasets/{dataset}/plans", json=USERS_RUN | change)
        assert (dry.status_code, dry.json()["fits_budget"]) == (200, False)
        assert said in dry.json()["refused"]
    outcomes = [line["outcome"] for line in call("admin", "GET", "/v1/audit-log").json()]
    assert "refused: OverBudget" in outcomes


def test_an_admin_may_allow_what_proves_nothing(call: Call) -> None:
    made = call("admin", "POST", "/v1/datasets", json={"name": "experiments"}).json()
    path = f"/v1/datasets/{made['id']}"
    call("admin", "POST", f"{path}/records", json={"text": "a text", "user": "ann"})
    assert call("admin", "PATCH", path, json={"unproved_allowed": True}).status_code == 200
    asked = USERS_RUN | {"method": "plain", "plan": {}, "steps": 3}
    started = call("analyst", "POST", f"{path}/runs", json=asked)
    assert started.status_code == 202, started.text
    run = started.json()
    assert run["unproved"] is True
    budget = call("analyst", "GET", f"{path}/budget").json()
    assert budget["unbounded_runs"] == [run["id"]]
    assert call("analyst", "POST", f"/v1/runs/{run['id']}/cancel").json()["state"] == "cancelled"


def test_the_queue_is_bounded(call: Call, served: Services) -> None:
    made = call("admin", "POST", "/v1/datasets", json={"name": "busy"}).json()
    path = f"/v1/datasets/{made['id']}/detections"
    answers = [call("analyst", "POST", path, json={}) for _ in range(served.settings.queue + 2)]
    codes = [answer.status_code for answer in answers]
    assert codes.count(202) == served.settings.queue
    assert codes[-2:] == [429, 429]
    assert "The queue is full" in answers[-1].json()["message"]
    for answer in answers[:-2]:
        served.jobs.cancel(answer.json()["id"])


def test_entity_lists_are_shown_to_whoever_gave_them(call: Call, dataset: str) -> None:
    path = f"/v1/datasets/{dataset}/entity-lists"
    body = {"name": "vips", "names": [SECRET, "Ann Other", "Ann  Other"]}
    made = call("admin", "POST", path, json=body).json()
    assert made["count"] == 2
    assert SECRET in call("admin", "GET", f"{path}/{made['id']}").text
    assert SECRET not in call("analyst", "GET", path).text
    assert call("analyst", "GET", f"{path}/{made['id']}").status_code == 404
    file = {"file": ("names.txt", f"# remark\n{SECRET}\n".encode())}
    own = call("analyst", "POST", f"{path}/file", files=file).json()
    assert call("analyst", "GET", f"{path}/{own['id']}").json()["names"] == [SECRET]
    assert call("analyst", "DELETE", f"{path}/{own['id']}").json() == {"deleted": True}


def packed(**files: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "status"),
    [
        ("m.zip", packed(**{"../../evil": b"x"}), 422),
        ("m.zip", packed(**{"/etc/evil": b"x"}), 422),
        ("m.zip", packed(**{"sub/certificate.json": b"x"}), 422),
        ("m.zip", packed(**{"model.pkl": b"x"}), 422),
        ("m.zip", b"PK\x03\x04 not a zip", 422),
        ("evil.py", b"x", 422),
        ("certificate.json", b"{}", 200),
        ("certificate.json", b"[" * 100_000, 200),
    ],
    ids=["dots", "root", "sub", "pickle", "torn", "code", "empty", "deep"],
)
def test_uploaded_certificates(call: Call, name: str, content: bytes, status: int) -> None:
    files = [("files", (name, content))]
    answer = call("consumer", "POST", "/v1/certificates/verify", files=files)
    assert answer.status_code == status, answer.text
    if status == 200:
        assert answer.json()["ok"] is False


def test_a_file_that_unpacks_to_much_too_much(call: Call) -> None:
    files = [("files", ("m.zip", packed(**{"model.safetensors": bytes(600 << 20)})))]
    assert call("consumer", "POST", "/v1/certificates/verify", files=files).status_code == 413


def test_headers_health_metrics_and_the_page(call: Call) -> None:
    answer = call("stranger", "GET", "/healthz")
    assert answer.json()["ok"] is True
    assert answer.headers["x-content-type-options"] == "nosniff"
    answer = call("admin", "GET", "/v1/me")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    metrics = call("stranger", "GET", "/metrics").text
    assert 'tacit_jobs{state="queued"}' in metrics
    assert 'route="/me"' in metrics
    page = call("stranger", "GET", "/docs").text
    assert "/v1/datasets/{dataset}/runs" in page
    assert "http://" not in page
    assert "https://" not in page
    assert call("admin", "GET", "/v1/nowhere").status_code == 404
    assert call("stranger", "GET", "/v1/runs/..%2f..%2fetc").status_code in (401, 404)


def test_strangers_and_tokens_are_slowed_down(lite: Services) -> None:
    from dataclasses import replace

    slow = replace(lite, settings=replace(lite.settings, requests_per_second=0.001, burst=30))
    client = TestClient(make_app(slow))
    codes = [client.get("/v1/me").status_code for _ in range(5)]
    assert codes == [401, 401, 401, 429, 429]
    account = lite.identity.add_account("ann", "analyst")
    headers = {"Authorization": f"Bearer {lite.identity.add_token(account['id'])['token']}"}
    codes = [client.get("/v1/me", headers=headers).status_code for _ in range(31)]
    assert codes == [200] * 30 + [429]


def test_failures_inside_say_nothing(lite: Services, capsys: pytest.CaptureFixture[str]) -> None:
    app = make_app(lite)

    @app.get("/broken")
    def broken() -> None:
        raise ValueError(SECRET)

    answer = TestClient(app).get("/broken")
    assert answer.status_code == 500
    printed = capsys.readouterr()
    assert SECRET not in answer.text + printed.out + printed.err
    assert "ValueError" in printed.err
    json.loads(answer.text)


def test_a_stranger_is_refused_before_anything_is_read(lite: Services) -> None:
    client = TestClient(make_app(lite))
    read = []

    def endless() -> Iterator[bytes]:
        for _ in range(100):
            read.append(1)
            yield b"x" * 65536

    answer = client.post("/v1/datasets/0/records/file", content=endless())
    assert answer.status_code == 401
    for wrong in ("", "Bearer", "Bearer  ", "Basic abc", "Bearer \xff"):
        headers = {b"Authorization": wrong.encode("latin-1")}
        answer = client.post("/v1/datasets/0/plans", content=b"\x81", headers=headers)
        assert answer.status_code == 401, wrong
        assert answer.headers["www-authenticate"] == "Bearer"


def test_a_dry_run_names_what_it_protects_and_what_it_leaves_out(call: Call) -> None:
    made = call("admin", "POST", "/v1/datasets", json={"name": "mail", "limits": {"users": 8}})
    place = f"/v1/datasets/{made.json()['id']}"
    for number in range(12):
        text = f"Write to u{number}@example.org before 3 May 2024."
        record = {"text": text, "user": f"u{number}"}
        assert call("admin", "POST", f"{place}/records", json=record).status_code == 201
    plan = {"protect": "both", "epsilon": 4, "steps": 2, "user_rate": 0.5, "kinds": ["PII"]}
    asked = USERS_RUN | {"plan": plan, "detectors": ["patterns"]}
    found = call("analyst", "POST", f"{place}/plans", json=asked).json()
    assert "every entity of the kind PII that was detected" in found["protected"][0]
    said = found["explained"]
    assert "any one entity of the kind PII was detected" in said
    assert "Found and not protected: DATE." in said
    assert "An entity is what patterns (tacit" in said
    assert "No names of people, organisations or places were found by patterns." in said


def test_a_run_says_what_its_certificate_says_now(served: Services, dataset: str) -> None:
    """An audit that contradicts a certificate takes the promise from the page of the run, too."""
    job = new_id()
    with served.storage.write() as session:
        by = session.scalars(select(Account.id)).first()
        result = {"standing": "proved", "task": "next-word"}
        session.add(Job(id=job, kind="train", dataset_id=dataset, request={}, state="done",
                        result=result, created_by=by))  # fmt: skip
    folder = make_run(served.settings.job_folder(job) / "run")
    amend(folder, broken=True)
    with served.storage.write() as session:
        served.jobs._refresh_promise(session, job)
    found = served.jobs.get(job, "train")["result"]
    assert found["standing"] == "broken"
    assert found["gain"] is None
    assert found["headline"].startswith("Broken.")
    assert found["task"] == "next-word"
