"""`tacit sanitize`, as a person or a script meets it."""

import csv
import gzip
import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from support.driving import SECRET, Result, Tacit, contents

ROWS = [
    {"id": "a", "user": "u", "text": "My order is late, thanks", "label": "x"},
    {"id": "b", "user": "v", "text": f"my name is {SECRET} and I am in London", "label": "y"},
    {"id": "c", "user": "u", "text": "please change the number", "label": "x"},
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "names.txt").write_text("Anna\nJames\nMaria\nRobert\n")
    return tmp_path


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def ok(done: Result) -> Result:
    assert done.code == 0, done.err
    return done


PLAIN = "sanitize c.jsonl --epsilon-per-distance 2 "


@pytest.mark.parametrize(
    ("options", "notion", "epsilon_0"),
    [
        ("--method santext --epsilon-per-distance 2", "metric-LDP", 0),
        ("--method fbdd --epsilon-per-distance 9", "metric-LDP", 0),
        ("--method random", "metric-LDP", 0),
        ("--method santext+ --epsilon-per-distance 2 --replace-plain-rate 0.3 --sensitive-words "
         "names.txt", "utility-optimized metric-LDP", pytest.approx(1.2039728)),
        ("--method santext+ --epsilon-per-distance 2 --replace-plain-rate 0",
         "utility-optimized metric-LDP", "infinity"),
        ("--method redact", "none", "infinity"),
        ("--method mask", "none", "infinity"),
        ("--method pseudonym --same-within corpus", "none", "infinity"),
    ],
)  # fmt: skip
def test_every_method_writes_what_verify_accepts(
    tacit: Tacit, folder: Path, options: str, notion: str, epsilon_0: object
) -> None:
    done = ok(tacit(f"sanitize c.jsonl {options} -o out.jsonl --json")).json
    assert done["notion"] == notion
    assert done["epsilon_0"] == epsilon_0
    assert done["standing"] == ("heuristic" if notion == "none" else "proved")
    rows = lines(folder / "out.jsonl")
    assert [(r["id"], r["user"], r["label"]) for r in rows] == [
        (r["id"], r["user"], r["label"]) for r in ROWS
    ]
    assert {p.name for p in (folder / "out.certificate").iterdir()} == {
        "certificate.html", "certificate.json", "certificate.md", "ledger.jsonl",
    }  # fmt: skip
    checks = ok(tacit("verify out.certificate --json")).json
    assert checks["ok"]
    if notion != "none":
        assert SECRET not in (folder / "out.jsonl").read_text()
    for file in (folder / "out.certificate").iterdir():
        assert SECRET not in file.read_text()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epsilon_per_distance", 0.1),
        ("epsilon_0", 0.5),
        ("sentence", "All is well."),
        ("not_covered", []),
        ("assumptions", []),
        ("standing", "heuristic"),
        ("notion", "utility-optimized metric-LDP"),
        ("randomness", "fixed seed"),
        ("data", "hmac-sha256:00"),
        ("public", []),
        ("context", {}),
        ("columns", ["text"]),
        ("files", {}),
        ("created", "2001-01-01"),
        ("tacit", "9.9.9"),
        ("ledger_entries", 2),
        ("unheard", 1),
    ],
)
def test_a_forged_certificate_is_refused(
    tacit: Tacit, folder: Path, field: str, value: object
) -> None:
    ok(tacit(PLAIN + "-o out.jsonl"))
    path = folder / "out.certificate" / "certificate.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, field: value}, indent=2, ensure_ascii=False) + "\n")
    forged = tacit("verify out.certificate --json")
    assert forged.code == 4
    if field not in ("unheard",):  # the pages are checked, too, but it must not rest on them
        for page in ("certificate.md", "certificate.html"):
            (folder / "out.certificate" / page).unlink()
        bad = [
            c["what"] for c in tacit("verify out.certificate --json").json["checks"] if not c["ok"]
        ]
        assert "ledger's last line" in bad


