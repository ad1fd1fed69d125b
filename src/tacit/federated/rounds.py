"""A round as a method of training: coins, sums that come from clients, and what is released."""

from dataclasses import dataclass, field
from typing import Any

from flwr.app import RecordDict
from torch import Tensor

from tacit.federated.aggregation import Received, Refused
from tacit.federated.clients import Clients
from tacit.federated.messaging import Faults
from tacit.federated.settings import Federation
from tacit.privacy.events import NotPrivate
from tacit.training.dp.gradients import BoundedSum
from tacit.training.dp.sampling import Drawn, PoissonUsers
from tacit.training.methods.method import Method, MethodInputs, StepStats
from tacit.training.methods.noisy_sums import LossMeter, NoisySumMethod
from tacit.training.models.weights import trainable


def federated_step(
    inputs: MethodInputs, clients: Clients, federation: Federation, counted: "RoundCounts"
) -> Method:
    """A method whose bounded sums come from clients; all else is central training's.

    *Guarantee*: the plan's, if the server draws and adds noise as this does, and, for entities
    with a share below 2, if clients clip each record and use only those that were permitted.
    """
    if inputs.plan is None:
        return Averaged(inputs, clients, federation.user_rate, counted)
    plan, shared = inputs.plan, trainable(inputs.model)

    def total(step: int, drawn: Drawn) -> BoundedSum:
        clients.ready()
        received = Received(shared, plan.clip_norm, plan.record_clip)
        for user, content, _ in clients.answers(step, drawn, shared):
            _add(received, user, content, clients.faults)
        counted.count(len(drawn), len(received), clients.faults)
        return received.bounded(len(drawn))

    method = inputs.run.spec
    assert isinstance(method, NoisySumMethod)
    # Clients check that units are independent, who have the records.
    return method.released(inputs, total, LossMeter(inputs.model, inputs.losses), None)


def _add(
    received: Received, user: int, content: RecordDict, faults: Faults, weight: float = 1.0
) -> bool:
    try:
        record = content.array_records.get(f"user-{user}")
        if record is None:
            raise Refused("unreadable")
        received.add(user, record, weight=weight)
    except Refused as problem:
        faults.note(str(problem))
        return False
    return True


class Averaged:
    """Federated averaging without protection; the ledger says so once, before the first round.

    Source: McMahan et al. 2017, the mean of the updates, weighted by numbers of records.
    """

    def __init__(
        self, inputs: MethodInputs, clients: Clients, rate: float, counted: "RoundCounts"
    ) -> None:
        self._model, self._clients, self._counted = inputs.model, clients, counted
        self._randomness, ledger = inputs.randomness, inputs.need_ledger()
        self._sampler = PoissonUsers(len(clients.cohort.users), rate)
        event = NotPrivate(what="federated averaging without protection")
        if event not in ledger.releases:
            ledger.charge(event)

    def gradient(self, step: int) -> tuple[dict[str, Tensor], StepStats]:
        """The weighted mean of the updates that came."""
        self._clients.ready()
        drawn = self._sampler.draw(self._randomness.stream("coins", step))
        shared, weight = trainable(self._model), 0.0
        received = Received(shared, float("inf"))
        for user, content, place in self._clients.answers(step, drawn, shared):
            records = _records(content, place)
            if _add(received, user, content, self._clients.faults, records):
                weight += records
        total = received.tensors()
        for tensor in total.values():
            tensor.div_(max(weight, 1.0))
        self._counted.count(len(drawn), len(received), self._clients.faults)
        return total, StepStats(len(drawn), 0, len(drawn) - len(received), 0.0)


def _records(content: RecordDict, place: int) -> float:
    fields: Any = content.config_records["answer"]
    try:
        return float(min(max(int(fields["records"][place]), 0), 10**6))
    except (KeyError, TypeError, ValueError, IndexError, OverflowError):
        return 0.0


@dataclass
class RoundCounts:
    """What the last round saw."""

    drawn: int = 0
    answered: int = 0
    faults: dict[str, int] = field(default_factory=dict)

    def count(self, drawn: int, answered: int, faults: Faults) -> None:
        """One round."""
        self.drawn, self.answered, self.faults = drawn, answered, dict(faults.counts)
