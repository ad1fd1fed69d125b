"""Made-up lines with marked names for the detector `names`: mail, results of games, notices.

People are drawn from the lists of the US census and of Faker's locales, places from GeoNames,
so no line tells of anybody. What is in curly brackets is filled in; the rest is as written.
"""

import random
import re
from dataclasses import dataclass

from names_corpora import Sentence

from tacit.detection.names.tokens import TOKEN

_MAIL = """
From: {P}
From: {P} < {mail} >
From: {L} , {F}
From: {mail} ( {P} )
To: {P} , {P} ; {P}
To: {P} < {mail} > , {L} , {F}
Cc: {P} ; {L} , {F} ; {P}
Sent by: {P}
Forwarded by {P} on {d} {t}
{P} / {code} / {code} @ {code}
To: {P} / {code} @ {code} , {P} / {code} @ {code}
On {day} , {P} wrote:
On {d} , {P} < {mail} > wrote:
{P} wrote:
{P} writes:
{F} wrote:
> {P} wrote:
In article < {mail} > {mail} ( {P} ) writes:
In article < {mail} > , {mail} ( {P} ) wrote:
{mail} ( {P} ) writes:
|> {P} says:
{P} < {mail} > writes:
Hi {F} ,
Hello {F} ,
Dear {F} ,
Dear Mr. {L} ,
Dear Ms. {P} :
{F} ,
{F} -
Thanks , {F}
Thanks ,\n{F}
Regards ,\n{P}
Best regards ,\n\n{P}\n{job}\n{O}
Sincerely ,\n\n{P}\n{O}
Cheers ,\n{F}
-- \n{P}\n{mail}
-- \n{P} {mail}\n{O}
- -\n{P} | {mail} | {O}\n{G} , {G}
{P}\n{job} , {O}\n{n} Main Street\n{G} , {G} {n}\nPhone: {n}
{P} ( {mail} )\n{O} , {G}
* {P} * {mail} *
{F}\n\n-- \n{P} - {O} - {mail}
I talked to {F} and {F} about it .
Please call {P} at {n} if you have questions .
{F} , can you send this to {P} ?
Attached is the draft that {F} sent me .
{P} from {O} will join us in {G} .
Per {P} , we should wait .
cc: {P}\n{P}\n{P}
Did {F} tell you that {P} left {O} ?
As {L} said , that is not the point .
I agree with {P} here .
See you in {G} , {F}
Bill to: {P} , {G}
{P} ( {O} )
{code} {P} {n}
> {F} , you said that before .
"""

_NEWS = """
{G2} {n} {G2} {n}
{G2} {n} {G2} {n}
{T} {n} {T} {n}
{G2} AT {G2}
{G2} {n} {n} .{n} {n}
{G2} {n} {n} .{n} -
{G2} {n} {n} {n} {n} {n} {n} {n}
{G2} v {G2}
{G2} beat {G2} by {n} runs .
{G2} lost to {G2} for the third time .
{G2} 's {P} hit a three-run homer .
{G2} need {n} more with five wickets left .
{L} led {G2} with {n} points .
{G} {iso}
{G} {iso}
{G} {iso} {t}
{O} said it expects to post a loss .
{O} , {O} and {O} fell .
{P} ( {O} ) {n}
{n} . {P} ( {C} ) {O} same time
Underwriters : {O} , {G}
{T} beat {T} {n} - {n} on {day} .
{P} ( {C} ) beat {P} ( {C} ) 6-3 6-4
{n} . {P} ( {C} ) {n}
{n} - {P} ( {C} ) , {P} ( {C} )
{P} , {C} , {n}
{T} {n} {n} {n} {n} {n}
Scorers : {L} ( {n} ) , {L} ( {n} )
{T} : {P} ( {n} )
At {G} : {T} {n} , {T} {n}
{G2} at {G2}
{G} , {day} ( {A} ) - {P} , a spokesman for {O} , said .
{G} {d}
{P} , {G}
{L} b {L} {n}
{P} c {L} b {L} {n}
{O} said on {day} that it would buy {O} .
Shares of {O} rose {n} percent .
{O} {n} {n} {n}
{A} , {G}
{O} , based in {G} , named {P} its chief executive .
{P} , who plays for {T} , scored twice against {T} .
Coach {P} said {T} would be ready for {C} .
{C} 's {P} won in {G} .
President {P} met Foreign Minister {P} in {G} , {C} .
The {A} agency quoted {L} as saying so .
{G} newsroom {n}
{J} - {C} BEAT {C} IN {G} .
{J} - {L} WINS {G} OPEN .
{J} - {T} SIGN {L} .
{C} - {C} {n} - {n}
{L} hit a home run as the {T} beat the {T} {n} - {n} .
{P} of {C} finished ahead of {P} of {C} .
{n} {P} , {C} , {O} , {t}
Analyst {P} at {O} in {G} said profits at {O} would fall .
The {O} and the {O} signed an accord in {G} .
Police in {G} arrested {P} , {n} , of {G} .
"""

