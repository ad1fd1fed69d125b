"""Models: round trips, what is trained, what is refused, and folders that stand on their own."""

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from support.forking import run_python
from support.small import dialogs
from tacit.errors import DataError, MissingExtra, UsageError
from tacit.packaged_models import PACKAGES, find_packaged
from tacit.training.evaluation import predicting
from tacit.training.evaluation.generation import Sampling, complete, next_words
from tacit.training.models import networks, weights
from tacit.training.models.recurrent import AWD_LSTM, LSTMConfig, LSTMForCausalLM
from tacit.training.models.registries import TaskName
from tacit.training.models.tokens import byte_level_bpe
from tacit.training.models.weights import save_model, snapshot
from tacit.training.phases.run_context import open_run
from tacit.training.settings import Run
from tacit.training.tasks.measuring import forward
from tacit.training.tasks.tasks import NextWord

TOKENIZER = byte_level_bpe(["a small text of our own"] * 3, size=280)
LABELS = ("no", "yes", "maybe")
KINDS: dict[str, dict[str, Any]] = {
    "lstm": {"kind": "lstm", "embedding_size": 8, "hidden_size": 8},
    "awd-lstm": {"kind": "awd-lstm", "embedding_size": 6, "hidden_size": 10, "projection": True},
    "gpt2": {"kind": "gpt2", "layers": 1, "hidden_size": 8, "heads": 2, "context": 16},
    "bert": {"kind": "bert", "layers": 1, "hidden_size": 8, "heads": 2, "context": 16},
    "llama": {"kind": "llama", "layers": 1, "hidden_size": 8, "heads": 2, "context": 16},
}
TASKS: tuple[TaskName, ...] = ("next-word", "classification", "regression", "tagging")
PAIRS = [(k, t) for k in KINDS for t in TASKS if (k, t) != ("bert", "next-word")]


def scratch(kind: str, task: TaskName, seed: int = 0) -> PreTrainedModel:
    labels = None if task in ("next-word", "regression") else LABELS
    return networks.scratch_model(KINDS[kind], task, tokenizer=TOKENIZER, labels=labels, seed=seed)


def batch(rows: int = 2, width: int = 5) -> dict[str, torch.Tensor]:
    ids = torch.arange(rows * width).reshape(rows, width) + 4
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def logits(model: nn.Module, given: dict[str, torch.Tensor]) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        return forward(model, given)


@pytest.mark.parametrize(("kind", "task"), PAIRS)
def test_saved_and_loaded_is_the_same(kind: str, task: TaskName, tmp_path: Path) -> None:
    model = scratch(kind, task)
    weights.save_model(model, TOKENIZER, tmp_path / "m")
    labels = None if task in ("next-word", "regression") else LABELS
    back = networks.load_model(tmp_path / "m", task, labels=labels)
    assert type(back) is type(model)
    assert torch.equal(logits(model, batch()), logits(back, batch()))
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= {
        file.name for file in (tmp_path / "m").iterdir()
    }
    if task in ("classification", "tagging"):
        assert back.config.id2label == dict(enumerate(LABELS))


