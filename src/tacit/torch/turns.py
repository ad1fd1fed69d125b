"""Two pieces of code that take turns: the engine, which asks for losses, and the caller's loop.

The engine calls a function for the losses of a batch and goes on with what comes back: that is how
it checks units, splits batches and clips. In a loop of one's own it is the other way round, so the
engine works on a stack of its own and the function that it calls hands the batch over to the loop.
No threads: exactly one of the two runs at any time, in the thread of the loop.
"""

from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Any

from greenlet import getcurrent, greenlet


@dataclass(frozen=True)
class Question:
    """What the work asks; `context` are its context variables, which the answer may depend on."""

    what: Any
    context: Context

    def enter(self) -> Callable[[], None]:
        """See what the work sees, until what comes back is called."""
        tokens = [(variable, variable.set(value)) for variable, value in self.context.items()]

        def leave() -> None:
            for variable, token in tokens:
                variable.reset(token)

        return leave


class Turns:
    """The work, as far as it has come; whoever holds this is its counterpart."""

    def __init__(self, work: Callable[["Turns"], None]) -> None:
        self._work = greenlet(lambda _: work(self))
        self._work.gr_context = copy_context()
        self.question: Question | None = None
        """What waits for an answer."""

    @property
    def done(self) -> bool:
        """Whether the work has ended."""
        return bool(self._work.dead)

    # --- called by the work ---------------------------------------------------------------------

    def ask(self, what: Any) -> Any:
        """Hand over until there is an answer."""
        return self._work.parent.switch(Question(what, copy_context()))

    def pause(self) -> None:
        """Hand over until the counterpart wants more."""
        self._work.parent.switch(None)

    # --- called by its counterpart --------------------------------------------------------------

    def go_on(self, answer: Any = None) -> None:
        """Let the work run until it asks, pauses or ends; what it raises is raised here."""
        self.question = None
        self._work.parent = getcurrent()
        self.question = self._work.switch(answer)

    def close(self) -> None:
        """End the work where it stands: whatever it has open is closed."""
        if self._work and not self._work.dead:
            self._work.parent = getcurrent()
            self._work.throw()
