"""Last hidden states of different authors are drawn together, those of one author driven apart.

Source: Mireshghallah et al. 2021, section 2.2, Equation 3 (Equation 4 has its signs reversed).
Departs: the distance of two records of one author counts up to a bound; without it the loss has
no least value, and a model without bounded states would follow it for ever. The mean over pairs
is taken, not the sum, so that the weight does not depend on the size of a batch.
"""

from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from tacit.training.data.training_data import Rows
from tacit.training.dp.sampling import Shuffled
from tacit.training.methods.method import Method, MethodInputs
from tacit.training.methods.regularized import (
    RegularizedStep,
    RegularizedTraining,
    RegularizerSettings,
)


class TripletSettings(RegularizerSettings):
    """How far records of one author are driven apart."""

    bound: Annotated[
        float,
        Field(
            gt=0,
            description="Squared distance for each coordinate, beyond which nothing is gained.",
        ),
    ] = 1.0


class TripletStep(RegularizedStep):
    """Each record of a batch with a partner from an auxiliary batch; no further parameters.

    In mixed batches the partner is any record. In grouped ones a fair draw decides whether it is
    of the same author (as far as there is another record) or of a different one.
    """

    def __init__(self, inputs: MethodInputs, settings: TripletSettings) -> None:
        super().__init__(inputs, settings)
        self._bound = settings.bound * self._states.width
        self._partners = Partners(self._codes, inputs.training_data.rows)
        self._grouped = settings.batches == "grouped"

    def _penalty(self, step: int, states: Tensor, rows: Rows) -> Tensor:
        rng = self._randomness.stream("subset", step)
        everyone = self._training_data.rows
        partners = (
            self._partners.draw(rows, rng)
            if self._grouped
            else everyone[Shuffled(len(everyone), len(rows)).draw(rng)]
        )
        others = self._states.of(self._training_data.examples.batch(partners))
        same = torch.from_numpy(self._codes[rows] == self._codes[partners])
        return triplet_loss(states, others, same.to(states.device), self._bound)


def triplet_loss(states: Tensor, others: Tensor, same: Tensor, bound: float) -> Tensor:
    """The mean over pairs of their squared distance: added if authors differ, else subtracted.

    What is subtracted is at most `bound`, so the loss is never below `-bound`.

    >>> one, other = torch.tensor([[0.0, 1.0]]), torch.tensor([[2.0, 1.0]])
    >>> [float(triplet_loss(one, other, torch.tensor([s]), 3.0)) for s in (False, True)]
    [4.0, -3.0]
    """
    distances = (states - others).square().sum(1)
    return torch.where(same, -distances.clamp(max=bound), distances).mean()


class Partners:
    """For every record another one, of the same author or of a different one."""

    def __init__(self, codes: Rows, rows: Rows) -> None:
        self._order = rows[np.argsort(codes[rows], kind="stable")]
        _, starts, self._counts = np.unique(
            codes[self._order], return_index=True, return_counts=True
        )
        self._starts = starts
        self._group = np.zeros(len(codes), dtype=np.int64)
        self._group[self._order] = np.repeat(np.arange(len(starts)), self._counts)
        self._place = np.zeros(len(codes), dtype=np.int64)
        self._place[self._order] = np.arange(len(self._order))

    def draw(self, rows: Rows, rng: np.random.Generator) -> Rows:
        """By a coin each; who has but one record meets somebody else's."""
        start, count = self._starts[self._group[rows]], self._counts[self._group[rows]]
        everyone = len(self._order)
        further = 1 + rng.integers(np.maximum(count - 1, 1))
        own = start + (self._place[rows] - start + further) % count
        away = start + count + rng.integers(everyone - count)
        same = (rng.random(len(rows)) < 0.5) & (count > 1)
        chosen: Rows = self._order[np.where(same, own, away % everyone)]
        return chosen


class Triplet(RegularizedTraining[TripletSettings]):
    """Triplet training on last hidden states."""

    name = "triplet"
    title = "Hide authors by drawing their states together; proves nothing"
    summary = (
        "last hidden states of different authors drawn together, of one author driven apart; no "
        "epsilon"
    )
    settings = TripletSettings

    def step(self, inputs: MethodInputs) -> Method:
        """The task's loss and distances between authors."""
        return TripletStep(inputs, self.options(inputs.run))


TRIPLET = Triplet()
