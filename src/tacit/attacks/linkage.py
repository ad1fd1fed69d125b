"""Author linkage: can a text's author be told from the hidden states that a model makes of it?

A classifier from the last hidden state to the author is trained afresh, on some of each author's
records, and tested on the others. What counts is how far it gets beyond guessing the most frequent
author, and beyond the same classifier on counted words: texts give their authors away by
themselves. A model that never saw them may read better than counted words do, so that only a
reference tells what was learnt from them.

Source: Mireshghallah et al. 2021, section 3 (the adversary of the regularizers).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.attacks.attack import Attack, Headline, Presentation, Progress, Scores, Verdict
from tacit.attacks.membership import without_canaries
from tacit.attacks.rates import Measured
from tacit.attacks.target import Reader, Target, rows_by_user
from tacit.attacks.verdicts import against_guessing, oftener
from tacit.corpus import Corpus
from tacit.training.models.recurrent import LSTMForCausalLM
from tacit.training.tasks.measuring import evaluating

AUTHORS, RECORDS = 50, 20


@dataclass(frozen=True)
class Linkage(Attack):
    """A linear classifier from hidden states to authors."""

    authors: int = AUTHORS
    records: int = RECORDS
    steps: int = 300

    name = "linkage"
    says = "who wrote this, from the model's hidden states"
    needs = ("members", "users")
    presentation = Presentation(
        "Author linkage",
        (
            Headline(
                "accuracy", "linkage accuracy", ("accuracy_from_model",),
                meaning="Linkage tells authors from hidden states.",
            ),
        ),
    )  # fmt: skip

    def too_little(self, target: Target) -> str | None:
        """Two authors, and for each of them records to learn and to test on."""
        if len(_able(without_canaries(target))) >= 2:
            return None
        return "The attack linkage needs two users with four records or more."

    def run(
        self, target: Target, *, progress: Progress | None = None, rng: np.random.Generator
    ) -> Scores:
        """Train on half of each author's records and test on the other half."""
        members = without_canaries(target)
        rows, author, test = self._choose(members, rng)
        part = members.take(rows)
        seen = {"model": last_states(target.reader, part, progress)}
        seen["words"] = _word_counts(target.reader, part)
        if target.reference is not None:
            seen["reference"] = last_states(target.reference, part, progress)
        measured, tried = Measured(), int(test.sum())
        right = {n: _classified(s, author, test, self.steps) for n, s in seen.items()}
        for name, hits in right.items():
            measured.share(f"accuracy_from_{name}", int(hits.sum()), tried)
        chance = float(np.bincount(author[test]).max() / tried)
        over = measured.figures["accuracy_from_model"] - chance
        interval = low, high = measured.intervals["accuracy_from_model"]
        measured.put("accuracy_over_chance", over, (low - chance, high - chance))
        sizes = {"authors": float(author.max() + 1), "tested_records": float(tried)}
        return self.scores(
            target, measured.figures | {"chance": chance} | sizes, intervals=measured.intervals,
            notes=["accuracy from words is that of counted tokens: what the text gives away"],
            verdict=_verdict(right, interval, chance),
        )  # fmt: skip

    def _choose(
        self, corpus: Corpus, rng: np.random.Generator
    ) -> tuple[list[int], NDArray[np.int64], NDArray[np.bool_]]:
        # Those with most records teach most.
        able = sorted(_able(corpus), key=len, reverse=True)[: self.authors]
        chosen, author, test = [], [], []
        for number, rows in enumerate(able):
            picked = rng.permutation(rows)[: self.records]
            chosen += picked.tolist()
            author += [number] * len(picked)
            test += [i >= len(picked) // 2 for i in range(len(picked))]
        return chosen, np.array(author), np.array(test)


def _able(corpus: Corpus) -> list[list[int]]:
    """The records of each user who has enough of them."""
    return [rows for rows in rows_by_user(corpus).values() if len(rows) >= 4]


ATTACK = Linkage()


def last_states(reader: Reader, corpus: Corpus, progress: Progress | None = None) -> Tensor:
    """The last hidden state of each record, at its last token."""
    examples = reader.encode(corpus)
    found: Tensor | None = None
    for rows, batch in evaluating(reader.model, examples, 8192, progress):
        states = _hidden(reader.model, batch["input_ids"])
        last = torch.from_numpy(examples.lengths[rows] - 1)
        values = states[torch.arange(len(rows)), last].float().cpu()
        if found is None:
            found = torch.zeros((len(examples), values.shape[1]))
        found[torch.from_numpy(rows)] = values
    assert found is not None
    return found


def _hidden(model: Any, ids: Tensor) -> Tensor:
    if isinstance(model, LSTMForCausalLM):
        states: Tensor = model.body(ids)[0]
        return states
    done = model(input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True)
    hidden: Tensor = done.hidden_states[-1]
    return hidden


def _word_counts(reader: Reader, corpus: Corpus, width: int = 512) -> Tensor:
    """Which tokens stand in each record, hashed to few columns: an attacker without the model."""
    examples = reader.encode(corpus)
    counts = torch.zeros((len(examples), width))
    for row, ids in enumerate(examples.ids):
        at = (ids.astype(np.int64) * 2654435761 % 2**32) % width
        counts[row] = torch.from_numpy(np.bincount(at, minlength=width)).float()
    return torch.log1p(counts)


def _verdict(
    right: dict[str, NDArray[np.bool_]], interval: tuple[float, float], chance: float
) -> Verdict:
    """Beyond guessing, beyond what words tell of the same records, and beyond a reference."""
    share = {name: float(hits.mean()) for name, hits in right.items()}
    found = against_guessing("authors told by hidden states,", share["model"], interval, chance)
    if found.leak != "shown":
        return found
    for other, says in (("words", "counted words"), ("reference", "a reference")):
        if other in right and not oftener(right["model"], right[other]):
            return Verdict(
                "not shown",
                f"{found.words[:-1]}; that is no better than the {share[other]:.3g} of {says}.",
            )
    if "reference" in right:
        return found
    return Verdict(
        "cannot tell",
        f"{found.words[:-1]}, and counted words {share['words']:.3g}; whether it was learnt from "
        "this text, only a model that never saw it tells (--reference).",
    )


def _classified(
    states: Tensor, author: NDArray[np.int64], test: NDArray[np.bool_], steps: int
) -> NDArray[np.bool_]:
    """Which test records a linear classifier gives to their author."""
    who, held = torch.from_numpy(author), torch.from_numpy(test)
    # A state that is no number says nothing; what is beyond all numbers would hide the others.
    states = states.nan_to_num(0.0, 0.0, 0.0)
    mean, spread = states[~held].mean(0), states[~held].std(0).clamp(min=1e-6)
    x = (states - mean) / spread
    # A classifier that begins at zero draws nothing at random.
    layer = nn.Linear(x.shape[1], int(author.max()) + 1)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02, weight_decay=1e-3)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(layer(x[~held]), who[~held])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        right = layer(x[held]).argmax(1) == who[held]
    return np.asarray(right.numpy(), dtype=bool)
