"""Names that mail gives away by its form: headers, "X wrote:", greetings, signatures.

Every expression takes time linear in the text: what repeats is bounded.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tacit.detection.detector import Finding

Listed = Callable[[str], int]
"""What the lists of names say of a word: the bits of `FIRST` and the others, 0 where nothing."""

FIRST, LAST, RARE, TITLE, SMALL = 1 << 0, 1 << 1, 1 << 2, 1 << 8, 1 << 9

_PART = r"(?:van|von|de|der|den|la|le|di|da|bin|ibn|al|el|del|dos|du|ten|ter|zu)"
_WORD = r"(?:[^\W\d_a-z][\w'’]{0,24}(?:-[^\W\d_][\w'’]{0,24}){0,2}\.?)"
_NAME = rf"{_WORD}(?:[ \t]{{1,3}}(?:{_PART}|{_WORD})){{0,4}}"
_ADDRESS = r"[\w.+%!=-]{1,64}@[\w.-]{1,80}"
_QUOTE = r"[ \t]{0,8}(?:[>|:}\]#][ \t]{0,3}){0,6}"
_BRACKETS = r"[<(\[][^<>()\[\]\n]{1,80}[>)\]]"
_INSIDE = r"[^()\n@<>]{2,40}"

_ADDRESS_FIRST = re.compile(
    rf"{_ADDRESS}[>,]?\s{{0,3}}{_QUOTE}\(\s{{0,2}}({_INSIDE}(?:\n{_QUOTE}{_INSIDE})?)\)"
)
_NAME_FIRST = re.compile(
    rf"({_NAME})[\"'’]?,?[ \t]{{0,3}}(?:\n{_QUOTE})?[<(\[](?:mailto:)?{_ADDRESS}[>)\]]"
)
_LOTUS = re.compile(rf"({_NAME})/[A-Za-z]{{2,12}}(?:/[A-Za-z]{{2,12}}){{0,3}}\b")
_WROTE = re.compile(
    rf"(?<![\w.@!%/+-])({_NAME})[\"'’]?,?"
    rf"(?:[ \t]{{0,3}}{_BRACKETS}|,?[ \t]{{1,3}}{_ADDRESS})?[ \t]{{0,3}}(?:\n{_QUOTE})?"
    r"\s?(?:recently[ ])?(?:wrote|writes|asked|replied|said|says)[ \t]?:"
)
_NICKNAME_WROTE = re.compile(
    rf"^{_QUOTE}([a-z]{{2,16}})[ \t]{{1,3}}(?:wrote|writes)[ \t]?:", re.MULTILINE
)
_HEADER = re.compile(
    rf"^{_QUOTE}\*?(?:From|To|Cc|CC|Bcc|BCC|Sender|Reply-To|Sent by|Forwarded by|Author|Attn|"
    r"Contact|Name|Organizer|Attendees?)\*?[ \t]{0,2}:[ \t]{0,8}(\S[^\n]{0,1000})",
    re.MULTILINE,
)
_SURNAME_FIRST = re.compile(
    rf"[\"']?({_WORD}(?:[ ]{_WORD})?, ?{_WORD}(?:[ ]{_WORD}){{0,2}})[\"']?[ \t]*(?=$|[<\[(])"
)
_FORWARDED = re.compile(rf"(?:Forwarded|Sent|Posted|Written|Submitted) by:?[ \t]{{1,3}}({_NAME})")
_GREETING = re.compile(
    rf"^{_QUOTE}(?:Hi|Hello|Hey|Dear|Hallo|Greetings|Good (?:morning|afternoon|evening)),?"
    r"[ \t]{1,3}(?:Mr\.?|Mrs\.?|Ms\.?|Dr\.?|Prof\.?)?[ \t]?"
    rf"({_NAME}(?:[ \t]{{0,2}}(?:,|and|&)[ \t]{{1,2}}{_NAME}){{0,3}})",
    re.MULTILINE,
)
_CLOSING = re.compile(
    rf"^{_QUOTE}(?:(?:Best|Kind|Warm|With best|With kind)?[ ]?(?:Regards|regards|wishes)|Best|"
    r"Thanks|Thank you|Thx|Cheers|Sincerely|Yours|Love|Later|Respectfully|Ciao|Peace|Take care|"
    r"Many thanks)[^\n\w]{0,6}(?:[ ][\w ,!.]{0,30})?\n\s{0,80}"
    rf"{_QUOTE}[-–—~*]{{0,3}}[ ]?({_NAME}|[a-z]{{2,16}})[ \t.,!]{{0,6}}$",
    re.MULTILINE,
)
_RULE = re.compile(r"^[ \t]{0,8}(?:--[ \t]?|[-_=*~+#^|/\\<>.:]{5,200})[ \t]{0,8}$", re.MULTILINE)
_RUN = re.compile(_NAME)
_ALONE = re.compile(r"[^\w\n]{0,40}([^\W\d_]{2,20})[^\w\n]{0,8}")
_LEAD = re.compile(
    r"(?:(?:On|In|At|As|But|And|So|Then|When|Well|Yes|No|The|From|Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|"
    r"Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec|AM|PM|GMT|EST|PST|CST|EDT|PDT)\b\.?,?\s{0,3})+"
)

_PLACEHOLDERS = """he she i they who you we it someone somebody one everyone article this that which
post person people and author poster there what also then now so as hi hello dear all folks friend
friends sir madam team everybody anyone me him her them list group news home work internet email
mail phone fax tel voice office subject date organization"""
_NOBODY = frozenset(_PLACEHOLDERS.split())


@dataclass(frozen=True, slots=True)
class _Seen:
    start: int
    end: int
    score: float
    why: str


def find(text: str, listed: Listed) -> list[Finding]:
    """The people whom the form of a mail names."""
    if (
        "@" not in text
        and "\n" not in text
        and ":" not in text
        and not text.startswith(("Hi", "De", "He"))
    ):
        return []
    seen = [*_addressed(text), *_headers(text), *_letters(text, listed), *_signature(text, listed)]
    return [
        Finding(s.start, s.end, "PERSON", s.score, f"names: {s.why}")
        for s in seen
        if s.end > s.start
    ]


def _is_name(words: str) -> bool:
    """Whether what stands in brackets beside an address can be somebody's name."""
    parts = re.findall(r"[^\W\d_][\w'’.-]*", words)
    return (
        0 < len(parts) <= 6
        and not any(c.isdigit() for c in words)
        and not any(p.lower().strip(".") in _NOBODY for p in parts[:1])
        and sum(c.isalpha() or c in " .'-’\n>" for c in words) >= 0.85 * len(words)
    )


