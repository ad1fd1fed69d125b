"""The LSTM family as Hugging Face models: AWD-LSTM, and plain LSTMs as its special case.

`LSTMConfig` with every dropout at zero is a plain LSTM. A batch is padded on the right: what
stands past the end of a record comes later in time, so no state of the record has seen it.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
    initialization,
)
from transformers.generation.configuration_utils import GenerationMode
from transformers.utils.generic import ModelOutput

from tacit.training.dp import dropout
from tacit.training.models.lstm import GateLSTM
from tacit.training.models.registries import CAUSAL, ModelFamily

State = tuple[tuple[Tensor, Tensor], ...]


class LSTMConfig(PretrainedConfig):
    """Sizes and dropouts of an LSTM.

    The last layer has `last_hidden_size` units where that is given. Input and output embeddings
    are one matrix (`tie_word_embeddings`) where sizes allow: the last layer is as wide as the
    embedding, or `projection` puts a linear map between them.

    `embedding_dropout` drops words of the vocabulary, `weight_drop` entries of the recurrent
    matrices; both are drawn once for a step, the same for all records. `input_dropout`,
    `hidden_dropout` and `output_dropout` drop coordinates, drawn once for a record and kept over
    all its words.

    Source: Merity et al. 2018 (the dropouts); Lai et al. 2022, appendix on models.
    """

    model_type = "tacit-lstm"

    vocab_size: int = 4000
    embedding_size: int = 100
    hidden_size: int = 200
    layers: int = 1
    last_hidden_size: int | None = None
    projection: bool = False
    tie_word_embeddings: bool = True
    embedding_dropout: float = 0.0
    input_dropout: float = 0.0
    hidden_dropout: float = 0.0
    output_dropout: float = 0.0
    weight_drop: float = 0.0
    pooling: Literal["mean", "last"] = "mean"
    embedding_range: float = 0.1
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        """Check the sizes; weights are tied only where these allow it."""
        for name in ("vocab_size", "embedding_size", "hidden_size", "layers"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r} is not a size; give a whole number, 1 or more.")
        for name in ("embedding", "input", "hidden", "output"):
            _need_share(f"{name}_dropout", getattr(self, f"{name}_dropout"))
        _need_share("weight_drop", self.weight_drop)
        if self.pooling not in ("mean", "last"):
            raise ValueError(f"pooling={self.pooling!r} is not known; give mean or last.")
        self.tie_word_embeddings = self.tie_word_embeddings and (
            self.projection or self.sizes[-1] == self.embedding_size
        )
        super().__post_init__(**kwargs)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The units of each layer."""
        return (self.hidden_size,) * (self.layers - 1) + (
            self.last_hidden_size or self.hidden_size,
        )

    @property
    def output_size(self) -> int:
        """The width that the head reads."""
        return self.embedding_size if self.projection else self.sizes[-1]


def _need_share(name: str, value: float) -> None:
    if not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(f"{name}={value!r} is not a share; give 0 or more, and less than 1.")


@dataclass
class LSTMOutput(ModelOutput):
    """Logits, and the state after the last column: that of a record where it has no padding."""

    logits: Tensor | None = None
    state: State | None = None


