"""The certificate of a sanitized corpus for people: plain words first, then the promise exactly."""

import math

from tacit.privacy.certificates.attacker_gain import at_worst, of_hundred
from tacit.privacy.certificates.documents import facts_in_lines
from tacit.privacy.certificates.local_privacy import LENGTHS, QUANTILES, LocalCertificate, Reach
from tacit.privacy.certificates.sections import Section, html, markdown
from tacit.privacy.certificates.wording import STANDINGS
from tacit.privacy.rounding import up

TITLE = "Privacy certificate of a sanitized corpus"
_PROVED = "the argument is in docs/guides/sanitizing.md and every figure follows from the ledger"


def local_markdown(certificate: LocalCertificate) -> str:
    """`certificate.md`."""
    return markdown(sections(certificate))


def local_html(certificate: LocalCertificate) -> str:
    """`certificate.html`: to be read, printed and signed."""
    return html(sections(certificate), TITLE)


def sections(certificate: LocalCertificate) -> list[Section]:
    """The whole certificate."""
    return [*_plain_words(certificate), *_exactly(certificate)]


def _plain_words(c: LocalCertificate) -> list[Section]:
    return [
        Section(TITLE, [headline(c)], level=1),
        Section("What is protected", points=_protected(c)),
        Section("What is not", points=list(c.not_covered)),
        Section("What an attacker can gain", points=_gain(c)),
        Section(
            "Before you release it",
            points=_to_do(c),
        ),
        Section(
            "How to check this",
            [
                "`tacit verify FOLDER` makes this certificate anew from the ledger, and compares "
                "the corpus and every other file with its digest. It needs neither the original "
                "nor a network."
            ],
        ),
    ]


def headline(c: LocalCertificate) -> str:
    """The standing in one or two sentences, for the top of any page."""
    if c.randomness == "fixed seed":
        return (
            "**Not for release.** The randomness came from a fixed seed, so the draws can be "
            "repeated: nothing is promised."
        )
    if c.standing != "proved":
        return f"**Nothing is promised** (standing *{c.standing}*: {STANDINGS[c.standing]})."
    if _nothing_left(c):
        return "**Proved**: of the words nothing is left but how many there were."
    what = "sensitive words" if c.notion.startswith("utility") else "words"
    near = next(iter(c.reach.values()), None)
    grade = f". For a word and its nearest neighbour it is {_gained(near)[0]}" if near else ""
    return f"**Proved**, for single {what}: protection weakens with distance{grade}."


def _to_do(c: LocalCertificate) -> list[str]:
    if c.standing != "proved":
        return ["Do not release this corpus: treat it like the text it was made from."]
    return [
        "Read what is not protected and what is assumed, and decide whether you can stand for it.",
        "Share the corpus with this folder, and nothing else; the original stays.",
        "Sign it: `tacit sign FOLDER --key KEY`.",
    ]


def _nothing_left(c: LocalCertificate) -> bool:
    return c.epsilon_per_distance == 0 and c.notion == "metric-LDP"


def _protected(c: LocalCertificate) -> list[str]:
    if c.standing != "proved":
        return ["Nothing, by any promise of this certificate."]
    if _nothing_left(c):
        return ["Every word: each was replaced by any other, whatever it was."]
    if c.notion.startswith("utility"):
        return [
            "Every word of the vocabulary that is sensitive by the public rule below, at its place "
            "in its text: which of two such words stood there, the better the nearer they are.",
        ]
    return [
        "Every word of the vocabulary, at its place in its text: which of two words stood there, "
        "the better the nearer they are."
    ]


def _gain(c: LocalCertificate) -> list[str]:
    if c.standing != "proved":
        return ["Nothing limits it."]
    if _nothing_left(c):
        return ["About any word: nothing."]
    said = []
    for name, reach in c.reach.items():
        grade, right = _gained(reach)
        said.append(
            f"{a_word(c)} and {name}, at the median distance: asked which of the two stood there, "
            f"somebody who knows everything else is right at most {right} times in a hundred (a "
            f"coin is right 50 times): protection is {grade}."
        )
    return said


def _gained(reach: Reach) -> tuple[str, str]:
    """The grade and the most right guesses of a hundred, at the median distance."""
    epsilon = reach.epsilon["median"]
    left = at_worst(math.inf if isinstance(epsilon, str) else epsilon, 0.0)
    return left.grade, of_hundred(left.accuracy)


def a_word(c: LocalCertificate) -> str:
    """Of which words the table speaks: with sensitive words, of these."""
    return "A sensitive word" if c.notion.startswith("utility") else "A word"


def _exactly(c: LocalCertificate) -> list[Section]:
    return [
        Section(
            "The promise, exactly",
            [
                c.sentence,
                f"Notion: **{c.notion}** by `{c.mechanism}`; standing: **{c.standing}** "
                f"({_PROVED if c.standing == 'proved' else STANDINGS[c.standing]}).",
                f"Epsilon per distance: **{up(c.epsilon_per_distance)}**; epsilon_0: "
                f"**{up(c.epsilon_0)}**.",
            ],
            new_page=True,
        ),
        *([_table(c)] if c.reach else []),
        Section("Assumptions", points=list(c.assumptions) or ["none"]),
        Section("Not covered", points=list(c.not_covered)),
        Section(
            "Context",
            ["Stated by whoever made this certificate; the ledger repeats it and cannot show it."],
            points=facts_in_lines(c.context) or ["nothing"],
        ),
        Section(
            "Digests",
            points=[
                f"ledger: {c.ledger_entries:,} releases, `{c.ledger_digest}`",
                f"data: `{c.data}` (a commitment; its salt stays with the data)",
                f"randomness: {c.randomness}",
                f"made by tacit {c.tacit} on {c.created}",
            ],
        ),
        Section(
            "Files that this certificate speaks for",
            header=("file", "SHA-256"),
            rows=[(name, f"`{digest}`") for name, digest in c.files.items()],
        ),
    ]


def _table(c: LocalCertificate) -> Section:
    return Section(
        "Epsilon by distance",
        [
            "10 % / median / 90 % over the vocabulary, or over 1,000 of its words where it has "
            "more: other pairs of words are farther apart, and epsilon is larger for them."
        ],
        header=(
            f"{a_word(c)} and", "distance", "epsilon for one word",
            f"epsilon for a text of {', '.join(str(n) for n in LENGTHS)} such words",
        ),
        rows=[
            (
                name,
                " / ".join(up(reach.distance[q]) for q in QUANTILES),
                " / ".join(up(reach.epsilon[q]) for q in QUANTILES),
                " / ".join(up(reach.texts[str(n)]) for n in LENGTHS),
            )
            for name, reach in c.reach.items()
        ],
    )  # fmt: skip
