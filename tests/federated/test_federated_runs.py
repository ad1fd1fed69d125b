"""Whole runs: the folder they leave, what leaves clients, what survives a kill."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message
from safetensors.torch import load_file

from support.forking import run_python
from support.local_grid import FakeClock, LocalGrid
from support.small_federation import PLANS, begun, small_run, write_corpus
from support.topics import posts, tiny_encoder
from tacit.corpora import open_corpus
from tacit.corpus.splitting import training_part
from tacit.detection import detect
from tacit.detection.mentions import fold, write_lines
from tacit.errors import DataError, PrivacyRefused, UsageError
from tacit.federated.cohort import Cohort, Whereabouts, make_cohort
from tacit.federated.keyed_names import entity_name, read_key, user_name
from tacit.federated.protocol import Present
from tacit.federated.server import serve
from tacit.federated.settings import Federation, require_federated, require_flower, require_ray
from tacit.owners.bounding import Caps
from tacit.planning.plan import Plan
from tacit.privacy.ledger import read_ledger
from tacit.training.evaluation.scoring import evaluate
from tacit.training.phases.refitting import refit
from tacit.training.phases.session import train
from tacit.training.settings import Run
from tacit.verification.runs import verify


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("text"))


def bytes_of(messages: list[Message]) -> bytes:
    """Everything that a list of messages holds."""
    made = []
    for message in messages:
        for record in message.content.values():
            for name, value in record.items():
                data = getattr(value, "data", None)
                made.append(name.encode())
                made.append(data if isinstance(data, bytes) else repr(value).encode())
    return b"\0".join(made)


def broken(folder: Path) -> list[str]:
    return [check.what for check in verify(folder) if not check.ok]


def test_a_run_leaves_the_folder_of_a_run(tmp_path: Path, corpus: Path) -> None:
    """Two rounds, a client that drops out after the first, no seed: promised and verified."""
    run = small_run(corpus, seed=None, keep_checkpoints=1)
    folder, grid = begun(tmp_path, run)
    told: list[Any] = []

    def after(at: Any) -> None:
        told.append(at)
        grid.nodes.pop(100, None)

    done = serve(grid, folder, on_progress=after, clock=FakeClock())
    assert broken(folder) == []
    assert done.certificate.standing == "proved"
    assert "epsilon <= 1.839 of 3" in told[-1].spent
    names = {path.name for path in folder.iterdir()}
    assert {"certificate.json", "ledger.jsonl", "metrics.json", "run.yml", "model.safetensors",
            "config.json", "plan.yml", "README.md", "checkpoints"} <= names  # fmt: skip
    assert evaluate(folder, "test")["perplexity"] > 1
    assert done.metrics["training"] == {"records": "with the clients", "users": 12, "clients": 3}
    assert "in the clear" in done.certificate.context["server"]
    # Of the users nothing but updates was sent: no text, no name, no key.
    left = bytes_of(grid.answered)
    part = training_part(open_corpus(str(corpus), None))
    words = {w for text in part.column("text").to_pylist() for w in text.split() if len(w) > 6}
    assert not [w for w in words if w.encode() in left]
    key = (tmp_path / "home" / "key").read_text().strip()
    for secret in (*part.users(), *part.column("id").to_pylist(), key):
        assert secret.encode() not in left
        assert secret.encode() not in bytes_of(grid.asked)


def test_entities_are_capped_on_a_graph_of_keyed_names(tmp_path: Path, corpus: Path) -> None:
    plan = PLANS["both"] | {"users_per_entity": 1, "user_rate": 0.9, "epsilon": 5}
    run = small_run(corpus, plan=plan)
    folder, grid = begun(tmp_path, run)
    done = serve(grid, folder, clock=FakeClock())
    assert broken(folder) == []
    cohort = Cohort.load(folder)
    assert cohort is not None
    assert cohort.owners is not None
    assert cohort.bounded is not None
    assert cohort.permits is not None
    assert cohort.bounded.records_dropped > 0
    kept = cohort.owners.subset(cohort.bounded.kept)
    assert not Caps(users_per_entity=1, records_per_user_entity=1).broken_by(kept)
    assert "saw, under keyed names" in done.certificate.context["entity graph"]
    assert "trusted to clip each record" in done.certificate.context["record clipping"]
    # Clients were told to use exactly what is kept.
    asked: list[Any] = [m.content.config_records["round"] for m in grid.asked
             if m.metadata.message_type == "train"]  # fmt: skip
    assert asked
    for told in asked:
        ends = np.cumsum([0, *told["sizes"]])
        for place, name in enumerate(told["names"]):
            allowed = cohort.permits[name]
            assert tuple(told["records"][ends[place] : ends[place + 1]]) == allowed
    # The graph is that of the names in the text, and none of them was sent.
    key = read_key(tmp_path / "home" / "key")
    id_ = (folder / "federation" / "id").read_text()
    part = training_part(open_corpus(str(corpus), None))
    spoken = {
        record.text[s.start : s.end]
        for record in part.records() for s in record.spans or () if s.kind == "PERSON"
    }  # fmt: skip
    assert {entity_name(key, id_, name, "PERSON") for name in spoken} == set(cohort.owners.entities)
    left = bytes_of(grid.answered)
    assert not [n for n in spoken if n.encode() in left or fold(n, "PERSON").encode() in left]


def test_averaging_without_protection_promises_nothing_and_learns(
    tmp_path: Path, corpus: Path
) -> None:
    run = small_run(corpus, method="plain", steps=3)
    folder, grid = begun(tmp_path, run, local={"local_epochs": 2, "local_learning_rate": 1.0})
    done = serve(grid, folder, clock=FakeClock())
    assert broken(folder) == []
    assert done.certificate.standing == "heuristic"
    assert done.certificate.costs["users"].epsilon == "infinity"
    assert len(read_ledger(folder / "ledger.jsonl").entries) == 1
    assert done.metrics["valid"]["loss"] < np.log(400) - 0.05  # that of a model that knows nothing


def test_personal_parameters_never_leave_their_client(tmp_path: Path, corpus: Path) -> None:
    run = small_run(corpus, method="dp-fedavg", plan={"user_rate": 1.0, "steps": 2})
    personal = ("body.layers",)
    folder, grid = begun(tmp_path, run, personal=personal)
    done = serve(grid, folder, clock=FakeClock())
    assert broken(folder) == []
    assert personal[0] in done.certificate.context["personal parameters"]
    own = {n for n in load_file(folder / "model.safetensors") if n.startswith(personal[0])}
    for message in (*grid.asked, *grid.answered):
        for record in message.content.array_records.values():
            assert record
            assert not own & set(record)
    at = list((tmp_path / "home" / "personal").rglob("*.safetensors"))
    assert len(at) == 12
    first, second = (load_file(path) for path in at[:2])
    begun_with = load_file(folder / "federation" / "personal.safetensors")
    assert set(first) == set(begun_with) == own
    ended = load_file(folder / "model.safetensors")
    for name in own:
        assert not np.array_equal(first[name], second[name])
        assert not np.array_equal(first[name], begun_with[name])
        assert np.array_equal(ended[name], begun_with[name])


KILLED = """
import os, signal, sys
sys.path.insert(0, {here!r})
from pathlib import Path
from support.local_grid import FakeClock, LocalGrid, dealt
from tacit.federated.server import serve
from tacit.training.phases import loop

