"""A certificate for people: a page in plain words, then the promise exactly, then how to check it.

Markdown, the printable page and the web pages all come from the sections made here.
"""

from collections.abc import Mapping
from typing import Any

from tacit.privacy.certificates.attacker_gain import Gained
from tacit.privacy.certificates.certificate import Certificate, Cost
from tacit.privacy.certificates.documents import facts_in_lines
from tacit.privacy.certificates.scope import Scope
from tacit.privacy.certificates.sections import Section, html, markdown
from tacit.privacy.certificates.wording import STANDINGS
from tacit.privacy.rounding import down, percent, up

TITLE = "Privacy certificate"

_PROTECTED = {
    "users": "Everybody who wrote a part of the training text: any one of them, with all they "
    "wrote.",
    "records": "Every single text: any one of them. Somebody who wrote several is not protected as "
    "a person.",
    "entities": "Every {entity} that was detected: any one of them, in everybody's texts.",
    "users+entities": "Everybody who wrote a part of the training text, and every {entity} that "
    "was detected: any one writer with all they wrote, together with any one such entity in "
    "everybody's texts.",
    "tokens": "The words that the policy marks as sensitive ({policy}), in any one text.",
}


def certificate_markdown(certificate: Certificate) -> str:
    """`certificate.md`."""
    return markdown(sections(certificate))


def certificate_html(certificate: Certificate) -> str:
    """`certificate.html`: to be read, printed and signed."""
    return html(sections(certificate), TITLE)


def sections(certificate: Certificate) -> list[Section]:
    """The whole certificate: plain words first."""
    return [*plain_words(certificate), *_exactly(certificate)]


def plain_words(certificate: Certificate) -> list[Section]:
    """One page for whoever has to sign: who is protected, how well, and what remains to be done."""
    c = certificate
    return [
        Section(TITLE, [headline(c)], level=1),
        Section("Who is protected", points=protected(c)),
        Section("Who and what is not (not covered)", points=_unprotected(c)),
        Section("What an attacker can gain", _gain(c)),
        Section("What was assumed", _more_below(c), points=_assumed(c)),
        Section("What was found by trying", points=_found(c)),
        Section("Before you release it", points=_to_do(c)),
        Section(
            "How to check this",
            [
                "`tacit verify FOLDER` recomputes every figure from the ledger, and compares every "
                "file that may be shared with the digest that stands here. It needs neither the "
                "data nor a network. `tacit verify FOLDER --signed-by KEY.pub` also checks who "
                "vouches for the ledger."
            ],
        ),
    ]


def headline(certificate: Certificate) -> str:
    """The standing and the grade in one or two sentences, for the top of any page."""
    c = certificate
    if c.standing == "broken":
        return "**Broken.** An audit contradicted this certificate: do not release this model."
    if c.provenance.randomness == "fixed seed" or _inherits_seed(c):
        return (
            "**Not for release.** The randomness came from a fixed seed, so the noise can be "
            "subtracted: nothing is promised."
        )
    if c.standing != "proved":
        return f"**Nothing is promised** (standing {c.standing}: {STANDINGS[c.standing]})."
    grade = gained(c.costs[c.protect]).grade
    return (
        f"**Proved, and the protection is {grade}**: epsilon {up(c.epsilon)} at delta "
        f"{up(c.delta)} for {c.scope.named(c.protect)}."
    )


def in_short(certificate: Certificate) -> list[str]:
    """The headline, the exact sentence, and what an attacker is left with: for any other page."""
    c = certificate
    said = [
        headline(c),
        f"Until then it said: {c.sentence}" if c.standing == "broken" else c.sentence,
    ]
    if c.standing == "proved":
        left = gained(c.costs[c.protect])
        said.append(f"{left.verdict} {left.figures}")
    return said


def whom(protect: str, scope: Scope) -> str:
    """Who is protected, in plain words that name the kinds or the policy."""
    entity = scope.entities.noun if scope.entities else "entity"
    return _PROTECTED[protect].format(entity=entity, policy=scope.policy or "see below")


def gained(cost: Cost) -> Gained:
    """What an attacker is left with for one unit."""
    return Gained(cost.accuracy, cost.true_positive_rate.get("0.01", 1.0))


def _inherits_seed(c: Certificate) -> bool:
    return c.earlier is not None and c.earlier.randomness == "fixed seed"


def protected(c: Certificate) -> list[str]:
    """Who is protected, who says what an entity is, and what a user is."""
    if c.standing != "proved":
        return ["Nobody, by any promise of this certificate."]
    said = [whom(c.protect, c.scope)]
    if c.scope.entities is not None and "entities" in c.protect:
        said.append(c.scope.entities.marked_by)
    if c.scope.users is not None and "users" in c.protect:
        said.append(f"A user is {c.scope.users}.")
    return said


def _unprotected(c: Certificate) -> list[str]:
    if c.standing != "proved":
        return ["Everybody whose text was used, and everything named in it.", *c.not_covered]
    return list(c.not_covered)


