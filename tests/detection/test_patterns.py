"""Rules of `patterns`: a table of cases each, and what holds for all of them."""

import re

import pytest
from faker import Faker
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.detection.detector import open_detectors
from tacit.detection.kinds import known_kinds
from tacit.detection.patterns import DEFAULT, FLOOR, NAMES, RULES, Patterns
from tacit.errors import UsageError

# What a rule must mark stands in double angles; a text without them must stay unmarked.
CASES = {
    "email": [
        ("PII/EMAIL", "Write to <<ann.o'brien+x@mail.example.co.uk>>."),
        ("PII/EMAIL", "'<<bob@example.com>>', <<carol_99@sub-domain.example.org>>;"),
        ("PII/EMAIL", "mailto:<<dan@example.com>>?subject=x"),
        ("PII/EMAIL", "<<jörg@müller.example>> and <<x@xn--80ak6aa92e.com>>"),
        ("PII/EMAIL", "cut at the dash: <<eve@example.com>>-"),
        ("PII/EMAIL", "no top level: a@b, ann@localhost"),
        ("PII/EMAIL", "@handle and name@ and x@1.2.3.4 and a.@example.com"),
        ("PII/EMAIL", "top of one letter: a@b.c"),
    ],
    "phone": [
        ("PII/PHONE", "Ring <<+44 20 7946 0958>> now"),
        ("PII/PHONE", "<<+49 (30) 1234-5678>>, <<+33 1 23 45 67 89>>, <<+919876543210>>"),
        ("PII/PHONE", "<<0044 20 7946 0958>>"),
        ("PII/PHONE", "<<(555) 010-9999>> or <<555-010-9999>> or <<555.010.9999>>"),
        ("PII/PHONE", "<<+1 555 010 9999>>, <<1-555-010-9999>>, <<001-555-010-9999>>"),
        ("PII/PHONE", "<<+15552349876>> and <<(555)234-9876>>"),
        ("PII/PHONE", "<<555.234.9876x123>> and <<001-555-234-9876x12>>"),
        ("PII/PHONE", "<<(555) 234-9876 ext. 4>>"),
        ("PII/PHONE", "Call <<020 7946 0958>> or <<0176 1234567>>"),
        ("PII/PHONE", "my phone is <<5550109999>>"),
        ("PII/PHONE", "call <<555-0199>>"),
        ("PII/PHONE", "the new one is <<5552349876>>."),
        ("PII/PHONE", "nothing said: 5550109999 units"),
        ("PII/PHONE", "a serial 1234567890123456"),
        ("PII/PHONE", "call 1111111 or 000-0000"),
        ("PII/PHONE", "in 2010-2014 and 1.5552349876"),
        ("PII/PHONE", "on 2024-12-31 and 12/31/2024"),
        ("PII/PHONE", "v1.555.010.9999 and a555-010-9999"),
    ],
    "ssn": [
        ("PII/SSN", "It is <<536-90-4399>>."),
        ("PII/SSN", "<<536 90 4399>>"),
        ("PII/SSN", "my social security number is <<536904399>>"),
        ("PII/SSN", "bare 536904399"),
        ("PII/SSN", "000-12-3456, 666-12-3456, 912-12-3456, 536-00-4399, 536-90-0000"),
        ("PII/SSN", "078-05-1120 was in every wallet"),
        ("PII/SSN", "1536-90-4399 and 536-90-43990 and 536-90-4399-1"),
    ],
    "card": [
        ("PII/CARD", "<<4111 1111 1111 1111>> 123"),
        ("PII/CARD", "<<4111-1111-1111-1111>>, <<5500005555555559>>"),
        ("PII/CARD", "<<378282246310005>>, <<3782 822463 10005>>, <<30569309025904>>"),
        ("PII/CARD", "card <<6304000000000000>>"),
        ("PII/CARD", "<<4000000000006>> has thirteen"),
        ("PII/CARD", "4111 1111 1111 1112 and 0000 0000 0000 0000"),
        ("PII/CARD", "4111 1111-1111 1111 and 14111111111111111"),
    ],
    "iban": [
        ("PII/IBAN", "<<DE89 3704 0044 0532 0130 00>> and <<GB82WEST12345698765432>>."),
        ("PII/IBAN", "to <<de89370400440532013000>> please"),
        ("PII/IBAN", "<<NO93 8601 1117 947>> today 9 x"),
        ("PII/IBAN", "DE88 3704 0044 0532 0130 00 and XX89370400440532013000"),
        ("PII/IBAN", "DE8937040044053201300099"),
    ],
    "ip": [
        ("PII/IP", "from <<10.0.0.1>>, <<192.168.100.254>>."),
        ("PII/IP", "<<2001:db8::1>> and <<::1>>, <<fe80::1ff:fe23:4567:890a>>."),
        ("PII/IP", "<<2001:0db8:85a3:0000:0000:8a2e:0370:7334>>: up; <<::ffff:10.0.0.1>>"),
        ("PII/IP", "999.1.1.1, 1.2.3, 1.2.3.4.5, 01.2.3.4"),
        ("PII/IP", "12:30:45, 1:2, std::vector, a::b, ::, 3:16"),
    ],
    "url": [
        ("PII/URL", "See <<https://example.org/a(b)?q=1&r=2>>), then"),
        ("PII/URL", "<<http://user:pass@host:80/x#y>>, <<ftp://example.com/f>>!"),
        ("PII/URL", "<<www.example.com/x>>. <<WWW.EXAMPLE.COM>>"),
        ("PII/URL", "buy at <<example.com>> or <<shop.example.co.uk/a/b>>."),
        ("PII/URL", '<a href="<<https://example.org/>>">'),
        ("PII/URL", "node.js, e.g. this.is, end.It began, 3.com, foo.bar, a@example.com"),
        ("PII/URL", "http and ://"),
    ],
    "date": [
        ("DATE", "<<2024-12-31>>, <<2024/1/2>>, <<2024.12.31>>; <<2024-12-31>>T10:00"),
        ("DATE", "<<12/31/2024>>, <<31.12.2024>>, <<31-12-24>>"),
        ("DATE", "due on <<12/31>>"),
        ("DATE", "<<31 December 2024>>, <<31st of December>>, <<1-Jan-2020>>"),
        ("DATE", "<<Dec 31st>>, <<December 31, 2024>>, <<Sept. 3>>"),
        ("DATE", "<<Tuesday, 3 May 2021>> and <<Fri, Dec 31>>"),
        ("DATE", "<<December 2024>>, <<May of 1999>>, <<Jan '24>>"),
        ("DATE", "since <<1999>>, in <<2024>>, the <<1990s>>, <<1980's>>"),
        ("DATE", "by <<17 July>>. It came on <<26 May>>, <<3 Sept. 2024>>."),
        ("DATE", "you may 3 times march 10 miles"),
        ("DATE", "on <<may 3rd>> and <<march 10, 2020>>"),
        ("DATE", "2024-13-31, 32/32/2024, 1/2, 10-11-12-13, 1.2.3.4"),
        ("DATE", "2024 units, 40 December, December 45"),
    ],
    "time": [
        ("TIME", "at <<10:30 am>>, <<5pm>>, <<5 o'clock>>, <<12:30 EST>>"),
        ("TIME", "<<23:59:59>>, <<7:05 p.m.>> and 2024-01-01T<<10:00:00Z>>"),
        ("TIME", "25:61, 1:2, 99pm, 10:300, am, 5 amps"),
    ],
    "money": [
        ("MONEY", "<<$1,234.50>>, <<US$ 3 million>>, <<€5>>, <<£3.2bn>>"),
        ("MONEY", "<<20 dollars>>, <<5.5 million euros>>, <<30 USD>>, <<3€>>"),
        ("MONEY", "<<EUR 20>>, <<usd 1,000>>"),
        ("MONEY", "$ and dollars, 20 people, USD"),
    ],
    "percent": [
        ("PERCENT", "<<5%>>, <<5.5 percent>>, <<3 per cent>>, <<1,000 %>>, <<12-percent>>"),
        ("PERCENT", "percent, 5 people, per 5"),
    ],
    "order": [
        ("PII/ORDER", "<<ORD-4829-1137>> and <<ord-99812>>"),
        ("PII/ORDER", "order #<<123456>>, order number is <<99812>>, Order no. <<A1B2-993>>"),
        ("PII/ORDER", "I ordered it yesterday, #<<4829>>"),
        ("PII/ORDER", "<<113-1234567-1234567>>"),
        ("PII/ORDER", "we are #4829 in the charts"),
        ("PII/ORDER", "in order to 2024, order 12, word-123"),
    ],
    "tracking": [
        ("PII/TRACKING", "<<1Z999AA10123456784>>"),
        ("PII/TRACKING", "<<RR123456785GB>> and <<RR 123 456 785 GB>>"),
        ("PII/TRACKING", "<<TRK-998-1234567>>, <<TBA123456789012>>"),
        ("PII/TRACKING", "tracking number: <<123456789012>>"),
        ("PII/TRACKING", "it shipped as <<961234567890>>"),
        ("PII/TRACKING", "<<9400 1000 0000 0000 0000 06>>, <<12345678901234567890>>"),
        ("PII/TRACKING", "RR123456784GB, 1Z999, tracker, on track 3"),
        ("PII/TRACKING", "961234567890 alone"),
        ("PII/TRACKING", "your parcel <<YMVALB3RRH>> came; PARCEL IN A HURRY AB12"),
        (
            "PII/TRACKING",
            "LFBQZ69S8W alone; whatever it may be, the parcel was DELIVERED as lfbqz69s8w",
        ),
    ],
    "address": [
        ("PII/ADDRESS", "I live at <<482 Maple Street, Suite 12, Lakeview, OH 44107>>."),
        ("PII/ADDRESS", "<<12 Oak Ave.>>, <<7 N. 5th St>>; <<1600 Grand Canyon Road>>. Then"),
        ("PII/ADDRESS", "<<P.O. Box 123>> and <<PSC 12, Box 345 APO AE 09012>>"),
        ("PII/ADDRESS", "in <<OH 44107-1234>>, at <<9 St. John's Road>>"),
        ("PII/ADDRESS", "it left on 20 August. Track it"),
        ("PII/ADDRESS", "12 people in the street, 5 Big Cats, in 2024 Main, OR 123"),
    ],
    "id": [
        ("PII/ID", "account number is <<998-1234>>, passport <<X1234567>>"),
        ("PII/ID", "My ID is <<341752>>, and my PIN: <<8841>>"),
        ("PII/ID", "see medical record no. <<55512>>"),
        ("PII/ID", "Policy #<<A-99812>>"),
        ("PII/ID", "the account of 2024, in this case 12, customer care"),
    ],
    "day": [
        ("DATE", "<<Next Monday>>, <<tomorrow>>, <<the day after tomorrow>>, <<last week>>"),
        ("DATE", "on <<Friday>>'s show, todays, this thing, Mondays, day"),
    ],
    "digits": [("CARDINAL", "<<1>>,<<234>>.<<5>> a<<6>>b"), ("CARDINAL", "none ½ here")],
}
ROWS = [(name, kind, text) for name, rows in CASES.items() for kind, text in rows]