def test_smaller_distances_are_refused_even_if_every_figure_fits(
    tacit: Tacit, folder: Path
) -> None:
    """Distances are what a table's epsilons are made of: the ledger holds them."""
    from tacit.privacy.certificates.local_privacy import LocalCertificate, pages

    ok(tacit(PLAIN + "-o out.jsonl"))
    inside = folder / "out.certificate"
    fields = json.loads((inside / "certificate.json").read_text())
    for reach in fields["reach"].values():
        for column in reach.values():
            for name in column:
                column[name] /= 100
    forged = LocalCertificate.model_validate_json(json.dumps(fields))
    for name, text in {"certificate.json": forged.to_json(), **pages(forged)}.items():
        (inside / name).write_text(text)
    bad = [c["what"] for c in tacit("verify out.certificate --json").json["checks"] if not c["ok"]]
    assert bad == ["ledger's last line", "reach"]


def test_every_file_of_the_folder_is_checked_or_named(tacit: Tacit, folder: Path) -> None:
    ok(tacit(PLAIN + "-o out.jsonl"))
    inside = folder / "out.certificate"
    for name in ("certificate.md", "certificate.html", "certificate.json", "ledger.jsonl"):
        whole = (inside / name).read_bytes()
        (inside / name).write_bytes(whole.replace(b"2", b"1", 1))
        assert tacit("verify out.certificate").code == 4, name
        (inside / name).write_bytes(whole)
    ok(tacit("verify out.certificate"))
    for name in ("original.jsonl", "more/model.pth", "README.md"):
        (inside / name).parent.mkdir(exist_ok=True)
        (inside / name).write_text("x")
        said = tacit("verify out.certificate")
        assert said.code == 4
        assert name in said.out
        (inside / name).unlink()
    (inside / "notes.png").write_text("x")
    assert "not covered: notes.png" in ok(tacit("verify out.certificate")).out
    # A link is not the file that was certified, wherever it leads.
    (folder / "out.jsonl").rename(folder / "moved.jsonl")
    (folder / "out.jsonl").symlink_to(folder / "moved.jsonl")
    assert tacit("verify out.certificate").code == 4


def test_neither_corpus_nor_ledger_can_be_exchanged(tacit: Tacit, folder: Path) -> None:
    """Two corpora by the same settings: the folder of the one does not certify the other."""
    for name in ("one", "two"):
        ok(tacit(PLAIN + f"-o {name}.jsonl"))
    one, two = folder / "one.certificate", folder / "two.certificate"
    shutil.copy(folder / "two.jsonl", folder / "one.jsonl")
    assert tacit("verify one.certificate").code == 4
    # The certificate names the new corpus: then the ledger's last line is about another.
    fields = json.loads((one / "certificate.json").read_text())
    other = json.loads((two / "certificate.json").read_text())
    fields["files"] = {"one.jsonl": other["files"]["two.jsonl"]}
    (one / "certificate.json").write_text(json.dumps(fields, indent=2, ensure_ascii=False) + "\n")
    for page in ("certificate.md", "certificate.html"):
        (one / page).unlink()
    bad = [c["what"] for c in tacit("verify one.certificate --json").json["checks"] if not c["ok"]]
    assert bad == ["ledger's last line"]
    shutil.copy(two / "ledger.jsonl", one / "ledger.jsonl")
    assert tacit("verify one.certificate").code == 4
    # Without its last line a ledger binds nothing.
    lines = (two / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (two / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))
    assert "is missing" in tacit("verify two.certificate").out


def test_another_text_is_refused(tacit: Tacit, folder: Path) -> None:
    ok(tacit(PLAIN + "-o out.jsonl"))
    ledger = folder / "out.certificate" / "ledger.jsonl"
    whole = ledger.read_bytes()
    ledger.write_bytes(
        whole.replace(b'"epsilon_per_distance": 2.0', b'"epsilon_per_distance": 1.0')
    )
    assert tacit("verify out.certificate").code == 4
    ledger.write_bytes(whole)
    ok(tacit("verify out.certificate"))
    (folder / "out.jsonl").write_text("{}\n")
    assert tacit("verify out.certificate").code == 4


