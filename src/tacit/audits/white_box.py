"""A direct audit of the training step: released noisy sums on the worst neighbours there are.

Canaries are users (records, entities with their holders) whose gradients fill the bound that they
are clipped to, each in a direction of its own that all tensors of a small linear model share. Each
is in or out by a fair coin. Then the method that trained the run takes its steps, with its own
sampler, clipped sums, noise and ledger, and the audit reads the releases: the score of a canary is
the log-likelihood ratio of its direction's values under what is declared.
All canaries are audited in one go: Steinke, Nasr and Jagielski 2023, whose bound assumes nothing
but the fair coins.

Nothing of the run's own text is used: this is an audit of the machinery at the run's settings.
"""

import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.special import logsumexp

from tacit.attacks.attack import Progress
from tacit.audits.canary_guesses import (
    MOST,
    OnProgress,
    declared,
    evidence_of,
    log_ratio,
    reach_of,
)
from tacit.audits.epsilon_bounds import WANTED, Evidence, rates_bound
from tacit.audits.worst_cases import (
    Array,
    Canaries,
    Directions,
    Row,
    canary_data,
    design,
    losses,
    uncapped,
)
from tacit.errors import UsageError
from tacit.planning.plan import Plan
from tacit.privacy.events import Selective, Unit
from tacit.privacy.ledger import Ledger
from tacit.privacy.rounding import down
from tacit.training.data.training_data import TrainingData
from tacit.training.dp.random_source import RandomSource
from tacit.training.methods import Method, make_dp_fedavg, make_dp_sgd, make_uedp
from tacit.training.methods.dp_sgd import denominator
from tacit.training.methods.uedp import Weights, event_of
from tacit.training.settings import LocalSettings, Run, UedpSettings

_MOST_TOKENS = 4096
"""Each canary of selective training has a token of its own, which every record is scored on."""
_MOST_RUNS = 600
"""Trainings of the published algorithm, each of which tells of one canary only."""
_HOW = "white box: the training step on canaries that fill its bounds, in or out by fair coins"
_HOW_SELECTIVE = (
    "white box: passes of selective training over records whose sensitive tokens fill the bounds "
    "of gradients and states, one of two answers by fair coins"
)


def audit_plan(
    run: Run,
    plan: Plan,
    unit: Unit,
    *,
    canaries: int | None = None,
    steps: int | None = None,
    confidence: float = 0.95,
    epsilon: float = 8.0,
    randomness: RandomSource | None = None,
    progress: Progress | None = None,
    on_progress: OnProgress | None = None,
    rng: np.random.Generator,
) -> Evidence:
    """A lower bound on epsilon of a plan's steps, as the run's method takes them.

    How many canaries depends on the certified `epsilon`, if not said otherwise; what they can show
    is told before they are used. Fewer `steps` than the plan's give a bound for fewer releases,
    which is one for all of them, too.
    """
    steps = min(steps or plan.steps, plan.steps)
    if plan.mechanism == "selective":
        return _audit_selective(
            run, plan, unit, canaries, steps, confidence, epsilon, randomness or RandomSource(None),
            progress, on_progress, rng,
        )  # fmt: skip
    build, draw = design(plan, unit)
    noise = noise_of(plan)
    reach = reach_of(
        declared(draw, noise, steps), plan.delta, confidence, epsilon, canaries=canaries,
        most=MOST // 4 if run.method == "fedavg" else MOST,
    )  # fmt: skip
    if on_progress:
        on_progress(reach.sentence(unit))
    count = reach.canaries
    rows = [row for number in range(count) for row in build(number)]
    inside = rng.random(count) < 0.5
    examples = Canaries(rows, count, inside)
    training_data = canary_data(examples, plan)
    total = np.zeros(count)
    with passing_ledger() as ledger:
        method = _method(
            run, plan, examples.width, training_data, randomness or RandomSource(None), ledger
        )
        scale = denominator(plan, training_data) / plan.clip_norm
        for step in range(1, steps + 1):
            release, _ = method.gradient(step)
            total += log_ratio(examples.along(release, count) * scale, draw, noise)
            if progress:
                progress(1)
    return evidence_of(_HOW, total, inside, reach, plan.delta, confidence, steps)


