"""The guarantee and its conditions, in a file that anyone can check offline.

A certificate is made from a plan and a ledger, and holds nothing about the data that the guarantee
does not cover: in particular no plain digest of the corpus, which would let somebody who knows all
but one record test for that one. The data are named by a *commitment*, a digest with a secret salt
that stays with whoever holds the data.

The certificate names every file that it speaks for (its manifest), and the ledger's last line
binds both: neither can be exchanged without the other.
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

from pydantic import model_validator

from tacit.errors import DataError, PrivacyRefused
from tacit.files import whole_file
from tacit.privacy.accounting.claims import PublishedPrice
from tacit.privacy.accounting.price_cache import code_version
from tacit.privacy.accounting.pricing import Price, adversary_gain, best_accuracy, price
from tacit.privacy.certificates.documents import (
    Document,
    Frozen,
    Infinite,
    Randomness,
    canonical_digest,
    finite,
    read_document,
)
from tacit.privacy.certificates.manifest import Manifest, digest_in, file_digest
from tacit.privacy.certificates.scope import (
    Inherited,
    PublicInput,
    Scope,
    Standing,
    stated,
    worst_standing,
)
from tacit.privacy.certificates.wording import assumptions, claimed, guarantee, not_covered
from tacit.privacy.events import Unit, whole_passes
from tacit.privacy.ledger import Books, Ledger, read_ledger

__all__ = ["Certificate", "Cost", "Finding", "Provenance", "Standing", "amend", "commitment",
           "core_digest", "file_digest", "issue", "new_salt", "own_salt", "publish",
           "read_certificate"]  # fmt: skip

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
    accuracy: float
    """How often a guess between the two neighbours is right at most, at even odds."""


class Provenance(Frozen):
    """Which code made this, from which settings and data, with which randomness."""

    tacit: str
    dp_accounting: str
    accounting: str
    """A digest of the code that prices, and of the libraries it stands on."""
    config: str
    data: str
    randomness: Randomness
    created: str


class Finding(Frozen):
    """What somebody found by trying: an audit or an attack, its outcome in words, and the day."""

    kind: Literal["audit", "attack"]
    outcome: str
    date: str


class Certificate(Document):
    """What is promised, computed from the ledger; arguments: docs/explanations/guarantees.md."""

    format: Literal[2] = 2
    standing: Standing
    protect: Unit
    sentence: str
    scope: Scope
    delta: float
    costs: dict[Unit, Cost]
    plan: dict[str, Any]
    plan_digest: str
    ledger_digest: str
    ledger_entries: int
    phases: dict[str, int]
    assumptions: tuple[str, ...]
    not_covered: tuple[str, ...]
    public: tuple[PublicInput, ...]
    earlier: Inherited | None
    context: dict[str, Any]
    files: Manifest
    provenance: Provenance
    published: dict[str, Any] | None = None
    """What a paper claims for the same releases, where the method is a paper's."""
    findings: tuple[Finding, ...] = ()

    @model_validator(mode="after")
    def _has_its_price(self) -> "Certificate":
        if self.protect not in self.costs:
            raise ValueError("what is protected has no price")
        return self

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
    files: Mapping[str, str] | None = None,
) -> Certificate:
    """The certificate for what a ledger says was released.

    `context` holds what else the reader should know; `data` is a commitment, not a digest;
    `by_degree` as in `wording.guarantee`. With a `published` claim and no plan the standing is
    that claim's, and what is proved stands beside it: the costs are computed from the ledger all
    the same. Where a plan was kept, its promise stands, and the claim beside it.

    Whom the promise is about, which inputs are said to be public, what leaks and what is inherited
    from a run that was continued stand in the ledger's first line, before any release.
    """
    scope, public, earlier = stated(books.about)
    _need_scope(scope, plan, protect)
    leaks = [str(leak) for leak in books.about.get("leaks", ())]
    leaks += [leak for leak in (earlier.leaks if earlier else ()) if leak not in leaks]
    seeded = "fixed seed" in (randomness, earlier.randomness if earlier else randomness)
    replaces = published is not None and not plan
    releases = whole_passes(books.releases())
    costs = {unit: _cost(price(releases, unit, delta, fresh=True), books) for unit in units}
    main = costs[protect]
    epsilon = float(main.epsilon)
    sentence = guarantee(protect, main.adjacency, epsilon, delta, by_degree, scope.entities)
    standing: Standing = "heuristic"
    if math.isfinite(epsilon) and not seeded and not leaks:
        standing = "proved"
    if published is not None and replaces:
        standing = published.standing
        sentence = claimed(published.source, published.epsilon[protect], delta, sentence)
    if leaks and math.isfinite(epsilon):
        sentence = f"{LEAKS} Of the weights alone: {sentence}"
    if seeded and (math.isfinite(epsilon) or replaces):
        sentence = f"{NOT_FOR_RELEASE} With unpredictable randomness it would be: {sentence}"
    if earlier is not None:
        standing = worst_standing([standing, earlier.standing])
    if books.broken:
        standing = "broken"
    open_points = not_covered(releases, by_degree, leaks, scope.entities)
    open_points += [p for p in (earlier.not_covered if earlier else ()) if p not in open_points]
    return Certificate(
        standing=standing,
        protect=protect,
        sentence=sentence,
        scope=scope,
        delta=delta,
        costs=costs,
        plan=json.loads(json.dumps(dict(plan), allow_nan=False)),
        plan_digest=plan_digest,
        ledger_digest=books.digest,
        ledger_entries=len(books.entries),
        phases={phase: sum(books.releases(phase).values()) for phase in books.phases()},
        assumptions=tuple(
            assumptions(releases, by_degree, capped=not replaces, public=public, earlier=earlier)
        ),
        not_covered=tuple(open_points),
        public=public,
        earlier=earlier,
        context=dict(context or {}),
        files=dict(files or {}),
        provenance=Provenance(
            tacit=version("tacit"),
            dp_accounting=version("dp-accounting"),
            accounting=code_version(),
            config=config_digest,
            data=data,
            randomness=randomness,
            created=datetime.now(UTC).strftime("%Y-%m-%d"),
        ),
        published=_claim(published),
    )


