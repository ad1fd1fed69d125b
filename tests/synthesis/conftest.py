"""A private corpus, public texts to choose from, and settings that fit both."""

from pathlib import Path
from typing import Any

import pytest

from tacit.corpora import customersim
from tacit.corpus import Corpus
from tacit.corpus.writing import write

PUBLIC = [
    f"{what} {thing} {end}"
    for what in ("My", "The new", "Where is my", "Somebody took the")
    for thing in ("lamp", "parcel", "phone", "invoice", "order")
    for end in ("came too late.", "is broken again, and I want my money back.")
]


def private_corpus(path: Path, users: int = 40) -> Path:
    """Two notes of each user, each with a name in it."""
    notes = [
        {
            "id": f"{user}-{number}", "user": f"u{user:03d}", "label": ("late", "broken")[number],
            "text": f"{name} says the {('parcel', 'lamp')[number]} number {user} is {said}.",
        }
        for user in range(users)
        for number, (name, said) in enumerate(
            (("Ann Bell", "late"), ("Bo Cole", "broken since they unpacked it at home"))
        )
    ]  # fmt: skip
    write(Corpus.from_records(notes), path)
    return path


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Any]:
    """Settings of a corpus that is chosen from given texts, with noise of a fixed seed."""
    public = tmp_path / "public.jsonl"
    write(Corpus.from_records([{"id": str(n), "text": t} for n, t in enumerate(PUBLIC)]), public)
    return {
        "corpus": str(private_corpus(tmp_path / "private.jsonl")),
        "generator": str(public),
        "labels": ("late", "broken"),
        "texts": 10,
        "seed": 1,
        "plan": {"protect": "users", "epsilon": 8, "users": 40},
    }


@pytest.fixture(scope="session")
def dialogs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dialogs of fifty customers."""
    path = tmp_path_factory.mktemp("dialogs") / "dialogs.jsonl"
    write(customersim.generate(60, users=50, seed=5), path)
    return path
