"""`tacit owners`: the picture that decides a plan."""

import json
from pathlib import Path

import pytest

from support.driving import Tacit


def owners(made: Path) -> list[object]:
    return ["owners", made / "c.jsonl", "--mentions", made / "mentions.jsonl"]


def test_what_it_shows(tacit: Tacit, made: Path) -> None:
    shown = tacit(*owners(made))
    assert shown.code == 0
    for words in ("records per user", "users per entity", "shared by most users", "cap"):
        assert words in shown.out
    assert "keep them inside" in shown.err


def test_it_fits_a_terminal_of_eighty_columns(tacit: Tacit, made: Path) -> None:
    lines = tacit(*owners(made)).out.split("what a cap")[1].splitlines()
    assert len([line for line in lines if line.strip()]) == 1 + 1 + 6  # title, heading, caps


def test_json(tacit: Tacit, made: Path) -> None:
    found = tacit(*owners(made), "--caps", "1,3", "--records-per-user", 2, "--json").json
    assert [row["users_per_entity"] for row in found["caps"]] == [1, 3]
    assert all(row["records"] <= 2 * found["users"] for row in found["caps"])
    assert found["most_shared"][0]["name"]
    few = tacit(*owners(made), "--kinds", "PII/EMAIL", "--json").json
    assert 0 < few["entities"] < found["entities"]


@pytest.mark.parametrize(
    ("ending", "opening"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("html", b"<!doctype html>")]
)
def test_pictures(tacit: Tacit, made: Path, tmp_path: Path, ending: str, opening: bytes) -> None:
    picture = tmp_path / f"degrees.{ending}"
    found = tacit(*owners(made), "--plot", picture, "--json")
    assert found.code == 0
    assert found.json
    assert str(picture) in found.err
    assert picture.read_bytes()[:15].lower().startswith(opening.lower())


def test_the_graph_holds_no_names(made: Path) -> None:
    graph = (made / "owners.json").read_text()
    for line in (made / "mentions.entities.jsonl").read_text().splitlines():
        assert json.dumps(json.loads(line)["name"]) not in graph


def test_what_many_users_share_may_be_public(tacit: Tacit, tmp_path: Path) -> None:
    lines = [
        {"id": str(i), "user": f"u{i}", "text": f"mail list@example.org, I am u{i}@x.example.net"}
        for i in range(12)
    ]
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    mentions = tmp_path / "m.jsonl"
    assert tacit("detect", corpus, "--with", "patterns", "-o", mentions).code == 0
    shown = tacit("owners", corpus, "--mentions", mentions).out
    assert "list@example.org (PII/EMAIL) stands in 12 records of 12 users" in shown
    assert 'public_entities: ["list@example.org"]' in shown
    (tmp_path / "few.jsonl").write_text("".join(corpus.read_text().splitlines(True)[:9]))
    few = tmp_path / "n.jsonl"
    assert tacit("detect", tmp_path / "few.jsonl", "--with", "patterns", "-o", few).code == 0
    assert "public" not in tacit("owners", tmp_path / "few.jsonl", "--mentions", few).out
