"""Audits: the known figures, honest builds that stay consistent, planted bugs that do not."""

import math
import os
import shutil
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import tacit
from support.forking import run_python
from support.runs import make_run
from support.steps import inputs_of
from tacit.audits.auditing import Auditing, passing_ledger
from tacit.audits.epsilon_bounds import (
    Check,
    Evidence,
    best_bound,
    canaries_for,
    from_canaries,
    guesses_of,
    judge,
    one_run_bound,
    rates_bound,
    read_audit,
    write_audit,
)
from tacit.audits.token_cases import (
    Overheard,
    canary_records,
    declared_of,
    worst_model,
)
from tacit.audits.white_box import audit_selective, audit_sums, audit_uedp
from tacit.errors import DataError, UsageError
from tacit.planning.plan import Plan, calibrated
from tacit.privacy.certificates.certificate import read_certificate
from tacit.privacy.events import Selective
from tacit.replication.published import uedp_claim
from tacit.training.dp.random_source import RandomSource
from tacit.training.methods.selective import SelectiveSettings
from tacit.training.methods.uedp import UedpSettings
from tacit.training.settings import Run

# (canaries, guesses, correct, delta): epsilon at 95 %, computed elsewhere from the formulas.
ONE_RUN = {
    (1000, 1000, 600, 1e-5): 0.2972,
    (1000, 100, 90, 1e-5): 1.6261,
    (1000, 200, 190, 1e-5): 2.3936,
    (5000, 500, 450, 1e-6): 1.9466,
    (1000, 100, 100, 0.0): 3.493,
    (1000, 100, 40, 1e-5): 0.0,
}
RATES = {(300, 10): 2.6971, (900, 100): 1.9897, (500, 0): 4.8461, (100, 100): 0.0}


@pytest.mark.parametrize("case", ONE_RUN, ids=str)
def test_one_run_bounds_are_the_known_ones(case: tuple[int, int, int, float]) -> None:
    assert one_run_bound(*case) == pytest.approx(ONE_RUN[case], abs=2e-4)


