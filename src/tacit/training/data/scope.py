"""Whom a run's promise is about, from its plan, its detectors and what they found."""

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.corpus import Corpus
from tacit.detection.kinds import KINDS, family, kind_of, matches
from tacit.detection.mentions import Mention
from tacit.detection.provenance import Provenance
from tacit.detection.scoring import score
from tacit.errors import DataError
from tacit.planning.plan import Plan
from tacit.privacy.certificates.certificate import commitment
from tacit.privacy.certificates.scope import DetectorFacts, EntityScope, Scope
from tacit.training.data.protected_entities import list_digest

if TYPE_CHECKING:  # it loads the training stack, of which a server's process has no use
    from tacit.training.phases.run_context import RunContext

USERS = "whoever stands in the corpus's column for the user"
KEYED_USERS = "whoever a client names as one, under a keyed name"


def scope_of(ctx: "RunContext", plan: Plan | None, salt: bytes) -> Scope:
    """Whom the promise is about; nothing in it was measured on texts of the training split.

    Which kinds were found is a fact about who names what, and is stated only where the promise
    holds that table fixed.
    """
    run = ctx.run
    policy = ctx.policy.name if ctx.policy is not None else None
    if policy is None and plan is not None and plan.protect == "tokens":
        policy = "what the mentions mark"
    entities = None
    if plan is None and run.spec.owner_graph:
        listed = None if run.entity_list is None else Path(run.entity_list)
        digest = None if listed is None else commitment(list_digest(listed), salt)
        entities = _entities(ctx, getattr(run.options, "kinds", None), digest, True, salt)
    elif plan is not None and "entities" in plan.protect:
        fixed = plan.adjacency == "fixed-graph"
        entities = _entities(ctx, plan.kinds, plan.entity_list, fixed, salt)
    elif plan is not None and plan.about_names:
        # Which kinds were found is told by users' texts, and users are really removed.
        entities = _entities(ctx, plan.kinds, None, False, salt)
        shown = {"public": plan.public_entities, "shown_kinds": plan.shown_kinds}
        entities = entities.model_copy(update=shown)
    users = KEYED_USERS if ctx.elsewhere else USERS
    return Scope(users=users, entities=entities, policy=policy)


def _entities(
    ctx: "RunContext",
    kinds: tuple[str, ...] | None,
    entity_list: str | None,
    fixed_graph: bool,
    salt: bytes,
) -> EntityScope:
    scope = entity_scope(ctx.provenance, kinds, entity_list, salt)
    if ctx.elsewhere:
        return scope
    own = set(ctx.part.column("id").to_pylist())
    here = [m for m in ctx.mentions if m.record in own]
    recall, origin = _recall(ctx, own)
    scope = scope.model_copy(update={"recall": recall, "recall_from": origin})
    if not fixed_graph:
        return scope
    return scope_of_kinds(scope, ctx.provenance, {m.kind for m in here})


def scope_of_kinds(
    scope: EntityScope, provenance: Provenance, seen: Collection[str]
) -> EntityScope:
    """The scope with the kinds that were found and protected, found and not, and not found."""
    wanted = None if scope.kinds is None else [kind_of(kind) for kind in scope.kinds]
    found = sorted(seen)
    return scope.model_copy(
        update={
            "found": tuple(k for k in found if wanted is None or matches(k, wanted)),
            "unprotected": tuple(k for k in found if wanted is not None and not matches(k, wanted)),
            "missing": _missing(provenance, seen),
        }
    )


def entity_scope(
    provenance: Provenance,
    kinds: tuple[str, ...] | None,
    entity_list: str | None,
    salt: bytes,
) -> EntityScope:
    """Which entities are meant and who marks them, before anything was found."""
    return EntityScope(
        kinds=kinds,
        entity_list=entity_list,
        detectors=tuple(
            DetectorFacts(
                name=one.name,
                version=one.version,
                files=None if one.files is None else commitment(one.files, salt),
            )
            for one in provenance.detectors
        ),
        rules=provenance.rules,
        aliases=None if provenance.aliases is None else commitment(provenance.aliases, salt),
        unsought=provenance.unsought,
    )


def _missing(provenance: Provenance, seen: Collection[str]) -> tuple[str, ...] | None:
    """Kinds that were looked for and not found; where nobody knows what for, coarse ones."""
    if provenance.sought is not None:
        return tuple(kind for kind in provenance.sought if kind not in seen)
    families = {family(kind) for kind in seen}
    return tuple(kind for kind in KINDS if kind not in families)


def _recall(ctx: "RunContext", training: Collection[str]) -> tuple[dict[str, float] | None, str]:
    """The detectors' recall by kind on gold marks of other splits than the training one.

    A figure over the training text would itself be an unprotected release.
    """
    if [one.name for one in ctx.provenance.detectors] == ["gold"]:
        return None, "entities are the marks that came with the corpus"
    for split in ("test", "valid"):
        if split not in ctx.corpus.splits():
            continue
        part = ctx.corpus.only(split)
        own = set(part.column("id").to_pylist()) - set(training)
        marks: list[Mention] = [m for m in ctx.mentions if m.record in own]
        try:
            return recall_on(part, marks), f"the {split} split, exact matches"
        except DataError:
            continue
    return None, "no gold marks outside of the training text"


def recall_on(part: Corpus, marks: Sequence[Mention]) -> dict[str, float]:
    """By kind, rounded down to hundredths: what was missed is not shown as found."""
    found = score(part, marks, by="family")
    return {
        kind: math.floor(one.recall * 100 + 1e-9) / 100 for kind, one in sorted(found.kinds.items())
    }
