"""What a run may choose by name: families of models, and optimizers.

Only facts stand here, so that settings can be checked before torch is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from tacit.registry import Registry

if TYPE_CHECKING:
    import torch

TaskName = Literal["next-word", "masked-word", "classification", "regression", "tagging"]
TASKS: tuple[TaskName, ...] = get_args(TaskName)
CAUSAL: tuple[TaskName, ...] = ("next-word", "classification", "regression", "tagging")

HEADS = ("classifier", "score", "pooler", "pre_classifier", "out_proj")
"""Layers that belong to a task of labels, not to the language: new ones are trained whole."""


@dataclass(frozen=True)
class ModelFamily:
    """What `model.kind` names.

    `model_type` is that of a configuration that transformers knows; None reads it from a folder.
    A package with a network of its own registers it with `AutoConfig` and `AutoModelFor...` in
    the module that holds its family. `names` says what settings that mean the same everywhere
    (layers, hidden_size, heads, inner_size, context, dropout) are called in the configuration; a
    family with a name for `context` gets the run's. `inner_factor` times `hidden_size` is the
    width inside a block where none is given. `make` makes a model from a run's `ModelSettings`
    where sizes alone do not say which.
    """

    model_type: str | None
    tasks: tuple[TaskName, ...] = TASKS
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    inner_factor: int | None = None
    heads: tuple[str, ...] = HEADS
    lora_targets: tuple[str, ...] = ()
    make: Callable[..., Any] | None = None


_BLOCKS = {
    "layers": ("num_hidden_layers",),
    "heads": ("num_attention_heads",),
    "inner_size": ("intermediate_size",),
    "context": ("max_position_embeddings",),
}

GPT2 = ModelFamily(
    "gpt2",
    CAUSAL,
    {
        "layers": ("n_layer",),
        "hidden_size": ("n_embd",),
        "heads": ("n_head",),
        "inner_size": ("n_inner",),
        "context": ("n_positions",),
        "dropout": ("resid_pdrop", "embd_pdrop"),
        "attention_dropout": ("attn_pdrop",),
    },
    # Its own defaults are the end of text of a vocabulary that need not be the one in use.
    {"bos_token_id": None, "eos_token_id": None},
    lora_targets=("c_attn",),
)
BERT = ModelFamily(
    "bert",
    ("masked-word", "classification", "regression", "tagging"),
    _BLOCKS
    | {"dropout": ("hidden_dropout_prob",), "attention_dropout": ("attention_probs_dropout_prob",)},
    inner_factor=4,
    lora_targets=("query", "value"),
)
LLAMA = ModelFamily("llama", CAUSAL, _BLOCKS, inner_factor=4, lora_targets=("q_proj", "v_proj"))
FOLDER = ModelFamily(None)

MODELS: Registry[ModelFamily] = Registry(
    "model.kind",
    "tacit.models",
    {
        "lstm": "tacit.training.models.recurrent:LSTM",
        "awd-lstm": "tacit.training.models.recurrent:AWD_LSTM",
        "gpt2": f"{__name__}:GPT2",
        "bert": f"{__name__}:BERT",
        "llama": f"{__name__}:LLAMA",
        "folder": f"{__name__}:FOLDER",
        "features": "tacit.training.models.features:FEATURES",
    },
)

OPTIMIZERS: Registry[Callable[..., torch.optim.Optimizer]] = Registry(
    "optimizer.name",
    "tacit.optimizers",
    {
        name: f"tacit.training.models.optimizers:{name.replace('-', '_')}"
        for name in ("sgd", "adam", "adamw", "dp-adam")
    },
)
"""Functions from trainable parameters and `OptimizerSettings` to an optimizer of torch."""


def family_of(model_type: str) -> ModelFamily:
    """The family whose configurations have this `model_type`; where none has, one without facts."""
    known = (family for family in MODELS.values() if family.model_type == model_type)
    return next(known, ModelFamily(model_type))
