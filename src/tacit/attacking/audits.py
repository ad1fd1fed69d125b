"""The audit of a run: every unit of its certificate, by every way that there is."""

from pathlib import Path

import numpy as np

from tacit.attacking.attack import Progress
from tacit.attacking.canaries import read_planted
from tacit.attacking.target import Target, canary_plan, open_target
from tacit.attacking.white_box import audit_plan, audit_uedp
from tacit.auditing import Audit, Evidence, from_canaries, judge, write_audit
from tacit.corpus import Corpus
from tacit.errors import DataError, UsageError
from tacit.plan import read_plan
from tacit.privacy.certificate import Certificate, read_certificate
from tacit.privacy.events import UserClip
from tacit.privacy.ledger import read_ledger
from tacit.training.settings import PLANNED, Run, UedpSettings, read_run


def audit_run(
    folder: Path,
    *,
    unit: str | None = None,
    canaries: int | None = None,
    steps: int | None = None,
    confidence: float = 0.95,
    progress: Progress | None = None,
) -> list[Audit]:
    """Audit a run, write `audit.json` beside its certificate, and say what was found.

    Chance comes from the operating system, so two audits differ a little. Taking the best of
    several audits would void their confidence.
    """
    folder = Path(folder)
    if not (folder / "run.yml").exists():
        raise DataError(f"{folder} holds no run; give the folder that `tacit train -o` made.")
    run = read_run(folder / "run.yml")
    certificate = read_certificate(folder / "certificate.json")
    units = [name for name in certificate.costs if unit in (None, name)]
    if not units:
        raise UsageError(
            f"unit={unit} is not in the certificate; it speaks of {', '.join(certificate.costs)}."
        )
    rng = np.random.default_rng()
    made: list[Audit] = []
    if run.method in PLANNED:
        plan = read_plan(folder / "plan.yml")
        for one in units:
            epsilon = float(certificate.costs[one].epsilon)
            found = audit_plan(
                run, plan, one, canaries=canaries, steps=steps, confidence=confidence,
                epsilon=epsilon, progress=progress, rng=rng,
            )  # fmt: skip
            made.append(judge(certificate, one, found))
    elif run.method == "uedp":
        found = _published(run, certificate, folder, steps, confidence, progress, rng)
        wanted = [one for one in units if "entities" in one]
        made += [judge(certificate, one, found) for one in wanted]
    black = _black_box(folder, run, certificate, confidence)
    if black is not None:
        who, found = black
        if who in units:
            made.append(judge(certificate, who, found))
    if not made:
        raise UsageError(
            f"{folder} promises nothing (method={run.method}), and has no canaries by coins: there "
            "is nothing to audit. Attack it instead: tacit attack."
        )
    write_audit(folder, made)
    return made


def _published(
    run: Run,
    certificate: Certificate,
    folder: Path,
    steps: int | None,
    confidence: float,
    progress: Progress | None,
    rng: np.random.Generator,
) -> Evidence:
    """The published algorithm at the degree of the entity that most users share."""
    released = read_ledger(folder / "ledger.jsonl").releases()
    event, count = next((e, n) for e, n in released.items() if isinstance(e, UserClip))
    users = int((certificate.published or {})["inputs"]["users"])
    return audit_uedp(
        run.uedp or UedpSettings(), users=users, holders=event.users_per_entity,
        steps=min(steps or count, count), confidence=confidence, progress=progress, rng=rng,
    )  # fmt: skip


def _black_box(
    folder: Path, run: Run, certificate: Certificate, confidence: float
) -> tuple[str, Evidence] | None:
    """The trained model asked about canaries by coins, where there are any."""
    path = canary_plan(folder, Path(run.corpus))
    plan = read_planted(path) if path is not None and run.task == "next-word" else None
    if plan is None or not plan.coins:
        return None
    target = open_target(folder, perplexity=False)
    planned = {c.secret: c.planted for c in plan.canaries if c.repetitions}
    scores = _likelihoods(target, list(planned))
    unit = "entities" if plan.placing == "entity" else "users"
    if plan.placing == "users":
        return None  # spread over users: the unit of no guarantee
    return unit, from_canaries(planned, scores, certificate.delta, confidence=confidence)


def _likelihoods(target: Target, secrets: list[str]) -> dict[str, float]:
    plan = target.planted
    assert plan is not None
    corpus = Corpus.from_records(
        {"id": str(i), "text": plan.template.text(s)} for i, s in enumerate(secrets)
    )
    own = -target.reader.total_losses(corpus)
    if target.reference is not None:
        own = own + target.reference.total_losses(corpus)
    return dict(zip(secrets, own.tolist(), strict=True))
