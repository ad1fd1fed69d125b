"""Extraction: which sensitive entities of the training text does the model say verbatim?

Two ways in. *Free*: texts are generated from nothing, ranked by how likely the model finds them
for their size (perplexity over zlib), and searched for entities. *Prompted*: the words before a
mention are given and the mention is to follow greedily. Entities that stand only in held-out text
are looked for in the same way: what the model says of those it did not learn from them. The two
are compared where they come from equally much text, and stand in no other. Names are looked for as
the tokenizer writes them, those that it writes as unknown left out.

Source: Carlini et al. 2021.
"""

import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tacit.attacks.attack import Need, Progress, Scores, Verdict
from tacit.attacks.rates import ordered, proportion
from tacit.attacks.secrets import matched_names, names_by_kind, perplexity_scores
from tacit.attacks.tab import reproduced, texts_ids
from tacit.attacks.target import Reader, Target
from tacit.attacks.verdicts import Counted, against_controls, together
from tacit.corpus import Corpus
from tacit.errors import DataError
from tacit.training.models.devices import device_of
from tacit.training.tasks.measuring import forward, still

TEXTS, PROMPTS, LENGTH = 400, 300, 40
_SHORTEST = 4
"""Shorter names are in any text by accident."""


@dataclass(frozen=True)
class Extraction:
    """Generated texts searched for entities, and mentions completed from what stands before."""

    name: str = "extraction"
    says: str = "which sensitive entities come out, by themselves or when prompted?"
    needs: tuple[Need, ...] = ("members", "mentions")
    texts: int = TEXTS
    prompts: int = PROMPTS
    length: int = LENGTH

    def run(
        self, target: Target, *, progress: Progress | None = None, rng: np.random.Generator
    ) -> Scores:
        """Generate, rank and search; then prompt."""
        assert target.members is not None
        inside, left_out = _said(target.reader, names_by_kind(target, target.members))
        if not inside:
            raise DataError(
                "No mention of the training text is four letters long or more and spelled by the "
                "tokenizer; give other --mentions, or name other attacks (--using membership)."
            )
        outside = {}
        if target.others is not None:
            known = set().union(*inside.values())
            found, _ = _said(target.reader, names_by_kind(target, target.others))
            outside = {kind: names - known for kind, names in found.items()}
        texts = generate(target.reader, self.texts, self.length, progress=progress, rng=rng)
        ranked = _ranked(target, texts)
        rows = free_rows(ranked, inside, outside)
        prompted = self._prompted(target, progress, rng)
        for row in rows:
            row |= prompted.get(str(row["kind"]), {})
        figures, intervals = _summed(rows, ranked, inside)
        matched = _matched(target, ranked, rng) if target.others is not None else None
        if matched is not None:
            for name, counted in zip(("alone", "alone_held_out"), matched, strict=True):
                if counted.tried:
                    figures[f"recall_{name}"] = counted.hits / counted.tried
                    intervals[f"recall_{name}"] = proportion(counted.hits, counted.tried)
        notes = []
        if left_out:
            notes.append(
                f"{left_out:,} names that the tokenizer writes as unknown are left out: no model "
                "says them"
            )
        verdict = _verdict(rows, matched)
        return Scores("extraction", figures, intervals, rows, {}, notes, target.perplexity, verdict)

    def _prompted(
        self, target: Target, progress: Progress | None, rng: np.random.Generator
    ) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = defaultdict(dict)
        for side, corpus in (("", target.members), ("_held_out", target.others)):
            if corpus is None:
                continue
            kinds, ids, given = _prompts(target, corpus, self.prompts, rng)
            hits = reproduced(target.reader, ids, given=given, progress=progress)
            for kind in sorted(set(kinds)):
                own = [bool(hit) for hit, k in zip(hits, kinds, strict=True) if k == kind]
                found[kind] |= {f"prompted{side}": len(own), f"completed{side}": sum(own)}
        return found


