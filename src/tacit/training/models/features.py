"""A frozen encoder below a linear head: the family `features`.

What the encoder makes of a record never changes, so it is computed once (`with_features`) and kept;
training then sees vectors of length one, and nothing but the head is trained.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
    PreTrainedModel,
    initialization,
)
from transformers.utils.generic import ModelOutput

from tacit.errors import DataError
from tacit.packaged_models import located
from tacit.training.data.activation_cache import Places, Vectors, load_or_compute
from tacit.training.models.networks import UNREADABLE, label_fields, no_longer_quantized, reading
from tacit.training.models.offline import quiet, seeded
from tacit.training.models.registries import ModelFamily, TaskName
from tacit.training.models.weights import digest_of
from tacit.training.settings import ModelSettings
from tacit.training.tasks.examples import Examples
from tacit.training.tasks.measuring import check_fit, evaluating

OnFeatures = Callable[[int, int], None]
"""Is told how many records have their features, and of how many."""

CONSTANT = 0.3
"""What a head reads beside a vector of length one, so that classes may be more or less frequent.

All records agree in it, and a 1 there took the clip norm from what tells them apart: a sum of
gradients had half of its square in it, and its weights swung from step to step.
"""
LENGTH = math.hypot(1, CONSTANT)
"""How long a vector is with the constant beside it."""


def beside_constant(features: Tensor) -> Tensor:
    """What a head reads: the features, and the constant."""
    return torch.cat([features, torch.full_like(features[..., :1], CONSTANT)], -1)


class FeaturesConfig(PretrainedConfig):
    """The encoder's own configuration, or None for a table of static word vectors."""

    model_type = "tacit-features"

    encoder: dict[str, Any] | None = None
    vocab_size: int = 32_000
    hidden_size: int = 256
    max_position_embeddings: int | None = None
    pad_token_id: int | None = None
    statistics: dict[str, Any] | None = None
    """Of a head that is made of released sums: which there are, and their noise."""


@dataclass
class FeaturesOutput(ModelOutput):
    """Logits of each token, or of the text."""

    logits: Tensor | None = None