@pytest.mark.parametrize(
    "name", ["out.jsonl", "out.jsonl.gz", "out.csv", "out.tsv", "out.parquet", "out.txt"]
)
def test_every_format_in_and_out(tacit: Tacit, folder: Path, name: str) -> None:
    ok(tacit(PLAIN + "--seed 1 -o first.jsonl"))
    wanted = [row["text"] for row in lines(folder / "first.jsonl")]
    ok(tacit(PLAIN + f"--seed 1 -o {name}"))
    path = folder / name
    if name.endswith(".gz"):
        packed = gzip.decompress(path.read_bytes()).splitlines()
        found = [json.loads(line)["text"] for line in packed]
    elif name.endswith(".parquet"):
        found = pq.read_table(path).column("text").to_pylist()
    elif name.endswith(".txt"):
        found = path.read_text().splitlines()
    elif name.endswith(".jsonl"):
        found = [row["text"] for row in lines(path)]
    else:
        with path.open() as rows:
            found = [
                row["text"]
                for row in csv.DictReader(rows, delimiter="\t" if "tsv" in name else ",")
            ]
    assert found == wanted
    # What was written is read again.
    ok(tacit(f"sanitize {name} --method random -o again.jsonl"))
    assert len(lines(folder / "again.jsonl")) == 3


def test_workers_and_order_do_not_matter_for_a_fixed_seed(tacit: Tacit, folder: Path) -> None:
    ok(tacit(PLAIN + "--seed 3 --workers 1 -o one.jsonl"))
    ok(tacit(PLAIN + "--seed 3 --workers 2 -o two.jsonl"))
    assert (folder / "one.jsonl").read_bytes() == (folder / "two.jsonl").read_bytes()
    turned = "".join(json.dumps(row) + "\n" for row in ROWS[::-1])
    (folder / "c.jsonl").write_text(turned)
    ok(tacit(PLAIN + "--seed 3 -o turned.jsonl"))
    assert lines(folder / "turned.jsonl") == lines(folder / "one.jsonl")[::-1]


def test_a_fixed_seed_is_not_for_release(tacit: Tacit, folder: Path) -> None:
    done = ok(tacit(PLAIN + "--seed 1 -o out.jsonl"))
    assert "Not for release" in done.err
    assert "Not for release" in (folder / "out.certificate" / "certificate.md").read_text()
    assert (
        json.loads((folder / "out.certificate" / "certificate.json").read_text())["standing"]
        == "heuristic"
    )
    assert "Not for release" in ok(tacit("verify out.certificate")).out


def test_without_a_seed_runs_differ(tacit: Tacit, folder: Path) -> None:
    for name in ("one", "two"):
        ok(tacit(PLAIN + f"-o {name}.jsonl"))
    assert (folder / "one.jsonl").read_text() != (folder / "two.jsonl").read_text()


def test_a_vocabulary_from_the_corpus_is_recorded_as_a_leak(tacit: Tacit, folder: Path) -> None:
    """The standing and the sentence that the same leak has in training."""
    from tacit.privacy.certificates.certificate import LEAKS

    done = ok(tacit(PLAIN + "--vocabulary-from-corpus -o out.jsonl"))
    assert "Leak" in done.err
    assert " ".join(done.out.split()).startswith(LEAKS)
    fields = json.loads((folder / "out.certificate" / "certificate.json").read_text())
    assert fields["standing"] == "heuristic"
    assert fields["sentence"].startswith(LEAKS)
    assert "taken from the private text" in fields["not_covered"][0]
    assert fields["epsilon_per_distance"] == "infinity"
    ok(tacit("verify out.certificate"))
    known = " ".join(row["text"].lower().replace(",", " , ").replace("-", " ") for row in ROWS)
    found = " ".join(row["text"] for row in lines(folder / "out.jsonl"))
    assert set(found.split()) <= {*known.split(), "-", "1", "4", "7"}