class LSTMBody(nn.Module):
    """From token ids to the outputs of the last layer."""

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_size)
        inputs = (config.embedding_size, *config.sizes[:-1])
        self.layers = nn.ModuleList(
            GateLSTM(width, units, batch_first=True)
            for width, units in zip(inputs, config.sizes, strict=True)
        )
        if config.projection:
            self.projection = nn.Linear(config.sizes[-1], config.embedding_size, bias=False)

    def forward(self, input_ids: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """The outputs for every token, and the state after the last one."""
        config = self.config
        x = self._locked(self._embed(input_ids), config.input_dropout)
        after: list[tuple[Tensor, Tensor]] = []
        for number, layer in enumerate(self.layers):
            x, own = self._run(number, layer, x, state[number] if state is not None else None)
            after.append(own)
            last = number == len(self.layers) - 1
            x = self._locked(x, config.output_dropout if last else config.hidden_dropout)
        if config.projection:
            x = self.projection(x)
        return x, tuple(after)

    def _embed(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embedding(ids)
        share = self.config.embedding_dropout
        if not self.training or share == 0:
            return x
        # A factor on the output equals one on the row, and leaves the layer an ordinary one.
        words = dropout.shared_mask(0, (self.config.vocab_size,), share, x)
        return x * words[ids].unsqueeze(-1)

    def _locked(self, x: Tensor, share: float) -> Tensor:
        """Variational dropout: one mask for a record, whatever its length."""
        if not self.training or share == 0:
            return x
        return x * dropout.record_mask((x.shape[0], 1, x.shape[2]), share, x)

    def _run(
        self, number: int, layer: nn.Module, x: Tensor, state: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        share = self.config.weight_drop
        if not self.training or share == 0:
            out: tuple[Tensor, tuple[Tensor, Tensor]] = layer(x, state)
            return out
        dropped = {
            name: weight * dropout.shared_mask(1 + number, weight.shape, share, weight)
            for name, weight in layer.named_parameters()
            if name.startswith("weight_hh")
        }
        out = functional_call(layer, dropped, (x, state))
        return out


class LSTMPreTrained(PreTrainedModel):
    """What the LSTM models share: how they begin, and how they are found again."""

    config_class = LSTMConfig
    base_model_prefix = "body"
    main_input_name = "input_ids"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Embeddings uniform within `embedding_range`, all else within 1/sqrt(hidden size).

        Source: Lai et al. 2022, appendix on models. Departs: biases of the head begin at zero.
        """
        if isinstance(module, nn.Embedding):
            reach = self.config.embedding_range
            initialization.uniform_(module.weight, -reach, reach)
            return
        if isinstance(module, nn.Linear) and module.bias is not None:
            initialization.zeros_(module.bias)
        bound = 1 / math.sqrt(self.config.hidden_size)
        for name, weight in module.named_parameters(recurse=False):
            if not (isinstance(module, nn.Linear) and name == "bias"):
                initialization.uniform_(weight, -bound, bound)

    def get_input_embeddings(self) -> nn.Module:
        """The table of word vectors."""
        table: nn.Module = self.get_submodule("body.embedding")
        return table


class LSTMForCausalLM(LSTMPreTrained, GenerationMixin):
    """An LSTM that predicts the next token; `generate` goes on from its state."""

    _is_stateful = True
    _supported_generation_modes = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)
    _tied_weights_keys = {"head.weight": "body.embedding.weight"}  # noqa: RUF012

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__(config)
        self.body = LSTMBody(config)
        self.head = nn.Linear(config.output_size, config.vocab_size)
        self.post_init()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # the state is all there is to remember

    def prepare_inputs_for_generation(  # type: ignore[override]
        self, input_ids: Tensor, state: State | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """What `generate` reads: the whole text at first, then the last token with the state."""
        return {"input_ids": input_ids if state is None else input_ids[:, -1:], "state": state}

    def get_output_embeddings(self) -> nn.Module:
        """The linear map to the vocabulary."""
        return self.head

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        state: State | None = None,
        return_dict: bool = True,
    ) -> LSTMOutput:
        """Logits for every place; only ids and the state are needed."""
        x, after = self.body(input_ids, state)
        return LSTMOutput(logits=self.head(x), state=after)


class LSTMForTokenClassification(LSTMPreTrained):
    """An LSTM that tags each token from what stands before it."""

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__(config)
        self.body = LSTMBody(config)
        self.classifier = nn.Linear(config.output_size, config.num_labels or 2)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        state: State | None = None,
    ) -> LSTMOutput:
        """Logits for every token, or for the text."""
        x, after = self.body(input_ids, state)
        return LSTMOutput(logits=self.classifier(self._read(x, attention_mask)), state=after)

    def _read(self, x: Tensor, attention_mask: Tensor | None) -> Tensor:
        return x


class LSTMForSequenceClassification(LSTMForTokenClassification):
    """An LSTM that gives a text a class, or a number, from the states of its own tokens.

    Departs: the paper puts a softmax layer on the LSTM and does not say which states it reads;
    here their mean, or the last (`pooling`).
    """

    def _read(self, x: Tensor, attention_mask: Tensor | None) -> Tensor:
        own = x.new_ones(x.shape[:2]) if attention_mask is None else attention_mask
        if self.config.pooling == "mean":
            mask = own.to(x.dtype).unsqueeze(-1)
            # Zero and not a product past the end: what stands there may be anything.
            return x.masked_fill(mask == 0, 0).sum(1) / mask.sum(1).clamp(min=1)
        last = own.long().sum(1).clamp(min=1) - 1
        return x[torch.arange(len(x), device=x.device), last]


AutoConfig.register(LSTMConfig.model_type, LSTMConfig, exist_ok=True)
AutoModelForCausalLM.register(LSTMConfig, LSTMForCausalLM, exist_ok=True)
AutoModelForSequenceClassification.register(
    LSTMConfig, LSTMForSequenceClassification, exist_ok=True
)
AutoModelForTokenClassification.register(LSTMConfig, LSTMForTokenClassification, exist_ok=True)

LSTM = ModelFamily("tacit-lstm", CAUSAL)
AWD_LSTM = ModelFamily(
    "tacit-lstm",
    CAUSAL,
    defaults={
        "embedding_size": 100,
        "hidden_size": 1150,
        "layers": 3,
        "embedding_dropout": 0.1,
        "weight_drop": 0.3,
        "output_dropout": 0.5,
    },
)
"""As in the paper (Lai et al. 2022, appendix on models); its sizes do not allow tied weights."""
