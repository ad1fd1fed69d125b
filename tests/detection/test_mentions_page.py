"""The browsable page: self-contained, safe whatever a record holds, and well chosen."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.corpus import Corpus, Record, Span
from tacit.detection.kinds import known_kinds
from tacit.detection.mentions import Mention
from tacit.detection.mentions_page import (
    LONGEST_SHOWN,
    as_script_json,
    choose,
    detectors_of,
    hue,
    parts,
    write_page,
)
from tacit.detection.scoring import score
from tacit.errors import UsageError

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \u2028 <!-- ]]> 'Ann' \""


def mention(
    record: str, start: int, end: int, kind: str = "PERSON", why: str = "tagger: crf"
) -> Mention:
    return Mention(record, start, end, kind, "e1", 0.9, why)


class Tags(HTMLParser):
    """Collects the tags of a page and the text of its data."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data: str | None = None
        self.words: list[str] = []
        self._in_data = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in_data = dict(attrs).get("id") == "data"

    def handle_endtag(self, tag: str) -> None:
        self._in_data = False

    def handle_data(self, data: str) -> None:
        if self._in_data:
            self.data = (self.data or "") + data
        else:
            self.words.append(data)


def parsed(path: Path) -> tuple[Tags, dict[str, Any]]:
    page = Tags()
    page.feed(path.read_text(encoding="utf-8"))
    assert page.data is not None
    return page, json.loads(page.data)


def shown_text(record: dict[str, Any]) -> str:
    return "".join(p if isinstance(p, str) else p[0] for p in record["parts"])


