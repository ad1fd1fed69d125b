"""Mask-token inference: mask each word of sanitized text and let a model guess the original.

It attacks text, with a masked-word model that the attacker has; `tacit guess` asks the same.

Source: Yue et al. 2021, section 5.3.
"""

from collections import Counter

import numpy as np

from tacit.attacks.attack import Attack, Headline, Presentation, Progress, Scores, Verdict
from tacit.attacks.rates import proportion
from tacit.attacks.target import Target
from tacit.attacks.verdicts import against_guessing
from tacit.errors import DataError
from tacit.training.tasks.mask_inference import WEAK, Guessed, guess_masked, verdict
from tacit.training.tasks.masking import align


class Masks(Attack):
    """Guess each masked word of sanitized text, beside the same for text that was left alone."""

    name = "masks"
    says = "the originals of sanitized words, guessed by a masked-word model"
    needs = ("masked",)
    presentation = Presentation(
        "Guessed words of sanitized text",
        (
            Headline(
                "defence_rate", "defence rate", better="higher",
                meaning="The defence rate is the share of sanitized words that were not guessed.",
            ),
        ),
    )  # fmt: skip

    def run(
        self, target: Target, *, progress: Progress | None = None, rng: np.random.Generator
    ) -> Scores:
        """Guess every word of the texts, beside one who always guesses the commonest."""
        masked = target.masked
        assert masked is not None
        reader = target.reader
        if reader.tokenizer.mask_token_id is None:
            raise DataError(f"{target.folder} has no mask token; give a masked-word model.")
        aligned = [
            align(masked.texts, reader.tokenizer, sanitizer)
            for sanitizer in (masked.unchanged, masked.sanitizer)
        ]
        plain, sanitized = (
            guess_masked(
                reader.model, reader.tokenizer, one, context=reader.context, progress=progress
            )
            for one in aligned
        )
        guessing = _commonest(aligned[1].target)
        found = against_guessing(
            "sanitized words guessed right,", sanitized.recovered / sanitized.tokens,
            proportion(sanitized.recovered, sanitized.tokens), guessing,
        )  # fmt: skip
        if found.leak != "shown" and plain.recovered < WEAK * plain.tokens:
            found = Verdict("cannot tell", f"{verdict(plain)}.")
        figures = {
            "defence_rate": sanitized.defence_rate,
            "defence_rate_unsanitized": plain.defence_rate,
            "guessed_by_chance": guessing,
            "words": float(sanitized.tokens),
        }
        independent = "words of one text are not independent: the intervals are too narrow"
        return self.scores(
            target, figures, notes=[verdict(plain), independent], verdict=found,
            intervals={
                "defence_rate": _interval(sanitized),
                "defence_rate_unsanitized": _interval(plain),
            },
        )  # fmt: skip


ATTACK = Masks()


def _commonest(rows: list[list[int]]) -> float:
    """How often one who always guesses the commonest word is right."""
    counts = Counter(i for row in rows for i in row if i >= 0)
    return max(counts.values(), default=0) / max(1, counts.total())


def _interval(guessed: Guessed) -> tuple[float, float]:
    low, high = proportion(guessed.recovered, guessed.tokens)
    return 1 - high, 1 - low