_CLUB_WORDS = """United City Rovers FC Athletic Wanderers Town Rangers Dynamo Sporting Real Spartak
Lokomotiv Tigers Lions Bears Giants Eagles Hawks Kings Reds Blues Sharks Jets Bulls Stars Wings
Devils Warriors Pirates Braves Cardinals Orioles Dodgers Indians Royals Mariners"""
_CLUBS = _CLUB_WORDS.split()
_ENDS = """Inc Inc. Corp Corp. Corporation Ltd Ltd. Limited plc AG GmbH SA Group Holdings Bank
Partners LLC & Co Systems Technologies Airlines Energy Motors Industries International Insurance
Press News Software Laboratories Pharmaceuticals Telecom Research Consulting"""
_ORG_ENDS = _ENDS.split()
_FRONTS = """University of|Bank of|Ministry of|Government of|Federal Court of|Institute of|
Museum of|City of|Port of|Association of|Department of|College of"""
_ORG_FRONTS = _FRONTS.replace("\n", "").split("|")
_JOBS = ["Director", "Vice President", "Manager", "Professor of Physics", "Software Engineer",
         "Senior Counsel", "Sales", "Department of Computer Science"]  # fmt: skip
_WEEK = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
_DAYS = _WEEK.split()
_YEAR = "January February March April May June July August September October November December"
_MONTHS = _YEAR.split()
_AGENCIES = ["AP", "AFP", "UPI", "Xinhua", "Interfax", "Tass", "Kyodo", "Anadolu"]
_SPORTS = ["SOCCER", "TENNIS", "CRICKET", "BASKETBALL", "GOLF", "CYCLING", "BASEBALL", "HOCKEY",
           "ATHLETICS", "BOXING", "RUGBY", "SKIING"]  # fmt: skip

_HOLE = re.compile(r"\{(\w+)\}")


@dataclass
class Names:
    """What lines are filled with."""

    first: list[str]
    last: list[str]
    cities: list[str]
    countries: list[str]
    states: list[str]
    organisations: list[str]


def person(names: Names, rng: random.Random, full: float = 1.0) -> str:
    """A person's name as people write it: whole, or with initials, or one part."""
    first, last = rng.choice(names.first), rng.choice(names.last)
    kind = rng.random()
    if rng.random() > full:
        return last if kind < 0.6 else first
    if kind < 0.72:
        return f"{first} {last}"
    if kind < 0.84:
        return f"{first} {rng.choice('ABCDEFGHIJKLMPRSTW')}. {last}"
    if kind < 0.9:
        return f"{first[0]}. {last}"
    if kind < 0.94:
        return f"{first} {rng.choice(names.last)} {last}"
    if kind < 0.97:
        particle = rng.choice(["van", "de", "von", "van der", "di", "al-", "bin", "Mc"])
        return f"{first} {particle} {last}"
    return f"{first} {last}-{rng.choice(names.last)}"


