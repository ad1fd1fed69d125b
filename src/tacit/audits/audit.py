"""The audit of a run: every unit of its certificate, by every way that was asked for."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from tacit.attacks.attack import Progress
from tacit.attacks.canaries import Planted, read_planted
from tacit.attacks.target import Target, canary_plan, open_target
from tacit.audits.canary_guesses import OnProgress
from tacit.audits.epsilon_bounds import (
    WANTED,
    Audit,
    Check,
    Evidence,
    canaries_for,
    certified,
    from_canaries,
    guesses_of,
    judge,
    one_run_bound,
    write_audit,
)
from tacit.audits.in_situ import audit_in_situ
from tacit.audits.white_box import audit_plan, audit_uedp, uedp_runs
from tacit.corpus import Corpus
from tacit.errors import DataError, UsageError
from tacit.planning.plan import Plan, read_plan
from tacit.privacy.accounting.pricing import price
from tacit.privacy.certificates.certificate import Certificate, read_certificate
from tacit.privacy.events import AnyEvent, Unit, UserClip, whole_passes
from tacit.privacy.ledger import read_ledger
from tacit.privacy.rounding import down, up
from tacit.training.settings import PLANNED, Run, UedpSettings, read_run

Way = Literal["in-situ", "white-box", "black-box"]
WAYS: tuple[Way, ...] = get_args(Way)
Watch = Callable[[str, int | None], AbstractContextManager[Progress]]
"""Shows how far something of so many steps is."""


def _nobody(what: str, total: int | None) -> AbstractContextManager[Progress]:
    return nullcontext(lambda count: None)


def audit_run(
    folder: Path,
    *,
    using: Sequence[Way] = (),
    unit: str | None = None,
    canaries: int | None = None,
    steps: int | None = None,
    confidence: float = 0.95,
    watch: Watch = _nobody,
    on_progress: OnProgress | None = None,
) -> list[Audit]:
    """Audit a run, write `audit.json` beside its certificate, and say what was found.

    In situ if no way is named, and by the canaries of its corpus where these were planted by
    coins. Chance comes from the operating system, so two audits differ a little. Taking the best
    of several audits would void their confidence.
    """
    folder = Path(folder)
    if not (folder / "run.yml").exists():
        raise DataError(f"{folder} holds no run; give the folder that `tacit train -o` made.")
    certificate = read_certificate(folder / "certificate.json")
    units = [name for name in certificate.costs if unit in (None, name)]
    if not units:
        raise UsageError(
            f"unit={unit} is not in the certificate; it speaks of {', '.join(certificate.costs)}."
        )
    under = _Auditing(
        folder, read_run(folder / "run.yml"), certificate, tuple(units), canaries, steps,
        confidence, watch, on_progress or (lambda _: None), np.random.default_rng(),
    )  # fmt: skip
    under.require_steps()
    made: list[Audit] = []
    if "white-box" in using:
        made += under.white_box()
    if "in-situ" in using or not using:
        made += under.in_situ()
    if "black-box" in using or not using:
        made += under.black_box()
    if not made:
        raise UsageError(under.nothing(using))
    write_audit(folder, made)
    return made


@dataclass(frozen=True)
class _Auditing:
    """A run that is audited, and what was asked."""

    folder: Path
    run: Run
    certificate: Certificate
    units: tuple[Unit, ...]
    canaries: int | None
    steps: int | None
    confidence: float
    watch: Watch
    on_progress: OnProgress
    rng: np.random.Generator

    @property
    def promised(self) -> bool:
        """Whether the run's method promises anything that a step could break."""
        return self.run.method in PLANNED or self.run.method == "uedp"

    @property
    def released(self) -> dict[AnyEvent, int]:
        """What the run's own steps released."""
        return whole_passes(read_ledger(self.folder / "ledger.jsonl").releases("train"))

    @property
    def done(self) -> int:
        """How many steps the run took: fewer than planned, where its budget ended them."""
        return min(self.run.total_steps, max(self.released.values(), default=0))

    @property
    def taken(self) -> int:
        """How many of them are audited."""
        return min(self.steps or self.done, self.done)

    def require_steps(self) -> None:
        """Refuse a run that promises something and has done nothing yet."""
        if self.promised and self.done < 1:
            raise UsageError(f"{self.folder} has taken no step; train it, or --resume it, first.")
        if self.run.method == "uedp" and not any("entities" in unit for unit in self.units):
            raise UsageError(
                "The published algorithm is audited for entities and users+entities, where its "
                "claim is about them; leave --unit out."
            )

    def in_situ(self) -> list[Audit]:
        """A copy of the run, trained once more."""
        if not self.promised:
            return []
        if (self.folder / "federation.yml").exists():
            raise UsageError(
                f"{self.folder} was trained by clients who keep their records, so no copy of it "
                "can be trained here; audit its step: --using white-box."
            )
        plan = read_plan(self.folder / "plan.yml") if self.run.method in PLANNED else None
        limits = {
            unit: self._part(unit) or certified(self.certificate, unit) for unit in self.units
        }
        with self.watch("Auditing in situ", self.taken) as advance:
            found = audit_in_situ(
                self.folder, self.run, plan, limits, canaries=self.canaries, steps=self.taken,
                confidence=self.confidence, progress=advance,
                on_progress=self.on_progress, rng=self.rng,
            )  # fmt: skip
        # Where canaries cannot share the run's training, the bound is that of its step.
        bounds = found.evidence or self._white(plan)
        return self._judged(bounds, found.checks)

    def _judged(self, bounds: Mapping[Unit, Evidence], checks: Sequence[Check] = ()) -> list[Audit]:
        return [
            judge(self.certificate, unit, found, part=self._part(unit), checks=checks)
            for unit, found in bounds.items()
        ]

    def _part(self, unit: Unit) -> float | None:
        """The price of so many steps as are audited, where these are not all of the run's."""
        steps = {e: n for e, n in self.released.items() if unit in e.bounds}
        if self.taken >= self.done or not steps:
            return None
        event = max(steps, key=lambda one: steps[one])
        return float(price({event: self.taken}, unit, self.certificate.delta).epsilon)

    def white_box(self) -> list[Audit]:
        """The run's step on canaries alone."""
        plan = read_plan(self.folder / "plan.yml") if self.run.method in PLANNED else None
        return self._judged(self._white(plan))

    def _white(self, plan: Plan | None) -> dict[Unit, Evidence]:
        if plan is None:
            return self._published() if self.run.method == "uedp" else {}
        found: dict[Unit, Evidence] = {}
        for unit in self.units:
            with self.watch(f"Auditing the step, {unit}", self.taken) as advance:
                found[unit] = audit_plan(
                    self.run, plan, unit, canaries=self.canaries, steps=self.taken,
                    confidence=self.confidence,
                    epsilon=self._part(unit) or certified(self.certificate, unit),
                    progress=advance, on_progress=self._said("White box"), rng=self.rng,
                )  # fmt: skip
        return found

    def _published(self) -> dict[Unit, Evidence]:
        """The published algorithm at the degree of the entity that most users share."""
        wanted = [one for one in self.units if "entities" in one]
        if not wanted:
            return {}
        event = next(event for event in self.released if isinstance(event, UserClip))
        published = self.certificate.published or {}
        claims = [float(published["epsilon"].get(one, np.inf)) for one in wanted]
        least = min(*claims, *(certified(self.certificate, one) for one in wanted), 1e3)
        runs = uedp_runs(least, (self.run.uedp or UedpSettings()).delta, self.confidence)
        with self.watch("Auditing the published step", runs) as advance:
            found = audit_uedp(
                self.run.uedp or UedpSettings(), users=int(published["inputs"]["users"]),
                holders=event.users_per_entity, steps=self.taken, runs=runs,
                confidence=self.confidence, progress=advance, on_progress=self._said("White box"),
                rng=self.rng,
            )  # fmt: skip
        return dict.fromkeys(wanted, found)

    def _said(self, how: str) -> OnProgress:
        return lambda sentence: self.on_progress(f"{how}: {sentence}")

    def black_box(self) -> list[Audit]:
        """The trained model asked about canaries by coins, where there are any."""
        path = canary_plan(self.folder, Path(self.run.corpus))
        plan = read_planted(path) if path is not None and self.run.task == "next-word" else None
        # Spread over users, they are the unit of no guarantee.
        if plan is None or not plan.coins or plan.placing == "users":
            return []
        unit: Unit = "entities" if plan.placing == "entity" else "users"
        if unit not in self.units:
            return []
        planned = {c.secret: c.planted for c in plan.canaries if c.repetitions}
        self._announce(len(planned), unit)
        scores = _likelihoods(open_target(self.folder, perplexity=False), plan, list(planned))
        found = from_canaries(
            planned, scores, self.certificate.delta, epsilon=certified(self.certificate, unit),
            confidence=self.confidence,
        )  # fmt: skip
        return [judge(self.certificate, unit, found)]

    def _announce(self, count: int, unit: Unit) -> None:
        """What the planted canaries can show; if that is too little, how many would do."""
        upper, delta = certified(self.certificate, unit), self.certificate.delta
        guesses = guesses_of(count, delta, epsilon=upper, confidence=self.confidence)
        best = one_run_bound(count, guesses, guesses, delta, self.confidence)
        said = f"Black box: {count:,} planted canaries can show epsilon {down(best)} at best"
        enough = canaries_for(upper, delta, self.confidence) if np.isfinite(upper) else None
        if np.isfinite(upper) and best < WANTED * upper:
            said += f", less than a third of the {up(upper)} certified"
            said += f"; plant {enough:,} for that (--each)" if enough else ""
        self.on_progress(f"{said}.")

    def nothing(self, using: Sequence[Way]) -> str:
        """Why there is nothing to audit."""
        if list(using) == ["black-box"] and self.promised:
            return (
                "black-box needs canaries by coins of a unit that is certified; plant them before "
                "training (tacit canaries plant --coins), or audit in situ."
            )
        return (
            f"{self.folder} promises nothing (method={self.run.method}), and has no canaries by "
            "coins: there is nothing to audit. Attack it instead: tacit attack."
        )


def _likelihoods(target: Target, plan: Planted, secrets: list[str]) -> dict[str, float]:
    corpus = Corpus.from_records(
        {"id": str(i), "text": plan.template.text(s)} for i, s in enumerate(secrets)
    )
    own = -target.reader.total_losses(corpus)
    if target.reference is not None:
        own = own + target.reference.total_losses(corpus)
    return dict(zip(secrets, own.tolist(), strict=True))
