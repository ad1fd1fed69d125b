"""Attacks on the model of a folder, on those it kept on the way, here or in several processes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tacit.attacks.attack import ATTACKS, Scores, Series, keep_scores, write_series
from tacit.attacks.running import (
    Watch,
    at_step,
    last_step,
    require_kept,
    run_attacks,
    steps_of,
    unwatched,
    wanted,
)
from tacit.attacks.target import Target
from tacit.workers import Workers

Opener = Callable[[], Target]
"""Opens the folder's model; it can be sent to another process."""


def attack_folder(
    folder: Path,
    opened: Opener,
    using: str | None = None,
    *,
    seed: int = 0,
    workers: Workers | None = None,
    watch: Watch = unwatched,
    kept: bool = False,
    steps: Sequence[int] | None = None,
    keep: bool = True,
) -> Series:
    """All attacks that are wanted on a folder's model, by its step; they are kept in the folder.

    With `kept`, also on every model that a run kept on the way, or on those after `steps`.
    """
    if kept and (folder / "run.yml").exists():
        require_kept(folder)
    target = opened()
    names = [attack.name for attack in wanted(target, using)]
    among: list[int | None] = [None]
    if kept:
        among = steps_of(target) if steps is None else [*steps, None]
    shares = [(name, step) for step in among for name in names]
    scores = _attacked(_OneAttack(opened, seed, watch, target), shares, workers or Workers(), watch)
    found: Series = {}
    end = last_step(target) if kept else 0
    for (_, step), one in zip(shares, scores, strict=True):
        found.setdefault(end if step is None else step, {})[one.attack] = one
    if kept:
        write_series(folder / "attacks-over-steps.json", found)
    if keep:
        keep_scores(folder, found[max(found)].values())
    return found


def _attacked(
    work: "_OneAttack", shares: list[tuple[str, int | None]], workers: Workers, watch: Watch
) -> list[Scores]:
    """The scores of each attack on each model, by one process or by several."""
    if workers == Workers():
        return [work(share) for share in shares]
    scores = []
    with watch("Attacking", len(shares)) as advance:
        for one in workers.map(work, shares):
            scores.append(one)
            advance(1)
    return scores


class _OneAttack:
    """One attack on one model of a run; in another process, the run is opened there first."""

    def __init__(self, opened: Opener, seed: int, watch: Watch, target: Target | None) -> None:
        self._opened, self._seed, self._watch, self._target = opened, seed, watch, target
        self._then: tuple[int | None, Target | None] = (None, target)

    def __reduce__(self) -> Any:
        return _OneAttack, (self._opened, self._seed, self._watch, None)

    def __call__(self, share: tuple[str, int | None]) -> Scores:
        """Attack the model after a step; None is the last."""
        name, step = share
        if self._target is None:
            self._target = self._opened()
            self._then = (None, self._target)
        if self._then[0] != step:
            self._then = (step, at_step(self._target, step))
        assert self._then[1] is not None
        of = "" if step is None else f", step {step}"
        return run_attacks(self._then[1], [ATTACKS[name]], self._watch, seed=self._seed, of=of)[0]
