"""A discriminator learns to tell the author from the last hidden state; the model to prevent it.

Source: Mireshghallah et al. 2021, section 2.1, Equations 1 and 2.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from tacit.training.data.training_data import Rows
from tacit.training.methods.method import Method, MethodInputs
from tacit.training.methods.regularized import (
    RegularizedStep,
    RegularizedTraining,
    RegularizerSettings,
)
from tacit.training.models.devices import device_of
from tacit.training.models.offline import seeded
from tacit.training.models.weights import flat_optimizer, put_optimizer


class AdversarialSettings(RegularizerSettings):
    """The discriminator: two layers, learning by Adam."""

    hidden_size: Annotated[int, Field(ge=1, le=100_000)] = 1000
    learning_rate: Annotated[float, Field(gt=0, description="Its own learning rate.")] = 1e-3


class AdversarialStep(RegularizedStep):
    """Discriminator and model in turn, on the same batch: first it learns, then it is used.

    The discriminator is no part of the model. A checkpoint holds it, so that a run can go on.
    """

    def __init__(self, inputs: MethodInputs, settings: AdversarialSettings) -> None:
        super().__init__(inputs, settings)
        model, randomness, attribute = inputs.model, inputs.randomness, inputs.attribute
        assert attribute is not None
        with seeded(randomness.torch_seed("init", 1)):
            self.discriminator = nn.Sequential(
                nn.Linear(self._states.width, settings.hidden_size),
                nn.ReLU(),
                nn.Linear(settings.hidden_size, attribute.count),
            )
        self.discriminator.to(device_of(model))
        self._optimizer = torch.optim.Adam(
            self.discriminator.parameters(), lr=settings.learning_rate
        )

    def _penalty(self, step: int, states: Tensor, rows: Rows) -> Tensor:
        self.learn(states.detach(), torch.from_numpy(self._codes[rows]).long())
        weights = {name: p.detach() for name, p in self.discriminator.named_parameters()}
        return from_uniform(functional_call(self.discriminator, weights, (states,)))

    def learn(self, states: Tensor, authors: Tensor) -> None:
        """One step of the discriminator: L_D-CE = -log Pr(author | state)."""
        lost = F.cross_entropy(self.discriminator(states), authors.to(states.device))
        self._optimizer.zero_grad(set_to_none=True)
        lost.backward()
        self._optimizer.step()

    def extra_state(self) -> dict[str, Tensor]:
        """The discriminator and its optimizer."""
        own = {f"weights/{n}": p.detach() for n, p in self.discriminator.named_parameters()}
        return own | {f"optimizer/{n}": t for n, t in flat_optimizer(self._optimizer)[0].items()}

    def load_extra_state(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `extra_state` gave."""
        parts: dict[str, dict[str, Tensor]] = {"weights": {}, "optimizer": {}}
        for name, tensor in tensors.items():
            part, _, rest = name.partition("/")
            parts[part][rest] = tensor
        self.discriminator.load_state_dict(parts["weights"])
        put_optimizer(self._optimizer, parts["optimizer"], {})


def from_uniform(scores: Tensor) -> Tensor:
    """Equation 2, the mean over records: -(1/M) sum over authors of log Pr(author | state).

    It is least, log M, where every author is as likely as any other.

    >>> round(float(from_uniform(torch.zeros(3, 4))), 4)  # log 4
    1.3863
    """
    return -F.log_softmax(scores, dim=1).mean()


class Adversarial(RegularizedTraining[AdversarialSettings]):
    """Adversarial training against a discriminator of authors."""

    name = "adversarial"
    title = "Hide authors by a discriminator; proves nothing"
    summary = (
        "a discriminator learns to tell the author from the last hidden state, the model to "
        "prevent it; no epsilon"
    )
    settings = AdversarialSettings

    def step(self, inputs: MethodInputs) -> Method:
        """The task's loss and that of the discriminator."""
        return AdversarialStep(inputs, self.options(inputs.run))


ADVERSARIAL = Adversarial()
