"""Local privacy by distance: what sanitized text promises, and its certificate.

A word x is replaced by y with a probability that satisfies, for all words x, x' and outputs y,

    Pr[y | x] <= exp(epsilon_per_distance * d(x, x')) * Pr[y | x']         (metric-LDP)

with d a distance between words that is public. `santext+` has a weaker form (utility-optimized
metric-LDP): the inequality holds for outputs y in the sensitive vocabulary, with
epsilon_0 = ln(1 / replace_plain_rate) added to the exponent where x is sensitive and x' plain; any
other output is a plain word that stands for itself. The proofs are in docs/guides/sanitizing.md.

Epsilon of a pair of words is a product with their distance, so a certificate also shows the
distances: between a word and its 1st, 10th and 100th neighbour, and between any two words.

Whatever the certificate says is made from the ledger: its first line holds the public inputs, the
distances, the columns that are passed on and what leaks; its last line binds the certificate and
the corpus.
"""

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from tacit.errors import DataError, PrivacyRefused
from tacit.privacy.certificates.certificate import bind, core_digest, today, write_texts
from tacit.privacy.certificates.documents import (
    FILE,
    Document,
    Frozen,
    Infinite,
    Randomness,
    finite,
    read_document,
)
from tacit.privacy.certificates.local_wording import (
    CLAIMS,
    Notion,
    assumptions,
    headline_epsilon,
    leaks_of,
    not_covered,
    outside_the_text,
    sentence,
)
from tacit.privacy.certificates.manifest import Manifest
from tacit.privacy.certificates.scope import PublicInput
from tacit.privacy.events import AnyEvent, NotPrivate, SanitizedText
from tacit.privacy.ledger import LedgerContents

QUANTILES = ("10 %", "median", "90 %")
LENGTHS = (1, 10, 50)
"""For texts of how many words the bound is shown."""


class Reach(Frozen):
    """How far one kind of pair of words is apart, and what that means for a word and for a text.

    Keys of `distance` and `epsilon` are quantiles over the vocabulary; those of `texts` are
    numbers of words that all differ by the median distance.
    """

    distance: dict[str, float]
    epsilon: dict[str, Infinite]
    texts: dict[str, Infinite]


class Facts(Frozen):
    """The ledger's first line: all that a certificate says beside the releases themselves.

    `context` are public facts about the mechanism, `public` the inputs that are said to owe nothing
    to the private text, `leaks` what was made from it unprotected, `columns` those of the result.
    """

    data: str
    randomness: Randomness
    context: dict[str, Any]
    public: tuple[PublicInput, ...]
    distances: dict[str, dict[str, float]]
    columns: tuple[str, ...]
    leaks: tuple[str, ...]


class LocalCertificate(Document):
    """What a sanitized corpus promises, computed from its ledger and from public distances."""

    format: Literal["local-2"] = "local-2"
    standing: Literal["proved", "heuristic"]
    notion: Notion
    mechanism: str
    sentence: str
    epsilon_per_distance: Infinite
    epsilon_0: Infinite
    reach: dict[str, Reach]
    assumptions: tuple[str, ...]
    not_covered: tuple[str, ...]
    public: tuple[PublicInput, ...]
    context: dict[str, Any]
    columns: tuple[str, ...]
    ledger_digest: str
    ledger_entries: int
    files: Manifest
    data: str
    randomness: Randomness
    tacit: str
    created: str


def issue_local(contents: LedgerContents, files: Mapping[str, str]) -> LocalCertificate:
    """The certificate of a sanitized corpus, made from its ledger; `files` names the corpus."""
    facts = _facts(contents.about)
    event, others = _sanitizing(contents)
    return LocalCertificate(
        **(_nothing(others, facts) if event is None else _promise(event, facts)),
        public=facts.public,
        context=facts.context,
        columns=facts.columns,
        ledger_digest=contents.digest,
        ledger_entries=len(contents.entries),
        files=dict(files),
        data=facts.data,
        randomness=facts.randomness,
        tacit=version("tacit"),
        created=today(),
    )


