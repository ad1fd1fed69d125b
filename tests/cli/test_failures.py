"""What goes wrong goes wrong well: one sentence, an exit code, nothing half-written, no text."""

import errno
import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.driving import SECRET, Tacit, contents
from tacit import cli

GOOD = "".join(
    json.dumps({"id": str(i), "user": f"u{i % 3}", "text": f"{SECRET} wrote a{i}@example.org"})
    + "\n"
    for i in range(6)
)
MARKED = json.dumps(
    {"id": "1", "user": "u", "text": SECRET, "spans": [{"start": 0, "end": 900, "kind": "PERSON"}]}
)


def row(**fields: object) -> str:
    return json.dumps({"text": SECRET, **fields}) + "\n"


BAD_CORPORA: dict[str, tuple[str, bytes]] = {
    "ragged CSV": ("bad.csv", f"user,text\na,{SECRET}\nb,{SECRET},too,many\n".encode()),
    "open quote": ("bad.csv", f'user,text\na,"{SECRET}\n'.encode()),
    "wrong encoding": ("bad.csv", f"user,text\na,{SECRET} caf\xe9\n".encode("latin-1")),
    "no text column": ("bad.csv", f"user,what\na,{SECRET}\n".encode()),
    "missing header": ("bad.csv", f"{SECRET},ann\n{SECRET},bob\n".encode()),
    "not JSON": ("bad.jsonl", f"{row()}{{{SECRET}\n".encode()),
    "not an object": ("bad.jsonl", f'"{SECRET}"\n'.encode()),
    "text is a list": ("bad.jsonl", row(text=[SECRET]).encode()),
    "NUL byte": ("bad.jsonl", row().encode() + b'{"text": "\0' + SECRET.encode() + b'"}\n'),
    "duplicate ids": ("bad.jsonl", (row(id="7") + row(id="7")).encode()),
    "span outside": ("bad.jsonl", MARKED.encode()),
    "not Parquet": ("bad.parquet", SECRET.encode() * 50),
    "torn gzip": ("bad.jsonl.gz", gzip.compress(GOOD.encode())[:-20]),
    "ragged CoNLL": ("bad.conll", f"{SECRET} NNP B-NP B-PER\n{SECRET}\n\n".encode()),
    "empty": ("bad.jsonl", b""),
    "empty text": ("bad.txt", b"\n\n"),
    "long line": ("bad.jsonl", b'{"text": "' + SECRET.encode() * 5_000_000 + b'"}\n'),
}


@pytest.mark.parametrize("name", BAD_CORPORA)
def test_bad_corpora(tacit: Tacit, tmp_path: Path, name: str) -> None:
    file, data = BAD_CORPORA[name]
    (tmp_path / file).write_bytes(data)
    before = contents(tmp_path)
    for command in (
        f"corpus describe {tmp_path / file}",
        f"corpus describe {tmp_path / file} --json",
        f"corpus convert {tmp_path / file} -o {tmp_path / 'out.jsonl'}",
        f"detect {tmp_path / file} -o {tmp_path / 'mentions.jsonl'}",
    ):
        found = tacit(command)
        assert (found.code, found.out) == (3, ""), command
        assert found.err.startswith("Error: ")
        assert len(found.err.splitlines()) == 1
        assert file in found.err
        assert SECRET not in found.err
        assert contents(tmp_path) == before


@pytest.fixture
def folder(tmp_path: Path, made: Path) -> Path:
    """A folder with a good corpus, its mentions, and some things that are wrong."""
    (tmp_path / "good.jsonl").write_text(GOOD)
    (tmp_path / "anonymous.jsonl").write_text(row() + row())
    (tmp_path / "is-a-file").write_text("x")
    (tmp_path / "owners.json").write_bytes((made / "owners.json").read_bytes())
    mention = {
        "record": "0", "start": 0, "end": 5, "kind": "PERSON", "entity": "e1",
        "score": 1.0, "why": "given: PERSON",
    }  # fmt: skip
    for name, change in {
        "mentions": {}, "outside": {"end": 9000}, "stranger": {"record": "99"}, "odd": {"x": 1},
    }.items():  # fmt: skip
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(mention | change) + "\n")
    (tmp_path / "garbage.jsonl").write_text(SECRET)
    (tmp_path / "aliases.yml").write_text(f"PERSON: {SECRET}\n")
    (tmp_path / "terms.txt").write_text(f"# kind: NOBODY\n{SECRET}\n")
    return tmp_path


