"""What lies in ledgers on disk and what the database has charged, when a server starts."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from support.people import somebody
from tacit.errors import PrivacyRefused
from tacit.privacy.accounting.pricing import price
from tacit.privacy.events import SampledGaussian
from tacit.privacy.ledger import Ledger
from tacit.server.budget import PlannedCharge
from tacit.server.reconciliation import describe_job
from tacit.server.services import Services
from tacit.server.settings import ServerSettings
from tacit.server.storage import Charge, Job, new_id

USERS = SampledGaussian(unit="users", rate=1.0, noise_multiplier=40.0)


class Ran:
    """A server on which a run was reserved and settled, before a backup of the database."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.services = Services.open(settings)
        self.admin = somebody(self.services, "admin")
        datasets = self.services.datasets
        self.dataset = datasets.add("diary", self.admin, limits={"users": 2.0})["id"]
        self.other = datasets.add("letters", self.admin, limits={"users": 2.0})["id"]
        self.job = self.reserve(self.dataset)

    def reserve(self, dataset: str) -> str:
        job = Job(id=new_id(), kind="train", dataset_id=dataset, request={"method": "dp-sgd"},
                  state="failed", unproved=False, created_by=self.admin.account)  # fmt: skip
        charge = PlannedCharge({USERS: 5})
        self.services.budgets.reserve(dataset, job.id, charge, also=lambda s: s.add(job))
        return job.id

    @property
    def run(self) -> Path:
        return self.settings.job_folder(self.job) / "run"

    def release(self, count: int) -> None:
        """What the run released, whether or not the database heard of it."""
        self.run.mkdir(parents=True, exist_ok=True)
        (self.run / "ledger.jsonl").unlink(missing_ok=True)
        with Ledger(self.run / "ledger.jsonl", {}) as ledger:
            for _ in range(count):
                ledger.charge(USERS)

    def forget(self) -> None:
        """As a database that was restored to before the run."""
        with self.services.storage.write() as session:
            session.execute(sa.delete(Charge))
            session.execute(sa.delete(Job))

    def restart(self) -> None:
        self.services.close()
        self.services = Services.open(self.settings)

    def spent(self) -> float:
        return float(self.services.budgets.status(self.dataset)["spent"]["users"])


@pytest.fixture
def ran(settings: ServerSettings):
    made = Ran(settings)
    yield made
    made.services.close()


def cost(count: int) -> float:
    return price({USERS: count}, "users", 1e-5).epsilon


def test_a_charge_that_is_missing_is_written_back(ran: Ran) -> None:
    ran.release(20)
    assert ran.spent() == pytest.approx(cost(5))
    ran.restart()
    assert ran.spent() == pytest.approx(cost(20))
    ran.restart()
    history = ran.services.budgets.status(ran.dataset)["history"]
    assert [h["what"] for h in history] == ["reserved", "settled"], "written back once"


def test_what_is_charged_for_more_than_was_found_stays_charged(ran: Ran) -> None:
    ran.release(3)
    ran.restart()
    assert ran.spent() == pytest.approx(cost(5))


def test_a_run_that_the_database_forgot_is_charged_by_its_folder(ran: Ran) -> None:
    ran.release(20)
    with ran.services.storage.read() as session:
        describe_job(ran.settings.job_folder(ran.job), session.get_one(Job, ran.job))
    ran.forget()
    ran.restart()
    assert ran.spent() == pytest.approx(cost(20))
    assert ran.services.jobs.get(ran.job)["state"] == "failed"
    assert ran.services.datasets.get(ran.dataset)["frozen"] == ""


@pytest.mark.parametrize("how", ["no word of its dataset", "unreadable"])
def test_what_cannot_be_known_freezes_until_an_admin_looks(ran: Ran, how: str) -> None:
    ran.release(20)
    ledger = ran.run / "ledger.jsonl"
    if how == "unreadable":
        ledger.write_bytes(ledger.read_bytes().replace(b"40.0", b"90.0", 1))
    else:
        ran.forget()
    ran.restart()
    # Where nobody knows which one it is about, it may be any.
    frozen = [ran.dataset] if how == "unreadable" else [ran.dataset, ran.other]
    for dataset in frozen:
        with pytest.raises(PrivacyRefused, match="frozen"):
            ran.reserve(dataset)
    if how == "unreadable":
        assert ran.reserve(ran.other)
    for dataset in frozen:
        assert ran.services.thaw(dataset)["frozen"] == ""
        assert ran.reserve(dataset)
    ran.restart()
    assert ran.reserve(ran.dataset), "it was looked at"
    with ledger.open("ab") as file:
        file.write(ledger.read_bytes().splitlines(keepends=True)[-1])
    ran.restart()
    with pytest.raises(PrivacyRefused, match="frozen"):
        ran.reserve(ran.dataset)
