"""Models: from a folder, from a config, or inside a package.

Nothing here asks a network: what is not on this machine is not found.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tacit.errors import DataError, UsageError
from tacit.packaged_models import has_weights, located, require_gguf
from tacit.training.models.offline import quiet, seeded
from tacit.training.models.registries import MODELS, ModelFamily, TaskName, family_of
from tacit.training.settings import ModelSettings
from tacit.training.tasks.measuring import forward, still

_AUTO: dict[TaskName, Any] = {
    "next-word": AutoModelForCausalLM,
    "masked-word": AutoModelForMaskedLM,
    "classification": AutoModelForSequenceClassification,
    "regression": AutoModelForSequenceClassification,
    "tagging": AutoModelForTokenClassification,
}

_MASK_HEADS = ("cls", "lm_head", "vocab_transform", "vocab_layer_norm", "vocab_projector")
_SPECIAL = ("pad_token_id", "bos_token_id", "eos_token_id")

UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError, struct.error,
)  # fmt: skip
"""What reading a folder that is no model, or a file that is cut off, ends in."""


def load_model(
    where: str | Path,
    task: TaskName,
    *,
    labels: Sequence[str] | None = None,
    pad_token_id: int | None = None,
    layers: int | None = None,
    seed: int = 0,
) -> PreTrainedModel:
    """The model of a folder (or a GGUF file, or a package's name), ready for a task.

    Only the first so many `layers` are kept, where that is given. Weights are 32-bit floats. Where
    the folder has no head for the task, or one for another number of labels, it gets a new one,
    drawn from `seed`, and `new_head` says so; anything else that is missing is an error. A model
    for next words must not see the word that it predicts; that is tried.
    """
    path, options = reading(where)
    options |= label_fields(task, labels)
    with quiet(), seeded(seed):
        model, info = _from_folder(path, task, options, layers)
    absent = {*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])}
    heads = family_of(model.config.model_type).heads
    new = {"next-word": (), "masked-word": _MASK_HEADS}.get(task, heads)
    if lost := sorted(name for name in absent if not set(new) & set(name.split("."))):
        raise DataError(
            f"{path} has no weights of the right size for {len(lost)} parameter(s) of "
            f"task={task}, {lost[0]} for one; give a model that was trained for this task."
        )
    model.new_head = bool(absent)
    if "gguf_file" in options:
        no_longer_quantized(model)
    return _ready(model, task, pad_token_id)


def _from_folder(
    path: str | Path, task: TaskName, options: dict[str, Any], layers: int | None
) -> tuple[Any, Any]:
    """The model as transformers reads it, and what it says was missing."""
    try:
        if layers is not None:
            own = AutoConfig.from_pretrained(path, local_files_only=True).num_hidden_layers
            options["num_hidden_layers"] = min(layers, own)
        return _auto(task).from_pretrained(
            path, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
    except UNREADABLE:
        # The library's own message guesses at names of remote models.
        raise DataError(
            f"{path} holds no model that transformers can load for task={task}; give the "
            "folder of a causal model for next words, of any text model for the others."
        ) from None


def reading(where: str | Path) -> tuple[Path, dict[str, Any]]:
    """The folder of a model, and how `from_pretrained` reads it: as 32-bit floats, offline."""
    path = _model_path(where)
    options: dict[str, Any] = {"dtype": torch.float32, "local_files_only": True}
    if path.suffix != ".gguf":
        # Even where pickled weights lie beside.
        return path, options | {"use_safetensors": True}
    require_gguf(path)
    return path.parent, options | {"gguf_file": path.name}


def no_longer_quantized(model: PreTrainedModel) -> None:
    """Weights of a GGUF file are plain floats once read; transformers would refuse to save them."""
    for thing, name in (
        (model, "hf_quantizer"),
        (model, "quantization_method"),
        (model, "is_quantized"),
        (model.config, "quantization_config"),
    ):
        if hasattr(thing, name):
            delattr(thing, name)


def make_model(
    settings: ModelSettings,
    task: TaskName,
    *,
    tokenizer: PreTrainedTokenizerBase,
    labels: Sequence[str] | None,
    context: int,
    seed: int,
) -> PreTrainedModel:
    """The model that a run's settings name: new, or of a folder."""
    family = MODELS[settings.kind]
    if family.make is not None:
        _require_task(settings.kind, family, task)
        made: PreTrainedModel = family.make(settings, task, labels=labels, context=context)
        return _ready(made, task, tokenizer.pad_token_id)
    if family.model_type is None:
        pad = tokenizer.pad_token_id
        return load_model(str(settings.folder), task, labels=labels, pad_token_id=pad, seed=seed)
    sizes = {"context": context} if "context" in family.names else {}
    config = {"kind": settings.kind} | sizes | settings.config
    return scratch_model(config, task, tokenizer=tokenizer, labels=labels, seed=seed)


def scratch_model(
    config: Mapping[str, Any],
    task: TaskName,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    labels: Sequence[str] | None = None,
    seed: int = 0,
) -> PreTrainedModel:
    """A new model: `kind` names the family, the other fields are its sizes and dropouts.

    `kind` is a `ModelFamily`, or any model type that transformers knows. `layers`, `hidden_size`,
    `heads`, `inner_size`, `context`, `dropout` and `attention_dropout` mean the same in gpt2, bert
    and llama, where there is such a thing; the families' own names are accepted too. The tokenizer
    gives the size of the vocabulary and the special tokens.
    """
    kind = str(config.get("kind", "lstm"))
    family = MODELS[kind] if kind in MODELS else ModelFamily(kind)
    _require_task(kind, family, task)
    made = _make_config(kind, family, config, task, tokenizer, labels)
    with quiet(), seeded(seed):
        try:
            model = _auto(task).from_config(made, dtype=torch.float32)
        except (ValueError, TypeError, KeyError, RuntimeError, ZeroDivisionError):
            raise UsageError(
                f"kind={kind} with these sizes makes no model for task={task}; check that heads "
                "divide hidden_size, and that this kind can do the task."
            ) from None
    return _ready(model, task, getattr(made, "pad_token_id", None))


def _require_task(kind: str, family: ModelFamily, task: TaskName) -> None:
    if task not in family.tasks:
        raise UsageError(
            f"kind={kind} does not serve task={task}, only {', '.join(family.tasks)}; choose "
            "another kind of model, or another task."
        )


@torch.no_grad()
def begin_with_frequencies(model: Any, shares: NDArray[np.float64]) -> None:
    """Set the output bias to the logarithms of how frequent tokens are in public text.

    A new model spends its first steps on learning just that; from public text it costs nothing.
    """
    head: Any = model.get_output_embeddings()
    bias = getattr(head, "bias", None)
    if bias is None:
        raise UsageError(
            f"public_frequencies needs an output layer with a bias; {model.config.model_type} has "
            "none. Leave it out, or take an LSTM."
        )
    bias.copy_(torch.from_numpy(np.log(shares)))


def _make_config(
    kind: str,
    family: ModelFamily,
    given: Mapping[str, Any],
    task: TaskName,
    tokenizer: PreTrainedTokenizerBase | None,
    labels: Sequence[str] | None,
) -> PretrainedConfig:
    sizes = dict(family.defaults)
    for name, value in given.items():
        sizes |= dict.fromkeys(family.names.get(name, (name,)), value)
    sizes.pop("kind", None)
    if family.inner_factor and "hidden_size" in sizes:
        sizes.setdefault("intermediate_size", family.inner_factor * int(sizes["hidden_size"]))
    if tokenizer is not None:
        sizes |= {"vocab_size": len(tokenizer)} | {n: getattr(tokenizer, n) for n in _SPECIAL}
    sizes |= label_fields(task, labels)
    try:
        default = AutoConfig.for_model(str(family.model_type))
    except ValueError:
        raise UsageError(
            f"kind={kind} is not a model that transformers knows; give {', '.join(MODELS)}, or a "
            "model type."
        ) from None
    accepted = {f.name for f in fields(default)} | set(type(default).attribute_map)
    accepted |= {"num_labels", "id2label", "label2id", "problem_type", *_SPECIAL}
    if unknown := sorted(set(sizes) - accepted):
        common = ", ".join(family.names or type(default).__annotations__)
        raise UsageError(f"{unknown[0]!r} is not a setting of kind={kind}; common ones: {common}.")
    try:
        return AutoConfig.for_model(str(family.model_type), **sizes)
    except Exception as error:  # its validation has errors of its own, of no common kind
        # Settings are public, so a config's own complaint may be shown.
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UsageError(f"kind={kind}: {first}") from None


def _auto(task: TaskName) -> Any:
    if task not in _AUTO:
        raise UsageError(f"task={task} is not known; give one of: {', '.join(_AUTO)}.")
    return _AUTO[task]


def label_fields(task: TaskName, labels: Sequence[str] | None) -> dict[str, Any]:
    """What a configuration says of the labels of a task."""
    if task in ("next-word", "masked-word"):
        return {}
    if task == "regression":
        return {"num_labels": 1, "problem_type": "regression"}
    if not labels:
        raise UsageError(f"task={task} needs labels: the names of the classes.")
    return {
        "id2label": dict(enumerate(labels)),
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def _ready(model: PreTrainedModel, task: TaskName, pad_token_id: int | None) -> PreTrainedModel:
    if pad_token_id is not None:
        model.config.pad_token_id = pad_token_id
    if task == "next-word":
        check_causal(model)
    return model


def check_causal(model: nn.Module) -> None:
    """Refuse a model whose prediction changes with the word to be predicted."""
    size = int(getattr(model, "config").vocab_size)  # noqa: B009
    ids = (torch.arange(4) % size).unsqueeze(0)
    other = ids.clone()
    other[0, -1] = (other[0, -1] + 1) % size
    with still(model):
        before, after = (forward(model, {"input_ids": i}, mask=False) for i in (ids, other))
    if size > 1 and not torch.allclose(before[:, :-1], after[:, :-1], rtol=1e-4, atol=1e-5):
        raise UsageError(
            f"{type(model).__name__} sees the word that it is to predict; next words need a "
            "causal model (lstm, gpt2, llama). Use this one for classification or tagging."
        )


def _model_path(where: str | Path) -> Path:
    path = located(where)
    if path.suffix == ".gguf" and path.is_file():
        return path
    file = path / "config.json"
    try:
        kind = json.loads(file.read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError):
        kind = None
    if not isinstance(kind, str):
        raise DataError(
            f"{path} is not the folder of a model: a model has a config.json that names its "
            "model_type, and model.safetensors beside it."
        )
    require_safe_weights(path)
    if kind not in CONFIG_MAPPING:
        MODELS.values()  # families make their configurations known to transformers
    return path


_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def require_safe_weights(folder: Path) -> None:
    """Refuse a model without weights, and one whose weights could run code when they are read."""
    if has_weights(folder):
        return
    if any(True for name in _PICKLED for _ in folder.glob(name)):
        raise DataError(
            f"{folder} has pickled weights and no model.safetensors; pickled weights are never "
            "loaded, because reading them can run code. Save the model as safetensors."
        )
    raise DataError(f"{folder} has a config.json but no weights (model.safetensors).")
