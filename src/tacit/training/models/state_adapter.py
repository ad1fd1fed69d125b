"""An adapter above the states of a frozen language model: the family `states`.

The logits of some tokens, those frequent in public text, are moved by a bias and, with
`adapter: map`, by a linear map of the last state, which leads from the main directions of states of
public text to those in which the output layer tells tokens apart, so few numbers are trained. With
`last-block` they come from the model's last block, in which low-rank adapters are trained. All
other tokens are moved together: their shares among each other stay those of the frozen model, and
all of it is one softmax, hence sums to one. What is frozen never changes, so it is computed once
for each record.
"""

from copy import deepcopy
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
    initialization,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from tacit.training.models.features import AboveFrozen
from tacit.training.models.last_block import LastBlock
from tacit.training.models.networks import load_model
from tacit.training.models.registries import ModelFamily, TaskName
from tacit.training.settings import ModelSettings
from tacit.training.tasks.examples import IGNORED
from tacit.training.tasks.measuring import Batch, token_losses

BESIDE = 3
"""Numbers kept beside the coordinates and the logits of a state: of the other tokens the logarithm
of the sum of exponentials, and the largest logit; and the logit of the token that comes next."""
LAST_BLOCK = "last-block"
_AT_ONCE = 128
"""States whose logits for the whole vocabulary are in memory at once."""


class StateAdapterConfig(PretrainedConfig):
    """The frozen model's own configuration, how many tokens are moved, and the size of the map."""

    model_type = "tacit-states"

    encoder: dict[str, Any] | None = None
    hidden_size: int = 576
    vocab_size: int = 49_152
    max_position_embeddings: int | None = None
    tokens: int = 4096
    adapter: str = "map"
    reads: int = 64
    """Directions of a state that a map reads; of a last block, the rank of its adapters."""
    writes: int = 128
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None

    def get_text_config(self, *_: Any, **__: Any) -> PretrainedConfig:
        """What `generate` makes its cache by: the frozen model's configuration."""
        return AutoConfig.for_model(**cast("dict[str, Any]", self.encoder))


class FrozenStates(nn.Module):
    """A language model, and what is read of its states; nothing in it is trained."""

    center: Tensor
    axes: Tensor
    chosen: Tensor
    slots: Tensor

    def __init__(self, config: StateAdapterConfig) -> None:
        super().__init__()
        self.model = AutoModelForCausalLM.from_config(config.get_text_config())
        # Where the library looks for weights that are one and the same, inside of parts.
        tied = self.model.all_tied_weights_keys
        self.all_tied_weights_keys = {f"model.{k}": f"model.{v}" for k, v in tied.items()}
        # The tokens that are moved one by one, and where each token stands among them.
        self.register_buffer("chosen", torch.arange(config.tokens))
        self.register_buffer("slots", torch.arange(config.vocab_size).clamp(max=config.tokens))
        self.above = config.adapter != LAST_BLOCK
        axes = config.reads if self.above else 0
        self.register_buffer("center", torch.zeros(config.hidden_size))
        self.register_buffer("axes", torch.zeros(axes, config.hidden_size))

    @torch.no_grad()
    def choose(self, tokens: Tensor) -> None:
        """Say which tokens are moved one by one."""
        self.chosen.copy_(tokens)
        self.slots.fill_(len(tokens))
        self.slots[tokens] = torch.arange(len(tokens), device=tokens.device)

    @torch.no_grad()
    def states(self, **given: Any) -> Any:
        """The last hidden states, in the library's output."""
        return self.model.base_model(**given)

    @torch.no_grad()
    def logits(self, states: Tensor) -> Tensor:
        """Logits of the whole vocabulary."""
        found: Tensor = self.model.get_output_embeddings()(states)
        return found

    @torch.no_grad()
    def coordinates(self, states: Tensor) -> Tensor:
        """Where states lie along the axes."""
        return (states - self.center) @ self.axes.t()

    @torch.no_grad()
    def read(self, ids: Tensor) -> Tensor:
        """What is kept of each token, `BESIDE` numbers last.

        Coordinates and the logits of the tokens that are moved; or what the last block reads.
        """
        place = torch.arange(ids.shape[1], device=ids.device).repeat(len(ids), 1)
        mask = torch.ones_like(ids)  # who reads from left to right sees no padding on the right
        out = self.states(
            input_ids=ids, attention_mask=mask, position_ids=place, use_cache=False,
            output_hidden_states=not self.above,
        )  # fmt: skip
        states, after = out.last_hidden_state.flatten(0, 1), ids.roll(-1, 1).flatten()
        below = states if self.above else out.hidden_states[-2].flatten(0, 1)
        some = zip(*(t.split(_AT_ONCE) for t in (states, below, after)), strict=True)
        made = torch.cat([self._kept(*each) for each in some])
        return made.view(*ids.shape, -1)

    def _kept(self, states: Tensor, below: Tensor, following: Tensor) -> Tensor:
        logits = self.logits(states)
        moved, own = logits[:, self.chosen], logits.gather(-1, following.unsqueeze(-1))
        others = logits.index_fill(1, self.chosen, -torch.inf)
        rest = others.logsumexp(-1, keepdim=True)
        beside = (rest, others.amax(-1, keepdim=True), own)
        if not self.above:
            return torch.cat([below, *beside], -1)
        # Log-probabilities: those near zero matter, and there half precision has most digits.
        whole = torch.logaddexp(moved.logsumexp(-1, keepdim=True), rest)
        return torch.cat([self.coordinates(states), torch.cat([moved, *beside], -1) - whole], -1)