def unmarked(marked: str) -> tuple[str, list[tuple[int, int]]]:
    """The text without the angles, and the spans that they enclosed."""
    text, spans = "", []
    for i, piece in enumerate(re.split("<<|>>", marked)):
        if i % 2:
            spans.append((len(text), len(text) + len(piece)))
        text += piece
    return text, spans


@pytest.mark.parametrize(("name", "kind", "marked"), ROWS)
def test_cases(name: str, kind: str, marked: str) -> None:
    text, spans = unmarked(marked)
    found = Patterns.open(name).find_in(text)
    assert [(f.start, f.end) for f in found] == spans
    assert {f.kind for f in found} <= {kind}


def test_every_rule_has_cases_that_fire_it() -> None:
    fired = {f.why for name, _, t in ROWS for f in Patterns.open(name).find_in(unmarked(t)[0])}
    # A UPS number whose check digit is wrong has its own test below.
    assert {r.why for r in RULES} - fired == {"patterns: UPS tracking number, check digit wrong"}
    assert set(CASES) == set(NAMES)


def test_rules_are_sound() -> None:
    assert all(r.kind in known_kinds() and 0 < r.score <= 1 for r in RULES)
    assert len({r.why for r in RULES}) == len(RULES)
    assert all(n == n.lower() for r in RULES for n in r.needs)


