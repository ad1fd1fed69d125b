"""The audit of a run: every unit of its certificate, by every way that was asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from tacit.attacks.canaries import read_planted
from tacit.attacks.running import Watch, unwatched
from tacit.attacks.target import canary_plan, open_target
from tacit.audits.auditing import Auditing
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
from tacit.audits.methods import HowToAudit, how_to_audit
from tacit.audits.released_text import audit_text
from tacit.corpus import Corpus
from tacit.errors import DataError, UsageError
from tacit.planning.plan import read_plan
from tacit.privacy.accounting.pricing import price
from tacit.privacy.certificates.certificate import Certificate, read_certificate
from tacit.privacy.certificates.wording import TEXT
from tacit.privacy.events import AnyEvent, Unit, whole_passes
from tacit.privacy.ledger import read_ledger
from tacit.privacy.rounding import down, up
from tacit.training.settings import read_run

Way = Literal["in-situ", "white-box", "black-box"]
WAYS: tuple[Way, ...] = get_args(Way)


def audit_run(
    folder: Path,
    *,
    using: Sequence[Way] = (),
    unit: str | None = None,
    canaries: int | None = None,
    steps: int | None = None,
    confidence: float = 0.95,
    watch: Watch = unwatched,
    on_progress: OnProgress | None = None,
) -> list[Audit]:
    """Audit a run, write `audit.json` beside its certificate, and say what was found.

    In situ if no way is named, and by the canaries of its corpus where these were planted by
    coins. Random numbers come from the operating system, so two audits differ a little. Taking the
    best of several audits would void their confidence.
    """
    folder = Path(folder)
    if (folder / "certificate.json").exists() and not (folder / "run.yml").exists():
        certificate = read_certificate(folder / "certificate.json")
        if certificate.released == TEXT:
            _require_text_asked(using, unit, canaries, steps)
            made = audit_text(folder, certificate, confidence)
            write_audit(folder, made)
            return made
    if not (folder / "run.yml").exists():
        raise DataError(f"{folder} holds no run; give the folder that `tacit train -o` made.")
    certificate = read_certificate(folder / "certificate.json")
    units = _units(folder, certificate, unit)
    run = read_run(folder / "run.yml")
    auditing = Auditing(
        run, read_plan(folder / "plan.yml") if run.spec.planned else None, canaries, steps,
        confidence, watch=watch, on_progress=on_progress or (lambda _: None),
    )  # fmt: skip
    under = _UnderAudit(folder, certificate, units, how_to_audit(run), auditing)
    made = under.audits(using)
    write_audit(folder, made)
    return made


def _require_text_asked(
    using: Sequence[Way], unit: str | None, canaries: int | None, steps: int | None
) -> None:
    """Refuse what has no meaning where a text is audited."""
    if (using not in ([], (), ["black-box"]) or unit not in (None, "users")) or canaries or steps:
        raise UsageError(
            "A text is audited by the canaries that its corpus holds, for users; leave the other "
            "options out."
        )


def _units(folder: Path, certificate: Certificate, unit: str | None) -> tuple[Unit, ...]:
    """Whom to audit for: all of the certificate, or the one that is named."""
    units = [name for name in certificate.costs if unit in (None, name)]
    if not _shows_names(folder):  # then no release depends on a name: there is nothing to find
        units = [name for name in units if name != "names"]
        if unit == "names":
            raise UsageError(
                "Names are replaced before anything is learnt, and none is ever shown, so no "
                "canary can stand for one; audit users, or users+names."
            )
    if not units:
        raise UsageError(
            f"unit={unit} is not in the certificate; it speaks of {', '.join(certificate.costs)}."
        )
    return tuple(units)


def _shows_names(folder: Path) -> bool:
    plan = read_run(folder / "run.yml").made_plan()
    return plan is not None and plan.about_names and plan.name_share > 0


@dataclass(frozen=True)
class _UnderAudit:
    """A run that is audited, and what was asked."""

    folder: Path
    certificate: Certificate
    units: tuple[Unit, ...]
    how: HowToAudit | None
    auditing: Auditing

    @cached_property
    def released(self) -> dict[AnyEvent, int]:
        """What the run's own steps released."""
        return whole_passes(read_ledger(self.folder / "ledger.jsonl").releases("train"))

    @property
    def done(self) -> int:
        """How many steps the run took: fewer than planned, where its budget ended them."""
        return min(self.auditing.run.total_steps, max(self.released.values(), default=0))

    def audits(self, using: Sequence[Way]) -> list[Audit]:
        """What was found by each way that is named, or by those that a run allows."""
        made: list[Audit] = []
        under, how = self, self.how
        if how is not None:
            under = self.ready(how)
            if "white-box" in using:
                made += under.judged(how.white_box(under.auditing, under.limits, self.folder))
            if "in-situ" in using or not using:
                made += under.in_situ()
        if "black-box" in using or not using:
            made += under.black_box()
        if not made:
            raise UsageError(under.nothing(using))
        return made

    def ready(self, how: HowToAudit) -> "_UnderAudit":
        """The same, with as many steps as there are; refused where there is nothing to audit."""
        if self.done < 1:
            raise UsageError(f"{self.folder} has taken no step; train it, or --resume it, first.")
        if not any(how.only in unit for unit in self.units):
            raise UsageError(
                f"The method {self.auditing.run.method} is audited for units that hold "
                f"{how.only}, which its claim is about; leave --unit out."
            )
        steps = min(self.auditing.steps or self.done, self.done)
        return replace(self, auditing=replace(self.auditing, steps=steps, slow=how.slow))

    @property
    def limits(self) -> dict[Unit, float]:
        """What a bound may not exceed, for each unit."""
        return {unit: self._part(unit) or certified(self.certificate, unit) for unit in self.units}

    def _part(self, unit: Unit) -> float | None:
        """The price of so many steps as are audited, where these are not all of the run's."""
        steps = {e: n for e, n in self.released.items() if unit in e.bounds}
        if self.auditing.total >= self.done or not steps:
            return None
        event = max(steps, key=lambda one: steps[one])
        return float(price({event: self.auditing.total}, unit, self.certificate.delta).epsilon)

    def judged(self, bounds: Mapping[Unit, Evidence], checks: Sequence[Check] = ()) -> list[Audit]:
        """The verdicts on what is certified."""
        return [
            judge(self.certificate, unit, found, part=self._part(unit), checks=checks)
            for unit, found in bounds.items()
        ]

    def in_situ(self) -> list[Audit]:
        """A copy of the run, trained once more."""
        assert self.how is not None
        if (self.folder / "federation.yml").exists():
            raise UsageError(
                f"{self.folder} was trained by clients who keep their records, so no copy of it "
                "can be trained here; audit its step: --using white-box."
            )
        found = audit_in_situ(self.auditing, self.limits, self.folder, self.how.copy)
        # Where canaries cannot share the run's training, the bound is that of its step.
        bounds = found.evidence
        if not bounds:
            bounds = self.how.white_box(self.auditing, self.limits, self.folder)
        return self.judged(bounds, found.checks)

    def black_box(self) -> list[Audit]:
        """The trained model asked about canaries by coins, where there are any."""
        run = self.auditing.run
        path = canary_plan(self.folder, Path(run.corpus))
        plan = read_planted(path) if path is not None and run.task == "next-word" else None
        # Spread over users, they are the unit of no guarantee.
        if plan is None or not plan.coins or plan.placing == "users":
            return []
        unit: Unit = "entities" if plan.placing == "entity" else "users"
        if unit not in self.units:
            return []
        planned = {c.secret: c.planted for c in plan.canaries if c.repetitions}
        upper, confidence = certified(self.certificate, unit), self.auditing.confidence
        self._announce(len(planned), upper)
        target = open_target(self.folder, perplexity=False)
        corpus = Corpus.from_records(
            {"id": str(i), "text": plan.template.text(s)} for i, s in enumerate(planned)
        )
        scores = -target.reader.total_losses(corpus)
        if target.reference is not None:
            scores = scores + target.reference.total_losses(corpus)
        found = from_canaries(
            planned, dict(zip(planned, scores.tolist(), strict=True)), self.certificate.delta,
            epsilon=upper, confidence=confidence,
        )  # fmt: skip
        return [judge(self.certificate, unit, found)]

    def _announce(self, count: int, upper: float) -> None:
        """What the planted canaries can show; if that is too little, how many would do."""
        delta, confidence = self.certificate.delta, self.auditing.confidence
        guesses = guesses_of(count, delta, epsilon=upper, confidence=confidence)
        best = one_run_bound(count, guesses, guesses, delta, confidence)
        said = f"Black box: {count:,} planted canaries can show epsilon {down(best)} at best"
        if np.isfinite(upper) and best < WANTED * upper:
            enough = canaries_for(upper, delta, confidence)
            said += f", less than a third of the {up(upper)} certified"
            said += f"; plant {enough:,} for that (--each)" if enough else ""
        self.auditing.on_progress(f"{said}.")

    def nothing(self, using: Sequence[Way]) -> str:
        """Why there is nothing to audit."""
        if list(using) == ["black-box"] and self.how is not None:
            return (
                "black-box needs canaries by coins of a unit that is certified; plant them before "
                "training (tacit canaries plant --coins), or audit in situ."
            )
        return (
            f"{self.folder} promises nothing (method={self.auditing.run.method}), and has no "
            "canaries by coins: there is nothing to audit. Attack it instead: tacit attack."
        )
