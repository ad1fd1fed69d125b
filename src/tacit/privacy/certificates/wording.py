"""The sentences of a guarantee: no stronger than what is proved.

They stand in one place so that a certificate, a plan and a page say the same.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from tacit.privacy.certificates.scope import EntityScope, Inherited, PublicInput
from tacit.privacy.events import (
    AnyEvent,
    Flat,
    MentionSubstitution,
    NotPrivate,
    Public,
    ReplaceOne,
    SampledGaussian,
    Selective,
    Unit,
    UserClip,
)
from tacit.privacy.rounding import up

Released = Literal["model", "text"]
MODEL: Released = "model"
TEXT: Released = "text"
"""What a promise is about: a model, or a text that was chosen by noisy votes."""

STANDINGS = {
    "proved": "the argument is in docs/explanations/guarantees.md and epsilon is computed from "
    "the ledger",
    "published": "a paper claims it; we did not prove it, or know it to be wrong",
    "heuristic": "no epsilon is promised at all",
    "broken": "an audit contradicted it",
}

_TABLE = (
    "with the table of who wrote how many records, which entities each names, and therefore which "
    "records the caps keep and how users are weighted, held fixed. That table is not protected"
)

_ZERO_OUT = {
    "users": f"if every record of any one user had contributed nothing to any {{step}}, {_TABLE}",
    "entities": "if every record in which any one {entity} was detected had contributed nothing to "
    f"any {{step}}, {_TABLE}",
    "users+entities": "if every record of any one user and every record in which any one {entity} "
    f"was detected had contributed nothing to any {{step}}, {_TABLE}",
}
_ADD_OR_REMOVE = {
    "users": "without any one user's records in the training data",
    "records": "without any one record in the training data",
}
_INVENTED = (
    "with every marked occurrence of any one {name}, in everyone's texts, replaced by invented "
    "names of that kind"
)
_SUBSTITUTE = {
    "users": _ADD_OR_REMOVE["users"],
    "names": _INVENTED,
    "users+names": f"without any one user's records in the training data and {_INVENTED}",
}
_REPLACE = {
    "users": "if the records of any one user had been replaced by others",
    "records": "if any one record had been replaced by another",
    "tokens": "if the sensitive tokens of any one record had been replaced by others, with the "
    "same number and positions of sensitive tokens and the same plain tokens",
}


_BY_DEGREE = {
    "users": "without any one user's records in the training data",
    "entities": "without the records in which any one {entity} was detected, if at most {most} "
    "users name that entity; for an entity that more users name, epsilon is larger",
    "users+entities": "without any one user's records and without the records in which any one "
    "{entity} was detected, if at most {most} users name that entity; for an entity that more "
    "users name, epsilon is larger",
}


def guarantee(
    unit: Unit,
    adjacency: str | None,
    epsilon: float,
    delta: float,
    by_degree: int | None = None,
    entities: EntityScope | None = None,
    released: Released = MODEL,
) -> str:
    """The promise for one unit, in a few sentences.

    `by_degree` is the number of users that the promise allows an entity to have, where records
    are really removed and no cap is used. `entities` says which ones are meant; where nothing is
    known of them, they are called what a detector marks.
    """
    if epsilon == float("inf"):
        return f"Nothing is promised for {unit}."
    wording = {
        "zero-out": _ZERO_OUT,
        "add-or-remove": _ADD_OR_REMOVE,
        "substitute": _SUBSTITUTE,
        "replace": _REPLACE,
    }
    if adjacency is None:
        return f"No release depends on the protected data, so nothing about {unit} can leak."
    apart = wording[adjacency][unit]
    if by_degree is not None and adjacency == "zero-out":
        apart = _BY_DEGREE[unit]
    meant = entities or EntityScope(kinds=None)
    step = "training step" if released == MODEL else "step of training or round of votes"
    apart = apart.format(entity=meant.noun, name=meant.name_noun, most=by_degree, step=step)
    if released == TEXT:
        apart = apart.replace("in the training data", "in the private text")
    likeness = f"({up(epsilon)}, {up(delta)})-indistinguishable from"
    if epsilon == 0 and adjacency == "substitute":
        likeness = "made by exactly the same computation as"
    promise = f"The released {released} is {likeness} the one obtained {apart}."
    said = meant.sentences if "entities" in unit else []
    said = meant.name_sentences if "names" in unit else said
    return " ".join([promise, *said])


def claimed(source: str, epsilon: float, delta: float, proved: str) -> str:
    """A paper's claim, and what is proved of the same releases."""
    figure = f"epsilon {up(epsilon)}" if math.isfinite(epsilon) else "no finite epsilon"
    return (
        f"{source}, claims {figure} at delta {up(delta)}; that is not a bound and is not what is "
        f"promised. Proved, for exactly what was released: {proved}"
    )