def _facts(about: Mapping[str, Any]) -> Facts:
    try:
        return Facts.model_validate_json(json.dumps(dict(about), allow_nan=False))
    except (ValidationError, TypeError, ValueError):
        raise DataError(
            "The ledger's first line is not that of a sanitized corpus in a form that this version "
            "knows; sanitize again."
        ) from None


def _promise(event: SanitizedText, facts: Facts) -> dict[str, Any]:
    """What is to be said of text whose words were drawn anew."""
    seeded = facts.randomness == "fixed seed"
    leaks = leaks_of(event, facts.leaks)
    per_distance, extra = headline_epsilon(event, leaks)
    return {
        "standing": "heuristic" if seeded or leaks else "proved",
        "notion": CLAIMS[event.mechanism].notion,
        "mechanism": event.mechanism,
        "sentence": sentence(event, leaks, seeded=seeded),
        "epsilon_per_distance": per_distance,
        "epsilon_0": extra,
        # Of what is released as a whole nothing is promised where a part leaks: no figures.
        "reach": {}
        if leaks
        else {name: _reach(found, event) for name, found in facts.distances.items()},
        "assumptions": tuple(assumptions(event, facts.public)),
        "not_covered": tuple(not_covered(event, leaks, facts.columns)),
    }


def _nothing(others: list[AnyEvent], facts: Facts) -> dict[str, Any]:
    """What is to be said of text that was changed without a proof: that nothing is promised."""
    unprotected = [e.what for e in others if isinstance(e, NotPrivate)]
    return {
        "standing": "heuristic",
        "notion": "none",
        "mechanism": "none",
        "sentence": f"Nothing is promised: this is {'; '.join(unprotected)}.",
        "epsilon_per_distance": "infinity",
        "epsilon_0": "infinity",
        "reach": {},
        "assumptions": (),
        "not_covered": (
            *facts.leaks,
            *(f"Released without protection: {what}." for what in unprotected),
            *outside_the_text("words", facts.columns),
        ),
    }


def _sanitizing(contents: LedgerContents) -> tuple[SanitizedText | None, list[AnyEvent]]:
    """The one release of sanitized text, if there is one, and what else the ledger holds."""
    events = list(contents.releases())
    found = [e for e in events if isinstance(e, SanitizedText)]
    others: list[AnyEvent] = [e for e in events if not isinstance(e, SanitizedText)]
    if len(found) > 1 or (found and contents.releases()[found[0]] != 1):
        raise PrivacyRefused(
            "The ledger holds several releases of sanitized text; a certificate is about one."
        )
    strange = others if found else [e for e in others if not isinstance(e, NotPrivate)]
    if strange or not events:
        raise PrivacyRefused("The ledger of a sanitized corpus holds releases of another kind.")
    return found[0] if found else None, others


def _reach(distance: Mapping[str, float], event: SanitizedText) -> Reach:
    if set(distance) != set(QUANTILES):
        raise DataError("The ledger's distances are not quantiles that this version knows.")
    rate = event.epsilon_per_distance
    return Reach(
        distance=dict(distance),
        epsilon={name: finite(rate * d) for name, d in distance.items()},
        texts={str(n): finite(n * rate * distance["median"]) for n in LENGTHS},
    )


# --- files ----------------------------------------------------------------------------------------


def binding(certificate: LocalCertificate) -> dict[str, Any]:
    """What the ledger's last line holds: a digest of all the certificate says, and its files."""
    return {"certificate": core_digest(certificate), "files": dict(certificate.files)}


def publish_local(certificate: LocalCertificate, folder: Path) -> LocalCertificate:
    """Bind a certificate by the ledger's last line, and write it: for programs, and for people."""
    bound = bind(certificate, folder, binding(certificate))
    write_texts(folder, {FILE: bound.to_json(), **pages(bound)})
    return bound


def pages(certificate: LocalCertificate) -> dict[str, str]:
    """The certificate for people, by the names of its files."""
    from tacit.privacy.certificates.explanation import local_pages

    return local_pages(certificate)


def is_local(path: Path) -> bool:
    """Whether a certificate file is one of sanitized text."""
    try:
        return b'"local-' in path.read_bytes()[:200]
    except OSError:
        return False


def read_local(path: Path) -> LocalCertificate:
    """The certificate of a file; anything unknown in it is refused."""
    return read_document(path, LocalCertificate)
