"""Names through the whole program: the promise on paper, and neighbours that train alike."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tacit.audits.audit import audit_run
from tacit.errors import UsageError
from tacit.privacy.events import MentionSubstitution
from tacit.privacy.ledger import read_ledger
from tacit.training.phases import session
from tacit.training.phases.run_context import open_run
from tacit.training.settings import Run
from tacit.verification.runs import verify

PLAN: dict[str, Any] = {
    "protect": "users+names", "user_rate": 0.5, "users": 30, "epsilon": 9, "steps": 3,
    "noise_multiplier": 2.0,
}  # fmt: skip
SMALL: dict[str, Any] = {
    "task": "next-word",
    "detect": "patterns,lists={folder}/people.txt",
    "tokenizer": {"size": 400},
    "model": {"kind": "lstm", "config": {"embedding_size": 8, "hidden_size": 8, "layers": 1}},
    "context": 24,
    "seed": 5,
}
FIRST, SECOND = "Marguerite Delacroix-Pennyfeather", "Bo Li"
INVENTED = "Adam Abbott"
"""One of the invented names that come with the package, as is the address made of it."""


def corpus(folder: Path, name: str) -> Path:
    """Texts of thirty users, many of whom name one person and give an address of theirs."""
    folder.mkdir()
    (folder / "people.txt").write_text(
        f"# kind: PERSON\n{FIRST}\n{SECOND}\n{INVENTED}\nGerda Zimmermann\n", encoding="utf-8"
    )
    address = name.split()[0].lower() + "@somewhere.org"
    if name == INVENTED:
        address = "Adam.Abbott@example.org"
    with (folder / "texts.jsonl").open("w", encoding="utf-8") as out:
        for user in range(30):
            for number in range(1 + user % 3):
                told = name if (user + number) % 2 else "Gerda Zimmermann"
                text = f"{told} wrote to me about order {user}, and {told.upper()} never answered"
                text += " Gerda Zimmermann" if user % 3 == 0 else ""
                if user % 4 == 0:
                    text = f"mail {address} or " + text + " the letter that I sent in autumn " * 3
                row = {
                    "id": f"r{user}-{number}",
                    "user": f"u{user}",
                    "text": text,
                    "split": "train",
                }
                out.write(json.dumps(row) + "\n")
        held_out = {"id": "t", "user": "u99", "text": f"{FIRST} wrote to me", "split": "test"}
        out.write(json.dumps(held_out) + "\n")
    return folder / "texts.jsonl"


def run_on(folder: Path, name: str, **changes: Any) -> Run:
    """A small run on a corpus in which this name stands."""
    path = corpus(folder, name) if not folder.exists() else folder / "texts.jsonl"
    fields = json.loads(json.dumps(SMALL).replace("{folder}", str(folder)))
    return Run(**fields | {"corpus": str(path), "plan": PLAN} | changes)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    where = tmp_path_factory.mktemp("names")
    return where / "one", where / "other"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"plan": PLAN | {"select": "best", "epsilon": 30}},
        {"method": "dp-fedavg", "dp-fedavg": {"local_steps": 2, "local_batch": 2}},
    ],
    ids=["private", "best", "fedavg"],
)
def test_another_name_trains_the_very_same_model(
    pair: tuple[Path, Path], tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Real detectors, tokenizer, truncation, padding and batches, and the name is longer."""
    made = []
    for folder, name in zip(pair, (FIRST, SECOND), strict=True):
        trained = session.train(run_on(folder, name, **changes), tmp_path / folder.name)
        made.append(load_file(trained.folder / "model.safetensors"))
    assert made[0].keys() == made[1].keys()
    assert all(bool((made[0][key] == made[1][key]).all()) for key in made[0])


