"""`tacit corpus`: what it shows, what it writes."""

import csv
import gzip
import json
from pathlib import Path

import pytest

from support.driving import Tacit

ROWS = [("ann", "hello bob"), ("ann", "again"), ("eve", "Café, 3 o'clock")]


@pytest.fixture
def mail(tmp_path: Path) -> Path:
    with (tmp_path / "mail.csv").open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([("sender", "body", "folder"), *((*r, "in") for r in ROWS)])
    return tmp_path / "mail.csv"


def test_describe(tacit: Tacit, mail: Path) -> None:
    found = tacit(*f"corpus describe {mail} --user sender --text body --label folder".split())
    assert found.code == 0
    for shown in (
        "mail.csv",
        "users",
        "records per user",
        "labels",
        "near-duplicates across users",
    ):
        assert shown in found.out
    assert "keep them inside" in found.err
    summary = tacit(
        *f"corpus describe {mail} --user sender --text body --label folder --json".split()
    ).json
    assert (summary["users"], summary["records"], summary["labels"]) == (2, 3, {"in": 3})


def test_without_users_there_is_nobody_to_compare(tacit: Tacit, mail: Path) -> None:
    found = tacit("corpus", "describe", mail)
    assert found.code == 0
    assert "none given" in found.out
    assert "across users" not in found.out


def test_labels_that_look_like_markup_are_shown(tacit: Tacit, tmp_path: Path) -> None:
    source = tmp_path / "a[red]b.csv"
    source.write_text("user,text,label\n[/x],hi [/i],[/INST]\nbob,ho,:cat:\n")
    shown = tacit("corpus", "describe", source)
    assert shown.code == 0
    for text in ("a[red]b.csv", "[/INST]", ":cat:"):
        assert text in shown.out
    target = tmp_path / "x[bold]y.jsonl"
    assert f"written to {target}" in tacit("corpus", "convert", source, "-o", target).err


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "csv", "csv.gz", "tsv", "parquet"])
def test_convert_there_and_back(tacit: Tacit, mail: Path, ending: str) -> None:
    there, back = mail.with_name(f"there.{ending}"), mail.with_name("back.jsonl")
    done = tacit(*f"corpus convert {mail} --user sender --text body -o {there}".split())
    assert (done.code, done.out) == (0, "")
    assert tacit("corpus", "convert", there, "-o", back).code == 0
    rows = [json.loads(line) for line in back.read_text(encoding="utf-8").splitlines()]
    assert [(row["user"], row["text"]) for row in rows] == ROWS


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        ("no header", "ann,hi there\nbob,ho\n", "--header user,text"),
        ("latin-1", "user,text\nann,caf\xe9\nbob,ho\n", "--encoding latin-1"),
        ("quotes are text", 'user,text\nann,"hi\nbob,ho\n', "--no-quotes"),
        ("ending misleads", "user\ttext\nann\thi\nbob\tho\n", "--format tsv"),
        ("other names", "who,what\nann,hi\nbob,ho\n", "--column user=who --column text=what"),
    ],
)
def test_odd_files_with_the_right_options(
    tacit: Tacit, tmp_path: Path, name: str, text: str, options: str
) -> None:
    source = tmp_path / "odd.csv"
    source.write_text(text, encoding="latin-1")
    found = tacit("corpus", "describe", source, *options.split(), "--json")
    assert found.code == 0
    assert (found.json["users"], found.json["records"]) == (2, 2)


def test_a_split_of_a_packed_file(tacit: Tacit, tmp_path: Path) -> None:
    rows = [{"user": "a", "text": "x", "split": s} for s in ("train", "train", "test")]
    with gzip.open(tmp_path / "c.jsonl.gz", "wt") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)
    for split, records in (("train", 2), ("test", 1), ("all", 3)):
        found = tacit("corpus", "describe", tmp_path / "c.jsonl.gz", "--split", split, "--json")
        assert found.json["records"] == records


