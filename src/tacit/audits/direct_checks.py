"""What no output of a training shows, looked at directly: noise, Poisson sampling, ledger entries.

A lower bound on epsilon says nothing about noise that is used twice, or about a draw that is made
once for all steps, until somebody makes use of it. So the noise of every release, who was drawn for
it and what the ledger holds are compared with what was declared. Each check fails an honest run
less than once in a thousand million times.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import brentq
from torch import Tensor, nn

from tacit.audits.epsilon_bounds import Check
from tacit.owners.bounding import Caps
from tacit.planning.plan import Plan
from tacit.privacy.events import AnyEvent
from tacit.privacy.ledger import LedgerContents
from tacit.training.data.training_data import TrainingData
from tacit.training.dp.gradients import BoundedSum
from tacit.training.dp.random_source import Normals
from tacit.training.models.optimizers import factor, make_optimizer, tell_noise
from tacit.training.models.weights import widened
from tacit.training.settings import OptimizerSettings

ALPHA = 1e-9
"""How often a check may fail an honest run."""
_WIDTH = 256
"""Values of a stream by which it is compared with the others."""
_PARTS, _IN_PARTS, _RELEASES, _SAMPLE = 16, 64, 1024, 4096
"""Parts of a release that are compared, in how many releases; releases in all, values of each."""
_UNITS, _STEPS = 16384, 512
"""Of how many units, and of how many steps, draws are compared pair by pair."""
_ROUNDING = 1e-3
"""By so much sums that should be equal may differ, over the clip norm."""

Array = NDArray[np.float64]
Tensors = Mapping[str, Tensor]


class Noise:
    """The noise of every release: what was released, less the sum before it."""

    def __init__(self) -> None:
        self._parts: list[Array] = []
        self._samples: list[Array] = []
        self._squares: dict[str, list[float]] = {}
        self.releases = 0

    def hear(
        self, before: Tensors, released: Tensors, noise_std: float, *, scale: float = 1.0
    ) -> None:
        """One release, which is `scale` times smaller than the noisy sum."""
        self.releases += 1
        heads: list[Array] = []
        for name, tensor in released.items():
            own = self._squares.setdefault(name, [0.0, 0.0])
            # Piece by piece, as noise is drawn: each has a stream of its own.
            pairs = zip(tensor.reshape(-1).split(Normals.LENGTH),
                        before[name].reshape(-1).split(Normals.LENGTH), strict=True)  # fmt: skip
            for piece, sum_of in pairs:
                noise = ((piece * scale - sum_of) / noise_std).double()
                own[0] += float(noise.square().sum())
                own[1] += noise.numel()
                heads.append(noise[:_WIDTH].cpu().numpy())
        if self.releases > _RELEASES:
            return
        self._samples.append(np.concatenate(heads)[:_SAMPLE] if heads else np.zeros(0))
        room = _PARTS if self.releases <= _IN_PARTS else 1
        self._parts += [head for head in heads if len(head) == _WIDTH][:room]

    def checks(self) -> list[Check]:
        """Its deviation, its shape, and whether any of it is used twice."""
        if not self._squares or not any(own[1] for own in self._squares.values()):
            return []
        found = [self._deviation(), self._shape()]
        lengths = [len(sample) for sample in self._samples]
        usual = max(set(lengths), key=lengths.count)
        rows = [sample for sample in self._samples if len(sample) == usual]
        found.append(_apart("noise of different steps is independent", np.array(rows)))
        if len(self._parts) > 1:
            found.append(_apart("noise of different parts is independent", np.array(self._parts)))
        return found

    def _deviation(self) -> Check:
        worst, where, p_least = 1.0, "", 1.0
        total = np.sum(list(self._squares.values()), axis=0)
        everything = {"": total.tolist()} | self._squares
        for name, (squares, count) in everything.items():
            if not count:
                continue
            p = _chi2_p(squares, count)
            if p <= p_least:
                p_least, worst = p, math.sqrt(squares / count)
                where = f" in '{name}'" if name else ""
        if p_least * len(everything) >= ALPHA:
            worst, where = math.sqrt(total[0] / total[1]), ""
        return Check(
            "noise has the standard deviation that was charged",
            p_least * len(everything) >= ALPHA,
            f"{worst:.4f} times the declared one{where}, of {int(total[1]):,} draws",
        )

    def _shape(self) -> Check:
        distance, p = stats.kstest(np.concatenate(self._samples), "norm")
        said = f"its distribution is within {distance:.4f} of the normal one"
        return Check("noise is Gaussian", bool(p >= ALPHA), said)


def _apart(name: str, rows: Array) -> Check:
    """Whether rows of unit noise are uncorrelated, each with each."""
    count, width = rows.shape
    if count < 2 or width == 0:
        return Check(name, True, "there is only one")
    found = np.abs(rows @ rows.T / width)
    np.fill_diagonal(found, 0)
    allowed = _largest_correlation(width, count * (count - 1) // 2)
    largest = float(found.max())
    said = f"the largest correlation of {count:,} is {largest:.2f}, chance allows {allowed:.2f}"
    return Check(name, largest <= allowed, said)


def _largest_correlation(width: int, pairs: int) -> float:
    """What the mean product of so many independent pairs of normals stays below, in all pairs.

    Chernoff's bound: E exp(t x y) = (1 - t^2)^(-1/2).

    >>> round(_largest_correlation(4096, 1), 3), round(_largest_correlation(4096, 10**6), 3)
    (0.103, 0.132)
    """

    def short_of(mean: float) -> float:
        t = (math.sqrt(1 + 4 * mean**2) - 1) / (2 * mean)
        return t * mean + 0.5 * math.log1p(-(t**2)) - math.log(2 * pairs / ALPHA) / width

    return float(brentq(short_of, 1e-9, 64.0))


class PoissonDraws:
    """Who was drawn, step by step: Poisson sampling, where each unit is drawn by itself."""

    def __init__(self, what: str, units: int, rate: float, rng: np.random.Generator) -> None:
        self._what, self._units, self._rate = what, units, rate
        self._some = np.sort(rng.choice(units, size=min(units, _UNITS), replace=False))
        self._rows: list[NDArray[np.bool_]] = []
        self._times = np.zeros(units, dtype=np.int64)
        self._sizes: list[int] = []

    def note(self, drawn: NDArray[np.int64]) -> None:
        """Who takes part in a step."""
        came = np.zeros(self._units, dtype=bool)
        came[drawn] = True
        self._times += came
        self._sizes.append(int(came.sum()))
        if len(self._rows) < _STEPS:
            self._rows.append(came[self._some])

    def checks(self) -> list[Check]:
        """Whether units are drawn at their rate, in every step anew, each by itself."""
        if not self._sizes or not self._units:
            return []
        return [self._at_rate(), self._anew(), self._by_itself()]

    def _at_rate(self) -> Check:
        drawn, tried = sum(self._sizes), self._units * len(self._sizes)
        p = [_two_sided(size, self._units, self._rate) for size in self._sizes]
        passed = min(p) * len(p) >= ALPHA / 2 and _two_sided(drawn, tried, self._rate) >= ALPHA / 2
        name = f"{self._what} are drawn at the rate that was charged"
        said = f"{drawn / tried:.4f} of them in a step, charged is {self._rate:.4f}"
        return Check(name, passed, said)

    def _anew(self) -> Check:
        """How many two steps have in common, and how often each unit came in all."""
        name = f"draws of two steps are independent ({self._what})"
        came = np.array(self._rows, dtype=np.float32)
        if len(came) < 2:
            return Check(name, True, "there is only one step")
        both = (came @ came.T)[np.triu_indices(len(came), 1)]
        share, units = self._rate**2, came.shape[1]
        p = min(_two_sided(int(extreme), units, share) for extreme in (both.min(), both.max()))
        # Whoever came never or always, or exactly as often as all others, was not drawn anew.
        spread = _excess(self._times, len(self._sizes), self._rate)
        far = both[np.argmax(np.abs(both - share * units))]
        return Check(
            name,
            bool(p * len(both) >= ALPHA / 2 and abs(spread) <= 8),
            f"of {units:,} two steps share {int(far):,}, expected are {share * units:,.0f}; how "
            f"often each came is {spread:+.1f} deviations from chance",
        )

    def _by_itself(self) -> Check:
        """Batches of a fixed size have sizes that do not spread."""
        name = f"each of the {self._what} is drawn by itself (Poisson sampling)"
        variance = self._units * self._rate * (1 - self._rate)
        if variance < 25 or len(self._sizes) < 2:
            return Check(name, True, "too few to tell")
        squares = np.square(np.array(self._sizes) - self._units * self._rate).sum() / variance
        steps = len(self._sizes)
        said = f"their number in a step spreads {math.sqrt(squares / steps):.2f} times as declared"
        return Check(name, _chi2_p(squares, steps) >= ALPHA, said)


def _chi2_p(squares: float, count: float) -> float:
    """How likely a sum of squares of so many normals is as small or as large."""
    return 2 * float(min(stats.chi2.cdf(squares, count), stats.chi2.sf(squares, count)))


def _two_sided(found: int, tried: int, rate: float) -> float:
    """How likely so few or so many are.

    >>> _two_sided(5, 5, 1.0), _two_sided(4, 5, 1.0)
    (1.0, 0.0)
    """
    below, above = stats.binom.cdf(found, tried, rate), stats.binom.sf(found - 1, tried, rate)
    return min(1.0, 2 * float(min(below, above)))


def _excess(times: NDArray[np.int64], steps: int, rate: float) -> float:
    """How far the spread of binomial counts is from what it should be, in its own deviations."""
    variance = steps * rate * (1 - rate)
    if variance == 0:
        return 0.0
    fourth = variance * (1 + 3 * (steps - 2) * rate * (1 - rate))
    squares = float(np.square(times - steps * rate).sum())
    wide = math.sqrt(max(len(times) * (fourth - variance**2), 1e-12))
    return (squares - len(times) * variance) / wide


class Replayed:
    """The weights as they become if nothing but what was released moves them."""

    def __init__(self, model: nn.Module, settings: OptimizerSettings, steps: int) -> None:
        self._settings, self._last, self.steps = settings, steps, 0
        self._model = model
        own = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._copy = nn.ParameterList([nn.Parameter(p.detach().clone()) for p in own.values()])
        self._names = list(own)
        self._rest = {
            name: tensor.detach().clone()
            for name, tensor in model.state_dict(keep_vars=True).items()
            if name not in own and not getattr(tensor, "requires_grad", False)
        }
        self._optimizer, self.noise_std = make_optimizer(self._copy, settings), 0.0

    def update(self, gradient: Tensors, step: int) -> None:
        """One step of the run's optimizer, here."""
        self.steps += 1
        tell_noise(self._optimizer, self.noise_std)
        for group in self._optimizer.param_groups:
            group["lr"] = self._settings.learning_rate * factor(self._settings, step, self._last)
        gradient = widened(gradient, self._model)
        for name, parameter in zip(self._names, self._copy, strict=True):
            given = gradient.get(name)
            parameter.grad = None if given is None else given.detach().clone()
        self._optimizer.step()

    def check(self, model: nn.Module) -> Check:
        """Compare, after the last step, with the model that was trained."""
        own = dict(model.named_parameters())
        wrong = [
            name
            for name, replayed in zip(self._names, self._copy, strict=True)
            if not torch.allclose(own[name].detach(), replayed, rtol=1e-4, atol=1e-6)
        ]
        state = model.state_dict()
        wrong += [name for name, old in self._rest.items() if not torch.equal(state[name], old)]
        said = f"'{wrong[0]}' is not" if wrong else f"{len(self._names):,} tensors, replayed"
        name = "the weights are made of what was released and of nothing else"
        return Check(name, not wrong, said)