@pytest.mark.parametrize("kind", KINDS)
def test_same_seed_same_weights(kind: str) -> None:
    state = torch.get_rng_state()
    one, two, other = (scratch(kind, "classification", seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert weights.snapshot(one) == weights.snapshot(two)
    assert weights.snapshot(one) != weights.snapshot(other)


@pytest.mark.parametrize(
    ("sizes", "tied"),
    [
        ({"embedding_size": 8, "hidden_size": 8}, True),
        ({"embedding_size": 8, "hidden_size": 12}, False),
        ({"embedding_size": 8, "hidden_size": 12, "layers": 2, "last_hidden_size": 8}, True),
        ({"embedding_size": 8, "hidden_size": 12, "projection": True}, True),
        ({"embedding_size": 8, "hidden_size": 8, "tie_word_embeddings": False}, False),
    ],
)
def test_weights_are_tied_where_sizes_allow(
    sizes: dict[str, Any], tied: bool, tmp_path: Path
) -> None:
    model = LSTMForCausalLM(LSTMConfig(vocab_size=20, **sizes))
    weights.save_model(model, None, tmp_path / "m")
    back = networks.load_model(tmp_path / "m", "next-word")
    for one in (model, back):
        assert (one.head.weight is one.body.embedding.weight) == tied
    given = {"input_ids": torch.arange(6).reshape(2, 3)}
    assert torch.equal(model.eval()(**given).logits, back.eval()(**given).logits)


def test_the_papers_awd_lstm() -> None:
    config = LSTMConfig(**AWD_LSTM.defaults, vocab_size=50)
    with torch.device("meta"):
        model = LSTMForCausalLM(config)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert shapes["body.embedding.weight"] == (50, 100)
    assert [shapes[f"body.layers.{n}.weight_ih_l0"] for n in range(3)] == [
        (4600, 100),
        (4600, 1150),
        (4600, 1150),
    ]
    assert shapes["head.weight"] == (50, 1150)
    assert (config.embedding_dropout, config.weight_drop, config.output_dropout) == (0.1, 0.3, 0.5)


def test_weights_begin_as_in_the_paper() -> None:
    model = LSTMForCausalLM(LSTMConfig(vocab_size=300, embedding_size=20, hidden_size=25))
    assert 0.099 < model.body.embedding.weight.abs().max() <= 0.1
    for parameter in (*model.body.layers.parameters(), model.head.weight):
        assert 0.15 < parameter.abs().max() <= 0.2
    assert not model.head.bias.any()


def test_state_carries_on_where_a_text_was_cut() -> None:
    model = scratch("awd-lstm", "next-word").eval()
    ids = torch.arange(4, 14).reshape(1, 10)
    whole = model(ids)
    first = model(ids[:, :6])
    rest = model(ids[:, 6:], state=first.state)
    assert torch.allclose(torch.cat([first.logits, rest.logits], 1), whole.logits, atol=1e-6)
    for (h, c), (h2, c2) in zip(rest.state, whole.state, strict=True):
        assert torch.allclose(h, h2, atol=1e-6)
        assert torch.allclose(c, c2, atol=1e-6)


def _dropping(**shares: float) -> LSTMForCausalLM:
    sizes: dict[str, Any] = {"vocab_size": 30, "embedding_size": 16, "hidden_size": 16, "layers": 2}
    return LSTMForCausalLM(LSTMConfig(**(sizes | shares))).train()


@pytest.mark.parametrize(
    "share",
    ["embedding_dropout", "input_dropout", "hidden_dropout", "output_dropout", "weight_drop"],
)
def test_each_dropout_acts_in_training_only(share: str) -> None:
    model = _dropping(**{share: 0.5})
    ids = torch.arange(4, 24).reshape(2, 10)
    torch.manual_seed(1)
    one, two = model(ids).logits, model(ids).logits
    assert not torch.equal(one, two)
    model.eval()
    assert torch.equal(model(ids).logits, model(ids).logits)


def test_weight_drop_reaches_the_weights_themselves() -> None:
    model = _dropping(weight_drop=0.5)
    model(torch.arange(4, 24).reshape(2, 10)).logits.sum().backward()
    for layer in model.body.layers:
        zero = (layer.weight_hh_l0.grad == 0).float().mean()
        assert 0.3 < zero < 0.7
        assert (layer.weight_ih_l0.grad != 0).all()


def test_variational_dropout_keeps_its_mask_over_time() -> None:
    model = _dropping(output_dropout=0.5)
    x, _ = model.body(torch.arange(4, 24).reshape(2, 10))
    gone = x == 0
    assert torch.equal(gone, gone[:, :1].expand_as(gone))
    assert not torch.equal(gone[0], gone[1])
    assert 0.2 < gone.float().mean() < 0.8


def test_embedding_dropout_takes_whole_words() -> None:
    model = _dropping(embedding_dropout=0.5)
    x = model.body._embed(torch.arange(30).repeat(2, 2))
    gone = (x == 0).all(-1)
    assert torch.equal(gone, (x == 0).any(-1))
    assert torch.equal(gone[:, :30], gone[:, 30:])
    assert torch.equal(gone[0], gone[1])
    assert gone.any()
    assert not gone.all()


@pytest.mark.parametrize("kind", ["lstm", "awd-lstm", "gpt2", "llama"])
def test_later_words_change_nothing_before_them(kind: str) -> None:
    model = scratch(kind, "next-word")
    one, two = batch(), batch()
    two["input_ids"] = two["input_ids"].clone()
    two["input_ids"][:, 3:] += 50
    a, b = logits(model, one), logits(model, two)
    assert torch.allclose(a[:, :3], b[:, :3], atol=1e-6)
    assert not torch.allclose(a[:, 3:], b[:, 3:], atol=1e-6)


def test_a_model_that_sees_the_word_is_refused() -> None:
    with pytest.raises(UsageError, match="does not serve task=next-word"):
        networks.scratch_model(KINDS["bert"], "next-word", tokenizer=TOKENIZER)
    with pytest.raises(UsageError, match="sees the word"):
        networks.check_causal(scratch("bert", "masked-word"))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"kind": "parrot"}, "kind=parrot"),
        ({"kind": "gpt2", "layerz": 2}, "'layerz'"),
        ({"kind": "gpt2", "layers": 1, "hidden_size": 9, "heads": 2}, "heads divide"),
        ({"kind": "lstm", "layers": 0}, "layers=0"),
        ({"kind": "lstm", "hidden_size": "big"}, "hidden_size='big'"),
        ({"kind": "lstm", "weight_drop": 1.0}, "weight_drop=1.0"),
        ({"kind": "llama", "dropout": 0.1}, "'dropout'"),
        ({"kind": "lstm", "pooling": "sum"}, "kind=lstm"),
    ],
)
def test_bad_configs_are_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        networks.scratch_model(config, "next-word", tokenizer=TOKENIZER)


