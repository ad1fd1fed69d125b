"""Questions to models: they wait for each other, within limits, and for nobody else."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path

import pytest

from tacit.errors import UsageError
from tacit.server import Json
from tacit.server.errors import Busy
from tacit.server.identity import Caller
from tacit.server.predictions import Predictions, Predictor, Question
from tacit.server.settings import ServerSettings

STUB = """
import json, sys, time
say = lambda found: print(json.dumps(found), flush=True)
say({"ready": True})
for line in sys.stdin:
    asked = json.loads(line)
    if asked["text"] == "slow":
        time.sleep(600)
    elif asked["text"] == "die":
        sys.exit(1)
    elif asked["text"] == "refuse":
        say({"error": "UsageError", "message": "No such thing."})
    else:
        say({"answer": {"said": asked["text"]}})
"""
"""Speaks as the process does that has the models."""


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Predictions]]:
    monkeypatch.setattr(Predictor, "command", (sys.executable, "-c", STUB))
    made: list[Predictions] = []

    def open_(**settings: float) -> Predictions:
        made.append(Predictions(ServerSettings(folder=tmp_path, **settings)))  # type: ignore[arg-type]
        return made[-1]

    yield open_
    for one in made:
        one.close()


def caller(token: str, role: str = "consumer") -> Caller:
    return Caller("account", token, role, token, frozenset())  # type: ignore[arg-type]


def ask(predictions: Predictions, text: str, who: str = "ann") -> "Future[Json]":
    return predictions.ask(Question(Path("model"), text), caller(who))


def test_questions_are_answered_in_turn_and_refusals_are_sentences(
    opened: Callable[..., Predictions],
) -> None:
    predictions = opened()
    answers = [ask(predictions, f"text {n}") for n in range(5)]
    assert [a.result(60)["said"] for a in answers] == [f"text {n}" for n in range(5)]
    with pytest.raises(UsageError, match="No such thing"):
        ask(predictions, "refuse").result(60)
    assert ask(predictions, "again").result(60) == {"said": "again"}


@pytest.mark.parametrize("how", ["slow", "die"])
def test_a_process_that_does_not_answer_is_replaced(
    opened: Callable[..., Predictions], how: str
) -> None:
    predictions = opened(prediction_kill_seconds=0.3)
    with pytest.raises(Busy, match="in time"):
        ask(predictions, how).result(60)
    # The next one may be slow to start here; what counts is that there is one.
    predictions.settings.__dict__["prediction_kill_seconds"] = 60.0
    assert ask(predictions, "after").result(60) == {"said": "after"}


def test_who_waited_too_long_is_refused_without_work(opened: Callable[..., Predictions]) -> None:
    predictions = opened(prediction_deadline=-1.0)
    with pytest.raises(Busy, match="in time"):
        ask(predictions, "late").result(60)


def test_one_caller_cannot_take_the_whole_queue(opened: Callable[..., Predictions]) -> None:
    predictions = opened(waiting_predictions=6, waiting_predictions_of_token=4)
    waiting = [ask(predictions, "slow")]
    waiting += [ask(predictions, "next") for _ in range(3)]
    with pytest.raises(Busy, match="of your questions"):
        ask(predictions, "one more")
    waiting += [ask(predictions, "bob's", "bob") for _ in range(2)]
    with pytest.raises(Busy, match="Too many questions wait"):
        _fill(predictions)
    predictions.close()
    for one in waiting[1:]:
        with pytest.raises((CancelledError, Busy)):
            one.result(60)


def _fill(predictions: Predictions) -> None:
    for number in range(3):  # one of those before may have left the queue by now
        ask(predictions, "carol's", f"carol {number}")


def test_rates_are_by_token_and_by_role(opened: Callable[..., Predictions]) -> None:
    predictions = opened(
        predictions_per_second=0.0, prediction_burst=2,
        predictions_per_second_of_role=0.0, prediction_burst_of_role=5,
    )  # fmt: skip
    for who in ("ann", "ann", "bob", "bob"):
        ask(predictions, "fine", who)
    with pytest.raises(Busy, match="wait a second"):
        ask(predictions, "too many", "ann")
    ask(predictions, "the fifth", "carol")
    with pytest.raises(Busy, match="wait a second"):
        ask(predictions, "the sixth", "dan")
    question = Question(Path("model"), "another role")
    assert predictions.ask(question, caller("eve", "analyst")).result(60)


def test_a_place_in_the_queue_is_free_again_after_the_answer(
    opened: Callable[..., Predictions],
) -> None:
    predictions = opened(waiting_predictions_of_token=1)
    for number in range(4):
        assert ask(predictions, f"text {number}").result(60)
