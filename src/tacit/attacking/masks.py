"""Mask-token inference on sanitized text, as one of the registered attacks.

It attacks text rather than a trained model of next words, so it has needs of its own and is run
by `tacit guess`; here its result takes the common form.

Source: Yue et al. 2021, section 5.3.
"""

from dataclasses import dataclass

import numpy as np

from tacit.attacking.attack import Need, Progress, Scores
from tacit.attacking.target import Target
from tacit.errors import UsageError
from tacit.training.mask_inference import Guessed, verdict


@dataclass(frozen=True)
class Masks:
    """Guess each masked word of sanitized text."""

    name: str = "masks"
    says: str = "guess the masked words of sanitized text (tacit guess)"
    needs: tuple[Need, ...] = ("masked",)

    def run(
        self, target: Target, *, progress: Progress | None = None, rng: np.random.Generator
    ) -> Scores:
        """Refused: a model of next words fills no masks."""
        raise UsageError(f"The attack {self.name} is on sanitized text; run tacit guess.")

    def scores(self, plain: Guessed, sanitized: Guessed) -> Scores:
        """What `guess_masked` found on unsanitized and on sanitized text."""
        figures = {
            "defence_rate": sanitized.defence_rate,
            "defence_rate_unsanitized": plain.defence_rate,
            "tokens": float(sanitized.tokens),
        }
        intervals = {
            "defence_rate": _interval(sanitized),
            "defence_rate_unsanitized": _interval(plain),
        }
        return Scores(self.name, figures, intervals, notes=[verdict(plain)])


ATTACK = Masks()


def _interval(guessed: Guessed) -> tuple[float, float]:
    half = 1.96 * guessed.error
    return max(0.0, guessed.defence_rate - half), min(1.0, guessed.defence_rate + half)
