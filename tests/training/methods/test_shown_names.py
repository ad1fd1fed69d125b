"""Names that are shown: sums equal a naive loop, and neighbours move by no more than declared."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tacit.audits.audit import audit_run
from tacit.errors import PrivacyRefused, UsageError
from tacit.planning.plan import Plan
from tacit.training.data.fingerprint import training_data_digest
from tacit.training.data.substitution import Marked, Name, rewritten
from tacit.training.dp import dropout, gradients
from tacit.training.dp.noise import noise_std_of
from tacit.training.methods.dp_sgd import DP_SGD
from tacit.training.methods.method import MethodInputs
from tacit.training.methods.noisy_sums import LossMeter
from tacit.training.phases import session
from tacit.training.phases.local_inputs import inputs_of
from tacit.training.phases.run_context import RunContext, encode, open_run
from tacit.training.settings import Run
from training.methods.test_names import FIRST, INVENTED, PLAN, SECOND, run_on

TAU = 0.2
SHOWING: dict[str, Any] = PLAN | {
    "name_share": TAU, "users_per_name": 3, "names_per_user": 2, "epsilon": 30, "clip_norm": 0.3,
}  # fmt: skip
STEP = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shown")


def opened(run: Run) -> tuple[RunContext, MethodInputs]:
    ctx = open_run(run)
    inputs, _ = inputs_of(ctx, Plan(**run.plan))
    return ctx, inputs


def summed(inputs: MethodInputs, drawn: list[int]) -> Any:
    total = DP_SGD.totals(inputs, LossMeter(inputs.model, inputs.losses))
    with dropout.step(11):
        return total(STEP, np.array(drawn))


def naive(ctx: RunContext, inputs: MethodInputs, drawn: list[int]) -> dict[str, Tensor]:
    """A loop over users, names and records, each text tokenized and differentiated by itself."""
    plan, model, marks = inputs.need_plan(), inputs.model, ctx.names
    assert marks is not None
    shown = marks.shown(
        STEP, users_per_name=plan.users_per_name, names_per_user=plan.names_per_user
    )
    users = ctx.part.column("user").to_pylist()
    total = {n: torch.zeros_like(p) for n, p in model.named_parameters() if p.requires_grad}
    for unit in drawn:
        rows = [int(row) for row in inputs.training_data.rows_of_user[unit]]
        vector = clipped(added([gradient(ctx, model, marks, r) for r in rows]), plan.clip_norm)
        for one in shown:
            if one.user != users[rows[0]]:
                continue
            change = [
                minus(
                    gradient(ctx, model, marks, r, one.name),
                    gradient(ctx, model, marks, r),
                )
                for r in one.rows
            ]
            vector = added([vector, clipped(added(change), TAU * plan.clip_norm)])
        total = added([total, clipped(vector, plan.clip_norm)])
    return total


def gradient(
    ctx: RunContext, model: nn.Module, marks: Marked, row: int, shown: Name | None = None
) -> dict[str, Tensor]:
    text = marks.base(row) if shown is None else marks.showing(row, shown)
    one = rewritten(ctx.part.take([row]), [text])
    unlearnt = {one.column("id")[0].as_py(): marks.unlearnt(row, shown)}
    examples = encode(ctx, one, unlearnt=unlearnt)
    batch = examples.batch(np.array([0]))
    batch[dropout.RECORD] = torch.tensor([row])
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    with dropout.step(11), dropout.keyed(model, batch):
        loss = ctx.run.spec.losses(ctx.task)(model, batch).sum()
        found = torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])
    return dict(zip(names, found, strict=True))


def added(vectors: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: sum((v[name] for v in vectors[1:]), vectors[0][name]) for name in vectors[0]}


def minus(one: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: one[name] - other[name] for name in one}


def length(vector: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in vector.values()))


def clipped(vector: dict[str, Tensor], most: float) -> dict[str, Tensor]:
    factor = min(1.0, most / max(length(vector), 1e-30))
    return {name: tensor * factor for name, tensor in vector.items()}


@pytest.mark.parametrize("budget", [4096, 64])
def test_sums_equal_a_loop_over_users_names_and_records(folder: Path, budget: int) -> None:
    """Also where a user's records and copies are spread over several batches."""
    run = run_on(folder / "one", FIRST, plan=SHOWING, token_budget=budget)
    ctx, inputs = opened(run)
    drawn = list(range(0, inputs.training_data.users, 2))
    found, right = summed(inputs, drawn), naive(ctx, inputs, drawn)
    assert length(minus(found.tensors, right)) <= 1e-5 * length(right)
    without = summed(
        replace(inputs, training_data=replace(inputs.training_data, names=None)), drawn
    )
    assert length(minus(found.tensors, without.tensors)) > 1e-3 * length(right)  # names matter
    assert found.name_clip == pytest.approx(TAU * 0.3)


def test_who_resumes_shows_the_same_names(folder: Path) -> None:
    """Base texts do not tell which names there were: the ledger's first line knows them, too."""
    told = []
    for place, name in (("one", FIRST), ("other", SECOND)):
        _, inputs = opened(run_on(folder / place, name, plan=SHOWING))
        told.append(training_data_digest(inputs.training_data, inputs.model))
        unnamed = replace(inputs.training_data, names=None)
        told.append(training_data_digest(unnamed, inputs.model))
    assert told[1] == told[3]
    assert len({told[0], told[1], told[2]}) == 3