def not_covered(
    events: Iterable[AnyEvent],
    by_degree: int | None = None,
    leaks: Iterable[str] = (),
    entities: EntityScope | None = None,
    released: Released = MODEL,
) -> list[str]:
    """What the guarantee does not say, for the events that were carried out.

    `leaks` are things that were made from the private text without protection and are released
    together with the model.
    """
    events = list(events)
    found = list(leaks)
    bounded = UserClip | Flat | MentionSubstitution
    if any(isinstance(e, bounded) for e in events) and entities is not None:
        found += entities.left_open()
    if any(isinstance(e, MentionSubstitution) for e in events):
        found += _LEFT_OPEN_OF_NAMES
    found += _left_open_of_graph(events, by_degree)
    found += _left_open_of_units(events)
    found += [
        f"Training without protection took place: {e.what}."
        for e in events
        if isinstance(e, NotPrivate)
    ]
    found += [
        "Numbers shown while training (loss, clip fraction, owners drawn): they are exact, not "
        "private, and must stay inside."
        if released == MODEL
        else "Figures that compare the text with the private one: they are exact, not private, and "
        "must stay inside.",
        "Choices made by looking at the private data (settings, checkpoints) that are not in the "
        "ledger.",
    ]
    return found


_LEFT_OPEN_OF_NAMES = (
    "The words around a name, its kind, its place and, where words are tagged, the tag of its "
    "first word: what others wrote about somebody is not hidden. This is not anonymisation.",
    "Occurrences that no detector marked, and spellings that are not joined with the marked one: "
    "they are protected as their user's, not as their name's.",
    "A spelling that is marked as two kinds: these are two names, and one at a time is hidden.",
    "What a detector, run again on the replaced text, would mark elsewhere: marks are held fixed.",
    "Two users, or two names, at once; a person who writes as several users, and facts that many "
    "users' texts tell together.",
)


def _left_open_of_units(events: Sequence[AnyEvent]) -> list[str]:
    found = []
    if any(isinstance(e, SampledGaussian) and e.unit == "users" for e in events):
        found += [
            "Entities as such: an entity named by many users is not hidden by hiding each user.",
            "A person who writes as several users, and facts that many users' texts tell together.",
        ]
    if any(isinstance(e, SampledGaussian | ReplaceOne) and e.unit == "records" for e in events):
        found += ["A user with several records, and an entity named in several records."]
    if any(_about_tokens(e) for e in events):
        found += [
            "Plain tokens, the number of sensitive tokens and where they stand.",
            "Sensitive tokens that the policy did not mark.",
        ]
    return found


def _left_open_of_graph(events: Sequence[AnyEvent], by_degree: int | None) -> list[str]:
    """What is left open where entities are protected through the owner graph."""
    if by_degree is not None:
        return [
            f"Entities that more than {by_degree} users name: they are protected less, by the "
            "curve that `tacit price` draws.",
            "Mentions that no detector found: their records are protected as their user's, not as "
            "their entity's.",
            "Two users, or two entities, at once; and facts that many users' texts tell together.",
        ]
    if any(isinstance(e, UserClip | Flat) for e in events):
        return [
            "The table of who wrote how many records and which entities each names: it is held "
            "fixed, and through the caps it decides which records were used.",
            "Mentions that no detector found: their records are protected as their user's, not as "
            "their entity's.",
            "Counts of kept and dropped records, and a plan that was searched on the owner graph: "
            "these are exact statements about that table.",
            "Two users, or two entities, at once; and facts that many users' texts tell together.",
        ]
    return []


