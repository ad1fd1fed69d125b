"""Certificates for people: a page in plain words, then the promise exactly, then how to check it.

Both kinds are Markdown, from the templates beside this module; the page to print is made of that.
"""

import math
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markdown_it import MarkdownIt

from tacit.privacy.certificates.attacker_gain import Gained, at_worst, of_hundred
from tacit.privacy.certificates.certificate import Certificate
from tacit.privacy.certificates.documents import facts_in_lines
from tacit.privacy.certificates.local_privacy import LENGTHS, QUANTILES, LocalCertificate, Reach
from tacit.privacy.certificates.scope import Scope
from tacit.privacy.certificates.wording import STANDINGS, TEXT
from tacit.privacy.events import Unit
from tacit.privacy.rounding import down, percent, up

TITLE = "Privacy certificate"
LOCAL_TITLE = "Privacy certificate of a sanitized corpus"
EXACTLY = "The promise, exactly"

_PROTECTED = {
    "users": "Everybody who wrote a part of the training text: any one of them, with all they "
    "wrote.",
    "records": "Every single text: any one of them. Somebody who wrote several is not protected as "
    "a person.",
    "entities": "Every {entity} that was detected: any one of them, in everybody's texts.",
    "users+entities": "Everybody who wrote a part of the training text, and every {entity} that "
    "was detected: any one writer with all they wrote, together with any one such entity in "
    "everybody's texts.",
    "names": "Every {name} that was marked: which name stood there, for any one of them, in "
    "everybody's texts. What others wrote about somebody is not hidden.",
    "users+names": "Everybody who wrote a part of the training text, and every {name} that was "
    "marked: the model hardly depends on whether any one writer took part, or on which name stood "
    "where any one of them was found. What others wrote about somebody is not hidden.",
    "tokens": "The words that the policy marks as sensitive ({policy}), in any one text.",
}


def certificate_markdown(c: Certificate) -> str:
    """`certificate.md`."""
    return rendered("certificate.md.jinja", c=c, title=TITLE, headline=headline, left=gained)


def certificate_html(c: Certificate) -> str:
    """`certificate.html`: to be read, printed and signed."""
    return page(certificate_markdown(c), TITLE)


def headline(c: Certificate) -> str:
    """The standing and the grade in one or two sentences, for the top of any page."""
    if c.standing == "broken":
        return (
            f"**Broken.** An audit contradicted this certificate: do not release this {c.released}."
        )
    if "fixed seed" in (c.provenance.randomness, c.earlier.randomness if c.earlier else None):
        return (
            "**Not for release.** The randomness came from a fixed seed, so the noise can be "
            "subtracted: nothing is promised."
        )
    if c.standing != "proved":
        return f"**Nothing is promised** (standing {c.standing}: {STANDINGS[c.standing]})."
    grade = gained(c, c.protect).grade
    return (
        f"**Proved, and the protection is {grade}**: epsilon {up(c.epsilon)} at delta "
        f"{up(c.delta)} for {c.scope.named(c.protect)}."
    )


def in_short(c: Certificate) -> list[str]:
    """The headline, the exact sentence, and what an attacker is left with: for any other page."""
    said = [
        headline(c),
        f"Until then it said: {c.sentence}" if c.standing == "broken" else c.sentence,
    ]
    if c.standing == "proved":
        left = gained(c, c.protect)
        said.append(f"{left.verdict} {left.figures}")
    return said


def whom(protect: str, scope: Scope) -> str:
    """Who is protected, in plain words that name the kinds or the policy."""
    entity = scope.entities.noun if scope.entities else "entity"
    name = scope.entities.name_noun if scope.entities else "name"
    return _PROTECTED[protect].format(entity=entity, name=name, policy=scope.policy or "see below")


def gained(c: Certificate, unit: Unit) -> Gained:
    """What an attacker is left with for one unit."""
    cost = c.costs[unit]
    return Gained(cost.accuracy, cost.true_positive_rate.get("0.01", 1.0), unit)


def protected(c: Certificate) -> list[str]:
    """Who is protected, who says what an entity is, and what a user is."""
    if c.standing != "proved":
        return ["Nobody, by any promise of this certificate."]
    said = [whom(c.protect, c.scope)]
    if c.released == TEXT:
        said = [said[0].replace("training text", "private text").replace("model", "released text")]
    if c.scope.entities is not None and "entities" in c.protect:
        said.append(c.scope.entities.marked_by)
    if c.scope.entities is not None and "names" in c.protect:
        said += c.scope.entities.name_sentences[:1]
    if c.scope.users is not None and "users" in c.protect:
        said.append(f"A user is {c.scope.users}.")
    return said


# --- sanitized text -----------------------------------------------------------------------------


def local_pages(c: LocalCertificate) -> dict[str, str]:
    """The certificate of a sanitized corpus for people, by the names of its files."""
    text = rendered(
        "local_certificate.md.jinja", c=c, title=LOCAL_TITLE, headline=local_headline, left=_told
    )
    return {"certificate.md": text, "certificate.html": page(text, LOCAL_TITLE)}


def local_headline(c: LocalCertificate) -> str:
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
    grade = f". For a word and its nearest neighbour it is {_told(near).grade}" if near else ""
    return f"**Proved**, for single {what}: protection weakens with distance{grade}."


def a_word(c: LocalCertificate) -> str:
    """Of which words the table speaks: with sensitive words, of these."""
    return "A sensitive word" if c.notion.startswith("utility") else "A word"


def _nothing_left(c: LocalCertificate) -> bool:
    return c.epsilon_per_distance == 0 and c.notion == "metric-LDP"


class _Told(NamedTuple):
    """How well two words are told apart: the grade, and the most right guesses of a hundred."""

    grade: str
    right: str


def _told(reach: Reach) -> _Told:
    epsilon = reach.epsilon["median"]
    left = at_worst(math.inf if isinstance(epsilon, str) else epsilon, 0.0)
    return _Told(left.grade, of_hundred(left.accuracy))


# --- pages --------------------------------------------------------------------------------------


@cache
def _templates() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        autoescape=jinja2.select_autoescape(["html.jinja"]),  # Markdown is escaped by `page`
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {"up": up, "down": down, "percent": percent}
    made.filters["cell"] = lambda text: text.replace("|", "\\|")
    made.globals |= {
        "protected": protected, "in_short": in_short, "facts_in_lines": facts_in_lines,
        "a_word": a_word, "nothing_left": _nothing_left, "STANDINGS": STANDINGS,
        "LENGTHS": LENGTHS, "QUANTILES": QUANTILES, "exactly": EXACTLY,
    }  # fmt: skip
    return made


def rendered(template: str, **values: Any) -> str:
    """A template of ours with these values."""
    return _templates().get_template(template).render(**values)


def page(markdown: str, title: str) -> str:
    """A Markdown text as one page without any other file, for the screen and for paper.

    Only the marks that certificates use are known: no text can bring a tag, a link or a picture.
    """
    marks = MarkdownIt("zero").enable(["heading", "list", "table", "backticks", "emphasis"])
    body = marks.render(markdown)
    body = body.replace("<table>", '<div class="scroll"><table>')
    body = body.replace("</table>", "</table></div>")
    body = body.replace(f"<h2>{EXACTLY}", f'<h2 class="new">{EXACTLY}')  # begins a page on paper
    return rendered("page.html.jinja", body=body, title=title)