def _trimmed(text: str, start: int, end: int, score: float, why: str) -> _Seen:
    while start < end and not (text[start].isalnum()):
        start += 1
    while end > start and not (text[end - 1].isalnum() or text[end - 1] == "."):
        end -= 1
    # "Smith." ends a sentence, "Jr." and "J." do not.
    if end - start > 4 and text[end - 1] == "." and text[end - 3 : end - 1] not in ("Jr", "Sr"):
        end -= 1
    return _Seen(start, end, score, why)


def _addressed(text: str) -> Iterator[_Seen]:
    """Names beside an e-mail address, before "wrote:", and of Lotus Notes."""
    if "@" in text:
        for found in _ADDRESS_FIRST.finditer(text):
            if _is_name(found[1]):
                yield _trimmed(text, *found.span(1), 0.95, "beside an address")
        for found in _NAME_FIRST.finditer(text):
            yield _trimmed(text, *found.span(1), 0.95, "beside an address")
    if "/" in text:
        for found in _LOTUS.finditer(text):
            if " " in found[1]:
                yield _trimmed(text, *found.span(1), 0.9, "address of Notes")
    for rule, score in ((_WROTE, 0.95), (_NICKNAME_WROTE, 0.6)):
        for found in rule.finditer(text):
            if found[1].lower() not in _NOBODY:
                yield _trimmed(text, *_without_lead(text, *found.span(1)), score, "before wrote")
    for found in _FORWARDED.finditer(text):
        yield _trimmed(text, *found.span(1), 0.9, "header")


def _without_lead(text: str, start: int, end: int) -> tuple[int, int]:
    """A name without the words that open a sentence or end a date."""
    lead = _LEAD.match(text, start, end)
    return (lead.end(), end) if lead and lead.end() < end else (start, end)


