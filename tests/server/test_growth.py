"""Many records: counted as they come, uploaded in parts, read from files of any kind."""

import gzip
import random
import threading
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.people import somebody
from tacit.corpus.description import describe
from tacit.detection import detect
from tacit.errors import DataError, TacitError
from tacit.server import plans
from tacit.server.api import make_app
from tacit.server.errors import Conflict, TooLarge, Unavailable
from tacit.server.identity import Caller
from tacit.server.records import _PART, Draft, Records
from tacit.server.run_requests import RunRequest
from tacit.server.services import Services
from tacit.server.storage import Fact, new_id

MANY = 5 * _PART + 7


def filled(services: Services) -> tuple[str, Caller]:
    admin = somebody(services, "admin", f"admin {new_id()}")
    return services.datasets.add(f"diary {new_id()}", admin, limits={"users": 8})["id"], admin


def drafts(count: int = MANY, word: str = "text") -> list[Draft]:
    return [Draft(f"{word} {n}", f"user {n % 7}") for n in range(count)]


texts = st.text(st.sampled_from("ab \t\n\x1c\x85\xa0é"), max_size=12).filter(str.strip)
given_drafts = st.builds(
    Draft, texts, st.sampled_from(["ann", "bob"]), st.sampled_from([None, "x", "y"]),
    st.sampled_from([None, "train"]),
    st.sampled_from([
        None, {"tokens": ["a", "b"], "tags": ["B-PER", "O"]},
        {"spans": [{"start": 0, "end": 1, "kind": "PII"}]},
    ]),
)  # fmt: skip


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(st.lists(st.one_of(given_drafts, st.sampled_from(["ann", "bob"])), max_size=12))
def test_what_is_counted_as_it_comes_is_what_is_there(lite: Services, steps: list[Any]) -> None:
    """Adding, deleting, and looking in between: the same as counting everything."""
    dataset, admin = filled(lite)
    for number, step in enumerate(steps):
        if isinstance(step, Draft):
            lite.records.append(dataset, admin, [step]).result(30)
        else:
            lite.records.forget(dataset, owner=None, user=step)
        if number % 3 == 0:
            lite.records.counts(dataset)
    if lite.records.counts(dataset)["records"]:
        expected = describe(lite.records.corpus(dataset), near_duplicates=False)
        assert lite.records.described(dataset) == expected


def test_what_comes_while_everything_is_counted_is_counted_once(
    lite: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, admin = filled(lite)
    lite.records.append(dataset, admin, drafts(20)).result(30)
    tallies, rows = lite.records.tallies, lite.records.tallies._rows

    def slowly(name: str) -> Iterator[Any]:
        for number, row in enumerate(list(rows(name)) + list(rows(name))[20:]):
            if number == 3:
                lite.records.append(dataset, admin, [Draft("more", "zoe")]).result(30)
            if number == 5 and deleting:
                lite.records.forget(dataset, owner=None, user=deleting.pop())
            yield row

    for goes in ([], ["user 1"]):
        deleting = goes
        tallies.dropped([dataset])
        with monkeypatch.context() as patch:
            patch.setattr(tallies, "_rows", slowly)
            lite.records.counts(dataset)
        there = describe(lite.records.corpus(dataset), near_duplicates=False)
        assert lite.records.described(dataset) == there


def test_a_large_upload_lets_others_in_between(services: Services) -> None:
    """An append that is sent when a part is written is answered before the next but one."""
    dataset, admin = filled(services)
    order: list[str] = []
    others: list[Any] = []
    send = services.records._send

    def noted(rows: list[Any], keyed: bool) -> Any:
        if len(rows) == _PART:
            draft = [Draft("in between", "zoe")]
            others.append(services.records.append(dataset, admin, draft))
            others[-1].add_done_callback(lambda _: order.append("other"))
        made = send(rows, keyed)
        made.add_done_callback(lambda _: order.append("part"))
        return made

    services.records._send = noted  # type: ignore[method-assign]
    found = services.records.upload(dataset, admin, drafts, "k")
    for other in others:
        other.result(30)
    assert (found.count, found.repeated) == (MANY, 0)
    assert "other" in order[:2]
    again = services.records.upload(dataset, admin, drafts, "k")
    assert (again.count, again.repeated) == (MANY, MANY)
    assert services.records.counts(dataset)["records"] == MANY + len(others)
    with pytest.raises(Conflict):
        services.records.upload(dataset, admin, lambda: drafts(word="other"), "k")


@pytest.mark.parametrize("how", ["a record is wrong", "the database goes", "the server goes"])
def test_of_an_upload_that_is_stopped_nothing_stays(
    services: Services, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, admin = filled(services)
    services.records.append(dataset, admin, [Draft("was here", "ann")]).result(30)
    records, send, sent = services.records, services.records._send, []

    def stops(rows: list[Any], keyed: bool) -> Any:
        sent.append(len(rows))
        if len(sent) == 3 and how == "the server goes":
            raise KeyboardInterrupt
        if len(sent) == 3:
            raise Unavailable("Gone.")
        return send(rows, keyed)

    given_ = drafts()
    if how == "a record is wrong":
        given_[-1] = Draft("\0", "ann")
    with monkeypatch.context() as patch:
        patch.setattr(records, "_send", stops)
        with pytest.raises((TacitError, KeyboardInterrupt)):
            records.upload(dataset, admin, lambda: given_)
    if how == "a record is wrong":
        assert sent == [], "all are looked at before the first is stored"
    if how == "the server goes":
        assert records.counts(dataset)["records"] > 1
        after = Records(services.storage, services.settings)  # as at the next start
        assert after.counts(dataset)["records"] == 1
        after.close()
    records.tallies.dropped([dataset])
    assert records.counts(dataset)["records"] == 1
    with services.storage.read() as session:
        facts = [fact.name for fact in session.query(Fact)]
    assert not [name for name in facts if name.startswith("upload:")]


def parquet(rows: list[dict[str, Any]]) -> bytes:
    out = BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out)
    return out.getvalue()


ROWS = [{"user": f"user {n % 3}", "text": f"text {n}"} for n in range(600)]
LINES = "".join(f'{{"user": "{r["user"]}", "text": "{r["text"]}"}}\n' for r in ROWS).encode()


@pytest.fixture
def upload(lite: Services) -> Any:
    dataset, admin = filled(lite)
    secret = lite.identity.add_token(admin.account)["token"]
    head = {"Authorization": f"Bearer {secret}"}
    client = TestClient(make_app(lite), headers=head)

    def send(name: str, content: bytes) -> Any:
        path = f"/v1/datasets/{dataset}/records/file"
        return client.post(path, files={"file": (name, content)})

    return send


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.parquet", parquet(ROWS)), ("A.JSONL.GZ", gzip.compress(LINES)), ("a.jsonl", LINES)],
)
def test_files_of_many_kinds_are_taken(upload: Any, name: str, content: bytes) -> None:
    assert upload(name, content).json() == {"records": 600, "repeated": 0}


