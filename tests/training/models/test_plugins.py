"""A family of models and an optimizer of somebody else's package, by their entry points alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.forking import run_python
from support.small import dialogs

MODEL = """
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput
from tacit.training.models.registries import ModelFamily

class BigramConfig(PretrainedConfig):
    model_type = "toy-bigram"
    vocab_size: int = 10
    width: int = 4
    num_hidden_layers: int = 1

class Bigram(PreTrainedModel, GenerationMixin):
    config_class = BigramConfig

    def __init__(self, config):
        super().__init__(config)
        self.table = nn.Embedding(config.vocab_size, config.width)
        self.head = nn.Linear(config.width, config.vocab_size)
        self.post_init()

    def forward(self, input_ids, **_):
        return CausalLMOutput(logits=self.head(self.table(input_ids)))

AutoConfig.register("toy-bigram", BigramConfig)
AutoModelForCausalLM.register(BigramConfig, Bigram)
FAMILY = ModelFamily("toy-bigram", tasks=("next-word",), names={"hidden_size": ("width",)})
"""
OPTIMIZER = """
import torch

class SignDescent(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad.sign(), alpha=group["lr"])

def make(parameters, settings):
    return SignDescent(parameters, settings.learning_rate)
"""
PYTHON = """
import sys
from pathlib import Path
from tacit.training.settings import read_run
from tacit.training.phases.session import train
from tacit.training.evaluation.scoring import predict

done = train(read_run(Path(sys.argv[1])), Path(sys.argv[2]))
assert done.certificate.epsilon <= 8
assert predict(Path(sys.argv[2]), "I have")["next"]
"""
PLUGINS = {
    "tacit.models": ("toy_model", MODEL, "FAMILY", {"model": {
        "kind": "toy", "config": {"hidden_size": 6}}}),
    "tacit.optimizers": ("toy_optimizer", OPTIMIZER, "make", {"optimizer": {
        "name": "toy", "learning_rate": 0.01}}),
}  # fmt: skip


def run(folder: Path | None, *command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([*([str(folder)] if folder else []), *sys.path])
    return run_python(*command, env=os.environ | {"PYTHONPATH": path})


@pytest.mark.parametrize("group", PLUGINS)
def test_a_package_adds_what_a_private_run_trains_with(tmp_path: Path, group: str) -> None:
    module, code, attribute, chosen = PLUGINS[group]
    package = tmp_path / "package"
    (package / "toy-1.0.dist-info").mkdir(parents=True)
    (package / f"{module}.py").write_text(code)
    entry = f"[{group}]\ntoy = {module}:{attribute}\n"
    (package / "toy-1.0.dist-info" / "entry_points.txt").write_text(entry)
    plan = {"protect": "users", "epsilon": 8, "steps": 2, "user_rate": 0.3, "users": 50}
    settings = tmp_path / "run.yml"
    settings.write_text(yaml.safe_dump(dialogs(tmp_path, 40) | {"plan": plan} | chosen))

    done = run(package, "-m", "tacit", "train", str(settings), "-o", str(tmp_path / "one"))
    assert done.returncode == 0, done.stderr
    checked = run(package, "-m", "tacit", "verify", str(tmp_path / "one"))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    script = tmp_path / "script.py"
    script.write_text(PYTHON)
    done = run(package, str(script), str(settings), str(tmp_path / "two"))
    assert done.returncode == 0, done.stderr

    name = "model.kind" if group == "tacit.models" else "optimizer.name"
    without = run(None, "-m", "tacit", "train", str(settings), "-o", str(tmp_path / "three"))
    assert without.returncode == 2
    assert f"{name} 'toy' is not known; accepted: " in " ".join(without.stderr.split())
