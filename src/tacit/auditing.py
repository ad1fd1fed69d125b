"""From what an attack achieved to a lower bound on epsilon, and a verdict on the certificate.

An audit knows one thing about the mechanism: whatever is (epsilon, delta)-private keeps an
adversary from guessing too well. If one guesses better, epsilon must be larger than claimed, with
stated confidence; that it does not is no proof of anything.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy import stats

from tacit.errors import DataError, UsageError
from tacit.fields import read_fields, write_fields
from tacit.privacy.certificate import Certificate, Finding, amend, today
from tacit.privacy.rounding import down, up

Verdict = Literal["consistent", "contradicted", "inconclusive"]
FORMAT, VERSION = "tacit-audit", 1
MEANINGFUL = 0.25
"""A bound below this share of what is certified says too little to be called consistent."""


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
            f"canaries={canaries}, guesses={guesses}, correct={correct} cannot be; each is at most "
            "the one before."
        )
    _need_rates(delta, confidence)

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


def rates_bound(
    hits: int, members: int, false_alarms: int, others: int, delta: float, confidence: float = 0.95
) -> float:
    """The largest epsilon that true and false positives of independent runs rule out.

    Exact intervals, half of the doubt on either rate; both the test and its complement count.

    >>> round(rates_bound(300, 1000, 10, 1000, 1e-5), 4)
    2.6971
    """
    if not (0 <= hits <= members and 0 <= false_alarms <= others and members and others):
        raise UsageError("Hits and false alarms cannot be more than were tried, nor tried be 0.")
    _need_rates(delta, confidence)
    tail = (1 - confidence) / 2
    tpr = float(stats.beta.ppf(tail, hits, members - hits + 1)) if hits else 0.0
    fpr = (
        float(stats.beta.ppf(1 - tail, false_alarms + 1, others - false_alarms))
        if false_alarms < others
        else 1.0
    )
    found = 0.0
    for right, wrong in ((tpr, fpr), (1 - fpr, 1 - tpr)):
        if right > delta and wrong > 0:
            found = max(found, math.log((right - delta) / wrong))
    return found


def _need_rates(delta: float, confidence: float) -> None:
    if not 0 <= delta < 1:
        raise UsageError(f"delta={delta} is not a probability below 1.")
    if not 0.5 <= confidence < 1:
        raise UsageError(f"confidence={confidence} cannot be; give a number from 0.5 up to 1.")


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
class Audit:
    """What was found out about one unit, beside what is certified for it."""

    unit: str
    delta: float
    evidence: Evidence
    upper: float
    claimed: float | None
    verdict: Verdict

    @property
    def lower(self) -> float:
        """Epsilon is at least this, at the evidence's confidence."""
        return self.evidence.lower

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        sure = f"{self.evidence.confidence:.0%} confidence"
        bound = f"epsilon for {self.unit} is at least {down(self.lower)} ({sure})"
        said = "nothing" if math.isinf(self.upper) else up(self.upper)
        if self.claimed is not None:
            said += f", a paper {up(self.claimed)}"
        if self.verdict == "contradicted":
            return f"Contradicted: {bound}, and the certificate says {said}."
        if self.verdict == "consistent":
            return f"Consistent: {bound}, and the certificate says {said}."
        return (
            f"Inconclusive: the bound is {down(self.lower)} ({sure}), the certificate says {said}."
        )

    def as_dict(self) -> dict[str, Any]:
        """Fields for JSON."""
        fields = asdict(self)
        fields["upper"] = "infinity" if math.isinf(self.upper) else self.upper
        return fields | {"lower": self.lower, "sentence": self.sentence}


def judge(certificate: Certificate, unit: str, evidence: Evidence) -> Audit:
    """The verdict on what a certificate says about a unit.

    A paper's claim is judged with it where the claim is what the certificate stands on; beside a
    price of our own it is only shown, and may well be contradicted.
    """
    costs = {str(name): cost for name, cost in certificate.costs.items()}
    if unit not in costs:
        raise UsageError(f"unit={unit} is not in the certificate; it speaks of {', '.join(costs)}.")
    upper = float(costs[unit].epsilon)
    claim = (certificate.published or {}).get("epsilon", {}).get(unit)
    claimed = None if claim is None else float(claim)
    # With a plan, the promise is the plan's.
    held = (upper, None if certificate.plan else claimed)
    said = [value for value in held if value is not None and math.isfinite(value)]
    verdict: Verdict = "inconclusive"
    if any(evidence.lower > value for value in said):
        verdict = "contradicted"
    elif said and evidence.lower >= MEANINGFUL * min(said):
        verdict = "consistent"
    return Audit(unit, certificate.delta, evidence, upper, claimed, verdict)


def write_audit(folder: Path, audits: list[Audit]) -> None:
    """`audit.json` in a run's folder; a contradiction makes the certificate's standing `broken`."""
    fields: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    write_fields(folder / "audit.json", fields | {"audits": [audit.as_dict() for audit in audits]})
    broken = any(audit.verdict == "contradicted" for audit in audits)
    for audit in audits:
        found = Finding(kind="audit", outcome=audit.sentence, date=today())
        amend(folder, finding=found, broken=broken)


def read_audit(path: Path) -> list[Audit]:
    """The audits of a file that `write_audit` wrote."""
    fields = read_fields(path, FORMAT, VERSION)
    try:
        return [_audit(one) for one in fields["audits"]]
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{path} does not hold an audit; run tacit audit again.") from None


def _audit(fields: Mapping[str, Any]) -> Audit:
    return Audit(
        unit=str(fields["unit"]),
        delta=float(fields["delta"]),
        evidence=Evidence(**fields["evidence"]),
        upper=math.inf if fields["upper"] == "infinity" else float(fields["upper"]),
        claimed=None if fields["claimed"] is None else float(fields["claimed"]),
        verdict=fields["verdict"],
    )


def from_canaries(
    planted: Mapping[str, bool],
    scores: Mapping[str, float],
    delta: float,
    *,
    guesses: int | None = None,
    confidence: float = 0.95,
) -> Evidence:
    """A lower bound from canaries that a trained model was or was not shown, by fair coins.

    A higher score means rather in. The half of the guesses with the highest scores is guessed in,
    the half with the lowest out; how many is fixed by the number of canaries, not by the scores.
    """
    names = sorted(planted)
    if len(names) < 10:
        raise DataError(
            f"{len(names)} canaries by coins are too few for an audit; plant at least ten "
            "(tacit canaries plant --coins --each 500)."
        )
    guesses = min(guesses or max(2, len(names) // 4), len(names))
    order = sorted(names, key=lambda name: -scores[name])
    high = (guesses + 1) // 2
    right = sum(planted[name] for name in order[:high])
    right += sum(not planted[name] for name in order[len(order) - (guesses - high) :])
    lower = one_run_bound(len(names), guesses, right, delta, confidence)
    return Evidence(
        "black box: canaries in or out by fair coins, one training run, guessed by loss",
        lower,
        confidence,
        len(names),
        guesses,
        right,
    )
