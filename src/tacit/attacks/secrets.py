"""Membership of short secrets: real ones and as many of the same form, ranked by perplexity.

With canaries, the real ones are those that were planted and the others of the same template; else
they are sensitive entities of one kind: those that stand only in so much of the training text as
there is held-out text, beside those that stand only in that. Of all the training text's entities
many are common, which any model finds likely. The second pass keeps the best and the worst
predicted of the first, those of the least and of the largest perplexity, and guesses on them alone.
Of secrets that are equally likely, those are kept that chance would keep.

Source: Shi et al. 2022, section 5.1 and appendix A.5.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tacit.attacks.attack import Attack, Drawing, Headline, Presentation, Progress, Scores
from tacit.attacks.likelihood import log_likelihoods
from tacit.attacks.rates import Values, mean_of_shares, ordered, rates_of, roc
from tacit.attacks.spelling import spelled_canaries
from tacit.attacks.target import Target, has_users, rows_by_user, text_by_id
from tacit.attacks.verdicts import against_guessing
from tacit.corpus import Corpus
from tacit.errors import DataError

EACH = 500
SECOND = 300


@dataclass(frozen=True)
class Secrets(Attack):
    """Perplexity ranking on secrets, in one pass and in two."""

    each: int = EACH
    second: int = SECOND

    name = "secrets"
    says = "real secrets among made-up ones of the same form, ranked by perplexity"
    uses = ("canaries",)
    presentation = Presentation(
        "Real among made-up secrets",
        (Headline("auc", "AUC of secrets", chance=0.5),),
        drawing=Drawing(
            "Which secrets are real?", "false positive rate", "true positive rate",
            curves=("secrets",),
        ),
    )  # fmt: skip

    def run(
        self, target: Target, *, progress: Progress | None = None, rng: np.random.Generator
    ) -> Scores:
        """Rank by perplexity; the likelier half is called real."""
        real, made_up, said = self._sides(target, rng)
        scores = perplexity_scores(target, [*real, *made_up], progress)
        inside, outside = scores[: len(real)], scores[len(real) :]
        found, notes = rates_of(inside, outside)
        value, interval, tried = best_and_worst(inside, outside, self.second)
        found.put("accuracy_two_passes", value, interval)
        notes += [*said, f"the second pass guesses on {tried} of {len(scores)} secrets"]
        sides = {"real": float(len(real)), "made_up": float(len(made_up))}
        figures, intervals = found.figures, found.intervals
        return self.scores(
            target, figures | sides, intervals=intervals, notes=notes,
            curves={"secrets": roc(inside, outside)},
            verdict=against_guessing("real secrets, AUC", figures["auc"], intervals["auc"], 0.5),
        )  # fmt: skip

    def _sides(
        self, target: Target, rng: np.random.Generator
    ) -> tuple[list[str], list[str], list[str]]:
        if target.planted is not None:
            spelled = spelled_canaries(target)
            plan = spelled.plan
            real = [plan.text(c) for c in plan.inside()][: self.each]
            used = {c.secret for c in plan.canaries if c.planted}
            if not real:
                raise DataError("No canary of the plan was planted, so no secret is real.")
            # As many of either side, so that a guess is right half of the time.
            wanted = min(len(real) + len(used), plan.template.size // 2)
            drawn = [s for s in plan.template.draw(wanted, rng) if s not in used][: len(real)]
            said = ["secrets are planted canaries", *spelled.notes()]
            return real, [plan.template.text(s) for s in drawn], said
        if target.mentions and target.members is not None and target.others is not None:
            return self._entities(target, rng)
        raise DataError(
            "The attack secrets needs canaries (tacit canaries plant), or mentions in a corpus "
            "with held-out text."
        )

    def _entities(
        self, target: Target, rng: np.random.Generator
    ) -> tuple[list[str], list[str], list[str]]:
        sides = matched_names(target, rng)
        kind = max(sides, key=lambda k: min(map(len, sides[k])), default="")
        size = min(self.each, *map(len, sides[kind])) if kind else 0
        if size < 10:
            raise DataError(
                "There are fewer than ten entities of one kind that only the training text names, "
                "or only held-out text of the same size; plant canaries (tacit canaries plant)."
            )
        real, made_up = (rng.permutation(sorted(side))[:size].tolist() for side in sides[kind])
        said = f"secrets are entities of kind {kind}; others stand in held-out text"
        return real, made_up, [said]


ATTACK = Secrets()


def names_by_kind(target: Target, corpus: Corpus) -> dict[str, set[str]]:
    """What the mentions of a corpus cover, letter by letter, for each kind."""
    text_of = text_by_id(corpus)
    found: dict[str, set[str]] = defaultdict(set)
    for mention in target.mentions:
        if mention.record in text_of:
            found[mention.kind].add(text_of[mention.record][mention.start : mention.end])
    return dict(found)


def matched_names(
    target: Target, rng: np.random.Generator, write: Callable[[str], str | None] = str
) -> dict[str, tuple[set[str], set[str]]]:
    """For each kind, names that stand in some training text alone, and in held-out text alone.

    Both texts are of one size. A model that saw neither finds the names of both alike: more text
    names more, and more of what is common. `write` may change a name, or leave it out.
    """
    assert target.members is not None
    assert target.others is not None
    text_of = text_by_id(target.members, target.others)
    where: dict[tuple[str, str], set[str]] = defaultdict(set)
    for mention in target.mentions:
        if mention.record in text_of:
            name = write(text_of[mention.record][mention.start : mention.end])
            if name:
                where[mention.kind, name].add(mention.record)
    inside, outside = as_much(target.members, target.others, rng)
    found: dict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    for (kind, name), records in where.items():
        for own, side in zip(found[kind], (inside, outside), strict=True):
            if records <= side:
                own.add(name)
    return dict(found)


def as_much(members: Corpus, others: Corpus, rng: np.random.Generator) -> tuple[set[str], set[str]]:
    """The ids of equally many records of both; of whole users, where no user is on both sides."""
    ids = [corpus.column("id").to_pylist() for corpus in (members, others)]
    sides = [{str(row): [row] for row in range(len(own))} for own in ids]
    if has_users(members) and has_users(others):
        users = [rows_by_user(corpus) for corpus in (members, others)]
        sides = sides if users[0].keys() & users[1].keys() else users
    size = min(len(members), len(others))
    made: list[set[str]] = []
    for own, side in zip(ids, sides, strict=True):
        units, drawn = list(side.values()), set[str]()
        for at in rng.permutation(len(units)):
            if len(drawn) >= size:
                break
            drawn |= {own[row] for row in units[int(at)]}
        made.append(drawn)
    return made[0], made[1]


def perplexity_scores(target: Target, texts: list[str], progress: Progress | None) -> Values:
    """Minus the mean loss of each text's tokens."""
    reader = target.reader
    before, _ = reader.task.frame(reader.tokenizer)
    ids = reader.tokenizer(texts, add_special_tokens=False)["input_ids"]
    if before:
        total = log_likelihoods(reader.model, before, ids, progress=progress)
        return np.asarray(total / np.array([max(1, len(i)) for i in ids]))
    corpus = Corpus.from_records({"id": str(i), "text": t} for i, t in enumerate(texts))
    return -reader.losses(corpus)


