"""Local privacy by distance: what sanitized text promises, and its certificate.

A word x is replaced by y with a probability that satisfies, for all words x, x' and outputs y,

    Pr[y | x] <= exp(epsilon_per_distance * d(x, x')) * Pr[y | x']         (metric-LDP)

with d a distance between words that is public. `santext+` has a weaker form (utility-optimized
metric-LDP): the inequality holds for outputs y in the sensitive vocabulary, with
epsilon_0 = ln(1 / replace_plain_rate) added to the exponent where x is sensitive and x' plain; any
other output is a plain word that stands for itself. The proofs are in docs/sanitizing.md.

Epsilon of a pair of words is a product with their distance, so a certificate also shows the
distances: between a word and its 1st, 10th and 100th neighbour, and between any two words.
"""

import json
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from tacit.errors import PrivacyRefused
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
from tacit.privacy.events import AnyEvent, NotPrivate, Public, SanitizedText
from tacit.privacy.ledger import Books
from tacit.privacy.wording import up

Notion = Literal["metric-LDP", "utility-optimized metric-LDP", "none"]
QUANTILES = ("10 %", "median", "90 %")
LENGTHS = (1, 10, 50)
"""For texts of how many words the bound is shown."""

NOT_FOR_RELEASE = (
    "Nothing is promised: the randomness came from a fixed seed, so the draws can be repeated."
)


class Reach(Frozen):
    """How far one kind of pair of words is apart, and what that means for a word and for a text.

    Keys of `distance` and `epsilon` are quantiles over the vocabulary; those of `texts` are
    numbers of words that all differ by the median distance.
    """

    distance: dict[str, float]
    epsilon: dict[str, Infinite]
    texts: dict[str, Infinite]


class LocalCertificate(Document):
    """What a sanitized corpus promises, computed from its ledger and from public distances."""

    format: Literal["local-1"] = "local-1"
    standing: Literal["proved", "heuristic"]
    notion: Notion
    mechanism: str
    sentence: str
    epsilon_per_distance: Infinite
    epsilon_0: Infinite
    reach: dict[str, Reach]
    assumptions: tuple[str, ...]
    not_covered: tuple[str, ...]
    public: dict[str, Any]
    ledger_digest: str
    ledger_entries: int
    files: dict[str, str]
    data: str
    randomness: Randomness
    tacit: str
    created: str


def epsilon_0(event: SanitizedText) -> float:
    """What is added between a sensitive and a plain word: ln(1 / replace_plain_rate)."""
    if event.mechanism != "santext+":
        return 0.0
    rate = event.replace_plain_rate or 0.0
    return math.log(1 / rate) if rate > 0 else math.inf


def issue_local(
    books: Books,
    *,
    distances: Mapping[str, Mapping[str, float]],
    public: Mapping[str, Any],
    files: Mapping[str, str],
    data: str,
    randomness: Randomness,
) -> LocalCertificate:
    """The certificate of a sanitized corpus.

    `distances` holds, for each kind of pair of words, quantiles of their distance in the public
    embedding; `public` names the public inputs.
    """
    event, others = _sanitizing(books)
    leaks = [e.what for e in others if isinstance(e, NotPrivate)]
    return LocalCertificate(
        **(_nothing(leaks) if event is None else _promise(event, others, leaks, randomness)),
        reach={}
        if event is None
        else {name: _reach(found, event) for name, found in distances.items()},
        public=json.loads(json.dumps(dict(public), allow_nan=False)),
        ledger_digest=books.digest,
        ledger_entries=len(books.entries),
        files=dict(files),
        data=data,
        randomness=randomness,
        tacit=version("tacit"),
        created=datetime.now(UTC).strftime("%Y-%m-%d"),
    )


