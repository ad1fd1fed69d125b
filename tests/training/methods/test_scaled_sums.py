"""Scale, then privatize: the bound of scaled sums, scales made of releases alone, going on."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from support.small import Record, Two, Vectors, data_of, dialogs, losses
from support.steps import inputs_of, make_step
from tacit.errors import UsageError
from tacit.planning.plan import Plan
from tacit.privacy.ledger import Ledger
from tacit.training.dp import noise
from tacit.training.dp.gradients import BoundedSum, joined
from tacit.training.dp.random_source import RandomSource
from tacit.training.methods import METHODS, noisy_sums
from tacit.training.methods.independence import Totals
from tacit.training.methods.noisy_sums import LossMeter
from tacit.training.methods.scaled_sums import ScaledSums, Sizes
from tacit.training.phases import session
from tacit.training.settings import OptimizerSettings, Run
from tacit.verification.runs import verify

USERS: dict[str, Any] = {
    "protect": "users", "user_rate": 1.0, "users": 4, "clip_norm": 0.5, "epsilon": 1e6, "steps": 6,
}  # fmt: skip
BOTH: dict[str, Any] = {
    "protect": "users+entities", "user_rate": 1.0, "clip_norm": 0.5, "epsilon": 1e6, "steps": 6,
}  # fmt: skip
NOISY = USERS | {"noise_multiplier": 0.4, "precondition": True}
SGD = OptimizerSettings(name="sgd", learning_rate=0.1, beta2=0.9)
PULLS = st.sampled_from([-9.0, -0.4, 0.0, 0.1, 0.5, 2.0, 1e6])
RECORDS = st.builds(
    Record, user=st.integers(0, 3), entities=st.just(()), pull=st.tuples(PULLS, PULLS)
)
VECTORS = Vectors(tuple(Record(u, (), (3.0 - u, 0.02 * (u + 1))) for u in range(4)))


def moved(vectors: Vectors, user: int, plan: Plan, scales: Mapping[str, Tensor]) -> float:
    """How far the sum goes without a user."""
    inputs = replace(
        inputs_of("dp-sgd", Two(2), losses, data_of(vectors, plan), plan), scales=scales
    )
    total = METHODS["dp-sgd"].totals(inputs, LossMeter(inputs.model, losses))  # type: ignore[attr-defined]
    everybody = np.arange(4)
    one, other = (
        torch.cat([t.reshape(-1).double() for t in total(1, who).tensors.values()])
        for who in (everybody, np.delete(everybody, user))
    )
    return float((one - other).norm())


@settings(max_examples=60, deadline=None)
@given(
    more=st.lists(RECORDS, max_size=8),
    user=st.integers(0, 3),
    seed=st.integers(0, 99),
    plan=st.sampled_from([USERS, BOTH]),
)
def test_a_user_moves_a_scaled_sum_by_at_most_the_clip_norm(
    more: list[Record], user: int, seed: int, plan: dict[str, Any]
) -> None:
    vectors = Vectors((*(Record(u, (), (0.1, 0.0)) for u in range(4)), *more))
    draws = torch.Generator().manual_seed(seed)
    scales = {
        name: torch.exp(3 * torch.randn(p.shape, generator=draws))
        for name, p in Two(2).named_parameters()
    }
    assert moved(vectors, user, Plan(**plan), scales) <= 0.5 * (1 + 1e-5)


def test_scaling_after_clipping_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: norms are taken of gradients as they are, and sums of scaled ones."""
    from tacit.training.dp import gradients

    scales = {name: torch.full(p.shape, 3.0) for name, p in Two(2).named_parameters()}
    assert moved(VECTORS, 0, Plan(**USERS), scales) <= 0.5 * (1 + 1e-5)
    honest = gradients._Step._factor
    monkeypatch.setattr(
        gradients._Step, "_factor", lambda self, unit, square: honest(self, unit, square / 9)
    )
    assert moved(VECTORS, 0, Plan(**USERS), scales) > 1.0


def steps_of(folder: Path, steps: int, plan: dict[str, Any] = NOISY) -> list[Any]:
    with Ledger(folder / "ledger.jsonl", {}) as ledger:
        method = make_step(
            "dp-sgd", Two(2), losses, data_of(VECTORS), Plan(**plan), ledger=ledger,
            randomness=RandomSource(3), optimizer=SGD,
        )  # fmt: skip
        return [method.gradient(step) for step in range(1, steps + 1)]


def replayed(released: list[dict[str, Tensor]], std: float) -> list[dict[str, Tensor]]:
    """The directions that follow from releases and the public noise, and from nothing else."""
    sizes, found = Sizes(SGD.beta2, SGD.noise_floor), []
    for one in released:
        scales = sizes.scales()
        sizes.saw(one, scales, std)
        now = sizes.sizes()
        found.append({n: t / (now[n] * scales[n] if scales else now[n]) for n, t in one.items()})
    return found


