"""The dry run: what a request would promise, keep, drop, cost and take, before anything starts."""

import json
import math
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tacit.detection import detect
from tacit.detection.provenance import Provenance
from tacit.owners import Owners
from tacit.planning.dry_run import apply_caps, explain, meant
from tacit.planning.forecasts import forecast
from tacit.planning.plan import Plan, calibrated, prices, require_trainable
from tacit.privacy.accounting.pricing import adversary_gain, best_accuracy, curve_over_steps, price
from tacit.privacy.certificates.attacker_gain import Gained
from tacit.privacy.certificates.certificate import commitment, own_salt, read_certificate
from tacit.privacy.certificates.explanation import whom
from tacit.privacy.certificates.scope import EntityScope, Scope
from tacit.privacy.ledger import Releases, read_ledger
from tacit.server import Json
from tacit.server.budget import Budgets, PlannedCharge
from tacit.server.datasets import Datasets
from tacit.server.errors import Conflict, NotFound
from tacit.server.records import Records
from tacit.server.run_requests import (
    RunRequest,
    entities_of,
    planned_releases,
    settings_of,
    unproved_reason,
)
from tacit.server.settings import ServerSettings
from tacit.server.sharing import gain_words
from tacit.server.storage import Job, Storage
from tacit.server.throughput import records_per_second
from tacit.training.data.protected_entities import list_digest, select_entities
from tacit.training.data.scope import entity_scope, scope_of_kinds
from tacit.training.methods import METHODS
from tacit.training.settings import Run, run_yaml

_KEPT = 4
_PARTS = (0.1, 0.3, 0.6, 1.0)
"""Of the steps, where epsilon's path is computed: it bends little in between."""


@dataclass(frozen=True)
class Prepared:
    """A request with its noise found."""

    run: Run
    plan: Plan | None
    charge: PlannedCharge
    earlier: Releases


@dataclass(frozen=True)
class _Shared:
    """Who shares which of the entities that a plan protects."""

    owners: Owners
    provenance: Provenance
    kinds: frozenset[str]
    listed: str | None
    """The digest of the list of entities, if there is one."""


