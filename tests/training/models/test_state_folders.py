"""Adapters above any causal folder, and what they go together with: entities, choice, ranks."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    PhiConfig,
    Qwen2Config,
)

from support.forking import run_ranks
from support.topics import TOKENIZER
from tacit.errors import UsageError
from tacit.privacy.ledger import read_ledger
from tacit.training.evaluation.generation import Sampling
from tacit.training.evaluation.scoring import evaluate, predict
from tacit.training.models import networks, weights
from tacit.training.models.offline import quiet, seeded
from tacit.training.phases.run_context import open_run, tokenize
from tacit.training.phases.session import train
from tacit.training.settings import Run, run_yaml
from tacit.training.tasks.measuring import forward
from tacit.verification.runs import verify

SMALL: dict[str, Any] = {
    "vocab_size": len(TOKENIZER), "hidden_size": 16, "num_hidden_layers": 3, "head_dim": 8,
    "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32,
    "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
GPT2: dict[str, Any] = {
    "vocab_size": len(TOKENIZER),
    "n_embd": 16,
    "n_layer": 3,
    "n_head": 2,
    "n_positions": 32,
}
KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
CONFIGS = {
    "llama": lambda: LlamaConfig(**SMALL),
    "llama tied": lambda: LlamaConfig(**SMALL, tie_word_embeddings=True),
    "gpt2": lambda: GPT2Config(**GPT2, bos_token_id=1, eos_token_id=2),
    "qwen2": lambda: Qwen2Config(**SMALL),
    "gemma3": lambda: Gemma3TextConfig(**SMALL, sliding_window=4, layer_types=KINDS),
    "gemma2": lambda: Gemma2Config(**SMALL, final_logit_softcapping=2.0),
    "phi": lambda: PhiConfig(**SMALL | {"num_key_value_heads": 2}),
}
PLAN = {"protect": "users", "epsilon": 8, "steps": 3, "user_rate": 1.0, "users": 6}


def a_folder(name: str, folder: Path) -> str:
    """A small random model of a family, in the layout that others save."""
    with quiet(), seeded(5):
        model = AutoModelForCausalLM.from_config(CONFIGS[name]())
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(std=0.5)
        model.save_pretrained(folder)
        TOKENIZER.save_pretrained(str(folder))
    return str(folder)


def notes(folder: Path) -> str:
    """Thirty short notes of six users, each of which names somebody."""
    rng = np.random.default_rng(0)
    words = [word for word in TOKENIZER.get_vocab() if word.isalpha()]
    records = [
        {"id": str(n), "user": f"u{n % 6}", "split": "test" if n >= 24 else "train",
         "text": " ".join([*rng.choice(words, rng.integers(2, 6)), f"ann{n % 4}@example.org"])}
        for n in range(30)
    ]  # fmt: skip
    path = folder / "notes.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def settings(tmp_path: Path, name: str, adapter: str, **more: Any) -> dict[str, Any]:
    model = {
        "kind": "states", "folder": a_folder(name, tmp_path / "base"), "adapter": adapter,
        "adapter_tokens": 200, "adapter_rank": 4, "adapter_writes": 8,
    }  # fmt: skip
    return {"corpus": notes(tmp_path), "model": model, "context": 24, "plan": PLAN, **more}


@pytest.mark.parametrize("adapter", ["map", "last-block"])
@pytest.mark.parametrize("name", ["llama", "llama tied", "gpt2", "qwen2", "gemma3"])
def test_any_causal_folder_learns_and_goes_on_from_its_own_words(
    tmp_path: Path, name: str, adapter: str
) -> None:
    run = Run(**settings(tmp_path, name, adapter, seed=0, optimizer={"learning_rate": 0.1}))
    ctx = open_run(run)
    base = networks.load_model(run.model.folder, "next-word")  # type: ignore[arg-type]
    batch = tokenize(ctx, ctx.part).batch(np.arange(3))
    untouched = forward(base, batch, mask=False).log_softmax(-1)
    torch.testing.assert_close(
        forward(ctx.model, batch, mask=False).log_softmax(-1), untouched, rtol=1e-3, atol=1e-3
    )
    train(run, tmp_path / "run")
    scores = evaluate(tmp_path / "run", "test")
    assert scores["perplexity"] != scores["public_only_perplexity"]
    drawn = {
        seed: predict(tmp_path / "run", "red", words=8, sampling=Sampling(1.0, 0.95, seed))
        for seed in (1, 1, 2)
    }
    assert drawn[1]["completion"].startswith("red")
    assert drawn[1]["completion"] != drawn[2]["completion"]


@pytest.mark.parametrize(("name", "adapter"), [("gemma2", "map"), ("phi", "bias")])
def test_a_model_whose_logits_are_something_else_is_refused(
    tmp_path: Path, name: str, adapter: str
) -> None:
    with pytest.raises(UsageError, match=f"linear map of its last states; those of {name}"):
        open_run(Run(**settings(tmp_path, name, adapter)))


def test_a_last_block_that_does_something_else_by_itself_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tacit.training.models.last_block import LastBlock

    monkeypatch.setattr(LastBlock, "take", lambda *_: None)
    with pytest.raises(UsageError, match="cannot take the last block out of a llama"):
        open_run(Run(**settings(tmp_path, "llama", "last-block")))


def test_entities_are_protected_too_and_the_better_model_is_kept(tmp_path: Path) -> None:
    plan = PLAN | {"protect": "users+entities", "clip_norm": 1.0, "entity_share": 0.5}
    del plan["users"]
    more = {"detect": "patterns", "select": "best", "plan": plan}
    run = Run(**settings(tmp_path, "llama", "map") | more)
    done = train(run, tmp_path / "run")
    assert {*done.certificate.costs} >= {"users", "entities"}
    assert all(cost.epsilon <= 8 for cost in done.certificate.costs.values())
    phases = [entry.phase for entry in read_ledger(tmp_path / "run" / "ledger.jsonl").entries]
    assert phases.count("select") == 1
    assert all(check.ok for check in verify(tmp_path / "run"))


def test_two_processes_have_the_sums_of_one(tmp_path: Path) -> None:
    run = Run(**settings(tmp_path, "llama", "last-block", seed=0))
    (tmp_path / "run.yml").write_text(run_yaml(run))
    words = ("-m", "tacit", "train", str(tmp_path / "run.yml"), "-o", str(tmp_path / "two"))
    for done in run_ranks(*words, ranks=2, env=os.environ | {"OMP_NUM_THREADS": "1"}):
        assert done.returncode == 0, done.stderr
    train(run, tmp_path / "one")
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, two[name], rtol=1e-3, atol=1e-4)


def test_what_is_kept_of_a_token_depends_on_the_adapter_and_its_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tacit.training.phases.run_context import encode

    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    given = settings(tmp_path, "llama", "last-block")
    for changes in ({}, {"adapter_tokens": 100}, {"adapter": "map"}, {}):
        ctx = open_run(Run(**given | {"model": given["model"] | changes}))
        encode(ctx, ctx.part)
    assert len(list((tmp_path / "cache" / "activations").glob("*.npy"))) == 3


def test_what_is_trained_is_said(tmp_path: Path) -> None:
    ctx = open_run(Run(**settings(tmp_path, "llama", "map")))
    said = weights.trained_in_words(ctx.model)
    assert said.startswith("trains 233 of ")
    assert said.endswith("numbers: mix.weight 8 x 4, spread.bias 201")
