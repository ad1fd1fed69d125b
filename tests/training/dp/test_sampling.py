"""Samplers draw as often as the event they carry out says, and claim no other event."""

import secrets

import numpy as np
import pytest

from tacit.errors import PrivacyRefused
from tacit.privacy.events import (
    AnyEvent,
    Flat,
    NotPrivate,
    Public,
    ReplaceOne,
    SampledGaussian,
    Selective,
    UserClip,
)
from tacit.training.dp.random_source import RandomSource
from tacit.training.dp.sampling import (
    Grouped,
    PoissonRecords,
    PoissonUsers,
    Sampler,
    Shuffled,
    require_match,
)


@pytest.mark.parametrize("sampler", [PoissonUsers(40, 0.3), PoissonRecords(40, 0.3)])
def test_every_coin_falls_at_its_rate_and_alone(sampler: PoissonUsers | PoissonRecords) -> None:
    draws = np.zeros((20_000, 40), dtype=bool)
    for step in range(len(draws)):
        draws[step, sampler.draw(RandomSource(7).stream("coins", step))] = True
    rates = draws.mean(axis=0)
    assert np.all(np.abs(rates - 0.3) < 5 * np.sqrt(0.3 * 0.7 / len(draws)))
    # Independent: the number drawn varies as a binomial does, and no two coins go together.
    assert draws.sum(axis=1).var() == pytest.approx(40 * 0.3 * 0.7, rel=0.05)
    together = np.corrcoef(draws.T) - np.eye(40)
    assert np.abs(together).max() < 0.05


def test_nobody_may_come() -> None:
    sampler = PoissonUsers(3, 0.01)
    sizes = [len(sampler.draw(RandomSource().stream("coins", 0))) for _ in range(50)]
    assert 0 in sizes


def test_system_chance_never_repeats_and_seeded_chance_always_does() -> None:
    system = [RandomSource().stream("noise", 1).random() for _ in range(3)]
    assert len(set(system)) == 3
    seeded = [RandomSource(4).stream("noise", 1).random() for _ in range(3)]
    assert len(set(seeded)) == 1
    other = {RandomSource(4).stream(p, s).random() for p in ("noise", "coins") for s in (1, 2)}
    assert len(other) == 4


def test_chance_of_the_system_cannot_be_tried_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever guesses a key takes the noise away; whoever guesses coins, what sampling hides."""
    keys = np.array([list(RandomSource().key(1)) for _ in range(2000)])
    assert len(np.unique(keys, axis=0)) == len(keys)
    assert min(len(np.unique(column)) for column in keys.T) > 200
    together = np.abs(np.corrcoef(keys.T) - np.eye(32))
    assert together.max() < 0.15  # no byte repeats another
    coins = {int(RandomSource().stream("coins", 1).integers(2**63)) for _ in range(2000)}
    assert len(coins) == 2000
    asked: list[int] = []
    bits, taken = secrets.randbits, secrets.token_bytes
    monkeypatch.setattr(secrets, "randbits", lambda n: asked.append(n) or bits(n))
    monkeypatch.setattr(secrets, "token_bytes", lambda n: asked.append(8 * n) or taken(n))
    RandomSource().key(1)
    RandomSource().stream("coins", 1)
    RandomSource().of_users("order", 1, 3)
    assert len(asked) == 3
    assert min(asked) >= 256


USER_EVENTS: list[AnyEvent] = [
    SampledGaussian(unit="users", rate=0.1, noise_multiplier=1.0),
    ReplaceOne(unit="users", rate=0.1, noise_multiplier=1.0),
    UserClip(user_rate=0.1, users_per_entity=2, entity_share=0.5, noise_multiplier=1.0),
]
RECORD_EVENTS: list[AnyEvent] = [
    SampledGaussian(unit="records", rate=0.1, noise_multiplier=1.0),
    ReplaceOne(unit="records", rate=0.1, noise_multiplier=1.0),
    ReplaceOne(unit="tokens", rate=0.1, noise_multiplier=1.0),
    Flat(record_rate=0.1, records_per_user=2, records_per_entity=2, noise_multiplier=1.0),
    Selective(noise_multiplier=1.0, state_noise_multiplier=1.0, segments=1, states=2, rate=0.1),
]
FREE: list[AnyEvent] = [NotPrivate(what="plain"), Public(what="public")]
OTHER: list[AnyEvent] = [
    UserClip(
        user_rate=0.1, users_per_entity=2, entity_share=0.5, entity_rate=0.5, noise_multiplier=1.0
    ),
]


def test_a_sampler_claims_its_own_events_only() -> None:
    claims: dict[Sampler, list[AnyEvent]] = {
        PoissonUsers(5, 0.1): USER_EVENTS,
        PoissonRecords(5, 0.1): RECORD_EVENTS,
        Shuffled(5, 2): FREE,
        Grouped(np.arange(5) % 2, 2): FREE,
    }
    for sampler, own in claims.items():
        for event in USER_EVENTS + RECORD_EVENTS + FREE + OTHER:
            assert sampler.carries_out(event) == (event in own)


def test_a_shuffled_batch_cannot_be_priced_as_poisson() -> None:
    for event in USER_EVENTS + RECORD_EVENTS:
        with pytest.raises(PrivacyRefused, match="only be charged as what it is"):
            require_match(Shuffled(100, 10), event)
    with pytest.raises(PrivacyRefused):
        require_match(PoissonUsers(100, 0.2), USER_EVENTS[0])  # another rate
