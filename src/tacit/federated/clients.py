"""The clients of a run as the server knows them: who joined, where, and what each answers."""

import secrets
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import Any

from flwr.app import RecordDict
from torch import Tensor

from tacit.errors import DataError
from tacit.federated.cohort import Cohort, Whereabouts, make_cohort
from tacit.federated.messaging import Faults, Messenger, Question
from tacit.federated.protocol import JOIN, TRAIN, Kit, Present, Round, packed
from tacit.federated.settings import Federation
from tacit.planning.plan import Plan
from tacit.training.dp.sampling import Drawn

_ASK_AGAIN = 30.0
"""After so many seconds a client that could not join is asked once more."""


class Clients:
    """The clients of a run: who joined, and the answers to a round."""

    def __init__(
        self, messenger: Messenger, kit: Kit, federation: Federation, plan: Plan | None, frozen: str
    ) -> None:
        self._asking, self._kit, self._federation, self._plan = messenger, kit, federation, plan
        self._frozen = frozen
        self._cohort: Cohort | None = None
        self._where: Whereabouts | None = None
        self._refused: set[int] = set()
        """Nodes that are not asked again: another version, another model, or no answer at all.

        To wait for a silent one in every round would hold up all of them; it has another number
        when it comes back.
        """
        self._later: set[int] = set()
        """Nodes that said they cannot join; they are asked again in the next round."""
        self.faults = Faults()

    @property
    def cohort(self) -> Cohort:
        """Who takes part."""
        assert self._cohort is not None, "nobody has joined"
        return self._cohort

    def gather(self, known: Cohort | None) -> Cohort:
        """Wait for clients to join; those of a `known` cohort join when a round needs them."""
        joined: dict[int, Present] = {}
        if known is None:
            self._first(joined)
        # A client that came back has another node, and is the same one.
        distinct = {one.users: one for one in joined.values()}
        self._cohort = known or make_cohort(self._plan, distinct.values())
        self._where = Whereabouts(self._cohort)
        here = self._asking.connected() if joined else set()
        for node, one in joined.items():
            self._where.put(node, one, here)
        return self._cohort

    def _first(self, joined: dict[int, Present]) -> None:
        """Wait until as many clients as a federation needs have joined and are still there."""
        wanted, patience = self._federation.clients, self._federation.join_seconds
        clock = self._asking.clock
        asked = clock.now()

        def there() -> int:
            here = self._asking.connected()
            return len({one.users for node, one in joined.items() if node in here})

        def again() -> None:
            nonlocal asked
            if clock.now() - asked >= _ASK_AGAIN:  # who could not join may be able to now
                asked = clock.now()
                self._later.clear()
            joined.update(self._join(set(joined), patience))

        self._until(
            lambda: there() >= wanted, again, lambda: f"{there()} of {wanted} clients joined"
        )

    def _until(
        self, done: Callable[[], bool], again: Callable[[], None], state: Callable[[], str]
    ) -> None:
        """Try again until it is done, or patience ends."""
        clock, begun = self._asking.clock, self._asking.clock.now()
        again()
        while not done():
            if clock.now() - begun >= self._federation.join_seconds:
                noted = ", ".join(f"{what}: {n}" for what, n in self.faults.counts.items())
                patience = f"join_seconds={self._federation.join_seconds:g}"
                raise DataError(
                    f"{state()} within {patience}{f' ({noted})' if noted else ''}; nothing was "
                    "drawn or charged since the last round. Start more clients, and resume."
                )
            clock.wait(1.0)
            again()

    def _join(self, known: set[int], seconds: float) -> dict[int, Present]:
        """Give the kit to nodes that do not have it yet."""
        known = known | self._refused | self._later
        asked, content = set(known), self._kit.record()
        found: dict[int, Present] = {}
        heard: set[int] = set()

        def new(connected: set[int]) -> list[Question]:
            coming = sorted(connected - asked)
            asked.update(coming)
            return [(node, content) for node in coming]

        for node, answer in self._asking.ask(
            new(self._asking.connected()), kind=JOIN, group="join", seconds=seconds,
            faults=self.faults, newcomers=new,
        ):  # fmt: skip
            heard.add(node)
            try:
                one = Present.read(answer)
            except DataError:
                self.faults.note("could not join")
                continue
            if one.version != version("tacit") or one.frozen != self._frozen:
                self.faults.note("other version or model")
                self._refused.add(node)
                continue
            found[node] = one
        missing = asked - known - set(found)
        heard |= self._asking.failed
        self._later |= missing & heard
        self._refused |= missing - heard
        return found

    def ready(self) -> None:
        """Let newcomers join; wait until enough clients are connected for a round to begin."""
        assert self._where is not None
        self.faults = Faults()
        self._later.clear()
        where, here = self._where, set[int]()
        # Somebody new must not hold up a round for long.
        patience = min(self._federation.join_seconds, self._federation.round_seconds)

        def look() -> None:
            here.clear()
            here.update(self._asking.connected())
            for node in where.nodes - here:
                where.forget(node)
            for node, one in self._join(where.nodes, patience).items():
                if not where.put(node, one, here):
                    self._later.add(node)  # it speaks for nobody yet

        self._until(
            lambda: len(where.nodes & here) >= self._federation.least_clients,
            look,
            lambda: (
                f"{len(where.nodes & here)} of {self._federation.least_clients} clients are "
                "connected, and a round needs so many"
            ),
        )

    def answers(
        self, step: int, drawn: Drawn, shared: Mapping[str, Tensor]
    ) -> Iterator[tuple[int, RecordDict, int]]:
        """The updates of the drawn users as they come: number, content, place in the answer."""
        assert self._where is not None
        by_node = self._where.drawn(drawn.tolist())
        asked_of_all = sum(len(numbers) for numbers in by_node.values())
        self.faults.note("with no client", len(drawn) - asked_of_all)
        attempt, sent = secrets.token_hex(8), packed(shared)
        for node, content in self._asking.ask(
            ((node, self._question(step, attempt, numbers).record(sent))
             for node, numbers in by_node.items()),
            kind=TRAIN, group=str(step), seconds=self._federation.round_seconds, faults=self.faults,
        ):  # fmt: skip
            yield from self._of_one(node, content, step, attempt, by_node[node])

    def _question(self, step: int, attempt: str, numbers: list[int]) -> Round:
        names = tuple(self.cohort.users[n] for n in numbers)
        permits = self.cohort.permits
        return Round(
            self._kit.digest,
            step,
            attempt,
            len(self.cohort.users),
            tuple(numbers),
            names,
            tuple(permits[name] for name in names) if permits is not None else None,
        )

    def _of_one(
        self, node: int, content: RecordDict, step: int, attempt: str, numbers: list[int]
    ) -> Iterator[tuple[int, RecordDict, int]]:
        """What is usable of one client's answer."""
        if "refused" in content:
            self.faults.note("could not take part")
            if self._where is not None:
                self._where.forget(node)  # it gets the kit again before the next round
            return
        try:
            fields: Any = content.config_records["answer"]
            if (fields["step"], fields["attempt"]) != (step, attempt):
                raise ValueError
            users = [int(user) for user in fields["users"]]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            self.faults.note("unreadable")
            return
        self.faults.note("not computed", len(set(numbers) - set(users)))
        for place, user in enumerate(users):
            if user not in numbers:
                self.faults.note("not asked for")
            else:
                yield user, content, place
