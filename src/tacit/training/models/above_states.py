"""Putting an adapter above a pretrained model, with the directions that public text shows."""

import json
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tacit.errors import UsageError
from tacit.training.data.activation_cache import Vectors
from tacit.training.models.offline import quiet
from tacit.training.models.state_adapter import (
    LAST_BLOCK,
    StateAdapterConfig,
    StateAdapterForCausalLM,
)
from tacit.training.settings import ModelSettings
from tacit.training.tasks.examples import Examples
from tacit.training.tasks.measuring import evaluating

_CLOSE = 1e-3
"""How far, as a share, the output layer's logits may be from those that a model gives."""
_READ_POWER, _WRITE_POWER = 0.25, 0.125
"""Directions are divided by these powers of their variance: at 0.5 all would be alike.

Few steps reach only what stands out, and noise is the same everywhere; between the two, more
directions are learnt in as many steps.
"""
_BESIDE_BIAS = 0.5
"""How far a map moves logits beside what a bias does: tokens are more or less frequent in private
text than the model expects, a bias says so at once, and it must not wait for the map."""
_LEAST = 0.01
"""Variances below this share of their mean count as this: public text is short."""


def above_states(
    base: PreTrainedModel, settings: ModelSettings, public: Examples, shares: Vectors
) -> StateAdapterForCausalLM:
    """An adapter above a pretrained model, with directions that public text shows.

    `shares` says how frequent each token is in public text; among those that are as frequent, the
    first go before: in a BPE they were merged first.
    States are centered and scaled to a mean length of one, as they are in public text.
    """
    if isinstance(base, StateAdapterForCausalLM):
        return base
    _require_linear_output(base, public)
    with quiet():
        model = StateAdapterForCausalLM(_config(base, settings))
    model.encoder.model = base.requires_grad_(False)
    likely = np.argsort(-shares, kind="stable")[: model.config.tokens]
    model.encoder.choose(torch.from_numpy(np.sort(likely)))
    model.eval()
    states = _states(model, public)
    if settings.adapter == LAST_BLOCK:
        _put_last_block(model, public)
    else:
        _find_directions(model, states)
    return model


@torch.no_grad()
def _require_linear_output(base: PreTrainedModel, public: Examples) -> None:
    """Refuse a model whose logits are more than its output layer makes of its last states."""
    head, inner = base.get_output_embeddings(), base.base_model
    linear = inner is not base and isinstance(head, nn.Linear) and head.bias is None
    if linear:
        ids = public.batch(np.arange(1))["input_ids"]
        given: dict[str, Any] = {"input_ids": ids, "use_cache": False}
        logits = base.eval()(**given).logits
        found = cast("nn.Linear", head)(inner(**given).last_hidden_state)
        linear = bool((found - logits).norm() <= _CLOSE * logits.norm())
    if not linear:
        raise UsageError(
            f"kind=states needs a model whose logits are a linear map of its last states; "
            f"those of {base.config.model_type} are not. Use kind=folder with lora_rank."
        )


def _config(base: PreTrainedModel, settings: ModelSettings) -> StateAdapterConfig:
    """How large the adapter is, and what of the base's configuration others ask for."""
    fields: Any = base.config
    head = cast("nn.Linear", base.get_output_embeddings())
    width, words = head.in_features, head.out_features
    reads, writes = min(settings.adapter_rank, width), min(settings.adapter_writes, width)
    if settings.adapter == "bias":
        reads = writes = 1
    return StateAdapterConfig(
        encoder=json.loads(fields.to_json_string(use_diff=False)), hidden_size=width,
        vocab_size=words, tokens=min(settings.adapter_tokens, words - 1),
        adapter=settings.adapter, reads=reads, writes=writes,
        max_position_embeddings=getattr(fields, "max_position_embeddings", None),
        bos_token_id=fields.bos_token_id, eos_token_id=fields.eos_token_id,
        pad_token_id=fields.pad_token_id,
    )  # fmt: skip


@torch.no_grad()
def _states(model: StateAdapterForCausalLM, public: Examples) -> Tensor:
    """The last states of public text."""
    found = []
    for _, batch in evaluating(model, public):
        given = {name: batch[name] for name in ("input_ids", "attention_mask")}
        out = model.encoder.states(**given, use_cache=False).last_hidden_state
        found.append(out[batch["attention_mask"] > 0])
    return torch.cat(found)


@torch.no_grad()
def _put_last_block(model: StateAdapterForCausalLM, public: Examples) -> None:
    """Give the block that is trained the weights of the model's last one."""
    frozen = model.encoder
    inner, tokens = frozen.model.base_model, model.config.tokens
    model.block.take(inner)
    out = inner(
        input_ids=public.batch(np.arange(1))["input_ids"], use_cache=False,
        output_hidden_states=True,
    )  # fmt: skip
    kind = str(frozen.model.config.model_type)
    model.block.require_same(out.hidden_states[-2], out.last_hidden_state, kind)
    model.spread.weight[:tokens] = frozen.model.get_output_embeddings().weight[frozen.chosen]
    model.spread.weight[tokens:] = 0


@torch.no_grad()
def _find_directions(model: StateAdapterForCausalLM, states: Tensor) -> None:
    """Set what is read of a state, and what a direction does to the tokens."""
    frozen, tokens = model.encoder, model.config.tokens
    frozen.center.copy_(states.mean(0))
    centered = states - frozen.center
    axes = directions(centered.t() @ centered, model.config.reads, _READ_POWER)
    frozen.axes.copy_(axes.t() / (centered @ axes).norm(dim=1).mean())
    rows = frozen.model.get_output_embeddings().weight[frozen.chosen]
    some = states[:: max(1, len(states) // 512)]
    shares = (some @ rows.t()).softmax(-1).mean(0, keepdim=True).t()
    mean = (rows * shares).sum(0, keepdim=True)
    told = (rows * shares).t() @ rows - mean.t() @ mean
    axes = _BESIDE_BIAS * directions(told, model.config.writes, _WRITE_POWER)
    model.spread.weight[:tokens] = rows @ axes
    model.spread.weight[tokens:] = 0


def directions(covariance: Tensor, count: int, power: float) -> Tensor:
    """The main directions; the first has length one, those of less variance are longer."""
    variances, axes = torch.linalg.eigh(covariance)
    variances = variances.clamp(min=_LEAST * float(variances.mean())).flip(0)[:count]
    return axes.flip(1)[:, :count] * (variances[0] / variances) ** power