@dataclass
class Parts:
    """What single units add to a sum, beside what they may add."""

    clip_norm: float
    norms: list[float] = field(default_factory=list)
    apart: list[float] = field(default_factory=list)

    def measure(self, alone: BoundedSum, together: BoundedSum, others: BoundedSum) -> None:
        """One unit: its sum by itself, and the sums of a company with it and without it."""
        self.norms.append(_norm(alone.tensors))
        left = {
            name: tensor - others.tensors[name] - alone.tensors[name]
            for name, tensor in together.tensors.items()
        }
        self.apart.append(_norm(left))

    def checks(self) -> list[Check]:
        """Bounded, and the same in any company."""
        if not self.norms:
            return []
        largest, furthest = max(self.norms), max(self.apart)
        over = f"{len(self.norms)} tried"
        most = f"at most {largest / self.clip_norm:.4f} times the clip norm, {over}"
        moved = f"it changes by at most {furthest / self.clip_norm:.2g} clip norms, {over}"
        bounded = largest <= self.clip_norm * (1 + _ROUNDING)
        same = furthest <= self.clip_norm * _ROUNDING
        return [
            Check("nobody adds more than the clip norm", bounded, most),
            Check("what somebody adds is the same whoever else takes part", same, moved),
        ]


def _norm(tensors: Tensors) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors.values()))


