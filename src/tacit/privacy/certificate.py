"""The guarantee and its conditions, in a file that anyone can check offline.

A certificate is made from a plan and a ledger, and holds nothing about the data that the guarantee
does not cover: in particular no plain digest of the corpus, which would let somebody who knows all
but one record test for that one. The data are named by a *commitment*, a digest with a secret salt
that stays with whoever holds the data.
"""

import hashlib
import hmac
import json
import math
import os
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from tacit.errors import DataError
from tacit.files import whole_file
from tacit.privacy.accounting import Price, adversary_gain, price
from tacit.privacy.documents import (
    Document,
    Frozen,
    Infinite,
    Randomness,
    finite,
    read_document,
    section,
    stated,
)
from tacit.privacy.events import Unit, whole_passes
from tacit.privacy.ledger import Books
from tacit.privacy.published.claims import PublishedPrice
from tacit.privacy.wording import STANDINGS, assumptions, claimed, guarantee, not_covered

Standing = Literal["proved", "published", "heuristic", "broken"]
NOT_FOR_RELEASE = (
    "Nothing is promised: the randomness came from a fixed seed, so the noise can be subtracted."
)

LEAKS = (
    "Nothing is promised for what is released: a part of it was made from the private text "
    "without protection."
)


class Cost(Frozen):
    """Epsilon for one unit, and how sure it is."""

    epsilon: Infinite
    no_less_than: Infinite
    accountant: str
    adjacency: str | None
    opinions: dict[str, Infinite]
    true_positive_rate: dict[str, float]
    """What an adversary is left with, at each false positive rate."""


class Provenance(Frozen):
    """Which code made this, from which settings and data, with which randomness."""

    tacit: str
    dp_accounting: str
    config: str
    data: str
    randomness: Randomness
    created: str


class Certificate(Document):
    """What is promised, computed from the ledger; see `docs/guarantees.md` for the arguments."""

    format: Literal[1] = 1
    standing: Standing
    protect: Unit
    sentence: str
    delta: float
    costs: dict[Unit, Cost]
    plan: dict[str, Any]
    plan_digest: str
    ledger_digest: str
    ledger_entries: int
    phases: dict[str, int]
    assumptions: tuple[str, ...]
    not_covered: tuple[str, ...]
    context: dict[str, Any]
    weights: dict[str, str]
    provenance: Provenance
    published: dict[str, Any] | None = None
    """What a paper claims for the same releases, where the method is a paper's."""

    @property
    def epsilon(self) -> float:
        """Epsilon for what is protected."""
        return float(self.costs[self.protect].epsilon)


def issue(
    books: Books,
    *,
    protect: Unit,
    units: tuple[Unit, ...],
    delta: float,
    plan: Mapping[str, Any],
    plan_digest: str,
    config_digest: str,
    data: str,
    randomness: Randomness,
    by_degree: int | None = None,
    published: PublishedPrice | None = None,
    context: Mapping[str, Any] | None = None,
    weights: Mapping[str, str] | None = None,
) -> Certificate:
    """The certificate for what a ledger says was released.

    `context` holds what else the reader must know (graph, vocabulary, detectors and their measured
    recall); `data` is a commitment, not a digest; `by_degree` as in `wording.guarantee`. With a
    `published` claim and no plan the standing is that claim's, and what is proved stands beside it:
    the costs are computed from the ledger all the same. Where a plan was kept, its promise stands,
    and the claim beside it. What the ledger's first line names as `leaks` is released unprotected
    beside the weights, so that nothing is promised for the whole.
    """
    leaks = [str(leak) for leak in books.about.get("leaks", ())]
    replaces = published is not None and not plan
    releases = whole_passes(books.releases())
    costs = {unit: _cost(price(releases, unit, delta, fresh=True), books) for unit in units}
    main = costs[protect]
    epsilon = float(main.epsilon)
    sentence = guarantee(protect, main.adjacency, epsilon, delta, by_degree)
    standing: Standing = "heuristic"
    if math.isfinite(epsilon) and randomness == "system" and not leaks:
        standing = "proved"
    if published is not None and replaces:
        standing = published.standing
        sentence = claimed(published.source, published.epsilon[protect], delta, sentence)
    if leaks and math.isfinite(epsilon):
        sentence = f"{LEAKS} Of the weights alone: {sentence}"
    if randomness == "fixed seed" and (math.isfinite(epsilon) or replaces):
        sentence = f"{NOT_FOR_RELEASE} With unpredictable randomness it would be: {sentence}"
    return Certificate(
        standing=standing,
        protect=protect,
        sentence=sentence,
        delta=delta,
        costs=costs,
        plan=json.loads(json.dumps(dict(plan), allow_nan=False)),
        plan_digest=plan_digest,
        ledger_digest=books.digest,
        ledger_entries=len(books.entries),
        phases={phase: sum(books.releases(phase).values()) for phase in books.phases()},
        assumptions=tuple(assumptions(releases, by_degree, capped=not replaces)),
        not_covered=tuple(not_covered(releases, by_degree, leaks)),
        context=dict(context or {}),
        weights=dict(weights or {}),
        provenance=Provenance(
            tacit=version("tacit"),
            dp_accounting=version("dp-accounting"),
            config=config_digest,
            data=data,
            randomness=randomness,
            created=datetime.now(UTC).strftime("%Y-%m-%d"),
        ),
        published=_claim(published),
    )


