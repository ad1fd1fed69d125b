"""What a match must pass besides its form: checksums, calendars, the syntax of addresses.

A check answers how many leading characters of the span stand; 0 is none.
"""

import re
import tomllib
from collections.abc import Callable
from importlib.resources import files
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Any

from stdnum import iban, luhn
from stdnum.us import ssn

Check = Callable[[str], int]


TABLES: dict[str, Any] = tomllib.loads(
    (files("tacit.detection") / "patterns.toml").read_text(encoding="utf-8")
)
LISTS = {
    name: tuple(word.replace("_", " ") for word in words.split())
    for name, words in TABLES["lists"].items()
}


def check_named(name: str) -> Check:
    """The check of that name; one that says yes or no takes all of a span or nothing."""
    check: Check = globals()[name]
    return check if name.endswith("_end") else lambda span: len(span) if check(span) else 0


def _digits_of(span: str) -> str:
    return "".join(c for c in span if "0" <= c <= "9")


def is_ssn(span: str) -> bool:
    """A number that the social security administration could have given."""
    return ssn.is_valid(span.replace(" ", "-"))


def is_card(span: str) -> bool:
    """A card number whose Luhn digit fits."""
    number = _digits_of(span)
    # 0000 0000 0000 0000 and the like pass Luhn and are nobody's card.
    return len(set(number)) > 1 and luhn.is_valid(number)


IBAN_LENGTHS = {
    country: int(length)
    for length, countries in TABLES["iban_lengths"].items()
    for country in countries.split()
}


def iban_end(span: str) -> int:
    """How much of the span is a bank account number whose check digits fit."""
    left = IBAN_LENGTHS.get(span[:2].upper(), 0)
    if not left:
        return 0
    for end, char in enumerate(span, 1):
        left -= char not in " -"
        if left == 0:
            ends_there = end == len(span) or not span[end].isalnum()
            return end if ends_there and iban.is_valid(span[:end]) else 0
    return 0


def is_ipv4(span: str) -> bool:
    """Four numbers that make an address."""
    try:
        IPv4Address(span)
    except AddressValueError:
        return False
    return True


def ipv6_end(span: str) -> int:
    """How much of the span is an IPv6 address."""
    # "::" may end an address but a single ":" or "." after it is the sentence's.
    bare = span.rstrip(".")
    if bare.endswith(":") and not bare.endswith("::"):
        bare = bare[:-1]
    if not 3 <= len(bare) <= 45 or not any("0" <= c <= "9" for c in bare):
        return 0
    try:
        IPv6Address(bare)
    except AddressValueError:
        return 0
    return len(bare)


def email_end(span: str) -> int:
    """How much of the span is an e-mail address."""
    bare = span.rstrip("-_")
    at = bare.index("@")
    top = bare[bare.rfind(".") + 1 :]
    if at > 64 or len(bare) > 254 or bare[at - 1] == ".":
        return 0
    plausible = top.isalpha() or top.lower().startswith("xn--")
    return len(bare) if plausible and len(top) >= 2 else 0


_TRAILING = ".,;:!?'\"*_~|"


def url_end(span: str) -> int:
    """The address without the punctuation of the sentence around it."""
    end = len(span)
    closing = span.count(")") - span.count("(")
    while end and (span[end - 1] in _TRAILING or span[end - 1] in ")]}>"):
        if span[end - 1] == ")":
            if closing <= 0:
                break
            closing -= 1
        end -= 1
    return end


def domain_end(span: str) -> int:
    """How much of the span is a host name with a known ending."""
    end = url_end(span)
    host, slash, _ = span[:end].partition("/")
    labels = host.lower().split(".")
    top = labels[-1]
    if len(labels) < 2 or top not in LISTS["tops"] or not any(c.isalpha() for c in labels[-2]):
        return 0
    wordlike = top in LISTS["wordlike_tops"] and len(labels) == 2 and not slash
    return 0 if wordlike or any(not label for label in labels) else end


def _on_calendar(month: int, day: int) -> bool:
    return 1 <= month <= 12 and 1 <= day <= 31


def is_iso_date(span: str) -> bool:
    """A day that is on the calendar."""
    _, month, day = (int(part) for part in re.split(r"[-/.]", span))
    return _on_calendar(month, day)


def is_numeric_date(span: str) -> bool:
    """Month and day, in either order, that are on the calendar."""
    first, second, *_ = (int(part) for part in re.split(r"[-/.]", span))
    return _on_calendar(first, second) or _on_calendar(second, first)


def is_worded_date(span: str) -> bool:
    """Refuse "may 3" and "march 10": in lower case and without more they are verbs."""
    word = re.search(r"(?i:may|mar(?:ch)?)\b", span)
    day = re.search(r"(?<![0-9])[0-9]{1,2}(?![0-9])", span)
    if day and not 1 <= int(day[0]) <= 31:
        return False
    if not word or not word[0].islower():
        return True
    return re.search(r"[0-9](?:st|nd|rd|th)\b|[0-9]{4}", span) is not None


def is_time(span: str) -> bool:
    """Hours and minutes that can be."""
    parts = [int(p) for p in re.findall(r"[0-9]+", span)[:3]]
    return parts[0] <= 24 and all(p < 60 for p in parts[1:3])


def is_phone(span: str) -> bool:
    """A number of digits that a telephone can have."""
    bare = re.split(r"(?i)\s*(?:x|ext)", span)[0]
    number = _digits_of(bare)
    # 1111111 and 0000000 are fillers; so is a bracket that nothing closes.
    return 7 <= len(number) <= 15 and len(set(number)) > 2 and bare.count("(") == bare.count(")")


def is_reference(span: str) -> bool:
    """A number that somebody gave out: three digits at least, and not a date or an amount."""
    return len(_digits_of(span)) >= 3 and not re.fullmatch(r"(?:19|20)[0-9]{2}", span)


def is_ups(span: str) -> bool:
    """Whether the last digit of a 1Z number is its check digit."""
    total = 0
    for place, char in enumerate(span[2:17].upper()):
        value = int(char) if char.isdigit() else (ord(char) - 63) % 10
        total += value * (2 if place % 2 else 1)
    return span[17:].isdigit() and (-total) % 10 == int(span[17])


def is_usps(span: str) -> bool:
    """Whether a label of 20 or 22 digits ends in its modulus-10 check digit."""
    number = _digits_of(span)
    weighted = sum(int(c) * (1 if i % 2 else 3) for i, c in enumerate(reversed(number[:-1])))
    # Counting from the right the first digit before the check digit weighs three.
    return len(number) in (20, 22) and (-weighted) % 10 == int(number[-1])


def is_s10(span: str) -> bool:
    """Whether an international postal number (RR123456785GB) holds its check digit."""
    number = _digits_of(span)
    weighted = sum(int(c) * w for c, w in zip(number, (8, 6, 4, 2, 3, 5, 9, 7), strict=False))
    check = 11 - weighted % 11
    return int(number[8]) == {10: 0, 11: 5}.get(check, check)
