"""Detector `patterns`: regular expressions with checks, for what has a form of its own.

A rule is a regular expression with a kind and a score; many have a check besides, and some are
raised by words that stand near. The rules are in `patterns.toml`, which says how to write one; the
checks are in `pattern_checks`.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import ahocorasick

from tacit.corpus import Record
from tacit.detection import pattern_checks
from tacit.detection.detector import Finding
from tacit.detection.pattern_checks import IBAN_LENGTHS, LISTS, TABLES
from tacit.errors import UsageError

FLOOR = 0.3
"""A match scored below this is not reported: it needed a word nearby and had none."""

RAISE = 0.35
"""What a context word near a match adds to its score."""

MOST_DIGITS = 40
"""Longer runs of digits count as this long."""

_BEFORE, _AFTER = 48, 24  # characters searched for context words on each side


@dataclass(frozen=True)
class Rule:
    """One form, compiled; `patterns.toml` says what each field means.

    `group` is the group that is the span; `run_masks` has, for each wanted run of digits, the bits
    of the lengths that it may have.
    """

    name: str
    kind: str
    score: float
    why: str
    regex: re.Pattern[str]
    group: int
    check: Callable[[str], int] | None
    context: re.Pattern[str] | None
    digits: int
    run_masks: tuple[int, ...]
    needs: tuple[str, ...]
    cased: bool


_LISTS = {**LISTS, "iban_countries": tuple(IBAN_LENGTHS)}
_MARK = re.compile(r"<<([^>]+)>>")


def _filled(template: str) -> str:
    """An expression with its parts and lists in place."""

    def part(mark: re.Match[str]) -> str:
        name, _, not_after = mark[1].partition(" ")
        if name == "digit":
            return rf"[0-9](?<![\w{not_after}][0-9])"
        if name in _LISTS:
            return "|".join(_LISTS[name]).replace(" ", "[ ]")
        return _filled(TABLES["parts"][name])

    return _MARK.sub(part, template)


def _needs(template: str) -> Iterator[str]:
    """Every string that a template stands for: each word of the lists that it names, in turn."""
    pieces = [_LISTS[p] if i % 2 else (p,) for i, p in enumerate(_MARK.split(template))]
    return ("".join(parts).lower() for parts in product(*pieces))


def _compiled(row: dict[str, Any]) -> Rule:
    regex = re.compile(_filled(row["regex"]), re.VERBOSE)
    check, context = row.get("check"), row.get("context")
    return Rule(
        name=row["name"],
        kind=row["kind"],
        score=row["score"],
        why=f"patterns: {row['label']}",
        regex=regex,
        # Named groups are the expression's own business.
        group=int(regex.groups > len(regex.groupindex)),
        check=pattern_checks.check_named(check) if check else None,
        context=re.compile(rf"\b(?:{'|'.join(_LISTS[context])})\b") if context else None,
        digits=row.get("digits", 0),
        run_masks=tuple((1 << (high + 1)) - (1 << low) for low, high in row.get("runs", ())),
        needs=tuple(need for template in row.get("needs", ()) for need in _needs(template)),
        cased=row.get("cased", False),
    )


RULES = tuple(_compiled(row) for row in TABLES["rule"])
NAMES = tuple(dict.fromkeys(rule.name for rule in RULES))
DEFAULT = tuple(name for name in NAMES if name not in TABLES["optional"])

_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe63\uff0d"
_SPACES = "\u00a0\u1680\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))

# Characters that mean an ASCII one, one for one so that offsets stay true: digits of every
# script, full-width forms, the dashes, spaces and quotes of typesetters, and the four letters
# that "ignore case" takes for i, k and s.
_PLAIN: dict[int, str] = {
    **{c: chr(c - 0xFEE0) for c in range(0xFF01, 0xFF5F)},
    **{c: str(int(chr(c))) for c in range(128, 0x1FC00) if chr(c).isdecimal()},
    **dict.fromkeys(map(ord, _DASHES), "-"),
    **dict.fromkeys(map(ord, _SPACES), " "),
    **dict.fromkeys(map(ord, "\u2018\u2019"), "'"),
    **{0x130: "I", 0x131: "i", 0x17F: "s", 0x212A: "K"},
}
_UNUSUAL = re.compile("[" + "".join(re.escape(chr(c)) for c in _PLAIN) + "]")
_RUN = re.compile("[0-9]+")


def _plainly(text: str) -> str:
    if text.isascii() or not _UNUSUAL.search(text):
        return text
    return text.translate(_PLAIN)


class Patterns:
    """Finds what has a form: addresses of the net, numbers, dates, amounts."""

    name = "patterns"
    summary = "regular expressions with checks: addresses, numbers with checksums, dates, amounts"
    option = f"rules joined by +: all, or some of {', '.join(NAMES)}"

    def __init__(self, wanted: Sequence[str] = DEFAULT) -> None:
        """Take the rules of the wanted names."""
        unknown = [name for name in wanted if name not in NAMES]
        if unknown or not wanted:
            raise UsageError(
                f"patterns={'+'.join(wanted)} names an unknown rule; accepted: all, or some of "
                f"{'+'.join(NAMES)}."
            )
        self.rules = tuple(rule for rule in RULES if rule.name in wanted)
        self.kinds = tuple(sorted({rule.kind for rule in self.rules}))
        self._gate = _Gate(self.rules)

    @classmethod
    def open(cls, option: str | None) -> "Patterns":
        """The detector that `patterns`, `patterns=all` or `patterns=email+phone` names."""
        if option is None:
            return cls()
        wanted = [name.strip().lower() for name in option.split("+") if name.strip()]
        return cls(NAMES if wanted == ["all"] else wanted)

    def find(self, records: Sequence[Record]) -> Iterator[list[Finding]]:
        """The matches in each record's text."""
        for record in records:
            yield self.find_in(record.text)

    def find_in(self, text: str) -> list[Finding]:
        """The matches in one text, in order, none inside a surer one.

        >>> [(f.start, f.end, f.kind) for f in Patterns().find_in("Write to ann@example.org.")]
        [(9, 24, 'PII/EMAIL')]
        """
        plain = _plainly(text)
        lower = plain.lower()  # as long as `plain`: the one letter that grows is not in it
        found: list[Finding] = []
        for rule in self._gate.worth_trying(lower):
            for match in rule.regex.finditer(plain if rule.cased else lower):
                finding = _judge(rule, match, plain, lower)
                if finding is not None:
                    found.append(finding)
        return _without_nested(found) if len(found) > 1 else found