@dataclass(frozen=True)
class Plans:
    """Dry runs on the datasets of a server."""

    storage: Storage
    settings: ServerSettings
    datasets: Datasets
    records: Records
    budgets: Budgets
    _found: dict[tuple[str, int, str, str], _Shared] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def prepare(self, dataset: str, asked: RunRequest) -> Prepared:
        """The run of a request, with the least noise that meets its targets."""
        folder: Path | None = None
        earlier: Releases = {}
        standing = "proved"
        if asked.continue_from is not None:
            folder = self.model_folder(asked.continue_from)
            earlier = read_ledger(folder / "ledger.jsonl").releases()
            standing = read_certificate(folder / "certificate.json").standing
        if asked.public_start is not None:
            self._require_public(asked.public_start.dataset)
        if asked.entity_list is not None and asked.entity_list not in {
            one["id"] for one in self.datasets.lists(dataset)
        }:
            raise NotFound("There is no such list of entities.")
        run = settings_of(asked, folder)
        plan = run.made_plan()
        if plan is not None:
            require_trainable(plan)
            plan = calibrated(plan, also=earlier)
            fields = run.plan | {"noise_multiplier": plan.noise_multiplier}
            if plan.selection_noise is not None:
                fields["selection_noise"] = plan.selection_noise
            run = Run(**run.model_dump(mode="json", exclude_defaults=True) | {"plan": fields})
        unproved = unproved_reason(run)
        if unproved is None and standing != "proved":
            unproved = (
                f"The model that it continues has the standing {standing}, which it inherits."
            )
        entities = entities_of(run, asked.entity_list)
        charge = PlannedCharge(planned_releases(run, plan), unproved, entities)
        return Prepared(run, plan, charge, earlier)

    def model_folder(self, model: str) -> Path:
        """The folder of a finished run."""
        job = self.storage.get(Job, model)
        folder = self.settings.job_folder(model) / "run"
        gone = job is None or job.kind != "train" or job.state == "deleted"
        if gone or not (folder / "certificate.json").exists():
            raise NotFound("There is no such model.")
        return folder

    def _require_public(self, dataset: str) -> None:
        found = self.datasets.get(dataset)
        if not found["public"]:
            raise Conflict(
                f"Dataset {found['name']!r} is not public, so nothing may be learned from it "
                "without a promise; give a public one."
            )

    def dry_run(self, dataset: str, asked: RunRequest) -> Json:
        """What the request would do; counts in it are exact, so for those inside."""
        self.datasets.require(dataset)
        ready = self.prepare(dataset, asked)
        refused = self.budgets.would_refuse(dataset, ready.charge)
        unproved = ready.charge.unproved
        result: Json = {
            "method": ready.run.method,
            "standing": METHODS[ready.run.method].standing if not unproved else "heuristic",
            "unproved": unproved,
            "fits_budget": refused is None,
            "refused": refused,
            "run": run_yaml(ready.run),
            "command": "tacit train run.yml -o RUN",
        }
        if ready.plan is None:
            return result | {"epsilon": None, "sentence": "Nothing is promised."}
        expected = forecast(ready.run.model_dump(mode="json", exclude_none=True))
        result |= {"forecast": None if expected is None else expected.as_json()}
        return result | self._promise(dataset, asked, ready, ready.plan)

    def path(self, dataset: str, asked: RunRequest) -> list[list[float]]:
        """Epsilon for what is protected after some of the steps, the last included."""
        self.datasets.require(dataset)
        plan = self.prepare(dataset, asked).plan
        if plan is None:
            return []
        points = sorted({1, *(math.ceil(plan.steps * part) for part in _PARTS)})
        curve = curve_over_steps(plan.event(), points, plan.protect, plan.delta, lower=False)
        return [[step, cost.epsilon] for step, cost in curve]

    def _promise(self, dataset: str, asked: RunRequest, ready: Prepared, plan: Plan) -> Json:
        costs = {unit: cost.as_json() for unit, cost in prices(plan).items()}
        counts = self.records.counts(dataset)
        kept, graph, bounded = counts["records"], None, None
        scope = meant(plan)
        if "entities" in plan.protect and plan.adjacency == "fixed-graph" and counts["records"]:
            graph, scope = self._owners(dataset, asked, plan, ready.run.detect or "")
            bounded = apply_caps(plan, graph)
            kept = bounded.records_kept
        touched = plan.steps * plan.sampling_rate * kept
        length = self.records.mean_length(dataset)
        speed, known_from = records_per_second(self.storage, ready.run, length)
        both = [*plan.releases().items(), *ready.earlier.items()]
        (caught,) = adversary_gain(both, plan.protect, plan.delta, (0.01,))
        total = {unit: price(both, unit, plan.delta).as_json()["epsilon"] for unit in costs}
        left = Gained(best_accuracy(both, plan.protect, plan.delta), caught.tpr, plan.protect)
        return {
            **({"epsilon_with_earlier": total} if ready.earlier else {}),
            "epsilon": {unit: cost["epsilon"] for unit, cost in costs.items()},
            "prices": costs,
            "delta": plan.delta,
            "noise_multiplier": plan.noise_multiplier,
            "steps": plan.steps,
            "gain": gain_words(left),
            "plan": yaml.safe_dump(plan.model_dump(mode="json", exclude_defaults=True)),
            "plan_digest": plan.digest(),
            "protected": [whom(plan.protect, Scope(entities=scope, policy=asked.policy))],
            "explained": explain(plan, graph, bounded, records_per_second=speed, entities=scope),
            "not_private": {
                **counts, "kept": kept, "dropped": counts["records"] - kept,
                "dropped_by": bounded.dropped_by if bounded is not None else {},
                "records_through_the_model": math.ceil(touched),
            },
            "seconds": touched / speed if speed else None,
            "seconds_note": known_from,
        }  # fmt: skip

    def _owners(
        self, dataset: str, asked: RunRequest, plan: Plan, using: str
    ) -> tuple[Owners, EntityScope]:
        """The graph of what is protected, and which entities that are.

        The last few are kept for as long as the records stay as they are: somebody moves a slider
        over one dataset.
        """
        chosen = json.dumps(
            [asked.entity_list, sorted(plan.kinds) if plan.kinds else None], allow_nan=False
        )
        key = (dataset, self.records.tallies.version(dataset), using, chosen)
        with self._lock:
            if key not in self._found:
                while len(self._found) >= _KEPT:
                    del self._found[next(iter(self._found))]
                self._found[key] = self._shared(dataset, asked, plan, using)
            found = self._found[key]
        digest = commitment(found.listed, own_salt()) if found.listed is not None else None
        scope = entity_scope(found.provenance, plan.kinds, digest, own_salt())
        return found.owners, scope_of_kinds(scope, found.provenance, set(found.kinds))

    def _shared(self, dataset: str, asked: RunRequest, plan: Plan, using: str) -> _Shared:
        corpus = self.records.corpus(dataset)
        found = detect(corpus, using)
        listed, digest = None, None
        with tempfile.TemporaryDirectory(dir=self.settings.folder) as place:
            if asked.entity_list is not None:
                listed = Path(place) / "entities.txt"
                self.datasets.write_list(dataset, asked.entity_list, listed)
                digest = list_digest(listed)
            protected = select_entities(plan.kinds, listed, found.mentions, found.entities)
        owners = protected.owners(corpus, found.mentions)
        return _Shared(owners, found.provenance, frozenset(m.kind for m in found.mentions), digest)
