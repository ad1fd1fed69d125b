"""One loss for each record, of the models that transformers has for text."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from tacit.errors import UsageError
from tacit.training.tasks.examples import IGNORED
from tacit.training.tasks.measuring import label_losses, mean_of_row, token_losses

CAUSAL, CLASSES, TAGS = "ForCausalLM", "ForSequenceClassification", "ForTokenClassification"
_OLD_NAMES = {"GPT2LMHeadModel": CAUSAL}


def kind_of(model: Any) -> str:
    """What a model is for, by the name of its class, which transformers gives by that rule."""
    name = type(model.get_base_model() if hasattr(model, "get_base_model") else model).__name__
    found = [kind for kind in (CAUSAL, CLASSES, TAGS) if name.endswith(kind)]
    if not found and name not in _OLD_NAMES:
        raise UsageError(
            f"{name} is not a model for next words, classes or tags; override record_losses, which "
            "gives one loss for each record."
        )
    return found[0] if found else _OLD_NAMES[name]


def record_losses(model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    """The mean over a record's own targets of its loss; nothing of another record enters it."""
    if "labels" not in inputs:
        raise UsageError(
            "The batches have no labels, so there is nothing to learn; give a data_collator that "
            "makes them, such as DataCollatorForLanguageModeling(tokenizer, mlm=False)."
        )
    kind, labels = kind_of(model), inputs["labels"]
    given = {name: value for name, value in inputs.items() if name != "labels"}
    logits: Tensor = model(**given).logits
    if kind == CLASSES:
        return _of_records(model, logits, labels)
    if kind == CAUSAL:  # what comes next at every place
        labels = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
    return mean_of_row(token_losses(logits, labels), labels >= 0)


def _of_records(model: Any, logits: Tensor, labels: Tensor) -> Tensor:
    """As the model itself reads its labels: classes, several at once, or a number."""
    problem = model.config.problem_type
    if problem == "multi_label_classification":
        each = F.binary_cross_entropy_with_logits(logits, labels.to(logits), reduction="none")
        return each.mean(1)
    if problem == "regression" or (problem is None and logits.shape[1] == 1):
        return (logits - labels.to(logits).view(logits.shape)).square().mean(1)
    return label_losses(logits, labels)
