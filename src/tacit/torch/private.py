"""`make_private`: a model and an optimizer of yours, trained under a plan in a loop of yours."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate

from tacit.errors import UsageError
from tacit.privacy.certificates.certificate import Certificate
from tacit.torch.finishing import finish
from tacit.torch.material import Ownership, Rows, Whose
from tacit.torch.training import (
    AnyPlan,
    Collate,
    OwnTraining,
    Weights,
    folder_of,
    plan_of,
    require_checkpoint,
    to_device,
)
from tacit.torch.turns import Turns
from tacit.training.dp.dropout import RECORD
from tacit.training.dp.random_source import RandomSource
from tacit.training.models.devices import device_of
from tacit.training.phases.loop import Progress, Schedule

Metrics = dict[str, float]


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    plan: AnyPlan,
    *,
    owners: Whose = None,
    ledger: str | Path,
    schedule: Schedule | None = None,
    seed: int | None = None,
) -> "Private":
    """Train a model of your own under a plan, by the engine of `tacit train`.

    `owners` names the user of each record, in the order of the dataset, or is the graph that
    `tacit.owners` makes; a plan for records needs none. `ledger` is `RUN/ledger.jsonl`: what
    belongs to the run lies beside it. `schedule` is a learning rate scheduler, which goes on with
    each step. A `seed` is for experiments: the model is then not for release.
    """
    return Private(
        OwnTraining(
            model, optimizer, made := plan_of(plan), Ownership.of(made, owners), folder_of(ledger),
            RandomSource(seed), _public(schedule),
        )
    )  # fmt: skip


class Private:
    """A private training under way, in the hands of the loop that `make_private` gave it to."""

    def __init__(self, training: OwnTraining) -> None:
        self.training = training
        self.public: Metrics = {}
        """Of the last step: what may be shown to anybody."""
        self.private: Metrics = {}
        """Of the last step: exact figures over private records; keep them inside."""
        self._turns: Turns | None = None
        self._weights = Weights(training.model)
        self._size: int | None = None
        self._leave: Callable[[], None] | None = None

    @property
    def plan(self) -> Any:
        """The plan, with the noise that meets its targets."""
        return self.training.plan

    @property
    def done(self) -> int:
        """How many steps were made."""
        loop = self.training.loop
        return loop.done if loop is not None else 0

    @property
    def stopped(self) -> str | None:
        """Why training ended before its last step; None if it did not."""
        return self.training.stopped

    def spent(self) -> str:
        """`epsilon <= 1.23 of 8`, priced from the ledger."""
        return self.training.spent()

    def batches(
        self, dataset: Any, *, collate_fn: Collate = default_collate, at_once: int = 64
    ) -> Iterator[Any]:
        """The records of all steps: users by Poisson sampling, `at_once` records at a time.

        Call `step` once for each batch. A step has as many batches as its records need, and the
        first ones, of a few records, only try whether records depend on each other; `step` says
        when the weights were updated.
        """
        records = require_dataset(dataset)
        if at_once < 1:
            raise UsageError(f"at_once={at_once} is too few; give 1 or more records.")
        rows = self.training.ownership.rows(records)
        self._turns = turns = Turns(lambda turns: self._work(turns, rows, at_once))
        try:
            turns.go_on()
            while not turns.done:
                if turns.question is not None:
                    yield self._batch(dataset, collate_fn, turns.question.what)
                    if self._size is not None:
                        raise UsageError(
                            "A batch was drawn and private.step was not called for it; call it "
                            "once for each batch, whatever is in it."
                        )
                else:
                    self._weights.require_as_left()
                    turns.go_on()
        finally:
            turns.close()
            self._turns = self._size = None
            self._see_as_before()
            self.training.resumes = self.training.resumes or self.done > 0

    def step(self, loss_per_record: Tensor) -> bool:
        """Take the losses of a batch, one for each record; whether the weights were updated now.

        Units are clipped, the ledger is written, noise is added and the optimizer steps when the
        last batch of a step is in. Whatever else belongs to a step (evaluation, what is logged)
        goes below `if private.step(losses):`.
        """
        turns = self._turns
        if turns is None or turns.question is None or self._size is None:
            raise UsageError(
                "private.step goes inside `for batch in private.batches(dataset)`, once for each "
                "batch."
            )
        self._require_losses(loss_per_record)
        before, self._size = self.done, None
        self._see_as_before()
        try:
            turns.go_on(loss_per_record)
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            raise UsageError(
                "The losses were differentiated already; leave loss.backward() and "
                "optimizer.step() to private.step."
            ) from None
        return self.done > before

    def save(self) -> Path:
        """Write weights, optimizer and the place in the ledger; `resume` goes on from there."""
        if self.training.loop is None:
            raise UsageError("There is nothing to save before the first step.")
        self.training.loop.save()
        return self.training.folder

    def resume(self) -> None:
        """Go on from the last checkpoint with the next `batches`; what was spent counts."""
        require_checkpoint(self.training.folder)
        self.training.resumes = True

    def certificate(self, *, tokenizer: Any = None, adapter: bool = False) -> Certificate:
        """Write the model, its card and its certificate beside the ledger.

        A model of transformers is saved as `save_pretrained` does, LoRA merged into it unless
        `adapter` keeps it apart; another one as model.safetensors.
        """
        return finish(self.training, tokenizer=tokenizer, adapter=adapter)

    def __repr__(self) -> str:
        return f"Private({self.done:,} of {self.plan.steps:,} steps, {self.spent()})"

    # --- the engine's side ----------------------------------------------------------------------

    def _work(self, turns: Turns, rows: Rows, at_once: int) -> None:
        training = self.training

        def losses(_: nn.Module, batch: dict[str, Tensor]) -> Tensor:
            return turns.ask(batch[RECORD])

        def told(at: Progress) -> None:
            self.public, self.private = at.public, at.private
            self._weights.leave()
            turns.pause()

        training.run(
            training.ownership.training_data(training.plan, rows), losses,
            token_budget=at_once * rows.LENGTH, on_progress=told,
        )  # fmt: skip

    # --- the loop's side ------------------------------------------------------------------------

    def _batch(self, dataset: Any, collate_fn: Collate, numbers: Tensor) -> Any:
        assert self._turns is not None
        assert self._turns.question is not None
        self._leave = self._turns.question.enter()
        self._size = len(numbers)
        try:
            batch = collate_fn([dataset[number] for number in numbers.tolist()])
        except (RuntimeError, TypeError) as error:
            if collate_fn is not default_collate:
                raise
            raise UsageError(
                f"These records do not make a batch as they are ({type(error).__name__}); give "
                "collate_fn, as to a DataLoader."
            ) from None
        return to_device(batch, device_of(self.training.model))

    def _see_as_before(self) -> None:
        """Leave what the engine lets a batch see, also where a loop ends in the middle of one."""
        if self._leave is not None:
            leave, self._leave = self._leave, None
            leave()

    def _require_losses(self, losses: Any) -> None:
        model, size = self.training.model, self._size
        if not isinstance(losses, Tensor) or losses.shape != (size,):
            given = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else "no tensor"
            raise UsageError(
                f"private.step got {given} for {size} records; give one loss for each record, not "
                'their mean: reduction="none", then the mean over each record\'s own tokens.'
            )
        if not model.training:
            raise UsageError("The model is in the mode of evaluation; call model.train() first.")
        if losses.device != device_of(model):
            raise UsageError(
                f"The losses are on {losses.device} and the model is on {device_of(model)}; move "
                "the model before make_private, and leave the batches where they come."
            )


class _Unscheduled:
    """Learning rates that stay as they are."""

    def step(self) -> None:
        """Nothing."""


def _public(schedule: Schedule | None) -> Schedule:
    """A schedule that looks at nothing private."""
    if isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise UsageError(
            "ReduceLROnPlateau follows a loss, which is private; give a schedule that is known "
            "before, such as LinearLR or CosineAnnealingLR."
        )
    return schedule if schedule is not None else _Unscheduled()


def require_dataset(dataset: Any) -> int:
    """How many records there are; what draws by itself, or cannot be drawn from, is refused."""
    if isinstance(dataset, DataLoader):
        raise UsageError(
            "private.batches draws users itself, each by a coin of their own (Poisson sampling), "
            "which no DataLoader does, shuffled or not; give its dataset: loader.dataset."
        )
    if isinstance(dataset, dict) or not (
        hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    ):
        raise UsageError(
            f"{type(dataset).__name__} cannot be drawn from; give a dataset with a length, whose "
            "records are had by number."
        )
    return len(dataset)
