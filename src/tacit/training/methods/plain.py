"""Training without protection."""

import torch
from torch import Tensor, nn

from tacit.privacy.events import NotPrivate
from tacit.privacy.ledger import Ledger
from tacit.training.material import Material
from tacit.training.methods.noisy import Losses, Seen, finite_losses
from tacit.training.randomness import Chance
from tacit.training.sampling import Shuffled, need_match


class Plain:
    """Training without protection; the ledger says so once, before the first step."""

    def __init__(
        self,
        model: nn.Module,
        losses: Losses,
        material: Material,
        chance: Chance,
        ledger: Ledger | None,
        *,
        batch: int,
        what: str,
    ) -> None:
        self._model, self._losses, self._material, self._chance = model, losses, material, chance
        self._sampler = Shuffled(len(material.rows), batch)
        if ledger is not None:
            event = NotPrivate(what=what)
            need_match(self._sampler, event)
            if event not in ledger.releases:
                ledger.charge(event)

    def gradient(self, step: int) -> tuple[dict[str, Tensor], Seen]:
        """The mean gradient of a batch."""
        drawn = self._sampler.draw(self._chance.stream("coins", step))
        batch = self._material.examples.batch(self._material.rows[drawn])
        self._model.zero_grad(set_to_none=True)
        values, bad = finite_losses(lambda part: self._losses(self._model, part), batch)
        loss = values.mean() if len(values) else torch.zeros((), requires_grad=True)
        loss.backward()
        gradient = {
            name: p.grad.detach()
            for name, p in self._model.named_parameters()
            if p.requires_grad and p.grad is not None
        }
        return gradient, Seen(len(drawn), 0, bad, float(loss.detach()))
