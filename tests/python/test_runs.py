"""A model from objects to its report, without the command line."""

import stat
from pathlib import Path
from typing import Any

import pytest

import tacit
from tacit.corpora import customersim
from tacit.errors import DataError, UsageError


def dialogs() -> tacit.Corpus:
    made = customersim.generate(120, 5)
    return tacit.Corpus(made.table.drop_columns(["split"]), name="dialogs")


def parts() -> tuple[tacit.Corpus, ...]:
    """What is trained on, and what is tested on."""
    return dialogs().split(test=0.2, seed=1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tacit.TrainedRun:
    """The lines of the guide, on few dialogs."""
    folder = tmp_path_factory.mktemp("python") / "RUN"
    train, _ = parts()
    found = tacit.detect(train)
    plan = tacit.plan(protect="users+names", epsilon=8, users=50, model="english", steps=2)
    return tacit.train(train, plan, mentions=found, folder=folder)


def test_the_run_keeps_the_plan(trained: tacit.TrainedRun) -> None:
    assert trained.certificate.protect == "users+names"
    assert trained.certificate.standing == "proved"
    assert 0 < trained.certificate.epsilon <= 8
    assert all(check.ok for check in trained.verify())
    assert "Privacy certificate" in trained._repr_html_()
    assert str(trained.certificate).startswith("Certificate(proved, users+names, epsilon ")


def test_who_found_the_names_is_known(trained: tacit.TrainedRun) -> None:
    """The mentions were saved with the corpus that they are about."""
    marks = trained.certificate.scope.entities
    assert marks is not None
    assert {one.name for one in marks.detectors} == {"patterns", "lists", "names"}


def test_text_that_came_as_an_object_is_kept_apart(trained: tacit.TrainedRun) -> None:
    private = trained.folder.with_name("RUN.private")
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert {p.name for p in private.iterdir()} == {
        "corpus.parquet", "mentions.jsonl", "mentions.entities.jsonl", "mentions.summary.json",
    }  # fmt: skip
    assert tacit.read(private / "corpus.parquet").digest() == parts()[0].digest()


def test_it_is_scored_and_used(trained: tacit.TrainedRun) -> None:
    scores = trained.evaluate(parts()[1])
    assert trained.metrics["test"]["perplexity"] == pytest.approx(scores["perplexity"])
    assert "its public start" in trained.verdict
    said = trained.generate("hello", max_new_tokens=4, seed=1)
    assert said.startswith("hello")
    assert said == trained.generate("hello", max_new_tokens=4, seed=1)
    several = trained.generate(["hello", "where is"], max_new_tokens=4, temperature=0, stop=" ")
    assert [text.partition(" ")[0] for text in several] == [several[0], "where"]
    assert len(trained.predict("hello", choices=3)["next"]) == 3


def test_it_is_attacked_and_reported(trained: tacit.TrainedRun, tmp_path: Path) -> None:
    found = trained.attack("membership", others=parts()[1])
    assert 0 < found["membership"].figures["users_auc"] < 1
    page = tacit.compare([trained, trained.folder], tmp_path / "two.html")
    assert "membership" in page.path.read_text()
    assert "srcdoc" in page._repr_html_()
    assert Path(trained.report(tmp_path / "one.html", shareable=True)).exists()
    with pytest.raises(UsageError, match="exists"):
        trained.report(tmp_path / "one.html")
    with pytest.raises(UsageError, match=r"end the name in \.html"):
        trained.report(tmp_path / "one.pdf")


def test_attacks_that_have_too_little_text_are_left_out(tmp_path: Path) -> None:
    """Linkage wants users with four records; whoever asks for it by name is told."""
    few = [{"id": str(n), "user": f"u{n}", "text": "hello there"} for n in range(8)]
    small = {"kind": "lstm", "config": {"hidden_size": 8, "embedding_size": 8}}
    run = tacit.train(
        tacit.Corpus.from_records(few), method="plain", steps=1, model=small,
        tokenizer={"kind": "bpe", "size": 300}, folder=tmp_path / "RUN",
    )  # fmt: skip
    tacit.write(parts()[1], tmp_path / "others.parquet")
    assert "linkage" not in run.attack(others=tmp_path / "others.parquet")
    with pytest.raises(DataError, match="four records or more"):
        run.attack("linkage", others=parts()[1])


def test_it_is_opened_again(trained: tacit.TrainedRun, tmp_path: Path) -> None:
    assert tacit.open_run(str(trained.folder)).certificate == trained.certificate
    with pytest.raises(DataError, match="no finished run"):
        tacit.open_run(tmp_path)


# --- refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "Nothing says what to promise"),
        ({"plan": "users", "epsilon": 8}, "epsilon"),
        ({"plan": "users", "steps": 7}, "planned with steps=2"),
        ({"plan": "users", "model": "gpt5"}, "is not known"),
        ({"plan": "entities"}, "another owner graph"),
    ],
)
def test_what_is_refused_leaves_nothing(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    corpus = dialogs()
    found = tacit.detect(corpus)
    if given.get("plan") == "users":
        given["plan"] = tacit.plan(protect="users", epsilon=8, users=50, model="english", steps=2)
    elif given.get("plan") == "entities":
        other = corpus.take(range(60))
        graph = tacit.owners(other, tacit.detect(other))
        given["plan"] = tacit.plan(
            protect="users+entities", epsilon=8, users=50, model="english", steps=2, owners=graph
        )
    with pytest.raises(tacit.TacitError, match=said):
        tacit.train(corpus, mentions=found, folder=tmp_path / "RUN", **given)
    assert not list(tmp_path.iterdir())


def test_folders_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "RUN.private").mkdir()
    with pytest.raises(UsageError, match="left of another run"):
        tacit.train(dialogs(), method="plain", folder=tmp_path / "RUN")
    (tmp_path / "full" / "x").mkdir(parents=True)
    with pytest.raises(UsageError, match="not empty"):
        tacit.train(dialogs(), method="plain", folder=tmp_path / "full")
    run = tacit.Run(corpus="x.jsonl", method="plain", steps=1)
    with pytest.raises(UsageError, match="says everything itself"):
        tacit.train(run, folder=tmp_path / "new", steps=3)
    with pytest.raises(DataError, match=r"x\.jsonl does not exist"):
        tacit.train(run, folder=tmp_path / "RUN")
    assert (tmp_path / "RUN.private").exists()  # what is not ours stays


# --- stopped ------------------------------------------------------------------------------------


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    """As when somebody presses stop in a notebook: nothing is lost, and the ledger counts."""
    seen = []

    def stop(at: Any) -> None:
        seen.append(at.step)
        if len(seen) == 2:
            raise KeyboardInterrupt

    small = {"kind": "lstm", "config": {"hidden_size": 8, "embedding_size": 8}}
    settings: dict[str, Any] = {
        "task": "next-word", "model": small, "tokenizer": {"kind": "bpe", "size": 300},
        "checkpoint_every": 1, "optimizer": {"learning_rate": 0.1},
        "plan": {"protect": "users", "epsilon": 8, "users": 40, "user_rate": 0.5, "steps": 4},
    }  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        tacit.train(dialogs(), method="dp-sgd", folder=tmp_path / "RUN", progress=stop, **settings)
    run = tacit.resume(tmp_path / "RUN", progress=True)
    assert all(check.ok for check in run.verify())
    assert run.certificate.epsilon <= 8
