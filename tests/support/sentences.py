"""Texts that a small model can learn by heart, and a form of secrets that is ranked quickly."""

from dataclasses import replace

import numpy as np

from tacit.attacks.canaries import TEMPLATES

DIGITS = replace(TEMPLATES["spaced-digits"], slots=TEMPLATES["spaced-digits"].slots[:4])
"""Ten thousand secrets: a million are ranked in the same way, and take a minute."""
WORDS = ["the", "parcel", "came", "late", "today", "please", "send", "it", "again", "soon", "now"]


def sentences(count: int, seed: int, split: str) -> list[dict[str, object]]:
    """Records of ten users, each with a name in it that is marked."""
    rng = np.random.default_rng(seed)
    made: list[dict[str, object]] = []
    for number in range(count):
        name = f"Mr{rng.choice(list('abcdefgh'))}{rng.integers(1000):03d}"
        text = f"{' '.join(rng.choice(WORDS, 5))} says {name}"
        made.append(
            {
                "id": f"{split}{number}",
                "user": f"{split}-user{number % 10}",
                "text": text,
                "split": split,
                "spans": [{"start": len(text) - len(name), "end": len(text), "kind": "PERSON"}],
            }
        )
    return made
