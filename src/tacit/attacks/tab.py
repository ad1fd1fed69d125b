"""The tab attack: given its first token, does the model say the whole sequence greedily?

For planted canaries, by repetition, beside those never planted; and for "real canaries", the
record of each user that an unprotected model finds least likely, which takes a reference. What
holds a word that the tokenizer does not know can not come out: a model that says "unknown" does
not say the word.

Source: Mireshghallah et al. 2021, section 4.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.attacks.attack import Attack, Headline, Presentation, Progress, Scores, Verdict
from tacit.attacks.canaries import Planted
from tacit.attacks.rates import Measured
from tacit.attacks.spelling import spelled_canaries
from tacit.attacks.target import Reader, Target, has_users, rows_by_user
from tacit.attacks.verdicts import Counted, against_controls
from tacit.corpus import Corpus
from tacit.errors import DataError
from tacit.training.models.devices import device_of
from tacit.training.tasks.measuring import forward, still

USERS = 200
"""The real canaries of so many users are tried."""
_BATCH = 64


_WAYS = ("reproduced", "reproduced_when_prompted", "reproduced_when_begun")


@dataclass(frozen=True)
class Tab(Attack):
    """Greedy completion from the first token, from the words before a secret, or one more."""

    users: int = USERS

    name = "tab"
    says = "the first token in: does the whole sequence come out?"
    uses = ("canaries",)
    presentation = Presentation(
        "Tab",
        (
            Headline(
                "beyond_controls", "tab accuracy beyond controls",
                ("canaries_beyond_controls", "real_canaries_beyond_controls"),
                chance=0.0, format=".4g",
                meaning="Tab asks whether a canary follows from what stands before its secret and "
                "the secret's first token; the share of controls, never planted, that do so is "
                "taken off.",
            ),
        ),
    )  # fmt: skip

    def run(
        self, target: Target, *, progress: Progress | None = None, rng: np.random.Generator
    ) -> Scores:
        """Try every canary, and the real canaries where a reference says which they are."""
        rows: list[dict[str, Any]] = []
        measured, notes, verdict = Measured(), list[str](), None
        if target.planted is not None:
            spelled = spelled_canaries(target)
            rows = _canaries(target.reader, spelled.plan, progress)
            planted = [row for row in rows if row["repetitions"]]
            controls = [row for row in rows if not row["repetitions"]]
            _put(measured, {"canaries": planted, "controls": controls})
            verdict = _verdict("planted canaries, begun,", planted, controls, _WAYS[-1])
            notes = [
                *spelled.notes(),
                "greedy text has one end for each beginning: canaries that begin alike, the first "
                "token of the secret included, can not all be reproduced",
            ]
        if target.reference is not None and target.members is not None:
            real = self._real(target.members, "real canaries", target, progress, rng)
            unseen = []
            others = target.others
            # The same for text that was not trained on, where it has users: what is no memory.
            if others is not None and has_users(others):
                unseen = [self._real(others, "held-out records", target, progress, rng)]
            rows += [real, *unseen]
            _put(measured, {"real_canaries": [real], "held_out_records": unseen})
            verdict = verdict or _verdict("real canaries", [real], unseen, _WAYS[0])
        elif target.planted is None:
            raise DataError(
                "The attack tab needs canaries (tacit canaries plant), or a reference model and "
                "users (--reference FOLDER)."
            )
        else:
            notes.append("real canaries need an unprotected model to pick them: --reference")
        return self.scores(
            target, measured.figures, intervals=measured.intervals, rows=rows, notes=notes,
            verdict=verdict,
        )  # fmt: skip

    def _real(
        self,
        corpus: Corpus,
        what: str,
        target: Target,
        progress: Progress | None,
        rng: np.random.Generator,
    ) -> dict[str, Any]:
        """The record of each user that the reference finds least likely."""
        assert target.reference is not None
        by_user = rows_by_user(corpus)
        names = list(by_user)
        if len(names) > self.users:
            names = [names[int(i)] for i in rng.choice(len(names), self.users, replace=False)]
        rows = [row for name in names for row in by_user[name]]
        losses = dict(zip(rows, target.reference.losses(corpus.take(rows)), strict=True))
        worst = [max(by_user[name], key=lambda row: losses[row]) for name in names]
        texts = corpus.take(worst).column("text").to_pylist()
        ids = [row[: target.reader.context - 1] for row in texts_ids(target.reader, texts)]
        whole = reproduced(target.reader, ids, given=1, progress=progress)
        return {"what": what, "tried": len(ids), "reproduced": int(whole.sum())}


ATTACK = Tab()


def _canaries(reader: Reader, plan: Planted, progress: Progress | None) -> list[dict[str, Any]]:
    ids = texts_ids(reader, [plan.text(c) for c in plan.canaries])
    hidden = _hidden_part(reader, plan.template.before, ids)
    # What all canaries begin with can be followed by one of them only; so one token more.
    hits = [reproduced(reader, ids, given=n, progress=progress) for n in (1, hidden, hidden + 1)]
    counts = np.array([c.repetitions if c.planted else 0 for c in plan.canaries])
    rows = []
    for count in np.unique(counts).tolist():
        at = np.flatnonzero(counts == count)
        row = {"what": "canaries" if count else "controls", "repetitions": count, "tried": len(at)}
        row |= {way: int(hit[at].sum()) for way, hit in zip(_WAYS, hits, strict=True)}
        rows.append(row | {"beginnings": len({tuple(ids[i][: hidden + 1]) for i in at})})
    return rows


def _sum(rows: Sequence[dict[str, Any]], key: str) -> int:
    return sum(int(row[key]) for row in rows)


def _put(measured: Measured, groups: dict[str, Sequence[dict[str, Any]]]) -> None:
    """The shares of what was seen and of its controls, and how far the first go beyond these."""
    (seen, rows), (unseen, _) = groups.items()
    ways = [way for way in _WAYS if all(way in row for row in rows)]
    for name, own in groups.items():
        for way in ways:
            measured.share(f"{name}_{way}", _sum(own, way), _sum(own, "tried"))
    best, none = f"{seen}_{ways[-1]}", f"{unseen}_{ways[-1]}"
    if best in measured.figures:
        value, (low, high) = measured.figures[best], measured.intervals[best]
        controls = measured.figures.get(none, 0.0)
        least, most = measured.intervals.get(none, (0.0, 0.0))
        # Newcombe 1998: square and add.
        below, above = (
            math.hypot(value - low, most - controls),
            math.hypot(high - value, controls - least),
        )
        beyond = value - controls
        measured.put(
            f"{seen}_beyond_controls", max(0.0, beyond),
            (max(0.0, beyond - below), max(0.0, beyond + above)),
        )  # fmt: skip


def _verdict(
    what: str, seen: Sequence[dict[str, Any]], controls: Sequence[dict[str, Any]], key: str
) -> Verdict:
    """What came out, for each number of repetitions, beside what was never seen."""
    groups = [Counted(int(row[key]), int(row["tried"])) for row in seen]
    return against_controls(what, groups, Counted(_sum(controls, key), _sum(controls, "tried")))


def texts_ids(reader: Reader, texts: Sequence[str]) -> list[list[int]]:
    """The token ids of texts, without special tokens."""
    rows = reader.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    return [list(map(int, row)) for row in rows]


def _hidden_part(reader: Reader, before: str, ids: Sequence[Sequence[int]]) -> int:
    """How many tokens all of these share at the beginning: what stands before the secret."""
    known = len(reader.tokenizer(before.rstrip(), add_special_tokens=False)["input_ids"])
    shared = 0
    while all(len(r) > shared and r[shared] == ids[0][shared] for r in ids) and shared < known:
        shared += 1
    return max(1, shared)


def reproduced(
    reader: Reader,
    ids: Sequence[Sequence[int]],
    *,
    given: int | Sequence[int],
    progress: Progress | None = None,
) -> NDArray[np.bool_]:
    """Whether each sequence follows greedily from its first `given` tokens (or its own number).

    Every token must be the likeliest after those before it, so one pass over the sequence tells:
    as long as all were right, the greedy text so far is the sequence itself. The unknown token
    reproduces nothing.
    """
    first, _ = reader.task.frame(reader.tokenizer)
    unknown = reader.tokenizer.unk_token_id
    shown = [given] * len(ids) if isinstance(given, int) else given
    hit = np.zeros(len(ids), dtype=bool)
    device = device_of(reader.model)
    order = np.argsort([len(row) for row in ids], kind="stable")
    with still(reader.model):
        for start in range(0, len(order), _BATCH):
            rows = order[start : start + _BATCH]
            width = max(len(first) + len(ids[r]) for r in rows)
            wide = torch.zeros((len(rows), width), dtype=torch.long, device=device)
            for line, r in enumerate(rows):
                whole = [*first, *ids[r]]
                wide[line, : len(whole)] = torch.tensor(whole)
            best = forward(reader.model, {"input_ids": wide}, mask=False).argmax(-1).cpu()
            for line, r in enumerate(rows):
                whole = [*first, *ids[r]]
                at = len(first) + shown[r]
                greedy = best[line, at - 1 : len(whole) - 1].tolist()
                hit[r] = len(whole) > at and greedy == whole[at:] and unknown not in greedy
            if progress:
                progress(len(rows))
    return hit