def test_a_public_vocabulary(tacit: Tacit, folder: Path) -> None:
    (folder / "words.txt").write_text("order\nlate\nthanks\n")
    ok(tacit(PLAIN + "--vocabulary words.txt -o out.jsonl"))
    assert set(" ".join(r["text"] for r in lines(folder / "out.jsonl")).split()) <= {
        "order", "late", "thanks",
    }  # fmt: skip


@pytest.mark.parametrize("method", ["random", "santext --epsilon-per-distance 0"])
def test_kept_words_take_every_promise(tacit: Tacit, folder: Path, method: str) -> None:
    """No promise of nothing left while words stand as they were."""
    done = ok(tacit(f"sanitize c.jsonl --method {method} --unknown keep -o out.jsonl"))
    assert "Quetzal" in SECRET
    assert "Quetzal" in (folder / "out.jsonl").read_text()
    assert "unprotected" in done.err
    assert " ".join(done.out.split()).startswith("Nothing is promised for what is released")
    fields = json.loads((folder / "out.certificate" / "certificate.json").read_text())
    assert fields["standing"] == "heuristic"
    assert fields["epsilon_per_distance"] == "infinity"
    assert "AS THEY WERE" in fields["not_covered"][0]
    assert "AS THEY WERE" in (folder / "out.certificate" / "certificate.md").read_text()
    ok(tacit("verify out.certificate"))
    shown = ok(tacit(f"sanitize c.jsonl --method {method} --unknown keep -o o2.jsonl --json")).json
    assert shown["epsilon_per_distance"] == "infinity"
    assert shown["standing"] == "heuristic"


DIALOG = [f"please tell me number {n} of the {w} order in the book" for n in range(40)
          for w in ("first", "last")]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("copy.jsonl", None, "is the private corpus itself"),
        ("lines.txt", "\n".join(DIALOG[::-1]), "holds private text"),
        ("one.txt", ". ".join(d.upper() for d in DIALOG), "holds private text"),
        ("some.txt", "a text of somebody else altogether\n" * 3 + DIALOG[7], "overlaps with"),
    ],
)
def test_public_text_that_is_private_is_refused(
    tacit: Tacit, folder: Path, name: str, content: str | None, says: str
) -> None:
    """Where sensitive words are looked for in public text, and however that is written down."""
    own = "".join(json.dumps({"id": str(n), "text": t}) + "\n" for n, t in enumerate(DIALOG))
    (folder / "own.jsonl").write_text(own)
    (folder / name).write_text(own if content is None else content)
    before = contents(folder)
    line = "sanitize own.jsonl --method santext+ --epsilon-per-distance 1 -o out.jsonl "
    done = tacit(line + f"--sensitive-share 0.5 --sensitive-in {name}")
    assert done.code == 4
    assert f"--sensitive-in {name} {says}" in " ".join(done.err.split())
    assert contents(folder) == before
    if content is not None:
        (folder / "other.txt").write_text("Anna went from Paris to London with somebody else.\n")
        ok(tacit(line + "--sensitive-share 0.5 --sensitive-in other.txt"))
        said = json.loads((folder / "out.certificate" / "certificate.json").read_text())
        found = {one["name"]: one for one in said["public"]}
        digest = hashlib.sha256((folder / "other.txt").read_bytes()).hexdigest()
        assert found["other.txt"]["sha256"] == digest
        assert "no more than 1 %" in found["other.txt"]["checked"]
        assert any("other.txt" in line for line in said["assumptions"])


