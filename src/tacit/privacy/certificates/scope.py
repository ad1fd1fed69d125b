"""Exactly who and what a promise is about, and what else it rests on: facts that may be shown.

They stand in the ledger's first line, before anything is released, and the certificate's sentences
are made from them: nothing is promised for an entity that nobody looked for, or that was looked
for and left out.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import ValidationError

from tacit.errors import DataError
from tacit.privacy.certificates.documents import Frozen, Randomness

Standing = Literal["proved", "published", "heuristic", "broken"]
_WORST_LAST: tuple[Standing, ...] = ("proved", "published", "heuristic", "broken")


def worst_standing(standings: Iterable[Standing]) -> Standing:
    """The standing of what rests on all of these.

    >>> worst_standing(["proved", "heuristic"])
    'heuristic'
    """
    return max(standings, key=_WORST_LAST.index)


class DetectorFacts(Frozen):
    """One detector: its name, the version of its code or model, a keyed digest of its own files."""

    name: str
    version: str
    files: str | None = None

    @property
    def said(self) -> str:
        """`lists (tacit 0.1.0)`."""
        return f"{self.name} ({self.version})"


class EntityScope(Frozen):
    """Which entities are protected: `kinds` None means every kind that was detected.

    `found`, `unprotected` and `missing` are kinds that were found and are protected, found and
    are not, looked for and not found; None where that may not be said or is not known. `unsought`
    are kinds that no detector looks for. `entity_list` is a keyed digest: only entities on that
    list are protected.
    """

    kinds: tuple[str, ...] | None
    entity_list: str | None = None
    detectors: tuple[DetectorFacts, ...] = ()
    rules: str | None = None
    """What was left out of or merged in the detectors' findings."""
    aliases: str | None = None
    """A keyed digest of the rules by which names were merged."""
    found: tuple[str, ...] | None = None
    unprotected: tuple[str, ...] | None = None
    missing: tuple[str, ...] | None = None
    unsought: tuple[str, ...] | None = None
    recall: dict[str, float] | None = None
    recall_from: str | None = None
    public: tuple[str, ...] = ()
    """Names that are always shown, and not protected."""
    shown_kinds: tuple[str, ...] | None = None
    """Only names of these kinds were ever shown, under their bound; None if those of any kind."""

    @property
    def _of_kinds(self) -> str:
        if self.kinds is None:
            return ""
        return f" of the kind{'s' if len(self.kinds) > 1 else ''} {', '.join(self.kinds)}"

    @property
    def noun(self) -> str:
        """One protected entity: `entity of the kind PII on the list hmac-sha256:...`."""
        said = f"entity{self._of_kinds}"
        if self.entity_list is not None:
            said += f" on the list {self.entity_list}"
        return said

    @property
    def name_noun(self) -> str:
        """One protected name: `name of the kinds ORG, PERSON`."""
        return f"name{self._of_kinds}"

    @property
    def name_sentences(self) -> list[str]:
        """Who marks names, what is held fixed, and what is left out, for the end of a promise."""
        by = f" what {_and([d.said for d in self.detectors])} marked" if self.detectors else ""
        rules = f" ({self.rules})" if self.rules else ""
        said = [f"A name is{by or ' what a detector marks'}{rules}. Marks are held fixed."]
        if self.shown_kinds is not None:
            kinds = ", ".join(self.shown_kinds)
            said.append(f"Names of the kinds {kinds} may be shown, under that bound; others never.")
        if self.public:
            said.append(f"Shown and not protected: {len(self.public):,} public names.")
        said.append(
            "Words around a name, its kind and place, occurrences that are unmarked or marked as "
            "another kind, and other spellings are not covered."
        )
        return said

    @property
    def plural(self) -> str:
        """All protected entities in a few words: `entities of the kinds DATE, PII on a list`."""
        said = f"entities{self._of_kinds}"
        return said + (" on a list" if self.entity_list is not None else "")

    @property
    def sentences(self) -> list[str]:
        """Who marks entities, and what is left out, for the end of a promise."""
        said = [self.marked_by] if self.detectors else []
        if self.kinds is None and self.found:
            said.append(f"Kinds found: {', '.join(self.found)}.")
        if self.unprotected:
            said.append(f"Found and not protected: {', '.join(self.unprotected)}.")
        return said

    @property
    def marked_by(self) -> str:
        """Who says what an entity is."""
        if not self.detectors:
            return "An entity is what a detector marks."
        rules = f" ({self.rules})" if self.rules else ""
        return f"An entity is what {_and([d.said for d in self.detectors])} marked{rules}."

    def _names_not_found(self) -> list[str]:
        """People, organisations and places of which nothing was found, in plain words."""
        absent = {*(self.missing or ()), *(self.unsought or ())}
        words = [word for word, kinds in _NAMES.items() if kinds <= absent]
        by = _and([d.name for d in self.detectors]) if self.detectors else "the detectors"
        return [f"No names of {_and(words, 'or')} were found by {by}."] if words else []

    def left_open(self) -> list[str]:
        """What is not covered for lack of a mark, a kind or a measurement."""
        by = _and([d.name for d in self.detectors]) if self.detectors else "the detectors"
        said = self._names_not_found()
        if self.unprotected:
            kinds = ", ".join(self.unprotected)
            said.append(f"Entities of kinds that were found and are not protected: {kinds}.")
        if self.public:
            listed = ", ".join(self.public[:20]) + (", ..." if len(self.public) > 20 else "")
            said.append(f"Public names, which are always shown: {listed}.")
        if self.entity_list is not None:
            said.append("Entities that are not on the list, whatever their kind.")
        if self.missing:
            said.append(f"Kinds of which {by} found nothing: {', '.join(self.missing)}.")
        if self.unsought:
            said.append(f"Kinds that {by} did not look for: {', '.join(self.unsought)}.")
        if self.found is None and self.detectors:
            said.append("Which kinds were found is not stated here.")
        said.append(self._recall())
        return said

    def _recall(self) -> str:
        if self.recall is None:
            why = f" ({self.recall_from})" if self.recall_from else ""
            return f"How much of what is there was found (recall): unknown{why}."
        shares = ", ".join(f"{kind} {share:.2f}" for kind, share in self.recall.items())
        return f"What was not found; recall, measured on {self.recall_from}: {shares}."


