"""What a guarantee leaves to an attacker, in words that are chosen by that gain.

One place for the command line, the certificate, the model card, the report and the pages. The
grade is read off two bounds: how often a guess at even odds is right, and how many are caught by
somebody who may raise a false alarm for one in a hundred.
"""

import math
from dataclasses import dataclass

from scipy.special import ndtr, ndtri

from tacit.privacy.accounting.divergences import gaussian_epsilon

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""For the table that helps to choose."""

_GRADES = (
    ("strong", 0.57, 0.03, "An attacker learns next to nothing about any one of them."),
    ("good", 0.62, 0.06, "An attacker learns little about any one of them."),
    (
        "moderate", 0.71, 0.12,
        "An attacker who knows everything else can guess better than by chance about any one of "
        "them, and is still often wrong.",
    ),
    (
        "weak", 0.86, 0.40,
        "An attacker who knows everything else can tell more often than not. The bound keeps them "
        "from being certain.",
    ),
    (
        "very weak", 0.96, 0.85,
        "An attacker who knows everything else is nearly always right. The bound keeps them from "
        "being quite certain, and no more.",
    ),
)  # fmt: skip
_NEARLY_NONE = (
    "none to speak of",
    "An attacker who knows everything else may be nearly certain. Do not rely on this promise.",
)


@dataclass(frozen=True)
class Gained:
    """The bounds on an attacker for one unit; `accuracy` at even odds, `caught` at 1 % alarms."""

    accuracy: float
    caught: float
    unit: str = "users"

    @property
    def grade(self) -> str:
        """How much protection that is, in a word."""
        return self._graded()[0]

    @property
    def verdict(self) -> str:
        """The same in a sentence."""
        return self._graded()[1]

    def _graded(self) -> tuple[str, str]:
        for grade, accuracy, caught, verdict in _GRADES:
            if self.accuracy <= accuracy and self.caught <= caught:
                return grade, verdict
        return _NEARLY_NONE

    @property
    def figures(self) -> str:
        """Both bounds, rounded up, beside what guessing gives.

        >>> Gained(0.5, 0.01, "names").figures[:46]
        'Asked whether one of them stood in the text, s'
        """
        asked = "stood in the text" if self.unit == "names" else "took part"
        return (
            f"Asked whether one of them {asked}, somebody who sees all that was released and "
            f"knows all other text is right at most {of_hundred(self.accuracy)} times in a "
            f"hundred (a coin is right 50 times). If they may raise a false alarm for one in a "
            f"hundred, they catch at most {of_hundred(self.caught)} of a hundred."
        )

    @property
    def briefly(self) -> str:
        """The grade and both bounds, beside the same in full for another unit."""
        return (
            f"protection is {self.grade}, right at most {of_hundred(self.accuracy)} times in a "
            f"hundred, {of_hundred(self.caught)} of a hundred caught"
        )


def of_hundred(rate: float) -> str:
    """A rate as so many of a hundred, rounded up.

    >>> of_hundred(0.8061), of_hundred(0.01), of_hundred(1.0)
    ('81', '1', '100')
    """
    return f"{min(100, math.ceil(rate * 100 - 1e-9)):d}"


def of_gaussian(epsilon: float, delta: float) -> Gained:
    """The bounds for Gaussian noise that costs exactly this, none of it amplified by sampling.

    >>> of_gaussian(8, 1e-5).grade, of_gaussian(1, 1e-5).grade
    ('weak', 'strong')
    """
    low, high = 1e-9, 1e4
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if gaussian_epsilon(middle, delta) <= epsilon else (low, middle)
    return Gained(float(ndtr(high / 2)), float(ndtr(ndtri(0.01) + high)))


def at_worst(epsilon: float, delta: float) -> Gained:
    """The bounds that epsilon and delta alone imply, whatever the mechanism."""
    accuracy = (math.exp(min(epsilon, 700)) + delta) / (math.exp(min(epsilon, 700)) + 1)
    up = math.exp(min(epsilon, 700)) * 0.01 + delta
    down = 1 - math.exp(-epsilon) * (1 - delta - 0.01)
    return Gained(min(1.0, accuracy), min(1.0, up, down))


def choosing(delta: float) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The table that helps to choose epsilon: its header, and a row for each epsilon."""
    header = (
        "epsilon", "protection", "right at even odds", "caught at 1 % false alarms",
        "right at worst",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = []
    for target in EPSILONS:
        usual, worst = of_gaussian(target, delta), at_worst(target, delta)
        rows.append(
            (
                f"{target:g}",
                usual.grade,
                f"{of_hundred(usual.accuracy)} of 100",
                f"{of_hundred(usual.caught)} of 100",
                f"{of_hundred(worst.accuracy)} of 100",
            )
        )
    return header, rows


CHOOSING = (
    "An epsilon is a limit on what an attacker can gain about any one of those who are protected, "
    "if they know everything else. The middle columns are for Gaussian noise, as training adds it; "
    "the last one is what epsilon alone allows. Up to 1 is strong, 2 is good, 4 is moderate. At 8, "
    "which is common in practice, an attacker who knows everything else is right four times in "
    "five: let audits and attacks show how much of that a real one reaches. Delta is the chance "
    "that the limit fails altogether: well below one over the number of those who are protected, "
    "such as one over ten times that number."
)
"""How to choose, in words, beside the table."""