@pytest.mark.parametrize("option", ["vocabulary", "frequencies", "sensitive-words", "embeddings"])
def test_a_list_of_the_private_words_is_refused_where_a_public_one_is_asked_for(
    tacit: Tacit, folder: Path, option: str
) -> None:
    words = sorted({w.strip(",").lower() for row in ROWS for w in row["text"].split()} | {","})
    if option == "embeddings":
        vectors = np.random.default_rng(0).standard_normal((len(words), 5))
        np.savez(folder / "counted.npz", words=np.array(words), vectors=vectors)
        name = "counted.npz"
    else:
        (folder / "counted.txt").write_text("\n".join(words) + "\n")
        name = "counted.txt"
    before = contents(folder)
    more = {"frequencies": "--method santext+ --sensitive-share .5",
            "sensitive-words": "--method santext+"}.get(option, "")  # fmt: skip
    done = tacit(PLAIN + f"--{option} {name} {more} -o out.jsonl")
    assert done.code == 4
    assert "the words of the private text" in " ".join(done.err.split())
    assert contents(folder) == before


def test_profile(tacit: Tacit, folder: Path) -> None:
    done = ok(tacit("sanitize c.jsonl --profile --epsilon-per-distance 1,3 --plot p.png --json"))
    first, second = done.json["profile"]
    assert first["stay rate N_x"]["50%"] < second["stay rate N_x"]["50%"]
    assert first["words from one, S_x"]["50%"] > second["words from one, S_x"]["50%"]
    assert (folder / "p.png").read_bytes().startswith(b"\x89PNG")
    assert {p.name for p in folder.iterdir()} == {"c.jsonl", "names.txt", "p.png"}
    shown = ok(tacit("sanitize c.jsonl --profile --epsilon-per-distance 1,3 --samples 1"))
    assert "epsilon 3" in shown.out
    assert "keep them inside" in shown.err


BAD = [
    ("sanitize c.jsonl --epsilon-per-distance -1 -o out.jsonl", 2, "epsilon_per_distance=-1"),
    ("sanitize c.jsonl --epsilon-per-distance nan -o out.jsonl", 2, "epsilon_per_distance=nan"),
    ("sanitize c.jsonl --epsilon-per-distance two -o out.jsonl", 2, "give a number"),
    ("sanitize c.jsonl -o out.jsonl", 2, "needs epsilon_per_distance"),
    ("sanitize c.jsonl --epsilon-per-distance 1,2 -o out.jsonl", 2, "go with --profile"),
    ("sanitize c.jsonl --epsilon-per-distance 1", 2, "Give -o FILE"),
    ("sanitize c.jsonl --profile -o out.jsonl --epsilon-per-distance 1", 2, "Give -o FILE"),
    ("sanitize c.jsonl --profile", 2, "needs --epsilon-per-distance"),
    ("sanitize c.jsonl --profile --epsilon-per-distance 1 --plot p.doc", 2, "p.doc"),
    ("sanitize c.jsonl --plot p.png --epsilon-per-distance 1 -o out.jsonl", 2, "goes with"),
    ("sanitize c.jsonl --method shout -o out.jsonl", 2, "method 'shout'"),
    ("sanitize c.jsonl --method redact --epsilon-per-distance 1 -o out.jsonl", 2, "no epsilon"),
    ("sanitize c.jsonl --epsilon-per-distance 1 --unknown hide -o out.jsonl", 2, "unknown=hide"),
    ("sanitize c.jsonl --method redact --unknown keep -o out.jsonl", 2, "--unknown does not go"),
    ("sanitize c.jsonl --method mask --vocabulary names.txt -o out.jsonl", 2, "--vocabulary does"),
    ("sanitize c.jsonl --method random --kinds PII -o out.jsonl", 2, "--kinds does not go"),
    ("sanitize c.jsonl --epsilon-per-distance 1 -o out.doc", 2, "out.doc"),
    ("sanitize c.jsonl --epsilon-per-distance 1 --drop text -o out.jsonl", 2, "--drop text"),
    ("sanitize c.jsonl --epsilon-per-distance 1 --sensitive-share 0.5 -o out.jsonl", 2, "santext+"),
    ("sanitize c.jsonl --epsilon-per-distance 1 --embeddings nan.npz -o out.jsonl", 3, "NaN"),
    ("sanitize c.jsonl --epsilon-per-distance 1 --embeddings no.npz -o out.jsonl", 3, "no.npz"),
    ("sanitize c.jsonl --epsilon-per-distance 1 --vocabulary twice.txt -o out.jsonl", 3, "lines 1"),
    ("sanitize c.jsonl --epsilon-per-distance 1 --embeddings ragged.txt -o out.jsonl", 3, "line 2"),
    ("sanitize c.jsonl --epsilon-per-distance 1 --embeddings ragged.npz -o out.jsonl", 3, "each"),
    ("sanitize c.jsonl --epsilon-per-distance 1 --embeddings empty.npz -o out.jsonl", 3, "0 words"),
    ("sanitize c.jsonl --epsilon-per-distance 1 --vocabulary empty.txt -o out.jsonl", 3, "no word"),
    ("sanitize c.jsonl --epsilon-per-distance 1 --vocabulary odd.txt -o out.jsonl", 3, "least two"),
    (
        "sanitize c.jsonl --method santext+ --epsilon-per-distance 1 --sensitive-words twice.txt "
        "-o out.jsonl",
        3,
        "lines 1 and 2",
    ),
    (
        "sanitize c.jsonl --method santext+ --epsilon-per-distance 1 --sensitive-in c.jsonl "
        "-o out.jsonl",
        4,
        "private corpus itself",
    ),
    ("sanitize c.jsonl --epsilon-per-distance 1 --vocabulary c.jsonl -o out.jsonl", 4, "private"),
    ("sanitize broken.jsonl --epsilon-per-distance 1 -o out.jsonl", 3, "line 4"),
    ("sanitize nothing.jsonl --epsilon-per-distance 1 -o out.jsonl", 3, "does not exist"),
    ("sanitize empty.jsonl --epsilon-per-distance 1 -o out.jsonl", 3, "empty"),
    ("sanitize c.jsonl --epsilon-per-distance 1 -o there.jsonl", 2, "there.jsonl exists"),
    ("sanitize c.jsonl --epsilon-per-distance 1 -o half.jsonl", 2, "half.certificate exists"),
]


