"""The dry run: find good caps on an owner graph, and say in prose what a plan promises."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.detection.kinds import kind_of, matches
from tacit.errors import PrivacyRefused, UsageError
from tacit.files import require_file
from tacit.owners import Owners
from tacit.owners.bounding import Bounded, bound
from tacit.planning.plan import Plan, least_noise, prices
from tacit.privacy.accounting.pricing import Price, adversary_gain, best_accuracy
from tacit.privacy.certificates.attacker_gain import CHOOSING, Gained, choosing
from tacit.privacy.certificates.scope import DetectorFacts, EntityScope
from tacit.privacy.certificates.wording import STANDINGS, assumptions, guarantee, not_covered
from tacit.privacy.events import Unit
from tacit.privacy.rounding import down, up

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


def search(
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


# --- in prose ---------------------------------------------------------------------------------


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
    events = list(plan.releases())
    entities = entities or meant(plan)
    parts = ["# What this plan promises", _promises(plan, costs, entities)]
    parts += ["## What an adversary could gain", _gains(plan)]
    parts += ["## How it is kept", _mechanics(plan)]
    if owners is not None and bounded is not None:
        parts += ["## What the caps keep", _keeping(plan, owners, bounded)]
        parts += ["## How long it takes", _duration(plan, bounded, records_per_second)]
    parts += ["## What is assumed", _list(assumptions(events, plan.by_degree))]
    parts += [
        "## What is not covered",
        _list(not_covered(events, plan.by_degree, entities=entities)),
    ]
    parts += ["## Choosing epsilon and delta", _choosing(plan)]
    return "\n\n".join(parts) + "\n"


def _promises(plan: Plan, costs: dict[Unit, Price], entities: EntityScope | None) -> str:
    lines = []
    for unit, cost in costs.items():
        target = plan.limits.get(unit)
        wanted = f", target {target:g}" if target is not None else ""
        lines.append(
            f"- **{unit}**: epsilon **{up(cost.epsilon)}** at delta {up(plan.delta)}{wanted} "
            f"({cost.standing}; {cost.accountant}; no accountant could certify less than "
            f"{down(cost.lower)}{f'; {cost.beside}' if cost.beside else ''})."
        )
    main = costs[plan.protect]
    sentence = guarantee(
        plan.protect, main.adjacency, main.epsilon, plan.delta, plan.by_degree, entities
    )
    if entities is not None and not entities.detectors:
        sentence += (
            " Which detectors mark entities, and which kinds these look for and do not find, is "
            "written down when a run begins, and stands on its certificate."
        )
    standing = f"*Proved* means: {STANDINGS['proved']}."
    return "\n\n".join(["\n".join(lines), sentence, standing])


def meant(plan: Plan, owners: Owners | None = None) -> EntityScope | None:
    """Which entities a plan is about; with an owner graph, who marks them and what is left out."""
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


def counted_units(plan: Plan, owners: Owners, bounded: Bounded) -> int:
    """How many users (records, where these are sampled) the caps keep."""
    if plan.sampled == "records":
        return bounded.records_kept
    return len(np.unique(owners.record_user[bounded.kept]))


def _choosing(plan: Plan) -> str:
    header, rows = choosing(plan.delta)
    table = [header, ["---"] * len(header), *rows]
    lines = ["| " + " | ".join(row) + " |" for row in table]
    return CHOOSING + "\n\n" + "\n".join(lines)


def _gains(plan: Plan) -> str:
    lines = []
    for unit in prices(plan):
        (caught,) = adversary_gain(plan.releases(), unit, plan.delta, (0.01,))
        left = Gained(best_accuracy(plan.releases(), unit, plan.delta), caught.tpr)
        lines.append(f"**{unit}** (protection: {left.grade}): {left.verdict} {left.figures}")
    return _list(lines)


def _mechanics(plan: Plan) -> str:
    lines = [
        f"{plan.steps:,} steps; in each, every {plan.sampled[:-1]} takes part with probability "
        f"{plan.sampling_rate:g}, independently of the others (Poisson sampling).",
        f"Updates are clipped to norm {plan.clip_norm:g}; noise of standard deviation "
        f"{(plan.noise_multiplier or 0) * plan.clip_norm:.4g} is added to their sum "
        f"(noise multiplier {plan.noise_multiplier or 0:.4g}).",
    ]
    if plan.record_clip is not None:
        lines.append(
            f"Each record is clipped to {plan.record_clip:.4g} first, and a user keeps at most "
            f"{plan.records_per_user_entity} record(s) that name one entity, so that an entity "
            f"moves a user by at most {plan.entity_share:g} of the clip norm."
        )
    if plan.records_per_step is not None:
        lines.append(
            f"A drawn user gives at most {plan.records_per_step:,} records, chosen at random anew."
        )
    if plan.caps:
        caps = ", ".join(f"{name.replace('_', ' ')} {cap}" for name, cap in plan.caps.items())
        lines.append(f"Caps on the owner graph: {caps} (seed {plan.seed}).")
    return _list(lines)


def _keeping(plan: Plan, owners: Owners, bounded: Bounded) -> str:
    kept = bounded.kept
    sensitive = int(owners.sensitive.sum())
    kept_sensitive = int((kept & owners.sensitive).sum())
    share = kept_sensitive / sensitive if sensitive else 1.0
    lines = [
        f"{bounded.records_kept:,} of {len(owners):,} records "
        f"({bounded.records_kept / len(owners):.0%}); of those that name an entity, "
        f"{kept_sensitive:,} of {sensitive:,} ({share:.0%}).",
    ]
    lines += [
        f"{count:,} dropped for {reason.replace('_', ' ')}."
        for reason, count in bounded.dropped_by.items()
        if count
    ]
    ratio = noise_to_signal(plan, owners, kept)
    lines.append(f"Noise to signal of a step, in a simple model of gradients: {ratio:.3g}.")
    return _list(lines) + "\n\nThese are exact counts over private data: keep them inside."


def _duration(plan: Plan, bounded: Bounded, records_per_second: float | None) -> str:
    passes = plan.steps * plan.sampling_rate
    touched = passes * bounded.records_kept
    text = f"About {touched:,.0f} records pass through the model ({passes:,.1f} times the corpus)."
    if records_per_second:
        minutes = touched / records_per_second / 60
        text += f" At {records_per_second:,.0f} records a second that is {minutes:,.1f} minutes."
    else:
        text += " Give --records-per-second, as a short training run prints it, for a time."
    return text


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
