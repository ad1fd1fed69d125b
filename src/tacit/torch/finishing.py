"""The end of a training of one's own: model, card and certificate, from what the ledger holds."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from safetensors.torch import save_model as save_tensors
from torch import nn
from transformers import PreTrainedModel

from tacit.errors import DataError, UsageError
from tacit.files import whole_file, write_text
from tacit.privacy.certificates.certificate import Certificate, certify, own_salt, publish
from tacit.privacy.certificates.manifest import make_manifest
from tacit.privacy.ledger import read_ledger
from tacit.training.data.account import write_names
from tacit.training.evaluation.model_card import card, loading
from tacit.training.models.weights import MARK, mark_weights, save_model
from tacit.training.phases.promising import found_before, promise_of
from tacit.training.phases.session import MADE_HERE

if TYPE_CHECKING:
    from tacit.torch.training import OwnTraining

WEIGHTS = "model.safetensors"
_PIPELINES = {
    "ForCausalLM": ("text-generation", "AutoModelForCausalLM"),
    "LMHeadModel": ("text-generation", "AutoModelForCausalLM"),
    "ForMaskedLM": ("fill-mask", "AutoModelForMaskedLM"),
    "ForSequenceClassification": ("text-classification", "AutoModelForSequenceClassification"),
    "ForTokenClassification": ("token-classification", "AutoModelForTokenClassification"),
}


def finish(training: "OwnTraining", *, tokenizer: Any, adapter: bool) -> Certificate:
    """Write what a training leaves, and certify it."""
    folder, plan, loop = training.folder, training.plan, training.loop
    if loop is None or loop.done == 0:
        raise UsageError("There is nothing to certify before the first step.")
    saved = save(training.model, tokenizer, folder, adapter=adapter)
    ownership = training.ownership
    write_names(folder, ownership.names, (), own_salt())
    write_text(folder / "settings.yml", yaml.safe_dump(training.settings, sort_keys=False))
    books = read_ledger(folder / "ledger.jsonl")
    context = {"method": "dp-sgd in the caller's own loop", "model": type(training.model).__name__}
    if loop.done < plan.steps:
        context["stopped"] = f"after {loop.done} of {plan.steps} steps"
    certificate = certify(books, promise_of(plan, None), context=context)
    write_text(folder / "README.md", _card(training.model, certificate, adapter=adapter))
    files = make_manifest(folder)
    _require_own(files, saved)
    own = {"files": files, "findings": found_before(folder, len(books.entries))}
    return publish(certificate.model_copy(update=own), folder)


def save(model: nn.Module, tokenizer: Any, folder: Path, *, adapter: bool) -> tuple[str, ...]:
    """Write the model as its kind is written; the names of its files."""
    if isinstance(_inside(model), PreTrainedModel):
        return save_model(model, tokenizer, folder, adapter=adapter, mark=MADE_HERE)
    if adapter or tokenizer is not None:
        raise UsageError(
            f"{type(model).__name__} is no model of transformers, so it has neither adapter nor "
            "tokenizer; leave these out."
        )
    with whole_file(folder / WEIGHTS) as draft:
        save_tensors(model, str(draft))
        mark_weights(draft, {MARK: MADE_HERE})
    return (WEIGHTS,)


def _inside(model: Any) -> Any:
    """The model below the adapters of peft."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _card(model: nn.Module, certificate: Certificate, *, adapter: bool) -> str:
    name = type(_inside(model)).__name__
    title = f"{name}, trained with differential privacy"
    if not isinstance(_inside(model), PreTrainedModel):
        loads = (
            "from safetensors.torch import load_model\n\n"
            f'model = {name}(...)  # as it was made\nload_model(model, "FOLDER/{WEIGHTS}")'
        )
        return card(title, certificate, loads, library="pytorch")
    found = (pair for end, pair in _PIPELINES.items() if name.endswith(end))
    pipeline, loader = next(found, (None, "AutoModel"))
    if adapter:
        loader = f"AutoPeft{loader.removeprefix('Auto')}"
        loads = loading(loader).replace(f", {loader}", f"\nfrom peft import {loader}", 1)
        return card(title, certificate, loads, pipeline=pipeline, library="peft")
    return card(title, certificate, loading(loader), pipeline=pipeline)


def _require_own(files: Mapping[str, str], saved: tuple[str, ...]) -> None:
    """Refuse to certify a file that was not written here, such as one put there meanwhile."""
    for name in files:
        if name not in {*saved, "README.md", "settings.yml", "plan.yml"}:
            raise DataError(
                f"{name} was not written by this training; take it away, then call certificate "
                "again."
            )