def test_nothing_in_a_record_becomes_html(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    at = NASTY.index("Ann")
    corpus = Corpus.from_records(
        [
            {"id": "<b>1", "user": "<i>u", "text": NASTY},
            {"id": "2", "text": "x", "user": "u"},
        ]
    )
    marks = [mention("<b>1", at, at + 3, why="lists: </script><u>; patterns: x")]
    write_page(path, corpus, marks, title="<title> & </title><script>")
    page, data = parsed(path)
    names = [tag for tag, _ in page.tags]
    assert names.count("script") == 2
    assert not {"img", "u", "b>1", "iframe", "link", "object"} & set(names)
    assert shown_text(data["records"][0]) == NASTY
    assert data["records"][0]["id"] == "<b>1"
    assert data["records"][0]["parts"][1][0] == "Ann"
    assert "<title> & </title><script>" in page.words


def test_no_other_host(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_page(path, Corpus.from_records([{"id": "1", "text": "hi"}]), [], title="t")
    html = path.read_text(encoding="utf-8")
    page, _ = parsed(path)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", re.sub(r"(?m)^\s*//.*$", "", html))
    assert not [a for _, a in page.tags if "src" in a or "href" in a]
    policy = next(a for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert (policy["content"] or "").startswith("default-src 'none'")
    # The page's own script never makes HTML of a string.
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", html)


def test_says_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    corpus = Corpus.from_records(
        Record(str(i), "Ann wrote ann@x.org", spans=(Span(0, 3, "PERSON"),)) for i in range(30)
    )
    marks = [mention(str(i), 0, 3) for i in range(30)]
    marks += [mention("7", 10, 19, "PII/EMAIL", "patterns: e-mail address; gold label")]
    write_page(path, corpus, marks, title="t", limit=10, scores=score(corpus, marks))
    page, data = parsed(path)
    words = " ".join(" ".join(page.words).split())
    assert "Contains the original text – keep inside." in words
    assert "31 mentions of 1 entities in 30 of 30 records" in words
    assert "shows 10 records" in words
    assert "100.0% have every mark covered" in words
    assert len(data["records"]) == 10
    # The one record of the rare kind is among them, and detectors can be picked.
    assert "7" in {r["id"] for r in data["records"]}
    assert {"gold", "patterns", "tagger"} <= set(words.split())
    assert [k["name"] for k in data["kinds"]] == ["PERSON", "PII/EMAIL"]


def test_same_input_same_page(tmp_path: Path) -> None:
    corpus = Corpus.from_records({"id": str(i), "text": "Ann and Bob"} for i in range(50))
    kinds = ["PERSON", "ORG", "GPE", "DATE"]
    marks = [mention(str(i), 0, 3, kinds[i % 4]) for i in range(0, 50, 2)]
    for name in "ab":
        write_page(tmp_path / name, corpus, marks, title="t", limit=9)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with pytest.raises(UsageError, match="limit=0"):
        write_page(tmp_path / "c", corpus, marks, title="t", limit=0)
    assert not (tmp_path / "c").exists()


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sets(st.sampled_from(["PERSON", "ORG", "DATE"])), min_size=1, max_size=40),
    st.integers(1, 12),
)
def test_choice(kinds_of: list[set[str]], limit: int) -> None:
    ids = [str(i) for i in range(len(kinds_of))]
    by_record = {
        i: [mention(i, 0, 1, kind) for kind in sorted(kinds)]
        for i, kinds in zip(ids, kinds_of, strict=True)
        if kinds
    }
    rows = choose(ids, by_record, limit)
    assert len(rows) == len(set(rows)) == min(limit, len(ids))
    having = [r for r in rows if ids[r] in by_record]
    assert len(having) == min(limit, len(by_record))
    assert rows[: len(having)] == sorted(having)
    if limit >= 3:
        shown = set().union(*(kinds_of[r] for r in rows))
        assert shown == set().union(*kinds_of)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_parts_put_together_are_the_text(data: st.DataObject) -> None:
    text = data.draw(st.text(max_size=60)) * data.draw(st.sampled_from([1, 200]))
    places = st.tuples(st.integers(0, max(0, len(text) - 1)), st.integers(1, 300))
    marks = [
        mention("1", s, min(len(text), s + n))
        for s, n in data.draw(st.lists(places, max_size=8) if text else st.just([]))
    ]
    at, seen = 0, 0
    for part in parts(text, marks, {"PERSON": 0}, {}):
        if isinstance(part, int):
            assert part > 0
            at += part
            continue
        piece = part if isinstance(part, str) else part[0]
        assert piece == text[at : at + len(piece)]
        assert piece
        at += len(piece)
        seen += len(piece)
    assert at == len(text)
    assert seen == len(text) or len(text) > LONGEST_SHOWN


def test_a_long_text_shows_the_surroundings_of_its_mentions() -> None:
    text = "x" * 50_000
    pieces = parts(text, [mention("1", 20_000, 20_005)], {"PERSON": 0}, {})
    assert [p for p in pieces if isinstance(p, list)] == [["xxxxx", 0, "e1", 0.9, 0]]
    assert sum(len(p) for p in pieces if isinstance(p, str)) < 1000
    assert [type(p) for p in pieces] == [str, int, str, list, str, int]


def test_colours_differ() -> None:
    assert len({hue(k) for k in known_kinds()}) == len(known_kinds())


@pytest.mark.parametrize(
    ("why", "expected"),
    [
        ("patterns: e-mail address", ["patterns"]),
        ("lists: countries; tagger; lists: cities", ["lists", "tagger"]),
        ("gold label", ["gold"]),
        ("", []),
    ],
)
def test_detectors_of(why: str, expected: list[str]) -> None:
    assert detectors_of(why) == expected


@given(st.text())
def test_script_json_reads_back(text: str) -> None:
    dense = as_script_json([text])
    assert not set("<>&\u2028\u2029") & set(dense)
    assert json.loads(dense) == [text]


def test_a_text_is_shown_as_written_and_as_it_is_learnt_from(tmp_path: Path) -> None:
    """Where somebody says what is learnt, the page has it beside every mention, and a switch."""
    corpus = Corpus.from_records([{"id": "r", "text": "Bo met Al", "user": "u"}])
    marks = [mention("r", 0, 2), mention("r", 7, 9)]
    learnt = {("r", 0): ("Adam Abbott", True), ("r", 7): ("Eve Ellis", False)}
    for known, switch in ((learnt, True), (None, False)):
        write_page(tmp_path / "page.html", corpus, marks, title="t", learnt=known)
        page = Tags()
        page.feed((tmp_path / "page.html").read_text(encoding="utf-8"))
        assert any(attrs.get("id") == "way" for _, attrs in page.tags) == switch
        pieces = json.loads(page.data or "")["records"][0]["parts"]
        made = [piece[5:] for piece in pieces if isinstance(piece, list)]
        assert made == ([["Adam Abbott", 1], ["Eve Ellis", 0]] if switch else [[], []])