@pytest.mark.parametrize(
    ("text", "without", "near"),
    [
        ("555-0199 ok", 0.4, "phone 555-0199 ok"),
        ("1Z999AA10123456785 ok", 0.5, "my parcel 1Z999AA10123456785 ok"),
        ("10.0.0.1 ok", 0.6, "10.0.0.1 ok, the server"),
    ],
)
def test_context_raises(text: str, without: float, near: str) -> None:
    assert [f.score for f in Patterns().find_in(text)] == [without]
    assert [f.score for f in Patterns().find_in(near)] == [pytest.approx(without + 0.35)]


def test_context_is_near_and_whole() -> None:
    far = "phone " + "x " * 40 + "5550109999"
    assert not Patterns.open("phone").find_in(far)
    assert not Patterns.open("phone").find_in("headphones 5550109999")
    # A word that the window cuts is not the word that is left of it.
    assert not Patterns.open("order").find_in("disorder " + "x" * 42 + " #4829")


def test_a_surer_match_explains_what_lies_inside() -> None:
    found = Patterns(NAMES).find_in("https://10.0.0.1/order/2024-01-01?m=ann@example.org")
    assert [f.why for f in found] == ["patterns: web address"]


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("call ٠١٢٣ ٤٥٦٧ ٨٩٠", (5, 18)),
        ("call ５５５－０１０－９９９９", (5, 17)),
        ("call 555‑010‑9999", (5, 17)),
        ("tel\u00a0+44\u202f20\u202f7946\u202f0958", (4, 20)),
        ("İİİ 555-010-9999", (4, 16)),
    ],
)
def test_digits_dashes_and_spaces_of_every_script(text: str, span: tuple[int, int]) -> None:
    assert [(f.start, f.end) for f in Patterns.open("phone").find_in(text)] == [span]