def _need_scope(scope: Scope, plan: Mapping[str, Any], protect: Unit) -> None:
    """Refuse a promise about entities that does not say which, or says other ones than the plan."""
    if "entities" not in protect or not plan:
        return
    meant = scope.entities
    kinds = plan.get("kinds")
    same = (
        meant is not None
        and meant.kinds == (None if kinds is None else tuple(kinds))
        and meant.entity_list == plan.get("entity_list")
    )
    if not same:
        raise PrivacyRefused(
            "The ledger's first line does not say which entities the plan protects, so nothing can "
            "be promised for them; train again."
        )


def _claim(published: PublishedPrice | None) -> dict[str, Any] | None:
    if published is None:
        return None
    fields = published.as_dict()
    fields["epsilon"] = {unit: finite(value) for unit, value in fields["epsilon"].items()}
    made: dict[str, Any] = json.loads(json.dumps(fields, allow_nan=False))
    return made


def _cost(found: Price, books: Books) -> Cost:
    releases = books.releases()
    gains = adversary_gain(releases, found.unit, found.delta, fresh=True)
    return Cost(
        epsilon=finite(found.epsilon),
        no_less_than=finite(found.lower),
        accountant=found.accountant,
        adjacency=found.adjacency,
        opinions={name: finite(value) for name, value in found.opinions},
        true_positive_rate={f"{gain.fpr:g}": gain.tpr for gain in gains},
        accuracy=best_accuracy(releases, found.unit, found.delta, fresh=True),
    )


# --- names of data ------------------------------------------------------------------------------


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