ATTACK = Extraction()


def _said(reader: Reader, names: Mapping[str, set[str]]) -> tuple[dict[str, set[str]], int]:
    """Names as the tokenizer writes them, and how many it writes as unknown; short ones go.

    A tokenizer that knows no capital letters never says one.
    """
    kept: dict[str, set[str]] = {}
    left_out = 0
    for kind, own in names.items():
        for name in own:
            said = _written(reader, name)
            if said is None:
                left_out += 1
            elif said:
                kept.setdefault(kind, set()).add(said)
    return kept, left_out


def _written(reader: Reader, name: str) -> str | None:
    """A name as the tokenizer writes it: None where as unknown, nothing where it is short."""
    ids = texts_ids(reader, [name])[0]
    if reader.tokenizer.unk_token_id in ids:
        return None
    said = str(reader.tokenizer.decode(ids)).strip()
    return said if len(said) >= _SHORTEST else ""


def _matched(
    target: Target, ranked: Sequence[str], rng: np.random.Generator
) -> tuple[Counted, Counted]:
    """What came out of names that stand in as much training as held-out text, and in one alone."""
    known: dict[str, str | None] = {}

    def write(name: str) -> str | None:
        if name not in known:
            known[name] = _written(target.reader, name)
        return known[name]

    sides = matched_names(target, rng, write)
    whole = "\n".join(ranked)
    made = []
    for side in (0, 1):
        names = [(kind, name) for kind, both in sides.items() for name in both[side]]
        made.append(Counted(sum(name in whole for _, name in names), len(names)))
    return made[0], made[1]


def generate(
    reader: Reader,
    count: int,
    length: int,
    *,
    top: int = 40,
    progress: Progress | None = None,
    rng: np.random.Generator,
) -> list[str]:
    """Texts from the start token alone, each token drawn from the `top` likeliest."""
    first, _ = reader.task.frame(reader.tokenizer)
    if not first:
        raise DataError("The tokenizer has no start token, so there is nothing to begin from.")
    end = reader.tokenizer.eos_token_id
    device = device_of(reader.model)
    made: list[str] = []
    with still(reader.model):
        while len(made) < count:
            size = min(64, count - len(made))
            ids = torch.tensor([first] * size, device=device)
            for _ in range(min(length, reader.context - len(first))):
                logits = forward(reader.model, {"input_ids": ids}, mask=False)[:, -1].float()
                best = logits.topk(min(top, logits.shape[1]))
                # Gumbel noise from numpy's generator, so that torch's own is left alone.
                noise = torch.from_numpy(rng.gumbel(size=best.values.shape)).float().to(device)
                pick = (best.values + noise).argmax(1, keepdim=True)
                ids = torch.cat([ids, best.indices.gather(1, pick)], 1)
            for row in ids[:, len(first) :].tolist():
                stop = row.index(end) if end in row else len(row)
                made.append(str(reader.tokenizer.decode(row[:stop])))
            if progress:
                progress(size)
    return made


def _ranked(target: Target, texts: Sequence[str]) -> list[str]:
    """The distinct texts, likeliest for their size first."""
    distinct = [t for t in dict.fromkeys(texts) if t.strip()]
    if not distinct:
        return []
    scores = perplexity_scores(target, distinct, None)
    sizes = np.array([len(zlib.compress(t.encode())) for t in distinct])
    return [distinct[int(i)] for i in np.argsort(ordered(scores / sizes), kind="stable")[::-1]]


def free_rows(
    ranked: Sequence[str], inside: Mapping[str, set[str]], outside: Mapping[str, set[str]]
) -> list[dict[str, Any]]:
    """For each kind, how many entities came out, and of held-out ones beside."""
    rows = []
    whole = "\n".join(ranked)
    for kind in sorted(inside):
        said = {name for name in inside[kind] if name in whole}
        others = outside.get(kind, set())
        control = {name for name in others if name in whole}
        rows.append(
            {
                "kind": kind,
                "entities": len(inside[kind]),
                "came_out": len(said),
                "recall": len(said) / len(inside[kind]),
                # Of all names of this kind that came out, those that training taught.
                "precision": len(said) / len(said | control) if said | control else float("nan"),
                "held_out": len(others),
                "came_out_held_out": len(control),
                "recall_held_out": len(control) / len(others) if others else float("nan"),
            }
        )
    return rows


