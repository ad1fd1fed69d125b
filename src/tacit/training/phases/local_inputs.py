"""What the method of a run works on, where its records lie here, and what is refused first."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tacit.errors import UsageError
from tacit.planning.plan import Plan
from tacit.privacy.arguments import require_small_delta
from tacit.training.data.fingerprint import code_digest
from tacit.training.data.training_data import TrainingData, prepare
from tacit.training.methods.method import MethodInputs, StepStats
from tacit.training.methods.noisy_sums import NoisySumMethod
from tacit.training.models import weights
from tacit.training.models.features import OnFeatures
from tacit.training.phases.loop import OnProgress, Progress
from tacit.training.phases.redacted_start import redacted_beside
from tacit.training.phases.run_context import RunContext, encode, names_to_show
from tacit.training.settings import Run
from tacit.training.tasks.examples import Examples
from tacit.training.tasks.measuring import check_fit


def inputs_of(
    ctx: RunContext, plan: Plan | None, on_progress: OnProgress | None = None
) -> tuple[MethodInputs, dict[str, Any]]:
    """What the method of a run works on here, and what there is to note of the records.

    Refuses, before anything is trained or charged, what the method could not train.
    """
    run, model = ctx.run, ctx.model
    examples = encode(ctx, ctx.part, on_features=_features_progress(on_progress))
    check_fit(model, examples)
    training_data = prepare(examples, ctx.part, ctx.mentions, plan, ctx.protected)
    masked = redacted_beside(ctx, examples)
    training_data = replace(training_data, names=names_to_show(ctx, plan), redacted=masked)
    few = training_data.rows[:2]
    run.spec.require_model(model)
    losses = run.spec.losses(ctx.task)
    weights.check_trainable(
        model,
        (lambda: losses(model, training_data.examples.batch(few))) if len(few) else None,
    )
    return MethodInputs(
        run, model, losses, training_data, ctx.randomness, plan, None, ctx.attribute
    ), dict(examples.notes)


def _features_progress(on_progress: OnProgress | None) -> OnFeatures | None:
    """Progress in computing what a frozen encoder makes of the records."""
    if on_progress is None:
        return None
    nothing = StepStats(0, 0, 0, 0.0)
    return lambda done, of: on_progress(Progress("features", done, of, nothing))


def require_independent_units(inputs: MethodInputs) -> None:
    """Refuse a model in which one unit's vector depends on the others; see `UnitCheck`.

    Features were computed in batches, too: the check begins at the text, not at them.
    """
    training_data, masked = inputs.training_data, inputs.training_data.redacted
    if isinstance(training_data.examples, Examples):
        from_text = replace(training_data.examples, features=None)
        if masked is not None and isinstance(masked.examples, Examples):
            masked = replace(masked, examples=replace(masked.examples, features=None))
        data = replace(training_data, examples=from_text, redacted=masked)
        inputs = replace(inputs, training_data=data)
    check = inputs.run.spec.unit_check(inputs)
    if check is not None:
        check.need(first=True)


def shared_method(run: Run) -> NoisySumMethod[Any]:
    """The method of a run, if its step is a sum over units, which several processes can share."""
    if not isinstance(run.spec, NoisySumMethod) or run.spec.masked_phase or run.spec.one_process:
        raise UsageError(
            f"method={run.method} trains in one process, because its step is not one sum over "
            "users or records. Start it without torchrun."
        )
    plan = run.made_plan()
    if plan is not None and plan.select == "best":
        raise UsageError("select=best compares in one process; start it without torchrun.")
    return run.spec


def alike(ctx: RunContext, inputs: MethodInputs) -> Iterator[bytes]:
    """All that decides a share: settings, norms, code, weights, records, their owners, caps."""
    plan, training_data = inputs.plan, inputs.training_data
    yield ctx.run.digest().encode()
    yield code_digest().encode()
    yield ctx.corpus.digest().encode()
    if ctx.names is not None:
        yield ctx.part.digest().encode()
        yield repr([record.places for record in ctx.names.records]).encode()
    yield "".join(weights.snapshot(ctx.model).values()).encode()
    if plan is not None:
        norms = (plan.clip_norm, plan.record_clip, plan.records_per_step, plan.user_weight_cap)
        yield repr(norms).encode()
    if training_data.owners is not None:
        yield training_data.owners.digest().encode()
    yield training_data.rows.tobytes()
    for rows in training_data.rows_of_user:
        yield rows.tobytes()


def require_small_delta_of(plan: Plan | None, training_data: TrainingData) -> None:
    """Judge delta by the number of units that the denominator uses, where nobody declared one."""
    if plan is None or plan.users is not None or plan.records is not None:
        return
    if plan.user_rate is not None:
        require_small_delta(plan.delta, training_data.users, "users")
    else:
        require_small_delta(plan.delta, len(training_data.rows), "records")