def noise_of(plan: Plan) -> float:
    """The declared noise over the clip norm."""
    if plan.noise_multiplier is None:
        raise UsageError("The plan has no noise_multiplier yet; calibrate it first.")
    return plan.noise_multiplier


@contextmanager
def passing_ledger() -> Iterator[Ledger]:
    """A ledger that nobody keeps: what an audit releases is about nobody."""
    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder) / "l.jsonl", {}) as ledger:
        yield ledger


def _method(
    run: Run,
    plan: Plan,
    width: int,
    training_data: TrainingData,
    randomness: RandomSource,
    ledger: Ledger,
) -> Method:
    model = Directions(width)
    if run.method == "fedavg":
        local = run.fedavg or LocalSettings()
        return make_dp_fedavg(model, losses, training_data, randomness, ledger, plan, local)
    return make_dp_sgd(
        model,
        losses,
        training_data,
        randomness,
        ledger,
        plan,
        token_budget=max(64, run.token_budget),
    )


def _audit_selective(
    run: Run,
    plan: Plan,
    unit: Unit,
    canaries: int | None,
    steps: int,
    confidence: float,
    epsilon: float,
    randomness: RandomSource,
    progress: Progress | None,
    on_progress: OnProgress | None,
    rng: np.random.Generator,
) -> Evidence:
    """The same for selective training, whose steps release gradients and states."""
    from tacit.audits.token_cases import (
        Overheard,
        canary_records,
        declared_evidence,
        worst_model,
    )

    if unit != "tokens":
        raise UsageError(f"unit={unit} is not promised by this plan; it has {plan.units}.")
    if noise_of(plan) == 0:
        raise UsageError("noise_multiplier=0 promises nothing, so there is nothing to audit.")
    event = plan.event()
    assert isinstance(event, Selective)
    reach = reach_of(
        lambda count: declared_evidence(event, count, steps, np.random.default_rng(0)),
        plan.delta, confidence, epsilon, canaries=canaries, most=_MOST_TOKENS,
    )  # fmt: skip
    if on_progress:
        on_progress(reach.sentence(unit))
    count = reach.canaries
    inside = rng.random(count) < 0.5
    with passing_ledger() as ledger:
        method = Overheard(
            worst_model(count, plan.states // 2), canary_records(inside, plan.segments), randomness,
            ledger, plan, token_budget=max(64, run.token_budget),
            **(run.selective.model_dump() if run.selective else {}),
        )  # fmt: skip
        for step in range(1, steps + 1):
            method.step(step)
            if progress:
                progress(1)
    # Each state also by itself: where one lacks noise, that of all else would drown it.
    parts = [(method.of_gradients + method.of_states.sum(0), 0.7)]
    parts += [(one, 0.3 / len(method.of_states)) for one in method.of_states]
    found = [
        evidence_of(
            _HOW_SELECTIVE, scores, inside, reach, plan.delta, 1 - share * (1 - confidence), steps
        )
        for scores, share in parts
    ]
    return replace(max(found, key=lambda one: one.lower), confidence=confidence)


def audit_uedp(
    settings: UedpSettings,
    *,
    users: int,
    holders: int,
    steps: int,
    runs: int | None = None,
    confidence: float = 0.95,
    epsilon: float = 0.0,
    seed: int | None = None,
    progress: Progress | None = None,
    on_progress: OnProgress | None = None,
    rng: np.random.Generator,
) -> Evidence:
    """The published algorithm where one entity is in the text of `holders` of its `users`.

    Its noise depends on how many users there are, so canaries cannot share a run: so many runs of
    one canary are made, half of them with it; by `epsilon`, which is claimed or proved, if not
    given. Each holder also has a plain record that pulls the other way, so that the entity turns
    the holder's clipped update around.
    """
    runs = runs or uedp_runs(epsilon, settings.delta, confidence)
    best = _best_of_runs(runs, settings.delta, confidence)
    if on_progress:
        on_progress(
            f"{runs:,} runs, half of them with the entity, can show epsilon {down(best)} "
            "at best (all told apart)."
        )
    flips = settings.estimator == "f_E+"
    # Where any entity lets a record in, others beside the audited one do so all the time.
    others = 0
    if settings.entity_rule == "any" and settings.entity_rate < 1:
        others = math.ceil(math.log(0.02) / math.log1p(-settings.entity_rate))
    names = ("e", *(f"c{i}" for i in range(others)))
    rows = []
    for number in range(users):
        if number >= holders or flips:
            pull = -1.0 if number < holders else 0.0
            rows.append(Row(f"u{number}", (), 0, pull, pull))
        if number < holders:
            rows.append(Row(f"u{number}", names, 0, 2.0 * len(names) if flips else 1.0, 0.0))
    worlds = [uncapped(rows, inside) for inside in (False, True)]
    owners = worlds[0][1].owners
    assert owners is not None
    noise = float(event_of(worlds[0][1], settings).noise_multiplier)
    scale = Weights.count(worlds[0][1], owners, settings).denominator(settings) / settings.clip_norm
    inside = np.arange(runs) % 2 == 1
    tests = np.zeros(runs)
    for number in range(runs):
        examples, training_data = worlds[number % 2]
        randomness = RandomSource(None if seed is None else seed + number)
        with passing_ledger() as ledger:
            method = make_uedp(
                Directions(1),
                losses,
                training_data,
                randomness,
                ledger,
                settings,
                token_budget=8192,
            )
            values = [
                float(examples.along(method.gradient(step)[0], 1)[0]) * scale
                for step in range(1, steps + 1)
            ]
        used = 1 - (1 - settings.entity_rate) ** len(names)
        tests[number] = _uedp_ratio(
            np.array(values), settings.user_rate, used, holders, noise, flips
        )
        if progress:
            progress(1)
    hits = int((tests[inside] > 0).sum())
    alarms = int((tests[~inside] > 0).sum())
    lower = rates_bound(
        hits, int(inside.sum()), alarms, int((~inside).sum()), settings.delta, confidence
    )
    right = hits + int((~inside).sum()) - alarms
    return Evidence(
        f"white box: the published step, one entity in {holders} of {users} users' text, "
        f"{runs} runs of which half have it",
        lower, confidence, runs, runs, right,
        {"steps": float(steps), "true_positives": float(hits), "false_positives": float(alarms),
         "at_best": best},
    )  # fmt: skip


def uedp_runs(epsilon: float, delta: float, confidence: float = 0.95) -> int:
    """The runs that could show a third of epsilon, 120 or more, as far as that is possible.

    >>> uedp_runs(0.4, 1e-5), uedp_runs(9.0, 1e-5), uedp_runs(500.0, 1e-5)
    (120, 160, 600)
    """
    runs = 120
    while runs < _MOST_RUNS and _best_of_runs(runs, delta, confidence) < WANTED * epsilon:
        runs += 20
    return runs


def _best_of_runs(runs: int, delta: float, confidence: float) -> float:
    half = runs // 2
    return rates_bound(half, half, 0, runs - half, delta, confidence)


def _uedp_ratio(
    values: Array, user_rate: float, with_e: float, holders: int, noise: float, flips: bool
) -> float:
    """The log-likelihood ratio of all steps: an entity drawn moves every holder who is drawn."""
    drawn = np.arange(holders + 1)
    log_chance = _log_binomial(holders, user_rate)
    likely = log_chance > log_chance.max() - 40
    drawn, log_chance = drawn[likely].astype(float), log_chance[likely]
    down = -drawn if flips else drawn * 0

    def log_density(means: Array) -> Array:
        apart = (values[:, None] - means) / noise
        found: Array = logsumexp(log_chance - 0.5 * apart**2, axis=1)
        return found

    quiet, loud = log_density(down), log_density(drawn)
    if with_e < 1:
        inside = np.logaddexp(math.log(with_e) + loud, math.log1p(-with_e) + quiet)
    else:
        inside = loud
    return float((inside - quiet).sum())


def _log_binomial(trials: int, rate: float) -> Array:
    from scipy.stats import binom

    found: Array = binom.logpmf(np.arange(trials + 1), trials, rate)
    return found
