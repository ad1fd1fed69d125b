"""Training without protection."""

import torch
from torch import Tensor, nn

from tacit.privacy.events import NotPrivate
from tacit.privacy.ledger import Ledger
from tacit.training.data.training_data import Rows, TrainingData, of_like_length
from tacit.training.dp import dropout
from tacit.training.dp.random_source import RandomSource
from tacit.training.dp.sampling import Drawn, Sampler, Shuffled, require_match
from tacit.training.methods.independence import Losses
from tacit.training.methods.method import Method, MethodInputs, MethodSpec, StepStats
from tacit.training.methods.noisy_sums import finite_losses
from tacit.training.settings import MethodSettings


class PlainStep:
    """Training without protection; the ledger says so once, before the first step."""

    def __init__(
        self,
        model: nn.Module,
        losses: Losses,
        training_data: TrainingData,
        randomness: RandomSource,
        ledger: Ledger | None,
        *,
        batch: int,
        what: str,
        sampler: Sampler[Drawn] | None = None,
    ) -> None:
        self._model, self._losses = model, losses
        self._training_data, self._randomness = training_data, randomness
        self._sampler = sampler or Shuffled(len(training_data.rows), batch)
        if ledger is not None:
            event = NotPrivate(what=what)
            require_match(self._sampler, event)
            if event not in ledger.releases:
                ledger.charge(event)

    def gradient(self, step: int) -> tuple[dict[str, Tensor], StepStats]:
        """The gradient of the mean loss of a batch."""
        drawn = self._sampler.draw(self._randomness.stream("coins", step))
        self._model.zero_grad(set_to_none=True)
        with dropout.step(self._randomness.torch_seed("dropout", step)):
            loss, stats = self._loss(step, self._training_data.rows[drawn])
            loss.backward()
        gradient = {
            name: p.grad.detach()
            for name, p in self._model.named_parameters()
            if p.requires_grad and p.grad is not None
        }
        return gradient, stats

    def _loss(self, step: int, rows: Rows) -> tuple[Tensor, StepStats]:
        examples = self._training_data.examples
        parts = [examples.batch(part) for part in of_like_length(examples, rows)]
        found = [finite_losses(self._keyed_losses, part) for part in parts]
        values, bad = torch.cat([values for values, _ in found]), sum(bad for _, bad in found)
        return mean_loss(values), stats_of(values, len(rows), bad)

    def _keyed_losses(self, batch: dict[str, Tensor]) -> Tensor:
        with dropout.keyed(self._model, batch):
            return self._losses(self._model, batch)


def mean_loss(values: Tensor) -> Tensor:
    """The mean over records; of none, zero."""
    return values.mean() if len(values) else torch.zeros((), requires_grad=True)


def stats_of(values: Tensor, drawn: int, bad: int) -> StepStats:
    """What a step saw of its records."""
    return StepStats(drawn, 0, bad, float(mean_loss(values).detach()), records=drawn)


class PlainTraining(MethodSpec[MethodSettings]):
    """Training without protection; no epsilon."""

    name = "plain"
    title = "Without protection; proves nothing"
    summary = "training without protection; no epsilon"
    federated = True

    def step(self, inputs: MethodInputs) -> Method:
        """Mean gradients of shuffled batches."""
        return PlainStep(
            inputs.model, inputs.losses, inputs.training_data, inputs.randomness, inputs.ledger,
            batch=inputs.run.batch, what=unprotected(inputs.run.method),
        )  # fmt: skip


def unprotected(method: str) -> str:
    """How the ledger names what was learnt without protection."""
    return f"training without protection (method {method})"


PLAIN = PlainTraining()
