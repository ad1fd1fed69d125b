"""What a sensitive span can be: one name for each kind, and the map from others' names.

The twenty kinds are the eighteen of OntoNotes plus `PII` (data that identify a person) and
`MISC`. `PII` is refined by a slash where more is known: `PII/EMAIL` is a kind of `PII`, and
asking for `PII` asks for all of them.
"""

from collections.abc import Iterable

from tacit.errors import DataError, UsageError

KINDS = {
    "PERSON": "people, real or invented",
    "NORP": "nationalities, religious and political groups",
    "FAC": "buildings, airports, roads, bridges",
    "ORG": "companies, agencies, institutions",
    "GPE": "countries, cities, states",
    "LOC": "other places: mountains, waters, regions",
    "PRODUCT": "things that are made and sold",
    "EVENT": "named storms, battles, games",
    "WORK_OF_ART": "titles of books, songs, films",
    "LAW": "named documents made into law",
    "LANGUAGE": "any named language",
    "DATE": "dates and periods of a day or longer",
    "TIME": "times shorter than a day",
    "PERCENT": "percentages",
    "MONEY": "amounts of money with their unit",
    "QUANTITY": "measurements: weight, distance",
    "ORDINAL": "first, second, third",
    "CARDINAL": "other numbers",
    "PII": "data that identify a person",
    "MISC": "named things of no other kind",
}

PII_KINDS = {
    "PII/EMAIL": "e-mail addresses",
    "PII/PHONE": "telephone numbers",
    "PII/SSN": "social security numbers",
    "PII/CARD": "payment card numbers",
    "PII/IBAN": "bank account numbers",
    "PII/IP": "internet addresses",
    "PII/URL": "web addresses",
    "PII/ADDRESS": "postal addresses",
    "PII/ORDER": "order numbers",
    "PII/TRACKING": "parcel tracking numbers",
    "PII/SYMPTOM": "symptoms of an illness",
    "PII/DIAGNOSIS": "diagnoses",
    "PII/ID": "passport, licence, account and other numbers of a person",
}

# Other people's names for the same things, upper-cased. Where theirs is coarser than ours we
# take the kind that is certain: Presidio's LOCATION may be a GPE or a LOC, so it is a LOC.
SYNONYMS = {
    "PER": "PERSON",
    "PEOPLE": "PERSON",
    "NAME": "PERSON",
    "LOCATION": "LOC",
    "ORGANIZATION": "ORG",
    "ORGANISATION": "ORG",
    "COMPANY": "ORG",
    "FACILITY": "FAC",
    "NRP": "NORP",
    "NATIONALITY": "NORP",
    "COUNTRY": "GPE",
    "CITY": "GPE",
    "STATE_OR_PROVINCE": "GPE",
    "DATE_TIME": "DATE",
    "NUMBER": "CARDINAL",
    "MISCELLANEOUS": "MISC",
    "EMAIL_ADDRESS": "PII/EMAIL",
    "EMAIL": "PII/EMAIL",
    "PHONE_NUMBER": "PII/PHONE",
    "PHONE": "PII/PHONE",
    "US_SSN": "PII/SSN",
    "SSN": "PII/SSN",
    "CREDIT_CARD": "PII/CARD",
    "CARD": "PII/CARD",
    "IBAN_CODE": "PII/IBAN",
    "IBAN": "PII/IBAN",
    "IP_ADDRESS": "PII/IP",
    "IP": "PII/IP",
    "URL": "PII/URL",
    "ADDRESS": "PII/ADDRESS",
    "ORDER": "PII/ORDER",
    "TRACKING": "PII/TRACKING",
    "SYMPTOM": "PII/SYMPTOM",
    "DIAGNOSIS": "PII/DIAGNOSIS",
    "MEDICAL_LICENSE": "PII/ID",
    "US_PASSPORT": "PII/ID",
    "US_DRIVER_LICENSE": "PII/ID",
    "US_BANK_NUMBER": "PII/ID",
    "US_ITIN": "PII/ID",
    "UK_NHS": "PII/ID",
    "CRYPTO": "PII/ID",
    "MAC_ADDRESS": "PII/ID",
    "ID": "PII/ID",
}


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
