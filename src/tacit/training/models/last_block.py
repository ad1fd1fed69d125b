"""The last block of a language model by itself: what comes before it never changes.

It is a model of one block of the same configuration, which reads the states that the block before
wrote. Its weights are frozen; low-rank adapters in it are trained.
"""

from copy import deepcopy
from importlib import util
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoModel, PretrainedConfig
from transformers.pytorch_utils import Conv1D

from tacit.errors import MissingExtra, UsageError
from tacit.training.models.offline import quiet, seeded
from tacit.training.models.registries import family_of

_CLOSE = 1e-3
"""How far, as a share, the block by itself may be from the same block in its place."""


class LastBlock(nn.Module):
    """The last block with the final norm, and adapters in its linear layers."""

    def __init__(self, config: PretrainedConfig, rank: int) -> None:
        super().__init__()
        self.depth = int(config.num_hidden_layers)
        with quiet():
            self.inner = AutoModel.from_config(_of_one_block(config))
            self.inner.requires_grad_(False)
            _add_adapters(self.inner, rank)

    def forward(self, states: Tensor, mask: Tensor | None = None) -> Tensor:
        """The states after the last block, for those before it."""
        rows, width = states.shape[:2]
        place = torch.arange(width, device=states.device).repeat(rows, 1)
        own = torch.ones(rows, width, dtype=torch.long, device=states.device)
        if mask is not None:  # texts that begin later have their first place there
            own, place = mask, (mask.cumsum(1) - 1).clamp(min=0)
        given: dict[str, Any] = {"attention_mask": own, "position_ids": place, "use_cache": False}
        found: Tensor = self.inner(inputs_embeds=states, **given).last_hidden_state
        return found

    @torch.no_grad()
    def take(self, whole: nn.Module) -> None:
        """Take the weights of the whole model's last block."""
        theirs = whole.state_dict()
        for name, tensor in self.inner.state_dict().items():
            plain = name.replace(".base_layer.", ".")
            source = theirs.get(plain.replace(".0.", f".{self.depth - 1}.", 1))
            if source is not None and source.shape == tensor.shape:
                tensor.copy_(source)
        for module in self.inner.modules():  # states come from below: no word, no place is added
            if isinstance(module, nn.Embedding):
                module.weight.zero_()
        self.begin()

    @torch.no_grad()
    def begin(self) -> None:
        """Put adapters where they begin, always at the same place: they add nothing yet."""
        with seeded(0):
            for name, parameter in self.inner.named_parameters():
                if "lora_A" in name:
                    nn.init.kaiming_uniform_(parameter, a=5**0.5)
                elif "lora_B" in name:
                    nn.init.zeros_(parameter)

    @torch.no_grad()
    def require_same(self, before: Tensor, after: Tensor, kind: str) -> None:
        """Refuse a family whose last block, taken out, does something else than in its place."""
        found = self(before)
        if found.shape != after.shape or float((found - after).norm()) > _CLOSE * after.norm():
            raise UsageError(
                f"model.adapter=last-block cannot take the last block out of a {kind}; use "
                "adapter=map, or kind=folder with lora_rank."
            )


def _of_one_block(config: PretrainedConfig) -> PretrainedConfig:
    """The same configuration with one block, of the last one's kind, and no words."""
    one: Any = deepcopy(config)
    kinds = getattr(config, "layer_types", None)
    one.num_hidden_layers, one.vocab_size = 1, 1
    one.pad_token_id = None
    if kinds:
        one.layer_types = [kinds[-1]]
    return cast("PretrainedConfig", one)


def _add_adapters(inner: Any, rank: int) -> None:
    if util.find_spec("peft") is None:
        raise MissingExtra("model.adapter=last-block needs the package peft: pip install peft")
    from peft import LoraConfig, inject_adapter_in_model

    linear = {n.split(".")[-1]: m for n, m in inner.named_modules() if _is_linear(m)}
    usual = [n for n in family_of(inner.config.model_type).lora_targets if n in linear]
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules=usual or sorted(linear),
        fan_in_fan_out=all(isinstance(linear[n], Conv1D) for n in usual or linear),
    )
    inject_adapter_in_model(config, inner)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | Conv1D)