class Scope(Frozen):
    """Whom the promise is about: users, entities, or the tokens that a policy marks."""

    users: str | None = None
    entities: EntityScope | None = None
    policy: str | None = None

    def named(self, unit: str) -> str:
        """A unit for a headline, with the kinds that it is about.

        >>> Scope(entities=EntityScope(kinds=("PII",))).named("users+entities")
        'users and entities of the kind PII'
        """
        if "names" in unit:
            said = f"names{self.entities._of_kinds}" if self.entities is not None else "names"
            return f"users and {said}" if unit == "users+names" else said
        if "entities" not in unit:
            return unit
        said = self.entities.plural if self.entities is not None else "entities"
        return f"users and {said}" if unit == "users+entities" else said

    def differs(self, earlier: "Scope", unit: str) -> str | None:
        """Why an earlier run did not protect a unit as this one does; None where it did.

        It may have protected more kinds, or without a list: what is promised now is among those.
        """
        if "users" in unit and self.users != earlier.users:
            return "who counts as a user differs"
        if unit == "tokens" and self.policy != earlier.policy:
            return "their policies differ"
        if "entities" not in unit and "names" not in unit:
            return None
        mine, theirs = self.entities, earlier.entities
        if mine is None or theirs is None:
            return "one of them protected no entities"
        if (mine.detectors, mine.rules) != (theirs.detectors, theirs.rules):
            return "their detectors differ"
        if mine.aliases != theirs.aliases:
            return "names were merged by other aliases"
        if theirs.kinds is not None and not set(mine.kinds or ("",)) <= set(theirs.kinds):
            return f"the earlier run protected the kinds {', '.join(theirs.kinds)} only"
        if theirs.entity_list not in (None, mine.entity_list):
            return "their lists of entities differ"
        if theirs.shown_kinds != mine.shown_kinds:
            return "they showed names of other kinds"
        if not set(theirs.public) <= set(mine.public):
            return "the earlier run showed other public names"
        return None


class PublicInput(Frozen):
    """Something a run began from that is said to owe nothing to the private text."""

    what: str
    name: str
    sha256: str | None = None
    checked: str | None = None
    """How it was compared with the private text, where it could be."""

    @property
    def said(self) -> str:
        """As an assumption."""
        digest = f", SHA-256 {self.sha256}" if self.sha256 else ""
        checked = f" ({self.checked})" if self.checked else ""
        return (
            f"{self.what[0].upper()}{self.what[1:]} ({self.name}{digest}): public, and independent "
            f"of the private text{checked}."
        )


class Inherited(Frozen):
    """What a run that continues another takes over from it, verified before it began."""

    certificate: str
    ledger: str
    releases: int
    events: str
    """A digest of the earlier run's releases in their order, which are repeated in this ledger."""
    standing: Standing
    randomness: Randomness
    leaks: tuple[str, ...]
    assumptions: tuple[str, ...]
    not_covered: tuple[str, ...]


class Plugin(Frozen):
    """Code of another package that took part in a run: what it is, whose, and how far it claims."""

    what: str
    origin: str
    code: str
    """A digest of the file that holds it: a run that goes on must find the same."""
    standing: Standing = "proved"

    @property
    def assumption(self) -> str:
        """That it does what it declares, which nothing here can show."""
        return (
            f"The {self.what} of the package {self.origin} does what it declares; it is no part of "
            "tacit, and its code was not checked."
        )


def plugins_of(about: Mapping[str, Any]) -> tuple[Plugin, ...]:
    """The plug-ins that a ledger's first line names."""
    try:
        return tuple(Plugin.model_validate_json(_json(one)) for one in about.get("plugins", ()))
    except (ValidationError, TypeError):
        raise DataError(
            "The ledger's first line names plug-ins in a form that this version does not know; "
            "train again."
        ) from None


def stated(about: Mapping[str, Any]) -> tuple[Scope, tuple[PublicInput, ...], Inherited | None]:
    """What a ledger's first line says on all this; anything unknown in it is refused."""
    try:
        scope = Scope.model_validate_json(_json(about.get("scope", {})))
        public = tuple(
            PublicInput.model_validate_json(_json(one)) for one in about.get("public", ())
        )
        given = about.get("earlier")
        earlier = None if given is None else Inherited.model_validate_json(_json(given))
    except (ValidationError, TypeError):
        raise DataError(
            "The ledger's first line does not say whom this is about in a form that this version "
            "knows; train again."
        ) from None
    return scope, public, earlier


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


_NAMES = {"people": {"PERSON"}, "organisations": {"ORG"}, "places": {"GPE", "LOC"}}


def _and(words: Sequence[str], joint: str = "and") -> str:
    """Words in a row.

    >>> _and(["a", "b", "c"])
    'a, b and c'
    """
    *others, last = words
    return f"{', '.join(others)} {joint} {last}" if others else last