class _Gate:
    """Tells which rules can match a text at all: one pass for the digits, one for all `needs`.

    Sets of rules are bits of an integer. The gate is what makes short records quick: most of
    them need no rule, or two.
    """

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self._rules = rules
        self._undemanding = sum(1 << i for i, rule in enumerate(rules) if not rule.needs)
        self._by_numbers: dict[tuple[int, int], int] = {}
        wanted: dict[str, int] = {}
        for i, rule in enumerate(rules):
            for need in rule.needs:
                wanted[need] = wanted.get(need, 0) | 1 << i
        self._needs = ahocorasick.Automaton()
        for need, bits in wanted.items():
            self._needs.add_word(need, bits)
        if wanted:
            self._needs.make_automaton()

    def worth_trying(self, lower: str) -> Iterator[Rule]:
        """The rules that may match; one left out cannot."""
        digits = run_lengths = 0
        for run in _RUN.findall(lower):
            digits += len(run)
            run_lengths |= 1 << min(len(run), MOST_DIGITS)
        left = self._undemanding
        if len(self._needs):
            for _, bits in self._needs.iter(lower):
                left |= bits
        left &= self._numbers_allow(min(digits, MOST_DIGITS), run_lengths)
        while left:
            last = left & -left
            yield self._rules[last.bit_length() - 1]
            left ^= last

    def _numbers_allow(self, digits: int, run_lengths: int) -> int:
        key = digits, run_lengths
        if key not in self._by_numbers:
            if len(self._by_numbers) > 100_000:
                self._by_numbers.clear()
            self._by_numbers[key] = sum(
                1 << i
                for i, rule in enumerate(self._rules)
                if rule.digits <= digits and all(m & run_lengths for m in rule.run_masks)
            )
        return self._by_numbers[key]


def _judge(rule: Rule, match: re.Match[str], plain: str, lower: str) -> Finding | None:
    """The finding that a match stands for, if its check and its score allow one."""
    start, end = match.span(rule.group)
    if rule.check is not None:
        length = rule.check(plain[start:end])
        if not length:
            return None
        end = start + length
    score = rule.score
    if rule.context is not None and (
        rule.context.search(lower, max(0, start - _BEFORE), start)
        or rule.context.search(lower, end, end + _AFTER)
    ):
        score = min(1.0, round(score + RAISE, 2))
    return Finding(start, end, rule.kind, score, rule.why) if score >= FLOOR else None


def _without_nested(found: list[Finding]) -> list[Finding]:
    """Drop a match that lies inside one at least as sure: the surer one explains it."""
    kept: list[Finding] = []
    open_: list[Finding] = []
    # In this order whatever can hold a match comes before it.
    for f in sorted(found, key=lambda f: (f.start, -f.end, -f.score)):
        open_ = [k for k in open_ if k.end > f.start]
        if not any(k.end >= f.end and k.score >= f.score for k in open_):
            open_.append(f)
            kept.append(f)
    return kept
