"""Names through the whole program: the promise on paper, and neighbours that train alike."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from torch import Tensor

from support.local_grid import FakeClock
from support.small_federation import begun
from support.topics import tiny_encoder
from tacit.attacks.target import open_target
from tacit.audits.audit import audit_run
from tacit.corpus import Corpus
from tacit.corpus.reading import read
from tacit.detection import detect
from tacit.detection.mentions import write_lines
from tacit.errors import TacitError, UsageError
from tacit.federated import client
from tacit.federated.server import serve
from tacit.federated.settings import Federation, require_federated
from tacit.privacy.events import MentionSubstitution
from tacit.privacy.ledger import read_ledger
from tacit.training.phases import session
from tacit.training.phases.local_inputs import alike, inputs_of
from tacit.training.phases.run_context import encode, open_run
from tacit.training.settings import Run
from tacit.training.tasks.examples import IGNORED
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


def tags(words: list[str]) -> list[str]:
    """A name's first word is NNP, and its others are what only a name's other words are."""
    found, first = [], True
    for word in words:
        named = word.strip(",").lower() in NAMED
        found.append("NN" if not named else "NNP" if first else "FW")
        first = not (named and first)
    return found


NAMED = {word for name in (FIRST, SECOND, INVENTED, "Gerda Zimmermann")
         for word in name.lower().split()}  # fmt: skip


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
                    "label": str(user % 2),
                    "tokens": text.split(),
                    "pos": tags(text.split()),
                }
                out.write(json.dumps(row) + "\n")
        words = f"{FIRST} wrote to me".split()
        held_out = {
            "id": "t", "user": "u99", "text": " ".join(words), "split": "test", "label": "1",
            "tokens": words, "pos": tags(words),
        }  # fmt: skip
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


ENCODER = {"kind": "bert", "config": {"hidden_size": 8, "layers": 1, "heads": 2}}
STATISTICS = {
    "method": "statistics", "task": "classification", "labels": ["0", "1"], "context": 16,
    "plan": {"protect": "users+names", "user_rate": 1.0, "users": 30, "epsilon": 30},
}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"plan": PLAN | {"select": "best", "epsilon": 30}},
        {"method": "dp-fedavg", "dp-fedavg": {"local_steps": 2, "local_batch": 2}},
        {"task": "tagging", "labels": ["NN", "NNP", "FW"]},
        {"task": "regression", "label_range": [0, 1]},
        {"task": "masked-word", "model": ENCODER},
        {"tokenizer": {"kind": "words", "size": 300}},
        STATISTICS,
    ],
    ids=["private", "best", "fedavg", "tagging", "regression", "masked", "words", "statistics"],
)
def test_another_name_trains_the_very_same_model(
    pair: tuple[Path, Path], tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Real detectors, tokenizer, truncation, padding and batches, and the name is longer."""
    if changes is STATISTICS:
        encoder = {"kind": "features", "folder": tiny_encoder(tmp_path / "encoder")}
        changes = changes | {"model": encoder, "tokenizer": {}}
    made = []
    for folder, name in zip(pair, (FIRST, SECOND), strict=True):
        trained = session.train(run_on(folder, name, **changes), tmp_path / folder.name)
        made.append(load_file(trained.folder / "model.safetensors"))
    assert_same(*made)


