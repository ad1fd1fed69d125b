"""From what an attack achieved to a lower bound on epsilon, and a verdict on the certificate.

An audit knows one thing about the mechanism: whatever is (epsilon, delta)-private keeps an
adversary from guessing too well. If one guesses better, epsilon must be larger than claimed, with
stated confidence; that it does not is no proof of anything.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter
from scipy import stats

from tacit.errors import DataError, UsageError
from tacit.privacy.certificates.certificate import Certificate, Finding, amend, today
from tacit.privacy.rounding import down, up
from tacit.saved_json import read_fields, spelled, write_fields

Verdict = Literal["consistent", "contradicted", "broken", "inconclusive"]
BREAKING: tuple[Verdict, ...] = ("contradicted", "broken")
"""The verdicts after which a certificate's standing is `broken`."""
FORMAT, VERSION = "tacit-audit", 1
MEANINGFUL = 0.25
"""A bound below this share of what is certified says too little to be called consistent."""
WANTED = 1 / 3
"""An audit should be able to show this share of what is certified."""


def one_run_bound(
    canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95
) -> float:
    """The largest epsilon that so many right guesses about independent canaries rule out.

    Each of `canaries` was in or out by a fair coin of its own, in one run; `guesses` of them were
    guessed at, a number fixed before looking. 0 where nothing is ruled out.

    Source: Steinke, Nasr and Jagielski 2023, Theorem 5.2.

    >>> round(one_run_bound(1000, 100, 90, 1e-5), 4)
    1.6261
    """
    if not 0 <= correct <= guesses <= canaries or guesses < 1:
        raise UsageError(
            f"canaries={canaries}, guesses={guesses}, correct={correct}: each must be at most the "
            "one before, and guesses at least 1."
        )
    _require_rates(delta, confidence)

    def p_value(epsilon: float) -> float:
        share = 1 / (1 + math.exp(-epsilon))
        # f[j] = P[Bin(guesses, share) >= j]
        f = stats.binom.sf(np.arange(-1, correct), guesses, share)
        own = float(f[correct])
        if correct == 0 or delta == 0:
            return own
        ahead = (f[correct - 1 :: -1] - own) / np.arange(1, correct + 1)
        return own + 2 * canaries * delta * float(ahead.max())

    return _largest(lambda epsilon: p_value(epsilon) <= 1 - confidence)


def best_bound(canaries: int, delta: float, confidence: float = 0.95) -> float:
    """What so many canaries could show at best: every guess right, as many as it takes.

    >>> round(best_bound(64, 1e-5), 2), round(best_bound(32768, 1e-5), 2)
    (3.04, 8.24)
    """
    tried = {canaries} | {canaries >> halved for halved in range(1, 20) if canaries >> halved}
    return max(one_run_bound(canaries, n, n, delta, confidence) for n in tried)


def canaries_for(epsilon: float, delta: float, confidence: float = 0.95) -> int | None:
    """The least power of two of canaries that could show a third of epsilon; None if none can.

    >>> canaries_for(8, 1e-5)
    64
    """
    for count in (1 << power for power in range(4, 18)):
        if best_bound(count, delta, confidence) >= WANTED * epsilon:
            return count
    return None


def rates_bound(
    hits: int, members: int, false_alarms: int, others: int, delta: float, confidence: float = 0.95
) -> float:
    """The largest epsilon that true and false positives of independent runs rule out.

    Exact intervals, half of the doubt on either rate; both the test and its complement count.

    >>> round(rates_bound(300, 1000, 10, 1000, 1e-5), 4)
    2.6971
    """
    if not (0 <= hits <= members and 0 <= false_alarms <= others and members and others):
        raise UsageError(
            f"{hits} of {members} hits and {false_alarms} of {others} false alarms: give at least "
            "one trial of each, and no more hits or alarms than trials."
        )
    _require_rates(delta, confidence)
    tail = (1 - confidence) / 2
    tpr = float(stats.beta.ppf(tail, hits, members - hits + 1)) if hits else 0.0
    fpr = 1.0
    if false_alarms < others:
        fpr = float(stats.beta.ppf(1 - tail, false_alarms + 1, others - false_alarms))
    found = 0.0
    for right, wrong in ((tpr, fpr), (1 - fpr, 1 - tpr)):
        if right > delta and wrong > 0:
            found = max(found, math.log((right - delta) / wrong))
    return found