# --- files --------------------------------------------------------------------------------------


def core_digest(certificate: Certificate) -> str:
    """A digest of everything a certificate says but the ledger's own, which comes after it."""
    return canonical_digest(certificate.model_dump(mode="json", exclude={"ledger_digest"}))


def publish(certificate: Certificate, folder: Path) -> Certificate:
    """Bind a certificate by the ledger's last line, and write it: for programs, and for people."""
    from tacit.privacy.certificates.explanation import certificate_html, certificate_markdown

    path = folder / "ledger.jsonl"
    binds: dict[str, Any] = {
        "certificate": core_digest(certificate),
        "files": certificate.files,
    }
    if certificate.standing == "broken":
        binds["broken"] = True  # whatever is certified from this ledger later is broken too
    with Ledger(path, read_ledger(path).about) as ledger:
        digest = ledger.close(binds)
    bound = certificate.model_copy(update={"ledger_digest": digest})
    for name, text in (
        ("certificate.json", bound.to_json()),
        ("certificate.md", certificate_markdown(bound)),
        ("certificate.html", certificate_html(bound)),
    ):
        with whole_file(folder / name) as draft:
            draft.write_text(text, encoding="utf-8")
    return bound


def amend(
    folder: Path,
    *,
    finding: Finding | None = None,
    broken: bool = False,
    context: Mapping[str, Any] | None = None,
) -> Certificate:
    """Write into a certificate what was found out later; a signature is void after that.

    Refused where the certificate is not the one that the ledger binds, or its files changed: to
    bind it anew would make an edited one look whole, with a finding about something else. That it
    is broken is written whatever became of its files.
    """
    certificate = read_certificate(folder / "certificate.json")
    _need_as_certified(certificate, {} if broken else certificate.files, folder)
    changes: dict[str, Any] = {}
    if finding is not None:
        same = (finding.kind, finding.outcome)
        others = [f for f in certificate.findings if (f.kind, f.outcome) != same]
        changes["findings"] = (*others, finding)
    if broken:
        changes["standing"] = "broken"
        _warn_on_card(folder, certificate, changes)
    if context is not None:
        changes["context"] = {**certificate.context, **context}
    return publish(certificate.model_copy(update=changes), folder)


def _need_as_certified(certificate: Certificate, files: Manifest, folder: Path) -> None:
    closing = read_ledger(folder / "ledger.jsonl").closing or {}
    if closing.get("certificate") != core_digest(certificate):
        raise PrivacyRefused(
            f"{folder / 'certificate.json'} is not what the ledger's last line binds, so nothing "
            "is added to it; put the certificate back that was issued."
        )
    for name, digest in files.items():
        if (folder / name).exists() and digest_in(folder, name) != digest:
            raise PrivacyRefused(
                f"{name} in {folder} is not the file that was certified, so nothing is added to "
                "the certificate; put that file back."
            )


_CARD_HEADING = "## What it promises\n\n"


def _warn_on_card(folder: Path, certificate: Certificate, changes: dict[str, Any]) -> None:
    """Say on the model card, too, that a certificate is broken."""
    from tacit.privacy.certificates.explanation import headline

    path = folder / "README.md"
    if not path.exists() or certificate.standing == "broken":
        return
    said = headline(certificate.model_copy(update={"standing": "broken"}))
    text = path.read_text(encoding="utf-8")
    warned = text.replace(_CARD_HEADING, f"{_CARD_HEADING}{said} Until then it said:\n\n", 1)
    with whole_file(path) as draft:
        draft.write_text(warned, encoding="utf-8")
    changes["files"] = {**certificate.files, "README.md": file_digest(path)}


def today() -> str:
    """The day, as findings are dated."""
    return datetime.now(UTC).strftime("%Y-%m-%d")


def read_certificate(path: Path) -> Certificate:
    """The certificate of a file; anything unknown in it is refused."""
    return read_document(path, Certificate)
