"""Which weights are trained, which moved, and how they are saved."""

import hashlib
import json
import math
import os
import shutil
import struct
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.pytorch_utils import Conv1D

from tacit.errors import MissingExtra, UsageError
from tacit.training.models.offline import quiet, seeded
from tacit.training.models.registries import family_of

_NAMED = 4
"""Parameters that are named where many are trained."""
MARK = "tacit"
"""Under this name the metadata of weights say that a run of ours made them."""


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """The trainable parameters by name, each once."""
    return {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}


def trained_in_words(model: nn.Module) -> str:
    """How many numbers are trained, of how many, and where they are.

    >>> trained_in_words(nn.Linear(3, 2))
    'trains 8 of 8 numbers: weight 2 x 3, bias 2'
    """
    found = trainable(model)
    whole = sum(p.numel() for p in model.parameters())
    rows = trained_rows(model)
    shapes = {
        name: (len(rows[name]), *tensor.shape[1:]) if name in rows else tuple(tensor.shape)
        for name, tensor in found.items()
    }
    count = sum(math.prod(shape) for shape in shapes.values())
    named = [f"{n} {' x '.join(f'{k:,}' for k in shape)}" for n, shape in shapes.items()]
    if len(named) > _NAMED:
        named = [*named[: _NAMED - 1], f"and {len(named) - _NAMED + 1} more"]
    return f"trains {count:,} of {whole:,} numbers: {', '.join(named)}"


def train_only(model: nn.Module, names: Sequence[str]) -> None:
    """Freeze every parameter whose name does not begin with one of these, whole parts of it.

    Few parameters under noise can learn more than many: noise lands on each of them.
    """
    begun = {n: p for n, p in model.named_parameters() if any(begins_with(n, one) for one in names)}
    for one in names:
        if not any(begins_with(name, one) for name in begun):
            known = sorted({name.split(".")[0] for name, _ in model.named_parameters()})
            raise UsageError(
                f"model.trained has {one}, and no parameter begins so; names begin with "
                f"{', '.join(known)}."
            )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name in begun)


def train_biases(model: nn.Module) -> None:
    """Freeze all but biases, and a new head for labels, which has to be learnt whole."""
    heads = family_of(model.config.model_type).heads  # type: ignore[union-attr, arg-type]
    found = {
        name: name.endswith(".bias") or bool({*name.split(".")[:-1]}.intersection(heads))
        for name, _ in model.named_parameters()
    }
    if not any(name.endswith(".bias") and set(name.split(".")).isdisjoint(heads) for name in found):
        raise UsageError(
            f"A {model.config.model_type} model has no biases to train; take adapter=lora, or "  # type: ignore[union-attr]
            "adapter=last-block."
        )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and found[name])


def train_rows(model: nn.Module, rows: Sequence[int]) -> None:
    """Let clipped sums have only these rows of the tables over the vocabulary, and their biases.

    Noise lands on every coordinate of a sum, so rows that text hardly ever moves are better left.
    """
    # No buffer: it is no state of the model, and decides nothing about a public start.
    model.trained_rows = torch.tensor(sorted(rows))
    if not trained_rows(model):
        raise UsageError("model.trained_rows: no table over the vocabulary is trained here.")


def trained_rows(model: nn.Module) -> dict[str, Tensor]:
    """Which rows of a parameter are trained, for each of which not all are."""
    rows = getattr(model, "trained_rows", None)
    if rows is None:
        return {}
    tables: Any = (model.get_input_embeddings(), model.get_output_embeddings())  # type: ignore[operator]
    own = {id(p) for table in tables if table is not None for p in table.parameters(recurse=False)}
    found = {n: p.device for n, p in model.named_parameters() if p.requires_grad and id(p) in own}
    return {name: rows.to(device) for name, device in found.items()}


def summed(model: nn.Module) -> dict[str, Tensor]:
    """The trainable parameters as far as clipped sums have them: of some, trained rows alone."""
    rows = trained_rows(model)
    return {n: t[rows[n]] if n in rows else t for n, t in trainable(model).items()}