_SUMS = SampledGaussian | ReplaceOne | UserClip | Flat | MentionSubstitution | Selective


def _about_tokens(event: AnyEvent) -> bool:
    match event:
        case Selective():
            return True
        case ReplaceOne():
            return event.unit == "tokens"
        case NotPrivate():
            return bool(event.spares)
    return False


def assumptions(
    events: Iterable[AnyEvent],
    by_degree: int | None = None,
    *,
    capped: bool = True,
    public: Iterable[PublicInput] = (),
    earlier: Inherited | None = None,
    released: Released = MODEL,
) -> list[str]:
    """What must be true for the guarantee to hold; `capped` is false where no cap was enforced.

    `public` are the inputs that are said to owe nothing to the private text, `earlier` what a run
    that this one continues brings along.
    """
    events = list(events)
    found = _assumed_of_sums(events, released)
    found += _assumed_of_graph(events, by_degree, capped)
    if any(isinstance(e, MentionSubstitution) for e in events):
        found += [
            "Users and records have ids that were given without looking at names and that stay "
            "the same when others come or go.",
            "A name is marked by looking at records of its own user alone, by rules, lists and "
            "models that owe nothing to this text, and names are joined by a rule that was fixed "
            "before.",
        ]
    if any(isinstance(e, Public) for e in events):
        named = "; ".join(e.what for e in events if isinstance(e, Public))
        found += [f"What is recorded as public is public: {named}."]
    if any(isinstance(e, Selective) for e in events):
        found += [
            "Back-propagation stops at the border of sensitive segments.",
            "What is counted of a record is its marks alone, which neighbours share.",
        ]
    if found:  # where nothing is promised, nothing rests on these
        found += [one.said for one in public]
    if earlier is not None:
        found += [line for line in earlier.assumptions if line not in found]
        found += ["Users and entities have the same names here as in the run that is continued."]
    return found


def _assumed_of_sums(events: Sequence[AnyEvent], released: Released) -> list[str]:
    """What every noisy sum rests on; nothing where nothing was drawn, summed or noised."""
    if all(isinstance(e, NotPrivate | Public) for e in events):
        return []
    hidden = "" if any(isinstance(e, Selective) for e in events) else ", and never shown"
    found = [
        "Who takes part in a step is drawn anew for every step, by independent coins (Poisson "
        f"sampling){hidden}.",
        "Every sum is divided by public constants only.",
        "Noise comes from a generator that nobody can predict or rewind, and in single precision, "
        "rounded to about a thousandth of its deviation, it hides as real Gaussian noise does.",
    ]
    if released == TEXT:
        found.append(
            "Prompts, labels and settings owe nothing to the private text; candidates and their "
            "choice depend on it through the releases of this ledger alone."
        )
    if any(isinstance(e, _SUMS) for e in events):
        found.append(
            "What one unit adds to a sum depends on the weights, on its own records and on coins "
            "that look at nobody else; training tries this on a few units, which is no proof."
        )
    return found


def _assumed_of_graph(events: Sequence[AnyEvent], by_degree: int | None, capped: bool) -> list[str]:
    """What is assumed of the owner graph, and of what was done to it."""
    if by_degree is not None:
        return [
            "No record was dropped because of what other records hold, and each user's weight "
            "depends on that user alone.",
            "Users and entities are what the owner graph says they are.",
        ]
    if not capped:
        most = max((e.users_per_entity for e in events if isinstance(e, UserClip)), default=0)
        return [
            f"No entity is in more than {most:,} users of the owner graph, on which nothing was "
            "capped; that number, the weights and the denominators were counted there.",
            "Users and entities are what the owner graph says they are.",
        ]
    if any(isinstance(e, UserClip | Flat) for e in events):
        return [
            "The caps were enforced on the owner graph by a rule that reads the graph and an "
            "independent seed, never a text.",
            "Users and entities are what the owner graph says they are.",
        ]
    return []
