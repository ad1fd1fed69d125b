"""Several real processes, started by torchrun: the same sums, the same ledger, noise once."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from support.forking import run_python
from support.small import dialogs
from tacit.privacy.ledger import read_ledger
from tacit.training.phases import session
from tacit.training.phases.local_inputs import alike, inputs_of
from tacit.training.phases.run_context import open_run
from tacit.training.settings import Run, run_yaml
from tacit.verification.runs import verify

BOTH = {"protect": "users+entities", "epsilon": 8, "steps": 5, "user_rate": 0.3, "clip_norm": 0.5}
USERS = {"protect": "users", "epsilon": 8, "steps": 3, "user_rate": 0.3, "users": 50}
RECORDS = {"protect": "records", "epsilon": 8, "steps": 3, "record_rate": 0.1, "records": 120}
PUBLISHED = {"user_rate": 0.3, "entity_rate": 0.5, "clip_norm": 0.5, "noise_multiplier": 1.0}

# The first sum is kept as it is before noise; with DIES, rank 1 ends itself in the middle of the
# third step, when rank 0 waits for its share.
WATCHED = """
import os, signal
from safetensors.torch import save_file
from tacit.training.methods import dp_sgd
from tacit.training.methods import noisy_sums
release = noisy_sums.release
def watched(total, *given, **named):
    if named["step"] == 1:
        save_file(total.tensors, os.environ["SUM"])
    return release(total, *given, **named)
noisy_sums.release = watched
if "ODD" in os.environ and os.environ["RANK"] == "1":
    import sys
    sys.argv += ["--set", "corpus=" + os.environ["ODD"]]
if "DIES" in os.environ and os.environ["RANK"] == "1":
    total_of = dp_sgd.DpSgd.totals
    def dying(*given):
        total = total_of(*given)
        def sum_over(step, drawn):
            if step == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return total(step, drawn)
        return sum_over
    dp_sgd.DpSgd.totals = dying
from tacit.cli import main
main()
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return dialogs(tmp_path_factory.mktemp("data"))


def dropping(base: dict[str, Any]) -> dict[str, Any]:
    """The model of a run with every dropout: in whose share a user falls must not show."""
    names = ("embedding_dropout", "input_dropout", "hidden_dropout", "output_dropout")
    shares = dict.fromkeys((*names, "weight_drop"), 0.3)
    return {"model": base["model"] | {"config": base["model"]["config"] | shares}}


def train(
    ranks: int, run: Run, folder: Path, *, dies: bool = False, odd: Path | None = None
) -> subprocess.CompletedProcess:
    """`tacit train` in so many processes; the first sum is kept in FOLDER.sum.

    With `odd`, rank 1 reads that corpus instead.
    """
    script, settings = folder.with_suffix(".py"), folder.with_suffix(".yml")
    script.write_text(WATCHED)
    settings.write_text(run_yaml(run))
    words = [str(script), "train", str(settings), "-o", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "SUM": str(folder.with_suffix(".sum"))}
    environment |= ({"DIES": "1"} if dies else {}) | ({"ODD": str(odd)} if odd else {})
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return run_python(*(launch if ranks > 1 else []), *words, env=environment, seconds=300)


def require_same(one: Path, other: Path) -> None:
    """The same clipped sum, and after noise and rounding to the grid, nearly always the same."""
    for suffix, closeness in ((".sum", 1e-6), ("/model.safetensors", 1e-3)):
        first, second = (load_file(f"{folder.with_suffix('')}{suffix}") for folder in (one, other))
        assert first.keys() == second.keys()
        gap = sum(float((t - second[n]).square().sum()) for n, t in first.items())
        assert gap <= closeness**2 * sum(float(t.square().sum()) for t in first.values())
    entries = [read_ledger(folder / "ledger.jsonl").entries for folder in (one, other)]
    assert [e.event for e in entries[0]] == [e.event for e in entries[1]]


def test_a_lost_rank_stops_the_run_which_goes_on_with_another_number_of_ranks(
    tmp_path: Path, base: dict[str, Any]
) -> None:
    """Two steps by two ranks and three by one are the same as five by one, dropout included.

    So are the noise-corrected moments of dp-adam and the averaged weights.
    """
    corrected = {"name": "dp-adam", "average": 0.5}
    run = Run(**base | dropping(base), plan=BOTH, optimizer=corrected)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert train(1, run, whole).returncode == 0
    assert train(2, run, cut, dies=True).returncode != 0
    assert len(read_ledger(cut / "ledger.jsonl").entries) == 2
    assert not (cut / "certificate.json").exists()
    session.resume(cut)
    require_same(whole, cut)
    assert [c.what for c in verify(cut) if not c.ok] == []


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    "settings",
    [
        {"plan": BOTH},
        {"plan": USERS},
        {"plan": RECORDS},
        {"plan": USERS | {"clip_quantile": 0.3}},
        {"plan": BOTH | {"precondition": True}},
        {"plan": USERS, "method": "dp-fedavg", "dp-fedavg": {"local_steps": 2}},
        {"method": "uedp", "steps": 3, "uedp": PUBLISHED},
    ],
    ids=["both", "users", "records", "clip-quantile", "precondition", "dp-fedavg", "uedp"],
)
def test_any_number_of_ranks_gives_the_same_model_and_ledger(
    tmp_path: Path, base: dict[str, Any], settings: dict[str, Any], ranks: int
) -> None:
    run = Run(**base | dropping(base), **settings)
    for count, folder in ((1, tmp_path / "one"), (ranks, tmp_path / "many")):
        ended = train(count, run, folder)
        assert ended.returncode == 0, ended.stderr[-2000:]
    require_same(tmp_path / "one", tmp_path / "many")


@pytest.mark.slow
def test_what_is_no_sum_over_owners_is_refused(tmp_path: Path, base: dict[str, Any]) -> None:
    ended = train(2, Run(**base, method="plain", steps=3), tmp_path / "r")
    assert ended.returncode != 0
    assert "method=plain trains in one process" in ended.stderr
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
def test_processes_that_read_records_in_another_order_refuse_each_other(
    tmp_path: Path, base: dict[str, Any]
) -> None:
    """Else a user's records could lie in two shares, and be clipped twice."""
    lines = Path(base["corpus"]).read_text().splitlines(keepends=True)
    odd = tmp_path / "odd.jsonl"
    odd.write_text("".join(reversed(lines)))
    ended = train(2, Run(**base, plan=USERS), tmp_path / "r", odd=odd)
    assert ended.returncode != 0
    assert "do not read the same" in ended.stderr
    assert not list(tmp_path.glob("r/certificate.json"))


def test_what_decides_a_share_is_compared(tmp_path: Path, base: dict[str, Any]) -> None:
    """Another norm, owner graph or frozen weight in one process would be noticed by all."""
    run = Run(**base, plan=BOTH)
    plan, ctx = run.made_plan(), open_run(run)
    assert plan is not None
    inputs, _ = inputs_of(ctx, plan)
    training_data = inputs.training_data
    facts = list(alike(ctx, inputs))
    assert facts == list(alike(ctx, inputs))
    looser = plan.model_copy(update={"clip_norm": 2 * plan.clip_norm})
    assert facts != list(alike(ctx, replace(inputs, plan=looser)))
    assert training_data.owners is not None
    fewer = replace(
        training_data, owners=training_data.owners.subset(np.arange(len(training_data.owners)) > 0)
    )
    assert facts != list(alike(ctx, replace(inputs, training_data=fewer)))
    next(ctx.model.parameters()).data.view(-1)[0] += 1
    assert facts != list(alike(ctx, inputs))