def follow_from_releases(folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a run's directions are those of its releases alone."""
    released: list[dict[str, Tensor]] = []
    honest = noise.release

    def heard(*given: Any, **named: Any) -> dict[str, Tensor]:
        out = honest(*given, **named)
        released.append({name: tensor / USERS["users"] for name, tensor in out.items()})
        return out

    monkeypatch.setattr(noisy_sums, "release", heard)
    seen = steps_of(folder, 5)
    again = replayed(released, 0.4 * 0.5 / USERS["users"])
    return all(
        torch.allclose(gradient[name], tensor, rtol=1e-5)
        for (gradient, _), one in zip(seen, again, strict=True)
        for name, tensor in one.items()
    )


def test_scales_and_directions_are_made_of_releases_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert follow_from_releases(tmp_path, monkeypatch)


def test_a_look_at_the_exact_sum_would_be_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: sizes are those of the sum before its noise."""
    exact: list[dict[str, Tensor]] = []
    honest, saw = ScaledSums._scaled, Sizes.saw

    def peek(self: Any, step: int, drawn: Any) -> Any:
        total = honest(self, step, drawn)
        exact.append({name: t / USERS["users"] for name, t in total.tensors.items()})
        return total

    def of_exact(self: Any, released: Any, scales: Any, std: float) -> None:
        saw(self, exact.pop() if exact else released, scales, std)

    monkeypatch.setattr(ScaledSums, "_scaled", peek)
    monkeypatch.setattr(Sizes, "saw", of_exact)
    assert not follow_from_releases(tmp_path, monkeypatch)


def test_it_is_the_same_event_at_the_same_price(tmp_path: Path) -> None:
    plain, scaled = (Plan(**NOISY | {"precondition": on}) for on in (False, True))
    assert plain.event(0.4) == scaled.event(0.4)
    steps_of(tmp_path, 3)
    with Ledger(tmp_path / "ledger.jsonl", {}) as ledger:
        assert dict(ledger.releases) == {plain.event(0.4): 3}


SHARED = {"scales": NOISY, "clip norm": USERS | {"noise_multiplier": 0.4, "clip_quantile": 0.3}}


def helped_by(method: Any, room: list[Tensor], helper: Totals, told: bool) -> Any:
    """Every other user is summed by a helper, who is told what the sum depends on, or is not."""

    def over(total: Totals) -> Totals:
        def shared(step: int, drawn: np.ndarray) -> BoundedSum:
            for own, sent in zip(room, method.depends_on(), strict=True):
                own.copy_(sent if told else own)
            part = helper(step, drawn[1::2])
            counts = torch.tensor([part.units, part.clipped, part.not_finite])

            def add_up(tensors: Iterable[Tensor]) -> None:
                for one, more in zip(tensors, [*part.tensors.values(), counts], strict=True):
                    one.add_(more)

            return joined(total(step, drawn[::2]), add_up)

        return shared

    return over


@pytest.mark.parametrize("told", [True, False], ids=["told", "not told"])
@pytest.mark.parametrize("what", SHARED)
def test_a_process_that_helps_clips_as_rank_0_says(tmp_path: Path, what: str, told: bool) -> None:
    """The same steps as in one process, unless nobody tells it."""
    inputs = inputs_of(
        "dp-sgd", Two(2), losses, data_of(VECTORS), Plan(**SHARED[what]), optimizer=SGD,
        randomness=RandomSource(3),
    )  # fmt: skip
    spec, steps = METHODS["dp-sgd"], []
    for helped in (False, True):
        with Ledger(tmp_path / "ledger.jsonl", {}) as ledger:
            method: Any = spec.step(replace(inputs, ledger=ledger))
            if helped:
                meter = LossMeter(inputs.model, losses)
                room, helper = spec.following(inputs, meter)  # type: ignore[attr-defined]
                method.spread(helped_by(method, room, helper, told))
            made = [method.gradient(step)[0] for step in range(1, 5)]
        steps.append([torch.cat([t.reshape(-1) for t in one.values()]) for one in made])
    same = [torch.allclose(one, other, rtol=1e-4) for one, other in zip(*steps, strict=True)]
    assert same[0]
    assert all(same) == told


def test_without_noise_entries_of_unlike_size_are_moved_alike(tmp_path: Path) -> None:
    """Pulls are a hundred times longer in one direction than in the other."""
    quiet = NOISY | {"noise_multiplier": 0.0, "clip_norm": 1e6}
    gradient, stats = steps_of(tmp_path, 4, quiet)[-1]
    assert stats.noise_std == 0
    sizes = torch.cat([t.reshape(-1) for t in gradient.values()]).abs()
    assert float(sizes.max()) == pytest.approx(1.0, rel=0.2)


def test_a_run_goes_on_with_its_scales(tmp_path: Path) -> None:
    plan = BOTH | {"epsilon": 8, "precondition": True, "user_rate": 0.5, "steps": 4}
    run = Run(**dialogs(tmp_path, 60), plan=plan, optimizer={"name": "sgd", "average": 0.5})
    whole = session.train(run, tmp_path / "whole")
    assert whole.certificate.epsilon <= 8

    class Stop(Exception):
        pass

    def stop(at: Any) -> None:
        if at.step == 3:
            raise Stop

    with pytest.raises(Stop):
        session.train(run, tmp_path / "cut", on_progress=stop)
    session.resume(tmp_path / "cut")
    one, other = (load_file(tmp_path / n / "model.safetensors") for n in ("whole", "cut"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert [c.what for c in verify(tmp_path / "cut") if not c.ok] == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"plan": {"clip_quantile": 0.5}}, "give one"),
        ({"plan": {"protect": "users+names"}}, "not done for names"),
        ({"method": "dp-fedavg"}, "not done by method=dp-fedavg"),
        ({"optimizer": {"name": "dp-adam"}}, "direction of Adam"),
    ],
)
def test_what_is_not_done_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    plan = USERS | {"precondition": True} | change.pop("plan", {})
    with pytest.raises(UsageError, match=says):
        Run(**dialogs(tmp_path, 20), plan=plan, **change)
