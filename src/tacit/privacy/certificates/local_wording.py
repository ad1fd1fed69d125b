"""The sentences about sanitized text: no stronger than what is proved in docs/guides/sanitizing.md.

Each is about one way of replacing words and one way of treating words that the vocabulary does not
have. What stands in the result as it stood in the original is named first, and makes the whole a
release without a promise.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tacit.privacy.certificates.certificate import LEAKS
from tacit.privacy.certificates.documents import finite
from tacit.privacy.certificates.scope import PublicInput
from tacit.privacy.events import SanitizedText
from tacit.privacy.rounding import up

NOT_FOR_RELEASE = (
    "Nothing is promised: the randomness came from a fixed seed, so the draws can be repeated."
)
KEPT_WORDS = (
    "Words that the vocabulary does not have stand in the result AS THEY WERE, and are not "
    "protected at all: names and numbers are often among them."
)
VOCABULARY_LEAK = (
    "The vocabulary was taken from the private text: the result tells which words occur there, "
    "and a word that only one person used is one of them."
)
TEXT_COLUMNS = ("text", "pair")
Notion = Literal["metric-LDP", "utility-optimized metric-LDP", "none"]


@dataclass(frozen=True)
class Claim:
    """What is proved of a mechanism: the notion, and how its words are drawn."""

    notion: Notion
    draws: Literal["rows", "noise", "uniform"]

    @property
    def plain_words(self) -> bool:
        """Whether plain words may stay: the utility-optimized notion."""
        return self.notion == "utility-optimized metric-LDP"


CLAIMS = {
    "santext": Claim("metric-LDP", "rows"),
    "santext+": Claim("utility-optimized metric-LDP", "rows"),
    "fbdd": Claim("metric-LDP", "noise"),
    "random": Claim("metric-LDP", "uniform"),
}
"""The mechanisms of which something is proved, in docs/sanitizing.md; there are no others."""


def epsilon_0(event: SanitizedText) -> float:
    """What is added between a sensitive and a plain word: ln(1 / replace_plain_rate)."""
    if not CLAIMS[event.mechanism].plain_words:
        return 0.0
    rate = event.replace_plain_rate or 0.0
    return math.log(1 / rate) if rate > 0 else math.inf


def leaks_of(event: SanitizedText, stated: Sequence[str]) -> list[str]:
    """What is released without protection: what the ledger names, and words that are kept."""
    return [*([KEPT_WORDS] if event.unknown == "keep" else []), *stated]


def is_uniform(event: SanitizedText) -> bool:
    """Whether every word of the vocabulary becomes any other with the same probability."""
    claim = CLAIMS[event.mechanism]
    return claim.draws == "uniform" or (
        claim == CLAIMS["santext"] and event.epsilon_per_distance == 0
    )


def sentence(event: SanitizedText, leaks: Sequence[str], *, seeded: bool) -> str:
    """The promise, after whatever takes it away."""
    said = _uniform(event) if is_uniform(event) else _by_distance(event)
    if leaks:
        alone = [
            f"Of the {event.unit} that were drawn alone" if KEPT_WORDS in leaks else "",
            "were the vocabulary public" if set(leaks) - {KEPT_WORDS} else "",
        ]
        said = f"{LEAKS} {_capital(', '.join(filter(None, alone)))}: {said}"
    if seeded:
        said = f"{NOT_FOR_RELEASE} With unpredictable randomness it would be: {said}"
    return said


def _uniform(event: SanitizedText) -> str:
    units = event.unit
    if event.unknown == "random":
        return (
            f"Each of the {units} was replaced by one drawn uniformly, whatever it was: the "
            f"sanitized text depends on the original only through how many {units} it has."
        )
    drawn = f"Each of the {units} that the vocabulary has was replaced by one drawn uniformly"
    if event.unknown == "keep":
        return f"{drawn}."
    return (
        f"{drawn}, and all others were left out: the sanitized text depends on the original only "
        f"through how many of its {units} the vocabulary has."
    )


def _by_distance(event: SanitizedText) -> str:
    units, rate = event.unit, up(event.epsilon_per_distance)
    any_two = f"For any two {units} of the vocabulary at distance d, any"
    likelier = f"is at most exp({rate} d) times likelier from the one than from the other"
    texts = f"{_two_texts(event)} the exponents add up over the {units} that differ"
    if not CLAIMS[event.mechanism].plain_words:
        return f"{any_two} output {likelier}. {texts}."
    return (
        f"{any_two} output that is sensitive {likelier}; if one of the two is sensitive and the "
        f"other plain, {_between(event, rate)}. {texts}, as long as each of these became a "
        f"sensitive one. {_plain(event)}"
    )


def _two_texts(event: SanitizedText) -> str:
    units = event.unit
    return {
        "random": f"For two texts of equally many {units}, with unknown ones in the same places,",
        "drop": f"For two texts with equally many {units} of the vocabulary,",
        "keep": f"For two texts of equally many {units}, with the same unknown ones in the same "
        "places,",
    }[event.unknown]


def _between(event: SanitizedText, rate: str) -> str:
    extra = epsilon_0(event)
    if math.isinf(extra):
        return "nothing bounds it"
    return f"exp({rate} d + {up(extra)}) times"


def _plain(event: SanitizedText) -> str:
    if event.replace_plain_rate == 1:
        return f"No plain one of the {event.unit} stays."
    return (
        f"Plain {event.unit} are not protected: one that stands in the result stood in the "
        "original."
    )


# --- what is left open ----------------------------------------------------------------------------


def not_covered(
    event: SanitizedText, leaks: Sequence[str], columns: Sequence[str]
) -> Iterator[str]:
    """What the promise does not say; what is released unprotected comes first."""
    yield from leaks
    yield from _unknown(event)
    if CLAIMS[event.mechanism].plain_words and event.replace_plain_rate != 1:
        yield (
            f"Plain {event.unit}: where one stands in the result, it stood in the original. Which "
            "ones are plain is public."
        )
    yield from outside_the_text(event.unit, columns)
    if not is_uniform(event):
        yield (
            f"{_capital(event.unit)} that are far apart: the promise weakens with distance, and "
            "over a long text the exponents add up; see the table."
        )
        yield (
            "A name that stands in several places, a text that stands in several records or is "
            "sanitized again: each time is drawn by itself, and the exponents add up."
        )
    yield (
        f"What is cut into another number of {event.unit} (a name of two words, another spelling): "
        "that number shows."
    )
    yield (
        "Counts that were shown while sanitizing (texts, words, unknown, unchanged): they are "
        "exact, not private, and must stay inside."
    )
    yield (
        "Choices made by looking at the private text (method, epsilon, lists) that are not in the "
        "ledger."
    )


def _unknown(event: SanitizedText) -> Iterator[str]:
    units = event.unit
    if event.unknown == "drop":
        yield (
            f"{_capital(units)} that the vocabulary does not have: they were left out, so that the "
            f"length of the result tells how many {units} the vocabulary has."
        )
    elif event.unknown == "random" and not is_uniform(event):
        yield (
            f"{_capital(units)} that the vocabulary does not have: each became one drawn "
            "uniformly. Nothing of it is left, but the promise does not bound how well one can "
            "tell that it was unknown."
        )


def outside_the_text(unit: str, columns: Sequence[str]) -> Iterator[str]:
    """What is passed on beside the words: how many there are, and the other columns."""
    second = ", which records have a second text" if "pair" in columns else ""
    yield f"How many {unit} each text has, how many texts there are{second}, and their order."
    copied = [name for name in columns if name not in TEXT_COLUMNS]
    if copied:
        named = f"column{'s' if len(copied) > 1 else ''} {', '.join(copied)}"
        yield f"The {named}: passed on unchanged, and nothing hides what is in them."


# --- what must be true ----------------------------------------------------------------------------


def assumptions(event: SanitizedText, public: Sequence[PublicInput]) -> Iterator[str]:
    """What must be true for the promise to hold."""
    yield "Words were drawn by a generator that nobody else can predict or rewind, each by itself."
    yield (
        "Method, epsilon, the rules by which text is cut, and which words are sensitive were fixed "
        "without looking at the text, except for what is named under not covered."
    )
    for one in public:
        yield one.said
    if is_uniform(event):
        return
    if CLAIMS[event.mechanism].draws == "noise":
        yield "Noise is drawn in floating point; its lowest digits may tell more than they should."
        return
    # Rounding of sums: n u. Of the draw and of its product with the sum: 2 n u. With u = 2^-53.
    total = up(event.output_vocabulary * 2.0**-51)
    yield (
        "Draws have 53 bits and sums are rounded: the probabilities that are drawn from are the "
        f"ones that are meant up to a total of {total} for each word, and outputs less likely than "
        "2^-53 may never come. The factors hold but for that total."
    )
    yield (
        "Distances are rounded: read each as larger by five millionths of the largest distance "
        "between two words of the vocabulary."
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def headline_epsilon(event: SanitizedText, leaks: Sequence[str]) -> tuple[object, object]:
    """Epsilon per distance and epsilon_0 of all that is released: infinite where a part leaks."""
    if leaks:
        return "infinity", "infinity"
    return event.epsilon_per_distance, finite(epsilon_0(event))