def test_bad_tasks_are_refused() -> None:
    with pytest.raises(UsageError, match="task=poetry"):
        networks.scratch_model(KINDS["lstm"], "poetry", tokenizer=TOKENIZER)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="needs labels"):
        networks.scratch_model(KINDS["lstm"], "tagging", tokenizer=TOKENIZER)


def test_dropouts_of_a_scratch_transformer_are_settings() -> None:
    config = KINDS["gpt2"] | {"dropout": 0.0, "attention_dropout": 0.25}
    made = networks.scratch_model(config, "next-word", tokenizer=TOKENIZER).config
    assert (made.resid_pdrop, made.embd_pdrop, made.attn_pdrop) == (0.0, 0.0, 0.25)
    assert made.vocab_size == len(TOKENIZER)
    assert made.eos_token_id == TOKENIZER.eos_token_id


def test_a_language_model_gets_a_new_head_for_a_new_task(tmp_path: Path) -> None:
    weights.save_model(scratch("gpt2", "next-word"), TOKENIZER, tmp_path / "m")
    model = networks.load_model(
        tmp_path / "m", "classification", labels=LABELS, pad_token_id=TOKENIZER.pad_token_id
    )
    assert logits(model, batch()).shape == (2, 3)
    weights.save_model(model, TOKENIZER, tmp_path / "c")
    two = networks.load_model(tmp_path / "c", "classification", labels=("a", "b"))
    assert logits(two, batch()).shape == (2, 2)
    same = networks.load_model(tmp_path / "c", "classification", labels=LABELS)
    assert [model.new_head, two.new_head, same.new_head] == [True, True, False]
    body = "transformer.wte.weight"
    assert weights.snapshot(two)[body] == weights.snapshot(model)[body]


def test_a_classifier_is_no_language_model(tmp_path: Path) -> None:
    weights.save_model(scratch("lstm", "classification"), TOKENIZER, tmp_path / "m")
    with pytest.raises(DataError, match="no weights of the right size"):
        networks.load_model(tmp_path / "m", "next-word")


def test_folders_that_are_no_models_get_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        networks.load_model(tmp_path / "no", "next-word")
    with pytest.raises(DataError, match="not the folder of a model"):
        networks.load_model(tmp_path, "next-word")
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(DataError, match="not the folder of a model"):
        networks.load_model(tmp_path, "next-word")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(DataError, match="no weights"):
        networks.load_model(tmp_path, "next-word")
    (tmp_path / "model.safetensors").write_bytes(b"not tensors")
    with pytest.raises(DataError, match="holds no model"):
        networks.load_model(tmp_path, "next-word")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "parrot"}))
    with pytest.raises(DataError, match="holds no model"):
        networks.load_model(tmp_path, "next-word")


