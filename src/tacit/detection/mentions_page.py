"""A browsable page of what was found: one HTML file that asks nothing of any other host.

The page holds the original text, and says so. Nothing of a record is ever written as HTML:
the records travel as JSON in which `<`, `>` and `&` are escaped, and the page's own script
puts them into text nodes.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from tacit.corpus import Corpus, Record
from tacit.detection.kinds import KINDS, PII_KINDS, known_kinds
from tacit.detection.mentions import Mention
from tacit.detection.scoring import HEADINGS, Scores, coverage, rows
from tacit.errors import UsageError
from tacit.files import whole_file
from tacit.saved_json import spelled

LONGEST_SHOWN = 4000
"""Of a longer text only its beginning and the surroundings of its mentions are shown."""

Learnt = Mapping[tuple[str, int], tuple[str, bool]]
"""By record and place of a mention: the invented name there, and whether the own one is shown."""

_AROUND = 160


def write_page(
    path: Path,
    corpus: Corpus,
    mentions: Iterable[Mention],
    *,
    title: str,
    limit: int = 500,
    scores: Scores | None = None,
    facts: str = "",
    learnt: Learnt | None = None,
) -> None:
    """Write the page, with at most `limit` records, chosen so that every kind is seen.

    `facts` stand in place of the counts of mentions and entities. With `learnt` the page can show
    texts as a run learns from them that protects names.
    """
    if limit < 1:
        raise UsageError(f"limit={limit} shows nothing; give 1 or more.")
    by_record = _by_record(mentions)
    chosen = choose(corpus.column("id").to_pylist(), by_record, limit)
    everywhere = [m for marks in by_record.values() for m in marks]
    counts = Counter(m.kind for m in everywhere)
    data = _data(corpus.take(chosen).records(), by_record, list(counts), learnt or {})
    source = (files("tacit.detection") / "page.html.jinja").read_text(encoding="utf-8")
    page = Environment(autoescape=True, undefined=StrictUndefined).from_string(source)
    html = page.render(
        title=title,
        facts=facts,
        three_ways=bool(learnt),
        data=as_script_json(data),
        kinds=_legend(counts),
        detectors=sorted({d for m in everywhere for d in detectors_of(m.why)}),
        shown=len(chosen),
        records=len(corpus),
        sensitive=len(by_record),
        mentions=len(everywhere),
        entities=len({m.entity for m in everywhere}),
        headings=HEADINGS,
        rows=rows(scores) if scores else [],
        coverage=coverage(scores) if scores else "",
    )
    with whole_file(Path(path)) as draft:
        draft.write_text(html, encoding="utf-8")


def _by_record(mentions: Iterable[Mention]) -> dict[str, list[Mention]]:
    found: dict[str, list[Mention]] = defaultdict(list)
    for mention in mentions:
        found[mention.record].append(mention)
    return found


def _legend(counts: Counter[str]) -> list[dict[str, Any]]:
    """What the page says of each kind, the most frequent first."""
    says, numbered = {**KINDS, **PII_KINDS}, list(enumerate(counts.items()))
    return [
        {"name": kind, "says": says.get(kind, ""), "count": count, "hue": hue(kind), "place": place}
        for place, (kind, count) in sorted(numbered, key=lambda p: -p[1][1])
    ]


def choose(ids: Sequence[str], by_record: dict[str, list[Mention]], limit: int) -> list[int]:
    """Which rows to show: those with mentions first, kinds in turn, spread over the corpus.

    The same corpus and mentions give the same rows.
    """
    having: dict[str, list[int]] = defaultdict(list)
    for row, id_ in enumerate(ids):
        for kind in {m.kind for m in by_record.get(id_, ())}:
            having[kind].append(row)
    # The rarest kind picks first: its few records would otherwise be crowded out.
    queues = [_spread(r, limit) for _, r in sorted(having.items(), key=lambda p: (len(p[1]), p[0]))]
    chosen: dict[int, None] = {}
    for turn in range(limit):
        for queue in queues:
            if turn < len(queue) and len(chosen) < limit:
                chosen[queue[turn]] = None
    plain = [row for row, id_ in enumerate(ids) if id_ not in by_record]
    return sorted(chosen) + sorted(_spread(plain, limit - len(chosen)))


def _spread(rows: Sequence[int], most: int) -> list[int]:
    """At most so many of the rows, evenly spaced."""
    count = min(len(rows), most)
    return [rows[i * len(rows) // count] for i in range(count)]


def hue(kind: str) -> int:
    """A colour for a kind, the same on every page."""
    # The golden angle keeps neighbours in the list apart on the wheel.
    names = known_kinds()
    return round((names.index(kind) if kind in names else len(names)) * 137.508) % 360


def detectors_of(why: str) -> list[str]:
    """The detectors that a reason names: the first word of each of its parts.

    >>> detectors_of("patterns: e-mail address; gold label")
    ['patterns', 'gold']
    """
    parts = (part.split(":")[0].split() for part in why.split(";"))
    return list(dict.fromkeys(words[0] for words in parts if words))


def as_script_json(data: Any) -> str:
    """JSON that may stand inside a script element whatever the strings in it hold."""
    dense = json.dumps(spelled(data), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for char in "<>&\u2028\u2029":
        dense = dense.replace(char, f"\\u{ord(char):04x}")
    # A lone surrogate cannot be written as UTF-8.
    return dense.encode("utf-8", "replace").decode("utf-8")


def _data(
    records: Iterable[Record],
    by_record: dict[str, list[Mention]],
    kinds: list[str],
    learnt: Learnt,
) -> dict[str, Any]:
    places = {kind: place for place, kind in enumerate(kinds)}
    whys: dict[str, int] = {}
    shown = [
        {
            "id": record.id,
            "user": record.user or "",
            "parts": parts(record.text, by_record.get(record.id, ()), places, whys, learnt),
        }
        for record in records
    ]
    return {
        "kinds": [{"name": kind, "hue": hue(kind)} for kind in kinds],
        "whys": [{"text": why, "detectors": detectors_of(why)} for why in whys],
        "records": shown,
    }


def parts(
    text: str,
    mentions: Sequence[Mention],
    kinds: dict[str, int],
    whys: dict[str, int],
    learnt: Learnt | None = None,
) -> list[Any]:
    """A text in pieces: a string is plain, a number is so many characters not shown, and a
    list is a mention (its text, place of kind, entity, score, place of reason, and where it is
    known the invented name and 1 if the name is shown, else 0)."""
    pieces: list[Any] = []
    marks = sorted(mentions, key=lambda m: (m.start, -m.end))
    end_shown = 0
    for start, end in _windows(len(text), marks):
        if start > end_shown:
            pieces.append(start - end_shown)
        at = start
        for m in marks:
            if m.start < at or m.end > end:
                continue
            if m.start > at:
                pieces.append(text[at : m.start])
            why = whys.setdefault(m.why, len(whys))
            piece = [text[m.start : m.end], kinds[m.kind], m.entity, round(m.score, 3), why]
            instead = (learnt or {}).get((m.record, m.start))
            pieces.append(piece if instead is None else [*piece, instead[0], int(instead[1])])
            at = m.end
        if at < end:
            pieces.append(text[at:end])
        end_shown = end
    if end_shown < len(text):
        pieces.append(len(text) - end_shown)
    return pieces


def _windows(length: int, marks: Sequence[Mention]) -> list[tuple[int, int]]:
    """The stretches of a text to show: all of a short one, else around its mentions."""
    if length <= LONGEST_SHOWN:
        return [(0, length)]
    windows = [(0, 2 * _AROUND)]
    shown = 2 * _AROUND
    for m in marks:
        start, end = max(0, m.start - _AROUND), min(length, m.end + _AROUND)
        last_start, last_end = windows[-1]
        if shown + end - max(start, last_end) > LONGEST_SHOWN and len(windows) > 1:
            break
        shown += max(0, end - max(start, last_end))
        if start <= last_end:
            windows[-1] = last_start, max(last_end, end)
        else:
            windows.append((start, end))
    # A window must not cut a mention that reaches over its edge.
    for m in marks:
        if m.start < windows[-1][1] < m.end:
            windows[-1] = windows[-1][0], m.end
    return windows
