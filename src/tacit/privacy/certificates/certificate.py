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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from pydantic import model_validator

from tacit.errors import DataError, PrivacyRefused
from tacit.files import whole_file
from tacit.privacy.accounting.claims import PublishedPrice
from tacit.privacy.accounting.price_cache import code_version
from tacit.privacy.accounting.pricing import Price, adversary_gain, best_accuracy, price
from tacit.privacy.certificates.documents import (
    FILE,
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
    Plugin,
    PublicInput,
    Scope,
    Standing,
    plugins_of,
    stated,
    worst_standing,
)
from tacit.privacy.certificates.wording import (
    MODEL,
    TEXT,
    Released,
    assumptions,
    claimed,
    guarantee,
    not_covered,
)
from tacit.privacy.events import Unit, whole_passes
from tacit.privacy.ledger import Ledger, LedgerContents, read_ledger
from tacit.privacy.rounding import up

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

    format: Literal[2, "text-2"] = 2
    """Of a model's certificate, or of a text's, which lies beside this folder."""
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
    def released(self) -> Released:
        """What the promise is about."""
        return MODEL if self.format == 2 else TEXT

    @property
    def epsilon(self) -> float:
        """Epsilon for what is protected."""
        return float(self.costs[self.protect].epsilon)

    def __repr__(self) -> str:
        price = f"epsilon {up(self.epsilon)} at delta {up(self.delta)}"
        return f"Certificate({self.standing}, {self.protect}, {price})"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """What a notebook shows: the page."""
        from tacit.notebook import framed
        from tacit.privacy.certificates.explanation import certificate_html

        return framed(certificate_html(self))


@dataclass(frozen=True)
class Promise:
    """What a certificate is asked to state: for whom, at which delta, and the plan that was kept.

    `plan` has no fields where there was none; `by_degree` is as in `wording.guarantee`.
    """

    protect: Unit
    units: tuple[Unit, ...]
    delta: float
    plan: Mapping[str, Any]
    by_degree: int | None = None


def certify(
    contents: LedgerContents,
    promise: Promise,
    *,
    published: PublishedPrice | None = None,
    context: Mapping[str, Any] | None = None,
    files: Mapping[str, str] | None = None,
) -> Certificate:
    """The certificate for what a ledger says was released.

    `context` holds what else the reader should know. With a `published` claim and no plan the
    standing is that claim's, and what is proved stands beside it: the costs are computed from the
    ledger all the same. Where a plan was kept, its promise stands, and the claim beside it.

    Settings, data and randomness, whom the promise is about, which inputs are said to be public,
    what leaks and what is inherited from a run that was continued stand in the ledger's first
    line, before any release.
    """
    about = contents.about
    scope, public, earlier = stated(about)
    _need_scope(scope, promise)
    leaks, seeded = _leaks(about, earlier), _seeded(about, earlier)
    released: Released = TEXT if about.get("released") == TEXT else MODEL
    replaces = published is not None and not promise.plan
    releases = whole_passes(contents.releases())
    costs = {
        unit: _cost(price(releases, unit, promise.delta, fresh=True), contents)
        for unit in promise.units
    }
    standing, sentence = _stands(
        promise, costs[promise.protect], scope, leaks, seeded, published, released
    )
    foreign = plugins_of(about)
    open_points = not_covered(releases, promise.by_degree, leaks, scope.entities, released)
    open_points += [p for p in (earlier.not_covered if earlier else ()) if p not in open_points]
    assumed = assumptions(
        releases, promise.by_degree, capped=not replaces, public=public, earlier=earlier,
        released=released,
    )  # fmt: skip
    assumed += [one.assumption for one in foreign]
    return Certificate(
        format=2 if released == MODEL else "text-2",
        standing=_no_better(standing, contents, earlier, foreign),
        protect=promise.protect,
        sentence=sentence,
        scope=scope,
        delta=promise.delta,
        costs=costs,
        plan=json.loads(json.dumps(dict(promise.plan), allow_nan=False)),
        plan_digest=about.get("plan") or "",
        ledger_digest=contents.digest,
        ledger_entries=len(contents.entries),
        phases=contents.phases(),
        assumptions=tuple(assumed),
        not_covered=tuple(open_points),
        public=public,
        earlier=earlier,
        context=dict(context or {}),
        files=dict(files or {}),
        provenance=_provenance(about),
        published=_claim(published),
    )


def _leaks(about: Mapping[str, Any], earlier: Inherited | None) -> list[str]:
    """What leaks, by the ledger's first line and by that of a run that was continued."""
    leaks = [str(leak) for leak in about.get("leaks", ())]
    return leaks + [leak for leak in (earlier.leaks if earlier else ()) if leak not in leaks]


def _seeded(about: Mapping[str, Any], earlier: Inherited | None) -> bool:
    """Whether the noise of this run, or of one that it continues, can be drawn again."""
    return "fixed seed" in (_made_of(about)["randomness"], earlier and earlier.randomness)