def test_files_that_are_damaged_or_too_large_are_one_sentence(upload: Any, lite: Services) -> None:
    rng, whole = random.Random(7), parquet(ROWS)
    mutated = bytearray(whole)
    for _ in range(20):
        mutated[rng.randrange(len(mutated))] ^= 1 << rng.randrange(8)
    for content in (whole[: len(whole) // 2], bytes(mutated)):
        answer = upload("a.parquet", content)
        assert answer.status_code == 422, answer.text
        assert str(lite.settings.folder) not in answer.text
    lite.settings.__dict__["unpacked_bytes"] = 1 << 20
    many = gzip.compress((b'{"user": "ann", "text": "' + b"x " * 500 + b'"}\n') * 2000)
    assert upload("a.jsonl.gz", many).status_code == 413
    lite.settings.__dict__["upload_records"] = 100
    assert upload("a.jsonl", LINES).status_code == 413


def test_a_dry_run_looks_for_entities_once(lite: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a record comes or goes."""
    dataset, admin = filled(lite)
    lite.records.append(dataset, admin, [Draft("ask ann@example.org", "ann")]).result(30)
    done: list[int] = []
    monkeypatch.setattr(plans, "detect", lambda *a: (done.append(1), detect(*a))[1])

    def dry() -> int:
        plan = {"protect": "users+entities", "epsilon": 8, "steps": 3, "user_rate": 1.0,
                "records_per_entity": 2}  # fmt: skip
        asked = RunRequest(plan=plan, detectors=("patterns",))
        return int(lite.plans.dry_run(dataset, asked)["not_private"]["records"])

    assert [dry(), dry(), len(done)] == [1, 1, 1]
    lite.records.append(dataset, admin, [Draft("ask bob@example.org", "bob")]).result(30)
    assert [dry(), len(done)] == [2, 2]


def test_uploads_are_taken_in_turn_where_they_are_the_same(lite: Services) -> None:
    dataset, admin = filled(lite)
    start, found = threading.Barrier(3), []

    def send() -> None:
        start.wait()
        found.append(lite.records.upload(dataset, admin, drafts, "k").repeated)

    threads = [threading.Thread(target=send) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == [0, MANY, MANY]
    assert lite.records.counts(dataset)["records"] == MANY


def test_too_many_records_are_refused_before_any_is_stored(lite: Services) -> None:
    dataset, admin = filled(lite)
    lite.settings.__dict__["upload_records"] = MANY - 1
    with pytest.raises(TooLarge):
        lite.records.upload(dataset, admin, drafts)
    assert lite.records.counts(dataset)["records"] == 0
    with pytest.raises(DataError):
        lite.records.upload(dataset, admin, lambda: [Draft("", "ann")])
