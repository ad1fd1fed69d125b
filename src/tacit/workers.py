"""Shares of work in other processes, on this machine or on a Ray cluster.

Answers come in the order of the shares, and a process that is lost has its share done again, so
that nothing is lost, doubled or moved. What is carried out must be the same wherever it is: a
function of the share alone, and of what it was made with.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from multiprocessing import get_context
from typing import Any, TypeVar

from tacit.errors import DataError, MissingExtra, UsageError

Share = TypeVar("Share")
Answer = TypeVar("Answer")

_TRIES = 3
_AHEAD = 2
"""Shares that may wait for each process: enough to keep it busy, few enough for memory."""


@dataclass(frozen=True)
class Workers:
    """How many processes, and where: `ray` is a cluster's address, or `local` to begin one here."""

    count: int = 1
    ray: str | None = None

    def map(self, work: Callable[[Share], Answer], shares: Iterable[Share]) -> Iterator[Answer]:
        """The answer for each share, in their order; `work` is copied to every process once.

        >>> list(Workers().map(str.upper, ["a", "b"]))
        ['A', 'B']
        """
        if self.count < 1:
            raise UsageError(f"workers={self.count} is too few; give 1 or more.")
        if self.ray is not None:
            return _in_order(_OnRay(work, self.count, self.ray), shares, self.count)
        if self.count == 1:
            return map(work, shares)
        return _in_order(_Processes(work, self.count), shares, self.count)


class _Lost(Exception):
    """Whatever was handed over must be handed over again."""


def _in_order(pool: "_Processes", shares: Iterable[Any], count: int) -> Iterator[Any]:
    waiting: deque[tuple[Any, Any]] = deque()
    try:
        for share in shares:
            waiting.append((share, pool.submit(share)))
            if len(waiting) >= _AHEAD * count:
                yield _first(pool, waiting)
        while waiting:
            yield _first(pool, waiting)
    finally:
        pool.close()


def _first(pool: "_Processes", waiting: deque[tuple[Any, Any]]) -> Any:
    """The oldest answer; if its process is lost, all that was under way is begun again."""
    for _ in range(_TRIES):
        try:
            answer = pool.result(waiting[0][1])
        except _Lost:
            again = [share for share, _ in waiting]
            waiting.clear()
            waiting.extend((share, pool.submit(share)) for share in again)
            continue
        waiting.popleft()
        return answer
    raise DataError(
        f"A worker process ended {_TRIES} times over the same share of the work; is there too "
        "little memory? Give fewer --workers. Nothing was written."
    )


class _Processes:
    """Processes of this machine, begun anew rather than forked."""

    def __init__(self, work: Any, count: int) -> None:
        self._begin = partial(
            ProcessPoolExecutor, count, get_context("spawn"), initializer=_take, initargs=(work,)
        )
        self._pool = self._begin()

    def submit(self, share: Any) -> Any:
        """Hand a share over; what comes back stands for its answer."""
        try:
            return self._pool.submit(_do, share)
        except BrokenProcessPool:  # noticed before an answer was asked for
            lost: Future[Any] = Future()
            lost.set_exception(BrokenProcessPool())
            return lost

    def result(self, begun: Any) -> Any:
        """Wait for an answer; `_Lost` if the process that had the share is gone."""
        try:
            return begun.result()
        except BrokenProcessPool:
            self._pool.shutdown(cancel_futures=True)
            self._pool = self._begin()
            raise _Lost from None

    def close(self) -> None:
        """Let all processes go."""
        self._pool.shutdown(cancel_futures=True)


_here: Any = None


def _take(work: Any) -> None:
    global _here
    _here = work


def _do(share: Any) -> Any:
    return _here(share)


class _OnRay(_Processes):
    """Actors of a Ray cluster; Ray begins a lost one again, and gives it its share again."""

    def __init__(self, work: Any, count: int, address: str) -> None:
        # Before Ray is imported: it would report its use, and put our messages into its own.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            import ray
        except ImportError:
            raise MissingExtra.of("--ray needs Ray", "ray") from None
        self._ray = ray
        self._began = not ray.is_initialized()
        if self._began:
            where = {"num_cpus": count} if address == "local" else {"address": address}
            try:
                ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR,
                         **where)  # fmt: skip
            except (ConnectionError, ValueError):
                raise UsageError(
                    f"--ray {address}: no cluster answers there; give the address of one, or "
                    "`local` to begin one on this machine."
                ) from None
        actor: Any = ray.remote(max_restarts=_TRIES, max_task_retries=_TRIES)(_Actor)
        self._held = ray.put(work)  # kept, for an actor that begins again
        self._actors: list[Any] = [actor.remote(self._held) for _ in range(count)]
        self._turns = cycle(self._actors)

    def submit(self, share: Any) -> Any:
        """Hand a share over, to each in turn."""
        return next(self._turns).do.remote(share)

    def result(self, begun: Any) -> Any:
        """Wait for an answer; what went wrong there is raised here as it was."""
        try:
            return self._ray.get(begun)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayActorError:
            raise DataError(
                f"A worker on Ray was lost {_TRIES} times over; is there too little memory? "
                "Nothing was written."
            ) from None

    def close(self) -> None:
        """Let all processes go, and a cluster that was begun for them."""
        for actor in self._actors:
            self._ray.kill(actor)
        if self._began:
            self._ray.shutdown()


class _Actor:
    def __init__(self, work: Any) -> None:
        self._work = work

    def do(self, share: Any) -> Any:
        return self._work(share)
