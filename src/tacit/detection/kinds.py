"""What a sensitive span can be: one name for each kind, and the map from others' names.

The twenty kinds are the eighteen of OntoNotes plus `PII` (data that identify a person) and
`MISC`. `PII` is refined by a slash where more is known: `PII/EMAIL` is a kind of `PII`, and
asking for `PII` asks for all of them. They are listed in `kinds.toml`.
"""

import tomllib
from collections.abc import Iterable
from importlib.resources import files

from tacit.errors import DataError, UsageError

_TABLES: dict[str, dict[str, str]] = tomllib.loads(
    (files("tacit.detection") / "kinds.toml").read_text(encoding="utf-8")
)
KINDS, PII_KINDS = _TABLES["kinds"], _TABLES["pii"]
SYNONYMS = {other: kind for kind, others in _TABLES["synonyms"].items() for other in others.split()}


def known_kinds() -> tuple[str, ...]:
    """Every kind there is, coarse ones first."""
    return (*KINDS, *PII_KINDS)


def kind_of(name: str) -> str:
    """Our name for a kind that spaCy, Stanza, Presidio, CoNLL or a person may call otherwise.

    >>> kind_of("PER"), kind_of("credit_card"), kind_of("GPE")
    ('PERSON', 'PII/CARD', 'GPE')
    """
    upper = name.strip().upper().replace("-", "_").replace(" ", "_")
    if upper in KINDS or upper in PII_KINDS:
        return upper
    if upper in SYNONYMS:
        return SYNONYMS[upper]
    raise UsageError(
        f"kind={name!r} is unknown; accepted: {', '.join(known_kinds())}, "
        "and the names that spaCy, Stanza, Presidio and CoNLL use for them."
    )


def kind_in(name: str, where: str) -> str:
    """The same for a name that stands in somebody's data.

    It stays unsaid: in a file of mixed-up columns it is somebody's text.
    """
    try:
        return kind_of(name)
    except UsageError:
        raise DataError(
            f"{where} names an unknown kind; accepted are the kinds that `tacit detect list` "
            "shows, and the names that spaCy, Stanza, Presidio and CoNLL use for them."
        ) from None


def family(kind: str) -> str:
    """The coarse kind: `PII` for `PII/EMAIL`, itself otherwise."""
    return kind.partition("/")[0]


def matches(kind: str, wanted: Iterable[str]) -> bool:
    """Whether a kind is among the wanted ones; wanting `PII` wants all its refinements."""
    return any(kind == w or family(kind) == w for w in wanted)