def test_a_name_of_many_users_is_exposed_as_one_that_nobody_wrote(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """Exposure, to the bit: candidates have the same losses whichever of them was in the text.

    The control: where users alone are protected, they have not.
    """
    names = [FIRST, SECOND, "Ada Nobody", "Zeno Nemo"]
    asked = Corpus.from_records(
        [{"id": str(n), "text": f"{name} wrote to me"} for n, name in enumerate(names)]
    )
    for protect, same in (("users+names", True), ("users", False)):
        losses = []
        for folder, name in zip(pair, (FIRST, SECOND), strict=True):
            run = run_on(folder, name, plan=PLAN | {"protect": protect})
            done = session.train(run, tmp_path / protect / folder.name)
            target = open_target(done.folder, perplexity=False)
            losses.append(target.reader.total_losses(asked).tolist())
        assert (losses[0] == losses[1]) is same


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(bool((one[key] == other[key]).all()) for key in one)


def test_clients_replace_names_as_central_training_does(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """Names are replaced where the records lie: neighbours' federations end in the same model."""
    made = []
    for folder, name in zip(pair, (FIRST, SECOND), strict=True):
        run = run_on(folder, name)
        place, grid = begun(tmp_path / folder.name, run)
        # Who is whom goes by a key and an id of the federation, which neighbours share.
        (tmp_path / folder.name / "home" / "key").write_text("ab" * 32)
        (place / "federation" / "id").write_text("cd" * 16)
        done = serve(grid, place, clock=FakeClock())
        made.append(load_file(place / "model.safetensors"))
    assert_same(*made)
    assert done.certificate.costs["names"].epsilon == 0
    assert "trusted to mark names" in done.certificate.context["names"]
    assert [check.what for check in verify(place) if not check.ok] == []


def test_a_client_whose_marks_have_changed_is_left_out(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """Marks are held fixed: a later round may not learn a name that an earlier one replaced."""
    run = run_on(pair[0], FIRST)
    found = detect(read(run.corpus).only("train"), str(run.detect))
    marks = found.save(tmp_path / "marks.jsonl")
    plan = PLAN | {"user_rate": 1.0, "steps": 2, "epsilon": 30}
    own = run_on(pair[0], FIRST, detect=None, mentions="of the clients' own", plan=plan)
    folder, grid = begun(tmp_path, own, clients=1)
    grid.nodes[100]["mentions"] = str(marks)
    told = []

    def unmark(at: Any) -> None:
        told.append((at.answered, at.faults))
        write_lines(marks, found.mentions[1:])
        client._learnt_text.cache_clear()  # as in another process

    serve(grid, folder, on_progress=unmark, clock=FakeClock())
    assert told == [(30, {}), (0, {"could not take part": 1})]


def test_a_client_without_marks_does_not_learn_names(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    run = run_on(pair[0], FIRST, detect=None, mentions="of the clients' own")
    folder, grid = begun(tmp_path, run, join_seconds=1)
    with pytest.raises(TacitError):
        serve(grid, folder, clock=FakeClock())
    assert not (folder / "model.safetensors").exists()


def test_where_names_are_shown_clients_are_refused(pair: tuple[Path, Path]) -> None:
    run = run_on(pair[0], FIRST, plan=PLAN | {"name_share": 0.1, "epsilon": 30})
    with pytest.raises(UsageError, match="decided over all users' texts"):
        require_federated(run, Federation())


def test_a_federation_goes_on_only_where_marks_are_those_of_the_earlier_run(
    pair: tuple[Path, Path],
) -> None:
    on = {"model": {"kind": "folder", "folder": "earlier", "carry_ledger": True}, "tokenizer": {}}
    run = run_on(pair[0], FIRST, **on, detect=None, mentions="of the clients' own")
    with pytest.raises(UsageError, match="carry_ledger with mentions of the clients' own"):
        require_federated(run, Federation())
    require_federated(run_on(pair[0], FIRST, **on), Federation())


def test_ranks_that_mark_other_names_are_not_alike(pair: tuple[Path, Path]) -> None:
    """Each rank replaces names by itself, so their marks are compared before they begin."""
    told = []
    for using in (f"lists={pair[0]}/people.txt", f"patterns,lists={pair[0]}/people.txt"):
        run = run_on(pair[0], FIRST, detect=using)
        ctx = open_run(run)
        inputs, _ = inputs_of(ctx, run.made_plan())
        same = list(alike(replace(ctx, run=run_on(pair[0], FIRST)), inputs))
        assert same == list(alike(replace(ctx, run=run_on(pair[0], FIRST)), inputs))
        told.append(same)
    assert told[0] != told[1]


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


def test_invented_names_are_read_and_never_a_target(pair: tuple[Path, Path]) -> None:
    """Else a model would learn to write them; the words around them are targets as ever."""
    ctx = open_run(run_on(pair[0], FIRST))
    assert ctx.names is not None
    examples = encode(ctx, ctx.part)
    assert isinstance(examples.labels, list)
    for row, (ids, labels) in enumerate(zip(examples.ids, examples.labels, strict=True)):
        text, unlearnt = ctx.names.base(row), ctx.names.unlearnt(row)
        offsets = ctx.tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
        inside = [
            any(start < there and end > here for here, there in unlearnt)
            for start, end in offsets["offset_mapping"]
        ]
        at = next(i for i, one in enumerate(ids) if one == offsets["input_ids"][0])
        inside = [False] * at + inside[: len(ids) - at]
        inside += [False] * (len(ids) - len(inside))
        assert (labels == np.where(inside, IGNORED, ids)).all()
    as_written = encode(ctx, ctx.corpus.only("test"), training=False)
    assert as_written.labels is None  # what is scored is all of the text


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
