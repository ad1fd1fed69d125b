"""N-grams counted with noise, and a network that reads texts sampled from them.

Each user's n-grams of one order are one vector, clipped, summed over everybody and released once;
then those of the next order, only where both parts stood out. A network is then trained on texts
that are sampled from these counts, without any further look at the text.

A record's vector is the gradient of a table with one number for each n-gram, so that sums, bounds
and ledger are those of DP-SGD.

Source: Kim et al. 2021 (n-grams of which each user is one noisy sum, extended order by order).
Departs: Gaussian sums of weighted vectors over a public vocabulary, and a language model of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from tacit.errors import UsageError
from tacit.planning.plan import Plan
from tacit.training.data.training_data import Rows, TrainingData, batches, units_together
from tacit.training.dp.gradients import BoundedSum, ClippedSums
from tacit.training.dp.random_source import RandomSource
from tacit.training.dp.sampling import Drawn
from tacit.training.methods.dp_sgd import PlannedSums, contributions, user_weights
from tacit.training.methods.independence import Totals, UnitCheck
from tacit.training.methods.method import Method, MethodInputs, StepStats
from tacit.training.methods.noisy_sums import LossMeter, NoisySums
from tacit.training.methods.plain import PlainStep
from tacit.training.models.noisy_ngrams import Floats, NoisyNgrams, Sampler
from tacit.training.settings import MethodSettings, Run
from tacit.training.tasks.examples import Examples

TABLE = "weight"
_TOKENS = 1 << 17
_CONTEXTS = 64


class NgramSettings(MethodSettings):
    """Which n-grams are counted, and how the network reads texts that are sampled from them."""

    orders: Annotated[
        tuple[Annotated[int, Field(ge=1, le=8)], ...],
        Field(
            description="The n-grams that each step counts. An order that is named twice in a row "
            "is counted again where it stood out; plan.steps is how many there are."
        ),
    ] = (1, 2, 2, 3, 4)
    steps: Annotated[
        int, Field(ge=1, le=10**6, description="Batches of sampled texts that the network reads.")
    ] = 400
    batch: Annotated[int, Field(ge=1, le=10**5, description="Texts of one batch.")] = 32


class CountedNgrams(PlannedSums[NgramSettings]):
    """Noisy counts of n-grams, and a network made of them.

    *Guarantee*: the plan's for as many steps as there are counts, as of DP-SGD. The network is made
    of these releases and of public things.
    """

    name = "ngrams"
    title = "Noisy counts of n-grams, and a network made of them"
    summary = (
        "n-grams counted with noise, order by order; the network is trained on texts that are "
        "sampled from the counts"
    )
    settings = NgramSettings
    optimizer: ClassVar[dict[str, Any]] = {
        "name": "adamw", "learning_rate": 6e-3, "schedule": "linear", "warmup": 20,
    }  # fmt: skip
    tasks = ("next-word",)
    clips_records = False
    one_process = True

    def problems(self, run: Run, plan: Plan | None) -> Iterator[str]:
        """What would make of the counts something else than means over everybody."""
        orders = self.options(run).orders
        rises = pairwise(orders)
        if orders[:1] != (1,) or any(after - before not in (0, 1) for before, after in rises):
            yield "ngrams.orders begins at 1 and rises by one, or names an order again."
        if plan is not None and plan.steps != len(orders):
            yield f"method=ngrams counts {len(orders)} times; give plan.steps={len(orders)}."
        if plan is not None and plan.user_rate != 1.0:
            yield "method=ngrams asks everybody each time; give plan.user_rate=1."
        if run.optimizer.average or run.optimizer.name == "dp-adam":
            yield "method=ngrams reads sampled texts: neither dp-adam nor an average is of use."
        if run.model.kind == "states" or run.model.trained_rows is not None:
            yield "method=ngrams trains whole networks; leave out kind=states and trained_rows."

    def require_model(self, model: nn.Module) -> None:
        """Texts are sampled from their first mark on."""
        _marks(model)

    def totals(self, inputs: MethodInputs, meter: LossMeter) -> Totals:
        """Clipped sums over users of what the first step counts."""
        return _totals(inputs, _nothing_counted(inputs))

    def step(self, inputs: MethodInputs) -> Method:
        """Sums over everybody, order by order."""
        event = self.event(inputs)
        assert event is not None
        ngrams = _nothing_counted(inputs)

        def some(part: TrainingData, randomness: RandomSource) -> Totals:
            return _totals(replace(inputs, training_data=part, randomness=randomness), ngrams)

        check = UnitCheck(
            inputs.model, inputs.training_data, some, losses=None,
            token_budget=inputs.run.token_budget,
        )  # fmt: skip
        return NgramSums(
            ngrams, lambda: self._reading(inputs, ngrams), self.sampler(inputs), event,
            _totals(inputs, ngrams), self.denominator(inputs),
            LossMeter(inputs.model, inputs.losses), inputs.need_ledger(), inputs.randomness,
            check=check,
        )  # fmt: skip

    def _reading(self, inputs: MethodInputs, ngrams: NoisyNgrams) -> tuple[Method, int]:
        """Steps that read texts sampled from the counts, and nothing else."""
        own, run = self.options(inputs.run), inputs.run
        start, end = _marks(inputs.model)
        rng = inputs.randomness.stream("order", 0)
        texts = Sampler(ngrams).texts(own.steps * own.batch, run.context, end, rng)
        rows = np.arange(len(texts))
        nobody = np.full(len(texts), -1, dtype=np.int32)
        examples = Examples(texts, nobody, rows.astype(np.int32), pad=start)
        sampled = TrainingData(examples, rows, (), None, None)
        return PlainStep(
            inputs.model, inputs.losses, sampled, inputs.randomness, None, batch=own.batch,
            what="texts sampled from released counts",
        ), own.steps  # fmt: skip

    def facts(self, run: Run) -> dict[str, Any]:
        """That the network is post-processing."""
        orders = ", ".join(str(order) for order in self.options(run).orders)
        return {"n-grams": f"of orders {orders}, each a release; the network read sampled texts"}


class NgramSums(NoisySums[Drawn]):
    """Noisy sums whose releases are counts; the weights move once all are there."""

    def __init__(
        self, ngrams: NoisyNgrams, reading: Callable[[], tuple[Method, int]], *given: Any,
        **named: Any,
    ) -> None:  # fmt: skip
        super().__init__(*given, **named)
        self._ngrams, self._reading = ngrams, reading
        self._released: dict[str, Tensor] = {}
        self._read = False

    def gradient(self, step: int) -> tuple[dict[str, Tensor], StepStats]:
        """No direction: a look at the n-grams that earlier looks left."""
        noisy, stats = self.noisy(step)
        counts = noisy[TABLE].view(-1)[: len(self._ngrams.now)].double()
        self._learn(torch.cat([counts, counts.new_tensor([stats.noise_std])]))
        return {}, replace(stats, noise_std=0.0)

    def _learn(self, released: Tensor) -> None:
        """Take in released counts, after which their standard deviation stands."""
        self._released[str(len(self._released))] = released
        self._ngrams.learn(released[:-1].numpy(), max(float(released[-1]), 1e-12))

    def afterwards(self) -> tuple[Method, int] | None:
        """The network that is made of all releases, once."""
        if self._read or not self._ngrams.levels:
            return None
        self._read = True
        return self._reading()

    def extra_state(self) -> dict[str, Tensor]:
        """What was released, from which everything else follows; nothing once it was read."""
        return {} if self._read else dict(self._released)

    def load_extra_state(self, tensors: dict[str, Tensor]) -> None:
        """Go on with it."""
        self._read = not tensors
        for number in range(len(tensors)):
            self._learn(tensors[str(number)])


def _marks(model: nn.Module) -> tuple[int, int | None]:
    """The token that texts begin with, and the one that they end with."""
    config: Any = model.config
    start, end = config.bos_token_id, config.eos_token_id
    if start is None and end is None:
        raise UsageError(
            "method=ngrams samples texts from their first token on, and this tokenizer sets none "
            "before a text; take tokenizer.kind=words, or a folder with a start token."
        )
    return int(end if start is None else start), None if end is None else int(end)


@torch.no_grad()
def _nothing_counted(inputs: MethodInputs) -> NoisyNgrams:
    """Nothing is known but what the start expects, after some words or other."""
    model: Any = inputs.model
    start, _ = _marks(model)
    size = int(model.config.vocab_size)
    some = torch.linspace(0, size - 1, min(_CONTEXTS, size)).long()
    ids = torch.stack([torch.full_like(some, start), some], dim=1)
    training = model.training
    model.eval()
    device = next(model.parameters()).device
    logits = model(input_ids=ids.to(device)).logits[:, -1].double().cpu()
    model.train(training)
    prior: Floats = logits.softmax(-1).mean(0).numpy() + 1e-9
    return NoisyNgrams(NGRAMS.options(inputs.run).orders, prior, start)


# --- what a user gives --------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Present:
    """In place of examples: which candidates each has, and how much each weighs.

    The vector of an example is as long as the clip norm, whatever it has.
    """

    starts: Rows
    grams: Rows
    weights: NDArray[np.float32]

    @property
    def lengths(self) -> Rows:
        return np.diff(self.starts)

    def batch(self, rows: Rows) -> dict[str, Tensor]:
        lengths = self.lengths[rows]
        mask = np.arange(max(1, int(lengths.max(initial=1)))) < lengths[:, None]
        places = np.repeat(self.starts[rows], lengths)
        places += np.arange(len(places)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        grams = np.zeros(mask.shape, dtype=np.int64)
        weights = np.zeros(mask.shape, dtype=np.float32)
        grams[mask], weights[mask] = self.grams[places], self.weights[places]
        return {"grams": torch.from_numpy(grams), "weights": torch.from_numpy(weights)}


def present(examples: Examples, rows: Rows, ngrams: NoisyNgrams, clip_norm: float) -> _Present:
    """The candidates of these examples; the others have none."""
    ids = [examples.ids[row] for row in rows]
    lengths = np.fromiter((len(one) for one in ids), dtype=np.int64, count=len(ids))
    tokens = np.concatenate([np.zeros(0, dtype=np.int64), *ids]).astype(np.int64)
    places = np.arange(len(tokens)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    found = ngrams.numbers(tokens, places)
    owner = np.repeat(np.asarray(rows), lengths)
    own = (found >= 0) & (ngrams.weights[found] > 0)
    size = max(1, len(ngrams.now))
    # An n-gram that a text has often counts once, so that a text moves no count by much.
    row, gram = np.divmod(np.unique(owner[own] * size + found[own]), size)
    weights = ngrams.weights[gram]
    norms = np.sqrt(np.bincount(row, weights=np.square(weights), minlength=len(examples)))
    weights = clip_norm * weights / np.maximum(norms[row], 1e-300)
    starts = np.searchsorted(row, np.arange(len(examples) + 1))
    return _Present(starts, gram, weights.astype(np.float32))


def _totals(inputs: MethodInputs, ngrams: NoisyNgrams) -> Totals:
    """Sums over drawn users of the clipped vectors of their n-grams, as the plan says."""
    plan, data = inputs.need_plan(), inputs.training_data

    def total(step: int, drawn: Drawn) -> BoundedSum:
        assert isinstance(data.examples, Examples)
        table = nn.Embedding(max(1, len(ngrams.now)), 1)
        units = contributions(plan, data, inputs.randomness, step, drawn)
        rows = np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *units]))
        found = present(data.examples, rows, ngrams, plan.clip_norm)
        weights = user_weights(plan, data)

        def losses(batch: dict[str, Tensor]) -> Tensor:
            said: Tensor = (table(batch["grams"]).squeeze(-1) * batch["weights"]).sum(1)
            return said

        return ClippedSums(table).users(
            losses,
            batches(found, units, _TOKENS, together=units_together(table)),
            clip_norm=plan.clip_norm,
            record_clip=plan.record_clip,
            weights=weights[drawn] if weights is not None else None,
            units=len(units),
        )

    return total


NGRAMS = CountedNgrams()
