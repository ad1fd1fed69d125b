"""Attacks on a target: those that have what they need, on its model or on every one it kept."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from tacit.attacks.attack import ATTACKS, Attack, Progress, Scores, chosen, missing, require_all
from tacit.attacks.matching import common_level, near_and_spread
from tacit.attacks.target import Target, run_perplexity
from tacit.errors import DataError, UsageError
from tacit.training.models import networks
from tacit.training.phases.checkpoints import kept_models, read_place
from tacit.training.phases.run_context import RunContext, load_run

Watch = Callable[[str, int | None], AbstractContextManager[Progress]]
"""Shows how far something of so many steps is."""


def unwatched(what: str, total: int | None) -> AbstractContextManager[Progress]:
    """Shows nothing, to nobody."""
    return nullcontext(lambda count: None)


def wanted(target: Target, using: str | None) -> list[Attack]:
    """The attacks that are named, whose needs must be met; else all whose needs are."""
    has = list(target.has())
    if using is not None:
        named = chosen(using)
        for attack in named:
            require_all(attack, has)
            if (why := attack.too_little(target)) is not None:
                raise DataError(why)
        return named
    ready = [
        a for a in ATTACKS.values() if not missing(a, has) and (a.needs or set(a.uses) & set(has))
    ]
    ready = [attack for attack in ready if attack.too_little(target) is None]
    if not ready:
        raise UsageError(
            f"{target.folder} comes without anything that an attack needs; give --corpus, "
            "--canaries or --reference."
        )
    return ready


def run_attacks(
    target: Target, attacks: Sequence[Attack], watch: Watch, *, seed: int, of: str = ""
) -> list[Scores]:
    """Every attack on one model, each with the same seed of its own."""
    found = []
    for attack in attacks:
        with watch(f"{attack.name.capitalize()}{of}", None) as advance:
            found.append(attack.run(target, progress=advance, rng=np.random.default_rng(seed)))
    return found


def steps_of(target: Target) -> list[int | None]:
    """After which steps a run kept its model; None stands for its last."""
    _require_run(target)
    require_kept(target.folder)
    return [*kept_models(target.folder), None]


def _require_run(target: Target) -> RunContext:
    if target.ctx is None:
        raise UsageError(f"{target.folder} is not a run; only runs keep models on the way.")
    return target.ctx


def at_step(target: Target, step: int | None) -> Target:
    """The target with the model that its run kept after a step; None is the last."""
    ctx = _require_run(target)
    if step is None:
        return target
    then = opened_at(ctx, target.folder, step)
    reader = replace(target.reader, model=then.model)
    return replace(target, reader=reader, ctx=then, perplexity=run_perplexity(then))


def opened_at(ctx: RunContext, folder: Path, step: int | None) -> RunContext:
    """A run with the model that it kept after a step; None is the last."""
    if step is None:
        return ctx
    place = kept_models(folder)[step]
    networks.require_safe_weights(place)
    model = networks.load_model(place, "next-word", pad_token_id=ctx.tokenizer.pad_token_id)
    return replace(ctx, model=model)


def last_step(target: Target) -> int:
    """How far a run is."""
    run, place = _require_run(target).run, read_place(target.folder)
    return run.masked_steps + (run.total_steps if place is None else place.step)


def require_kept(folder: Path) -> None:
    """Refuse a run that kept no model on the way, and say how one does."""
    if not kept_models(folder):
        raise DataError(
            f"{folder} kept no model on the way; train it with keep_checkpoints "
            "(tacit train RUN.yml --set keep_checkpoints=5)."
        )


def few_of_each(folders: Mapping[str, Path], count: int) -> dict[str, list[int]]:
    """Of each run so many steps whose models are to be attacked, beside the last one.

    The level is the lowest perplexity that the last models of all runs reached. Runs are opened
    one at a time, twice: all of them may not fit into memory.
    """
    for folder in folders.values():
        require_kept(folder)
    ends = {name: _Scored(folder).of(None) for name, folder in folders.items()}
    level = common_level(ends)
    return {
        name: near_and_spread(list(kept_models(folder)), _Scored(folder).of, level, count)
        for name, folder in folders.items()
    }


class _Scored:
    """What the models of a run make of text that they never saw, each when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._ctx = folder, load_run(folder)
        self.of = cache(self._of)

    def _of(self, step: int | None) -> float:
        """The perplexity of the model after a step; None is the last."""
        found = run_perplexity(opened_at(self._ctx, self._folder, step))
        if found is None:
            raise DataError(
                f"{self._folder} has no split that it was not trained on, so its models have "
                "no perplexity to be compared at; give the corpus a split test."
            )
        return found
