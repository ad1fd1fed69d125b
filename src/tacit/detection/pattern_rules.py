"""The rules of the detector `patterns`, as data.

To add one, write a `Rule` and a row in its table of cases. Every expression runs in time linear
in the text: what repeats without a bound is possessive and starts only where such a run starts,
so that no stretch of text is read more than a fixed number of times.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tacit.detection.pattern_checks import (
    IBAN_LENGTHS,
    TOPS,
    Check,
    all_or_none,
    domain_end,
    email_end,
    iban_end,
    ipv6_end,
    is_card,
    is_ipv4,
    is_iso_date,
    is_numeric_date,
    is_phone,
    is_reference,
    is_s10,
    is_ssn,
    is_time,
    is_ups,
    is_usps,
    is_worded_date,
    url_end,
    words_of,
)


@dataclass(frozen=True)
class Rule:
    """One form: what to look for, what it means, and how sure a match is.

    `name` is what an option picks; rules may share it. The span is group 1 of the expression
    if it has one, else the whole match. `check` answers how many leading characters of the
    span stand (0: none). A match near a word of `context` is raised.

    `digits`, `runs` and `needs` skip a text cheaply, and must be true of every text in which
    the rule matches: so many digits in all; for each (low, high) an unbroken run of digits
    that long; one of these lower-case strings.
    """

    name: str
    label: str
    kind: str
    regex: re.Pattern[str]
    score: float
    check: Check | None = None
    context: re.Pattern[str] | None = None
    digits: int = 0
    runs: tuple[tuple[int, int], ...] = ()
    needs: tuple[str, ...] = ()
    cased: bool = False

    @cached_property
    def why(self) -> str:
        """The reason that goes into a finding."""
        return f"patterns: {self.label}"

    @cached_property
    def run_masks(self) -> tuple[int, ...]:
        """For each wanted run, the bits of the lengths that it may have."""
        return tuple((1 << (high + 1)) - (1 << low) for low, high in self.runs)

    @cached_property
    def group(self) -> int:
        """The group that is the span; named groups are the expression's own business."""
        return int(self.regex.groups > len(self.regex.groupindex))


# An expression that begins with a digit says what may not stand before it after that digit:
# the search then leaps from digit to digit instead of asking at every character.


def _re(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.VERBOSE)


def _digit(not_after: str) -> str:
    """A digit that no letter, no digit and none of these characters precedes."""
    return rf"[0-9](?<![\w{not_after}][0-9])"


def _pairs(firsts: str, seconds: str) -> tuple[str, ...]:
    return tuple(first + second for first in firsts for second in seconds)


def _words(words: Sequence[str]) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(words)})\b")


_DIGITS = "0123456789"
_MONTHS = words_of("jan feb mar apr may jun jul aug sep oct nov dec")
_MONTH = r"""(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?
    |sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b(?:\.(?=,?[ ]['0-9]))?"""
