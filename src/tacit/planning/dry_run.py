"""The dry run: find good caps on an owner graph, and say in prose what a plan promises."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.detection.kinds import kind_of, matches
from tacit.errors import PrivacyRefused, UsageError
from tacit.files import require_file
from tacit.owners import Owners
from tacit.owners.bounding import Bounded, bound
from tacit.planning.plan import Plan, calibrated, least_noise, prices, require_trainable
from tacit.privacy.accounting.pricing import adversary_gain, best_accuracy
from tacit.privacy.certificates.attacker_gain import CHOOSING, Gained, choosing
from tacit.privacy.certificates.explanation import rendered
from tacit.privacy.certificates.scope import DetectorFacts, EntityScope
from tacit.privacy.certificates.wording import assumptions, guarantee, not_covered
from tacit.privacy.events import Unit

ALIGNMENT = 0.1
"""How much a record's gradient points in the common direction (a cosine); a public guess."""


@dataclass(frozen=True)
class Candidate:
    """A plan with one setting of the caps, what it keeps, and how loud its noise is."""

    plan: Plan
    kept: int
    kept_sensitive: int
    noise_to_signal: float

    def as_json(self) -> dict[str, Any]:
        """The settings that were tried, and what was found."""
        found = {name: value for name, value in vars(self).items() if name != "plan"}
        return self.plan.model_dump(mode="json", include=_SEARCHED) | found


_SEARCHED = {
    "users_per_entity",
    "entity_share",
    "records_per_user_entity",
    "user_rate",
    "noise_multiplier",
}


def apply_caps(plan: Plan, owners: Owners) -> Bounded:
    """The records that the plan's caps keep; refused where they leave nothing to learn from."""
    bounded = bound(owners, **plan.caps, seed=plan.seed)
    kept_sensitive = int((bounded.kept & owners.sensitive).sum())
    if bounded.records_kept == 0:
        raise PrivacyRefused("The caps keep no record at all; raise them.")
    if "entities" in plan.protect and owners.sensitive.any() and kept_sensitive == 0:
        raise PrivacyRefused(
            "The caps drop every record that names an entity, so there is nothing to protect; "
            "raise users_per_entity or records_per_user_entity."
        )
    return bounded


def noise_to_signal(plan: Plan, owners: Owners, kept: NDArray[np.bool_]) -> float:
    """The noise of a step over its expected progress, in a simple model of gradients.

    The model: every record's gradient has the same norm, a cosine `ALIGNMENT` with the common
    direction, and is otherwise orthogonal to all others. It ranks settings; it predicts no
    perplexity, and it reads the graph only.
    """
    counts = np.bincount(owners.record_user[kept], minlength=len(owners.users)).astype(float)
    counts = counts[counts > 0]
    along = counts * ALIGNMENT
    norm = np.sqrt(along**2 + counts * (1 - ALIGNMENT**2))
    clip = plan.clip_norm
    if plan.mechanism == "flat" or plan.protect in ("records", "tokens"):
        signal = counts.sum() * ALIGNMENT * clip
    elif plan.record_clip is None:
        signal = float((clip * along / norm).sum())
    else:
        shrink = np.minimum(1.0, clip / (plan.record_clip * norm))
        signal = float((plan.record_clip * along * shrink).sum())
    noise = float(plan.noise_multiplier or 0) * clip
    return noise / (plan.sampling_rate * signal) if signal > 0 else float("inf")


def _require_searchable(plan: Plan) -> None:
    if plan.mechanism != "userclip":
        raise UsageError(
            f"Only userclip has caps to search; this plan is protect={plan.protect}, "
            f"mechanism={plan.mechanism}."
        )
    if plan.adjacency == "by-degree":
        raise PrivacyRefused(
            "A search reads the owner graph, which by-degree adjacency hides; choose the settings "
            "without the data, or use fixed-graph."
        )


