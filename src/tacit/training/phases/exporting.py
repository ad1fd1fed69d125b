"""A finished run's model in other layouts: its adapters alone, or one GGUF file.

The run's folder holds merged weights as safetensors already. Whatever is made here is made of what
was released, so it costs nothing; it is no file that the certificate names.
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from tacit.errors import DataError, UsageError
from tacit.training.models.gguf_files import write_gguf
from tacit.training.models.shared import load_shared
from tacit.training.models.weights import merged, save_model
from tacit.training.phases.checkpoints import NAME, load_trained
from tacit.training.phases.run_context import make_model
from tacit.training.settings import read_run

_SAME = 1e-5


def export_gguf(folder: Path, file: Path) -> Path:
    """The model of a run as one GGUF file."""
    shared = load_shared(folder)
    write_gguf(shared.model, shared.tokenizer, file)
    return file


def export_adapter(folder: Path, to: Path) -> Path:
    """The adapters of a run with LoRA alone, in peft's layout, to go onto the same public model."""
    if to.exists() and any(to.iterdir()):
        raise UsageError(f"{to} is not empty; give a new folder.")
    run = read_run(folder / "run.yml")
    if not run.model.lora_rank:
        raise UsageError(
            f"{folder} was trained without adapters (model.lora_rank); share it whole."
        )
    if not (folder / NAME).exists():
        raise DataError(f"{folder} has no {NAME}, which has the adapters; export it where it ran.")
    shared = load_shared(folder)
    model = make_model(run, shared.task, shared.tokenizer).cpu()
    load_trained(folder, model)
    _require_same(model, shared.model, folder)
    save_model(model, shared.tokenizer, to, adapter=True)
    return to


@torch.no_grad()
def _require_same(model: nn.Module, whole: Any, folder: Path) -> None:
    """Refuse adapters that do not make the model of the folder."""
    expected = dict(whole.named_parameters())
    for name, tensor in merged(model).named_parameters():
        gap = (tensor - expected[name].to(tensor)).norm()
        if not float(gap) <= _SAME * float(expected[name].norm() + 1):
            raise DataError(
                f"The checkpoint of {folder} does not make the weights beside it, as where others "
                "than the last were kept; share the folder whole."
            )