OWNERS = "owners good.jsonl --mentions"
USAGE, DATA, REFUSED = 2, 3, 4

FAILURES = [
    # What is not there, or not known.
    ("corpus describe none.jsonl", DATA, "none.jsonl"),
    ("corpus describe good.jsonl --format docx", USAGE, "docx"),
    ("corpus describe good.jsonl --encoding klingon", USAGE, "klingon"),
    ("corpus describe good.jsonl --user nobody", DATA, "nobody"),
    ("corpus describe good.jsonl --column nothing=user", USAGE, "nothing"),
    ("corpus describe good.jsonl --column user", USAGE, "OURS=THEIRS"),
    ("corpus describe good.jsonl --split winter", DATA, "split"),
    ("corpus describe is-a-file", USAGE, "--format"),
    ("corpus describe conll2003", USAGE, "--data"),
    ("corpus describe conll2003 --data .", DATA, "train.txt"),
    ("corpus generate novels -o n.jsonl", USAGE, "customersim"),
    ("corpus generate customersim --dialogs 0 -o n.jsonl", USAGE, "dialogs=0"),
    ("corpus generate customersim --dialogs 3 -o n.csv", USAGE, ".parquet"),
    ("corpus convert good.jsonl -o n.docx", USAGE, ".parquet"),
    ("corpus convert good.jsonl -o n.jsonl --drop nothing", USAGE, "nothing"),
    ("corpus convert good.jsonl -o n.jsonl --min-count 2", USAGE, "--as-in-papers"),
    ("corpus convert good.jsonl -o is-a-file/n.jsonl", DATA, "is-a-file"),
    ("detect good.jsonl --with oracle -o n.jsonl", USAGE, "oracle"),
    ("detect good.jsonl --with patterns=oracle -o n.jsonl", USAGE, "oracle"),
    ("detect good.jsonl --with tagger=oracle -o n.jsonl", DATA, "oracle"),
    ("detect good.jsonl --with lists=none.txt -o n.jsonl", DATA, "none.txt"),
    ("detect good.jsonl --with lists=terms.txt -o n.jsonl", DATA, "terms.txt"),
    ("detect good.jsonl --with spacy=oracle -o n.jsonl", USAGE, "oracle"),
    ("detect good.jsonl --kinds GHOST -o n.jsonl", USAGE, "GHOST"),
    ("detect good.jsonl --score --by moon -o n.jsonl", USAGE, "moon"),
    ("detect good.jsonl --score -o n.jsonl", DATA, "gold labels"),
    ("detect good.jsonl --aliases none.yml -o n.jsonl", DATA, "none.yml"),
    ("detect good.jsonl --aliases aliases.yml -o n.jsonl", DATA, "aliases.yml"),
    ("detect good.jsonl --minimum-score 7 -o n.jsonl", USAGE, "--minimum-score"),
    ("detect good.jsonl -o n.html", USAGE, ".jsonl"),
    ("detect train good.jsonl -o n", DATA, "spans"),
    ("detect train good.jsonl -o n --held-out 2", USAGE, "held_out"),
    (f"{OWNERS} none.jsonl -o n.json", DATA, "none.jsonl"),
    (f"{OWNERS} garbage.jsonl -o n.json", DATA, "garbage.jsonl"),
    (f"{OWNERS} odd.jsonl -o n.json", DATA, "odd.jsonl, line 1"),
    (f"{OWNERS} outside.jsonl -o n.json", DATA, "outside.jsonl, line 1"),
    (f"{OWNERS} stranger.jsonl -o n.json", DATA, "stranger.jsonl, line 1"),
    (f"{OWNERS} mentions.jsonl --entities none.jsonl -o n.json", DATA, "none.jsonl"),
    (f"{OWNERS} mentions.jsonl --kinds GHOST -o n.json", USAGE, "GHOST"),
    (f"{OWNERS} mentions.jsonl --caps 1,x -o n.json", USAGE, "--caps"),
    (f"{OWNERS} mentions.jsonl --plot n.gif -o n.json", USAGE, "n.gif"),
    (f"{OWNERS} mentions.jsonl --plot n.html -o n.html", USAGE, "two names"),
    ("owners anonymous.jsonl --mentions mentions.jsonl -o n.json", DATA, "user"),
    ("plan good.jsonl -o n.yml", USAGE, "--protect users"),
    ("plan --set protect=users --owners good.jsonl -o n.yml", USAGE, "epsilon"),
    ("price --protect users --user-rate 2 --noise-multiplier 1 --steps 1", USAGE, "rate"),
    ("verify none", DATA, "certificate.json"),
    ("verify is-a-file", DATA, "certificate.json"),
    ("spent none", DATA, "none"),
    ("spent .", DATA, "ledger"),
    ("spent garbage.jsonl", DATA, "garbage.jsonl"),
    # What the parser refuses.
    ("novel", USAGE, "novel"),
    ("corpus novel", USAGE, "novel"),
    ("corpus describe", USAGE, "CORPUS"),
    ("corpus describe good.jsonl --novel", USAGE, "--novel"),
    ("owners good.jsonl", USAGE, "--mentions"),
    ("corpus convert good.jsonl", USAGE, "--out"),
    ("price --steps many", USAGE, "--steps"),
]