def widened(gradients: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Gradients of trained rows as those of whole parameters; zero in rows that are not."""
    whole, rows = dict(gradients), trained_rows(model)
    for name, like in trainable(model).items():
        if name in rows and name in whole and whole[name].shape != like.shape:
            whole[name] = torch.zeros_like(like).index_copy_(0, rows[name], whole[name])
    return whole


def begins_with(name: str, beginning: str) -> bool:
    """Whether a parameter is, or is inside, what a name stands for.

    >>> begins_with("head.weight", "head"), begins_with("header.weight", "head")
    (True, False)
    """
    return name == beginning or name.startswith(beginning.rstrip(".") + ".")


def with_lora(
    model: PreTrainedModel,
    rank: int,
    targets: Sequence[str] | None = None,
    *,
    alpha: float | None = None,
    dropout: float = 0.0,
    seed: int = 0,
) -> nn.Module:
    """The model with low-rank adapters; only these, and a new head for labels, are trained.

    `targets` are names of linear layers; each family has its usual ones. `alpha` is twice the
    rank unless told.
    """
    if util.find_spec("peft") is None:
        raise MissingExtra("LoRA needs the package peft: pip install peft")
    from peft import LoraConfig, PeftModel, get_peft_model

    if rank < 1:
        raise UsageError(f"rank={rank} is too small; give 1 or more.")
    if isinstance(model, PeftModel):
        raise UsageError("The model has adapters already; save it, and load what was saved.")
    family = family_of(model.config.model_type)
    chosen = tuple(targets or family.lora_targets)
    _require_linear(model, chosen)
    inside = [m for n, m in model.named_modules() if n.split(".")[-1] in chosen]
    heads = [n for n, _ in model.named_children() if n in family.heads]
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank if alpha is None else alpha,  # type: ignore[arg-type]
        lora_dropout=dropout,
        target_modules=list(chosen),
        modules_to_save=heads or None,
        fan_in_fan_out=all(isinstance(m, Conv1D) for m in inside),
    )
    with quiet(), seeded(seed):
        return get_peft_model(model, config)


def _require_linear(model: PreTrainedModel, chosen: Sequence[str]) -> None:
    """Refuse targets that are no linear layers inside; an output layer is not adapted."""
    linear = {
        name.split(".")[-1]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and "." in name
    }
    if missing := [t for t in chosen or ("(none given)",) if t not in linear]:
        raise UsageError(
            f"targets: {missing[0]} is not a linear layer of this {model.config.model_type}; it "
            f"has: {', '.join(sorted(linear)) or 'none'}."
        )


def check_trainable(
    model: nn.Module, losses: Callable[[], Tensor] | None = None
) -> dict[str, tuple[int, ...]]:
    """The trainable parameters by name, with their shapes; none at all is refused.

    With `losses`, which computes the losses of a few records, every one of them must be reached
    by the gradient: a parameter that is trainable and stays out would silently never learn.
    """
    found = {n: tuple(p.shape) for n, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise UsageError("No parameter of the model is trainable; unfreeze some, or use LoRA.")
    if losses is not None:
        parameters = [p for _, p in model.named_parameters() if p.requires_grad]
        grads = torch.autograd.grad(losses().sum(), parameters, allow_unused=True)
        lost = [name for name, grad in zip(found, grads, strict=True) if grad is None]
        if lost:
            raise UsageError(
                f"{lost[0]} is trainable but gets no gradient from this task ({len(lost)} such "
                "parameter(s)); freeze it (requires_grad_(False)) or take a model without it."
            )
    return found


def snapshot(model: nn.Module) -> dict[str, str]:
    """A digest of every parameter, to be compared later."""
    return {name: digest_of(parameter) for name, parameter in model.named_parameters()}


def digest_of(tensor: Tensor) -> str:
    """The SHA-256 of a tensor's bytes."""
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(raw.numpy().data).hexdigest()


@dataclass(frozen=True)
class Moved:
    """Which parameters changed, and which did not."""

    moved: tuple[str, ...]
    still: tuple[str, ...]


def moved(before: Mapping[str, str], after: nn.Module | Mapping[str, str]) -> Moved:
    """Which parameters are not what they were at a `snapshot`."""
    now = snapshot(after) if isinstance(after, nn.Module) else after
    if before.keys() != now.keys():
        raise UsageError("The two snapshots name different parameters; take both of one model.")
    return Moved(
        tuple(name for name in now if now[name] != before[name]),
        tuple(name for name in now if now[name] == before[name]),
    )


def save_model(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase | None,
    folder: Path,
    *,
    adapter: bool = False,
    mark: str | None = None,
) -> tuple[str, ...]:
    """Write config.json, model.safetensors and the tokenizer's files; the names of all files.

    A `mark` is written into the weights' metadata, to be found there whatever becomes of the
    folder. LoRA weights are added into the base, so that plain transformers loads the result; with
    `adapter` they are kept apart, in peft's layout. The model at hand stays as it is. Every file
    is written whole beside the folder first.
    """
    folder = Path(folder)
    whole = merged(model, adapter=adapter)
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        with quiet():
            whole.save_pretrained(draft)
            if tokenizer is not None:
                _save_tokenizer(tokenizer, draft)
        if mark is not None:
            for file in draft.glob("*.safetensors"):
                mark_weights(file, {MARK: mark})
            _mark_config(draft / "config.json", mark)
        folder.mkdir(exist_ok=True)
        made = sorted(file.name for file in draft.iterdir())
        for name in made:
            os.replace(draft / name, folder / name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return tuple(made)


def _mark_config(path: Path, mark: str) -> None:
    """The same in config.json, which other programs copy when they write the weights anew."""
    if path.exists():
        fields = json.loads(path.read_text(encoding="utf-8")) | {MARK: mark}
        text = json.dumps(fields, indent=2, sort_keys=True, allow_nan=False) + "\n"
        path.write_text(text, encoding="utf-8")


def mark_weights(path: Path, marks: Mapping[str, str]) -> None:
    """Add to the metadata of a safetensors file; the tensors are copied as they are.

    The file is eight bytes with the length of a JSON header, the header, and the tensors.
    """
    draft = path.with_suffix(".marked")
    with path.open("rb") as source, draft.open("wb") as out:
        (length,) = struct.unpack("<Q", source.read(8))
        header = json.loads(source.read(length))
        header["__metadata__"] = {**header.get("__metadata__", {}), **marks}
        text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
        text += b" " * (-len(text) % 8)
        out.write(struct.pack("<Q", len(text)) + text)
        shutil.copyfileobj(source, out, 1 << 20)
    os.replace(draft, path)


def _save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    try:
        tokenizer.save_pretrained(str(folder))
    except Exception as problem:
        # Its library raises nothing more special than this when a disk is full.
        if "os error" in str(problem):
            raise OSError(str(problem)) from None
        raise


def merged(model: Any, *, adapter: bool = False) -> Any:
    """The model with its adapters added in, as a copy; with `adapter`, as it is."""
    if hasattr(model, "merge_and_unload"):
        if adapter:
            return model
        # On a copy: taking the product out again would leave rounding behind.
        whole = deepcopy(model).merge_and_unload()
    elif adapter:
        raise UsageError("adapter=True needs a model with LoRA; this one has none.")
    else:
        whole = model
    if not isinstance(whole, PreTrainedModel):
        raise UsageError(f"{type(model).__name__} is not a Hugging Face model; it cannot be saved.")
    return whole


def flat_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state: tensors, and what else it holds, by parameter and name."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for key, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"{key}/{name}"] = value.detach().contiguous()
            else:
                numbers[f"{key}/{name}"] = value
    return tensors, numbers


def put_optimizer(
    optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], numbers: dict[str, Any]
) -> None:
    """Put back what `flat_optimizer` gave."""
    state: dict[int, dict[str, Any]] = {}
    for name, value in (tensors | numbers).items():
        key, slot = name.split("/", 1)
        state.setdefault(int(key), {})[slot] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
