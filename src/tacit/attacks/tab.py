"""The tab attack: given its first token, does the model say the whole sequence greedily?

For planted canaries, by repetition, beside those never planted; and for "real canaries", the
record of each user that an unprotected model finds least likely, which takes a reference. What
holds a word that the tokenizer does not know can not come out: a model that says "unknown" does
not say the word.

Source: Mireshghallah et al. 2021, section 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.attacks.attack import Need, Progress, Scores, Verdict
from tacit.attacks.canaries import Planted
from tacit.attacks.rates import proportion
from tacit.attacks.spelling import spelled_canaries
from tacit.attacks.target import Reader, Target
from tacit.attacks.verdicts import Counted, against_controls
from tacit.corpus import Corpus
from tacit.errors import DataError
from tacit.training.models.devices import device_of
from tacit.training.tasks.measuring import forward, still

USERS = 200
"""The real canaries of so many users are tried."""
_BATCH = 64


@dataclass(frozen=True)
class Tab:
    """Greedy completion from the first token, from the words before a secret, or one more."""

    name: str = "tab"
    says: str = "the first token in: does the whole sequence come out?"
    needs: tuple[Need, ...] = ()
    users: int = USERS

    def run(
        self, target: Target, *, progress: Progress | None = None, rng: np.random.Generator
    ) -> Scores:
        """Try every canary, and the real canaries where a reference says which they are."""
        rows: list[dict[str, Any]] = []
        figures: dict[str, float] = {}
        intervals: dict[str, tuple[float, float]] = {}
        notes: list[str] = []
        verdict = None
        if target.planted is not None:
            spelled = spelled_canaries(target)
            notes += spelled.notes()
            rows = self._canaries(target.reader, spelled.plan, progress)
            planted = [r for r in rows if r["repetitions"] > 0]
            controls = [r for r in rows if r["repetitions"] == 0]
            _put(figures, intervals, "canaries", planted)
            _put(figures, intervals, "controls", controls)
            verdict = _verdict(planted, controls)
            notes.append(
                "greedy text has one end for each beginning: canaries that begin alike, the first "
                "token of the secret included, can not all be reproduced"
            )
        if target.reference is not None and target.members is not None:
            real = self._real(target.members, "real canaries", target, progress, rng)
            unseen = self._unseen(target, progress, rng)
            rows += [real, *unseen]
            _put(figures, intervals, "real_canaries", [real])
            _put(figures, intervals, "held_out_records", unseen)
            if verdict is None:
                verdict = _verdict([real], unseen, "real canaries", "reproduced")
        elif target.planted is None:
            raise DataError(
                "The attack tab needs canaries (tacit canaries plant), or a reference model and "
                "users (--reference FOLDER)."
            )
        else:
            notes.append("real canaries need an unprotected model to pick them: --reference")
        return Scores("tab", figures, intervals, rows, {}, notes, target.perplexity, verdict)

    def _canaries(
        self, reader: Reader, plan: Planted, progress: Progress | None
    ) -> list[dict[str, Any]]:
        ids = texts_ids(reader, [plan.text(c) for c in plan.canaries])
        whole = reproduced(reader, ids, given=1, progress=progress)
        hidden = _hidden_part(reader, plan.template.before, ids)
        prompted = reproduced(reader, ids, given=hidden, progress=progress)
        # What all canaries begin with can be followed by one of them only; so one token more.
        begun = reproduced(reader, ids, given=hidden + 1, progress=progress)
        rows = []
        for count in sorted({c.repetitions if c.planted else 0 for c in plan.canaries}):
            at = [
                i
                for i, c in enumerate(plan.canaries)
                if (c.repetitions if c.planted else 0) == count
            ]
            rows.append(
                {
                    "repetitions": count,
                    "tried": len(at),
                    "reproduced": int(whole[at].sum()),
                    "reproduced_when_prompted": int(prompted[at].sum()),
                    "reproduced_when_begun": int(begun[at].sum()),
                    "beginnings": len({tuple(ids[i][: hidden + 1]) for i in at}),
                }
            )
        return rows

    def _unseen(
        self, target: Target, progress: Progress | None, rng: np.random.Generator
    ) -> list[dict[str, Any]]:
        """The same for text that was not trained on, where it has users: what is no memory."""
        others = target.others
        if others is None or "user" not in others.columns or others.column("user").null_count:
            return []
        return [self._real(others, "held-out records", target, progress, rng)]

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
        users = corpus.require_users().to_pylist()
        by_user: dict[str, list[int]] = {}
        for row, user in enumerate(users):
            by_user.setdefault(user, []).append(row)
        names = list(by_user)
        if len(names) > self.users:
            names = [names[int(i)] for i in rng.choice(len(names), self.users, replace=False)]
        rows = [row for name in names for row in by_user[name]]
        losses = dict(zip(rows, target.reference.losses(corpus.take(rows)), strict=True))
        worst = [max(by_user[name], key=lambda row: losses[row]) for name in names]
        texts = corpus.take(worst).column("text").to_pylist()
        ids = [row[: target.reader.context - 1] for row in texts_ids(target.reader, texts)]
        whole = reproduced(target.reader, ids, given=1, progress=progress)
        return {
            "repetitions": -1,
            "what": what,
            "tried": len(ids),
            "reproduced": int(whole.sum()),
        }


ATTACK = Tab()


def _put(
    figures: dict[str, float],
    intervals: dict[str, tuple[float, float]],
    name: str,
    rows: Sequence[dict[str, Any]],
) -> None:
    tried = sum(int(row["tried"]) for row in rows)
    if not tried:
        return
    for key in ("reproduced", "reproduced_when_prompted", "reproduced_when_begun"):
        if all(key in row for row in rows):
            hits = sum(int(row[key]) for row in rows)
            figures[f"{name}_{key}"] = hits / tried
            intervals[f"{name}_{key}"] = proportion(hits, tried)


def _verdict(
    planted: Sequence[dict[str, Any]],
    controls: Sequence[dict[str, Any]],
    what: str = "planted canaries, begun,",
    key: str = "reproduced_when_begun",
) -> Verdict:
    """What came out, for each number of repetitions, beside what was never seen."""
    groups = [Counted(int(row[key]), int(row["tried"])) for row in planted]
    unseen = Counted(
        sum(int(row[key]) for row in controls), sum(int(row["tried"]) for row in controls)
    )
    return against_controls(what, groups, unseen)


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
                told = best[line, at - 1 : len(whole) - 1].tolist()
                hit[r] = len(whole) > at and told == whole[at:] and unknown not in told
            if progress:
                progress(len(rows))
    return hit
