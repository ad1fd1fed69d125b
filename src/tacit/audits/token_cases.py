"""The worst neighbours of selective training: sensitive tokens that fill every bound of a pass.

An LSTM of three coordinates whose weights are set by hand. A canary is a record with a token of its
own before each of its sensitive segments, and a sensitive token that is one of two, by a fair coin.

    gradients  the two answers pull the embedding of the canary's own token in opposite directions,
               and so strongly that nothing else of the clipped gradient is left
    states     the two answers leave opposite hidden and cell states, which are clipped

What a segment begins with does not matter to it, so noise in a state that is passed on spoils
nothing. The audit hears what leaves: noisy gradients, and the states that plain segments really
begin with. Who takes part is public in this method, so it is known to the audit.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.privacy.events import Selective
from tacit.training.data.training_data import TrainingData
from tacit.training.methods.method import MethodInputs
from tacit.training.methods.selective import SelectiveSettings, SelectiveStep
from tacit.training.models.recurrent import LSTMConfig, LSTMForCausalLM
from tacit.training.tasks.examples import Examples

Array = NDArray[np.float64]

_MARK, _SIGN, _OWN = range(3)
"""What the coordinates are for: a sensitive token was read; which one; the canary's own."""
_ONE, _OTHER, _QUIET, _FIRST = range(4)
"""The tokens: two sensitive ones, one that says nothing, and the first of the canaries' own."""
_STEEP = 1e4
_SURE = 50.0


def worst_model(canaries: int, layers: int) -> LSTMForCausalLM:
    """The LSTM whose gradients and states are as far apart as the bounds allow."""
    config = LSTMConfig(
        vocab_size=_FIRST + canaries,
        embedding_size=3,
        hidden_size=3,
        layers=layers,
        tie_word_embeddings=False,
    )
    model = LSTMForCausalLM(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        table: Any = model.body.embedding.weight
        table[_ONE, [_MARK, _SIGN]] = torch.tensor([1.0, 1.0]) / _STEEP
        table[_OTHER, [_MARK, _SIGN]] = torch.tensor([1.0, -1.0]) / _STEEP
        for number, layer in enumerate(model.body.layers):
            own: Any = layer
            # Gates in, forget, candidate, out: open, shut (no past), the input, open.
            gates = own.bias_ih_l0.view(4, 3)
            gates[0], gates[1], gates[3] = _SURE, -_SURE, _SURE
            reads = own.weight_ih_l0.view(4, 3, 3)[2]
            scale = [0.01, 5.0, 1.0] if number == 0 else [1.0, 10.0, 1.0]
            reads.copy_(torch.diag(torch.tensor(scale)) * (_STEEP if number == 0 else 1.0))
        model.head.weight[_ONE, _OWN], model.head.weight[_OTHER, _OWN] = 1.0, -1.0
        # After a sensitive token the quiet one is certain, so that this teaches nothing.
        model.head.weight[_QUIET, _MARK] = 300 * _SURE
        model.head.bias.fill_(-_SURE)
        model.head.bias[[_ONE, _OTHER]] = 0.0
    return model


def canary_records(inside: NDArray[np.bool_], segments: int) -> TrainingData:
    """One record for each canary, with as many sensitive segments as a record may have."""
    ids, marks = [], []
    for number, one in enumerate(inside):
        answer = _ONE if one else _OTHER
        row = [_QUIET, _QUIET, _FIRST + number, answer] * segments + [_QUIET, _QUIET]
        ids.append(np.array(row, dtype=np.int32))
        marks.append(np.arange(len(row)) % 4 == 3)
        marks[-1][-2:] = False
    each = np.arange(len(ids), dtype=np.int32)
    examples = Examples(ids=ids, user=each, record=each, pad=0, labels=None, sensitive=marks)
    return TrainingData(examples, each.astype(np.int64), tuple(each.reshape(-1, 1)), None, None)


class Overheard(SelectiveStep):
    """Selective training as it is, and what an adversary hears of it.

    `of_gradients` is the log-likelihood ratio of what was heard of each canary's gradients,
    `of_states` that of each of the states which the plain segments after its sensitive ones begin
    with: hidden and cell, layer by layer.
    """

    def __init__(self, inputs: MethodInputs, settings: SelectiveSettings) -> None:
        super().__init__(inputs, settings)
        records = len(inputs.training_data.rows)
        self.of_gradients = np.zeros(records)
        self.of_states = np.zeros((inputs.need_plan().states, records))
        self._begun = False

    def step(self, number: int) -> None:
        """One step; its updates are heard and not carried out."""
        self._begun = False
        for _ in self.gradients(number):
            pass

    def _plain(self, cut: Any, tally: Any) -> dict[str, torch.Tensor]:
        if self._begun:  # the first segments begin with nothing
            states = (rows[0] for layer in cut.state for rows in layer)
            for own, rows in zip(self.of_states, states, strict=True):
                _hear(
                    own, cut, rows[:, _SIGN] / self._state_clip, self._event.state_noise_multiplier
                )
        self._begun = True
        return super()._plain(cut, tally)

    def _private(
        self, cut: Any, number: int, step: int, part: int, tally: Any
    ) -> dict[str, torch.Tensor]:
        noisy = super()._private(cut, number, step, part, tally)
        if len(cut):
            rows = noisy["body.embedding.weight"][_FIRST + _canaries(cut), _OWN]
            heard = -rows * self._expected[number] / self._clip
            _hear(self.of_gradients, cut, heard, float(self._event.noise_multiplier))
        return noisy


def _hear(evidence: Array, cut: Any, values: torch.Tensor, noise: float) -> None:
    """Add values that are +1 or -1 with noise of this deviation."""
    np.add.at(evidence, _canaries(cut), 2 * values.double().numpy() / noise**2)


def _canaries(cut: Any) -> NDArray[np.int64]:
    """Whose segments these are: each record's third token is its canary's own."""
    return np.array([cut.records[int(row)].ids[2] for row in cut.rows], dtype=np.int64) - _FIRST


def declared_evidence(
    event: Selective, canaries: int, steps: int, rng: np.random.Generator
) -> Array:
    """Log-likelihood ratios as they would be if all is as declared."""
    return declared_of(event, rng.random(canaries) < 0.5, steps, rng)


def declared_of(
    event: Selective, inside: NDArray[np.bool_], steps: int, rng: np.random.Generator
) -> Array:
    """The same for canaries of which it is known whether they are in."""
    apart = event.segments * (
        (2 / event.noise_multiplier) ** 2 + event.states * (2 / event.state_noise_multiplier) ** 2
    )
    spread = rng.binomial(steps, event.rate, len(inside)) * apart
    noise = np.sqrt(spread) * rng.standard_normal(len(inside))
    return np.asarray(np.where(inside, 0.5, -0.5) * spread + noise, dtype=np.float64)
