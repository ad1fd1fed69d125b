"""A run's model in other layouts."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

import tacit
from support.small import dialogs
from tacit.cli import run as command
from tacit.errors import DataError, UsageError
from tacit.training.models.networks import load_model
from tacit.training.models.shared import load_shared
from tacit.training.phases import session
from tacit.training.phases.run_context import make_model
from tacit.training.settings import Run

PLAN = {"protect": "users", "epsilon": 8, "steps": 3, "user_rate": 0.3, "users": 50}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small GPT-2 with adapters, averaged over its last steps."""
    place = tmp_path_factory.mktemp("run")
    model = {"kind": "gpt2", "config": {"layers": 1, "hidden_size": 32, "heads": 2}, "lora_rank": 2}
    optimizer = {"learning_rate": 0.3, "average": 0.7}
    run = Run(**dialogs(place) | {"model": model}, plan=PLAN, optimizer=optimizer)
    return session.train(run, place / "RUN").folder


def test_adapters_alone(trained: Path, tmp_path: Path) -> None:
    assert command(["export", str(trained), "--adapter", "-o", str(tmp_path / "ADAPTER")]) == 0
    run, shared = tacit.open_run(trained), load_shared(trained)
    settings: Any = Run(
        **{**_settings(trained), "model": {**_settings(trained)["model"], "lora_rank": 0}}
    )
    base: Any = make_model(settings, shared.task, shared.tokenizer)
    loaded = PeftModel.from_pretrained(base, tmp_path / "ADAPTER").eval()
    ids = torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(
        loaded(ids).logits, shared.model.eval()(ids).logits, rtol=1e-4, atol=1e-5
    )
    with pytest.raises(UsageError, match="is not empty"):
        run.export(tmp_path / "ADAPTER")


def _settings(folder: Path) -> dict[str, Any]:
    import yaml

    return dict(yaml.safe_load((folder / "run.yml").read_text()))


def test_one_file(trained: Path, tmp_path: Path) -> None:
    file = tacit.open_run(trained).export(tmp_path / "model.gguf")
    ids = torch.tensor([[5, 6, 7]])
    own = load_shared(trained).model.eval()
    torch.testing.assert_close(
        load_model(file, "next-word").eval()(ids).logits, own(ids).logits, rtol=1e-4, atol=1e-4
    )
    with pytest.raises(UsageError, match="exists"):
        tacit.open_run(trained).export(file)


def test_what_cannot_be_exported(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["export", str(trained), "-o", str(tmp_path / "x")]) == 2
    assert "ends in .gguf, or --adapter" in capsys.readouterr().err
    shared = tmp_path / "shared"
    shared.mkdir()
    for path in trained.iterdir():
        if path.is_file() and path.name != "checkpoint.safetensors":
            (shared / path.name).write_bytes(path.read_bytes())
    with pytest.raises(DataError, match="export it where it ran"):
        tacit.open_run(shared).export(tmp_path / "A")
