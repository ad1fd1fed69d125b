"""Rounds: with everybody present a central step; with faults, that step without who is missing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from support.small_federation import (
    PLANS,
    central_gradient,
    flat,
    one_round,
    quiet,
    small_run,
    write_corpus,
)
from tacit.corpora import open_corpus
from tacit.corpus.splitting import training_part
from tacit.errors import DataError
from tacit.federated.aggregation import Received, Refused
from tacit.federated.keyed_names import read_key, user_name
from tacit.privacy.ledger import read_ledger
from tacit.training.phases.run_context import make_model

ALL = {"user_rate": 1.0}
LOOSE = {"users_per_entity": 99, "records_per_user_entity": 99}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("text"))


@pytest.mark.parametrize("clients", [3, 12])
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"plan": ALL}, id="users"),
        pytest.param({"plan": PLANS["both"] | ALL | LOOSE}, id="users and entities"),
        pytest.param(
            {"plan": ALL | {"protect": "users+names"}, "detect": "gold"}, id="users and names"
        ),
        pytest.param(
            {"plan": ALL, "method": "dp-fedavg",
             "dp-fedavg": {"local_steps": 1, "local_batch": 99}},
            id="one local step",
        ),
        pytest.param(
            {"plan": ALL | {"user_weight_cap": 4}, "method": "dp-fedavg",
             "dp-fedavg": {"local_epochs": 3, "local_batch": 99}},
            id="several local steps, weighted",
        ),
        pytest.param(
            {"plan": PLANS["both"] | ALL | LOOSE | {"entity_share": 2.0}, "method": "dp-fedavg",
             "dp-fedavg": {"local_epochs": 2, "local_batch": 99}},
            id="several local steps, entities too",
        ),
    ],
)  # fmt: skip
def test_a_round_with_everybody_present_is_a_central_step(
    tmp_path: Path, corpus: Path, changes: dict[str, Any], clients: int
) -> None:
    run = small_run(corpus, **changes)
    with one_round(tmp_path, run, clients=clients) as step:
        got = step.gradient()
        assert step.counted.drawn == step.counted.answered == 12
        (event,) = step.ledger.releases
        assert event == quiet(run).event()
    wanted = central_gradient(tmp_path, run)
    assert np.abs(got - wanted).max() < 1e-6
    assert np.abs(wanted).max() > 1e-4


@pytest.mark.parametrize("clients", [1, 4])
def test_only_permitted_records_are_used(tmp_path: Path, corpus: Path, clients: int) -> None:
    """With caps that bind, a round is the central step of exactly the records that they keep."""
    run = small_run(corpus, plan=PLANS["both"] | ALL | {"users_per_entity": 1})
    part = training_part(open_corpus(str(corpus), None))
    writer, users = part.require_users().to_pylist(), part.users()
    with one_round(tmp_path, run, clients=clients) as step:
        got = step.gradient()
        permits, id_ = step.clients.cohort.permits, str(step.clients._kit.settings["id"])
    key, rows = read_key(tmp_path / "home" / "key"), []
    assert permits is not None
    for number, user in enumerate(users):
        # A client numbers the records that were dealt to it.
        dealt = [r for r, u in enumerate(writer) if users.index(u) % clients == number % clients]
        rows += [dealt[local] for local in permits.get(user_name(key, id_, user), ())]
    assert 0 < len(rows) < len(part)
    wanted = central_gradient(tmp_path, run, rows=sorted(rows))
    assert np.abs(got - wanted).max() < 1e-6
    assert np.abs(got - central_gradient(tmp_path, run, rows=list(range(len(part))))).max() > 1e-4


def replied(question: Message, content: RecordDict) -> list[Message]:
    return [Message(content, reply_to=question)]


def changed(change: Any) -> Any:
    """A fault that changes every user's update."""

    def fault(question: Message, answer: Message) -> list[Message]:
        if question.metadata.message_type != "train":
            return [answer]
        for name in list(answer.content.array_records):
            arrays = {n: a.numpy() for n, a in answer.content.array_records[name].items()}
            made = change(arrays)
            answer.content[name] = ArrayRecord(
                {n: a if isinstance(a, Array) else Array(a) for n, a in made.items()}
            )
        return [answer]

    return fault


def in_training(fault: Any) -> Any:
    return lambda q, a: fault(q, a) if q.metadata.message_type == "train" else [a]


def with_answer(**fields: Any) -> Any:
    def fault(question: Message, answer: Message) -> list[Message]:
        told = dict(answer.content.config_records["answer"])
        answer.content["answer"] = ConfigRecord(told | fields)
        return [answer]

    return in_training(fault)