def _headers(text: str) -> Iterator[_Seen]:
    """The names of "From:", "To:" and their like."""
    for header in _HEADER.finditer(text):
        start, end = header.span(1)
        line = text[start:end]
        if ";" not in line:
            # "Smith, Ann" is one name where it stands alone.
            one = _SURNAME_FIRST.match(line)
            if one:
                yield _trimmed(text, start + one.start(1), start + one.end(1), 0.95, "header")
                continue
        for piece in re.finditer(r"[^;]+" if ";" in line else r"[^,]+", line):
            name = re.match(r"[\s\"'*]{0,6}([^<(\[/@\"]{2,50})", piece[0])
            if name and _is_name(name[1]) and "@" not in piece[0][: name.end() + 1]:
                if name[1].islower() and len(line.split()) > 2:
                    continue  # a sentence that happens to open like a header
                at = start + piece.start()
                yield _trimmed(text, at + name.start(1), at + name.end(1), 0.9, "header")


def _letters(text: str, listed: Listed) -> Iterator[_Seen]:
    """Whom a letter greets and who closes it."""
    for found in _GREETING.finditer(text):
        for name in _RUN.finditer(text, *found.span(1)):
            if name[0].lower() not in _NOBODY:
                yield _trimmed(text, *name.span(), 0.9, "greeting")
    for found in _CLOSING.finditer(text):
        known = listed(found[1]) & (FIRST | LAST | RARE)
        if found[1].lower() not in _NOBODY and (found[1][0].isupper() or known):
            yield _trimmed(text, *found.span(1), 0.9, "closing")


def _signature(text: str, listed: Listed) -> Iterator[_Seen]:
    """Names in the last lines, and below the line that opens a signature."""
    body = text.rstrip()
    offset = max(len(body) - 1500, 0)
    lines = [m for m in re.finditer(r"[^\n]+", body[offset:]) if not m[0].isspace()][-12:]
    if len(lines) < 2:
        return
    opened = next((i for i, m in enumerate(lines) if _RULE.match(m[0])), len(lines))
    first = min(opened, max(len(lines) - 6, 0))
    local = {
        part
        for m in lines[min(first, max(len(lines) - 8, 0)) :]
        for address in re.findall(_ADDRESS, m[0])
        for part in re.findall(r"[a-z]{3,}", address.split("@")[0].lower())
    }
    for i, line in enumerate(lines[first:], first):
        at = offset + line.start()
        alone = _ALONE.fullmatch(line[0])
        if alone is None:
            for run in _RUN.finditer(line[0]):
                if _signs(run[0], listed, local):
                    yield _trimmed(text, at + run.start(), at + run.end(), 0.85, "signature")
        elif (i >= len(lines) - 4 or i > opened) and _is_called(alone[1], listed):
            yield _trimmed(text, at + alone.start(1), at + alone.end(1), 0.8, "signature")


def _is_called(word: str, listed: Listed) -> bool:
    """Whether a word that stands alone on a last line is somebody's name."""
    known = listed(word)
    common = known & SMALL and word.islower()
    return bool(known & (FIRST | LAST)) and not common and word.lower() not in _NOBODY


def _signs(run: str, listed: Listed, local: set[str]) -> bool:
    """Whether capitalised words in a signature are its writer: by first name, or by address."""
    words = run.replace(".", " ").split()
    full = [w.lower() for w in words if len(w) > 1]
    if not full or len(words) > 4 or "I" in words[1:]:
        return False
    if len(words) > 1 and (
        listed(words[0]) & FIRST or (len(words[0]) == 1 and listed(words[-1]) & (LAST | RARE))
    ):
        return True
    return len(full[-1]) > 2 and any(
        w in local or (len(w) > 3 and any(w in part for part in local)) for w in full
    )


_PLAIN_WORD = re.compile(r"[^\W\d_][\w'’-]*")


def repeated(text: str, people: list[Finding], listed: Listed) -> list[Finding]:
    """Further places of the names found, by their last word; first names before it join."""
    lasts: dict[str, float] = {}
    firsts: set[str] = set()
    taken = bytearray(len(text))
    for person in people:
        taken[person.start : person.end] = b"x" * (person.end - person.start)
        parts = text[person.start : person.end].split()
        last = parts[-1] if len(parts) > 1 and person.score >= 0.6 else ""
        if len(last) > 3 and last.isalpha() and last[0].isupper() and not listed(last) & SMALL:
            lasts[last] = min(person.score, 0.7)
            firsts.add(parts[0])
    if not lasts:
        return []
    found = []
    before: re.Match[str] | None = None
    for word in _PLAIN_WORD.finditer(text):
        if word[0] in lasts and not taken[word.start()]:
            joins = before and before[0] in firsts and text[before.end() : word.start()].isspace()
            start = before.start() if joins and before else word.start()
            found.append(Finding(start, word.end(), "PERSON", lasts[word[0]], "names: again"))
        before = word
    return found