def _claim(published: PublishedPrice | None) -> dict[str, Any] | None:
    if published is None:
        return None
    fields = published.as_dict()
    fields["epsilon"] = {unit: finite(value) for unit, value in fields["epsilon"].items()}
    return json.loads(json.dumps(fields, allow_nan=False))


def _cost(found: Price, books: Books) -> Cost:
    gains = adversary_gain(books.releases(), found.unit, found.delta, fresh=True)
    return Cost(
        epsilon=finite(found.epsilon),
        no_less_than=finite(found.lower),
        accountant=found.accountant,
        adjacency=found.adjacency,
        opinions={name: finite(value) for name, value in found.opinions},
        true_positive_rate={f"{gain.fpr:g}": gain.tpr for gain in gains},
    )


def commitment(digest: str, salt: bytes) -> str:
    """A name for data that reveals nothing without the salt."""
    return "hmac-sha256:" + hmac.new(salt, digest.encode(), hashlib.sha256).hexdigest()


def new_salt() -> bytes:
    """A salt for `commitment`; it stays with whoever holds the data."""
    return secrets.token_bytes(32)


def own_salt() -> bytes:
    """The salt of this account, made once: the same corpus gets the same name in all its runs.

    It lies in `key` of the folder that TACIT_HOME names, else of `~/.config/tacit`.
    """
    home = Path(os.environ.get("TACIT_HOME") or Path.home() / ".config" / "tacit")
    path = home / "key"
    home.mkdir(parents=True, exist_ok=True)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(new_salt().hex())
    except FileExistsError:
        pass
    try:
        salt = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except (ValueError, OSError):
        salt = b""
    if len(salt) != 32:
        raise DataError(f"{path} does not hold a key; remove it, and a new one is made.")
    return salt


def file_digest(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_certificate(certificate: Certificate, folder: Path) -> None:
    """`certificate.json` for programs and `certificate.md` for people."""
    for name, text in (
        ("certificate.json", certificate.to_json()),
        ("certificate.md", render(certificate)),
    ):
        with whole_file(folder / name) as draft:
            draft.write_text(text, encoding="utf-8")


def read_certificate(path: Path) -> Certificate:
    """The certificate of a file; anything unknown in it is refused."""
    return read_document(path, Certificate)


def render(certificate: Certificate) -> str:
    """The certificate for people, in Markdown."""
    c = certificate
    rows = [
        f"| {unit} | {_shown(cost.epsilon)} | {_shown(cost.no_less_than)} | {cost.accountant} "
        f"| {cost.adjacency or '-'} | {_gains(cost)} |"
        for unit, cost in c.costs.items()
    ]
    warning = (
        ["> **Not for release**: the randomness came from a fixed seed, so the noise can be "
         "subtracted.", ""]
        if c.provenance.randomness == "fixed seed"
        else []
    )  # fmt: skip
    beside = _published_lines(c.published) if c.published else []
    lines = [
        "# Privacy certificate",
        "",
        *warning,
        c.sentence,
        "",
        f"Standing: **{c.standing}** ({STANDINGS[c.standing]}).",
        "",
        f"| one | epsilon at delta {c.delta:g} | no less than | accountant | neighbours "
        "| adversary right at most, when wrong 1 % / 0.1 % |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        *beside,
        *section("What is assumed", points=list(c.assumptions)),
        *section("What is not covered", points=list(c.not_covered)),
        *section(
            "Context",
            "Stated by whoever made this certificate; the ledger cannot show it.",
            points=stated(c.context) or ["nothing"],
        ),
        "## How to check this",
        "",
        "`tacit verify FOLDER` recomputes every figure from the ledger and the plan, without the "
        "data and without the model's code.",
        "",
        f"- ledger: {c.ledger_entries:,} releases, `{c.ledger_digest}`",
        *[f"  - {phase}: {count:,}" for phase, count in c.phases.items()],
        f"- plan: `{c.plan_digest}`",
        f"- settings: `{c.provenance.config}`",
        f"- data: `{c.provenance.data}` (a commitment; its salt stays with the data)",
        f"- randomness: {c.provenance.randomness}",
        f"- made by tacit {c.provenance.tacit} with dp-accounting {c.provenance.dp_accounting} "
        f"on {c.provenance.created}",
        *[f"- {name}: `{digest}`" for name, digest in c.weights.items()],
    ]
    return "\n".join(lines) + "\n"


def _published_lines(claim: Mapping[str, Any]) -> list[str]:
    figures = ", ".join(f"{_shown(value)} for {unit}" for unit, value in claim["epsilon"].items())
    bound = "It is a bound." if claim["is_bound"] else f"It is not a bound: {claim['why_not']}"
    return [
        "## What is claimed elsewhere",
        "",
        f"{claim['source']}: epsilon {figures}. {bound} The table above has what is proved for "
        "exactly what was released.",
        "",
    ]


def _shown(value: float | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _gains(cost: Cost) -> str:
    return " / ".join(f"{rate:.1%}" for rate in cost.true_positive_rate.values())
