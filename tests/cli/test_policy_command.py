"""`tacit policy show`: the share of sensitive tokens, and the page that highlights them."""

import json
from pathlib import Path

from support.driving import SECRET, Tacit, contents


def corpus(folder: Path) -> Path:
    rows = [
        {"id": "1", "text": "my number is 4711 and nothing else"},
        {"id": "2", "text": f"no such thing here, {SECRET.split('-')[0]}"},
    ]
    path = folder / "c.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_share_and_the_page(tacit: Tacit, tmp_path: Path) -> None:
    page = tmp_path / "marked.html"
    done = tacit(f"policy show {corpus(tmp_path)} --policy digits -o {page} --json")
    assert done.code == 0
    found = done.json
    assert found["records"] == 2
    assert found["sensitive_records"] == 1
    assert 0 < found["sensitive_share"] == round(found["sensitive_tokens"] / found["tokens"], 6) < 1
    html = page.read_text()
    assert "keep inside" in html
    assert "4711" in html
    again = tacit(f"policy show {corpus(tmp_path)} --policy digits -o {page}")
    assert again.code == 2
    assert "overwrite" in again.err


def test_no_page_and_no_text_on_the_terminal(tacit: Tacit, tmp_path: Path) -> None:
    before = contents(tmp_path) | {"c.jsonl": corpus(tmp_path).read_bytes()}
    done = tacit(
        f"policy show {tmp_path / 'c.jsonl'} --page-records 0 --policy", "sentences(digits)+digits"
    )
    assert done.code == 0
    assert "of " in done.out
    assert "sensitive" in done.out
    assert SECRET.split("-")[0] not in done.out + done.err
    assert contents(tmp_path) == before


def test_an_unknown_policy_is_one_sentence(tacit: Tacit, tmp_path: Path) -> None:
    done = tacit(f"policy show {corpus(tmp_path)} --policy contextual=en_core_web_sm")
    assert done.code == 2
    assert done.err.count("\n") == 1