class AboveFrozen(PreTrainedModel):
    """A model that trains what stands above a frozen `encoder`.

    What the encoder makes of a record is kept as `stored`: `width` numbers for each token, or for
    the text (`pooled`).
    """

    main_input_name = "input_ids"
    pooled = False
    stored: type[np.floating[Any]] = np.float32
    encoder: nn.Module

    @property
    def width(self) -> int:
        """How many numbers a vector has."""
        return int(self.config.hidden_size)

    @classmethod
    def from_pretrained(cls, *where: Any, **options: Any) -> Any:
        """Read weights; the library makes all of them trainable, and the encoder's are not."""
        loaded = super().from_pretrained(*where, **options)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        model.encoder.requires_grad_(False)
        return loaded

    @property
    def kept_as(self) -> str:
        """What decides these numbers beside the frozen weights, if anything does."""
        return str(self.pooled)

    @property
    def frozen(self) -> bool:
        """Whether no weight of the encoder is trained."""
        return not any(p.requires_grad for p in self.encoder.parameters())

    def train(self, mode: bool = True) -> "AboveFrozen":
        """A frozen encoder stands still in training, too: no dropout in it."""
        super().train(mode)
        if self.frozen:
            self.encoder.eval()
        return self

    def features(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """What the trained part reads."""
        raise NotImplementedError


class FeaturesForTokenClassification(AboveFrozen):
    """Tags each token from its state in a frozen encoder, scaled to length one."""

    config_class = FeaturesConfig

    def __init__(self, config: FeaturesConfig) -> None:
        super().__init__(config)
        self.encoder = _empty_encoder(config)
        self.classifier = nn.Linear(config.hidden_size + 1, config.num_labels or 2, bias=False)
        self.post_init()
        self.encoder.requires_grad_(False)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """The head begins at zero: noise alone decides no class before anything is learnt."""
        if module is self.classifier:
            initialization.zeros_(module.weight)

    def get_input_embeddings(self) -> nn.Module:
        """The table of word vectors."""
        inside: Any = self.encoder
        table: nn.Module = (
            inside if isinstance(inside, nn.Embedding) else inside.get_input_embeddings()
        )
        return table

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        features: Tensor | None = None,
    ) -> FeaturesOutput:
        """Logits from features, or from the text that they are made of."""
        if features is None:
            features = self.features(input_ids, attention_mask, token_type_ids)
        read = beside_constant(features.to(self.classifier.weight.dtype))
        return FeaturesOutput(logits=self.classifier(read))

    def features(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """What the head reads."""
        assert input_ids is not None
        own = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        if isinstance(self.encoder, nn.Embedding):
            states = self.encoder(input_ids)
        else:
            types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
            states = self.encoder(input_ids=input_ids, attention_mask=own, **types)[0]
        return F.normalize(self._read(states, own), dim=-1)

    def _read(self, states: Tensor, mask: Tensor) -> Tensor:
        return states


class FeaturesForSequenceClassification(FeaturesForTokenClassification):
    """Gives a text a class, or a number, from the mean of its tokens' states."""

    pooled = True

    def __init__(self, config: FeaturesConfig) -> None:
        super().__init__(config)
        self.statistics = Statistics(config) if config.statistics is not None else None

    def _read(self, states: Tensor, mask: Tensor) -> Tensor:
        own = mask.to(states.dtype).unsqueeze(-1)
        # Zero and not a product past the end: what stands there may be anything.
        return states.masked_fill(own == 0, 0).sum(1) / own.sum(1).clamp(min=1)


class Statistics(nn.Module):
    """Sums over records, as layers: a record's gradient is what it adds to them.

    With x~ = (x, CONSTANT) / LENGTH, which has length one, a record adds t x~' to `classes`, where
    t says its class or its number, and x~ x~' to `moments`; `scale` makes all of it at most one
    long.
    """

    def __init__(self, config: FeaturesConfig) -> None:
        super().__init__()
        wide = config.hidden_size + 1
        self.classes = nn.Linear(wide, config.num_labels or 2, bias=False)
        self.moments = (
            nn.Linear(wide, wide, bias=False) if (config.statistics or {})["moments"] else None
        )
        self.covariance = nn.Buffer(torch.zeros(wide - 1, wide - 1))
        self.scale = 1.0 if self.moments is None else math.sqrt(0.5)
        for layer in (self.classes, self.moments):
            if layer is not None:
                nn.init.zeros_(layer.weight)

    def forward(self, features: Tensor, targets: Tensor) -> Tensor:
        """A number for each record, linear in the layers; steps go against its gradient."""
        x = beside_constant(features.to(self.classes.weight.dtype)) / LENGTH
        total = (self.classes(x) * targets).sum(1)
        if self.moments is not None:
            total = total + (self.moments(x) * x).sum(1)
        return -self.scale * total


AutoConfig.register(FeaturesConfig.model_type, FeaturesConfig, exist_ok=True)
AutoModelForSequenceClassification.register(
    FeaturesConfig, FeaturesForSequenceClassification, exist_ok=True
)
AutoModelForTokenClassification.register(
    FeaturesConfig, FeaturesForTokenClassification, exist_ok=True
)


def _empty_encoder(config: FeaturesConfig) -> nn.Module:
    if config.encoder is None:
        return nn.Embedding(config.vocab_size, config.hidden_size)
    made: nn.Module = AutoModel.from_config(AutoConfig.for_model(**config.encoder))
    return made


def make_features(
    settings: ModelSettings, task: TaskName, *, labels: Sequence[str] | None, context: int
) -> PreTrainedModel:
    """A new head above the encoder that the settings name; the model has weights of both.

    It reads as many tokens of a text as the run does, wherever it is used.
    """
    encoder, fields = load_encoder(str(settings.folder))
    room = min(context, fields.get("max_position_embeddings") or context)
    fields |= {"max_position_embeddings": room} | label_fields(task, labels)
    kind = (
        FeaturesForTokenClassification if task == "tagging" else FeaturesForSequenceClassification
    )
    with quiet():
        model = kind(FeaturesConfig(**fields))
    model.encoder = encoder.requires_grad_(False)
    return model.eval()


def load_encoder(where: str) -> tuple[nn.Module, dict[str, Any]]:
    """An encoder with its weights, and what a configuration says of it."""
    place = located(where)
    if place.suffix == ".safetensors":
        [table] = load_file(place).values()
        words, width = table.shape
        encoder: nn.Module = nn.Embedding.from_pretrained(table.float())
        return encoder, {"encoder": None, "vocab_size": words, "hidden_size": width}
    path, options = reading(place)
    with quiet(), seeded(0):
        try:
            loaded: Any
            loaded, info = AutoModel.from_pretrained(path, output_loading_info=True, **options)
        except UNREADABLE:
            raise DataError(f"{path} holds no encoder that transformers can load.") from None
    # A pooler is not read, and the seed makes it the same everywhere; all else must be there.
    if lost := sorted(name for name in info["missing_keys"] if "pooler" not in name.split(".")):
        raise DataError(f"{path} lacks {len(lost)} weight(s) of its encoder, {lost[0]} for one.")
    if "gguf_file" in options:
        no_longer_quantized(loaded)
    config = loaded.config
    fields = json.loads(config.to_json_string(use_diff=False))
    return loaded, {  # wherever its folder lies, it is the same encoder
        "encoder": {k: v for k, v in fields.items() if k != "_name_or_path"},
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "max_position_embeddings": getattr(config, "max_position_embeddings", None),
    }


def with_features(
    model: nn.Module, examples: Examples, on_features: OnFeatures | None = None
) -> Examples:
    """The examples with what a frozen encoder makes of them; as they are for any other model.

    Computed in batches, and once: the key is a digest of the encoder's weights and of the tokens,
    hence of tokenizer, context and text.
    """
    if not isinstance(model, AboveFrozen) or not model.frozen:
        return examples
    check_fit(model, examples)
    lengths = np.ones(len(examples), dtype=np.int64) if model.pooled else examples.lengths

    def compute() -> Iterator[tuple[Places, Vectors]]:
        done = 0
        for rows, batch in evaluating(model, examples) if len(examples) else ():
            given = (batch["input_ids"], batch["attention_mask"], batch.get("token_type_ids"))
            found = model.features(*given).float()
            if not model.pooled:
                found = found[batch["attention_mask"] > 0]
            done += len(rows)
            yield rows, found.cpu().numpy()
            if on_features is not None:
                on_features(done, len(examples))

    key = _key(model, examples)
    made = load_or_compute(key, lengths, model.width, compute, stored=model.stored)
    return replace(examples, features=made)


def _key(model: AboveFrozen, examples: Examples) -> str:
    sha = hashlib.sha256(f"{version('torch')} {model.kept_as} {model.config.encoder}".encode())
    for name, tensor in (*model.encoder.named_parameters(), *model.encoder.named_buffers()):
        sha.update(f"{name} {digest_of(tensor)}".encode())
    for array in (*examples.ids, *(examples.types or ())):
        sha.update(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
    return sha.hexdigest()[:32]


FEATURES = ModelFamily(
    "tacit-features", ("classification", "regression", "tagging"), make=make_features
)