class StateAdapterForCausalLM(AboveFrozen, GenerationMixin):
    """Next words by a frozen model whose logits are moved by what is trained."""

    config_class = StateAdapterConfig

    def __init__(self, config: StateAdapterConfig) -> None:
        super().__init__(config)
        self.encoder: FrozenStates = FrozenStates(config)
        self.above = self.encoder.above
        # The last block multiplies what it reads: there half precision would be heard.
        self.stored = np.float16 if self.above else np.float32
        if self.above:
            self.mix = nn.Linear(config.reads, config.writes, bias=False)
        else:
            self.block = LastBlock(config.get_text_config(), config.reads)
        # What each direction does to the tokens; the row of all others is zero but for its bias.
        wide = config.writes if self.above else config.hidden_size
        self.spread = nn.Linear(wide, config.tokens + 1)
        self.post_init()
        self._freeze()

    @classmethod
    def from_pretrained(cls, *where: Any, **options: Any) -> Any:
        """Read weights; the library makes all of them trainable."""
        loaded = super().from_pretrained(*where, **options)
        (loaded[0] if isinstance(loaded, tuple) else loaded)._freeze()
        return loaded

    def _freeze(self) -> None:
        self.encoder.requires_grad_(False)
        self.spread.weight.requires_grad_(False)
        if self.above:
            self.mix.weight.requires_grad_(self.config.adapter == "map")
        else:
            for name, parameter in self.block.named_parameters():
                parameter.requires_grad_("lora_" in name)

    @torch.no_grad()
    def untouched(self) -> "StateAdapterForCausalLM":
        """The same model before anything was moved; what is frozen is shared."""
        parts, encoder = dict(self._modules), self._modules.pop("encoder")
        try:
            new = deepcopy(self)
        finally:
            self._modules = parts
        new.encoder = cast("FrozenStates", encoder)
        new.spread.bias.zero_()
        if self.above:
            new.mix.weight.zero_()
        else:
            new.block.begin()
        return new

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Nothing is moved at first."""
        if self.above and module is self.mix:
            initialization.zeros_(module.weight)
        elif module is self.spread:
            initialization.zeros_(module.bias)

    @property
    def width(self) -> int:
        """How many numbers are kept of a token."""
        read = self.config.reads + self.config.tokens if self.above else self.config.hidden_size
        return int(read + BESIDE)

    @property
    def kept_as(self) -> str:
        """What decides these numbers beside the frozen weights."""
        return f"{self.config.adapter == LAST_BLOCK} {self.config.tokens} {self.config.reads}"

    def get_input_embeddings(self) -> nn.Module:
        """The table of word vectors."""
        return cast("nn.Module", self.encoder.model.get_input_embeddings())

    def prepare_inputs_for_generation(self, input_ids: Any, *args: Any, **kwargs: Any) -> Any:
        """A last block remembers nothing, so it reads all of the text each time."""
        if self.above:
            return GenerationMixin.prepare_inputs_for_generation(
                cast("Any", self), input_ids, *args, **kwargs
            )
        return {"input_ids": input_ids, "attention_mask": kwargs.get("attention_mask")}

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **_: Any,
    ) -> CausalLMOutputWithPast:
        """Logits of the whole vocabulary."""
        out = self.encoder.states(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
            past_key_values=past_key_values, use_cache=use_cache and self.above,
            output_hidden_states=not self.above,
        )  # fmt: skip
        states = out.last_hidden_state[:, -logits_to_keep:]
        logits = self.encoder.logits(states)
        if self.above:
            moves = self._moves(self.encoder.coordinates(states))
        else:
            now = self.block(out.hidden_states[-2], attention_mask)[:, -logits_to_keep:]
            moves = self.spread(now - states)
        logits = logits + moves[..., self.encoder.slots]
        past = out.past_key_values
        return CausalLMOutputWithPast(logits=logits, past_key_values=past)  # type: ignore[arg-type]

    def features(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """All that losses need of the frozen model."""
        assert input_ids is not None
        return self.encoder.read(input_ids)

    def token_losses(self, batch: Batch, targets: Tensor) -> Tensor:
        """The cross-entropy at every target, without writing out the whole vocabulary."""
        return self._lost(self._grouped(batch), targets)

    def judged(self, batch: Batch, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The same, and whether the target is the likeliest token."""
        found = self._grouped(batch)
        logits, _, largest, own = found
        best, at = logits[..., :-1].max(-1)
        slot, other = self._slot(targets), largest + self.spread.bias[-1]
        among = (at == slot) & (best >= other)
        right = torch.where(slot < self.config.tokens, among, (own == largest) & (other > best))
        return self._lost(found, targets), right & (targets >= 0)

    def _lost(self, found: tuple[Tensor, Tensor, Tensor, Tensor], targets: Tensor) -> Tensor:
        logits, others, _, own = found
        slot = self._slot(targets)
        lost = token_losses(logits, slot.masked_fill(targets < 0, IGNORED))
        outside = (slot == self.config.tokens) & (targets >= 0)
        return lost + (others - own).masked_fill(~outside, 0)

    def _grouped(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logits of the tokens that are moved and of all others as one; what stands beside."""
        made = batch["features"] if "features" in batch else self.features(batch["input_ids"])
        made = made.to(self.spread.weight.dtype)
        others, largest, own = made[..., -BESIDE:].unbind(-1)
        if self.above:
            reads = self.config.reads
            logits = self._moves(made[..., :reads]) + made[..., reads : 1 - BESIDE]
        else:
            moved = self.spread(self.block(made[..., :-BESIDE]))
            logits = torch.cat([moved[..., :-1], moved[..., -1:] + others.unsqueeze(-1)], -1)
        return logits, others, largest, own

    def _slot(self, tokens: Tensor) -> Tensor:
        """Where logits of tokens stand among those that are moved; all others share the last."""
        return self.encoder.slots[tokens.clamp(min=0)]

    def _moves(self, coordinates: Tensor) -> Tensor:
        """How far the logit of each token that is moved goes, and that of all others."""
        moved: Tensor = self.spread(self.mix(coordinates))
        return moved


AutoConfig.register(StateAdapterConfig.model_type, StateAdapterConfig, exist_ok=True)
AutoModelForCausalLM.register(StateAdapterConfig, StateAdapterForCausalLM, exist_ok=True)


def _frozen_base(settings: ModelSettings, task: TaskName, **_: Any) -> PreTrainedModel:
    return load_model(str(settings.folder), task)


STATES = ModelFamily(StateAdapterConfig.model_type, ("next-word",), make=_frozen_base)