def _promise(
    event: SanitizedText, others: list[AnyEvent], leaks: list[str], randomness: Randomness
) -> dict[str, Any]:
    """What is to be said of text whose words were drawn anew."""
    fixed = randomness == "fixed seed"
    sentence = _sentence(event)
    if fixed:
        sentence = f"{NOT_FOR_RELEASE} With unpredictable randomness it would be: {sentence}"
    return {
        "standing": "heuristic" if fixed else "proved",
        "notion": _notion(event),
        "mechanism": event.mechanism,
        "sentence": sentence,
        "epsilon_per_distance": event.epsilon_per_distance,
        "epsilon_0": finite(epsilon_0(event)),
        "assumptions": tuple(_assumptions(event, others)),
        "not_covered": tuple(_not_covered(event, leaks)),
    }


def _nothing(leaks: list[str]) -> dict[str, Any]:
    """What is to be said of text in which only mentions were replaced: that nothing is promised."""
    return {
        "standing": "heuristic",
        "notion": "none",
        "mechanism": "none",
        "sentence": "Nothing is promised: mentions that were found were replaced, and whatever was "
        "missed stands as it was.",
        "epsilon_per_distance": "infinity",
        "epsilon_0": "infinity",
        "assumptions": (),
        "not_covered": tuple(f"Released without protection: {leak}." for leak in leaks),
    }


def _sanitizing(books: Books) -> tuple[SanitizedText | None, list[AnyEvent]]:
    """The one release of sanitized text, if there is one, and what else the ledger holds."""
    events = list(books.releases())
    found = [e for e in events if isinstance(e, SanitizedText)]
    others: list[AnyEvent] = [e for e in events if not isinstance(e, SanitizedText)]
    if len(found) > 1 or (found and books.releases()[found[0]] != 1):
        raise PrivacyRefused(
            "The ledger holds several releases of sanitized text; a certificate is about one."
        )
    if any(not isinstance(e, Public | NotPrivate) for e in others):
        raise PrivacyRefused("The ledger of a sanitized corpus holds releases of another kind.")
    return found[0] if found else None, others


def _reach(distance: Mapping[str, float], event: SanitizedText) -> Reach:
    rate = event.epsilon_per_distance
    return Reach(
        distance=dict(distance),
        epsilon={name: finite(rate * d) for name, d in distance.items()},
        texts={str(n): finite(n * rate * distance["median"]) for n in LENGTHS},
    )


def _notion(event: SanitizedText) -> Notion:
    return "utility-optimized metric-LDP" if event.mechanism == "santext+" else "metric-LDP"


def _sentence(event: SanitizedText) -> str:
    if event.mechanism == "random":
        return (
            "Every known word was replaced by one drawn uniformly: the sanitized text depends on "
            "the original only through its number of words."
        )
    rate = shown(event.epsilon_per_distance)
    if event.mechanism == "santext+":
        extra = shown(finite(epsilon_0(event)))
        return (
            "For any two words at distance d, any sensitive output word is at most "
            f"exp({rate} d) times likelier from the one than from the other; if one of the two is "
            f"sensitive and the other plain, exp({rate} d + {extra}) times. A plain output word "
            "stands for itself. For texts the exponents add up over the words that differ."
        )
    return (
        f"For any two words at distance d, any output word is at most exp({rate} d) times likelier "
        "from the one than from the other. For texts the exponents add up over the words that "
        "differ."
    )


def _assumptions(event: SanitizedText, others: list[AnyEvent]) -> Iterator[str]:
    yield "Words were drawn by a generator that nobody else can predict or rewind, each by itself."
    yield (
        "Vocabulary, distances, frequency list and sensitive words were fixed without looking at "
        "the text, except for what is named under not covered."
    )
    yield (
        "Draws have 53 bits: outputs less likely than 2^-53 may never come, so each word may also "
        f"differ by a delta of at most {event.output_vocabulary * 2.0**-52:.1g}."
    )
    if event.mechanism == "fbdd":
        yield "Noise is drawn in floating point; its lowest digits may tell more than they should."
    public = [e.what for e in others if isinstance(e, Public)]
    if public:
        yield f"What is recorded as public is public: {'; '.join(public)}."


