"""Mask-token inference: mask each word of sanitized text and let a model guess the original.

It attacks text, with a masked-word model that the attacker has; `tacit guess` asks the same.

Source: Yue et al. 2021, section 5.3.
"""

from dataclasses import dataclass

import numpy as np

from tacit.attacking.attack import Need, Progress, Scores
from tacit.attacking.rates import proportion
from tacit.attacking.target import Target
from tacit.errors import DataError
from tacit.training.mask_inference import Guessed, guess_masked, verdict
from tacit.training.masking import align


@dataclass(frozen=True)
class Masks:
    """Guess each masked word of sanitized text, beside the same for text that was left alone."""

    name: str = "masks"
    says: str = "the originals of sanitized words, guessed by a masked-word model"
    needs: tuple[Need, ...] = ("masked",)

    def run(
        self, target: Target, *, progress: Progress | None = None, rng: np.random.Generator
    ) -> Scores:
        """Guess every word of the texts; chance is the sanitizer's own."""
        masked = target.masked
        assert masked is not None
        reader = target.reader
        if reader.tokenizer.mask_token_id is None:
            raise DataError(f"{target.folder} has no mask token; give a masked-word model.")
        found = [
            guess_masked(
                reader.model,
                reader.tokenizer,
                align(masked.texts, reader.tokenizer, sanitizer),
                context=reader.context,
                progress=progress,
            )
            for sanitizer in (masked.unchanged, masked.sanitizer)
        ]
        return scores_of(*found)


ATTACK = Masks()


def scores_of(plain: Guessed, sanitized: Guessed) -> Scores:
    """What was guessed of unsanitized and of sanitized text."""
    figures = {
        "defence_rate": sanitized.defence_rate,
        "defence_rate_unsanitized": plain.defence_rate,
        "words": float(sanitized.tokens),
    }
    intervals = {"defence_rate": _interval(sanitized), "defence_rate_unsanitized": _interval(plain)}
    notes = [verdict(plain), "words of one text are not independent: the intervals are too narrow"]
    return Scores("masks", figures, intervals, notes=notes)


def _interval(guessed: Guessed) -> tuple[float, float]:
    low, high = proportion(guessed.recovered, guessed.tokens)
    return 1 - high, 1 - low
