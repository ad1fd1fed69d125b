"""Noise: as much as the event says, fresh every time, and never without its entry."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from tacit.errors import PrivacyRefused
from tacit.privacy.events import AnyEvent, Flat, NotPrivate, SampledGaussian, UserClip
from tacit.privacy.ledger import Ledger, read_ledger
from tacit.training.dp.gradients import BoundedSum, ClippedSums
from tacit.training.dp.noise import release
from tacit.training.dp.random_source import Normals, RandomSource

EVENT = SampledGaussian(unit="users", rate=0.1, noise_multiplier=3.0)


def empty_sum(clip_norm: float = 0.5, record_clip: float | None = None) -> BoundedSum:
    """The sum over a draw in which nobody came: exactly zero."""
    sums = ClippedSums(nn.Linear(300, 200))
    return sums.users(
        lambda batch: batch["x"].sum(1), [], clip_norm=clip_norm, record_clip=record_clip, units=0
    )


def released(
    ledger: Ledger, randomness: RandomSource, step: int = 1, **options: float
) -> np.ndarray:
    out = release(empty_sum(**options), EVENT, ledger, randomness, phase="train", step=step)
    return torch.cat([t.reshape(-1) for t in out.values()]).numpy()


def test_noise_is_gaussian_with_the_declared_deviation(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.jsonl", {}) as ledger:
        noise = released(ledger, RandomSource(3))
    wanted = 3.0 * 0.5  # noise multiplier times clip norm: not its square, not the multiplier
    assert noise.std() == pytest.approx(wanted, rel=0.02)
    assert abs(noise.mean()) < 5 * wanted / np.sqrt(len(noise))
    assert stats.kstest(noise / wanted, "norm").pvalue > 1e-3
    assert np.abs(noise).max() > 3.5 * wanted  # tails are there


def test_noise_differs_between_coordinates_steps_and_runs(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.jsonl", {}) as ledger:
        first, second = released(ledger, RandomSource(3), 1), released(ledger, RandomSource(3), 2)
        third, fourth = released(ledger, RandomSource(), 1), released(ledger, RandomSource(), 1)
    halves = np.split(first[: len(first) // 2 * 2], 2)
    for a, b in [(first, second), (third, fourth), (halves[0], halves[1])]:
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(len(a))


def test_numbers_from_a_cipher_are_normal_and_independent() -> None:
    many = 1 << 16
    source = Normals(bytes(32))
    found = np.stack([source.draw(stream, many).astype(float) for stream in range(32)])
    assert stats.kstest(found.ravel(), "norm").pvalue > 1e-3
    for level in (1.0, 2.0, 3.0, 4.0):
        share, wanted = (np.abs(found) > level).mean(), 2 * stats.norm.sf(level)
        assert abs(share - wanted) < 5 * np.sqrt(wanted / found.size)
    cosines, sines = np.split(found, 2, axis=1)  # made in pairs, which share a radius
    neighbours = found[:, :-1], found[:, 1:]
    streams = found[:-1], found[1:]
    other_key = found[0], Normals(bytes(31) + b"k").draw(0, many).astype(float)
    for a, b in [(cosines, sines), neighbours, streams, other_key]:
        for power in (1, 2):
            r = np.corrcoef((a**power).ravel(), (b**power).ravel())[0, 1]
            assert abs(r) < 5 / np.sqrt(a.size)


def test_streams_of_one_key_do_not_overlap() -> None:
    """Not shifted either: the distance from the origin is made of the first bits of a stream."""
    source, many = Normals(bytes(32)), 1 << 14
    squares = [(source.draw(i, many).astype(float) ** 2).reshape(2, -1).sum(0) for i in (0, 1)]
    pairs = many // 2
    for shift in range(-8, 9):
        first = squares[0][max(0, shift) : pairs + min(0, shift)]
        second = squares[1][max(0, -shift) : pairs - max(0, shift)]
        assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(len(first))


def test_nothing_gets_no_noise() -> None:
    assert len(Normals(bytes(32), 0).draw(0, 0)) == 0


def test_no_noise_is_used_twice_in_a_large_sum(tmp_path: Path) -> None:
    sums = ClippedSums(nn.Linear(1024, 512, bias=False))  # two streams
    assert 2 * Normals.LENGTH == 1024 * 512
    total = sums.users(lambda batch: batch["x"].sum(1), [], clip_norm=1.0, units=0)
    with Ledger(tmp_path / "ledger.jsonl", {}) as ledger:
        out = release(total, EVENT, ledger, RandomSource(3), phase="train", step=1)
    first, second = np.split(out["weight"].numpy().ravel(), 2)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(len(first))


def test_every_release_has_its_entry_first(tmp_path: Path) -> None:
    def none_allowed(releases: dict, event: object) -> None:
        raise PrivacyRefused("over the budget")

    with Ledger(tmp_path / "a" / "ledger.jsonl", {}) as ledger:
        for step in range(4):
            released(ledger, RandomSource(), step)
    assert read_ledger(tmp_path / "a" / "ledger.jsonl").releases() == {EVENT: 4}
    with Ledger(tmp_path / "b" / "ledger.jsonl", {}, allows=none_allowed) as ledger:
        with pytest.raises(PrivacyRefused):
            released(ledger, RandomSource())
        assert len(ledger) == 0


def test_a_sum_of_other_units_is_refused(tmp_path: Path) -> None:
    user_clip = UserClip(user_rate=0.1, users_per_entity=2, entity_share=0.5, noise_multiplier=1.0)
    events: list[AnyEvent] = [
        SampledGaussian(unit="records", rate=0.1, noise_multiplier=1.0),
        Flat(record_rate=0.1, records_per_user=1, records_per_entity=1, noise_multiplier=1.0),
        NotPrivate(what="plain"),
        user_clip,  # its share needs records clipped first, and this sum has none
    ]
    with Ledger(tmp_path / "ledger.jsonl", {}) as ledger:
        for event in events:
            with pytest.raises(PrivacyRefused):
                release(empty_sum(), event, ledger, RandomSource(), phase="train", step=1)
        assert len(ledger) == 0
        release(
            empty_sum(record_clip=0.25), user_clip, ledger, RandomSource(), phase="train", step=1
        )


def test_nothing_but_a_bounded_sum_can_be_made() -> None:
    with pytest.raises(TypeError, match="ClippedSums"):
        BoundedSum({}, 1.0, "users", None, 0, 0, 0)


def test_released_values_lie_on_a_coarse_grid(tmp_path: Path) -> None:
    """The low bits of floating-point noise, which attacks read, are rounded away."""
    with Ledger(tmp_path / "ledger.jsonl", {}) as ledger:
        noise = released(ledger, RandomSource()).astype(float)
    grid = 2.0**-10  # noise_std is 1.5
    assert np.array_equal(noise, np.round(noise / grid) * grid)
    assert len(np.unique(noise)) > 1000


def test_any_number_of_threads_makes_the_same_noise(tmp_path: Path) -> None:
    """Tests have one thread; a run has as many as there are cores, which share the pieces."""
    before = torch.get_num_threads()
    found = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        try:
            with Ledger(tmp_path / f"{threads}" / "ledger.jsonl", {}) as ledger:
                found.append(released(ledger, RandomSource(3)))
        finally:
            torch.set_num_threads(before)
    for other in found[1:]:
        assert np.array_equal(found[0], other)