def printed_p_value(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """The program of Steinke, Nasr and Jagielski 2023, appendix D, line by line."""
    q = 1 / (1 + math.exp(-epsilon))
    beta = stats.binom.sf(v - 1, r, q)
    alpha, total = 0.0, 0.0
    for i in range(1, v + 1):
        total += stats.binom.pmf(v - i, r, q)
        alpha = max(alpha, total / i)
    return float(min(beta + alpha * delta * 2 * m, 1))


@given(
    st.integers(1, 400), st.floats(0, 1), st.floats(0.5, 1), st.sampled_from([0.0, 1e-6, 1e-4]),
    st.sampled_from([0.9, 0.95, 0.99]),
)  # fmt: skip
def test_the_bound_is_the_one_that_the_paper_s_program_finds(
    canaries: int, guessed: float, right: float, delta: float, confidence: float
) -> None:
    guesses = max(1, round(canaries * guessed))
    correct = round(guesses * right)
    found = one_run_bound(canaries, guesses, correct, delta, confidence)
    if found > 0:
        below = printed_p_value(canaries, guesses, correct, max(0.0, found - 1e-6), delta)
        assert below <= 1 - confidence + 1e-9
    above = printed_p_value(canaries, guesses, correct, found + 1e-6, delta)
    assert above >= 1 - confidence - 1e-9


@pytest.mark.parametrize("case", RATES, ids=str)
def test_bounds_from_rates_are_the_known_ones(case: tuple[int, int]) -> None:
    hits, alarms = case
    assert rates_bound(hits, 1000, alarms, 1000, 1e-5) == pytest.approx(RATES[case], abs=2e-4)


@pytest.mark.parametrize(
    "bad", [(10, 20, 5, 0.0), (10, 5, 6, 0.0), (10, 0, 0, 0.0), (10, 5, 5, 1.5)], ids=str
)
def test_what_cannot_be_is_refused(bad: tuple[int, int, int, float]) -> None:
    with pytest.raises(UsageError):
        one_run_bound(*bad)


def test_randomized_response_is_never_contradicted_and_nearly_reached() -> None:
    """Answers that are right with the odds e^1 are what a bound of 1 allows exactly."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(100):
        right = rng.binomial(2000, np.e / (1 + np.e))
        found.append(one_run_bound(2000, 2000, int(right), 0.0))
    assert np.mean(np.array(found) > 1) <= 0.09
    assert np.mean(found) > 0.8


def test_as_many_are_guessed_at_as_can_show_a_third() -> None:
    """Of few canaries all right guesses of a quarter would show too little to say anything."""
    assert guesses_of(2000, 1e-5, epsilon=8) == 500
    few = guesses_of(100, 1e-5, epsilon=8)
    assert 25 < few < 100
    assert one_run_bound(100, few, few, 1e-5) >= 8 / 3
    assert guesses_of(20, 1e-5, epsilon=8) == 5  # not even all of them could
    assert best_bound(20, 1e-5) < 8 / 3 <= best_bound(int(canaries_for(8, 1e-5) or 0), 1e-5)
    assert canaries_for(60, 1e-5) is None


def test_canaries_by_coins_give_a_bound() -> None:
    rng = np.random.default_rng(0)
    planted = {str(i): bool(rng.integers(2)) for i in range(400)}
    known = {name: float(inside) for name, inside in planted.items()}
    assert from_canaries(planted, known, 1e-5).lower > 2
    blind = {name: float(rng.random()) for name in planted}
    assert from_canaries(planted, blind, 1e-5).lower < 0.5
    with pytest.raises(DataError, match="too few"):
        from_canaries({"a": True}, {"a": 1.0}, 1e-5)


def evidence(lower: float) -> Evidence:
    return Evidence("a test", lower, 0.95, 100, 100, 90)


@pytest.mark.parametrize(
    ("lower", "verdict"), [(0.1, "inconclusive"), (1.5, "consistent"), (3.5, "contradicted")]
)
def test_the_verdict_is_kept_and_breaks_the_standing(
    tmp_path: Path, lower: float, verdict: str
) -> None:
    folder = make_run(tmp_path / "run")
    certificate = read_certificate(folder / "certificate.json")
    made = judge(certificate, "users", evidence(lower))
    assert made.verdict == verdict
    assert made.sentence.lower().startswith(verdict)
    write_audit(folder, [made])
    assert read_audit(folder / "audit.json") == [made]
    standing = read_certificate(folder / "certificate.json").standing
    assert standing == ("broken" if verdict == "contradicted" else "proved")
    with pytest.raises(UsageError, match="users"):
        judge(certificate, "entities", evidence(1.0))


def test_a_failed_check_breaks_whatever_the_bound_is(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    certificate = read_certificate(folder / "certificate.json")
    passed, wrong = (
        Check("one thing", True, "as it should be"),
        Check("another", False, "it is not"),
    )
    assert judge(certificate, "users", evidence(1.5), checks=[passed]).verdict == "consistent"
    made = judge(certificate, "users", evidence(0.0), checks=[passed, wrong])
    assert (made.verdict, made.failed) == ("broken", (wrong,))
    assert made.sentence.startswith("Broken: it does not hold that another (it is not)")
    write_audit(folder, [made])
    assert read_audit(folder / "audit.json") == [made]
    assert read_certificate(folder / "certificate.json").standing == "broken"


def test_a_part_of_a_run_is_judged_by_its_own_price(tmp_path: Path) -> None:
    certificate = read_certificate(make_run(tmp_path / "run") / "certificate.json")
    assert judge(certificate, "users", evidence(1.5), part=2.0).verdict == "consistent"
    made = judge(certificate, "users", evidence(2.5), part=2.0)
    assert made.verdict == "contradicted"
    assert "what was audited costs 2 (" in made.sentence
    whole = judge(certificate, "users", evidence(1.5), part=99.0)  # no part, then
    assert whole.part is None


PLANS = {
    "users": {"protect": "users", "user_rate": 0.25, "users": 500},
    "records": {"protect": "records", "record_rate": 0.25, "records": 500},
    "both": {"protect": "users+entities", "user_rate": 0.25},
    "turned around": {"protect": "entities", "user_rate": 0.25, "entity_share": 2},
    "flat": {
        "protect": "users+entities", "mechanism": "flat", "record_rate": 0.25,
        "records_per_user": 2, "records_per_entity": 1,
    },
    "masked first": {
        "protect": "tokens", "mechanism": "redact-then-private", "record_rate": 0.25,
    },
    "selective": {
        "protect": "tokens", "mechanism": "selective", "record_rate": 0.25, "segments": 2,
    },
    "selective, two layers": {
        "protect": "tokens", "mechanism": "selective", "record_rate": 0.25, "segments": 2,
        "states": 4,
    },
}  # fmt: skip


def settings(plan: Plan, method: str = "dp-sgd") -> Run:
    given = {"plan": plan.model_dump(mode="json", exclude_none=True), "corpus": "none"}
    if "entities" in plan.protect:
        given["detect"] = "gold"
    if plan.protect == "tokens":
        method, given["policy"] = plan.mechanism or "", "digits"
    return Run(method=method, **given)


def bound(run: Run, plan: Plan, unit: Any, epsilon: float, canaries: int | None = None) -> Evidence:
    """What a white-box audit finds, with a seed."""
    rng, randomness = np.random.default_rng(0), RandomSource(1)
    auditing = Auditing(run, plan, canaries, rng=rng, randomness=randomness)
    audit = audit_selective if run.method == "selective" else audit_sums
    return audit(auditing, {unit: epsilon})[unit]


@pytest.mark.parametrize("name", [*PLANS, "dp-fedavg"])
def test_honest_steps_stay_below_their_certificate(name: str) -> None:
    fields = PLANS.get(name, PLANS["users"])
    plan = calibrated(Plan(epsilon=3, steps=4, clip_norm=0.3, **fields))
    run = settings(plan, "dp-fedavg" if name == "dp-fedavg" else "dp-sgd")
    found = bound(run, plan, plan.protect, 3, canaries=1024)
    assert 0.3 < found.lower <= 3


def test_what_is_heard_of_selective_training_is_what_is_declared() -> None:
    """Every gradient and every state fills its bound: the mean evidence is half the distance."""
    plan = calibrated(
        Plan(
            protect="tokens", mechanism="selective", epsilon=4, steps=6, record_rate=0.5,
            segments=3, clip_norm=0.01,
        )
    )  # fmt: skip
    event = plan.event()
    assert isinstance(event, Selective)
    rng = np.random.default_rng(0)
    inside = rng.random(600) < 0.5
    with passing_ledger() as ledger:
        inputs = inputs_of(
            "selective", worst_model(600, 1), None,  # type: ignore[arg-type]
            canary_records(inside, 3), plan,
            ledger=ledger, token_budget=8192,
        )  # fmt: skip
        method = Overheard(inputs, SelectiveSettings(state_clip=0.1))
        for step in range(1, 7):
            method.step(step)
    declared = declared_of(event, inside, 6, rng)
    for sides in (inside, ~inside):
        heard = (method.of_gradients + method.of_states.sum(0))[sides]
        wanted = declared[sides]
        error = np.sqrt((heard.var() + wanted.var()) / sides.sum())
        assert abs(heard.mean() - wanted.mean()) < 4 * error
        assert heard.var() == pytest.approx(wanted.var(), rel=0.4)


def test_a_paper_s_figure_beside_a_proved_one_breaks_nothing(tmp_path: Path) -> None:
    certificate = read_certificate(make_run(tmp_path / "run") / "certificate.json")
    claim = {"epsilon": {"users": 0.5}}
    beside = certificate.model_copy(update={"published": claim})
    assert judge(beside, "users", evidence(1.5)).verdict == "consistent"
    assert "a paper 0.5" in judge(beside, "users", evidence(1.5)).sentence
    alone = certificate.model_copy(update={"published": claim, "plan": {}})
    assert judge(alone, "users", evidence(1.5)).verdict == "contradicted"


@pytest.mark.slow
def test_at_epsilon_8_for_users_the_bound_says_something() -> None:
    plan = calibrated(Plan(protect="users", epsilon=8, steps=30, user_rate=0.1, users=500))
    found = bound(settings(plan), plan, "users", 8)
    assert 2.5 <= found.lower <= 8


def test_at_epsilon_8_without_sampling_fewer_canaries_do() -> None:
    plan = calibrated(Plan(protect="users", epsilon=8, steps=3, user_rate=1.0, users=500))
    found = bound(settings(plan), plan, "users", 8, canaries=2048)
    assert 2.5 <= found.lower <= 8


@pytest.mark.slow
def test_the_published_accounting_is_contradicted_where_all_users_share_an_entity() -> None:
    users, steps = 100, 60
    made = UedpSettings(user_rate=0.05, clip_norm=1.0)
    claim = uedp_claim(
        users=users, users_per_step=5, entity_rate=0.5, noise_multiplier=2.0, holders=users,
        entity_rule="any", noise="lemma", user_rate=0.05, estimator="f_E+", sensitive=users,
        records=2 * users, steps=steps, delta=1e-5,
    )  # fmt: skip
    run = Run(method="uedp", steps=steps, corpus="none", detect="gold", uedp=made.model_dump())
    found = audit_uedp(Auditing(run), users=users, holders=users, runs=40, seed=1)
    assert found.lower > claim.epsilon["users+entities"]


# name: (file, what stands there, what a bug would make of it)
MUTANTS = {
    "variance for standard deviation": (
        "training/dp/noise.py",
        "noise *= np.float32(noise_std / grid)",
        "noise *= np.float32(noise_std**2 / grid)",
        "users",
    ),
    "each tensor clipped by itself": (
        "training/dp/gradients.py",
        "    for gradient in gradients.values():\n        found.add(",
        "    for gradient in list(gradients.values())[:1]:\n        found.add(",
        "users",
    ),
    "everybody drawn, priced as a sample": (
        "training/dp/sampling.py",
        "return np.flatnonzero(rng.random(self.users) < self.rate)",
        "return np.arange(self.users)",
        "users",
    ),
    "records of an entity not clipped first": (
        "training/methods/dp_sgd.py",
        "record_clip=plan.record_clip,",
        "record_clip=plan.record_clip and 1e9,",
        "entities",
    ),
    "state noise left out": (
        "training/methods/selective.py",
        'noisy.append(self._release(bounded, number, at + 1, step, part + at)["state"])',
        "self._release(bounded, number, at + 1, step, part + at)\n"
        '            noisy.append(bounded.tensors["state"])',
        "tokens",
    ),
    "cell state forgotten": (
        "training/methods/selective.py",
        "tuple((h.unsqueeze(0), c.unsqueeze(0)) for h, c in pairs)",
        "tuple((h.unsqueeze(0), own[1]) for (h, _), own in zip(pairs, after))",
        "tokens",
    ),
    "an entity's coin counted where any entity lets a record in": (
        "replication/published.py",
        'entity_rate=entity_rate if entity_rule == "all" else 1.0',
        "entity_rate=entity_rate",
        "uedp",
    ),
}
PRELUDE = """
import numpy as np
from tacit.audits.auditing import Auditing
from tacit.audits.white_box import audit_selective, audit_sums, audit_uedp
from tacit.planning.plan import Plan, calibrated
from tacit.privacy.accounting.pricing import price
from tacit.replication.published import uedp_release
from tacit.training.dp.random_source import RandomSource
from tacit.training.settings import Run
rng = np.random.default_rng(0)
"""
AUDITS = {
    "users": """
plan = calibrated(
    Plan(protect="users", epsilon=1, steps=6, clip_norm=0.01, users=500, user_rate=0.05))
run = Run(method="dp-sgd", plan=plan.model_dump(mode="json", exclude_none=True), corpus="none")
given = Auditing(run, plan, 2048, rng=rng, randomness=RandomSource(1))
print(audit_sums(given, {"users": 1.0})["users"].lower, 1.0)
""",
    "entities": """
plan = calibrated(Plan(protect="entities", epsilon=1, steps=6, clip_norm=0.1, users=500,
                       user_rate=0.25, entity_share=0.05))
fields = plan.model_dump(mode="json", exclude_none=True)
run = Run(method="dp-sgd", plan=fields, corpus="none", detect="gold")
given = Auditing(run, plan, 2048, rng=rng, randomness=RandomSource(1))
print(audit_sums(given, {"entities": 1.0})["entities"].lower, 1.0)
""",
    "tokens": """
plan = calibrated(Plan(protect="tokens", mechanism="selective", epsilon=1, steps=4, clip_norm=0.01,
                       record_rate=0.1, segments=2))
run = Run(method="selective", plan=plan.model_dump(mode="json", exclude_none=True), corpus="none",
          policy="digits", selective={"state_clip": 0.1})
given = Auditing(run, plan, 1024, rng=rng, randomness=RandomSource(1))
print(audit_selective(given, {"tokens": 1.0})["tokens"].lower, 1.0)
""",
    "uedp": """
made = dict(user_rate=1.0, entity_rate=0.02, noise_multiplier=2 / 11, clip_norm=1.0, delta=1e-5)
run = Run(method="uedp", steps=20, corpus="none", detect="gold", uedp=made)
found = audit_uedp(Auditing(run), users=10, holders=1, runs=36, seed=1)
event = uedp_release(users=10, users_per_step=10, entity_rate=0.02, noise_multiplier=2 / 11,
                     holders=1, entity_rule="any", noise="lemma", user_rate=1.0)
print(found.lower, price({event: 20}, "entities", 1e-5).epsilon)
""",
}


def audited(kind: str, **environment: str) -> tuple[float, float]:
    """The lower bound and the certified epsilon, in a process of its own."""
    done = run_python("-c", PRELUDE + AUDITS[kind], env=os.environ | environment)
    assert done.returncode == 0, done.stderr[-2000:]
    lower, upper = map(float, done.stdout.split())
    return lower, upper


@pytest.mark.parametrize("kind", AUDITS)
def test_without_a_bug_the_same_audits_contradict_nothing(kind: str) -> None:
    lower, upper = audited(kind)
    assert lower <= upper


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bugs_are_contradicted_by_the_same_audit(name: str, tmp_path: Path) -> None:
    file, old, new, kind = MUTANTS[name]
    source = tmp_path / "src"
    own = Path(tacit.__file__).parent
    # With bytecode, so that only what changes is compiled, but for what others are writing.
    shutil.copytree(own, source / "tacit", ignore=shutil.ignore_patterns("*.pyc.*"))

    def change(file: str, old: str, new: str) -> None:
        changed = source / "tacit" / file
        text = changed.read_text()
        assert text.count(old) == 1, "does not apply"
        changed.write_text(text.replace(old, new))
        Path(cache_from_source(str(changed))).unlink(missing_ok=True)

    change(file, old, new)
    if kind == "uedp":  # the sampler would refuse such a price, so it is made to believe it
        honest = '(self.entity_rate if self.rule == "all" else 1.0)'
        change("training/dp/sampling.py", honest, "self.entity_rate")
    lower, upper = audited(kind, PYTHONPATH=str(source))
    assert lower > upper
