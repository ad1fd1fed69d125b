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
from multiprocessing import get_context
from typing import Any, Generic, TypeVar

from tacit.errors import DataError, MissingExtra, UsageError

Share = TypeVar("Share")
Answer = TypeVar("Answer")
Work = Callable[[Share], Answer]

_TRIES = 3
_AHEAD = 2
"""Shares that may wait for each process: enough to keep it busy, few enough for memory."""


@dataclass(frozen=True)
class Workers:
    """How many processes, and where: `ray` is a cluster's address, or `local` to begin one here."""

    count: int = 1
    ray: str | None = None

    def map(self, work: "Work[Share, Answer]", shares: Iterable[Share]) -> Iterator[Answer]:
        """The answer for each share, in their order; `work` is copied to every process once.

        >>> list(Workers().map(str.upper, ["a", "b"]))
        ['A', 'B']
        """
        if self.count < 1:
            raise UsageError(f"workers={self.count} is nobody; give 1 or more.")
        if self.ray is not None:
            return _in_order(_OnRay(work, self.count, self.ray), shares)
        if self.count == 1:
            return map(work, shares)
        return _in_order(_Processes(work, self.count), shares)


class _Place(Generic[Share, Answer]):
    """Where shares are worked on."""

    count: int

    def begin(self, share: Share) -> Any:
        """Hand a share over; what comes back stands for its answer."""
        raise NotImplementedError

    def answer(self, begun: Any) -> Answer:
        """Wait for an answer; `_Lost` if the process that had the share is gone."""
        raise NotImplementedError

    def close(self) -> None:
        """Let all processes go."""
        raise NotImplementedError


class _Lost(Exception):
    """Whatever was handed over must be handed over again."""


def _in_order(place: "_Place[Share, Answer]", shares: Iterable[Share]) -> Iterator[Answer]:
    waiting: deque[tuple[Share, Any]] = deque()
    try:
        for share in shares:
            waiting.append((share, place.begin(share)))
            if len(waiting) >= _AHEAD * place.count:
                yield _first(place, waiting)
        while waiting:
            yield _first(place, waiting)
    finally:
        place.close()


def _first(place: "_Place[Share, Answer]", waiting: "deque[tuple[Share, Any]]") -> Answer:
    """The oldest answer; if its process is lost, all that was under way is begun again."""
    for _ in range(_TRIES):
        try:
            answer = place.answer(waiting[0][1])
        except _Lost:
            again = [share for share, _ in waiting]
            waiting.clear()
            waiting.extend((share, place.begin(share)) for share in again)
            continue
        waiting.popleft()
        return answer
    raise DataError(
        f"A share of the work ended the process that did it, {_TRIES} times over; is there too "
        "little memory? Give fewer --workers. Nothing was written."
    )


class _Processes(_Place[Share, Answer]):
    """Processes of this machine, begun anew rather than forked."""

    def __init__(self, work: "Work[Share, Answer]", count: int) -> None:
        self.count, self._work = count, work
        self._pool = self._new()

    def _new(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self.count, get_context("spawn"), initializer=_take, initargs=(self._work,)
        )

    def begin(self, share: Share) -> "Future[Answer]":
        """Hand a share over."""
        try:
            return self._pool.submit(_do, share)
        except BrokenProcessPool:  # noticed before an answer was asked for
            lost: Future[Answer] = Future()
            lost.set_exception(BrokenProcessPool())
            return lost

    def answer(self, begun: "Future[Answer]") -> Answer:
        """Wait for an answer."""
        try:
            return begun.result()
        except BrokenProcessPool:
            self._pool.shutdown(cancel_futures=True)
            self._pool = self._new()
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


class _OnRay(_Place[Share, Answer]):
    """Actors of a Ray cluster; Ray begins a lost one again, and gives it its share again."""

    def __init__(self, work: "Work[Share, Answer]", count: int, address: str) -> None:
        # Before Ray is imported: it would report its use, and put our messages into its own.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            import ray
        except ImportError:
            raise MissingExtra.of("--ray needs Ray", "ray") from None
        self.count, self._ray = count, ray
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
        self._next = 0

    def begin(self, share: Share) -> Any:
        """Hand a share over, to each in turn."""
        self._next = (self._next + 1) % self.count
        return self._actors[self._next].do.remote(share)

    def answer(self, begun: Any) -> Answer:
        """Wait for an answer; what went wrong there is raised here as it was."""
        try:
            return self._ray.get(begun)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayActorError:
            raise DataError(
                f"A process on Ray was lost {_TRIES} times over; is there too little memory? "
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