_WEEKDAY = r"(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\b\.?,?[ ]"
_ORDINAL = r"(?:st|nd|rd|th)?(?!\w|[.,:/][0-9])"
_DAY = rf"[0-3]?[0-9]{_ORDINAL}"
_YEAR = r"(?:(?:1[6-9]|20)[0-9]{2}|'[0-9]{2})(?!\w|-[0-9])"
_YEAR_AFTER = words_of("in since during until year early late mid spring summer autumn fall winter")
_AFTER_WORD = "|".join(rf"(?<=\b{word}[ -]....)" for word in _YEAR_AFTER)
# An amount begins where a run of digits, points and commas begins, and is read once.
_AMOUNT = rf"{_digit('.,')}[0-9]*+(?:[.,][0-9]++)*+"
_SCALE = r"(?:[ -]?(?:million|billion|trillion|thousand|hundred|mln|bn|[kmb])\b)?"
_CODES = words_of("usd eur gbp jpy cad aud chf cny inr nzd sek nok dkk mxn brl zar sgd hkd krw")
_UNITS = words_of(
    "dollar dollars euro euros pound pounds cents yen rupees pesos yuan francs bucks quid sterling"
)
_STREET = words_of(
    "street st avenue ave road rd boulevard blvd lane ln drive dr court ct place square terrace "
    "parkway pkwy highway hwy way circle cir trail alley crescent"
)
# Words that end a street's name only when they are written as one, with a capital.
_STREET_TOO = words_of(
    "Row Mews Plaza Close Loop Path Walk Turnpike Crossing View Hill Heights Garden Green Grove "
    "Park Point Run Junction Meadow Mill Manor Landing Knoll Hollow Harbor Glen Gateway Forest "
    "Ford Fork Field Extension Camp Brook Bridge Branch Bluff Bend Bay Valley Village Ville Vista "
    "Union Track Trace Summit Street Stream Station Spring Shore Shoal Route River Rest Rapid "
    "Ranch Ridge Port Plain Pine Pike Passage Pass Overpass Underpass Orchard Neck Mountain "
    "Motorway Mission Mall Lodge Lock Light Lake Key Isle Island Inlet Haven Flat Fall Estate "
    "Expressway Freeway Divide Dam Dale Curve Creek Cove Court Corner Common Club Cliff Circle "
    "Center Causeway Cape Canyon Burg Bypass Bottom Beach Bayou Arcade Annex Crossroad Drive Forge "
    "Mount Oval Parkway Prairie Radial Ramp Road Skyway Spur Square Stravenue Terrace Throughway "
    "Trafficway Tunnel Via Viaduct Wall Well Crest Way Fort Land Rue Course Loaf Ferry"
)
# The point of "St." belongs to the address; the point after "Street" ends a sentence.
_ABBREVIATED = r"""(?:(?:(?<=\b[Ss]t)|(?<=\b[Rr]d)|(?<=\b[Ll]n)|(?<=\b[Dd]r)|(?<=\b[Cc]t)
    |(?<=\b[Aa]ve)|(?<=\b[Bb]lvd)|(?<=\b[Pp]kwy)|(?<=\b[Hh]wy)|(?<=\b[Cc]ir))\.)?"""
_REF = r"\#?([a-z0-9]{1,12}(?:[-/][a-z0-9]{1,12}){0,4})(?![\w@]|-\w|[.][0-9])"
# "number is", "no.:", "#" and the like between a word and the number that it announces.
_SAID = r"""[ ]{0,2}(?:\#[ ]?)?(?:[ ]{0,2}(?:numbers?|num|nos?|nr|id|code|ref(?:erence)?)\b\.?)?
    (?:[ ]{0,2}(?:is|was))?[ ]{0,2}[:=]?[ ]{0,2}"""
_NAMED_IDS = words_of(
    "account acct member membership customer client policy passport license licence employee "
    "patient medical-record mrn case ticket reference confirmation loyalty booking claim "
    "my-id your-id user-id personal-id id-card pin"
)

_PHONE_WORDS = words_of(
    "phone telephone tel cell cellphone mobile call calling called fax text sms dial reach ring "
    "whatsapp contact hotline helpline landline callback"
)
_ORDER_WORDS = words_of(
    "order orders ordered purchase purchased invoice receipt confirmation return refund"
)
_TRACK_WORDS = words_of(
    "tracking track tracked trace parcel package shipment shipped shipping delivery courier return "
    "carrier usps ups fedex dhl label waybill"
)
_CARD_WORDS = words_of("card visa mastercard amex maestro discover credit debit payment cc")
_SSN_WORDS = words_of("ssn social security taxpayer")
_IP_WORDS = words_of("ip ipv4 ipv6 address host server router ping dns subnet login")
_DATE_WORDS = words_of(
    "on by until before after since date dated due born birthday dob deliver delivered arrive "
    "arrived expires expiry exp valid through ends starts"
)

