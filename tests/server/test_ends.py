"""The two ends of the work, as people use them: the tour, and the commands."""

import json
import re
from pathlib import Path

import pytest

from support.forking import run_python
from support.living import Living
from tacit.cli import run
from tacit.corpora import customersim
from tacit.corpus.writing import write
from tacit.verification.runs import verify

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_the_tour(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    kind: str,
) -> None:
    """From `tacit serve` to a downloaded, verified model, and once more by the commands."""
    if kind == "postgresql":
        monkeypatch.setenv("TACIT_DATABASE", request.getfixturevalue("postgres")())
    done = run_python(str(ROOT / "examples/client_tour.py"), str(tmp_path))
    assert done.returncode == 0, done.stderr
    printed = done.stdout
    assert re.search(r"step 4 of 4: epsilon <= (7\.9\d*|8) of 8", printed)
    assert "the downloaded certificate: everything matches" in printed
    said = [line.partition(": ")[2] for line in printed.splitlines() if "the server: " in line]
    assert said[0].partition(", warning")[0] == said[1], "the same answer with and without"
    assert "warning: None" in said[0]
    assert [check for check in verify(tmp_path / "model") if not check.ok] == []


def test_contribute_and_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    living = Living(tmp_path / "server")
    try:
        with living.client() as admin:
            dataset = admin.add_dataset("dialogs")["id"]
            account = admin.add_account("ann", "contributor")
            token = admin.add_token(account["id"])
            write(customersim.generate(12, 1), tmp_path / "many.jsonl")
            (tmp_path / "mine.txt").write_text("one line\nanother line\n")
            there = ["--dataset", "dialogs", "--server", living.address, "--json"]
            for _ in range(2):  # the same file again is not stored again
                code = run(["contribute", str(tmp_path / "mine.txt"), *there, "--token", token])
                assert code == 0
                assert json.loads(capsys.readouterr().out)["records"] == 2
            sanitized = ["--sanitize", "santext", "--epsilon-per-distance", "1", "--key", "s"]
            words = [str(tmp_path / "mine.txt"), *there, *sanitized, "--token", token]
            assert run(["contribute", *words]) == 0
            mine = [row["text"] for row in admin.my_records(dataset)]
            assert len(mine) == 4
            assert mine.count("one line") == 1, "what was sanitized is not what was written"
            assert run(["contribute", str(tmp_path / "many.jsonl"), *there]) == 2
            assert "TACIT_TOKEN" in capsys.readouterr().err
            # Somebody else's users are not a contributor's to name.
            words = [str(tmp_path / "many.jsonl"), *there, "--token", token]
            assert run(["contribute", *words]) == 2
            assert "another user" in capsys.readouterr().err
            assert run(["pull", "none", "--server", living.address, "--token", token]) == 1
            assert "does not allow" in capsys.readouterr().err
    finally:
        living.stop()
