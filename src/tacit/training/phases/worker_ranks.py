"""The other processes of a run: they open it as rank 0 does and give shares of its sums."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tacit.errors import UsageError
from tacit.planning.plan import Plan, read_plan
from tacit.training.data.fingerprint import code_digest
from tacit.training.data.training_data import TrainingData, prepare
from tacit.training.dp.gradients import BoundedSum
from tacit.training.methods import Method, SequentialMethod
from tacit.training.methods.dp_fedavg import user_updates
from tacit.training.methods.dp_sgd import record_sums, user_sums
from tacit.training.methods.noisy_sums import LossMeter, NoisySums
from tacit.training.methods.uedp import weighted_sums
from tacit.training.methods.unit_checks import require_independent_units
from tacit.training.models import weights
from tacit.training.phases.ranks import Ranks
from tacit.training.phases.run_context import RunContext, encode, open_run
from tacit.training.settings import PLANNED, LocalSettings, Run, UedpSettings, read_run
from tacit.training.tasks.measuring import check_fit

_SHARED = ("private", "fedavg", "uedp")


def follow(run: Run, ranks: Ranks, folder: Path | None = None) -> None:
    """Help with a run until its last step; `folder` is where one that goes on lies."""
    plan = run.made_plan()
    if folder is not None and run.method in PLANNED:
        plan = read_plan(folder / "plan.yml")
    require_shared(run)
    ctx = open_run(run)
    examples = encode(ctx, ctx.part)
    check_fit(ctx.model, examples)
    training_data = prepare(examples, ctx.part, ctx.mentions, plan, ctx.protected)
    ranks.require_alike(alike(ctx, training_data, plan))
    require_independent_units(run, ctx.model, ctx.task.losses, training_data, plan)
    ranks.follow(
        _total(ctx, training_data, plan),
        ctx.model,
        pieces=3 if run.method == "uedp" else 1,
    )


def follow_folder(folder: Path, ranks: Ranks) -> None:
    """Help with a run that goes on."""
    follow(read_run(folder / "run.yml"), ranks, folder)


def share(method: Method | SequentialMethod, ctx: RunContext, ranks: Ranks) -> None:
    """Let the other processes take part in the sums of a method."""
    require_shared(ctx.run)
    if not isinstance(method, NoisySums):
        raise TypeError(f"{type(method).__name__} takes no sum over owners.")
    method.spread(lambda total: ranks.lead(total, ctx.model))


def alike(ctx: RunContext, training_data: TrainingData, plan: Plan | None) -> Iterator[bytes]:
    """All that decides a share: settings, norms, code, weights, records, their owners, caps."""
    yield ctx.run.digest().encode()
    yield code_digest().encode()
    yield ctx.corpus.digest().encode()
    yield "".join(weights.snapshot(ctx.model).values()).encode()
    if plan is not None:
        norms = (plan.clip_norm, plan.record_clip, plan.records_per_step, plan.user_weight_cap)
        yield repr(norms).encode()
    if training_data.owners is not None:
        yield training_data.owners.digest().encode()
    yield training_data.rows.tobytes()
    for rows in training_data.rows_of_user:
        yield rows.tobytes()


def require_shared(run: Run) -> None:
    """Refuse a method whose step is not a sum over owners."""
    if run.method not in _SHARED:
        raise UsageError(
            f"method={run.method} trains in one process; several take {', '.join(_SHARED)}. "
            "Start it without torchrun."
        )


def _total(
    ctx: RunContext, training_data: TrainingData, plan: Plan | None
) -> Callable[[int, Any], BoundedSum]:
    """The sum that the method of a run takes over those who were drawn."""
    run, model, chance = ctx.run, ctx.model, ctx.randomness
    meter = LossMeter(model, ctx.task.losses)
    if run.method == "uedp" or plan is None:
        return weighted_sums(
            model, meter, training_data, run.uedp or UedpSettings(), run.token_budget
        )
    if run.method == "fedavg":
        return user_updates(
            model, meter, training_data, chance, plan, run.fedavg or LocalSettings()
        )
    sums = user_sums if plan.user_rate is not None else record_sums
    return sums(model, meter, training_data, chance, plan, run.token_budget)
