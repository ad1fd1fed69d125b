"""One server on one database, whatever is copied, killed or taken over."""

import fcntl
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from support.people import everybody, somebody
from tacit.errors import UsageError
from tacit.privacy.events import SampledGaussian
from tacit.server import child_processes
from tacit.server.budget import PlannedCharge
from tacit.server.errors import LeaseLost
from tacit.server.lease import Lease
from tacit.server.records import Draft
from tacit.server.services import Services
from tacit.server.settings import ServerSettings
from tacit.server.storage import Fact, Storage

EVENT = SampledGaussian(unit="users", rate=1.0, noise_multiplier=40.0)


def taken_over(services: Services) -> None:
    """As if another server had got the lock: after a failover, on another machine."""
    other = Storage(services.settings)
    Lease(services.settings).guard(other)
    other.close()


def test_a_copied_folder_gets_no_second_server(services: Services, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(services.settings.folder, copy, ignore=shutil.ignore_patterns("*.lease"))
    # The very database, whichever way it is named.
    settings = replace(services.settings, folder=copy, database=services.settings.address,
                       lease_wait_seconds=0.0)  # fmt: skip
    with pytest.raises(UsageError, match="The database is in use by another server"):
        Services.open(settings)
    services.close()
    opened = Services.open(settings)
    opened.close()


def test_who_lost_the_database_writes_nothing_more(services: Services) -> None:
    people = everybody(services)
    dataset = services.datasets.add("diary", people["admin"], limits={"users": 8})["id"]
    taken_over(services)
    before = services.records.counts(dataset)["records"]
    sent = services.records.append(dataset, people["contributor"], [Draft("a text")])
    with pytest.raises(LeaseLost, match="Another server"):
        sent.result(30)
    with pytest.raises(LeaseLost):
        services.budgets.reserve(dataset, "job", PlannedCharge({EVENT: 1}))
    with pytest.raises(LeaseLost):
        services.jobs.order(dataset, people["analyst"], "detect", {})
    with pytest.raises(LeaseLost):
        services.lease.renew(services.storage)
    assert services.records.counts(dataset)["records"] == before
    assert services.budgets.status(dataset)["history"] == []


def test_what_the_server_before_had_started_is_killed(tmp_path: Path) -> None:
    """Else two processes would train from one reservation."""
    services = Services.open(ServerSettings(folder=tmp_path / "server", lease_seconds=0.02))
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with (tmp_path / child_processes.LOCK).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        services.jobs._children["a"] = child_processes.Child(tmp_path, process.pid, process)
        taken_over(services)
        assert process.wait(30) == -signal.SIGKILL
    services.close()


def test_a_lost_connection_is_made_again(services: Services) -> None:
    """A restart of PostgreSQL drops the lock; nobody else has taken it meanwhile."""
    if services.storage.sqlite:
        pytest.skip("the lock is on a file")
    with services.storage.write() as session:
        ended = sa.text(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' "
            "AND objid = 502807"
        )
        assert session.scalars(ended).all() == [True]
    services.lease.renew(services.storage)
    assert somebody(services, "admin")
    settings = replace(services.settings, lease_wait_seconds=0.0)
    with pytest.raises(UsageError, match="in use"):
        Lease(settings).take()


def test_each_server_has_a_number_above_the_last(settings: ServerSettings) -> None:
    numbers = []
    for _ in range(3):
        services = Services.open(settings)
        fact = services.storage.get(Fact, "lease")
        assert fact is not None
        numbers.append(int(fact.value))
        services.close()
    assert numbers == [1, 2, 3]
