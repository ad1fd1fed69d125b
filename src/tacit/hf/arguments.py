"""Which of a Trainer's arguments would void a promise, or mean nothing under a plan."""

from collections.abc import Iterator
from typing import Any

from transformers import EarlyStoppingCallback, TrainingArguments

from tacit.planning.plan import Plan

_BEST = (
    "keeps what scores best, and a choice by private records is a release of its own; "
    "select: best of tacit.train makes it under the plan"
)
_REFUSED: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("fp16", (False,), "scales losses, and skips steps whose gradients overflow, by what private "
     "records hold; train in the precision of the weights"),
    ("bf16", (False,), "casts layer by layer within a pass, where gradients cannot be split by "
     "record; train in the precision of the weights"),
    ("train_sampling_strategy", ("random",), "puts records into batches by their length or order, "
     "and the plan draws each user by a coin of their own; leave it out"),
    ("group_by_length", (False,), "puts records of like length into a batch, and the plan draws "
     "each user by a coin of their own; leave it out"),
    ("load_best_model_at_end", (False,), _BEST),
    ("max_grad_norm", (1.0, 0.0, None), "clips the gradient of a batch, and the plan clips each "
     "unit's; set plan.clip_norm"),
    ("label_smoothing_factor", (0, 0.0), "changes a loss that is not asked here; override "
     "record_losses instead"),
    ("num_train_epochs", (3, 3.0), "counts epochs, and who takes part in a step is drawn anew each "
     "time; set plan.steps"),
    ("gradient_checkpointing", (False,), "runs layers twice in a pass, which cannot be split by "
     "record; leave it out"),
    ("neftune_noise_alpha", (None,), "draws noise by a record's place in the batch; leave it out"),
    ("auto_find_batch_size", (False,), "begins again when memory runs out; set "
     "per_device_train_batch_size"),
    ("torch_compile", (False,), "hides the layers whose gradients are split by record; leave it "
     "out"),
    ("use_liger_kernel", (False,), "hides the layers whose gradients are split by record; leave it "
     "out"),
    ("dataloader_drop_last", (False,), "leaves out records, and the plan counts all of them; leave "
     "it out"),
    ("push_to_hub", (False,), "would push the checkpoint and the account of users, too; push what "
     "trainer.export(folder) writes"),
    ("deepspeed", (None,), "is not served; tacit train works in several processes under torchrun"),
    ("fsdp", (None, "", [], False), "is not served; tacit train works in several processes under "
     "torchrun"),
    ("world_size", (1,), "is not served; tacit train works in several processes under torchrun"),
    ("n_gpu", (0, 1), "is not served; show it one device (CUDA_VISIBLE_DEVICES=0)"),
)  # fmt: skip
"""An argument, the values that it may have, and why no others."""


def problems(
    args: TrainingArguments, plan: Plan, callbacks: list[Any], given: dict[str, Any]
) -> Iterator[str]:
    """Every reason to refuse, in sentences."""
    for name, allowed, why in _REFUSED:
        value = getattr(args, name, allowed[0])
        if value not in allowed:
            yield f"{name}={_short(value)} {why}."
    if args.max_steps not in (-1, plan.steps):
        yield (
            f"max_steps={args.max_steps} and the plan has {plan.steps:,} steps; leave max_steps "
            "out, or plan again."
        )
    if _short(args.lr_scheduler_type) in ("reduce_lr_on_plateau", "greedy"):
        yield (
            f"lr_scheduler_type={_short(args.lr_scheduler_type)} follows a loss, which is private; "
            "give a schedule that is known before, such as linear or cosine."
        )
    for name in ("logging_strategy", "save_strategy", "eval_strategy"):
        if (said := _short(getattr(args, name))) not in ("no", "steps"):
            yield f"{name}={said} has no meaning where every step is drawn anew; give steps."
    if any(isinstance(one, EarlyStoppingCallback) for one in callbacks):
        yield (
            "EarlyStoppingCallback stops by what is measured on records, and such a choice is a "
            "release of its own; train the steps of the plan."
        )
    for name, value in given.items():
        if value is not None:
            yield f"{name} is not called here; {_INSTEAD[name]}."


_INSTEAD = {
    "compute_loss_func": "override record_losses, which gives one loss for each record",
    "model_init": "give the model",
}


def _short(value: Any) -> str:
    return str(getattr(value, "value", value))
