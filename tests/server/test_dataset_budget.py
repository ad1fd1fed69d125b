"""The budget: never exceeded, whoever starts what at the same moment, and never given back."""

import contextlib
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from support.people import somebody
from tacit.corpora import customersim
from tacit.errors import OverBudget, PrivacyRefused, UsageError
from tacit.privacy.accounting.pricing import price
from tacit.privacy.events import (
    Flat,
    MentionSubstitution,
    NotPrivate,
    SampledGaussian,
    UserClip,
)
from tacit.privacy.ledger import Ledger, Releases
from tacit.server.budget import PlannedCharge
from tacit.server.identity import Caller
from tacit.server.records import Draft
from tacit.server.run_requests import RunRequest
from tacit.server.services import Services
from tacit.server.storage import Job, new_id

USERS = SampledGaussian(unit="users", rate=1.0, noise_multiplier=40.0)
RECORDS = SampledGaussian(unit="records", rate=1.0, noise_multiplier=40.0)
BOTH = UserClip(user_rate=0.1, users_per_entity=2, entity_share=0.5, noise_multiplier=2.0)


class Starting:
    """Runs that are reserved and never really started."""

    def __init__(self, services: Services, **limits: float) -> None:
        self.services = services
        self.admin: Caller = somebody(services, "admin")
        named = {name.replace("_and_", "+"): value for name, value in limits.items()}
        made = services.datasets.add("diary", self.admin, limits=named or None)
        self.dataset: str = made["id"]

    def reserve(
        self,
        releases: Releases,
        unproved: str | None = None,
        job: str | None = None,
        entities: str | None = None,
    ) -> str:
        name = job or new_id()

        def add(session: Session) -> None:
            if job is None:
                session.add(
                    Job(id=name, kind="train", dataset_id=self.dataset,
                        request={"entities": entities}, state="held",
                        unproved=unproved is not None, created_by=self.admin.account)
                )  # fmt: skip

        charge = PlannedCharge(releases, unproved, entities)
        self.services.budgets.reserve(self.dataset, name, charge, also=add)
        return name

    def settle(self, job: str, folder: Path, releases: Releases) -> None:
        with Ledger(folder / job / "ledger.jsonl", {}) as ledger:
            for event, count in releases.items():
                for _ in range(count):
                    ledger.charge(event)
        self.services.budgets.settle(job, folder / job / "ledger.jsonl", {})

    def status(self) -> dict[str, Any]:
        return self.services.budgets.status(self.dataset)


def most(limit: float, delta: float = 1e-5, each: int = 30) -> int:
    """How many runs of so many steps fit, by pricing them together."""
    count = 0
    while price({USERS: each * (count + 1)}, "users", delta, lower=False).epsilon <= limit:
        count += 1
    return count


def test_runs_are_priced_together_and_not_added_up(services: Services) -> None:
    starting = Starting(services, users=1.05)
    alone = price({USERS: 30}, "users", 1e-5).epsilon
    fit = most(1.05)
    assert fit > 1.05 / alone, "the test needs a budget where composing pays"
    for _ in range(fit):
        starting.reserve({USERS: 30})
    with pytest.raises(OverBudget, match="nothing was started"):
        starting.reserve({USERS: 30})
    found = starting.status()
    assert found["spent"]["users"] == pytest.approx(
        price({USERS: 30 * fit}, "users", 1e-5).epsilon, rel=1e-9
    )
    assert found["spent"]["users"] <= 1.05
    assert len(found["runs"]) == fit


def test_threads_that_start_at_one_moment(services: Services) -> None:
    starting, fit = Starting(services, users=1.05), most(1.05)
    start = threading.Barrier(2 * fit)

    def one(_: int) -> bool:
        start.wait()
        try:
            starting.reserve({USERS: 30})
            return True
        except OverBudget:
            return False

    with ThreadPoolExecutor(2 * fit) as pool:
        assert sum(pool.map(one, range(2 * fit))) == fit


