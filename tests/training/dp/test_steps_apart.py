"""Two steps share neither coins nor noise, whatever the method, with a seed and without one.

No output of a step shows it, and no price holds without it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.small import Record, Two, Vectors, data_of, losses
from support.steps import inputs_of, make_step
from tacit.audits.direct_checks import Noise, PoissonDraws
from tacit.audits.token_cases import canary_records, worst_model
from tacit.planning.plan import Plan
from tacit.privacy.ledger import Ledger
from tacit.training.dp.gradients import BoundedSum
from tacit.training.dp.random_source import RandomSource
from tacit.training.dp.sampling import PoissonRecords
from tacit.training.methods.noisy_sums import NoisySums
from tacit.training.methods.selective import SelectiveSettings, SelectiveStep
from tacit.training.methods.uedp import UedpSettings

STEPS, USERS, WIDTH = 12, 300, 200
NOISY: dict[str, Any] = {"epsilon": 1e9, "steps": STEPS, "noise_multiplier": 1.5, "clip_norm": 0.5}
RARE = np.random.default_rng(0)
CORPUS = Vectors(
    tuple(Record(u, (u % 50,), tuple(RARE.normal(size=WIDTH).tolist())) for u in range(USERS))
)
PLANS = {
    "users": Plan(protect="users", user_rate=0.3, users=USERS, **NOISY),
    "records": Plan(protect="records", record_rate=0.3, records=USERS, **NOISY),
    "dp-fedavg": Plan(protect="users", user_rate=0.3, users=USERS, **NOISY),
}
PAPER = UedpSettings(user_rate=0.3, entity_rate=0.5, plain_rate=0.5)
CHANCES = {"seed": RandomSource(1), "system": RandomSource(None)}


def made(name: str, randomness: RandomSource, ledger: Ledger) -> NoisySums[Any]:
    model, plan = Two(WIDTH), PLANS.get(name)
    training_data = data_of(CORPUS, plan)
    which = "uedp" if plan is None else "dp-fedavg" if name == "dp-fedavg" else "dp-sgd"
    made_step: NoisySums[Any] = make_step(
        which, model, losses, training_data, plan, ledger=ledger, randomness=randomness,
        token_budget=4096, options=PAPER if plan is None else None,
    )  # fmt: skip
    return made_step


@pytest.mark.parametrize("randomness", CHANCES)
@pytest.mark.parametrize("name", [*PLANS, "uedp"])
def test_steps_share_neither_coins_nor_noise(tmp_path: Path, name: str, randomness: str) -> None:
    rng = np.random.default_rng(0)
    coins = [PoissonDraws("users", USERS, 0.3, rng)]
    if name == "uedp":
        coins.append(PoissonDraws("entities", 50, 0.5, rng))
    noise, heard = Noise(), []

    def listening(total: Callable[[int, Any], BoundedSum]) -> Callable[[int, Any], BoundedSum]:
        def over(step: int, drawn: Any) -> BoundedSum:
            parts = (drawn.users, np.flatnonzero(drawn.entities)) if name == "uedp" else (drawn,)
            for own, who in zip(coins, parts, strict=True):
                own.note(who)
            heard.append(total(step, drawn))
            return heard[-1]

        return over

    with Ledger(tmp_path / "ledger.jsonl", {}) as ledger:
        method = made(name, CHANCES[randomness], ledger)
        method.spread(listening)
        for step in range(1, STEPS + 1):
            released, _ = method.gradient(step)
            before = heard[-1].tensors
            # The deviation is tested elsewhere; here the noise has whatever it has.
            both = np.concatenate(
                [(released[n] * method.denominator - before[n]).numpy().ravel() for n in before]
            )
            noise.hear(before, released, float(both.std()), scale=method.denominator)
    found = [check for own in coins for check in own.checks()] + noise.checks()
    assert [check for check in found if not check.passed and "deviation" not in check.name] == []


class Noting(PoissonRecords):
    """The method's own sampler, whose draws are noted."""

    def __init__(self, own: PoissonRecords, coins: PoissonDraws) -> None:
        super().__init__(own.records, own.rate)
        object.__setattr__(self, "both", (own, coins))

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        own, coins = self.both  # type: ignore[attr-defined]
        drawn = own.draw(rng)
        coins.note(drawn)
        return drawn


@pytest.mark.parametrize("randomness", CHANCES)
def test_passes_of_selective_training_share_neither(tmp_path: Path, randomness: str) -> None:
    plan = Plan(
        protect="tokens", mechanism="selective", record_rate=0.3, segments=2,
        **NOISY | {"clip_norm": 0.01},
    )  # fmt: skip
    coins = PoissonDraws("records", 200, 0.3, np.random.default_rng(0))
    noise = Noise()

    class Heard(SelectiveStep):
        def _release(self, total: Any, number: int, which: int, *rest: Any) -> dict[str, Any]:
            released = super()._release(total, number, which, *rest)
            clip = self._state_clip if which else self._clip
            noise.hear(total.tensors, released, 1.5 * clip)
            return released

    inside = np.random.default_rng(1).random(200) < 0.5
    with Ledger(tmp_path / "ledger.jsonl", {}) as ledger:
        inputs = inputs_of(
            "selective", worst_model(200, 1), losses, canary_records(inside, 2), plan,
            ledger=ledger, randomness=CHANCES[randomness], token_budget=8192,
        )  # fmt: skip
        method = Heard(inputs, SelectiveSettings(state_clip=0.1))
        method._sampler = Noting(method._sampler, coins)
        for step in range(1, STEPS + 1):
            for _ in method.gradients(step):
                pass
    assert [check for check in [*coins.checks(), *noise.checks()] if not check.passed] == []
