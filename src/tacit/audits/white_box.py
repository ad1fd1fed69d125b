"""A direct audit of the training step: released noisy sums on the worst neighbours there are.

Canaries are users (records, entities with their holders) whose gradients fill the bound that they
are clipped to, each in a direction of its own that all tensors of a small linear model share. Each
is in or out by a fair coin. Then the method that trained the run takes its steps, with its own
sampler, clipped sums, noise and ledger, and the audit reads the releases: the score of a canary is
the log-likelihood ratio of its direction's values under what is declared.
All canaries are audited in one run: Steinke, Nasr and Jagielski 2023, whose bound assumes nothing
but the fair coins.

Nothing of the run's own text is used: this is an audit of the machinery at the run's settings.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import binom

from tacit.audits.auditing import (
    Auditing,
    passing_ledger,
    sums_of,
)
from tacit.audits.canary_guesses import declared, evidence_of, log_ratio, reach_of
from tacit.audits.epsilon_bounds import WANTED, Evidence, certified, rates_bound
from tacit.audits.token_cases import Overheard, canary_records, declared_evidence, worst_model
from tacit.audits.worst_cases import (
    Array,
    Canaries,
    Directions,
    Row,
    canary_data,
    design,
    losses,
)
from tacit.errors import UsageError
from tacit.privacy.certificates.certificate import read_certificate
from tacit.privacy.events import Selective, Unit, UserClip
from tacit.privacy.ledger import read_ledger
from tacit.privacy.rounding import down
from tacit.training.dp.random_source import RandomSource
from tacit.training.methods.method import MethodInputs
from tacit.training.methods.selective import SELECTIVE
from tacit.training.methods.uedp import UEDP, UedpSettings, Weights

_MOST_TOKENS = 4096
"""Each canary of selective training has a token of its own, which every record is scored on."""
_MOST_RUNS = 600
"""Trainings of the published algorithm, each of which tells of one canary only."""
_HOW = "white box: the training step on canaries that fill its bounds, in or out by fair coins"
_HOW_SELECTIVE = (
    "white box: passes of selective training over records whose sensitive tokens fill the bounds "
    "of gradients and states, one of two answers by fair coins"
)


def audit_sums(
    auditing: Auditing, units: Mapping[Unit, float], folder: Path | None = None
) -> dict[Unit, Evidence]:
    """A lower bound on epsilon of a plan's steps for each unit, as the run's method takes them.

    How many canaries depends on what is certified for the unit, if not said otherwise; what they
    can show is said before they are used. Fewer steps than the plan's give a bound for fewer
    releases, which is one for all of them, too.
    """
    found = {}
    for unit, epsilon in units.items():
        with auditing.watch(f"Auditing the step, {unit}", auditing.total) as advance:
            plan, noise = auditing.require_plan(), auditing.noise
            build, draw = design(plan, unit)
            reach = reach_of(
                declared(draw, noise, auditing.total), plan.delta, auditing.confidence, epsilon,
                canaries=auditing.canaries, most=auditing.most,
            )  # fmt: skip
            auditing.on_progress(f"White box: {reach.sentence(unit)}")
            count, scores = reach.canaries, np.zeros(reach.canaries)
            rows = [row for number in range(count) for row in build(number)]
            inside = auditing.rng.random(count) < 0.5
            examples = Canaries(rows, count, inside)
            model, data = Directions(examples.width), canary_data(examples, plan)
            with passing_ledger() as ledger:
                inputs = MethodInputs(
                    auditing.of_canaries, model, losses, data, auditing.randomness, plan, ledger
                )
                method = sums_of(inputs)
                scale = method.denominator / plan.clip_norm
                for step in range(1, auditing.total + 1):
                    release, _ = method.noisy(step)
                    scores += log_ratio(examples.along(release, count) * scale, draw, noise)
                    advance(1)
            found[unit] = evidence_of(
                _HOW, scores, inside, reach, plan.delta, auditing.confidence, auditing.total
            )
    return found


def audit_selective(
    auditing: Auditing, units: Mapping[Unit, float], folder: Path | None = None
) -> dict[Unit, Evidence]:
    """The same for selective training, whose steps release gradients and states."""
    plan = auditing.require_plan()
    if list(units) != ["tokens"]:
        raise UsageError(f"unit={', '.join(units)} is not promised by this plan; it has tokens.")
    event, steps = plan.event(), auditing.total
    assert isinstance(event, Selective)
    reach = reach_of(
        lambda count: declared_evidence(event, count, steps, np.random.default_rng(0)),
        plan.delta, auditing.confidence, units["tokens"], canaries=auditing.canaries,
        most=_MOST_TOKENS,
    )  # fmt: skip
    auditing.on_progress(f"White box: {reach.sentence('tokens')}")
    count = reach.canaries
    inside = auditing.rng.random(count) < 0.5
    with passing_ledger() as ledger, auditing.watch("Auditing the step, tokens", steps) as advance:
        inputs = MethodInputs(
            auditing.of_canaries, worst_model(count, plan.states // 2), losses,
            canary_records(inside, plan.segments), auditing.randomness, plan, ledger,
        )  # fmt: skip
        method = Overheard(inputs, SELECTIVE.options(auditing.run))
        for step in range(1, steps + 1):
            method.step(step)
            advance(1)
    # Each state also by itself: where one lacks noise, that of all else would drown it.
    parts = [(method.of_gradients + method.of_states.sum(0), 0.7)]
    parts += [(one, 0.3 / len(method.of_states)) for one in method.of_states]
    doubt = 1 - auditing.confidence
    found = [
        evidence_of(_HOW_SELECTIVE, scores, inside, reach, plan.delta, 1 - share * doubt, steps)
        for scores, share in parts
    ]
    best = max(found, key=lambda one: one.lower)
    return {"tokens": replace(best, confidence=auditing.confidence)}


def audit_published(
    auditing: Auditing, units: Mapping[Unit, float], folder: Path
) -> dict[Unit, Evidence]:
    """The published algorithm at the degree of the entity that most users share."""
    wanted = [unit for unit in units if "entities" in unit]
    if not wanted:
        return {}
    released = read_ledger(folder / "ledger.jsonl").releases("train")
    event = next(event for event in released if isinstance(event, UserClip))
    certificate = read_certificate(folder / "certificate.json")
    published = certificate.published or {}
    claims = [float(published["epsilon"].get(unit, np.inf)) for unit in wanted]
    least = min(*claims, *(certified(certificate, unit) for unit in wanted), 1e3)
    runs = uedp_runs(least, UEDP.options(auditing.run).delta, auditing.confidence)
    users = int(published["inputs"]["users"])
    found = audit_uedp(auditing, users=users, holders=event.users_per_entity, runs=runs)
    return dict.fromkeys(wanted, found)


def _released(inputs: MethodInputs, canaries: Canaries, steps: int, *, look: bool) -> Array:
    """What the steps of one run release along the canary's direction.

    Unless told to `look`, nobody tries again whether units are independent.
    """
    with passing_ledger() as ledger:
        method = sums_of(replace(inputs, ledger=ledger))
        method._check = method._check if look else None
        values = [float(canaries.along(method.gradient(s)[0], 1)[0]) for s in range(1, steps + 1)]
    return np.array(values)


def audit_uedp(
    auditing: Auditing, *, users: int, holders: int, runs: int, seed: int | None = None
) -> Evidence:
    """The published algorithm where one entity is in the text of `holders` of its `users`.

    Its noise depends on how many users there are, so canaries cannot share a run: so many `runs`
    of one canary are made, half of them with it. Each holder also has a plain record that pulls
    the other way, so that the entity turns the holder's clipped update around.
    """
    settings, confidence = UEDP.options(auditing.run), auditing.confidence
    best = _best_of_runs(runs, settings.delta, confidence)
    auditing.on_progress(
        f"White box: {runs:,} runs, half of them with the entity, can show epsilon {down(best)} "
        "at best (all told apart)."
    )
    names, rows = _published_rows(settings, users, holders)
    examples = [Canaries(rows, 1, np.array([inside])) for inside in (False, True)]
    worlds = [(one, canary_data(one, None)) for one in examples]
    data = worlds[0][1]
    assert data.owners is not None
    inputs = MethodInputs(auditing.of_canaries, Directions(1), losses, data, auditing.randomness)
    noise = float(UEDP.event(inputs).noise_multiplier)
    scale = Weights.count(data, data.owners, settings).denominator(settings) / settings.clip_norm
    used = 1 - (1 - settings.entity_rate) ** len(names)
    scores = np.zeros(runs)
    flips = settings.estimator == "f_E+"
    with auditing.watch("Auditing the published step", runs) as advance:
        for number in range(runs):
            own, data = worlds[number % 2]
            randomness = RandomSource(None if seed is None else seed + number)
            made = replace(inputs, training_data=data, randomness=randomness)
            # The first run of each world has looked at the model and the records of the others.
            values = _released(made, own, auditing.total, look=number < 2) * scale
            scores[number] = _uedp_ratio(values, settings.user_rate, used, holders, noise, flips)
            advance(1)
    how = f"white box: the published step, one entity in {holders} of {users} users' text"
    details = {"steps": float(auditing.total), "at_best": best}
    return _runs_evidence(how, scores > 0, settings.delta, confidence, details)


def _runs_evidence(
    how: str, guesses: NDArray[np.bool_], delta: float, confidence: float, details: dict[str, float]
) -> Evidence:
    """Evidence of runs of which every second one has the canary, and of guesses that it does."""
    with_it, without, runs = guesses[1::2], guesses[::2], len(guesses)
    hits, alarms = int(with_it.sum()), int(without.sum())
    lower = rates_bound(hits, len(with_it), alarms, len(without), delta, confidence)
    details |= {"true_positives": float(hits), "false_positives": float(alarms)}
    right = hits + len(without) - alarms
    how = f"{how}, {runs} runs of which half have it"
    return Evidence(how, lower, confidence, runs, runs, right, details)


def _published_rows(
    settings: UedpSettings, users: int, holders: int
) -> tuple[tuple[str, ...], list[Row]]:
    """The entities that records of holders name, and the records of all users."""
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
    return names, rows


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
    drawn = np.arange(holders + 1.0)
    log_chance = binom.logpmf(drawn, holders, user_rate)
    likely = log_chance > log_chance.max() - 40
    drawn, log_chance = drawn[likely], log_chance[likely]

    def log_density(means: Array) -> Array:
        apart = (values[:, None] - means) / noise
        return np.asarray(logsumexp(log_chance - 0.5 * apart**2, axis=1))

    quiet, loud = log_density(-drawn if flips else drawn * 0), log_density(drawn)
    inside = loud
    if with_e < 1:
        inside = np.logaddexp(math.log(with_e) + loud, math.log1p(-with_e) + quiet)
    return float((inside - quiet).sum())