def test_a_gguf_file_needs_its_package(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises((MissingExtra, DataError), match=r"gguf|holds no model"):
        networks.load_model(tmp_path / "m.gguf", "next-word")


def test_packaged_models_are_found_where_they_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="neither an installed package"):
        find_packaged("nobodys-model")
    for name in {*PACKAGES, *PACKAGES.values()}:
        with contextlib.suppress(MissingExtra):  # it may be installed here
            assert find_packaged(name).exists()
    weights.save_model(scratch("bert", "classification"), None, tmp_path / "ourmodel" / "data")
    info = tmp_path / "nobodys_model-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nobodys-model\nVersion: 1.0\n")
    (info / "RECORD").write_text("ourmodel/data/config.json,,\nourmodel/data/model.safetensors,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_packaged("nobodys-model") == tmp_path / "ourmodel" / "data"
    (tmp_path / "ourmodel" / "data" / "model.safetensors").unlink()
    with pytest.raises(DataError, match="holds neither"):
        find_packaged("nobodys-model")


@pytest.mark.parametrize(
    ("kind", "task"),
    [
        ("gpt2", "next-word"),
        ("llama", "next-word"),
        ("bert", "classification"),
        ("bert", "tagging"),
    ],
)
def test_lora_trains_adapters_and_new_heads_only(kind: str, task: TaskName, tmp_path: Path) -> None:
    model = weights.with_lora(scratch(kind, task), 2)
    names = weights.check_trainable(model, lambda: forward(model, batch()).square().flatten())
    assert all("lora_" in name or "classifier" in name for name in names)
    assert any("classifier" in name for name in names) == (task != "next-word")
    before = weights.snapshot(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=0.05)
    for _ in range(4):  # the first step moves one factor only: the other begins at zero
        forward(model, batch()).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    found = weights.moved(before, model)
    assert set(found.moved) == set(names)
    now = logits(model, batch())

    weights.save_model(model, TOKENIZER, tmp_path / "m")
    labels = None if task == "next-word" else LABELS
    back = networks.load_model(tmp_path / "m", task, labels=labels)
    assert torch.allclose(logits(back, batch()), now, atol=1e-5)
    assert weights.snapshot(model) == weights.snapshot(model)
    assert torch.equal(logits(model, batch()), now)

    weights.save_model(model, TOKENIZER, tmp_path / "a", adapter=True)
    assert (tmp_path / "a" / "adapter_model.safetensors").exists()


def test_bad_lora_is_refused() -> None:
    gpt = scratch("gpt2", "next-word")
    with pytest.raises(UsageError, match="rank=0"):
        weights.with_lora(gpt, 0)
    with pytest.raises(UsageError, match=r"q_proj is not a linear layer.*c_attn"):
        weights.with_lora(gpt, 2, ["q_proj"])
    with pytest.raises(UsageError, match="is not a linear layer"):
        weights.with_lora(scratch("lstm", "next-word"), 2)
    with pytest.raises(UsageError, match="adapter=True"):
        weights.save_model(gpt, None, Path("nowhere"), adapter=True)
    with pytest.raises(UsageError, match="adapters already"):
        weights.with_lora(weights.with_lora(gpt, 2), 2)  # type: ignore[arg-type]


def test_only_what_is_named_is_trained() -> None:
    model = scratch("bert", "classification")
    weights.train_only(model, ["classifier", "bert.pooler.dense"])
    named = {name for name, p in model.named_parameters() if p.requires_grad}
    assert named == {
        f"{layer}.{part}"
        for layer in ("classifier", "bert.pooler.dense")
        for part in ("weight", "bias")
    }
    # Nothing that was frozen before is trained again.
    weights.train_only(model, ["bert", "classifier"])
    assert named == {name for name, p in model.named_parameters() if p.requires_grad}
    with pytest.raises(UsageError, match=r"class, and no parameter begins so; .*bert, classifier"):
        weights.train_only(model, ["class"])


def test_a_parameter_without_gradient_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(UsageError, match=r"1\.weight is trainable but gets no gradient"):
        weights.check_trainable(model, lambda: model[0](torch.ones(1, 2)))
    assert list(weights.check_trainable(model)) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    model.requires_grad_(False)
    with pytest.raises(UsageError, match="No parameter"):
        weights.check_trainable(model)


def test_moved_says_which() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    before = weights.snapshot(model)
    with torch.no_grad():
        model[1].bias[0] += 1e-6
    found = weights.moved(before, model)
    assert found.moved == ("1.bias",)
    assert len(found.still) == 3
    with pytest.raises(UsageError, match="different parameters"):
        weights.moved(before, nn.Linear(2, 2))


def test_saving_again_replaces_whole_files_and_leaves_others(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    weights.save_model(scratch("gpt2", "next-word", 1), TOKENIZER, folder)
    (folder / "ledger.jsonl").write_text("kept")
    model = scratch("gpt2", "next-word", 2)
    weights.save_model(model, TOKENIZER, folder)
    assert (folder / "ledger.jsonl").read_text() == "kept"
    assert weights.snapshot(networks.load_model(folder, "next-word")) == weights.snapshot(model)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


PLAIN = """
import sys, torch, transformers
for kind, folder in (("CausalLM", "gpt2"), ("CausalLM", "llama"),
                     ("SequenceClassification", "bert")):
    auto = getattr(transformers, "AutoModelFor" + kind)
    model = auto.from_pretrained(f"{sys.argv[1]}/{folder}", local_files_only=True).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(f"{sys.argv[1]}/{folder}")
    ids = torch.arange(4, 9).reshape(1, 5)
    print(folder, len(tokenizer("a small text")["input_ids"]), model(ids).logits.sum().item())
assert not any(name == "tacit" or name.startswith("tacit.") for name in sys.modules)
"""


def test_plain_transformers_loads_what_we_save(tmp_path: Path) -> None:
    expected = []
    for kind in ("gpt2", "llama", "bert"):
        model = scratch(kind, "classification" if kind == "bert" else "next-word")
        if kind == "gpt2":
            model = weights.with_lora(model, 2)  # type: ignore[assignment]
        weights.save_model(model, TOKENIZER, tmp_path / kind)
        length = len(TOKENIZER("a small text")["input_ids"])
        expected.append((kind, length, logits(model, batch(1)).sum().item()))
    done = run_python("-c", PLAIN, str(tmp_path), env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    for line, (kind, length, total) in zip(done.stdout.splitlines(), expected, strict=True):
        name, count, found = line.split()
        assert (name, int(count)) == (kind, length)
        assert float(found) == pytest.approx(total, abs=1e-4)


@pytest.mark.parametrize("kind", ["lstm", "gpt2"])
def test_next_words_and_completions(kind: str) -> None:
    model = scratch(kind, "next-word")
    words = next_words(model, TOKENIZER, "a small", top=len(TOKENIZER))
    assert sum(p for _, p in words) == pytest.approx(1, abs=1e-5)
    assert [p for _, p in words] == sorted((p for _, p in words), reverse=True)
    drawn = Sampling(seed=5)
    made = [complete(model, TOKENIZER, ["a small"], drawn, tokens=30) for _ in range(2)]
    assert made[0] == made[1]
    greedy, top, few = (
        complete(model, TOKENIZER, ["a"], how, tokens=1)
        for how in (Sampling(0), Sampling(top=1, seed=9), Sampling(top_p=1e-6, seed=9))
    )
    assert greedy == top == few
    with pytest.raises(UsageError, match="top_p=0"):
        complete(model, TOKENIZER, ["a"], Sampling(top_p=0))
    with pytest.raises(UsageError, match="tokens=0"):
        complete(model, TOKENIZER, ["a"], Sampling(), tokens=0)
    with pytest.raises(UsageError, match="stop word is empty"):
        complete(model, TOKENIZER, ["a"], Sampling(stop=("",)))
    with pytest.raises(UsageError, match="top=0"):
        next_words(model, TOKENIZER, "a", top=0)


@pytest.mark.parametrize("kind", ["lstm", "awd-lstm", "gpt2", "llama"])
@pytest.mark.parametrize("text", ["a small", "", "a small text of our own " * 4], ids=len)
def test_the_likeliest_completion_is_that_of_whole_passes(
    kind: str, text: str, tmp_path: Path
) -> None:
    """With a cache or a state, past the room of a model, and from what was saved."""
    model = scratch(kind, "next-word", seed=3)
    for parameter in model.parameters():
        parameter.data.mul_(4)  # far from uniform, so that rounding decides nothing
    room = getattr(model.config, "max_position_embeddings", None) or 10**6
    ids = [TOKENIZER.bos_token_id, *TOKENIZER(text, add_special_tokens=False)["input_ids"]]
    given = len(ids)
    while len(ids) < given + 20:
        read = torch.tensor([ids[-room:]])
        token = int(
            logits(model, {"input_ids": read, "attention_mask": read * 0 + 1})[0, -1].argmax()
        )
        if token == TOKENIZER.eos_token_id:
            break
        ids.append(token)
    weights.save_model(model, TOKENIZER, tmp_path / "m")
    for one in (model, networks.load_model(tmp_path / "m", "next-word")):
        (found,) = complete(one, TOKENIZER, [text], Sampling(0), tokens=20)
        assert found == TOKENIZER.decode(ids[given:])


@pytest.mark.parametrize("kind", ["lstm", "awd-lstm", "gpt2", "llama"])
def test_texts_go_on_together_as_they_do_alone(kind: str) -> None:
    """Of several lengths, beyond the room of a model, and each to its own end."""
    model = scratch(kind, "next-word", seed=3)
    for parameter in model.parameters():
        parameter.data.mul_(4)
    texts = ["a small", "text of", "a small text of our own " * 3, "", "a small"]
    together = complete(model, TOKENIZER, texts, Sampling(0), tokens=25)
    alone = [complete(model, TOKENIZER, [text], Sampling(0), tokens=25)[0] for text in texts]
    assert together == alone
    for stop in (together[0][3:5], together[2][10:12]):
        how = Sampling(0, stop=("never said", stop))
        stopped = complete(model, TOKENIZER, texts, how, tokens=25)
        assert stopped == [text.partition(stop)[0] for text in together]


def test_a_stop_word_ends_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = scratch("gpt2", "next-word", seed=3), []
    forwarded = type(model).forward
    monkeypatch.setattr(
        type(model), "forward", lambda self, *a, **k: calls.append(1) or forwarded(self, *a, **k)
    )
    (whole,) = complete(model, TOKENIZER, ["a small"], Sampling(0), tokens=20)
    most = len(calls)
    calls.clear()
    complete(model, TOKENIZER, ["a small"], Sampling(0, stop=(whole[:2],)), tokens=20)
    assert len(calls) < most / 2


def test_an_lstm_goes_on_from_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    model, widths = scratch("lstm", "next-word"), []
    forwarded = type(model.body).forward
    monkeypatch.setattr(
        type(model.body),
        "forward",
        lambda self, ids, state=None: widths.append(ids.shape[1]) or forwarded(self, ids, state),
    )
    complete(model, TOKENIZER, ["a small"], Sampling(0), tokens=4)
    assert widths[0] > 1
    assert set(widths[1:]) == {1}
    with pytest.raises(ValueError, match="only supports"):
        model.generate(torch.tensor([[5, 6]]), num_beams=2, max_new_tokens=2)


def test_weights_that_stay_frozen_are_the_same_in_every_process(tmp_path: Path) -> None:
    """No checkpoint holds them, and no other process is told them: they have to be made alike."""
    settings = dialogs(tmp_path, 20) | {"seed": None, "plan": {"protect": "users", "epsilon": 8}}
    settings["plan"] |= {"steps": 2, "user_rate": 0.5, "users": 20}
    settings["model"] = {"kind": "gpt2", "config": {"n_embd": 8, "n_layer": 1, "n_head": 2}}
    settings["model"]["lora_rank"] = 2
    one, other = (snapshot(open_run(Run(**settings)).model) for _ in range(2))
    assert one == other


def test_what_was_read_from_a_gguf_file_can_be_saved(tmp_path: Path) -> None:
    """Transformers marks it as quantized, though its weights are plain floats by then."""
    tokenizer = byte_level_bpe(None, 300)
    sizes = {"kind": "gpt2", "hidden_size": 8, "layers": 1, "heads": 2}
    model = networks.scratch_model(sizes, "next-word", tokenizer=tokenizer)
    marked: Any = model
    marked.hf_quantizer = SimpleNamespace(quantization_config=SimpleNamespace(quant_method="gguf"))
    with pytest.raises(ValueError, match="not serializable"):
        model.save_pretrained(tmp_path / "before")
    networks.no_longer_quantized(model)
    save_model(model, tokenizer, tmp_path / "after")
    assert (tmp_path / "after" / "model.safetensors").exists()


@pytest.mark.parametrize("kind", ["gpt2", "lstm"])
def test_an_answer_costs_no_more_for_a_longer_text(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fits is read once; each new token is one more, and not one more pass over all."""
    model, widths = scratch(kind, "next-word"), []
    model.register_forward_pre_hook(
        lambda _, args, kwargs: widths.append((kwargs.get("input_ids", *args)).shape[1]),
        with_kwargs=True,
    )
    monkeypatch.setattr(predicting, "_ENOUGH", 16)
    text = "a small text of our own " * 800
    predicting.answer(model, TOKENIZER, NextWord(), text, words=8, choices=3)
    assert sum(widths) <= 2 * 16 + 8
    widths.clear()
    predicting.answer(model, TOKENIZER, NextWord(), text, words=200, choices=3, seconds=0.0)
    assert sum(widths) <= 2 * 16 + 8, "no further token once the time is over"