@pytest.mark.parametrize(("command", "code", "words"), FAILURES, ids=[f[0] for f in FAILURES])
def test_failures(
    tacit: Tacit,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(folder)
    before = contents(folder)
    found = tacit(command)
    assert (found.code, found.out) == (code, "")
    assert words in found.err
    assert "Error: " in found.err
    assert SECRET not in found.err
    assert "Traceback" not in found.err
    assert contents(folder) == before


def test_a_folder_without_a_certificate_does_not_hold(tacit: Tacit, tmp_path: Path) -> None:
    found = tacit("verify", tmp_path)
    assert found.code == REFUSED
    # Never cut short, though a long path goes on in the next line.
    assert f"{tmp_path}/certificate.json" in "".join(found.out.split())


# --- nothing is replaced without asking -----------------------------------------------------

PLAN = "plan --set protect=users --set epsilon=3 --set steps=5 --set user_rate=0.1 --set users=100"
PRICE = "price --protect users --user-rate 0.1 --noise-multiplier 2 --steps 5"
WRITING = {
    "corpus generate customersim --dialogs 3 -o out.jsonl": ["out.jsonl"],
    "corpus convert good.jsonl -o out.parquet": ["out.parquet"],
    "detect good.jsonl -o out.jsonl": [
        "out.jsonl", "out.entities.jsonl", "out.summary.json", "out.html",
    ],
    f"{OWNERS} mentions.jsonl --plot out.svg -o out.json": ["out.svg", "out.json"],
    f"{PLAN} -o out.yml": ["out.yml"],
    f"{PRICE} --no-curves --plot out.png": ["out.png"],
}  # fmt: skip


@pytest.mark.parametrize("command", WRITING)
def test_nothing_is_replaced_without_asking(
    tacit: Tacit, folder: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(folder)
    for there in WRITING[command]:
        (folder / there).write_text("mine")
        before = contents(folder)
        found = tacit(command)
        assert (found.code, found.out) == (USAGE, "")
        assert there in found.err
        assert "--overwrite" in found.err
        assert contents(folder) == before
        (folder / there).unlink()
    (folder / WRITING[command][-1]).write_text("mine")
    assert tacit(command, "--overwrite").code == 0
    assert all((folder / file).read_bytes() != b"mine" for file in WRITING[command])
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_tagger_is_not_replaced_without_asking(tacit: Tacit, made: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("mine")
    before = contents(tmp_path)
    for options in ([], ["--overwrite"]):
        found = tacit("detect train", made / "c.jsonl", "-o", tmp_path / "folder", *options)
        assert found.code == USAGE
        assert contents(tmp_path) == before


def test_a_folder_is_never_replaced_by_a_file(tacit: Tacit, folder: Path) -> None:
    (folder / "out.jsonl").mkdir()
    found = tacit(
        "corpus convert", folder / "good.jsonl", "-o", folder / "out.jsonl", "--overwrite"
    )
    assert found.code == USAGE
    assert (folder / "out.jsonl").is_dir()


# --- a failure in the middle ------------------------------------------------------------------


def fails(error: BaseException) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


FULL = OSError(errno.ENOSPC, "No space left on device", "somewhere")
MIDDLE = {
    "detect good.jsonl -o out.jsonl": "tacit.detection.saving.write_page",
    f"{OWNERS} mentions.jsonl --plot out.svg -o out.json": "tacit.owners.Owners.save",
    "corpus convert good.jsonl -o out.jsonl": "os.replace",
    "corpus generate customersim --dialogs 3 -o out.jsonl": "os.replace",
    f"{PLAN} -o out.yml": "os.replace",
}


@pytest.mark.parametrize("command", MIDDLE)
@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (FULL, DATA, "No space left on device"),
        (KeyboardInterrupt(), 130, "Stopped"),
        (ValueError(SECRET), 1, "Internal error (ValueError at tacit."),
    ],
    ids=["disk full", "interrupted", "bug"],
)
def test_nothing_half_written_is_left(
    tacit: Tacit,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    error: BaseException,
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(folder)
    before = contents(folder)
    if command.startswith("plan"):
        assert tacit(PLAN).code == 0  # so that prices are cached, which replaces files too
    with monkeypatch.context() as patched:
        patched.setattr(MIDDLE[command], fails(error))
        found = tacit(command)
    assert found.code == code
    assert words in found.err
    assert SECRET not in found.out + found.err
    assert "Traceback" not in found.err
    assert contents(folder) == before
    assert tacit(command).code == 0


def test_a_bug_shows_its_text_only_when_asked(
    tacit: Tacit, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tacit.corpus.description.describe", fails(ValueError(SECRET)))
    found = tacit("corpus describe", folder / "good.jsonl")
    assert (found.code, found.out) == (1, "")
    assert "TACIT_DEBUG=1" in found.err
    assert SECRET not in found.err
    monkeypatch.setenv("TACIT_DEBUG", "1")
    with pytest.raises(ValueError, match=SECRET):
        tacit("corpus describe", folder / "good.jsonl")


# --- real processes -----------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["corpus describe", "corpus describe --json", "detect list"])
def test_a_reader_that_has_seen_enough(folder: Path, command: str) -> None:
    words = command.split()
    if words[0] == "corpus":
        words.append(str(folder / "good.jsonl"))
    tacit = subprocess.Popen(
        [sys.executable, "-m", "tacit", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert tacit.stdout is not None
    assert tacit.stderr is not None
    tacit.stdout.close()  # before the first line, as `| true` does
    err = tacit.stderr.read().decode()
    assert tacit.wait() == 0
    assert "Traceback" not in err
    assert "BrokenPipe" not in err


def test_head(folder: Path) -> None:
    line = f"{sys.executable} -m tacit corpus describe {folder / 'good.jsonl'} --json | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "{\n")
    assert "Traceback" not in done.stderr


def test_control_c(folder: Path) -> None:
    """Interrupted while it reads from a pipe, whose opening tells when it has begun."""
    os.mkfifo(folder / "pipe.jsonl")
    before = sorted(path.name for path in folder.iterdir())
    tacit = subprocess.Popen(
        [sys.executable, "-m", "tacit", "corpus", "convert", "pipe.jsonl", "-o", "out.jsonl"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with (folder / "pipe.jsonl").open("w") as pipe:
        pipe.write(GOOD)
        pipe.flush()
        tacit.send_signal(signal.SIGINT)
        out, err = tacit.communicate()
    assert tacit.returncode == 130, err
    assert out == ""
    assert "Stopped" in err
    assert "Traceback" not in err
    assert SECRET not in err
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_terminal_that_knows_no_blocks(process: Tacit, made: Path) -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    shown = process("corpus describe", made / "c.jsonl", **ascii_only)
    assert shown.code == 0
    assert "####" in shown.out
    assert process("price --help", **ascii_only).code == 0


def test_json_survives_a_terminal_that_lacks_letters(process: Tacit, tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("user,text,label\na,b,Gruß\n", encoding="utf-8")
    found = process("corpus describe", tmp_path / "c.csv", "--json", PYTHONIOENCODING="ascii")
    assert found.json["labels"] == {"Gruß": 1}


def test_a_log_has_no_blank_lines(process: Tacit, folder: Path) -> None:
    done = process("corpus convert", folder / "good.jsonl", "-o", folder / "o.jsonl")
    assert done.err == f"6 records written to {folder / 'o.jsonl'}\n"


@pytest.mark.parametrize("error", [OSError("of a library"), RuntimeError("of a library")])
def test_an_interrupt_that_a_library_makes_its_own_error_of(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def app(**_: object) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise error from None

    monkeypatch.setattr(cli, "app", app)
    assert cli.run([]) == 130
    assert "Stopped" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
