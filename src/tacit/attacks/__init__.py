"""Try to learn secrets: what a trained model gives away about the text it was trained on.

attack.py       the protocol, the registry, `Scores`
canaries.py     secrets by template, planted in a corpus before training, and the plan of them
spelling.py     which of them a tokenizer spells: what it writes as unknown cannot be told apart
target.py       a model with what an attacker may have: its text, others' text, canaries
likelihood.py   how likely a model finds many sequences, shared beginnings computed once
exposure.py     the rank of a planted secret among all that it could have been
rates.py        AUC, accuracy, true positives at few false ones, each with its uncertainty
verdicts.py     whether a leak shows beyond guessing and controls, in words
membership.py   was this record, or this user, in the training text?
secrets.py      the same of short secrets, ranked by perplexity, in one pass and in two
tab.py          the first token in: does the rest come out?
extraction.py   which sensitive entities does the model say by itself, or when prompted?
linkage.py      who wrote this, from the model's hidden states
masks.py        guess masked words of sanitized text
matching.py     which of the models that runs kept are of like perplexity
running.py      all attacks that have what they need, on one model or on every one a run kept
worst_cases.py  canaries that fill the bounds of a plan
token_cases.py  the same for selective training
white_box.py    the training step itself on such canaries, for audits
in_situ.py      a copy of a run, trained once more with such canaries among its users
copies.py       that copy, and all that is heard of it
direct_checks.py  what no output shows: noise, coins, entries, updates, parts of a sum
guessing.py     how many canaries, how many guesses, what they can show and what they do
audits.py       the audit of a run: every unit of its certificate
"""

from tacit.attacks.attack import (
    Attack,
    Scores,
    Verdict,
    attack_named,
    chosen,
    keep_scores,
    known,
    read_scores,
    register,
    write_scores,
)

__all__ = [
    "Attack",
    "Scores",
    "Verdict",
    "attack_named",
    "chosen",
    "keep_scores",
    "known",
    "read_scores",
    "register",
    "write_scores",
]
