"""A person checks a sample: what is drawn, what the page saves, and what is counted from it."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.browsing import NO_BROWSER, chromium, started_browser
from tacit.corpus import Corpus, Record
from tacit.detection.mentions import Mention
from tacit.detection.review import agreement_in, write_review
from tacit.errors import DataError, UsageError

TEXTS = ("Ann 😀 met Bob at Acme.", "Nothing </script> here.", "Write to Carl.")
CORPUS = Corpus.from_records(
    [Record(f"r{place}", text, user="u") for place, text in enumerate(TEXTS)]
)
MENTIONS = [
    Mention("r0", 0, 3, "PERSON", "e1", 0.9, "names: network"),
    Mention("r0", 0, 2, "ORG", "e2", 0.9, "names: network"),  # inside of the one before
    Mention("r0", 17, 21, "LOC", "e3", 0.9, "names: network"),
]
ABOUT = {"review": 1, "detectors": "names", "seed": 0, "records": 9, "sample": 3}


def answers(*found: dict[str, Any], **changed: Any) -> str:
    return json.dumps({**ABOUT, "answers": list(found), **changed})


def answer(id_: str, **given: Any) -> dict[str, Any]:
    return {"id": id_, "right": [], "wrong": [], "missed": [], **given}


def test_records_are_drawn_alike_from_all(tmp_path: Path) -> None:
    many = Corpus.from_records([Record(f"r{n}", "Text.", user="u") for n in range(200)])
    page = tmp_path / "review.html"
    assert write_review(page, many, [], detectors="names", sample=20, seed=3) == 20
    first = page.read_text(encoding="utf-8")
    write_review(page, many, [], detectors="names", sample=20, seed=3)
    assert page.read_text(encoding="utf-8") == first
    write_review(page, many, [], detectors="names", sample=20, seed=4)
    assert page.read_text(encoding="utf-8") != first
    assert write_review(page, CORPUS, MENTIONS, detectors="names") == 3
    with pytest.raises(UsageError, match="sample=0"):
        write_review(page, CORPUS, MENTIONS, detectors="names", sample=0)


def test_what_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "review.json"
    file.write_text(
        answers(
            answer("a", right=[[0, 3, "PERSON"], [5, 9, "ORG"]]),
            answer("b"),
            answer("c", right=[[0, 3, "PERSON"]], wrong=[[7, 9, "ORG"]], missed=[[4, 6, "PERSON"]]),
        )
    )
    found = agreement_in(file)
    assert found.rows() == [
        ("ORG", 1, 1, 0, 0.5, 1.0),
        ("PERSON", 2, 0, 1, 1.0, 2 / 3),
        ("all", 3, 1, 1, 0.75, 0.75),
    ]
    share, low, high = found.share
    assert (share, found.checked, found.alike) == (2 / 3, 3, 2)
    # Clopper and Pearson's interval of 2 in 3, from a table.
    assert (round(low, 4), round(high, 4)) == (0.0943, 0.9916)


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", '{"review": 1}', answers(), answers(answer("a"), review=2),
        answers(answer("a", right=[[0, 3]])), answers(answer("a", other=1)),
        answers(answer("a", missed=[[-1, 3, "ORG"]])),
    ],
)  # fmt: skip
def test_another_file_is_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    file = tmp_path / "review.json"
    file.write_text(text)
    with pytest.raises(DataError, match=r"of answers|checked") as refused:
        agreement_in(file)
    assert "\n" not in str(refused.value)


@pytest.mark.skipif(chromium() is None, reason=NO_BROWSER)
def test_a_person_checks_records_in_a_browser(tmp_path: Path) -> None:
    """Wrong, missed and right marks reach the file by places in characters, and stay on reload."""
    pytest.importorskip("playwright")
    page_file = tmp_path / "review.html"
    write_review(page_file, CORPUS, MENTIONS, detectors="names")
    path = chromium()
    assert path is not None
    with started_browser(path) as browser:
        page = browser.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(page_file.as_uri())
        page.get_by_role("button", name="Acme, LOC, right").click()
        page.evaluate(
            """() => {
              const node = [...document.querySelectorAll('.text')[0].childNodes]
                .find(n => n.nodeType === 3 && n.data.includes('Bob'));
              const range = document.createRange(), at = node.data.indexOf('Bob');
              range.setStart(node, at);
              range.setEnd(node, at + 4);
              getSelection().removeAllRanges();
              getSelection().addRange(range);
            }"""
        )
        page.get_by_role("button", name="Add the selection").first.click()
        page.get_by_role("button", name="Checked").first.click()
        page.get_by_role("button", name="Checked").nth(1).click()
        page.reload()
        page.get_by_text("2 of 3 records checked · agreed on 50 %").wait_for()
        with page.expect_download() as downloading:
            page.get_by_role("button", name="Save answers").click()
        saved = tmp_path / "review.json"
        downloading.value.save_as(saved)
    said = json.loads(saved.read_text())["answers"]
    assert said == [
        {"id": "r0", "right": [[0, 3, "PERSON"]], "wrong": [[17, 21, "LOC"]],
         "missed": [[10, 13, "PERSON"]]},
        {"id": "r1", "right": [], "wrong": [], "missed": []},
    ]  # fmt: skip
    assert TEXTS[0][10:13] == "Bob"
    assert not any(text in saved.read_text() for text in ("Bob", "Ann", "Acme"))
    assert agreement_in(saved).alike == 1
    assert not faults