_UNKNOWN = {
    "random": "Words that the vocabulary does not have: each became a word drawn uniformly. "
    "Nothing of such a word is left, but the promise does not bound how well one can tell that a "
    "word was unknown.",
    "drop": "Words that the vocabulary does not have: they were left out, so the length of the "
    "result tells that there were some.",
    "keep": "Words that the vocabulary does not have: they were KEPT AS THEY STAND and are not "
    "protected at all. Names and numbers are often among them.",
}


def _not_covered(event: SanitizedText, leaks: list[str]) -> Iterator[str]:
    yield _UNKNOWN[event.unknown]
    yield "How many words each text has, how many texts there are, and their order."
    yield "Columns other than the text (ids, users, labels, splits): they are passed on unchanged."
    if event.mechanism == "santext+":
        yield (
            "Plain words: where one stands in the result, it stood in the original. Which words "
            "are plain is public."
        )
    if event.mechanism != "random":
        yield (
            "Words that are far apart: the promise weakens with distance, and over a long text "
            "the exponents add up; see the table."
        )
    yield "A text that is sanitized again: each time is a release of its own, and exponents add up."
    for leak in leaks:
        yield f"An uncovered leak: {leak}."


def a_word(certificate: LocalCertificate) -> str:
    """Of which words the table speaks: with sensitive words, of these."""
    return "a word" if certificate.notion == "metric-LDP" else "a sensitive word"


def is_local(path: Path) -> bool:
    """Whether a certificate file is one of sanitized text."""
    try:
        return b'"local-1"' in path.read_bytes()[:200]
    except OSError:
        return False


def read_local(path: Path) -> LocalCertificate:
    """The certificate of a file; anything unknown in it is refused."""
    return read_document(path, LocalCertificate)


def render_local(c: LocalCertificate) -> str:
    """The certificate for people, in Markdown."""
    warning = (
        ["> **Not for release**: the randomness came from a fixed seed.", ""]
        if c.randomness == "fixed seed"
        else []
    )
    rows = [
        f"| {name} | {' / '.join(f'{reach.distance[q]:.3g}' for q in QUANTILES)} "
        f"| {' / '.join(shown(reach.epsilon[q]) for q in QUANTILES)} "
        f"| {' / '.join(shown(reach.texts[str(n)]) for n in LENGTHS)} |"
        for name, reach in c.reach.items()
    ]
    lines = [
        "# Privacy certificate of a sanitized corpus",
        "",
        *warning,
        c.sentence,
        "",
        f"Notion: **{c.notion}** by `{c.mechanism}`; standing: **{c.standing}**.",
        f"Epsilon per distance: **{shown(c.epsilon_per_distance)}**; "
        f"epsilon_0: **{shown(c.epsilon_0)}**.",
        "",
        "What that means, by how far two words are apart (10 % / median / 90 % of the vocabulary):",
        "",
        f"| {a_word(c)} and | distance | epsilon for one word | epsilon for a text of "
        f"{', '.join(str(n) for n in LENGTHS)} such words |",
        "|---|---|---|---|",
        *rows,
        "",
        *section("What is assumed", points=list(c.assumptions)),
        *section("What is not covered", points=list(c.not_covered)),
        *section(
            "Public inputs",
            "Stated by whoever made this certificate; the ledger cannot show it.",
            points=stated(c.public),
        ),
        "## How to check this",
        "",
        "`tacit verify FOLDER` recomputes every figure from the ledger and from the distances "
        "above.",
        "",
        f"- ledger: {c.ledger_entries:,} entries, `{c.ledger_digest}`",
        f"- data: `{c.data}` (a commitment; its salt stays with the data)",
        f"- randomness: {c.randomness}",
        f"- made by tacit {c.tacit} on {c.created}",
        *[f"- {name}: `{digest}`" for name, digest in c.files.items()],
    ]
    return "\n".join(lines) + "\n"


def shown(value: float | str) -> str:
    """A figure in four digits, rounded up, or infinity."""
    return value if isinstance(value, str) else up(value)