def garbage(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    return {
        n: Array(dtype="float32", shape=a.shape, stype="numpy.ndarray", data=b"\x80\x04garbage")
        for n, a in arrays.items()
    }


def one_short(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return dict(list(arrays.items())[1:])


def pickled(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    import io

    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return {
        n: Array(dtype="float32", shape=a.shape, stype="numpy.ndarray", data=buffer.getvalue())
        for n, a in arrays.items()
    }


FAULTS: dict[str, tuple[Any, str]] = {
    "fails": (in_training(lambda q, a: [Message(Error(1, "x"), reply_to=q)]), "failed"),
    "never answers": (in_training(lambda q, a: []), "late"),
    "sends NaN": (changed(lambda x: {n: a * np.float32("nan") for n, a in x.items()}),
                  "not finite"),
    "sends infinity": (changed(lambda x: {n: a + np.float32("inf") for n, a in x.items()}),
                       "not finite"),
    "does not clip": (changed(lambda x: {n: a * 1000 for n, a in x.items()}), "not clipped"),
    "sends another shape": (changed(lambda x: {n: a[..., None] for n, a in x.items()}),
                            "wrong shape"),
    "leaves a tensor out": (changed(one_short), "wrong shape"),
    "adds a tensor": (changed(lambda x: x | {"more": np.ones(3, np.float32)}), "wrong shape"),
    "sends doubles": (changed(lambda x: {n: a.astype(np.float64) for n, a in x.items()}),
                      "wrong shape"),
    "sends no arrays": (changed(garbage), "unreadable"),
    "sends pickled objects": (changed(pickled), "unreadable"),
    "answers another round": (with_answer(step=7), "unreadable"),
    "repeats an answer of before": (with_answer(attempt="0" * 16), "unreadable"),
    "answers for nobody": (with_answer(users=[float("inf")]), "unreadable"),
    "answers for others": (with_answer(users=[1000, 1001]), "not asked for"),
    "answers nonsense": (in_training(lambda q, a: replied(q, RecordDict())), "unreadable"),
    "gives up": (in_training(lambda q, a: replied(
        q, RecordDict({"refused": ConfigRecord({"because": "X"})}))), "could not take part"),
}  # fmt: skip


@pytest.fixture(scope="module")
def without_one(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> np.ndarray:
    """The central step of the users of clients 1 and 2, and not of client 0."""
    users = training_part(open_corpus(str(corpus), None)).users()
    others = {user for number, user in enumerate(users) if number % 3 != 0}
    return central_gradient(tmp_path_factory.mktemp("central"), small_run(corpus, plan=ALL), others)


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_client_counts_as_missing_and_nobody_else_does(
    tmp_path: Path, corpus: Path, without_one: np.ndarray, name: str
) -> None:
    fault, noted = FAULTS[name]
    with one_round(tmp_path, small_run(corpus, plan=ALL)) as step:
        step.grid.faults[100] = fault
        got = step.gradient()
        assert step.counted.answered == 8
        assert noted in step.counted.faults
        assert len(step.ledger) == 1
    assert np.abs(got - without_one).max() < 1e-6


def test_a_client_that_answers_twice_counts_once(tmp_path: Path, corpus: Path) -> None:
    run = small_run(corpus, plan=ALL)
    with one_round(tmp_path, run) as step:
        step.grid.faults[100] = in_training(lambda q, a: [a, a])
        got = step.gradient()
        assert step.counted.answered == 12
        assert step.counted.faults == {"not asked for": 1}
    assert np.abs(got - central_gradient(tmp_path, run)).max() < 1e-6


def test_a_user_whom_a_client_names_twice_counts_once(tmp_path: Path, corpus: Path) -> None:
    def twice(question: Message, answer: Message) -> list[Message]:
        told = dict(answer.content.config_records["answer"])
        answer.content["answer"] = ConfigRecord(told | {"users": told["users"] * 2})
        return [answer]

    run = small_run(corpus, plan=ALL)
    with one_round(tmp_path, run) as step:
        step.grid.faults[100] = in_training(twice)
        got = step.gradient()
        assert step.counted.faults == {"answered twice": 4}
    assert np.abs(got - central_gradient(tmp_path, run)).max() < 1e-6


def test_a_client_that_vanishes_in_a_round_is_not_waited_for(
    tmp_path: Path, corpus: Path, without_one: np.ndarray
) -> None:
    with one_round(tmp_path, small_run(corpus, plan=ALL), round_seconds=1e6) as step:

        def vanish(question: Message, answer: Message) -> list[Message]:
            del step.grid.nodes[100]
            return []

        step.grid.faults[100] = in_training(vanish)
        got = step.gradient()
        assert step.counted.faults == {"gone": 1}
    assert np.abs(got - without_one).max() < 1e-6


def test_one_users_failure_leaves_the_other_users_of_a_client_alone(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one user's text does must not decide whether the others count."""
    from tacit.federated import client

    run = small_run(corpus, plan=ALL)
    users = training_part(open_corpus(str(corpus), None)).users()
    true, seen = client._Local.update, []

    def broken(self: Any, asked: Any, place: int) -> Any:
        seen.append(asked.names[place])
        if self._code.get(asked.names[place]) == 0 and self._corpus.users()[0] == users[0]:
            raise RuntimeError("this text cannot be used")
        return true(self, asked, place)

    monkeypatch.setattr(client._Local, "update", broken)
    with one_round(tmp_path, run) as step:
        got = step.gradient()
        assert (step.counted.answered, step.counted.faults) == (11, {"not computed": 1})
    wanted = central_gradient(tmp_path, run, set(users) - {users[0]})
    assert np.abs(got - wanted).max() < 1e-6


def counting(made: Any) -> Any:
    """Models that count their calls, so that a user's update hangs on whose turn it is."""

    def make(*given: Any) -> Any:
        model, calls = made(*given), []

        def count(_module: Any, _given: Any, out: Any) -> Any:
            calls.append(1)
            return out * (1 + 0.01 * len(calls))

        model.get_input_embeddings().register_forward_hook(count)
        return model

    return make


@pytest.mark.parametrize("method", ["dp-sgd", "dp-fedavg"])
def test_clients_whose_users_would_meet_in_the_model_do_not_join(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, method: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("tacit.federated.client.make_model", counting(make_model))
    run = small_run(corpus, plan=ALL, method=method)
    with pytest.raises(DataError, match="0 of 3 clients joined"):
        one_round(tmp_path, run, join_seconds=1.0).__enter__()
    assert "among others than by itself" in caplog.text
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


def test_a_client_looks_again_before_rounds(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model whose users meet only after clients have joined gives nothing to the sum."""
    from tacit.federated import client

    looked: list[int | None] = []
    true = client._Local.require_independent_users

    def later(self: Any, step: int | None = None) -> None:
        looked.append(step)
        if step is not None:
            self._model = counting(lambda: self._model)()
        true(self, step)

    monkeypatch.setattr(client._Local, "require_independent_users", later)
    with one_round(tmp_path, small_run(corpus, plan=ALL)) as step:
        got = step.gradient()
        assert step.counted.answered == 0
    assert looked == [None] * 3 + [1] * 3
    assert not got.any()


def test_dropout_of_a_user_does_not_hang_on_who_else_is_asked(tmp_path: Path, corpus: Path) -> None:
    shares = {"output_dropout": 0.4, "weight_drop": 0.3}
    model = {"kind": "lstm", "config": {"hidden_size": 12, "embedding_size": 12} | shares}
    with one_round(tmp_path, small_run(corpus, plan=ALL, model=model)) as step:
        everybody = step.gradient()
        assert step.counted.answered == 12
        total = step.method._total
        parts = [total(1, np.asarray(some)) for some in (range(0, 12, 2), range(1, 12, 2))]
    apart = sum(flat(part.tensors) for part in parts) / 40
    assert np.abs(everybody - apart).max() < 1e-6
    assert np.abs(everybody).max() > 1e-4


def test_a_round_to_which_nobody_comes_has_all_its_noise(tmp_path: Path, corpus: Path) -> None:
    run = small_run(corpus, plan=ALL)
    with one_round(tmp_path, run, noise=2.0) as step:
        for node in step.grid.nodes:
            step.grid.faults[node] = in_training(lambda q, a: [])
        got = step.gradient()
        assert step.counted.answered == 0
    wanted = 2.0 * 0.5 / 40  # noise_multiplier x clip_norm over the public denominator
    assert abs(got.std() / wanted - 1) < 0.05
    assert abs(got.mean()) < 5 * wanted / len(got) ** 0.5
    (entry,) = read_ledger(tmp_path / "run" / "ledger.jsonl").entries
    assert entry.event.noise_multiplier == 2.0


def test_a_round_begins_only_while_enough_clients_are_connected(
    tmp_path: Path, corpus: Path
) -> None:
    run = small_run(corpus, plan=ALL)
    with one_round(tmp_path, run, least_clients=2) as step:
        del step.grid.nodes[100], step.grid.nodes[101]
        asked = len(step.grid.asked)
        with pytest.raises(DataError, match="1 of 2 clients are connected"):
            step.gradient()
        assert len(step.ledger) == 0
        assert len(step.grid.asked) == asked


def test_nothing_is_charged_when_the_link_is_gone(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with one_round(tmp_path, small_run(corpus, plan=ALL)) as step:

        def gone(*_: Any) -> Any:
            raise ConnectionError

        def then_gone(question: Message, answer: Message) -> list[Message]:
            monkeypatch.setattr(step.grid, "get_node_ids", gone)
            monkeypatch.setattr(step.grid, "pull_messages", gone)
            return []

        step.grid.faults[100] = in_training(then_gone)
        with pytest.raises(DataError, match="SuperLink cannot be reached"):
            step.gradient()
        assert len(step.ledger) == 0


def test_an_answer_that_cannot_be_pulled_costs_no_other(
    tmp_path: Path, corpus: Path, without_one: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    with one_round(tmp_path, small_run(corpus, plan=ALL)) as step:
        true, bad = step.grid.pull_messages, set()

        def note(question: Message, answer: Message) -> list[Message]:
            bad.add(question.metadata.message_id)
            return [answer]

        def pull(names: Any) -> Any:
            if bad & set(names):
                raise ValueError("an object of it is missing")
            return true(names)

        step.grid.faults[100] = in_training(note)
        monkeypatch.setattr(step.grid, "pull_messages", pull)
        got = step.gradient()
        assert step.counted.faults == {"unreadable": 1}
    assert np.abs(got - without_one).max() < 1e-6


def test_so_many_answers_are_fetched_at_once(tmp_path: Path, corpus: Path) -> None:
    run = small_run(corpus, plan=ALL)
    with one_round(tmp_path, run, clients=12, at_once=3) as step:
        step.gradient()
        assert step.counted.answered == 12
        assert step.grid.most_pulled == 3


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_silent_client_decides_nothing_about_others(
    tmp_path: Path, corpus: Path, at_once: int
) -> None:
    """Whether a user is asked must not depend on how long another one's text takes."""
    run = small_run(corpus, plan=ALL)
    with one_round(tmp_path, run, clients=12, at_once=at_once) as step:
        for node in (100, 101):
            step.grid.faults[node] = in_training(lambda q, a: [])
        step.gradient()
        assert step.counted.answered == 10
        assert step.counted.faults == {"late": 2}


def test_an_update_each_of_whose_tensors_is_short_enough_is_too_long_all_the_same() -> None:
    """The norm is that of all tensors together, as it is where updates are clipped."""
    import torch

    received = Received({"a": torch.zeros(4), "b": torch.zeros(4)}, 1.0)
    each = Array(np.full(4, 0.45, np.float32))  # a norm of 0.9; both together have 1.27
    with pytest.raises(Refused, match="not clipped"):
        received.add(0, ArrayRecord({"a": each, "b": each}))
    assert len(received) == 0


LIKE = {"a": (2, 3), "b": (4,)}
NUMBERS = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.lists(NUMBERS, min_size=10, max_size=10)), max_size=6),
    st.floats(0.01, 10),
)
def test_whatever_is_sent_a_user_moves_the_sum_by_at_most_the_clip_norm(
    sent: list[tuple[int, list[float]]], clip: float
) -> None:
    """The part of each user: all it sent is the difference to a sum without it."""
    import torch

    def total(without: int | None) -> np.ndarray:
        like = {name: torch.zeros(shape) for name, shape in LIKE.items()}
        received = Received(like, clip)
        for user, numbers in sent:
            values = np.asarray(numbers, np.float32)
            arrays = {"a": values[:6].reshape(2, 3), "b": values[6:]}
            record = ArrayRecord({n: Array(a) for n, a in arrays.items()})
            if user != without:
                try:
                    received.add(user, record)
                except Refused:
                    continue
        tensors = received.bounded(3).tensors
        return np.concatenate([tensors[n].numpy().ravel() for n in LIKE]).astype(np.float64)

    everybody = total(None)
    assert np.isfinite(everybody).all()
    for user in range(3):
        moved = np.linalg.norm(everybody - total(user))
        assert moved <= clip * (1 + 1e-5) + 1e-6 * np.abs(everybody).max(initial=0)