def _gain(c: Certificate) -> list[str]:
    if c.standing != "proved":
        return ["Nothing limits it."]
    main = gained(c.costs[c.protect])
    said = [f"{main.verdict} {main.figures}"]
    for unit, cost in c.costs.items():
        if unit != c.protect:
            said.append(f"For {c.scope.named(unit)} alone: {gained(cost).briefly}.")
    return said


def _more_below(c: Certificate) -> list[str]:
    if not c.assumptions:
        return ["Nothing: nothing is promised."]
    return [
        "In plain words; each stands exactly below, under **Assumptions**. The ledger cannot show "
        "them: whoever signs this vouches for them."
    ]


def _assumed(c: Certificate) -> list[str]:
    if not c.assumptions:
        return []
    said = [
        "Training went as the software says: who takes part was drawn by chance and not shown, "
        "and nobody could foresee the noise.",
    ]
    if "users" in c.protect or "entities" in c.protect:
        said.append("Users and entities are who and what the corpus and the detectors say.")
    if c.public:
        named = ", ".join(f"{one.what} ({one.name})" for one in c.public)
        said.append(f"What training began from owes nothing to this text: {named}.")
    if c.earlier is not None:
        said.append("All that the run assumed which this one continues.")
    return said


def _found(c: Certificate) -> list[str]:
    if not c.findings:
        return [
            "Nobody has tried yet. `tacit audit FOLDER` looks for a contradiction in the training "
            "itself, `tacit attack FOLDER` for what the model gives away."
        ]
    return [f"{one.date}, {one.kind}: {one.outcome}" for one in c.findings]


def _to_do(c: Certificate) -> list[str]:
    if c.standing != "proved":
        return ["Do not release this model: treat it like the text it was trained on."]
    steps = []
    if not any(one.kind == "audit" for one in c.findings):
        steps.append("Run `tacit audit FOLDER`.")
    if c.scope.entities is not None and c.scope.entities.recall is None:
        steps.append("Look at what the detectors marked: what they missed is not protected.")
    steps += [
        "Read what is not covered and what is assumed, and decide whether you can stand for it.",
        "Share only the files that are listed at the end; everything else in the folder stays.",
        "Sign it: `tacit sign FOLDER --key KEY`.",
    ]
    return steps


# --- exactly ------------------------------------------------------------------------------------


def _exactly(c: Certificate) -> list[Section]:
    made = c.provenance
    return [
        Section(
            "The promise, exactly",
            [in_short(c)[1], f"Standing: **{c.standing}** ({STANDINGS[c.standing]})."],
            header=("one", f"epsilon at delta {up(c.delta)}", "no less than", "accountant",
                    "neighbours", "right at most, at even odds", "caught at 1 % / 0.1 % alarms"),
            rows=[_cost_row(unit, cost) for unit, cost in c.costs.items()],
            new_page=True,
        ),
        *([_published(c.published)] if c.published else []),
        Section("Assumptions", points=list(c.assumptions) or ["none"]),
        *([_earlier(c)] if c.earlier else []),
        Section(
            "Context",
            ["Stated by whoever made this certificate; the ledger cannot show it."],
            points=facts_in_lines(c.context) or ["nothing"],
        ),
        Section(
            "Digests",
            points=[
                f"ledger: {c.ledger_entries:,} releases, `{c.ledger_digest}`",
                *[f"phase {phase}: {count:,}" for phase, count in c.phases.items()],
                f"plan: `{c.plan_digest or 'none'}`",
                f"settings: `{made.config}`",
                f"data: `{made.data}` (a commitment; its salt stays with the data)",
                f"randomness: {made.randomness}",
                f"made by tacit {made.tacit} with dp-accounting {made.dp_accounting} on "
                f"{made.created}",
            ],
        ),
        Section(
            "Files that this certificate speaks for",
            header=("file", "SHA-256"),
            rows=[(name, f"`{digest}`") for name, digest in c.files.items()],
        ),
    ]  # fmt: skip


def _cost_row(unit: str, cost: Cost) -> tuple[str, ...]:
    return (
        unit,
        up(cost.epsilon),
        down(cost.no_less_than),
        cost.accountant,
        cost.adjacency or "-",
        percent(cost.accuracy),
        " / ".join(percent(rate) for rate in cost.true_positive_rate.values()),
    )


def _published(claim: Mapping[str, Any]) -> Section:
    figures = ", ".join(f"{up(value)} for {unit}" for unit, value in claim["epsilon"].items())
    bound = "It is a bound." if claim["is_bound"] else f"It is not a bound: {claim['why_not']}"
    return Section(
        "What is claimed elsewhere",
        [
            f"{claim['source']}: epsilon {figures}. {bound} The table above has what is proved for "
            "exactly what was released."
        ],
    )


def _earlier(c: Certificate) -> Section:
    assert c.earlier is not None
    return Section(
        "Continued from an earlier run",
        [
            f"The weights began as those of a run with standing {c.earlier.standing}, which was "
            f"verified first. Its {c.earlier.releases:,} releases stand at the beginning of this "
            "ledger and are part of every figure; what it assumed and what it left open is taken "
            "over."
        ],
        points=[
            f"its certificate: `{c.earlier.certificate}`",
            f"its ledger: `{c.earlier.ledger}`",
        ],
    )
