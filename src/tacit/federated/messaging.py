"""Questions to clients, and the answers that come in time.

Everything passes through Flower's `Grid`, which is the same in a simulation and between machines.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from tacit.errors import DataError

_LOOK_AROUND = 5.0
"""So often, in seconds, it is asked who is still connected."""


Question = tuple[int, RecordDict]
"""A node, and what it is sent; or what it sent back."""


class Clock(Protocol):
    """What waiting needs."""

    def now(self) -> float:
        """Seconds since some moment."""
        ...

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        ...


class RealClock:
    """Time as it is."""

    def now(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)


@dataclass
class Faults:
    """What went wrong in a round, counted; exact, hence for the eyes of whoever trains."""

    counts: dict[str, int] = field(default_factory=dict)

    def note(self, what: str, count: int = 1) -> None:
        """Count something."""
        if count:
            self.counts[what] = self.counts.get(what, 0) + count


class Messenger:
    """Sends questions, and yields answers, a bounded number at once, until a deadline.

    *Guarantee*: all questions are sent before any answer is waited for, so how long one client
    takes, or whether it answers at all, decides nothing about another's question.
    """

    def __init__(
        self, grid: Grid, *, at_once: int, clock: Clock | None = None, pause: float = 0.2
    ) -> None:
        self._grid, self._at_once, self._pause = grid, at_once, pause
        self.clock: Clock = clock or RealClock()
        self.failed: set[int] = set()
        """Nodes that answered the last questions with an error."""

    def connected(self) -> set[int]:
        """The nodes that Flower counts as present."""
        try:
            return set(self._grid.get_node_ids())
        except Exception:
            raise DataError(
                "Flower's SuperLink cannot be reached; nothing more was released. Start it, and "
                "resume the run."
            ) from None

    def ask(
        self,
        questions: Iterable[Question],
        *,
        kind: str,
        group: str,
        seconds: float,
        faults: Faults,
        newcomers: Callable[[set[int]], Iterable[Question]] | None = None,
    ) -> Iterator[Question]:
        """Each answer with its node, as it comes; who is late or gone is counted, not waited for.

        An answer counts once: Flower names the question that it is for, and that question is then
        no longer open. `newcomers` gives further questions, for nodes that came meanwhile.
        """
        open_: dict[str, int] = {}
        self.failed.clear()
        for question in questions:
            self._push(question, kind, group, seconds, open_, faults)
        begun = looked = self.clock.now()
        while open_:
            names = list(open_)
            for first in range(0, len(names), self._at_once):
                for answer in self._pull(names[first : first + self._at_once], open_, faults):
                    node = open_.pop(answer.metadata.reply_to_message_id, None)
                    if node is None:
                        faults.note("not asked for")
                    elif answer.has_error() or not answer.has_content():
                        faults.note("failed")
                        self.failed.add(node)
                    else:
                        yield node, answer.content
            now = self.clock.now()
            if now - begun >= seconds:
                faults.note("late", len(open_))
                return
            if open_ and now - looked >= _LOOK_AROUND:
                looked = now
                here = self.connected()
                for message, node in list(open_.items()):
                    if node not in here:
                        del open_[message]
                        faults.note("gone")
                for question in newcomers(here) if newcomers is not None else ():
                    self._push(question, kind, group, seconds, open_, faults)
            if open_:
                self.clock.wait(self._pause)

    def _push(
        self,
        question: Question,
        kind: str,
        group: str,
        seconds: float,
        open_: dict[str, int],
        faults: Faults,
    ) -> None:
        node, content = question
        message = Message(content, dst_node_id=node, message_type=kind, ttl=seconds, group_id=group)
        try:
            sent = [name for name in self._grid.push_messages([message]) if name]
        except Exception:
            self.connected()  # says so if it is the SuperLink that is gone
            sent = []
        if sent:
            open_[sent[0]] = node
        else:
            faults.note("not reached")

    def _pull(self, names: Sequence[str], open_: dict[str, int], faults: Faults) -> list[Message]:
        """The answers that are there; one that cannot be read costs no other."""
        try:
            return list(self._grid.pull_messages(names))
        except Exception:
            self.connected()
        found: list[Message] = []
        for name in names:
            try:
                found += self._grid.pull_messages([name])
            except Exception:
                del open_[name]
                faults.note("unreadable")
        return found