def _no_better(
    standing: Standing,
    contents: LedgerContents,
    earlier: Inherited | None,
    foreign: Sequence[Plugin],
) -> Standing:
    """The standing, no better than that of the run that is continued and of others' code."""
    if earlier is not None:
        standing = worst_standing([standing, earlier.standing])
    standing = worst_standing([standing, *(one.standing for one in foreign)])
    if contents.broken:
        standing = "broken"
    return standing


def _provenance(about: Mapping[str, Any]) -> Provenance:
    """What made the certificate: today, by this code, of what the ledger's first line names."""
    return Provenance(
        tacit=version("tacit"),
        dp_accounting=version("dp-accounting"),
        accounting=code_version(),
        created=today(),
        **_made_of(about),
    )


def _made_of(about: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, the data and the randomness that a ledger's first line names."""
    made = {name: about.get(name) for name in ("config", "data", "randomness")}
    if not all(isinstance(value, str) for value in made.values()) or made[
        "randomness"
    ] not in get_args(Randomness):
        raise DataError(
            "The ledger's first line does not name settings, data and randomness in a form that "
            "this version knows; train again."
        )
    return made


def _stands(
    promise: Promise,
    cost: Cost,
    scope: Scope,
    leaks: Sequence[str],
    seeded: bool,
    published: PublishedPrice | None,
    released: Released,
) -> tuple[Standing, str]:
    """The standing and the sentence of a promise, after whatever takes it away."""
    epsilon, delta = float(cost.epsilon), promise.delta
    sentence = guarantee(
        promise.protect, cost.adjacency, epsilon, delta, promise.by_degree, scope.entities,
        released,
    )  # fmt: skip
    standing: Standing = "heuristic"
    if math.isfinite(epsilon) and not seeded and not leaks:
        standing = "proved"
    replaces = published is not None and not promise.plan
    if published is not None and replaces:
        standing = published.standing
        sentence = claimed(published.source, published.epsilon[promise.protect], delta, sentence)
    if leaks and math.isfinite(epsilon):
        sentence = f"{LEAKS} Of the weights alone: {sentence}"
    if seeded and (math.isfinite(epsilon) or replaces):
        sentence = f"{NOT_FOR_RELEASE} With unpredictable randomness it would be: {sentence}"
    return standing, sentence


def _need_scope(scope: Scope, promise: Promise) -> None:
    """Refuse a promise about entities that does not say which, or says other ones than the plan."""
    about = "entities" in promise.protect or "names" in promise.protect
    if not about or not promise.plan:
        return
    meant, kinds = scope.entities, promise.plan.get("kinds")
    if (
        meant is None
        or meant.kinds != (None if kinds is None else tuple(kinds))
        or meant.entity_list != promise.plan.get("entity_list")
        or meant.public != tuple(promise.plan.get("public_entities") or ())
    ):
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


def _cost(found: Price, contents: LedgerContents) -> Cost:
    releases = contents.releases()
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

Kind = TypeVar("Kind", bound=Document)


def core_digest(certificate: Document) -> str:
    """A digest of everything a certificate says but the ledger's own, which comes after it."""
    return canonical_digest(certificate.model_dump(mode="json", exclude={"ledger_digest"}))


def bind(certificate: Kind, folder: Path, binds: Mapping[str, Any]) -> Kind:
    """The certificate with the digest of its ledger, whose last line now binds it."""
    path = folder / "ledger.jsonl"
    with Ledger(path, read_ledger(path).about) as ledger:
        return certificate.model_copy(update={"ledger_digest": ledger.close(binds)})


def write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Files of a folder, each whole or not at all."""
    for name, text in texts.items():
        with whole_file(folder / name) as draft:
            draft.write_text(text, encoding="utf-8")


def publish(certificate: Certificate, folder: Path) -> Certificate:
    """Bind a certificate by the ledger's last line, and write it: for programs, and for people."""
    from tacit.privacy.certificates.explanation import certificate_html, certificate_markdown

    binds: dict[str, Any] = {"certificate": core_digest(certificate), "files": certificate.files}
    if certificate.standing == "broken":
        binds["broken"] = True  # whatever is certified from this ledger later is broken too
    bound = bind(certificate, folder, binds)
    write_texts(
        folder,
        {
            FILE: bound.to_json(),
            "certificate.md": certificate_markdown(bound),
            "certificate.html": certificate_html(bound),
        },
    )
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
    write_texts(folder, {path.name: warned})
    changes["files"] = {**certificate.files, "README.md": file_digest(path)}


def today() -> str:
    """The day, as findings are dated."""
    return datetime.now(UTC).strftime("%Y-%m-%d")


def read_certificate(path: Path) -> Certificate:
    """The certificate of a file; anything unknown in it is refused."""
    return read_document(path, Certificate)