def _require_rates(delta: float, confidence: float) -> None:
    if not 0 <= delta < 1:
        raise UsageError(f"delta={delta} is not a probability below 1.")
    if not 0.5 <= confidence < 1:
        raise UsageError(
            f"confidence={confidence} is not a confidence; give a number from 0.5 up to 1."
        )


def _largest(ruled_out: Any) -> float:
    """The largest epsilon that is ruled out; p-values grow with epsilon."""
    if not ruled_out(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while ruled_out(high) and high < 64:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if ruled_out(middle) else (low, middle)
    return low


@dataclass(frozen=True)
class Evidence:
    """How a lower bound was found: nothing in it speaks of anybody's text."""

    how: str
    lower: float
    confidence: float
    canaries: int
    guesses: int
    correct: int
    details: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """One fact about a run that no lower bound shows, and whether it is as it should be."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, repr=False)
class Audit:
    """What was found out about one unit, beside what is certified for it.

    `part` is the price of the releases that were audited, where these are not all of the run's:
    the bound is compared with that.
    """

    unit: str
    delta: float
    evidence: Evidence
    upper: float
    claimed: float | None
    verdict: Verdict
    part: float | None = None
    checks: tuple[Check, ...] = ()

    def __repr__(self) -> str:
        passed = f"{len(self.checks) - len(self.failed)} of {len(self.checks)} checks passed"
        return f"Audit({self.sentence} {passed})" if self.checks else f"Audit({self.sentence})"

    @property
    def lower(self) -> float:
        """Epsilon is at least this, at the evidence's confidence."""
        return self.evidence.lower

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if not check.passed)

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        sure = f"{self.evidence.confidence:.0%} confidence"
        bound = f"epsilon for {self.unit} is at least {down(self.lower)} ({sure})"
        if self.verdict == "broken":
            first = self.failed[0]
            wrong = f"it does not hold that {first.name} ({first.detail})"
            return f"Broken: {wrong}; {bound}, and {self._said}."
        if self.verdict in ("contradicted", "consistent"):
            return f"{self.verdict.capitalize()}: {bound}, and {self._said}."
        return f"Inconclusive: the bound is {down(self.lower)} ({sure}), {self._said}."

    @property
    def _said(self) -> str:
        said = "nothing" if math.isinf(self.upper) else up(self.upper)
        if self.claimed is not None:
            said += f", a paper {up(self.claimed)}"
        if self.part is None:
            return f"the certificate says {said}"
        return f"what was audited costs {up(self.part)} (the whole certificate says {said})"

    def as_dict(self) -> dict[str, Any]:
        """Fields for JSON."""
        fields: dict[str, Any] = spelled(asdict(self))
        return fields | {"lower": self.lower, "sentence": self.sentence}


