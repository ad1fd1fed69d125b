"""A run folder as training leaves it, for the tests of what comes after."""

from pathlib import Path

from tacit.planning.plan import Plan, calibrated, plan_yaml
from tacit.privacy.certificates.certificate import Promise, certify, commitment, new_salt, publish
from tacit.privacy.certificates.manifest import make_manifest
from tacit.privacy.certificates.scope import DetectorFacts, EntityScope, Scope
from tacit.privacy.ledger import Ledger, read_ledger

PLAN = Plan(protect="users", epsilon=3, steps=20, user_rate=0.1, users=500)
BOTH = Plan(protect="users+entities", epsilon=4, targets={"users": 3}, steps=10, user_rate=0.1)
BY_DEGREE = Plan(
    protect="entities", epsilon=6, steps=10, user_rate=0.1, users=500,
    adjacency="by-degree", entity_share=2, users_per_entity=3,
)  # fmt: skip
TOKENS = Plan(protect="tokens", epsilon=5, steps=10, record_rate=0.05)


def make_run(
    folder: Path, plan: Plan = PLAN, *, steps: int | None = None, seeded: bool = False
) -> Path:
    """A run as training will leave it: plan, ledger, a file of weights, certificate."""
    folder.mkdir(parents=True)
    plan = calibrated(plan)
    data = commitment("digest of the corpus", new_salt())
    randomness = "fixed seed" if seeded else "system"
    scope = scope_for(plan)
    about = {
        "plan": plan.digest(), "config": "c", "data": data, "randomness": randomness,
        "scope": scope.model_dump(mode="json"),
    }  # fmt: skip
    with Ledger(folder / "ledger.jsonl", about) as ledger:
        for event, count in plan.releases().items():
            for _ in range(count if steps is None or count == 1 else steps):
                ledger.charge(event)
    (folder / "plan.yml").write_text(plan_yaml(plan))
    (folder / "model.safetensors").write_bytes(b"weights")
    promise = Promise(
        plan.protect, plan.units, plan.delta, plan.model_dump(mode="json"), plan.by_degree
    )
    certificate = certify(
        read_ledger(folder / "ledger.jsonl"),
        promise,
        context={"method": "dp-sgd"},
        files=make_manifest(folder),
    )
    publish(certificate, folder)
    return folder


def scope_for(plan: Plan) -> Scope:
    """Whom such a plan is about, as a run would say it."""
    entities = EntityScope(
        kinds=plan.kinds,
        detectors=(DetectorFacts(name="patterns", version="tacit 0"),),
        found=None if plan.adjacency == "by-degree" else ("PII/EMAIL",),
    )
    return Scope(
        users="whoever wrote it",
        entities=entities if "entities" in plan.protect else None,
        policy="digits" if plan.protect == "tokens" else None,
    )
