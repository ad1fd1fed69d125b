"""A server in one file, taken while it works; and what deletion leaves on the disk."""

import json
import threading
import zipfile
from pathlib import Path

import pytest
import sqlalchemy as sa

from support.driving import SECRET
from support.people import everybody
from tacit.cli import run
from tacit.errors import DataError, PrivacyRefused
from tacit.privacy.events import SampledGaussian
from tacit.privacy.ledger import Ledger
from tacit.server.backup import back_up, restore
from tacit.server.budget import PlannedCharge
from tacit.server.records import Draft
from tacit.server.services import Services
from tacit.server.settings import ServerSettings
from tacit.server.storage import Job, new_id

USERS = SampledGaussian(unit="users", rate=1.0, noise_multiplier=40.0)


def with_a_run(services: Services) -> tuple[str, str, str]:
    """A dataset with text and a run on it, and a token."""
    admin = services.identity.add_account("boss", "admin")
    token = services.identity.add_token(admin["id"])["token"]
    caller = services.identity.caller(token)
    dataset = services.datasets.add("diary", caller, limits={"users": 2.0})["id"]
    for number in range(3):
        draft = Draft(f"text {number}", "ann", extra={"tokens": ["text", str(number)]})
        services.records.append(dataset, caller, [draft], f"k{number}").result(30)
    job = Job(id=new_id(), kind="train", dataset_id=dataset, request={}, state="done",
              unproved=False, created_by=caller.account)  # fmt: skip
    services.budgets.reserve(dataset, job.id, PlannedCharge({USERS: 5}), also=lambda s: s.add(job))
    run = services.settings.job_folder(job.id) / "run"
    run.mkdir(parents=True)
    with Ledger(run / "ledger.jsonl", {}) as ledger:
        ledger.charge(USERS)
    (run / "model.safetensors").write_bytes(b"weights" * 1000)
    return dataset, job.id, token