def test_one_user_among_others_gives_what_it_gives_alone(folder: Path) -> None:
    _, inputs = opened(run_on(folder / "one", FIRST, plan=SHOWING))
    drawn = list(range(inputs.training_data.users))
    alone = added([summed(inputs, [unit]).tensors for unit in drawn])
    among = summed(inputs, drawn).tensors
    assert length(minus(alone, among)) <= 1e-5 * length(among)


def test_another_name_moves_the_sum_by_no_more_than_its_share(folder: Path) -> None:
    """Neighbours through the whole program: k users move by tau, and nobody else at all."""
    ctx, one = opened(run_on(folder / "one", FIRST, plan=SHOWING))
    invented, other = opened(run_on(folder / "invented", INVENTED, plan=SHOWING))
    assert ctx.names is not None
    assert invented.names is not None
    moved = []
    for unit in range(one.training_data.users):
        gap = length(minus(summed(one, [unit]).tensors, summed(other, [unit]).tensors))
        assert gap <= 2 * TAU * 0.3 * (1 + 1e-5)  # a name and an address, two names
        moved.append(gap > 1e-7)
    assert 1 <= sum(moved) <= 6  # three users each


@pytest.fixture(scope="module")
def audited(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that promises 8 for users and names together, and shows names."""
    plan = SHOWING | {
        "steps": 3,
        "users_per_name": 1,
        "name_share": 0.05,
        "epsilon": 8,
        "noise_multiplier": 1.2,
    }
    run = run_on(folder / "one", FIRST, plan=plan, seed=None)
    return session.train(run, tmp_path_factory.mktemp("audited") / "run").folder


def test_a_name_and_a_user_are_audited_below_what_is_certified(audited: Path) -> None:
    found = {one.unit: one for one in audit_run(audited, canaries=128)}
    assert set(found) == {"users", "names", "users+names"}
    for one in found.values():
        assert one.lower <= one.upper
        assert one.failed == ()
    assert found["names"].upper < found["users"].upper < found["users+names"].upper <= 8


def test_a_name_that_moves_its_users_by_more_is_found_out(
    audited: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: what a name changes is clipped like a user. Else the audit shows nothing."""
    short, make = "_name_clip", gradients._NamedStep.__init__

    def careless(step: Any, *given: Any) -> None:
        make(step, *given)
        setattr(step, short, 0.3)

    monkeypatch.setattr(gradients._NamedStep, "__init__", careless)
    (one,) = audit_run(audited, using=["white-box"], unit="names", canaries=1024)
    assert one.lower > one.upper


def test_names_of_kinds_that_are_never_shown_move_nothing(folder: Path, tmp_path: Path) -> None:
    """Addresses may be shown and people not: another person changes not one bit of any sum."""
    plan = SHOWING | {"shown_kinds": ["PII/EMAIL"]}
    _, one = opened(run_on(folder / "one", FIRST, plan=plan))
    texts = (folder / "one" / "texts.jsonl").read_text(encoding="utf-8")
    other = tmp_path / "texts.jsonl"
    other.write_text(texts.replace(FIRST, SECOND).replace(FIRST.upper(), SECOND.upper()))
    _, two = opened(run_on(folder / "one", FIRST, plan=plan, corpus=str(other)))
    bare = replace(one, training_data=replace(one.training_data, names=None))
    every = list(range(one.training_data.users))
    mine, theirs = summed(one, every).tensors, summed(two, every).tensors
    assert all(bool((mine[name] == theirs[name]).all()) for name in mine)
    assert length(minus(mine, summed(bare, every).tensors)) > 0  # addresses are shown
    with pytest.raises(UsageError, match="name_share=0 shows none"):
        Plan(**plan | {"name_share": 0})


def test_an_event_with_a_smaller_share_is_refused(folder: Path) -> None:
    _, inputs = opened(run_on(folder / "one", FIRST, plan=SHOWING))
    total = summed(inputs, [0, 1])
    plan = Plan(**SHOWING | {"name_share": TAU / 2})
    with pytest.raises(PrivacyRefused, match="name_share"):
        noise_std_of(total, plan.event())
    assert noise_std_of(total, Plan(**SHOWING).event()) == pytest.approx(2.0 * 0.3)


def test_a_run_that_shows_names_is_certified_for_both(folder: Path, tmp_path: Path) -> None:
    trained = session.train(
        run_on(folder / "one", FIRST, plan=SHOWING, seed=None), tmp_path / "run"
    )
    costs = trained.certificate.costs
    assert trained.certificate.standing == "proved"
    assert 0 < float(costs["names"].epsilon) < float(costs["users"].epsilon)
    assert float(costs["users"].epsilon) < float(costs["users+names"].epsilon)


def test_a_shown_copy_has_words_and_tags_of_its_own(folder: Path) -> None:
    run = run_on(folder / "one", FIRST, plan=SHOWING, task="tagging", labels=["NN", "NNP", "FW"])
    ctx, inputs = opened(run)
    assert ctx.names is not None
    shown = ctx.names.shown(STEP, users_per_name=3, names_per_user=2)
    first = next(one for one in shown if one.name.folded == FIRST.lower())
    (row, *_) = first.rows
    copy, base = ctx.names.copies(ctx.part, [(row, first.name)]), ctx.part.take([row])
    assert "FW" in copy.column("pos").to_pylist()[0]  # of the name's own second word
    assert "FW" not in base.column("pos").to_pylist()[0]
    every = list(range(inputs.training_data.users))
    assert length(summed(inputs, every).tensors) > 0
