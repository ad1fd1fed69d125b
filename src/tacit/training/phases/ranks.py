"""One run in several processes: the drawn are dealt out, clipped sums added up, noise drawn once.

Every process ("rank") reads the same run. Rank 0 leads: it alone draws coins and noise, writes the
ledger, updates the weights and keeps the folder. The others follow: for every step they are told
who was drawn and what the weights are, and give back the clipped sum over their share.
"""

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tacit.errors import DataError, PrivacyRefused, UsageError
from tacit.training.dp import dropout
from tacit.training.dp.gradients import BoundedSum, joined
from tacit.training.dp.sampling import Drawn, UserEntityDraw

Share = TypeVar("Share", Drawn, UserEntityDraw)
_END = -1
_HEAD = 5
"""What is told first: the seed of dropout, the step, and the lengths of up to three arrays."""
# While rank 0 reads public text or writes a checkpoint the others wait; a rank that is lost is
# noticed at once all the same, because its connections close.
_PATIENCE = timedelta(days=7)


@dataclass(frozen=True)
class Ranks:
    """This process's place among those that train together."""

    rank: int
    count: int

    @property
    def leads(self) -> bool:
        """Whether this process holds the ledger and the folder."""
        return self.rank == 0

    def require_alike(self, facts: Iterable[bytes]) -> None:
        """Refuse to go on unless all processes read the same settings, records, caps and code."""
        digest = hashlib.sha256()
        for fact in facts:
            digest.update(hashlib.sha256(fact).digest())
        own = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8).to(torch.int64)
        found = [torch.empty_like(own) for _ in range(self.count)]
        with _noticing_losses():
            dist.all_gather(found, own)
        if any(not torch.equal(one, own) for one in found):
            raise PrivacyRefused(
                "The processes of this run do not read the same settings, records or code, so "
                "nobody's share would be bounded for certain; give all of them the same files."
            )

    def lead(
        self,
        total: Callable[[int, Share], BoundedSum],
        model: nn.Module,
        depends_on: Callable[[], list[Tensor]],
    ) -> Callable[[int, Share], BoundedSum]:
        """The same sum, of which every process computes its share.

        *Guarantee*: a unit's share lies in one process whole, so it is clipped as in one process,
        to the norm, and after the scales, that `depends_on` gives here.
        """

        def shared(step: int, drawn: Share) -> BoundedSum:
            with _noticing_losses():
                arrays: list[np.ndarray] = _arrays(drawn)
                head = [dropout.current_seed(), step, *(len(a) for a in arrays)]
                _broadcast(torch.tensor(head + [0] * (_HEAD - len(head))))
                for array in arrays:
                    _broadcast(torch.from_numpy(array.astype(np.int64)))
                _share_weights(model)
                for tensor in depends_on():
                    _broadcast(tensor)
            own = total(step, _dealt(drawn, self))
            return joined(own, _add_up)

        return shared

    def follow(
        self,
        total: Callable[[int, Any], BoundedSum],
        model: nn.Module,
        *,
        pieces: int,
        room: list[Tensor],
    ) -> None:
        """Give shares of sums until the one who leads has no further step.

        `pieces` is how many arrays say who was drawn: one, or three for the published algorithm.
        Into `room` comes what the sum depends on beside the weights.
        The coins of dropout are those of rank 0: in whose share a user falls depends on who else
        is drawn, so no mask may depend on it.
        """
        model.train()
        while True:
            head = torch.zeros(_HEAD, dtype=torch.int64)
            with _noticing_losses():
                _broadcast(head)
                seed, step, *sizes = head.tolist()
                if step == _END:
                    return
                told = [torch.zeros(size, dtype=torch.int64) for size in sizes[:pieces]]
                for array in told:
                    _broadcast(array)
                _share_weights(model)
                for tensor in room:
                    _broadcast(tensor)
            with dropout.step(seed):
                own = total(step, _dealt(_drawn([a.numpy() for a in told]), self))
            joined(own, _add_up)

    def end(self) -> None:
        """Send the others home."""
        with _noticing_losses():
            _broadcast(torch.tensor([0, _END, *[0] * (_HEAD - 2)]))


def ranks_of_environment() -> Ranks | None:
    """Who we are, if `torchrun` started several of us; None if we are alone."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count < 2 or "RANK" not in os.environ:
        return None
    if not dist.is_available():
        raise UsageError("This build of torch cannot train in several processes.")
    if not dist.is_initialized():
        # Weights and sums travel between GPUs where they live there; all else between processors.
        dist.init_process_group(_backend(), timeout=_PATIENCE)
    return Ranks(dist.get_rank(), dist.get_world_size())


def _backend() -> str:
    nccl = torch.cuda.is_available() and dist.is_nccl_available()
    return "cpu:gloo,cuda:nccl" if nccl else "gloo"


def _arrays(drawn: Any) -> list[np.ndarray]:
    if isinstance(drawn, UserEntityDraw):
        return [drawn.users, drawn.entities, drawn.plain]
    return [drawn]


def _drawn(arrays: list[np.ndarray]) -> Any:
    if len(arrays) == 1:
        return arrays[0]
    users, entities, plain = arrays
    return UserEntityDraw(users, entities.astype(bool), plain.astype(bool))


def _dealt(drawn: Any, ranks: Ranks) -> Any:
    """This process's part of those who were drawn: every so-manyth of them."""
    if isinstance(drawn, UserEntityDraw):
        return replace(drawn, users=drawn.users[ranks.rank :: ranks.count])
    return drawn[ranks.rank :: ranks.count]


def _share_weights(model: nn.Module) -> None:
    """Rank 0's trainable weights everywhere, so that no difference can grow."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            _broadcast(parameter.data)


def _broadcast(tensor: Tensor) -> None:
    dist.broadcast(tensor, 0)


def _add_up(tensors: Iterable[Tensor]) -> None:
    """Sums over all processes, in place; they arrive where noise is added, at rank 0."""
    with _noticing_losses():
        for tensor in tensors:
            dist.reduce(tensor, 0)


class _noticing_losses:
    """What torch says when a process is gone, in a sentence."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, RuntimeError):
            raise DataError(
                "A process of this run was lost, so the run stops. What was released is in the "
                "ledger, the last checkpoint is whole: go on with --resume, with as many "
                "processes as you like."
            ) from None