def organisation(names: Names, rng: random.Random) -> str:
    """A company, a club, an authority."""
    kind = rng.random()
    if kind < 0.45:
        return rng.choice(names.organisations)
    if kind < 0.65:
        return f"{rng.choice(names.last)} {rng.choice(_ORG_ENDS)}"
    if kind < 0.75:
        return f"{rng.choice(_ORG_FRONTS)} {rng.choice(names.cities)}"
    if kind < 0.85:
        return f"{rng.choice(names.cities)} {rng.choice(_ORG_ENDS)}"
    if kind < 0.93:
        return f"{rng.choice(names.last)} {rng.choice(names.last)} & {rng.choice(names.last)}"
    return "".join(rng.choice("ABCDEFGHIKLMNOPRSTU") for _ in range(rng.choice((3, 3, 4, 4, 5))))


def lines(names: Names, count: int, rng: random.Random) -> list[Sentence]:
    """So many made-up lines, mail and news in turn."""
    mail = [line.replace("\\n", "\n") for line in _MAIL.strip().split("\n")]
    news = _NEWS.strip().split("\n")
    made = []
    for i in range(count):
        some = mail if i % 2 else news
        text = "\n".join(rng.choice(some) for _ in range(rng.choice((1, 1, 1, 2, 3))))
        made.append(_filled(text, names, rng))
    return made


def _filled(template: str, names: Names, rng: random.Random) -> Sentence:
    tokens: list[str] = []
    tags: list[str] = []
    for i, part in enumerate(_HOLE.split(template)):
        text, kind = (part, None) if i % 2 == 0 else _value(part, names, rng)
        pieces = TOKEN.findall(text)
        tokens += pieces
        if kind is None:
            tags += ["O"] * len(pieces)
        else:
            tags += [f"{'B' if j == 0 else 'I'}-{kind}" for j in range(len(pieces))]
    return Sentence(tokens, tags, True, "made")


def _value(hole: str, names: Names, rng: random.Random) -> tuple[str, str | None]:
    match hole:
        case "P":
            return person(names, rng, 0.9), "PERSON"
        case "F":
            return rng.choice(names.first), "PERSON"
        case "L":
            return rng.choice(names.last), "PERSON"
        case "G":
            place = rng.choice(names.cities)
            return place.upper() if rng.random() < 0.2 else place, "LOC"
        case "C":
            return rng.choice(names.countries), "LOC"
        case "O":
            return organisation(names, rng), "ORG"
        case "T":
            club = rng.choice(_CLUBS)
            city = rng.choice(names.cities)
            forms = (f"{city} {club}", city, club, f"{rng.choice(_CLUBS)} {city}")
            return forms[min(int(rng.random() * 5), 3)] if rng.random() < 0.8 else city, "ORG"
        case "G2":
            place = rng.choice(names.cities if rng.random() < 0.8 else names.states)
            return place.upper() if rng.random() < 0.3 else place, "ORG"
        case "A":
            return rng.choice(_AGENCIES), "ORG"
    return _plain(hole, rng), None


def _plain(hole: str, rng: random.Random) -> str:
    match hole:
        case "mail":
            letters = "".join(rng.choice("abcdefghijklmnoprstuvw") for _ in range(6))
            return (
                f"{letters}{rng.randrange(100)}@{letters[:3]}.{rng.choice(('edu', 'com', 'org'))}"
            )
        case "n":
            return str(rng.choice((rng.randrange(10), rng.randrange(200), rng.randrange(90000))))
        case "day":
            return rng.choice(_DAYS)
        case "d":
            return f"{rng.choice(_MONTHS)} {rng.randrange(1, 29)} , {rng.randrange(1990, 2026)}"
        case "iso":
            return f"{rng.randrange(1990, 2026)}-{rng.randrange(10, 13)}-{rng.randrange(10, 29)}"
        case "t":
            return f"{rng.randrange(24)}:{rng.randrange(10, 60)}"
        case "job":
            return rng.choice(_JOBS)
        case "J":
            return rng.choice(_SPORTS)
    return "".join(rng.choice("ABCEHNOT") for _ in range(3))  # a code
