"""How long counts, descriptions and dry runs take over many records.

    python tools/bench_growth.py --records 130000 --entities
    python tools/bench_growth.py --records 1000000

A SQLite database is filled with records of 160 characters, each of which names an address, written
by a twentieth as many users. Times by the clock and of the process's own CPU.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tacit.server.records import Draft
from tacit.server.run_requests import RunRequest
from tacit.server.services import Services
from tacit.server.settings import ServerSettings
from tacit.server.storage import StoredRecord, now

TEXT = "We met at noon, ask ann{}@example.org about the weather, the train and the garden. " * 2
PART = 20_000


def fill(services: Services, dataset: str, owner: str, records: int) -> None:
    """Write the records straight into the database."""
    for first in range(0, records, PART):
        rows = [
            {"id": f"{n:030x}", "dataset_id": dataset, "owner_id": owner, "created": now(),
             "user": f"u{n % (records // 20)}", "text": TEXT.format(n % 5000, n % 5000)}
            for n in range(first, min(first + PART, records))
        ]  # fmt: skip
        with services.storage.write() as session:
            session.execute(sa.insert(StoredRecord), rows)


def timed(what: str, do: Callable[[], Any]) -> None:
    """Do it, and say how long it took."""
    clock, own = time.perf_counter(), time.process_time()
    do()
    clock, own = time.perf_counter() - clock, time.process_time() - own
    print(f"{what}: {clock:.2f} s, {own:.2f} s of CPU", flush=True)


def main() -> None:
    words = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    words.add_argument("--records", type=int, default=130_000)
    words.add_argument("--entities", action="store_true")
    given = words.parse_args()
    with tempfile.TemporaryDirectory() as place:
        services = Services.open(ServerSettings(folder=Path(place) / "server"))
        caller = services.identity.caller(str(services.identity.first_admin()))
        limits = {"users": 8.0, "users+entities": 16.0}
        dataset = services.datasets.add("many", caller, limits=limits)["id"]
        fill(services, dataset, caller.account, given.records)
        services.records.tallies.dropped([dataset])
        print(f"{given.records:,} records")
        timed("counts, after a start", lambda: services.records.counts(dataset))
        timed("description", lambda: services.describe(dataset))
        draft = [Draft("one more", "u1")]
        services.records.append(dataset, caller, draft).result()
        timed("description, after an append", lambda: services.describe(dataset))
        plan = {"protect": "users", "epsilon": 3, "steps": 100, "user_rate": 0.05,
                "users": given.records // 40}  # fmt: skip
        services.plans.dry_run(dataset, RunRequest(plan=plan))  # loads what prices
        other = RunRequest(plan=plan | {"epsilon": 2.5})
        timed("dry run about users", lambda: services.plans.dry_run(dataset, other))
        if given.entities:
            for cap in (4, 5):
                both = {"protect": "both", "epsilon": 3, "steps": 100, "user_rate": 0.05,
                        "records_per_entity": cap}  # fmt: skip
                asked = RunRequest(plan=both, detectors=("patterns", "lists"))
                what = "dry run about entities" + (", again with another cap" if cap == 5 else "")
                timed(what, lambda asked=asked: services.plans.dry_run(dataset, asked))  # type: ignore[misc]
        services.close()


if __name__ == "__main__":
    main()