@pytest.mark.parametrize(("command", "code", "says"), BAD, ids=[b[0][9:60] for b in BAD])
def test_bad_input_is_one_sentence_and_leaves_nothing(
    tacit: Tacit, folder: Path, command: str, code: int, says: str
) -> None:
    np.savez(
        folder / "nan.npz", words=np.array(["a", "b"]), vectors=np.array([[0, np.nan], [1, 2]])
    )
    (folder / "twice.txt").write_text("order\norder\n")
    np.savez(folder / "ragged.npz", words=np.array(["a", "b"]), vectors=np.ones((3, 2)))
    np.savez(folder / "empty.npz", words=np.array([], dtype="U1"), vectors=np.ones((0, 2)))
    (folder / "ragged.txt").write_text("a 1 2 3\nb 1 2\n")
    (folder / "empty.txt").write_text("# nothing\n")
    (folder / "odd.txt").write_text("order\nzzzzz\n")
    (folder / "broken.jsonl").write_text((folder / "c.jsonl").read_text() + f"{{{SECRET}\n")
    (folder / "empty.jsonl").write_text("\n")
    (folder / "there.jsonl").write_text("precious\n")
    (folder / "half.certificate").mkdir()
    before = contents(folder)
    done = tacit(command)
    assert done.code == code, done.err
    assert says in done.err
    assert SECRET not in done.err + done.out
    assert "Traceback" not in done.err
    assert contents(folder) == before


def test_overwrite_replaces_both(tacit: Tacit, folder: Path) -> None:
    ok(tacit(PLAIN + "-o out.jsonl"))
    ok(tacit("sanitize c.jsonl --method random -o out.jsonl --overwrite"))
    ok(tacit("verify out.certificate"))
    fields = json.loads((folder / "out.certificate" / "certificate.json").read_text())
    assert fields["mechanism"] == "random"