def best_and_worst(
    inside: Values, outside: Values, size: int
) -> tuple[float, tuple[float, float], int]:
    """The share of right guesses if the best predicted are called real, the worst made up.

    Of equals at the edge, each is kept as often as chance would keep it: which of them stands
    first says nothing. With the share come its interval and how many guesses there are.

    >>> best_and_worst(np.array([3.0, 2.0, 0.0]), np.array([2.5, 1.0, -1.0]), 4)[::2]
    (0.5, 4)
    >>> best_and_worst(np.zeros(300), np.zeros(300), 300)[::2]
    (0.5, 300)
    """
    real = np.concatenate([np.ones(len(inside)), np.zeros(len(outside))])
    scores = ordered(np.concatenate([inside, outside]))
    half = max(1, min(size // 2, len(scores) // 2))
    best, worst = _kept(scores, half, real), _kept(-scores, half, 1 - real)
    value, interval = mean_of_shares(best, half, worst, half)
    return value, interval, 2 * half


def _kept(scores: Values, count: int, right: Values) -> float:
    """The share of right ones among so many of the highest, ties broken by chance."""
    bar = np.sort(scores)[-count]
    above, at = scores > bar, scores == bar
    room = count - int(above.sum())
    return float((right[above].sum() + room * right[at].mean()) / count)
