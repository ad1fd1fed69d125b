"""Try to learn secrets: what a trained model gives away about the text it was trained on.

attack.py       the protocol, the registry, `Scores`, and how they are shown
canaries.py     secrets by template, planted in a corpus before training, and the plan of them
spelling.py     which of them a tokenizer spells: what it writes as unknown cannot be told apart
target.py       a model with what an attacker may have: its text, others' text, canaries
likelihood.py   how likely a model finds many sequences, shared beginnings computed once
rates.py        AUC, accuracy, true positive rate at low false positive rate, with intervals
verdicts.py     whether a leak shows beyond guessing and controls, in words
running.py      all attacks that have what they need, on one model or on every one a run kept

exposure.py     canary exposure: the rank of a planted secret among all that it could have been
membership.py   membership inference: was this record, or this user, in the training text?
secrets.py      the same of short secrets, ranked by perplexity, in one pass and in two
tab.py          the first token in: does the rest come out?
extraction.py   which sensitive entities does the model say by itself, or when prompted?
linkage.py      who wrote this, from the model's hidden states
masks.py        guess masked words of sanitized text
"""

from tacit.attacks.attack import (
    ATTACKS,
    Attack,
    Headline,
    Presentation,
    Scores,
    Verdict,
    keep_scores,
    read_scores,
    write_scores,
)

__all__ = [
    "ATTACKS",
    "Attack",
    "Headline",
    "Presentation",
    "Scores",
    "Verdict",
    "keep_scores",
    "read_scores",
    "write_scores",
]