def search_caps(
    plan: Plan,
    owners: Owners,
    *,
    users_per_entity: Sequence[int] = (1, 2, 4),
    entity_share: Sequence[float] = (0.25, 0.5, 1.0),
    records_per_user_entity: Sequence[int] = (1, 2, 4),
    user_rate: Sequence[float] = (),
    progress: Callable[[int], None] | None = None,
) -> list[Candidate]:
    """Settings of k, tau and the rate, best noise-to-signal first, each meeting every target.

    Under `by-degree` adjacency the graph may not be looked at, so this is refused.
    """
    _require_searchable(plan)
    kept_by = {
        (k, r): apply_caps(
            _changed(plan, users_per_entity=k, records_per_user_entity=r), owners
        ).kept
        for k, r in product(users_per_entity, records_per_user_entity)
    }
    found = []
    for k, tau, rate in product(users_per_entity, entity_share, user_rate or (plan.user_rate,)):
        priced = _changed(plan, users_per_entity=k, entity_share=tau, user_rate=rate)
        priced = _changed(priced, noise_multiplier=least_noise(priced))
        for r in records_per_user_entity:
            tried, kept = _changed(priced, records_per_user_entity=r), kept_by[k, r]
            sensitive = int((kept & owners.sensitive).sum())
            ratio = noise_to_signal(tried, owners, kept)
            found.append(Candidate(tried, int(kept.sum()), sensitive, ratio))
        if progress:
            progress(1)
    return sorted(found, key=lambda c: c.noise_to_signal)


def _changed(plan: Plan, **fields: Any) -> Plan:
    return Plan(**plan.model_dump() | fields)


@dataclass(frozen=True)
class DryRun:
    """A calibrated plan, what its caps keep of an owner graph, and what else was tried."""

    plan: Plan
    owners: Owners | None = None
    """The whole graph; `graph` is what of it the plan protects."""
    graph: Owners | None = None
    bounded: Bounded | None = None
    tried: Sequence[Candidate] = ()

    def explain(self, records_per_second: float | None = None) -> str:
        """The plan in prose; see `explain`."""
        return explain(
            self.plan,
            self.graph,
            self.bounded,
            records_per_second=records_per_second,
            entities=meant(self.plan, self.owners),
        )

    def as_json(self) -> dict[str, Any]:
        """The plan, its prices and what its caps keep."""
        costs = {unit: cost.as_json() for unit, cost in prices(self.plan).items()}
        bounding = {} if self.bounded is None else {"bounding": self.bounded.summary()}
        return {
            "plan": self.plan.model_dump(mode="json"),
            "plan_digest": self.plan.digest(),
            "epsilon": {unit: cost["epsilon"] for unit, cost in costs.items()},
            "standing": costs[self.plan.protect]["standing"],
            "prices": costs,
            "record_clip": self.plan.record_clip,
            "caps": self.plan.caps,
            **bounding,
            **({"tried": [c.as_json() for c in self.tried]} if self.tried else {}),
        }


def dry_run(
    plan: Plan,
    owners: Owners | None = None,
    *,
    search: bool = False,
    rates: Sequence[float] = (),
    progress: Callable[[int], None] | None = None,
) -> DryRun:
    """Calibrate a plan, with the best caps on the graph if asked; refuse what training would."""
    require_trainable(plan)
    if owners is not None and plan.adjacency == "by-degree":
        raise PrivacyRefused(
            "by-degree adjacency hides the owner graph, so a plan may not look at it; leave "
            "--owners out."
        )
    graph = None if owners is None else protected_part(plan, owners)
    tried: Sequence[Candidate] = ()
    if search and graph is not None:
        tried = search_caps(plan, graph, user_rate=rates, progress=progress)
        plan = tried[0].plan
    plan = calibrated(plan)
    if graph is None:
        return DryRun(plan)
    bounded = apply_caps(plan, graph)
    users = len(np.unique(graph.record_user[bounded.kept]))
    require_trainable(plan, users if plan.sampled == "users" else bounded.records_kept)
    return DryRun(plan, owners, graph, bounded, tried)


def explain(
    plan: Plan,
    owners: Owners | None = None,
    bounded: Bounded | None = None,
    *,
    records_per_second: float | None = None,
    entities: EntityScope | None = None,
) -> str:
    """What a calibrated plan promises, assumes, keeps and costs, in Markdown.

    `entities` says which entities are meant, as far as that is known by now.
    """
    costs = prices(plan)
    main, events = costs[plan.protect], list(plan.releases())
    entities = entities or meant(plan)
    gains = {unit: _gained(plan, unit) for unit in costs}
    header, rows = choosing(plan.delta)
    return rendered(
        "plan.md.jinja",
        plan=plan,
        costs=costs,
        entities=entities,
        gains=gains,
        kept=_kept(plan, owners, bounded) if owners is not None and bounded is not None else None,
        ways=both_ways(plan, owners),
        speed=records_per_second,
        sentence=guarantee(
            plan.protect, main.adjacency, main.epsilon, plan.delta, plan.by_degree, entities
        ),
        assumed=assumptions(events, plan.by_degree),
        open=not_covered(events, plan.by_degree, entities=entities),
        CHOOSING=CHOOSING,
        table=[header, *rows],
    )


