"""Run as a process: reserve as often as told, as soon as a file appears; print what came of it."""

import json
import sys
import time
from pathlib import Path

from tacit.errors import OverBudget
from tacit.privacy.events import SampledGaussian
from tacit.server.budget import Budgets, PlannedCharge
from tacit.server.settings import ServerSettings
from tacit.server.storage import Job, Storage


def main(folder: str, database: str, dataset: str, account: str, go: str) -> None:
    storage = Storage(ServerSettings(folder=Path(folder), database=database or None))
    budgets = Budgets(storage)
    event = SampledGaussian(unit="users", rate=1.0, noise_multiplier=40.0)
    budgets.would_refuse(
        dataset, PlannedCharge({event: 1})
    )  # everything is loaded before the start
    print("ready", flush=True)
    while not Path(go).exists():
        time.sleep(0.001)
    passed = 0
    for number in range(4):
        job = f"child{number}"

        def add(session, job=job) -> None:
            session.add(
                Job(id=job, kind="train", dataset_id=dataset, request={}, state="held",
                    created_by=account)
            )  # fmt: skip

        try:
            budgets.reserve(dataset, job, PlannedCharge({event: 30}), also=add)
            passed += 1
        except OverBudget:
            pass
    print(json.dumps(passed))


if __name__ == "__main__":
    main(*sys.argv[1:])