def judge(
    certificate: Certificate,
    unit: str,
    evidence: Evidence,
    *,
    part: float | None = None,
    checks: Sequence[Check] = (),
) -> Audit:
    """The verdict on what a certificate says about a unit.

    A paper's claim is judged with it where the claim is what the certificate stands on; beside a
    price of our own it is only shown, and may well be contradicted. Where only some of the
    releases were audited, `part` is the price of these, and what the bound may not exceed. A
    failed check breaks the certificate, whatever the bound is.
    """
    upper = certified(certificate, unit)
    claim = (certificate.published or {}).get("epsilon", {}).get(unit)
    claimed = None if claim is None else float(claim)
    if part is not None and not part < upper:
        part = None
    # With a plan, the promise is the plan's.
    held = (upper, part, None if certificate.plan else claimed)
    said = [value for value in held if value is not None and math.isfinite(value)]
    verdict: Verdict = "inconclusive"
    if any(not check.passed for check in checks):
        verdict = "broken"
    elif any(evidence.lower > value for value in said):
        verdict = "contradicted"
    elif said and evidence.lower >= MEANINGFUL * min(said):
        verdict = "consistent"
    return Audit(
        unit, certificate.delta, evidence, upper, claimed, verdict, part, tuple(checks)
    )  # fmt: skip


def certified(certificate: Certificate, unit: str) -> float:
    """What a certificate says about a unit."""
    costs = {str(name): cost for name, cost in certificate.costs.items()}
    if unit not in costs:
        raise UsageError(f"unit={unit} is not in the certificate; it speaks of {', '.join(costs)}.")
    return float(costs[unit].epsilon)


def write_audit(folder: Path, audits: list[Audit]) -> None:
    """`audit.json` in a run's folder.

    A contradiction, or a check that failed, makes the certificate's standing `broken`.
    """
    fields: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    write_fields(folder / "audit.json", fields | {"audits": [audit.as_dict() for audit in audits]})
    broken = any(audit.verdict in BREAKING for audit in audits)
    for audit in audits:
        found = Finding(kind="audit", outcome=audit.sentence, date=today())
        amend(folder, finding=found, broken=broken)


def read_audit(path: Path) -> list[Audit]:
    """The audits of a file that `write_audit` wrote."""
    fields = read_fields(path, FORMAT, VERSION)
    try:
        return TypeAdapter(list[Audit]).validate_python(fields["audits"])
    except (KeyError, ValueError):
        raise DataError(f"{path} does not hold an audit; run tacit audit again.") from None


def guesses_of(
    canaries: int, delta: float, *, epsilon: float = 0.0, confidence: float = 0.95
) -> int:
    """How many planted canaries are guessed at: the surest quarter, or more.

    More where only that many, all of them right, could show a third of what is certified.

    >>> guesses_of(400, 1e-5), guesses_of(80, 1e-5), guesses_of(80, 1e-5, epsilon=8)
    (100, 20, 46)
    """
    if canaries < 10:
        raise DataError(
            f"{canaries} canaries by coins are too few for an audit; plant at least ten "
            "(tacit canaries plant --coins --each 500)."
        )
    for guesses in range(max(2, canaries // 4), canaries + 1, max(1, canaries // 40)):
        if one_run_bound(canaries, guesses, guesses, delta, confidence) >= WANTED * epsilon:
            return guesses
    return max(2, canaries // 4)


def from_canaries(
    planted: Mapping[str, bool],
    scores: Mapping[str, float],
    delta: float,
    *,
    epsilon: float = 0.0,
    confidence: float = 0.95,
) -> Evidence:
    """A lower bound from canaries that a trained model was or was not shown, by fair coins.

    A higher score means rather in. The half of the guesses with the highest scores is guessed in,
    the half with the lowest out; how many is fixed by the number of canaries and by what is
    certified (`epsilon`), not by the scores.
    """
    names = sorted(planted)
    guesses = guesses_of(len(names), delta, epsilon=epsilon, confidence=confidence)
    order = sorted(names, key=lambda name: -scores[name])
    high = (guesses + 1) // 2
    right = sum(planted[name] for name in order[:high])
    right += sum(not planted[name] for name in order[len(order) - (guesses - high) :])
    lower = one_run_bound(len(names), guesses, right, delta, confidence)
    best = one_run_bound(len(names), guesses, guesses, delta, confidence)
    how = "black box: canaries in or out by fair coins, one training run, guessed by loss"
    return Evidence(how, lower, confidence, len(names), guesses, right, {"at_best": best})