def test_processes_that_start_at_one_moment(services: Services, tmp_path: Path) -> None:
    starting, fit, go = Starting(services, users=0.9), most(0.9), tmp_path / "go"
    assert fit < 8
    database = "" if services.storage.sqlite else services.settings.address
    script = Path(__file__).parent.parent / "support" / "reserving.py"
    words = [services.settings.folder, database, starting.dataset, starting.admin.account, go]
    child = subprocess.Popen(
        [sys.executable, script, *map(str, words)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    go.touch()
    passed = 0
    for _ in range(4):
        with contextlib.suppress(OverBudget):
            starting.reserve({USERS: 30})
            passed += 1
    theirs = json.loads(child.communicate(timeout=60)[0])
    assert passed + theirs == fit, (passed, theirs)
    assert starting.status()["spent"]["users"] <= 0.9


def test_what_was_released_stays_charged_and_the_rest_is_free_again(
    services: Services, tmp_path: Path
) -> None:
    starting = Starting(services, users=0.9)
    job = starting.reserve({USERS: 30 * most(0.9)})
    with pytest.raises(OverBudget):
        starting.reserve({USERS: 30})
    starting.settle(job, tmp_path, {USERS: 7})
    found = starting.status()
    assert found["spent"]["users"] == pytest.approx(price({USERS: 7}, "users", 1e-5).epsilon)
    assert [h["what"] for h in found["history"]] == ["reserved", "settled"]
    starting.reserve({USERS: 30})


def test_a_run_that_goes_on_is_charged_for_all_of_it_once(
    services: Services, tmp_path: Path
) -> None:
    starting = Starting(services, users=0.9)
    whole = 30 * most(0.9)
    job = starting.reserve({USERS: whole})
    starting.settle(job, tmp_path, {USERS: whole - 5})
    starting.reserve({USERS: whole}, job=job)
    with pytest.raises(OverBudget):
        starting.reserve({USERS: whole + 60}, job=job)
    assert starting.status()["spent"]["users"] <= 0.9


@pytest.mark.parametrize("how", ["damaged", "shortened"])
def test_a_ledger_that_cannot_be_trusted_frees_nothing(
    lite: Services, tmp_path: Path, how: str
) -> None:
    starting = Starting(lite, users=0.9)
    job = starting.reserve({USERS: 30})
    with lite.storage.write() as session:
        row = session.get(Job, job)
        assert row is not None
        row.released = 9
    if how == "damaged":
        (tmp_path / job).mkdir()
        (tmp_path / job / "ledger.jsonl").write_text("nothing\n")
        lite.budgets.settle(job, tmp_path / job / "ledger.jsonl", {})
    else:
        starting.settle(job, tmp_path, {USERS: 8})
    found = starting.status()
    assert found["runs"][0]["releases"] == 30
    assert "stays charged" in found["history"][-1]["note"]


@pytest.mark.parametrize("releases", [{RECORDS: 5}, {NotPrivate(what="x"): 1}])
def test_what_has_no_bound_for_the_unit_does_not_fit(lite: Services, releases: Releases) -> None:
    starting = Starting(lite, users=1000)
    with pytest.raises(OverBudget, match="has no bound for users"):
        starting.reserve(releases)


def test_every_limit_counts(lite: Services) -> None:
    costs = {
        unit: price({BOTH: 20}, unit, 1e-5).epsilon
        for unit in ("users", "entities", "users+entities")
    }
    starting = Starting(lite, users=costs["users"] * 1.1, users_and_entities=costs["entities"])
    assert costs["users+entities"] > costs["entities"]
    with pytest.raises(OverBudget, match=r"for users\+entities"):
        starting.reserve({BOTH: 20})
    flat = Flat(record_rate=0.01, records_per_user=1, records_per_entity=1, noise_multiplier=9)
    starting.reserve({flat: 1})


def test_without_a_proved_promise_a_run_needs_an_admins_leave(services: Services) -> None:
    starting = Starting(services, users=0.9)
    nothing: Releases = {NotPrivate(what="training by method plain"): 1}
    with pytest.raises(PrivacyRefused, match="An admin may allow"):
        starting.reserve(nothing, "Method plain has no proved promise.")
    services.datasets.change(starting.dataset, unproved_allowed=True)
    job = starting.reserve(nothing, "Method plain has no proved promise.")
    found = starting.status()
    assert found["unbounded_runs"] == [job]
    assert found["spent"] == {"users": 0.0}, "it stands beside the sum, by name"
    starting.reserve({USERS: 30})


def test_a_budget_that_is_lowered_holds_for_the_next_run(lite: Services) -> None:
    starting = Starting(lite, users=1.05)
    starting.reserve({USERS: 30})
    lite.datasets.change(starting.dataset, limits={"users": 0.3})
    with pytest.raises(OverBudget):
        starting.reserve({USERS: 1})
    assert starting.status()["remaining"]["users"] == 0


def test_a_dataset_without_a_budget_still_keeps_its_books(lite: Services) -> None:
    starting = Starting(lite)
    starting.reserve({RECORDS: 5})
    found = starting.status()
    assert found["limits"] is None
    assert found["runs"][0]["releases"] == 5


@pytest.mark.parametrize("limits", [{}, {"people": 1.0}, {"users": 0.0}, {"users": float("nan")}])
def test_a_budget_that_cannot_be_is_refused(lite: Services, limits: dict[str, float]) -> None:
    admin = somebody(lite, "admin")
    with pytest.raises(UsageError):
        lite.datasets.add("diary", admin, limits=limits)


def test_a_budget_about_entities_is_about_the_same_ones(services: Services) -> None:
    """What a run released of entities that it did not protect has no price."""
    starting = Starting(services, users_and_entities=8.0)
    first = starting.reserve({BOTH: 5}, entities='[["PII"], null, "patterns"]')
    starting.reserve({BOTH: 5}, entities='[["PII"], null, "patterns"]')
    starting.reserve({BOTH: 6}, job=first, entities='[["PII"], null, "patterns"]')
    for other in ('["all", null, "patterns"]', '[["PII"], "list", "patterns"]'):
        with pytest.raises(PrivacyRefused, match="Protect the same ones"):
            starting.reserve({BOTH: 5}, entities=other)


NAMES = MentionSubstitution(
    user_rate=0.1, users_per_name=2, names_per_user=4, name_share=0.0, noise_multiplier=2.0
)


def test_a_budget_about_names_counts_runs_that_replace_the_same_names(services: Services) -> None:
    starting = Starting(services, users_and_names=8.0)
    same = '["all", null, "patterns,lists,names", "names", []]'
    starting.reserve({NAMES: 5}, entities=same)
    starting.reserve({NAMES: 5}, entities=same)
    spent = starting.status()["spent"]["users+names"]
    assert spent == pytest.approx(price({NAMES: 10}, "users", 1e-5, lower=False).epsilon)
    with pytest.raises(PrivacyRefused, match="Protect the same ones"):
        starting.reserve({NAMES: 5}, entities='["all", null, "patterns", "names", []]')
    with pytest.raises(OverBudget, match=r"has no bound for users\+names"):
        starting.reserve({USERS: 1})  # names were learnt as they stand
    assert starting.status()["spent"]["users+names"] == spent


def test_a_dry_run_about_names_keeps_every_record_and_says_the_promise(services: Services) -> None:
    starting = Starting(services, users_and_names=8.0)
    corpus = customersim.generate(12, 5, 6)
    drafts = [Draft(text=r.text, user=str(r.user)) for r in corpus.records()]
    services.records.append(starting.dataset, starting.admin, drafts).result(20)
    plan = {"protect": "users+names", "epsilon": 8, "steps": 5, "user_rate": 0.5, "users": 10,
            "public_entities": ["Acme & Sons, Ltd."]}  # fmt: skip
    asked = RunRequest(plan=plan)
    dry = services.plans.dry_run(starting.dataset, asked)
    assert dry["fits_budget"], dry["refused"]
    assert dry["epsilon"]["names"] == 0
    assert dry["epsilon"]["users"] == dry["epsilon"]["users+names"]
    assert dry["not_private"]["dropped"] == 0
    assert "which name stood where" in dry["protected"][0]
    assert "Acme & Sons, Ltd." in dry["explained"]
    assert "detect: patterns,lists,names" in dry["run"]
    assert all(0 < e <= 8 for _, e in services.plans.path(starting.dataset, asked))
    with pytest.raises(UsageError, match="invented names"):
        services.plans.dry_run(
            starting.dataset, RunRequest(plan=plan | {"public_entities": ["ADAM abbott"]})
        )


def test_a_budget_about_users_asks_for_no_entities(services: Services) -> None:
    starting = Starting(services, users=8.0)
    starting.reserve({BOTH: 5}, entities='[["PII"], null, "patterns"]')
    starting.reserve({BOTH: 5}, entities='["all", null, "patterns"]')