def test_where_names_are_not_protected_the_same_names_differ(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """The planted bug: text as it was written. Else the test above would show nothing."""
    plan = PLAN | {"protect": "users"}
    made = [
        load_file(
            session.train(run_on(folder, name, plan=plan), tmp_path / folder.name).folder
            / "model.safetensors"
        )
        for folder, name in zip(pair, (FIRST, SECOND), strict=True)
    ]
    assert not all(bool((made[0][key] == made[1][key]).all()) for key in made[0])


def test_the_certificate_says_names_and_verifies(pair: tuple[Path, Path], tmp_path: Path) -> None:
    run = run_on(pair[0], FIRST, seed=None)
    trained = session.train(run, tmp_path / "run")
    certificate = trained.certificate
    assert certificate.standing == "proved"
    assert certificate.protect == "users+names"
    assert certificate.costs["names"].epsilon == 0
    assert certificate.costs["users"].epsilon == certificate.costs["users+names"].epsilon
    assert certificate.costs["users+names"].adjacency == "substitute"
    assert "replaced by invented names" in certificate.sentence
    assert "patterns" in certificate.sentence
    assert [check.what for check in verify(trained.folder) if not check.ok] == []
    (event,) = read_ledger(trained.folder / "ledger.jsonl").releases()
    assert isinstance(event, MentionSubstitution)
    page = (trained.folder / "certificate.md").read_text(encoding="utf-8")
    assert "This is not anonymisation" in page
    for name in (FIRST, SECOND, "Zimmermann"):
        assert name not in page


def test_no_marked_name_is_left_in_what_is_learnt_from(pair: tuple[Path, Path]) -> None:
    run = run_on(pair[0], FIRST)
    ctx = open_run(run)
    texts = ctx.part.column("text").to_pylist()
    written = open_run(run_on(pair[0], FIRST, plan=PLAN | {"protect": "users"})).part
    assert len(texts) == len(written)
    assert any(FIRST in text for text in written.column("text").to_pylist())
    for text in texts:
        for name in (FIRST, "Zimmermann", "somewhere.org"):
            assert name.lower() not in text.lower()
    assert any(FIRST in text for text in ctx.corpus.only("test").column("text").to_pylist())


def test_public_names_stay_and_are_named_on_the_certificate(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    plan = PLAN | {"public_entities": ["gerda  ZIMMERMANN"]}
    run = run_on(pair[0], FIRST, plan=plan)
    texts = " ".join(open_run(run).part.column("text").to_pylist())
    assert "Gerda Zimmermann" in texts
    assert FIRST not in texts
    certificate = session.train(run, tmp_path / "run").certificate
    assert any("gerda  ZIMMERMANN" in point for point in certificate.not_covered)
    with pytest.raises(UsageError, match="invented names"):
        open_run(run_on(pair[0], FIRST, plan=PLAN | {"public_entities": ["ADAM abbott"]}))


def test_a_user_is_audited_below_what_is_certified(pair: tuple[Path, Path], tmp_path: Path) -> None:
    plan = PLAN | {"steps": 8, "noise_multiplier": 1.0, "epsilon": 60}
    trained = session.train(run_on(pair[0], FIRST, plan=plan, seed=None), tmp_path / "run")
    found = audit_run(trained.folder, canaries=200)
    assert {one.unit for one in found} == {"users", "users+names"}
    for one in found:
        assert one.lower <= one.upper
        assert one.failed == ()
    with pytest.raises(UsageError, match="no canary can stand for one"):
        audit_run(trained.folder, unit="names")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"detect": None}, "needs mentions"),
        ({"task": "tagging"}, "the tags of"),
        (
            {"method": "dp-fedavg", "plan": PLAN | {"name_share": 0.1}},
            "shows no names",
        ),
        ({"plan": PLAN | {"entity_share": 0.3}}, "entity_share is about entities"),
        ({"plan": PLAN | {"protect": "users", "name_share": 0.3}}, "name_share is about names"),
        ({"plan": PLAN | {"users": None}}, "public denominator"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    pair: tuple[Path, Path], tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        session.train(run_on(pair[0], FIRST, **changes), tmp_path / "run")