def test_generate_is_the_same_twice(tacit: Tacit, tmp_path: Path) -> None:
    for name in ("one.jsonl", "two.jsonl"):
        done = tacit(
            "corpus generate customersim --dialogs 9 --seed 3",
            "-o",
            tmp_path / name,
        )
        assert (done.code, done.out) == (0, "")
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()
    tacit(
        "corpus generate customersim --dialogs 9 --users 2",
        "-o",
        tmp_path / "p.parquet",
    )
    found = tacit("corpus", "describe", tmp_path / "p.parquet", "--json").json
    assert (found["records"], found["users"]) == (9, 2)
    assert found["gold_spans"]["PERSON"] > 0


def test_as_in_papers_says_what_leaks(tacit: Tacit, made: Path, tmp_path: Path) -> None:
    target = tmp_path / "papers.jsonl"
    done = tacit("corpus", "convert", made / "c.jsonl", "--as-in-papers", "-o", target)
    assert done.code == 0
    assert "Leak:" in done.err
    assert "<unk>" in target.read_text()
    few = tmp_path / "few.jsonl"
    done = tacit(
        "corpus", "convert", made / "c.jsonl", "--as-in-papers", "--vocabulary-size", 20, "-o", few
    )
    assert "Leak:" in done.err
    words = {w for line in few.read_text().splitlines() for w in json.loads(line)["text"].split()}
    assert len(words - {"<unk>"}) <= 20


def test_drop(tacit: Tacit, made: Path, tmp_path: Path) -> None:
    target = tmp_path / "c.csv"
    assert tacit("corpus", "convert", made / "c.jsonl", "--drop", "spans", "-o", target).code == 0
    assert "spans" not in target.read_text().splitlines()[0]


def test_list(tacit: Tacit) -> None:
    found = tacit("corpus", "list")
    assert found.code == 0
    for name in ("conll2003", "ag_news", "wikitext2", "sst2", "qnli", "stsb", "cuad"):
        assert name in found.out


def test_split_goes_by_each_ones_own_name(tacit: Tacit, tmp_path: Path) -> None:
    def corpus(users: range, name: str) -> Path:
        lines = [
            json.dumps({"id": f"{u}-{n}", "user": f"u{u}", "text": "x"})
            for u in users
            for n in (1, 2)
        ]
        (tmp_path / name).write_text("\n".join(lines))
        return tmp_path / name

    def parts(source: Path, *more: str) -> dict[str, str]:
        target = tmp_path / f"split-{source.name}"
        done = tacit("corpus split", source, "-o", target, "--overwrite", "--test", 0.3, *more)
        assert done.code == 0, done.err
        rows = [json.loads(line) for line in target.read_text().splitlines()]
        return {row["id"]: row["split"] for row in rows}

    whole, fewer = (
        parts(corpus(users, f"{len(users)}.jsonl"), "--seed", "1")
        for users in (range(60), range(1, 60))
    )
    assert {n: s for n, s in whole.items() if not n.startswith("0-")} == fewer
    assert all(whole[f"{user}-1"] == whole[f"{user}-2"] for user in range(60))
    assert 0.1 < list(whole.values()).count("test") / len(whole) < 0.5
    assert whole != parts(tmp_path / "60.jsonl", "--seed", "2")
    records = parts(tmp_path / "60.jsonl", "--by", "record", "--valid", "0.2")
    assert {*records.values()} == {"train", "valid", "test"}
    assert any(records[f"{user}-1"] != records[f"{user}-2"] for user in range(60))


def test_what_is_no_split_is_refused(tacit: Tacit, tmp_path: Path, mail: Path) -> None:
    columns = ("--user", "sender", "--text", "body", "-o", tmp_path / "s.jsonl")
    assert tacit("corpus split", mail, *columns, "--by", "word").code == 2
    assert tacit("corpus split", mail, *columns, "--test", 1).code == 2
    assert tacit("corpus split", mail, *columns, "--test", 0.5).code == 0
    again = tacit("corpus split", tmp_path / "s.jsonl", "-o", tmp_path / "t.jsonl")
    assert again.code == 2
    assert "has splits already" in again.err
