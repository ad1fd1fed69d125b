"""Who is told what while a run is under way."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

import tacit
from support.small import dialogs
from tacit.cli import run
from tacit.errors import UsageError
from tacit.tracking import Tracking
from tacit.training.methods.method import StepStats
from tacit.training.phases.loop import Progress
from tacit.training.settings import Run, run_yaml

PUBLIC = {"train/epsilon", "train/learning_rate", "train/noise_std"}


class Logger:
    """As Weights & Biases, trackio, MLflow and TensorBoard are told."""

    def __init__(self) -> None:
        self.heard: list[tuple[dict[str, float], int]] = []

    def tell(self, figures: dict[str, float], *, step: int) -> None:
        self.heard.append((figures, step))


class Scalars:
    def __init__(self) -> None:
        self.heard: list[tuple[str, float, int]] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.heard.append((name, value, step))


def private_run(tmp_path: Path) -> Run:
    plan = {"protect": "users", "epsilon": 8, "users": 50, "user_rate": 0.3, "steps": 2}
    return Run(**dialogs(tmp_path), plan=plan)


def test_loggers_hear_the_public_figures_only(tmp_path: Path) -> None:
    wandb, mlflow, board = Logger(), Logger(), Scalars()
    own: list[dict[str, float]] = []
    wandb.log = wandb.tell  # type: ignore[attr-defined]
    mlflow.log_metrics = mlflow.tell  # type: ignore[attr-defined]
    inside = tmp_path / "inside.jsonl"
    made = tacit.train(
        private_run(tmp_path), folder=tmp_path / "RUN", track=[wandb, mlflow, board, own.append],
        track_private=inside,
    )  # fmt: skip
    for logger in (wandb, mlflow):
        assert [(set(figures), step) for figures, step in logger.heard] == [
            (PUBLIC, 1),
            (PUBLIC, 2),
        ]
    assert {name for name, _, _ in board.heard} == PUBLIC
    assert [set(one) for one in own] == [PUBLIC | {"step"}] * 2
    assert own[-1]["train/epsilon"] == pytest.approx(made.certificate.epsilon, rel=1e-2)
    lines = [json.loads(line) for line in inside.read_text().splitlines()]
    assert {"step", "not private/train/loss", "not private/train/units"} < set(lines[0])
    assert set(lines[0]) > PUBLIC
    assert stat.S_IMODE(inside.stat().st_mode) == 0o600


def test_the_command_line_tells_a_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yml"
    file.write_text(run_yaml(private_run(tmp_path)))
    told = tmp_path / "public.jsonl"
    assert run(["train", str(file), "-o", str(tmp_path / "RUN"), "--track", str(told)]) == 0
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    assert [set(one) for one in lines] == [PUBLIC | {"step"}] * 2


def at(phase: str, step: int, loss: float = 1.0) -> Progress:
    return Progress(phase, step, 2, StepStats(3, 0, 0, loss))


def test_steps_never_go_back() -> None:
    heard: list[Any] = []
    tracking = Tracking(private=heard.append)
    for phase, step in (("features", 1), ("masked", 1), ("masked", 2), ("train", 1)):
        tracking(at(phase, step))
    assert [one["step"] for one in heard] == [1, 2, 3]
    tracking(at("train", 2, loss=float("nan")))
    assert "not private/train/loss" not in heard[-1]


@pytest.mark.parametrize(("logger", "said"), [("board", r"end the name in \.jsonl"), (3, "A int")])
def test_what_is_no_logger(logger: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Tracking(logger)