true, saved = loop.save_checkpoint, []

def save(*given):
    saved.append(1)
    if len(saved) == 2:  # the second round is charged, released, and not yet saved
        os.kill(os.getpid(), signal.SIGKILL)
    true(*given)

loop.save_checkpoint = save
serve(LocalGrid(dealt(3, Path({home!r}))), Path({folder!r}), clock=FakeClock())
"""


def test_a_server_that_is_killed_goes_on_and_pays_for_the_round_in_flight(
    tmp_path: Path, corpus: Path
) -> None:
    run = small_run(corpus, plan={"steps": 3, "epsilon": 2.3})  # three releases, and not four
    folder, grid = begun(tmp_path, run)
    script = KILLED.format(
        here=str(Path(__file__).parent.parent), home=str(tmp_path / "home"), folder=str(folder)
    )
    ended = run_python("-c", script)
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-2000:]
    assert len(read_ledger(folder / "ledger.jsonl").entries) == 2
    # Killed once more, while answers are waited for: nothing was released, nothing is charged.
    grid.faults[100] = lambda q, a: [a] if q.metadata.message_type == "query" else _die()
    with pytest.raises(KeyboardInterrupt):
        serve(grid, folder, clock=FakeClock())
    assert len(read_ledger(folder / "ledger.jsonl").entries) == 2
    # The clients come back as other nodes; the cohort knows them by their users.
    grid = LocalGrid({node + 7: config for node, config in grid.nodes.items()})
    rounds = []
    done = serve(grid, folder, on_progress=lambda at: rounds.append(at.round), clock=FakeClock())
    # One round was paid for twice, so the budget ends before the plan does.
    assert rounds == [2]
    assert done.stopped is not None
    assert len(read_ledger(folder / "ledger.jsonl").entries) == 3
    assert broken(folder) == []


def _die() -> list[Message]:
    raise KeyboardInterrupt


def test_going_on_with_another_federation_is_refused(tmp_path: Path, corpus: Path) -> None:
    folder, grid = begun(tmp_path, small_run(corpus))
    serve(grid, folder, clock=FakeClock())
    settings = folder / "federation.yml"
    settings.write_text(
        settings.read_text().replace("local_learning_rate: 0.5", "local_learning_rate: 0.25")
    )
    with pytest.raises(PrivacyRefused, match="another plan, corpus or run"):
        serve(grid, folder, clock=FakeClock())
    cohort = folder / "federation" / "cohort.json"
    fields = json.loads(cohort.read_text())
    cohort.write_text(json.dumps(fields | {"users": fields["users"][1:]}))
    with pytest.raises(DataError, match="was changed"):
        serve(grid, folder, clock=FakeClock())


def test_clients_that_cannot_take_part_are_not_waited_for_for_ever(
    tmp_path: Path, corpus: Path
) -> None:
    folder, grid = begun(tmp_path, small_run(corpus))
    grid.nodes[100] = {"corpus": str(corpus), "home": str(tmp_path / "other")}  # it has no key
    with pytest.raises(DataError, match=r"2 of 3 clients joined.*could not join: \d"):
        serve(grid, folder, clock=FakeClock())
    assert not (folder / "ledger.jsonl").exists()


class Arriving(FakeClock):
    """A client connects while another one keeps the server waiting."""

    def __init__(self, grid: LocalGrid, node: int, config: dict[str, Any]) -> None:
        super().__init__()
        self._grid, self._node, self._config = grid, node, config

    def wait(self, seconds: float) -> None:
        super().wait(seconds)
        self._grid.nodes[self._node] = self._config


def test_a_silent_client_keeps_nobody_from_joining(tmp_path: Path, corpus: Path) -> None:
    folder, grid = begun(tmp_path, small_run(corpus, plan={"user_rate": 1.0}))
    grid.nodes[99] = dict(grid.nodes[100])
    grid.faults[99] = lambda q, a: []
    told: list[Any] = []
    clock = Arriving(grid, 102, grid.nodes.pop(102))
    serve(grid, folder, on_progress=told.append, clock=clock)
    assert [at.answered for at in told] == [12, 12]
    # It was waited for once, while clients joined, and held up no round.
    asked = [m.metadata.message_type for m in grid.asked if m.metadata.dst_node_id == 99]
    assert asked == ["query"]
    assert clock.time < 2 * Federation().join_seconds


def test_going_on_from_an_earlier_run_counts_what_it_released(tmp_path: Path, corpus: Path) -> None:
    """The model comes from a folder, which every client has; its ledger is carried on."""
    first, grid = begun(tmp_path / "first", small_run(corpus, plan={"steps": 1}))
    serve(grid, first, clock=FakeClock())
    model: dict[str, Any] = {"kind": "folder", "folder": str(first)}
    with pytest.raises(PrivacyRefused, match="carry_ledger"):
        begun(tmp_path / "second", small_run(corpus, model=model))
    run = small_run(corpus, model=model | {"carry_ledger": True}, plan={"steps": 1})
    folder, grid = begun(tmp_path / "third", run)
    serve(grid, folder, clock=FakeClock())
    phases = [entry.phase for entry in read_ledger(folder / "ledger.jsonl").entries]
    assert phases == ["earlier/train", "train"]
    assert broken(folder) == []


def test_a_client_that_fails_to_join_once_is_asked_again(tmp_path: Path, corpus: Path) -> None:
    """It is gone after the first round, comes back after the second, and fails once more."""
    run = small_run(corpus, plan={"user_rate": 1.0, "steps": 4, "epsilon": 30})
    folder, grid = begun(tmp_path, run, clients=2)
    config = dict(grid.nodes[100])
    failing: list[Any] = []
    told: list[Any] = []

    def fault(question: Message, answer: Message) -> list[Message]:
        if question.metadata.message_type == "query" and failing:
            failing.pop()
            return [Message(Error(1, "x"), reply_to=question)]
        return [answer]

    def change(at: Any) -> None:
        told.append(at.answered)
        if at.round == 1:
            del grid.nodes[100]
        elif at.round == 2:
            grid.nodes[100] = config
            failing.append(True)

    grid.faults[100] = fault
    serve(grid, folder, on_progress=change, clock=FakeClock())
    assert told == [12, 6, 6, 12]


class Flapping(FakeClock):
    """One client connects again and again, each time as another node."""

    def __init__(self, grid: LocalGrid) -> None:
        super().__init__()
        self._grid = grid

    def wait(self, seconds: float) -> None:
        super().wait(seconds)
        ((node, config),) = self._grid.nodes.items()
        self._grid.nodes = {node + 1: config}


def test_a_client_that_comes_back_is_not_another_one(tmp_path: Path, corpus: Path) -> None:
    folder, grid = begun(tmp_path, small_run(corpus), clients=3, join_seconds=6)
    grid.nodes = {100: grid.nodes[100]}
    with pytest.raises(DataError, match=r"1 of 3 clients joined"):
        serve(grid, folder, clock=Flapping(grid))


class Killed(BaseException):
    """As if somebody pulled the plug."""


def test_going_on_waits_for_as_many_as_a_round_needs(tmp_path: Path, corpus: Path) -> None:
    """And, when all rounds are done, for nobody."""
    run = small_run(corpus, plan={"user_rate": 1.0, "steps": 3, "epsilon": 30})
    folder, grid = begun(tmp_path, run)

    def kill(at: Any) -> None:
        if at.round == 2:
            raise Killed

    with pytest.raises(Killed):
        serve(grid, folder, on_progress=kill, clock=FakeClock())
    gone = grid.nodes.pop(100)
    serve(grid, folder, clock=FakeClock())
    (folder / "certificate.json").unlink()
    grid.nodes.clear()
    assert serve(grid, folder, clock=FakeClock()).stopped is None
    assert broken(folder) == []
    assert gone


def test_mentions_without_their_table_of_entities_are_refused(tmp_path: Path, corpus: Path) -> None:
    """One entity under two spellings would have two keyed names, and its cap would not hold."""
    run = small_run(corpus, plan=PLANS["both"] | {"epsilon": 30})
    folder, grid = begun(tmp_path, run, clients=1, join_seconds=1)
    whole = training_part(open_corpus(str(corpus), None))
    found = detect(whole, "gold", kinds=["PERSON"])
    write_lines(tmp_path / "m.jsonl", found.mentions)
    grid.nodes[100]["mentions"] = str(tmp_path / "m.jsonl")
    with pytest.raises(DataError, match="could not join: 1"):
        serve(grid, folder, clock=FakeClock())
    assert any("refused" in answer.content for answer in grid.answered)
    write_lines(tmp_path / "m.entities.jsonl", found.entities)
    serve(grid, folder, clock=FakeClock())


def test_a_client_may_have_a_file_of_its_own(tmp_path: Path, corpus: Path) -> None:
    """Not dealt: three files, of which two have a user in common, who counts once."""
    from tacit.corpus import Corpus
    from tacit.corpus.writing import write

    part = training_part(open_corpus(str(corpus), None))
    users = part.users()
    groups = [users[:5], users[4:9], users[9:]]
    nodes = {}
    folder, _ = begun(tmp_path, small_run(corpus, plan={"user_rate": 1.0, "steps": 1}))
    (folder / "federation" / "dealt.json").unlink()
    for number, group in enumerate(groups):
        own = Corpus.from_records(r for r in part.records() if r.user in group)
        write(own, tmp_path / f"{number}.jsonl")
        nodes[number + 1] = {
            "corpus": str(tmp_path / f"{number}.jsonl"),
            "key": str(tmp_path / "home" / "key"),
            "home": str(tmp_path / f"home-{number}"),
        }
    told: list[Any] = []
    serve(LocalGrid(nodes), folder, on_progress=told.append, clock=FakeClock())
    assert (told[0].drawn, told[0].answered, told[0].faults) == (12, 12, {})


# --- the cohort -------------------------------------------------------------------------------

NAMES = [f"{n:032x}" for n in range(9)]


def test_a_user_of_two_clients_is_one_of_them_alone() -> None:
    plan = Plan(
        **PLANS["both"] | {"epsilon": 8, "steps": 1, "user_rate": 0.5, "users_per_entity": 2}
    )
    one = Present((NAMES[0], NAMES[1]), "1", "", (0, 1, 1), ((NAMES[7],), (NAMES[8],), ()))
    two = Present((NAMES[1], NAMES[2]), "1", "", (0, 1), ((NAMES[8],), (NAMES[7],)))
    cohort = make_cohort(plan, [one, two])
    assert cohort.users == (NAMES[0], NAMES[1], NAMES[2])
    assert cohort.permits == {NAMES[0]: (0,), NAMES[1]: (1, 2), NAMES[2]: (1,)}


def present(*users: str) -> Present:
    return Present(users, "1", "")


def test_users_who_were_not_there_at_the_beginning_are_not_added() -> None:
    where = Whereabouts(Cohort((NAMES[0], NAMES[1]), 1))
    where.put(5, present(NAMES[0], NAMES[1], NAMES[2]), {5})
    assert where.drawn([0, 1]) == {5: [0, 1]}
    where.put(6, present(NAMES[0]), {5, 6})  # who claims a user of a client that is here
    assert where.drawn([0, 1]) == {5: [0, 1]}
    where.put(6, present(NAMES[0]), {6})  # the same after that client is gone
    assert where.drawn([0, 1]) == {6: [0], 5: [1]}


def test_permits_are_given_to_who_has_the_records_that_the_graph_knows(tmp_path: Path) -> None:
    """Record 0 of a user may be another one at another client, or after a change of the file."""
    plan = Plan(**PLANS["both"] | {"steps": 1, "user_rate": 0.5})
    one = Present((NAMES[0],), "1", "", (0, 0), ((NAMES[7],), ()))
    two = Present((NAMES[0], NAMES[1]), "1", "", (0, 1), ((), (NAMES[8],)))
    make_cohort(plan, [one, two]).save(tmp_path)
    cohort = Cohort.load(tmp_path)
    assert cohort is not None
    # After a crash they come in another order.
    where = Whereabouts(cohort)
    where.put(6, two, {5, 6})
    where.put(5, one, {5, 6})
    assert where.drawn([0, 1]) == {5: [0], 6: [1]}
    changed = Present((NAMES[0],), "1", "", (0, 0), ((), (NAMES[7],)))
    assert cohort.agreeing(changed) == []


def test_a_client_whose_file_has_changed_is_left_out(tmp_path: Path, corpus: Path) -> None:
    """And comes back with the old one; meanwhile it is asked in every round."""
    run = small_run(corpus, plan={"user_rate": 1.0, "steps": 5, "epsilon": 30})
    folder, grid = begun(tmp_path, run, clients=2)
    own = tmp_path / "own.jsonl"
    lines = corpus.read_text().splitlines(keepends=True)
    own.write_text("".join(lines))
    del grid.nodes[100]["partition-id"], grid.nodes[100]["num-partitions"]
    grid.nodes[100] |= {"corpus": str(own), "key": str(tmp_path / "home" / "key")}
    told: list[Any] = []

    def change(at: Any) -> None:
        told.append((at.answered, at.faults))
        own.write_text("".join(lines[1:] if at.round < 3 else lines))

    serve(grid, folder, on_progress=change, clock=FakeClock())
    assert told[0] == (12, {})
    assert told[1] == (0, {"could not take part": 1})  # all users are its own
    assert told[2][0] == 6  # those of the other client are known there, too
    assert told[2][1]["could not join"] == 1
    assert told[4] == (12, {})


@pytest.mark.parametrize(
    "change",
    [
        {"users": ["not a keyed name"]},
        {"users": [NAMES[0], NAMES[0]]},
        {"owner": [0, 5]},
        {"sizes": [9, 9]},
        {"sizes": [-1, 3]},
        {"entities": [7, 7]},
        {"names": [1, 2]},
        {"users": "x"},
        {"users": [":" * 32, NAMES[1]]},
        {"owner": [float("inf"), 1.0]},
    ],
)
def test_a_client_that_makes_no_sense_is_left_out(change: dict[str, Any]) -> None:
    from flwr.app import ConfigRecord

    present = Present((NAMES[0], NAMES[1]), "1", "", (0, 1), ((NAMES[7],), (NAMES[8],)))
    record = present.record()
    assert Present.read(record) == present
    record["present"] = ConfigRecord(dict(record.config_records["present"]) | change)
    with pytest.raises(DataError, match="makes no sense"):
        Present.read(record)


def test_keyed_names_need_the_key() -> None:
    key, other = b"k" * 32, b"o" * 32
    assert user_name(key, "f", "ann") != user_name(other, "f", "ann")
    assert user_name(key, "f", "ann") != entity_name(key, "f", "ann", "PERSON")
    assert entity_name(key, "f", "Ann", "PERSON") != entity_name(key, "f", "Ann", "ORG")


# --- what is refused --------------------------------------------------------------------------

BOTH = PLANS["both"]


@pytest.mark.parametrize(
    ("changes", "federation", "says"),
    [
        ({"method": "uedp", "steps": 2, "detect": "gold"}, {}, "not federated"),
        ({"plan": {"protect": "records", "record_rate": 0.1, "user_rate": None, "users": None}},
         {}, "draws users"),
        ({"plan": BOTH | {"mechanism": "flat", "record_rate": 0.1, "user_rate": None,
                          "records_per_user": 3, "records_per_entity": 3}}, {}, "draws users"),
        ({"plan": BOTH, "method": "dp-fedavg"}, {}, "entity_share=2"),
        ({"plan": BOTH}, {"personal": ("x",)}, "entity_share=2"),
        ({"tokenizer": {"kind": "words"}}, {}, "public_text"),
        ({"model": {"kind": "lstm", "lora_rank": 2}}, {}, "model.kind=folder"),
        ({"model": {"kind": "lstm", "trained_rows": 9}, "tokenizer": {"size": 400}}, {},
         "clients do not have"),
        ({"plan": {"clip_quantile": 0.5}}, {}, "clip_quantile is not federated"),
        ({"plan": BOTH | {"entity_list": "names.txt"}}, {}, "entity_list"),
        ({"plan": BOTH, "detect": None, "mentions": "m.jsonl",
          "model": {"kind": "folder", "folder": "earlier", "carry_ledger": True}}, {},
         "same entities or names as in the earlier run"),
        ({"task": "tagging"}, {}, "not federated"),
        ({}, {"rounds": 3}, "not a setting of a federation"),
        ({}, {"clients": 0}, "federation.clients=0"),
    ],
)  # fmt: skip
def test_what_is_not_done_or_not_true_is_refused(
    corpus: Path, changes: dict[str, Any], federation: dict[str, Any], says: str
) -> None:

    def settle() -> None:
        run = small_run(corpus, **changes)
        require_federated(run, Federation(**federation))

    with pytest.raises(UsageError, match=says):
        settle()


def test_a_name_of_no_parameter_is_refused(tmp_path: Path, corpus: Path) -> None:
    folder, grid = begun(tmp_path, small_run(corpus), personal=("no-such-layer",))
    with pytest.raises(UsageError, match="no parameter begins so"):
        serve(grid, folder, clock=FakeClock())


@pytest.mark.parametrize(("need", "name"), [(require_flower, "flwr"), (require_ray, "ray")])
def test_without_flower_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, need: Any, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match="extra federated"):
        need()


def test_a_network_is_not_crossed_in_the_clear() -> None:
    from tacit.federated.processes import parse_address

    assert parse_address("127.0.0.1:9092").of_client() == ["--insecure"]
    with pytest.raises(UsageError, match="not this machine"):
        parse_address("0.0.0.0:9092")
    safe = parse_address("example.org:9092", authority=Path("ca.pem"))
    assert safe.of_client() == ["--root-certificates", "ca.pem"]
    with pytest.raises(UsageError, match="HOST:PORT"):
        parse_address("9092")


def test_statistics_are_released_in_one_round(tmp_path: Path) -> None:
    """Clients send sums of features, the server adds noise once and fits the head."""
    encoder = tiny_encoder(tmp_path / "encoder")
    fields = posts(tmp_path) | {
        "method": "statistics", "seed": None, "model": {"kind": "features", "folder": encoder},
        "plan": {"protect": "users", "epsilon": 8, "user_rate": 1.0, "users": 8},
    }  # fmt: skip
    folder, grid = begun(tmp_path, Run(**fields))
    done = serve(grid, folder, clock=FakeClock())
    assert broken(folder) == []
    assert done.certificate.standing == "proved"
    assert done.certificate.phases == {"train": 1}
    weights = load_file(folder / "model.safetensors")
    assert weights["statistics.classes.weight"].any()
    assert weights["classifier.weight"].any()
    refit(folder, tmp_path / "again", "prototypes")
    assert broken(tmp_path / "again") == []


def test_what_clients_send_of_statistics_is_what_a_local_run_sums(tmp_path: Path) -> None:
    encoder = tiny_encoder(tmp_path / "encoder")
    plan = {"protect": "users", "epsilon": 1e6, "user_rate": 1.0}  # hardly any noise
    fields = posts(tmp_path) | {
        "method": "statistics", "model": {"kind": "features", "folder": encoder},
        "plan": plan | {"users": 8, "clip_norm": 0.5},
    }  # fmt: skip
    folder, grid = begun(tmp_path, Run(**fields))
    serve(grid, folder, clock=FakeClock())
    train(Run(**fields), tmp_path / "local")
    there, here = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "local"))
    for name in ("statistics.classes.weight", "statistics.moments.weight"):
        np.testing.assert_allclose(there[name], here[name], atol=1e-3)
        assert here[name].abs().max() > 0.05