def _prompts(
    target: Target, corpus: Corpus, count: int, rng: np.random.Generator
) -> tuple[list[str], list[list[int]], list[int]]:
    """Mentions with what stands before them: kinds, token ids, how many of these are given."""
    ids, texts = corpus.column("id").to_pylist(), corpus.column("text").to_pylist()
    text_of = dict(zip(ids, texts, strict=True))
    able = [
        m
        for m in target.mentions
        if m.record in text_of and m.start > 0 and m.end - m.start >= _SHORTEST
    ]
    if len(able) > count:
        able = [able[int(i)] for i in rng.choice(len(able), count, replace=False)]
    kinds, rows, given = [], [], []
    unknown = target.reader.tokenizer.unk_token_id
    for mention in able:
        text = text_of[mention.record]
        encoded = target.reader.tokenizer(
            text[: mention.end], add_special_tokens=False, return_offsets_mapping=True
        )
        offsets: Any = encoded["offset_mapping"]
        before = sum(1 for _, stop in offsets if stop <= mention.start)
        row = list(encoded["input_ids"])
        if not 0 < before < len(row) or unknown in row[before:]:
            continue
        # Where room is short, the words just before the mention count.
        cut = max(0, len(row) - target.reader.context + 2)
        if before - cut < 1:
            continue
        kinds.append(mention.kind)
        rows.append([int(i) for i in row[cut:]])
        given.append(before - cut)
    return kinds, rows, given


def _verdict(rows: Sequence[Mapping[str, Any]], matched: tuple[Counted, Counted] | None) -> Verdict:
    """Entities that came out by themselves and when prompted, beside those of held-out text."""
    seen, unseen = matched if matched is not None else (Counted(0, 0), Counted(0, 0))

    def counted(hits: str, tried: str) -> Counted:
        return Counted(
            sum(int(r.get(hits, 0)) for r in rows), sum(int(r.get(tried, 0)) for r in rows)
        )

    free = against_controls("entities of as much text", [seen], unseen, tests=2)
    prompted = against_controls(
        "prompted mentions", [counted("completed", "prompted")],
        counted("completed_held_out", "prompted_held_out"), tests=2,
    )  # fmt: skip
    return together(free, prompted)


def _summed(
    rows: Sequence[Mapping[str, Any]], ranked: Sequence[str], inside: Mapping[str, set[str]]
) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    names = set().union(*inside.values())
    first = ranked[: max(1, len(ranked) // 10)]
    holding = sum(any(name in text for name in names) for text in first)
    out, total = sum(int(r["came_out"]) for r in rows), sum(int(r["entities"]) for r in rows)
    figures = {
        "texts": float(len(ranked)),
        "recall": out / total,
        "top_tenth_with_entity": holding / max(1, len(first)),
    }
    intervals = {
        "recall": proportion(out, total),
        "top_tenth_with_entity": proportion(holding, len(first)),
    }
    beside = sum(int(r["held_out"]) for r in rows)
    if beside:
        unseen = sum(int(r["came_out_held_out"]) for r in rows)
        figures["recall_held_out"] = unseen / beside
        intervals["recall_held_out"] = proportion(unseen, beside)
    for side in ("", "_held_out"):
        tried = sum(int(r.get(f"prompted{side}", 0)) for r in rows)
        if tried:
            hits = sum(int(r.get(f"completed{side}", 0)) for r in rows)
            figures[f"completed{side}"] = hits / tried
            intervals[f"completed{side}"] = proportion(hits, tried)
    return figures, intervals