@pytest.mark.parametrize(
    ("fake", "kind", "around"),
    [
        ("email", "PII/EMAIL", "Write to {}, please."),
        ("phone_number", "PII/PHONE", "Call me at {}."),
        ("ssn", "PII/SSN", "My number is {}."),
        ("credit_card_number", "PII/CARD", "Use {} please."),
        ("iban", "PII/IBAN", "Send it to {}."),
        ("ipv4", "PII/IP", "From {} today"),
        ("ipv6", "PII/IP", "From {}."),
        ("uri", "PII/URL", "See ({})."),
        ("date", "DATE", "It came on {}."),
    ],
)
def test_made_up_ones_are_found_whole(fake: str, kind: str, around: str) -> None:
    faker = Faker("en_US")
    faker.seed_instance(11)
    start, patterns = around.index("{}"), Patterns()
    for _ in range(300):
        value = getattr(faker, fake)()
        spans = {(f.start, f.end, f.kind) for f in patterns.find_in(around.format(value))}
        assert (start, start + len(value), kind) in spans, value


def test_options() -> None:
    assert {r.name for r in Patterns.open(None).rules} == set(DEFAULT)
    assert {r.name for r in Patterns.open("all").rules} == set(NAMES)
    assert {r.name for r in Patterns.open("email + Phone").rules} == {"email", "phone"}
    assert set(NAMES) - set(DEFAULT) == {"day", "digits"}
    (detector,) = open_detectors("patterns=ssn")
    assert detector.name == "patterns"


@pytest.mark.parametrize("option", ["nope", "email+nope", "+"])
def test_bad_options(option: str) -> None:
    with pytest.raises(UsageError, match="accepted"):
        Patterns.open(option)


# Runs that a careless expression reads again from every character of.
ADVERSARIES = {
    "email": ["a", "a.", "a@", "a@a.", "'", "a'", "-.", "a@a"],
    "url": ["a.", "http://", "http://a)", "www.", "a-", "a./", "(", ")."],
    "phone": ["1", "1 ", "+1", "+44 ", "0 ", "00", "(555) ", "555-", "2x1"],
    "ssn": ["1", "123-45-", "123 45 "],
    "card": ["4", "4 ", "4111 ", "3782 "],
    "iban": ["DE89 ", "D", "DE89", "a1"],
    "ip": ["1.", "1", ":", "a:", "a", "::1 "],
    "date": ["1/", "2024-", "jan ", "1 jan ", "sat, ", "in 2", "1 may of "],
    "time": ["1:", "11:11:", "1 a.", "t10:"],
    "money": ["1,", "$1.", "1", "usd ", "1 us "],
    "percent": ["1,", "1 per ", "1-"],
    "order": ["order ", "order#", "#1-", "ord-a-", "#"],
    "tracking": ["1z", "9 ", "a1-", "track-", "tracking : ", "AA 111 ", "parcel A", "A", "A1"],
    "address": ["1 A ", "1 Aa Bb Cc ", "1 A St, A ", "box ", "1a-1 "],
    "id": ["case ", "case #a-", "mrn no. is "],
    "day": ["next ", "the day ", "mon"],
    "digits": ["1a", "1"],
}


@pytest.mark.parametrize("name", NAMES)
def test_long_trouble_takes_linear_time(name: str) -> None:
    """Not measured: an expression that went back and forth would take 10^10 steps for each."""
    patterns = Patterns.open(name)
    for piece in ADVERSARIES[name]:
        text = piece * (150_000 // len(piece))
        for f in patterns.find_in(text):
            assert 0 <= f.start < f.end <= len(text)


FRAGMENTS = st.sampled_from(
    [t for _, _, marked in ROWS for t in re.split("<<|>>", marked) if t]
) | st.text(max_size=6)


@settings(max_examples=400, deadline=None)
@given(st.lists(FRAGMENTS, max_size=6).map("".join))
def test_the_gate_never_hides_a_match(text: str) -> None:
    patterns = Patterns(NAMES)
    gated = patterns.find_in(text)
    patterns._gate = _Open(patterns.rules)  # type: ignore[assignment]
    assert patterns.find_in(text) == gated


class _Open:
    """A gate that lets every rule try."""

    def __init__(self, rules: object) -> None:
        self.rules = rules

    def worth_trying(self, lower: str) -> object:
        return self.rules


@settings(max_examples=200, deadline=None)
@given(st.lists(FRAGMENTS, max_size=6).map("".join))
def test_findings_are_in_order_and_above_the_floor(text: str) -> None:
    found = Patterns(NAMES).find_in(text)
    assert found == sorted(found, key=lambda f: f.start)
    assert all(FLOOR <= f.score <= 1 for f in found)