def test_a_backup_of_a_running_server_is_a_server(
    services: Services, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Into an empty folder with an empty database, also of the other kind."""
    dataset, job, token = with_a_run(services)
    caller = services.identity.caller(token)
    stop = threading.Event()

    def go_on() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            draft = Draft(f"more {number}", "eve")
            services.records.append(dataset, caller, [draft]).result(30)

    busy = threading.Thread(target=go_on)
    busy.start()
    about = back_up(services.settings, tmp_path / "b.zip")
    stop.set()
    busy.join()
    assert (tmp_path / "b.zip").stat().st_mode & 0o077 == 0, "it holds everybody's text"
    kinds = ["sqlite"] if not services.storage.sqlite else ["sqlite", "postgresql"]
    for kind in kinds:
        database = None
        if kind == "postgresql":
            database = request.getfixturevalue("postgres")()
        new = ServerSettings(folder=tmp_path / f"new {kind}", database=database)
        assert restore(new, tmp_path / "b.zip")["rows"] == about["rows"]
        opened = Services.open(new)
        try:
            _is_the_same(opened, about["rows"]["records"], dataset, job, token)
        finally:
            opened.close()


def _is_the_same(opened: Services, records: int, dataset: str, job: str, token: str) -> None:
    caller = opened.identity.caller(token)
    assert opened.records.counts(dataset)["records"] == records >= 3
    (row, *_) = opened.records.page(dataset, owner=None, user="ann")
    assert row["tokens"][0] == "text"
    run = opened.settings.job_folder(job) / "run"
    assert (run / "model.safetensors").read_bytes() == b"weights" * 1000
    assert opened.budgets.status(dataset)["spent"]["users"] > 0
    # The key of a record is the same, and so is its name: a late retry stores nothing twice.
    again = opened.records.append(dataset, caller, [Draft("text 0", "ann")], "k0").result(30)
    assert again.repeated == 1
    with pytest.raises(PrivacyRefused, match="restored from a backup"):
        opened.budgets.reserve(dataset, job, PlannedCharge({USERS: 5}))
    opened.thaw(dataset)
    opened.budgets.reserve(dataset, job, PlannedCharge({USERS: 5}))
    opened.note(caller, "look", dataset)  # rows are numbered on, not anew


def test_the_commands_and_their_refusals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    services = Services.open(ServerSettings(folder=old))
    dataset, *_ = with_a_run(services)
    file, words = str(tmp_path / "b.zip"), ["--folder", str(new), "--json"]
    assert run(["serve", "backup", file, "--folder", str(old), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"]["records"] == 3
    assert run(["serve", "backup", file, "--folder", str(old)]) == 2
    assert run(["serve", "backup", str(tmp_path / "c.zip"), "--folder", str(tmp_path)]) == 2
    services.close()
    assert run(["serve", "restore", file, *words, "--nothing-spent-since"]) == 0
    opened = Services.open(ServerSettings(folder=new))
    assert opened.datasets.get(dataset)["frozen"] == ""
    opened.close()
    assert run(["serve", "restore", file, *words]) == 2
    assert "is not empty" in capsys.readouterr().err


@pytest.mark.parametrize("how", ["cut off", "changed", "no backup", "a newer schema", "leads out"])
def test_a_backup_that_is_not_whole_is_refused(lite: Services, tmp_path: Path, how: str) -> None:
    with_a_run(lite)
    file, bad = tmp_path / "b.zip", tmp_path / "bad.zip"
    back_up(lite.settings, file)
    content = file.read_bytes()
    if how in ("cut off", "changed", "no backup"):
        place = content.index(b"weights")
        bad.write_bytes(
            {"cut off": content[: len(content) // 2], "no backup": b"PK nothing",
             "changed": content[:place] + b"W" + content[place + 1 :]}[how]
        )  # fmt: skip
    else:
        with zipfile.ZipFile(file) as old, zipfile.ZipFile(bad, "w") as made:
            for name in old.namelist():
                part = old.read(name)
                if how == "a newer schema" and name == "backup.json":
                    part = json.dumps(json.loads(part) | {"schema": "9999"}).encode()
                leads_out = how == "leads out" and name == "files/identity"
                made.writestr("files/../../out" if leads_out else name, part)
    new = ServerSettings(folder=tmp_path / "new")
    with pytest.raises(DataError):
        restore(new, bad)
    assert not (tmp_path / "out").exists()


def test_what_was_deleted_leaves_the_disk(
    settings: ServerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = Services.open(settings)
    people = everybody(services)
    dataset = services.datasets.add("diary", people["admin"], limits={"users": 1})["id"]
    ann = people["contributor"]
    texts = [f"{SECRET} {number} " + "and so on " * 30 for number in range(40)]
    services.records.append(dataset, ann, [Draft(text) for text in texts]).result(30)
    services.records.append(dataset, people["admin"], [Draft("stays", "bob")]).result(30)
    names = services.datasets.add_list(dataset, "names", [SECRET], ann)
    assert _on_disk(services) > 0
    services.delete_list(dataset, names["id"])
    assert services.forget(dataset, ann)["deleted"] == 40
    if services.storage.sqlite:
        assert _on_disk(services) == 0, "at once"
    services.close()
    services = Services.open(settings)  # tables are written anew
    assert _on_disk(services) == 0
    assert services.records.counts(dataset)["records"] == 1
    services.close()


def _on_disk(services: Services) -> int:
    """How often the secret stands in the files of the database."""
    if services.storage.sqlite:
        paths = list(services.settings.folder.glob("tacit.db*"))
    else:
        with services.storage._reader.connect() as connection:
            free = connection.execution_options(isolation_level="AUTOCOMMIT")
            free.execute(sa.text("CHECKPOINT"))
            folder = Path(str(free.scalar(sa.text("SHOW data_directory"))))
            names = ("records", "entity_lists")
            paths = [
                folder / str(free.scalar(sa.text(f"SELECT pg_relation_filepath('{name}')")))
                for name in names
            ]
    return sum(path.read_bytes().count(SECRET.encode()) for path in paths)