def _gained(plan: Plan, unit: Unit) -> Gained:
    """What the plan leaves an attacker who wants to tell whether a unit took part."""
    releases = plan.releases()
    rate = adversary_gain(releases, unit, plan.delta, (0.01,))[0].tpr
    return Gained(best_accuracy(releases, unit, plan.delta), rate, unit)


def _kept(plan: Plan, owners: Owners, bounded: Bounded) -> dict[str, Any]:
    """What the caps leave of the text, and how the noise compares with it."""
    return {
        "records": bounded.records_kept,
        "of": len(owners),
        "sensitive": int((bounded.kept & owners.sensitive).sum()),
        "of_sensitive": int(owners.sensitive.sum()),
        "dropped_by": bounded.dropped_by,
        "noise_to_signal": noise_to_signal(plan, owners, bounded.kept),
        "passes": plan.steps * plan.sampling_rate,
    }


class Way(NamedTuple):
    """One of two ways to protect entities beside users: its noise and what it keeps."""

    protect: str
    noise_multiplier: float
    kept: int | None


def both_ways(plan: Plan, owners: Owners | None = None) -> tuple[Way, ...]:
    """The plan's way to protect users and entities, and the other one at the same epsilon.

    Whole records are kept by caps, so how many is known only on an owner graph; for names all are.
    """
    if plan.protect not in ("users+entities", "users+names") or plan.mechanism == "flat":
        return ()
    if plan.adjacency == "by-degree" or plan.noise_multiplier is None:
        return ()
    shared = ("epsilon", "delta", "steps", "user_rate", "users", "clip_norm", "seed")
    fields = {name: getattr(plan, name) for name in shared}
    whom = "users+names" if plan.protect == "users+entities" else "users+entities"
    other = Plan(protect=whom, kinds=plan.kinds, **fields)
    other = other.model_copy(update={"noise_multiplier": least_noise(other)})
    found = {}
    for one in (plan, other):
        kept = None
        if owners is not None:
            kept = bound(owners, **one.caps, seed=one.seed).records_kept
        found[one.protect] = Way(one.protect, float(one.noise_multiplier or 0), kept)
    return found["users+entities"], found["users+names"]


def meant(plan: Plan, owners: Owners | None = None) -> EntityScope | None:
    """Which entities a plan is about; with an owner graph, who marks them and what is left out."""
    if plan.about_names:
        return EntityScope(
            kinds=plan.kinds, public=plan.public_entities, shown_kinds=plan.shown_kinds
        )
    if "entities" not in plan.protect:
        return None
    scope = EntityScope(kinds=plan.kinds, entity_list=plan.entity_list)
    if owners is None:
        return scope
    marks, own = owners.origin.provenance, set(owners.of_kinds(plan.kinds).kinds)
    return scope.model_copy(
        update={
            "detectors": tuple(
                DetectorFacts(name=d.name, version=d.version) for d in marks.detectors
            ),
            "rules": marks.rules,
            "unsought": marks.unsought,
            "found": tuple(sorted(own)),
            "unprotected": tuple(sorted(set(owners.kinds) - own)),
        }
    )


def protected_part(plan: Plan, owners: Owners) -> Owners:
    """The graph of what the plan protects; refused where the graph cannot tell."""
    if "entities" not in plan.protect:
        return owners
    made_of = owners.origin.kinds
    asked = None if made_of is None else [kind_of(kind) for kind in made_of]
    if asked is not None and not (
        plan.kinds and all(matches(kind_of(kind), asked) for kind in plan.kinds)
    ):
        raise PrivacyRefused(
            f"The owner graph holds entities of the kinds {', '.join(made_of or ())} only, and the "
            "plan protects others, too; give the plan these kinds, or make the graph without "
            "--kinds."
        )
    for kind in plan.kinds or ():
        if not any(matches(other, [kind_of(kind)]) for other in owners.kinds):
            raise PrivacyRefused(
                f"kinds has {kind}, but the owner graph has no entity of that kind; make it with a "
                f"detector that finds {kind}, or leave {kind} out of the plan."
            )
    owners = owners.of_kinds(plan.kinds)
    if plan.entity_list is None:
        return owners
    lines = require_file(Path(plan.entity_list)).read_text(encoding="utf-8").splitlines()
    listed = {line.strip() for line in lines if line.strip() and not line.startswith("#")}
    if not listed <= set(owners.entities):
        raise PrivacyRefused(
            f"An owner graph knows ids and no names, so it cannot tell who is meant by "
            f"{plan.entity_list}; list ids alone, or leave --owners out."
        )
    return owners.of_entities(listed)
