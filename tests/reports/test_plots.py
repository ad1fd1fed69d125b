"""Figures: every graph gives one, saved whole in the formats that are offered."""

import sys
import warnings
from html.parser import HTMLParser
from pathlib import Path
from subprocess import run
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import UsageError
from tacit.owners import Owners
from tacit.owners.bounding import Kept, preview
from tacit.reports.plots import degree_figure, format_of, save


def town() -> Owners:
    """Forty users; the first entity is everybody's, the next half as many people's, and so on."""
    return Owners.from_rows(
        (f"r{i}-{j}", f"u{i}", [f"e{e}" for e in range(6) if i % 2**e == 0 and j == e])
        for i in range(40)
        for j in range(1 + i % 7)
    )


def texts(figure: Any) -> str:
    """All words in a figure, on one line."""
    from matplotlib.text import Text

    found = [t.get_text() for t in figure.findobj(Text) if t.get_visible()]
    return " | ".join(found).replace("\n", " ")


def test_titles_state_the_findings() -> None:
    owners = town()
    words = texts(degree_figure(owners, preview(owners, seed=0)))
    assert "155 records of 40 users name 5 entities" in words
    assert "Half of the users wrote at most 4 records; the busiest wrote 7" in words
    assert "of the entities are named by more than one user" in words
    assert "100% of the users name the most shared entity" in words
    assert "share kept" in words


def test_names_are_shown_where_given_and_ids_elsewhere() -> None:
    owners = town()
    names = {"e0": "a $5 & <6$ bill\x07\nof " + "long " * 20}
    words = texts(degree_figure(owners, preview(owners, seed=0), names=names))
    assert "a $5 & <6$ bill of long" in words
    assert "…  (MISC)" in words
    assert "e1  (MISC)" in words
    assert "e0" not in words


@pytest.mark.parametrize("suffix", ["png", "svg", "html", "PNG"])
def test_save(tmp_path: Path, suffix: str) -> None:
    owners = town()
    names = {"e0": "Ann & <Bob> 東京 $x$"}
    figure = degree_figure(owners, preview(owners, seed=0), names=names)
    path = tmp_path / f"degrees.{suffix}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(figure, path)
    data = path.read_bytes()
    again = tmp_path / f"again.{suffix}"
    save(
        degree_figure(owners, preview(owners, seed=0), names={"e0": "Ann & <Bob> 東京 $x$"}), again
    )
    assert again.read_bytes() == data
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([path.name, again.name])
    if suffix.lower() == "png":
        assert data.startswith(b"\x89PNG")
    elif suffix == "svg":
        assert "Ann & <Bob> 東京 $x$" in "".join(ElementTree.fromstring(data).itertext())


def test_the_page_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / "degrees.html"
    save(degree_figure(town(), [], names={"e0": "</svg><script>alert(1)</script>"}), path)

    class Reader(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.tags: list[str] = []
            self.links: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.tags.append(tag)
            self.links += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href")]

    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    assert reader.tags.count("svg") == 1
    assert not {"script", "link", "img", "iframe"} & set(reader.tags)
    assert all(link.startswith("#") for link in reader.links)


@pytest.mark.parametrize("name", ["degrees.pdf", "degrees", "degrees.png.gz", ".png"])
def test_other_suffixes_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"end the name in \.png, \.svg or \.html"):
        format_of(Path(name))
    with pytest.raises(UsageError):
        save(degree_figure(town(), []), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [("r1", "ann", [])],
        [("r1", "ann", ["e1"])],
        [("r1", "ann", ["e1"]), ("r2", "bob", ["e1"])],
        [(f"r{i}", "ann", ["e1"]) for i in range(3000)],
    ],
)
def test_small_and_lopsided_graphs(tmp_path: Path, rows: list[tuple[str, str, list[str]]]) -> None:
    owners = Owners.from_rows(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(degree_figure(owners, preview(owners, seed=0)), tmp_path / "f.png")


@settings(max_examples=5)
@given(st.lists(st.integers(1, 500), min_size=1, max_size=6, unique=True))
def test_any_caps_in_any_order(caps: list[int]) -> None:
    owners = town()
    rows = [Kept(cap, 100, 50, 5, 30) for cap in caps]
    words = texts(degree_figure(owners, rows))
    assert "Even" in words
    assert f"{max(caps):,} user" in words


def test_no_global_state_and_no_early_import() -> None:
    code = (
        "import sys, tacit.reports.plots as p\n"
        "assert 'matplotlib' not in sys.modules\n"
        "from tacit.owners import Owners\n"
        "p.degree_figure(Owners.from_rows([('r', 'u', ['e'])]), [])\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    assert run([sys.executable, "-c", code], check=False).returncode == 0


def test_many_kinds_of_share_are_worded() -> None:
    rows = [(f"r{i}", f"u{i}", ["rare"] if i < 2 else [f"own{i}"]) for i in range(400)]
    owners = Owners.from_rows(rows)
    assert np.max(owners.users_per_entity) == 2
    words = texts(degree_figure(owners, preview(owners, [1], seed=0)))
    assert "Less than 1% of the entities are named by more than one user" in words
    assert "over 99% of the records stay" in words
