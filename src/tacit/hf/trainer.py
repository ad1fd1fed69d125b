"""`PrivateTrainer`: the Trainer of transformers, whose steps are those of `tacit train`.

Arguments, collators, optimizers, schedules, callbacks, evaluation and prediction are the
Trainer's. What it draws, clips, charges and releases is not: `train` is the engine's.
"""

import shutil
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import Trainer, TrainerState, TrainingArguments
from transformers.trainer_utils import TrainOutput

from tacit.errors import UsageError
from tacit.hf import losses
from tacit.hf.arguments import problems
from tacit.privacy.certificates.certificate import Certificate, read_certificate
from tacit.privacy.certificates.manifest import CERTIFICATE_FILES
from tacit.registry import did_you_mean
from tacit.torch.finishing import finish
from tacit.torch.material import Ownership, Whose
from tacit.torch.private import require_dataset
from tacit.torch.training import AnyPlan, OwnTraining, plan_of, require_checkpoint
from tacit.training.dp.dropout import RECORD
from tacit.training.dp.random_source import RandomSource
from tacit.training.phases.loop import Progress

_OURS = ("train", "training_step", "compute_loss", "get_train_dataloader", "_get_train_sampler")
"""Methods that a subclass may not change: what they do is promised."""


class PrivateTrainer(Trainer):
    """Train under a plan; `output_dir` is the run's folder, with ledger and certificate.

    `owners` names the user of each record of `train_dataset`: a column of it, a sequence, or the
    graph that `tacit.owners` makes. `per_device_train_batch_size` is how many records are in memory
    at once, and decides nothing else: a step accumulates as many batches as its users need.
    Callbacks are told what may be shown; exact figures are in `private_logs`. A `seed` is for
    experiments: the model is then not for release.
    """

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments,
        *,
        plan: AnyPlan,
        owners: Whose = None,
        train_dataset: Any,
        seed: int | None = None,
        **given: Any,
    ) -> None:
        self.plan = plan_of(plan)
        unused = {name: given.pop(name, None) for name in ("compute_loss_func", "model_init")}
        for problem in problems(args, self.plan, given.get("callbacks") or [], unused):
            raise UsageError(problem)
        self._records, self._dataset = require_dataset(train_dataset), train_dataset
        self._require_methods()
        self._ownership = Ownership.of(self.plan, _of_column(owners, train_dataset))
        self._randomness = RandomSource(seed)
        self.private_logs: list[dict[str, float]] = []
        """Exact figures over private records; keep them inside."""
        super().__init__(model, args, train_dataset=train_dataset, **given)
        self.training: OwnTraining | None = None

    def record_losses(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        """One loss for each record, from that record alone; override it for other models."""
        return losses.record_losses(model, inputs)

    def train(  # type: ignore[override]
        self, resume_from_checkpoint: str | bool | None = None
    ) -> TrainOutput:
        """All steps of the plan, then the model, its card and its certificate."""
        self.training = training = self._made()
        if resume_from_checkpoint:
            self._require_own_folder(resume_from_checkpoint)
            require_checkpoint(training.folder)
            training.resumes = True
        self._begin(training)
        rows = self._ownership.rows(self._records)
        collate = self._get_collator_with_removed_columns(self.data_collator, "training")

        def of_batch(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
            chosen = [self._dataset[number] for number in batch[RECORD].tolist()]
            return self.record_losses(model, self._prepare_inputs(collate(chosen)))

        try:
            training.run(
                self._ownership.training_data(self.plan, rows), of_batch,
                token_budget=self.args.per_device_train_batch_size * rows.LENGTH,
                on_progress=self._told,
            )  # fmt: skip
        except _Stopped:
            training.stopped = "A callback stopped it; resume_from_checkpoint=True goes on."
        self.control = self.callback_handler.on_train_end(self.args, self.state, self.control)
        self.is_in_train = False
        adapter = hasattr(training.model, "peft_config")
        finish(training, tokenizer=self.processing_class, adapter=adapter)
        last = self.private_logs[-1] if self.private_logs else {}
        return TrainOutput(self.state.global_step, last.get("loss", float("nan")), self._shown)

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return Path(str(self.args.output_dir))

    @property
    def certificate(self) -> Certificate:
        """What is promised, computed from the ledger."""
        return read_certificate(self.folder / "certificate.json")

    def spent(self) -> str:
        """`epsilon <= 1.23 of 8`, priced from the ledger."""
        return (self.training or self._made()).spent()

    def export(self, folder: str | Path) -> Path:
        """Copy what may leave: the certified files, the certificate and its ledger.

        The copy can be pushed as it is; checkpoint and account of users stay.
        """
        source, to = self.folder, Path(folder)
        if to.exists() and any(to.iterdir()):
            raise UsageError(f"{to} is not empty; give a new folder.")
        to.mkdir(parents=True, exist_ok=True)
        for name in (*self.certificate.files, *CERTIFICATE_FILES):
            shutil.copyfile(source / name, to / name)
        return to

    def get_train_dataloader(self) -> Any:
        """Refused: users are drawn by the plan, not by a loader."""
        raise UsageError(
            "PrivateTrainer has no loader of training records: it draws users by Poisson sampling; "
            "call train()."
        )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Tell callbacks what may be shown; what was measured on records stays here."""
        if any(name.partition("_")[0] in ("eval", "test", "predict") for name in logs):
            self.private_logs.append({**logs, "step": self.state.global_step})
            return
        super().log(logs, start_time)

    def _require_methods(self) -> None:
        for name in _OURS:
            own = getattr(PrivateTrainer, name)
            if getattr(type(self), name) is not own:
                raise UsageError(
                    f"{type(self).__name__} has a {name} of its own, which is promised here; "
                    "override record_losses instead."
                )

    def _made(self) -> OwnTraining:
        self.create_optimizer_and_scheduler(num_training_steps=self.plan.steps)
        assert self.model is not None
        assert self.optimizer is not None
        assert self.lr_scheduler is not None
        return OwnTraining(
            self.model, self.optimizer, self.plan, self._ownership, self.folder, self._randomness,
            self.lr_scheduler,
        )  # fmt: skip

    def _require_own_folder(self, given: str | bool) -> None:
        if given is not True and Path(str(given)).resolve() != self.folder.resolve():
            raise UsageError(
                f"resume_from_checkpoint={given}: a run goes on in its own folder, with its "
                "ledger; give True, and its folder as output_dir."
            )

    # --- what callbacks see ---------------------------------------------------------------------

    def _begin(self, training: OwnTraining) -> None:
        """As the Trainer begins: a state for callbacks, and its first event."""
        self.is_in_train = True
        self.state = TrainerState(
            max_steps=self.plan.steps, is_local_process_zero=True, is_world_process_zero=True
        )
        self.state.compute_steps(self.args, self.plan.steps)
        # There are no epochs, and a log that has one would say so.
        self.state.epoch = None  # type: ignore[assignment]
        self._shown: dict[str, float] = {}
        handler = self.callback_handler
        handler.model, handler.optimizer = self.model, self.optimizer
        handler.lr_scheduler, handler.train_dataloader = self.lr_scheduler, None
        self.control = handler.on_train_begin(self.args, self.state, self.control)

    def _told(self, at: Progress) -> None:
        """After a step: what callbacks ask for is done, and figures are kept apart."""
        self.state.global_step = at.step
        self._shown = at.public
        self.private_logs.append({**at.private, "step": at.step})
        handler = self.callback_handler
        self.control = handler.on_step_begin(self.args, self.state, self.control)
        self.control = handler.on_step_end(self.args, self.state, self.control)
        if self.control.should_log:
            self.log({name: value for name, value in at.public.items() if name != "step"})
        assert self.training is not None
        if self.control.should_evaluate:
            self.evaluate()
            self.training.model.train()
        if self.control.should_save and self.training.loop is not None:
            self.training.loop.save()
            self.control = handler.on_save(self.args, self.state, self.control)
        if self.control.should_training_stop and at.step < at.steps:
            raise _Stopped


def _of_column(owners: Whose, dataset: Any) -> Whose:
    """The values of a column, where that is what is named; else what was given."""
    columns = list(getattr(dataset, "column_names", ()))
    if not isinstance(owners, str) or Path(owners).exists():
        return owners
    if owners not in columns:
        raise UsageError(
            f"owners={owners!r} is no column of the dataset, which has: "
            f"{', '.join(columns) or 'none'}.{did_you_mean(owners, columns)}"
        )
    return list(dataset[owners])


class _Stopped(Exception):
    """A callback wants no more steps."""
