"""A model as it is shared: its folder alone, without the settings and the corpus of its run."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerBase

from tacit.errors import DataError
from tacit.training.models import networks, tokens
from tacit.training.models.memory import keep_freed_memory
from tacit.training.tasks.masked_words import MaskedWord
from tacit.training.tasks.tagging import Tagging
from tacit.training.tasks.tasks import Classification, NextWord, Regression, Task


@dataclass(frozen=True)
class Shared:
    """A model ready to answer."""

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    task: Task


def load_shared(folder: Path) -> Shared:
    """The model of a folder; what it does is read from its configuration."""
    folder = Path(folder)
    if not (folder / "config.json").exists():
        raise DataError(f"{folder} holds no trained model; train it, or --resume it, first.")
    keep_freed_memory()
    tokenizer = tokens.load_tokenizer(folder)
    task = _task(folder, tokenizer)
    model = networks.load_model(
        folder,
        task.name,
        labels=getattr(task, "labels", None),
        pad_token_id=tokenizer.pad_token_id,
    )
    return Shared(model, tokenizer, task)


def _task(folder: Path, tokenizer: PreTrainedTokenizerBase) -> Task:
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        kind = str((config.get("architectures") or [""])[0])
        named = {int(at): str(label) for at, label in config.get("id2label", {}).items()}
    except (OSError, ValueError, AttributeError, TypeError, IndexError):
        raise DataError(f"{folder}/config.json is not the configuration of a model.") from None
    labels = tuple(named[at] for at in sorted(named))
    if kind.endswith("ForTokenClassification"):
        return Tagging(labels)
    if kind.endswith("ForSequenceClassification"):
        single = config.get("problem_type") == "regression" or len(labels) == 1
        low, high = config.get("label_range", (Regression.low, Regression.high))
        return Regression(float(low), float(high)) if single else Classification(labels)
    if kind.endswith("ForMaskedLM"):
        return MaskedWord.of(tokenizer)
    return NextWord(long="truncate")
