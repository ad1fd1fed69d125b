"""Work in several real processes: the same answers in the same order, whoever is lost."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import tacit
from support.squares import Squares
from tacit.cli import run
from tacit.corpora import customersim
from tacit.corpus.writing import write
from tacit.errors import DataError, UsageError
from tacit.sanitization import streaming
from tacit.workers import Workers


@pytest.fixture(scope="module")
def ray_here() -> Iterator[str]:
    pytest.importorskip("ray")
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    # The work of these tests, and the package that is tested, which need not be the installed one.
    places = (Path(__file__).parent, Path(tacit.__file__).parents[1])
    found_here = {"PYTHONPATH": os.pathsep.join(map(str, places))}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False,
             runtime_env={"env_vars": found_here})  # fmt: skip
    yield "local"
    ray.shutdown()


def require_all(workers: Workers, folder: Path) -> None:
    """Fourteen shares, two of which end the process that has them first."""
    found = list(workers.map(Squares(folder, (3, 9)), range(14)))
    assert [square for square, _ in found] == [n * n for n in range(14)]
    pids = {pid for _, pid in found}
    assert len(pids) >= 2
    assert os.getpid() not in pids
    with pytest.raises(DataError, match="share -1 is below zero"):
        list(workers.map(Squares(folder), [1, -1]))


def test_processes_keep_order_and_do_lost_shares_again(tmp_path: Path) -> None:
    require_all(Workers(2), tmp_path)


def test_a_share_that_always_ends_its_process_ends_the_work(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="too little memory"):
        list(Workers(2).map(Squares(tmp_path, (1,), always=True), range(3)))


def test_nobody_works_nothing() -> None:
    with pytest.raises(UsageError, match="workers=0"):
        Workers(0).map(str, [])


def test_ray_keeps_order_and_does_lost_shares_again(tmp_path: Path, ray_here: str) -> None:
    require_all(Workers(2, ray_here), tmp_path)


@pytest.mark.parametrize("method", ["santext", pytest.param("pseudonym", marks=pytest.mark.slow)])
def test_detecting_and_sanitizing_are_the_same_wherever_they_are_done(
    tmp_path: Path, ray_here: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming.windows, "__defaults__", (60_000,))  # hence several shares
    corpus = tmp_path / "c.jsonl"
    write(customersim.generate(330, 3), corpus)
    how = ["--seed", "1", "--method", method]
    how += ["--epsilon-per-distance", "2"] if method == "santext" else []
    for name, workers in {"one": [], "ray": ["--workers", "2", "--ray", ray_here]}.items():
        assert run(["detect", str(corpus), "-o", str(tmp_path / f"{name}.m.jsonl"), *workers]) == 0
        out = tmp_path / name / "out.jsonl"
        assert run(["sanitize", str(corpus), *how, "-o", str(out), *workers]) == 0
        assert run(["verify", str(out.with_suffix(".certificate"))]) == 0
    assert run(["detect", str(corpus), "-o", str(tmp_path / "two.m.jsonl"), "--workers", "2"]) == 0
    first, *others = ((tmp_path / f"{n}.m.jsonl").read_bytes() for n in ("one", "ray", "two"))
    assert first
    assert all(other == first for other in others)
    assert (tmp_path / "one/out.jsonl").read_bytes() == (tmp_path / "ray/out.jsonl").read_bytes()
