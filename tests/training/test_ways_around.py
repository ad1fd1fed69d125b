"""Ways around a true certificate that an ordinary user has: files, settings, the order of commands.

Each is refused, or takes the standing `proved` with it.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tacit.corpora import customersim
from tacit.corpus import Corpus
from tacit.detecting import detect
from tacit.detecting.mentions import write_lines
from tacit.errors import DataError, PrivacyRefused, UsageError
from tacit.privacy.certificate import Finding, amend, read_certificate
from tacit.privacy.manifest import file_digest
from tacit.training import runs
from tacit.training.loop import Progress
from tacit.training.settings import Run
from tacit.verifying import verify
from tacit.writing import write

SMALL = {"kind": "lstm", "config": {"embedding_size": 8, "hidden_size": 8, "layers": 1}}
USERS = {"protect": "users", "epsilon": 4, "steps": 1, "user_rate": 0.5, "users": 50}
BOTH = {"protect": "users+entities", "epsilon": 8, "steps": 1, "user_rate": 0.5}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write(customersim.generate(60, 3), folder / "c.jsonl")
    return folder


@pytest.fixture(scope="module")
def first(data: Path) -> Path:
    runs.train(Run(**base(data), plan=USERS), data / "first")
    return data / "first"


@pytest.fixture
def copied(first: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(first, tmp_path / "copied"))


def base(data: Path, **fields: Any) -> dict[str, Any]:
    return {"corpus": str(data / "c.jsonl"), "model": SMALL, "tokenizer": {"size": 300},
            "context": 16} | fields  # fmt: skip


# --- tokenizers ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def counted(data: Path) -> Path:
    words = {"kind": "words", "min_count": 1}
    runs.train(Run(**base(data, tokenizer=words), plan=USERS), data / "counted")
    return data / "counted"


def test_a_counted_vocabulary_is_known_wherever_it_was_copied(
    data: Path, counted: Path, tmp_path: Path
) -> None:
    place = tmp_path / "tokenizer"
    place.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(counted / name, place)
    given = {"kind": "folder", "folder": str(place)}
    done = runs.train(Run(**base(data, tokenizer=given), plan=USERS), tmp_path / "run")
    assert done.certificate.standing == "heuristic"
    assert "counted from the private text" in done.certificate.not_covered[0]
    assert not any("the tokenizer" in one.what for one in done.certificate.public)


def test_a_vocabulary_that_is_the_private_one_is_refused_without_its_mark(
    data: Path, counted: Path, tmp_path: Path
) -> None:
    place = tmp_path / "tokenizer"
    place.mkdir()
    shutil.copy(counted / "tokenizer.json", place)
    fields = json.loads((counted / "tokenizer_config.json").read_text())
    del fields["counted_from_private_text"]
    (place / "tokenizer_config.json").write_text(json.dumps(fields))
    given = {"kind": "folder", "folder": str(place)}
    with pytest.raises(PrivacyRefused, match="words of the private text"):
        runs.train(Run(**base(data, tokenizer=given), plan=USERS), tmp_path / "run")


def test_a_tokenizer_comes_from_one_place(data: Path, first: Path) -> None:
    # With a folder beside it, the public text was used and compared with nothing.
    given = {"kind": "words", "folder": str(first), "public_text": str(data / "c.jsonl")}
    model = {"kind": "folder", "folder": str(first), "carry_ledger": True}
    with pytest.raises(UsageError, match=r"tokenizer\.folder goes with"):
        Run(**base(data, model=model, tokenizer=given), plan=USERS)
