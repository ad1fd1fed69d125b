"""Flower's grid with the clients in this process: the same apps, and every fault on demand."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run as FlowerRun
from flwr.supercore.task_identity import TaskIdentity

from tacit.federated.app import client_app

Fault = Callable[[Message, Message], list[Message]]
"""From a question and its true answer to the answers that arrive."""


class FakeClock:
    """Time that passes only when somebody waits."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def wait(self, seconds: float) -> None:
        self.time += seconds


class LocalGrid(Grid):
    """Nodes by id, each with its settings; `faults` change what arrives from a node."""

    def __init__(self, nodes: Mapping[int, Mapping[str, Any]]) -> None:
        self.nodes = {node: dict(config) for node, config in nodes.items()}
        self.faults: dict[int, Fault] = {}
        self.asked: list[Message] = []
        self.answered: list[Message] = []
        self.most_pulled = 0
        self._answers: dict[str, list[Message]] = {}
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    def set_run(self, run: FlowerRun) -> None:
        raise NotImplementedError

    @property
    def run(self) -> FlowerRun:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names: list[str] = []
        for message in messages:
            node = message.metadata.dst_node_id
            if node not in self.nodes:
                names.append("")
                continue
            name = str(uuid4())
            message.metadata.__dict__["_message_id"] = name
            self.asked.append(message)
            answer = self._answer(message, node)
            answers = self.faults[node](message, answer) if node in self.faults else [answer]
            self._answers[name] = answers
            names.append(name)
        return names

    def _answer(self, message: Message, node: int) -> Message:
        context = Context(1, node, self.nodes[node], RecordDict(), {})
        answer = client_app(message, context)
        self.answered.append(answer)
        return answer

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found, names = [], list(message_ids)
        self.most_pulled = max(self.most_pulled, len(names))
        for name in names:
            found += self._answers.pop(name, [])
        return found

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


def dealt(parts: int, home: Path) -> dict[int, dict[str, Any]]:
    """Nodes to which a corpus is dealt."""
    return {
        100 + part: {"partition-id": part, "num-partitions": parts, "home": str(home)}
        for part in range(parts)
    }