RULES: tuple[Rule, ...] = (
    # The lookbehind holds every character of the local part, so each run is entered once; the
    # punctuation before its first letter is stepped over and left outside the span.
    Rule(
        "email",
        "e-mail address",
        "PII/EMAIL",
        _re(r"(?<![\w.+%&'=/-])['.+%&=/-]*+(\w[\w.+%&'=/-]*+@[\w-]++(?:\.[\w-]++)++)"),
        0.95,
        check=email_end,
        needs=("@",),
    ),
    Rule(
        "url",
        "web address",
        "PII/URL",
        _re(r"(?<!\w)(?:https?|ftps?|sftp|wss?)://[^\s<>\"]++"),
        0.95,
        check=url_end,
        needs=("://",),
    ),
    Rule(
        "url",
        "web address without scheme",
        "PII/URL",
        _re(r"(?<![\w./@-])www\.[\w-]++[^\s<>\"]*+"),
        0.9,
        check=url_end,
        needs=("www.",),
    ),
    Rule(
        "url",
        "domain name",
        "PII/URL",
        _re(r"(?<![\w.@/:+%&'=-])[\w-]++(?:\.[\w-]++)++(?!@)(?:/[^\s<>\"]*+)?"),
        0.5,
        check=domain_end,
        needs=tuple(sorted({f".{top[0]}" for top in TOPS})),
    ),
    Rule(
        "phone",
        "phone number, international form",
        "PII/PHONE",
        _re(
            r"""[+0](?<![\w+.-][+0])(?:(?<=[+])|(?<=0)0[ -]?(?=(?:[ ./-]?[0-9]){9}))
            [2-9][0-9]{0,2}(?:[ ]?\([0-9]{1,4}\))?
            (?:[ ./-]?[0-9]){6,13}(?!\w)(?:[ ]?(?:x|ext\.?)[ ]?[0-9]{1,6}(?!\w))?"""
        ),
        0.85,
        check=all_or_none(is_phone),
        digits=8,
        needs=("+", "00"),
    ),
    Rule(
        "phone",
        "phone number, North American form",
        "PII/PHONE",
        _re(
            r"""(?<![\w+.-])(?:(?:[+]|00)?1[ .-]?)?(?:\([2-9][0-9]{2}\)[ ]?|[2-9][0-9]{2}[ .-])
            [0-9]{3}[ .-][0-9]{4}(?![\w-])"""
        ),
        0.75,
        check=all_or_none(is_phone),
        context=_words(_PHONE_WORDS),
        digits=10,
        runs=((3, 3), (4, 4)),
    ),
    Rule(
        "phone",
        "phone number with extension",
        "PII/PHONE",
        _re(
            r"""(?<![\w+.-])(?:(?:[+]|00)?1[ .-]?)?\(?[2-9][0-9]{2}\)?[ .-]?[0-9]{3}[ .-]?[0-9]{4}
            [ ]?,?(?:x|ext\.?|extension)[ ]?[0-9]{1,6}(?!\w)"""
        ),
        0.85,
        check=all_or_none(is_phone),
        digits=11,
        needs=("ext", "x ", *_pairs("x", _DIGITS)),
    ),
    Rule(
        "phone",
        "phone number with country code",
        "PII/PHONE",
        _re(r"[+0](?<![\w+.-][+0])(?:(?<=[+])|(?<=0)0)1[ .-]?[2-9][0-9]{9}(?![\w-])"),
        0.75,
        check=all_or_none(is_phone),
        digits=11,
        runs=((10, 13),),
    ),
    Rule(
        "phone",
        "phone number, national form",
        "PII/PHONE",
        _re(
            r"""[(0](?<![\w+.-][(0])(?:(?<=0)|(?<=[(])0)[1-9][0-9]{0,4}\)?[ /-][0-9]{2,4}
            (?:[ -]?[0-9]{2,4}){1,3}(?![\w-]|[.][0-9])"""
        ),
        0.4,
        check=all_or_none(is_phone),
        context=_words(_PHONE_WORDS),
        digits=8,
        needs=_pairs("0", _DIGITS),
    ),
    Rule(
        "phone",
        "phone number, local form",
        "PII/PHONE",
        _re(
            rf"""{_digit("+./:-")}(?<=[2-9])(?<![0-9][ ][0-9])[0-9]{{2}}[.-][0-9]{{4}}
            (?![\w-]|[.,/:][0-9])"""
        ),
        0.4,
        check=all_or_none(is_phone),
        context=_words(_PHONE_WORDS),
        digits=7,
        runs=((3, 3), (4, 4)),
    ),
    Rule(
        "phone",
        "phone number, ten digits",
        "PII/PHONE",
        _re(rf"{_digit('+.,/:#-')}(?<=[2-9])[0-9]{{2}}[2-9][0-9]{{6}}(?![\w-]|[.,/:][0-9])"),
        0.3,
        check=all_or_none(is_phone),
        context=_words(_PHONE_WORDS),
        runs=((10, 10),),
    ),
    Rule(
        "phone",
        "phone number, digits only",
        "PII/PHONE",
        _re(rf"{_digit('+.,/:#-')}[0-9]{{6,14}}(?![\w-]|[.,/:][0-9])"),
        0.2,
        check=all_or_none(is_phone),
        context=_words(_PHONE_WORDS),
        runs=((7, 15),),
        needs=_PHONE_WORDS,
    ),
    Rule(
        "ssn",
        "social security number",
        "PII/SSN",
        _re(rf"{_digit('.-')}[0-9]{{2}}-[0-9]{{2}}-[0-9]{{4}}(?![\w-])"),
        0.85,
        check=all_or_none(is_ssn),
        context=_words(_SSN_WORDS),
        runs=((3, 3), (2, 2), (4, 4)),
    ),
    Rule(
        "ssn",
        "social security number, spaced",
        "PII/SSN",
        _re(
            rf"""{_digit(".-")}(?<![0-9][ ][0-9])[0-9]{{2}}[ ][0-9]{{2}}[ ][0-9]{{4}}
            (?![\w-]|[ ][0-9])"""
        ),
        0.4,
        check=all_or_none(is_ssn),
        context=_words(_SSN_WORDS),
        runs=((3, 3), (2, 2), (4, 4)),
    ),
    Rule(
        "ssn",
        "social security number, digits only",
        "PII/SSN",
        _re(rf"{_digit('.,/:#-')}[0-9]{{8}}(?![\w-]|[.,/:][0-9])"),
        0.2,
        check=all_or_none(is_ssn),
        context=_words(_SSN_WORDS),
        runs=((9, 9),),
        needs=_SSN_WORDS,
    ),
    Rule(
        "card",
        "card number",
        "PII/CARD",
        _re(
            rf"""{_digit(".-")}[0-9]{{3}}(?:
            (?P<S>[ -]?)[0-9]{{4}}(?P=S)[0-9]{{4}}(?P=S)[0-9]{{4}}
            |(?<=3...)(?P<T>[ -]?)[0-9]{{6}}(?P=T)[0-9]{{4,5}})(?![\w-])"""
        ),
        0.9,
        check=all_or_none(is_card),
        context=_words(_CARD_WORDS),
        digits=14,
        runs=((4, 16),),
    ),
    Rule(
        "card",
        "card number, unusual length",
        "PII/CARD",
        _re(rf"{_digit('.-')}[0-9]{{11,18}}(?![\w-]|[.][0-9])"),
        0.5,
        check=all_or_none(is_card),
        context=_words(_CARD_WORDS),
        runs=((12, 19),),
    ),
    # Only the country is consumed: what follows an account number may begin the next one.
    Rule(
        "iban",
        "bank account number",
        "PII/IBAN",
        _re(r"(?<!\w)(?=([a-z]{2}[0-9]{2}(?:[ -]?[a-z0-9]){11,30}))[a-z]{2}"),
        0.98,
        check=iban_end,
        digits=8,
        needs=tuple(country.lower() + digit for country in IBAN_LENGTHS for digit in _DIGITS),
    ),
    Rule(
        "ip",
        "internet address, version 4",
        "PII/IP",
        _re(rf"{_digit('.-')}[0-9]{{0,2}}(?:\.[0-9]{{1,3}}){{3}}(?![\w-]|[.][0-9])"),
        0.6,
        check=all_or_none(is_ipv4),
        context=_words(_IP_WORDS),
        digits=4,
        needs=_pairs(_DIGITS, "."),
    ),
    Rule(
        "ip",
        "internet address, version 6",
        "PII/IP",
        _re(r"[0-9a-f:](?<![\w:.][0-9a-f:])(?=[0-9a-f]{0,3}:)[0-9a-f:.]*+(?!\w)"),
        0.8,
        check=ipv6_end,
        digits=1,
        needs=("::", *_pairs(":", _DIGITS + "abcdef")),
    ),
    Rule(
        "date",
        "date, year first",
        "DATE",
        _re(
            rf"""{_digit("./-")}(?<=[12])[0-9]{{3}}(?P<S>[-/.])[0-9]{{1,2}}(?P=S)[0-9]{{1,2}}
            (?:(?!\w|[-/][0-9])|(?=t[0-9]))"""
        ),
        0.9,
        check=all_or_none(is_iso_date),
        digits=6,
        needs=_pairs("-/.", _DIGITS),
        runs=((4, 4),),
    ),
    Rule(
        "date",
        "date in numbers",
        "DATE",
        _re(
            rf"""{_digit("./-")}[0-9]?(?P<S>[-/.])[0-9]{{1,2}}(?P=S)
            (?:(?:1[6-9]|20)[0-9]{{2}}|[0-9]{{2}})(?!\w|[-/.][0-9])"""
        ),
        0.7,
        check=all_or_none(is_numeric_date),
        context=_words(_DATE_WORDS),
        digits=3,
        runs=((1, 2),),
        needs=_pairs("-/.", _DIGITS),
    ),
    Rule(
        "date",
        "day and month in numbers",
        "DATE",
        _re(rf"{_digit('./$-')}[0-9]?/[0-9]{{1,2}}(?!\w|[-/.][0-9]|%)"),
        0.1,
        check=all_or_none(is_numeric_date),
        context=_words(_DATE_WORDS),
        digits=2,
        needs=_pairs("/", _DIGITS),
    ),
    Rule(
        "date",
        "date in words, with its weekday",
        "DATE",
        _re(
            rf"""(?<!\w){_WEEKDAY}(?:the[ ])?(?:{_DAY}[ -](?:of[ ])?{_MONTH}
            |{_MONTH}[ ](?:the[ ])?{_DAY})(?:,?[ -]{_YEAR})?"""
        ),
        0.85,
        check=all_or_none(is_worded_date),
        digits=1,
        needs=_MONTHS,
    ),
    Rule(
        "date",
        "date in words, day first",
        "DATE",
        _re(
            rf"""{_digit(".,/:-")}[0-9]?(?<![4-9][0-9]){_ORDINAL}[ -](?:of[ ])?{_MONTH}
            (?:,?[ -]{_YEAR})?"""
        ),
        0.85,
        check=all_or_none(is_worded_date),
        digits=1,
        needs=_MONTHS,
    ),
    Rule(
        "date",
        "date in words, month first",
        "DATE",
        _re(rf"(?<![\w.-]){_MONTH}[ ](?:the[ ])?{_DAY}(?:,?[ ]{_YEAR})?"),
        0.85,
        check=all_or_none(is_worded_date),
        digits=1,
        needs=_MONTHS,
    ),
    Rule(
        "date",
        "month and year",
        "DATE",
        _re(rf"(?<![\w.-]){_MONTH},?[ ](?:of[ ])?{_YEAR}"),
        0.8,
        check=all_or_none(is_worded_date),
        digits=2,
        needs=_MONTHS,
    ),
    Rule(
        "date",
        "year",
        "DATE",
        _re(
            rf"""(?:1[6-9]|20)[0-9]{{2}}(?:{_AFTER_WORD})
            (?![\w%]|[-.,:/][0-9])"""
        ),
        0.45,
        runs=((4, 4),),
        needs=tuple(word + mark + digit for word in _YEAR_AFTER for mark in " -" for digit in "12"),
    ),
    Rule(
        "date",
        "decade",
        "DATE",
        _re(r"[12](?<![\w.,-][12])[0-9]{2}0'?s(?!\w)"),
        0.6,
        digits=4,
        needs=("0s", "0's"),
    ),
    Rule(
        "time",
        "time of day",
        "TIME",
        _re(
            rf"""{_digit(":.,/-")}[0-9]?:[0-9]{{2}}(?::[0-9]{{2}}(?:[.][0-9]{{1,9}})?)?(?![0-9:])
            (?:[ ]?[ap]\.?m\b\.?|z\b)?(?:[ ](?:utc|gmt|[ecmp][sd]?t)\b)?(?!\w)"""
        ),
        0.8,
        check=all_or_none(is_time),
        digits=3,
        needs=_pairs(":", _DIGITS),
    ),
    Rule(
        "time",
        "time of day, after a date",
        "TIME",
        _re(r"""[0-9]{2}(?<=[0-9]t..):[0-9]{2}(?::[0-9]{2}(?:[.][0-9]{1,9})?)?(?![0-9:])z?"""),
        0.8,
        check=all_or_none(is_time),
        digits=8,
        needs=_pairs(":", _DIGITS),
    ),
    Rule(
        "time",
        "hour of the day",
        "TIME",
        _re(rf"{_digit(':.,/$-')}[0-9]?[ ]?(?:a\.?m\b\.?|p\.?m\b\.?|o'clock\b)"),
        0.8,
        check=all_or_none(is_time),
        digits=1,
        needs=tuple(
            digit + space + word
            for digit in _DIGITS
            for space in ("", " ")
            for word in ("am", "pm", "a.m", "p.m", "o'clock")
        ),
    ),
    Rule(
        "money",
        "amount of money, sign first",
        "MONEY",
        _re(
            rf"""(?<!\w)(?:us|ca|c|au|a|nz|hk|s|r)?[$€£¥₹₩₽₪₺₫฿₴₦][ ]?[0-9]++(?:[.,][0-9]++)*+
            {_SCALE}"""
        ),
        0.9,
        digits=1,
        needs=tuple("$€£¥₹₩₽₪₺₫฿₴₦"),
    ),
    Rule(
        "money",
        "amount of money, sign or word last",
        "MONEY",
        _re(
            rf"""{_AMOUNT}{_SCALE}[ -]?(?:[€£¥₹]|(?:us[ ]|canadian[ ]|australian[ ])?
            (?:{"|".join((*_UNITS, *_CODES))})\b)"""
        ),
        0.8,
        digits=1,
        needs=(*_UNITS, *_CODES, *"€£¥₹"),
    ),
    Rule(
        "money",
        "amount of money, code first",
        "MONEY",
        _re(rf"\b(?:{'|'.join(_CODES)})[ ]?[0-9]++(?:[.,][0-9]++)*+(?!\w)"),
        0.8,
        digits=1,
        needs=_CODES,
    ),
    Rule(
        "percent",
        "percentage",
        "PERCENT",
        _re(rf"{_AMOUNT}[ -]?(?:%|percent(?:age)?\b|per[ ]cent\b|pct\b)"),
        0.9,
        digits=1,
        needs=("%", "percent", "per cent", "pct"),
    ),
    Rule(
        "order",
        "order number",
        "PII/ORDER",
        _re(
            r"""(?<![\w-])(?:ord|order|po|inv|invoice|so|rma)[-\#][a-z0-9]{2,16}
            (?:-[a-z0-9]{1,16}){0,4}(?![\w@]|-\w)"""
        ),
        0.85,
        check=all_or_none(is_reference),
        digits=3,
        needs=tuple(
            f"{end}{mark}" for mark in "-#" for end in words_of("ord der po inv ice so rma")
        ),
    ),
    Rule(
        "order",
        "order number, digits grouped 3-7-7",
        "PII/ORDER",
        _re(rf"{_digit('-')}[0-9]{{2}}-[0-9]{{7}}-[0-9]{{7}}(?![\w-])"),
        0.85,
        runs=((3, 3), (7, 7)),
    ),
    Rule(
        "order",
        "order number, named",
        "PII/ORDER",
        _re(rf"\b(?:orders?|invoice|receipt)\b{_SAID}{_REF}"),
        0.75,
        check=all_or_none(is_reference),
        digits=3,
        needs=("order", "invoice", "receipt"),
    ),
    Rule(
        "order",
        "number after a hash sign",
        "PII/ORDER",
        _re(r"\#(?<![\w\#&/]\#)[ ]?([0-9]{3,14}(?:-[0-9]{1,14}){0,3})(?![\w-])"),
        0.25,
        check=all_or_none(is_reference),
        context=_words(_ORDER_WORDS),
        digits=3,
        needs=("#",),
    ),
    Rule(
        "tracking",
        "UPS tracking number",
        "PII/TRACKING",
        _re(r"(?<!\w)1z[0-9a-z]{16}(?!\w)"),
        0.95,
        check=all_or_none(is_ups),
        digits=1,
        needs=("1z",),
    ),
    Rule(
        "tracking",
        "UPS tracking number, check digit wrong",
        "PII/TRACKING",
        _re(r"(?<!\w)1z[0-9a-z]{16}(?!\w)"),
        0.5,
        context=_words(_TRACK_WORDS),
        digits=1,
        needs=("1z",),
    ),
    Rule(
        "tracking",
        "USPS tracking number",
        "PII/TRACKING",
        _re(rf"{_digit('.-')}(?<=9)[0-9](?:[ ]?[0-9]){{18,20}}(?![\w-])"),
        0.9,
        check=all_or_none(is_usps),
        digits=20,
    ),
    Rule(
        "tracking",
        "parcel number of 20 to 22 digits",
        "PII/TRACKING",
        _re(rf"{_digit('.-')}[0-9]{{3}}(?:[ ]?[0-9]{{4}}){{4}}(?:[ ]?[0-9]{{1,2}})?(?![\w-])"),
        0.4,
        context=_words(_TRACK_WORDS),
        digits=20,
    ),
    Rule(
        "tracking",
        "international postal number",
        "PII/TRACKING",
        _re(r"(?<!\w)[a-z]{2}[ ]?[0-9]{9}[ ]?[a-z]{2}(?!\w)"),
        0.9,
        check=all_or_none(is_s10),
        runs=((9, 9),),
    ),
    Rule(
        "tracking",
        "international postal number, spaced",
        "PII/TRACKING",
        _re(r"[A-Z](?<!\w[A-Z])[A-Z][ ][0-9]{3}[ ][0-9]{3}[ ][0-9]{3}[ ][A-Z]{2}(?!\w)"),
        0.9,
        check=all_or_none(is_s10),
        digits=9,
        runs=((3, 3),),
        cased=True,
    ),
    Rule(
        "tracking",
        "parcel number",
        "PII/TRACKING",
        _re(
            r"""(?<![\w-])(?:trk|tba|track|awb)[-\#_]?[a-z0-9]{2,24}(?:-[a-z0-9]{1,16}){0,5}
            (?![\w-])"""
        ),
        0.85,
        check=all_or_none(is_reference),
        digits=3,
        needs=("trk", "tba", "track", "awb"),
    ),
    Rule(
        "tracking",
        "parcel number, named",
        "PII/TRACKING",
        _re(rf"\b(?:tracking|shipment|parcel|waybill|consignment)\b{_SAID}{_REF}"),
        0.75,
        check=all_or_none(is_reference),
        digits=3,
        needs=("tracking", "shipment", "parcel", "waybill", "consignment"),
    ),
    Rule(
        "tracking",
        "parcel number, digits only",
        "PII/TRACKING",
        _re(rf"{_digit('.,/:+#-')}[0-9]{{9,14}}(?![\w-]|[.,/:][0-9])"),
        0.1,
        context=_words(_TRACK_WORDS),
        runs=((10, 15),),
        needs=_TRACK_WORDS,
    ),
    Rule(
        "tracking",
        "parcel number, letters and digits",
        "PII/TRACKING",
        _re(r"(?<![\w-])(?=[A-Z]*+[0-9])(?=[0-9]*+[A-Z])[A-Z0-9]{8,24}(?![\w-])"),
        0.1,
        context=_words(_TRACK_WORDS),
        digits=1,
        needs=_TRACK_WORDS,
        cased=True,
    ),
    Rule(
        "address",
        "street address",
        "PII/ADDRESS",
        _re(
            rf"""{_digit(".,/:$#-")}[0-9]{{0,5}}[A-Za-z]?(?:-[0-9]{{1,4}})?[ ]
            (?:[NSEWnsew]{{1,2}}\.?[ ])?
            (?:[A-Z](?:[\w'-]{{0,24}}|[a-z]?\.)[ ]|[0-9]{{1,3}}(?:st|nd|rd|th)[ ]){{1,4}}
            (?:(?i:{"|".join(_STREET)})|(?:{"|".join(_STREET_TOO)})s?)\b{_ABBREVIATED}
            (?:[ ](?:[NSEW]{{1,2}}\b\.?|North|South|East|West))?
            (?:,?[ ](?i:apt|apartment|suite|ste|unit|floor|fl|room|rm|\#)\.?
                [ ]?\#?[0-9A-Z-]{{1,6}}\b)?
            (?:,?[ \n](?:[A-Z][\w'.-]{{1,24}}[ ]?){{1,4}}
                ,[ ](?:[A-Z]{{2}}|[A-Z][a-z]{{2,14}}(?:[ ][A-Z][a-z]{{2,14}})?)\b
                (?:[ ,]{{1,2}}[0-9]{{5}}(?:-[0-9]{{4}})?(?!\w))?)?"""
        ),
        0.7,
        digits=1,
        needs=tuple(f" {word.lower()}" for word in (*_STREET, *_STREET_TOO)),
        cased=True,
    ),
    Rule(
        "address",
        "post office box",
        "PII/ADDRESS",
        _re(
            r"""\b(?:p\.?[ ]?o\.?[ ]?box|post[ ]office[ ]box|(?:psc|unit)[ ][0-9]{1,6},?[ ]box)
            [ ][0-9]{1,6}(?!\w)(?:,?\s[adf]po[ ]a[aep][ ][0-9]{5}(?![\w-]))?"""
        ),
        0.8,
        digits=1,
        needs=("box ",),
    ),
    Rule(
        "address",
        "state and postal code",
        "PII/ADDRESS",
        _re(
            r"""\b(?:A[AEKLPRSZ]|C[AOT]|D[CE]|F[LM]|G[AU]|HI|I[ADLN]|K[SY]|LA|M[ADEHINOPST]|N[CDEHJMVY]
            |O[HKR]|P[ARW]|RI|S[CD]|T[NX]|UT|V[AIT]|W[AIVY])[ ][0-9]{5}(?:-[0-9]{4})?(?![\w-])"""
        ),
        0.6,
        runs=((5, 5),),
        cased=True,
    ),
    Rule(
        "id",
        "number of a person, named",
        "PII/ID",
        _re(rf"\b(?:{'|'.join(_NAMED_IDS).replace('-', '[ ]')})\b{_SAID}{_REF}"),
        0.6,
        check=all_or_none(is_reference),
        digits=3,
        needs=tuple(word.replace("-", " ") for word in _NAMED_IDS),
    ),
    Rule(
        "day",
        "day named by its distance",
        "DATE",
        _re(
            r"""\b(?:(?:(?:next|this|last|coming|past)[ ])?
                (?:mon|tues|wednes|thurs|fri|satur|sun)day
            |(?:next|last|this|coming|past)[ ]
                (?:week(?:end)?|month|year|spring|summer|autumn|winter)
            |the[ ]day[ ](?:before[ ]yesterday|after[ ]tomorrow)|yesterday|today|tomorrow)(?!\w)"""
        ),
        0.5,
        needs=(
            *words_of("monday tuesday wednesday thursday friday saturday sunday yesterday today"),
            *("tomorrow", "next ", "last ", "this ", "coming ", "past "),
        ),
    ),
    Rule("digits", "digits", "CARDINAL", _re(r"[0-9]++"), 0.5, digits=1),
)

NAMES = tuple(dict.fromkeys(rule.name for rule in RULES))
OPTIONAL = ("day", "digits")
"""Rules that work only when they are named: most of what they mark identifies nobody."""

DEFAULT = tuple(name for name in NAMES if name not in OPTIONAL)
