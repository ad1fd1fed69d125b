"""What is wrong with settings of a run that are each right by themselves, in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tacit.detection.surrogates import public_names

if TYPE_CHECKING:
    from tacit.planning.plan import Plan
    from tacit.training.settings import Run

MENTIONS = "mentions (the file that `tacit detect` writes) or detect (patterns,lists,names)"


def problems(run: Run) -> Iterator[str]:
    """Every reason to refuse a run, the first one first."""
    yield from _method_problems(run)
    yield from _task_problems(run)
    yield from _model_problems(run)
    if run.mentions is not None and run.detect is not None:
        yield "mentions and detect are both given; give the file, or the detectors."
    if run.spec.needs_entities and not run.knows_entities:
        yield f"method={run.method} needs {MENTIONS}."


def _method_problems(run: Run) -> Iterator[str]:
    spec = run.spec
    if spec.planned:
        yield from _plan_problems(run)
    else:
        if run.steps is None:
            yield f"method={run.method} needs steps."
        if run.plan:
            why = "is not ours to promise" if spec.standing == "published" else "promises nothing"
            yield f"method={run.method} {why}, so it takes no plan."
        if run.select == "best":
            yield (
                f"select=best is a comparison that a plan pays for, and method={run.method} keeps "
                "none; leave it out."
            )
        yield from spec.problems(run, None)
    if run.optimizer.name == "dp-adam" and spec.planned and not spec.tells_noise:
        yield (
            f"optimizer=dp-adam has to know the noise of each update, and method={run.method} "
            "does not tell it; take adam or sgd."
        )
    of_users = run.plan.get("protect") in ("users", "names", "users+names")
    if run.spread_records is not None and spec.planned and not of_users:
        yield (
            "spread_records leaves out records by the order of a user's own, which is a matter of "
            "one user alone only where the plan protects users; leave it out."
        )


def _task_problems(run: Run) -> Iterator[str]:
    spec = run.spec
    if run.task not in spec.tasks:
        yield f"method={run.method} serves the tasks {', '.join(spec.tasks)}, not {run.task}."
    if run.labels is not None and run.task not in ("classification", "tagging"):
        yield f"labels are for classification and tagging; task={run.task} has none."
    if run.labels == "pretrained" and run.model.kind != "folder":
        yield "labels=pretrained takes those of model.folder; give model.kind=folder, or a list."
    changes = () if run.pretrain is None else (("unit", "sentence"), ("style", "treebank"))
    for name, other in changes:
        asked = getattr(run.pretrain, name) == other
        if asked and run.task not in ("next-word", "masked-word"):
            yield f"pretrain.{name}={other} is for text without labels; task={run.task} has them."


def _model_problems(run: Run) -> Iterator[str]:
    if run.model.carry_ledger and run.model.kind not in ("folder", "states"):
        yield "model.carry_ledger goes with model.kind=folder; leave it out."
    if run.model.kind in ("folder", "states") and not run.model.folder:
        yield f"model.kind={run.model.kind} needs model.folder."
    if run.model.kind == "states" and (run.model.lora_rank or run.model.trained):
        yield "model.kind=states trains its adapter and nothing else; leave out lora_rank, trained."
    if run.model.adapter == "bitfit" and (run.model.kind != "folder" or run.model.lora_rank):
        yield "model.adapter=bitfit trains biases of a model.folder; leave out lora_rank, and kind."
    if run.model.adapter in ("bias", "last-block") and run.model.kind != "states":
        yield f"model.adapter={run.model.adapter} is for model.kind=states; leave one of them out."
    if run.weigh == "tokens" and run.task != "next-word":
        yield f"weigh=tokens is for next-word, not for {run.task}; leave it out."
    if run.model.adapter_text is not None and run.model.kind != "states":
        yield "model.adapter_text is for model.kind=states; leave it out."
    if run.model.kind == "features" and (run.model.lora_rank or run.model.trained):
        yield "model.kind=features trains its head and nothing else; leave out lora_rank, trained."
    if run.tokenizer.folder is not None and run.tokenizer.kind != "folder":
        yield "tokenizer.folder goes with tokenizer.kind=folder; leave one of them out."
    if run.model.public_frequencies:
        yield from _frequency_problems(run)
    if run.model.trained_rows is not None:
        yield from _row_problems(run)
    if run.model.embeddings is not None and run.model.kind == "folder":
        yield "model.embeddings is for new models; a folder has its own. Leave one of them out."


def _frequency_problems(run: Run) -> Iterator[str]:
    """What stands against beginning with the frequencies of public text."""
    if run.model.kind == "folder" or run.task != "next-word":
        yield "public_frequencies is for new models of next words; leave it out."
    if run.tokenizer.kind == "folder" or (
        run.tokenizer.kind == "words" and run.tokenizer.public_text is None
    ):
        yield (
            "public_frequencies counts the text that the tokenizer was learned from, and here that "
            "is not public text; give tokenizer.public_text."
        )


def _row_problems(run: Run) -> Iterator[str]:
    """What stands against training the rows of frequent tokens alone."""
    if not getattr(run.spec, "clips_records", False):
        yield f"model.trained_rows is about clipped sums, and method={run.method} has none of them."
    if run.model.lora_rank or run.optimizer.weight_decay:
        yield "model.trained_rows goes with neither lora_rank nor weight_decay; leave these out."
    own_text = run.tokenizer.kind == "bpe" or run.tokenizer.public_text is not None
    if run.pretrain is None and (run.model.kind == "folder" or not own_text):
        yield (
            "model.trained_rows counts tokens in public text, and here is none; give "
            "tokenizer.public_text, or pretrain."
        )


def _plan_problems(run: Run) -> Iterator[str]:
    if not run.plan:
        yield f"method={run.method} needs a plan: whom to protect, and at what price."
        return
    plan = run.made_plan()
    assert plan is not None
    if ("entities" in plan.protect or plan.about_names) and not run.knows_entities:
        yield f"protect={plan.protect} needs {MENTIONS}."
    if plan.about_names:
        yield from _names_problems(run, plan)
    if plan.protect not in run.spec.protects or any(
        getattr(plan, name) != value for name, value in run.spec.plan_fields.items()
    ):
        yield (
            f"method={run.method} does not carry out protect={plan.protect}, mechanism="
            f"{plan.mechanism}; it protects {', '.join(run.spec.protects)}."
        )
    if plan.clip_quantile is not None and not run.spec.adapts_clip:
        yield f"plan.clip_quantile is not done by method={run.method}; give a fixed clip_norm."
    if plan.precondition and not run.spec.adapts_clip:
        yield f"plan.precondition is not done by method={run.method}; leave it out."
    if plan.precondition and run.optimizer.name != "sgd":
        yield "plan.precondition gives the direction of Adam; take optimizer.name=sgd."
    yield from run.spec.problems(run, plan)


def _names_problems(run: Run, plan: Plan) -> Iterator[str]:
    """What stands against replacing names by invented ones."""
    public_names(plan.public_entities)  # refused if an invented one is among them
    if plan.name_share > 0 and not getattr(run.spec, "shows_names", False):
        yield (
            f"method={run.method} shows no names: the change that a shown name makes is clipped "
            "as a gradient by itself, which it has not; leave name_share at 0, or take dp-sgd."
        )
