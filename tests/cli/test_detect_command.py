"""`tacit detect`: find, score, train."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.driving import Tacit
from tacit.detection.mentions import fold
from tacit.detection.surrogates import reserved


def test_the_four_files(tacit: Tacit, made: Path, tmp_path: Path) -> None:
    found = tacit("detect", made / "c.jsonl", "-o", tmp_path / "m.jsonl")
    assert found.code == 0
    assert "mentions of" in found.out
    for name in ("m.jsonl", "m.entities.jsonl", "m.summary.json", "m.html"):
        assert str(tmp_path / name) in found.err
        assert (tmp_path / name).stat().st_size
    summary = json.loads((tmp_path / "m.summary.json").read_text())
    mentions = (tmp_path / "m.jsonl").read_text().splitlines()
    assert summary["mentions"] == len(mentions)


def test_a_page_to_check_and_what_comes_of_it(tacit: Tacit, made: Path, tmp_path: Path) -> None:
    page = tmp_path / "review.html"
    done = tacit("detect", made / "c.jsonl", "--sample", "5", "--review", page)
    assert done.code == 0, done.err
    assert str(page) in done.err
    assert tacit("detect", made / "c.jsonl", "--review", page).code == 2  # it is there already
    saved = {"review": 1, "detectors": "names", "seed": 0, "records": 9, "sample": 3}
    answer = {"id": "a", "right": [[0, 3, "PERSON"]], "wrong": [], "missed": []}
    file = tmp_path / "review.json"
    file.write_text(json.dumps({**saved, "answers": [answer]}))
    shown = " ".join(tacit("detect", "agreement", file).out.split())
    assert "agreed with names on all of 1 of 1 records, 100% (2% to 100% at 95 %)" in shown
    found = tacit("detect", "agreement", file, "--json").json
    assert (found["kinds"][-1]["precision"], found["kinds"][-1]["recall"]) == (1.0, 1.0)


def test_names_are_replaced_and_it_is_said_what_that_tells(
    tacit: Tacit, made: Path, tmp_path: Path
) -> None:
    to = tmp_path / "invented.jsonl"
    asked = ("detect", made / "c.jsonl", "--with", "gold", "--replace", to)
    found = tacit(*asked, "--same-within", "corpus")
    assert found.code == 0
    assert "promises nothing" in found.out
    assert "which records of everybody name the same one" in found.out
    before = [json.loads(line) for line in (made / "c.jsonl").read_text().splitlines()]
    after = [json.loads(line) for line in to.read_text().splitlines()]
    assert [one["id"] for one in before] == [one["id"] for one in after]
    for one, other in zip(before, after, strict=True):
        for kind, real, invented in what_stands_there(one, other["text"]):
            assert fold(invented, kind) in reserved(kind)
            assert kind == "DATE" or fold(real, kind) not in reserved(kind)
    assert tacit("verify", tmp_path / "invented.certificate").code == 0
    assert tacit(*asked).code != 0  # it is there, and stays
    bad = tacit(*asked, "--overwrite", "--same-within", "page")
    assert "same_within" in bad.err


def what_stands_there(record: dict[str, Any], text: str) -> list[tuple[str, str, str]]:
    """Each mention's kind and words, and what a text that is the same around it has there instead.

    A name is judged at its place: an invented "John Barlow" may have the real "John" in it.
    """
    was, pattern, end, marked = record["text"], "", 0, []
    for span in record["spans"]:
        pattern += re.escape(was[end : span["start"]]) + "(.+?)"
        end = span["end"]
        marked.append((span["kind"], was[span["start"] : end]))
    found = re.fullmatch(pattern + re.escape(was[end:]), text, re.DOTALL)
    assert found
    return [(*one, written) for one, written in zip(marked, found.groups(), strict=True)]


def test_json_is_the_summary(tacit: Tacit, made: Path) -> None:
    found = tacit("detect", made / "c.jsonl", "--with", "patterns", "--score", "--json")
    assert found.code == 0
    assert found.json["records"] == 60
    assert found.json["scores"]["kinds"]["PII/EMAIL"]["f1"] > 0.9


def test_run_may_be_left_out(tacit: Tacit, made: Path) -> None:
    short = tacit("detect", made / "c.jsonl", "--with", "gold", "--json").json
    long = tacit("detect", "run", made / "c.jsonl", "--with", "gold", "--json").json
    drop = ("seconds", "records_per_second")
    assert {k: v for k, v in short.items() if k not in drop} == {
        k: v for k, v in long.items() if k not in drop
    }


def test_given_marks_score_perfectly(tacit: Tacit, made: Path) -> None:
    found = tacit("detect", made / "c.jsonl", "--with", "gold", "--score")
    assert found.code == 0
    for shown in ("precision", "recall", "F1", "F2", "PERSON"):
        assert shown in found.out
    by_family = tacit(
        "detect", made / "c.jsonl", "--with", "gold", "--score", "--by", "family", "--json"
    ).json["scores"]
    assert by_family["micro"]["f1"] == 1
    assert "PII" in by_family["kinds"]
    assert "PII/EMAIL" not in by_family["kinds"]


def test_kinds_scores_and_no_page(tacit: Tacit, made: Path, tmp_path: Path) -> None:
    found = tacit(
        "detect", made / "c.jsonl", "--with", "patterns", "--kinds", "PII/EMAIL,DATE",
        "--minimum-score", "0.5", "--page-records", "0", "-o", tmp_path / "m.jsonl", "--json",
    )  # fmt: skip
    assert set(found.json["mentions_by_kind"]) <= {"PII/EMAIL", "DATE"}
    assert not (tmp_path / "m.html").exists()


def test_own_lists_and_aliases(tacit: Tacit, tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("user,text\na,the quux is here\nb,THE QUUX and frob too\n")
    (tmp_path / "terms.txt").write_text("# kind: PERSON\nquux\nfrob\n")
    (tmp_path / "aliases.yml").write_text("PERSON:\n  quux: [frob]\n")
    options = ["detect", tmp_path / "c.csv", "--with", f"lists={tmp_path / 'terms.txt'}", "--json"]
    found = tacit(*options).json
    assert (found["mentions"], found["entities"]) == (3, 2)
    assert tacit(*options, "--aliases", tmp_path / "aliases.yml").json["entities"] == 1


def test_list(tacit: Tacit) -> None:
    found = tacit("detect", "list")
    assert found.code == 0
    for name in ("patterns", "lists", "gold", "tagger", "spacy", "presidio", "stanza", "PII/IBAN"):
        assert name in found.out


@pytest.fixture(scope="module")
def tagger(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tacit.cli import run

    folder = tmp_path_factory.mktemp("tagger") / "my-tagger"
    options = ["--iterations", "8", "--held-out", "0.3", "-o", str(folder)]
    assert run(["detect", "train", str(made / "c.jsonl"), *options]) == 0
    return folder


def test_train_and_use(tacit: Tacit, made: Path, tagger: Path) -> None:
    found = tacit(
        "detect", made / "c.jsonl", "--with", f"patterns,tagger={tagger}", "--score", "--json"
    )
    assert found.code == 0
    assert found.json["scores"]["kinds"]["PERSON"]["recall"] > 0.5


def test_train_tells_how_well(tacit: Tacit, made: Path, tmp_path: Path) -> None:
    options = ["detect", "train", made / "c.jsonl", "--iterations", 2, "-o", tmp_path / "t"]
    shown = tacit(*options, "--held-out", "0.3")
    assert shown.code == 0
    assert "held out" in shown.out
    assert "guard it" in shown.err
    again = tacit(*options, "--overwrite", "--json")
    assert again.code == 0
    assert again.json["records"] == 60