def test_in_the_currency_of_training_it_costs_infinity(tacit: Tacit, folder: Path) -> None:
    ok(tacit(PLAIN + "-o out.jsonl"))
    (found,) = ok(tacit("spent out.certificate --json")).json["accounts"]
    assert set(found["epsilon"].values()) == {"infinity"}


def test_the_commands_as_written(tacit: Tacit, folder: Path) -> None:
    """On stand-ins of the same form: a table of sentences, vectors, dialogs, names."""
    (folder / "sst2").mkdir()
    (folder / "sst2" / "train.tsv").write_text(
        "sentence\tlabel\nhide new units from the order \t0\ncontains no wit , only thanks \t1\n"
    )
    rng = np.random.default_rng(0)
    words = np.array(["hide", "new", "from", "the", "no", ",", "only", "order", "contains"])
    np.savez("glove_100d_top40k.npz", words=words, vectors=rng.standard_normal((9, 100)))
    for line in (
        "sanitize sst2/train.tsv --method santext --epsilon-per-distance 2 --embeddings "
        "glove_100d_top40k.npz -o out.jsonl",
        "sanitize c.jsonl --method santext+ --epsilon-per-distance 2 --replace-plain-rate 0.3 "
        "--sensitive-words names.txt -o outp.jsonl",
        "sanitize sst2/train.tsv --profile --epsilon-per-distance 1,2,3 --plot profile.png",
    ):
        ok(tacit(line))
    assert len(lines(folder / "out.jsonl")) == 2
    for name in ("out", "outp"):
        ok(tacit(f"verify {name}.certificate"))


def test_the_real_sst2(tacit: Tacit, folder: Path, data_dir: Path) -> None:
    source = data_dir / "sst2" / "dev.tsv"
    glove = data_dir / "glove100d" / "glove_100d_top40k.npz"
    ok(tacit("sanitize", source, "--epsilon-per-distance", 2, "--embeddings", glove, "-o", "o.csv"))
    ok(tacit("verify o.certificate"))
    shutil.copy(source, folder / "dev.tsv")


RUN = """
corpus: c.jsonl
method: plain
task: classification
steps: 2
batch: 2
model: {kind: lstm, config: {hidden_size: 8, embedding_size: 8}}
tokenizer: {size: 300}
seed: 1
"""


def test_a_query_is_sanitized_before_the_model_sees_it(tacit: Tacit, folder: Path) -> None:
    pytest.importorskip("torch")
    (folder / "run.yml").write_text(RUN)
    ok(tacit("train run.yml -o RUN"))
    plain = ok(tacit("predict RUN", "my order is late", "--json")).json
    assert "sanitized" not in plain
    asked = ("predict RUN", f"my order is late, {SECRET}", "--json", "--sanitize")
    found = ok(tacit(*asked, "santext", "--epsilon-per-distance", 2)).json
    assert len(found["sanitized"].split()) >= 5
    assert SECRET not in json.dumps(found)
    assert found["class"] in ("x", "y")
    # The answer is the one to the sanitized text.
    again = ok(tacit("predict RUN", found["sanitized"], "--json")).json
    assert again["probabilities"] == found["probabilities"]
    assert (
        ok(tacit("predict RUN", "to ann@example.org", "--json", "--sanitize", "redact")).json[
            "sanitized"
        ]
        == "to [PII/EMAIL]"
    )
    assert "needs epsilon" in tacit(*asked, "santext").err
    assert tacit(*asked, "magic").code == 2
    assert tacit("predict RUN x --epsilon-per-distance 2").code == 2


def test_generated_dialogs(tacit: Tacit, folder: Path) -> None:
    ok(tacit("corpus generate customersim --dialogs 20 --seed 5 -o dialogs.jsonl"))
    ok(tacit("sanitize dialogs.jsonl --epsilon-per-distance 3 -o out.parquet --drop user"))
    assert pq.read_table(folder / "out.parquet").column_names == [
        "id", "text", "label", "split",
    ]  # fmt: skip
    ok(tacit("verify out.certificate"))