def caps_checks(training_data: TrainingData, plan: Plan) -> list[Check]:
    """Whether the records that users give, or that are drawn, are within the caps of the plan."""
    if training_data.owners is None or not plan.caps:
        return []
    by_user = plan.user_rate is not None
    given = np.concatenate(training_data.rows_of_user) if by_user else training_data.rows
    used = np.zeros(len(training_data.owners), dtype=bool)
    used[training_data.examples.record[given]] = True
    broken = Caps(**plan.caps).broken_by(training_data.owners.subset(used))
    said = ", ".join(f"{name}={found}" for name, found in (broken or plan.caps).items())
    name = "the records that are used are within the caps"
    return [Check(name, not broken, f"found {said}" if broken else f"at most {said}")]


def ledger_checks(
    books: LedgerContents,
    executed: Sequence[AnyEvent],
    updates: int | None,
    own: LedgerContents | None,
) -> list[Check]:
    """Whether a ledger holds what was executed: as many entries, the same events.

    `executed` are the releases that were heard; `updates` how often weights were changed, where
    each update is one release; `own` is the ledger of the run that is audited.
    """
    charged = [entry.event for entry in books.entries]
    passed = charged == list(executed) and updates in (None, len(charged))
    said = f"{len(charged):,} entries, {len(executed):,} releases"
    if updates is not None:
        said += f", {updates:,} updates"
    if passed is False and len(charged) == len(executed) == (updates or len(charged)):
        said += ", of which some are charged as something else"
    found = [Check("the ledger holds every release as it was made", passed, said)]
    if own is not None:
        kinds = {entry.event for entry in own.entries if entry.phase == "train"}
        other = kinds - set(executed)
        said = "the run's ledger holds other events" if other else "the same events"
        found.append(Check("the run was charged for what its settings carry out", not other, said))
    return found
