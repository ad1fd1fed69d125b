"""The Trainer of transformers under a plan: weights, refusals, folders that load elsewhere."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    TrainerCallback,
    TrainingArguments,
)

import tacit
from support.small import dialogs
from tacit.errors import DataError, UsageError
from tacit.hf import PrivateTrainer
from tacit.hf.losses import record_losses
from tacit.privacy.ledger import read_ledger
from tacit.training.models.tokens import byte_level_bpe
from tacit.training.phases import session
from tacit.training.phases.run_context import encode, open_run
from tacit.training.settings import Run

RECORDS, USERS = 40, 10
PLAN = {"protect": "users", "epsilon": 8, "steps": 3, "user_rate": 0.4, "users": USERS}
WORDS = ["hello", "where", "is", "my", "order", "thanks", "a", "lot"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    made = byte_level_bpe([" ".join(WORDS)] * 20, 300)
    made.pad_token = made.eos_token
    return made


def texts(tokenizer: PreTrainedTokenizerFast, label: str) -> Dataset:
    """Short texts of several lengths; labels of next words, texts or tokens."""
    rows = []
    for n in range(RECORDS):
        ids = tokenizer(" ".join(WORDS[: 2 + n % 5]))["input_ids"]
        own = {"words": ids, "classes": n % 3, "tags": [n % 2] * len(ids)}[label]
        rows.append({"input_ids": ids, "labels": own, "who": f"user {n % USERS}"})
    return Dataset.from_list(rows)


def next_words(tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Tensor]]:
    def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        made = tokenizer.pad([{"input_ids": row["input_ids"]} for row in rows], return_tensors="pt")
        return {**made, "labels": made["input_ids"].masked_fill(made["attention_mask"] == 0, -100)}

    return collate


def gpt2(words: int) -> nn.Module:
    torch.manual_seed(1)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=words, n_positions=32, n_embd=8, n_layer=1, n_head=2)
    )


def llama(words: int) -> Any:
    torch.manual_seed(1)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=words, hidden_size=8, intermediate_size=12, num_hidden_layers=1,
            num_attention_heads=2, max_position_embeddings=32,
        )
    )  # fmt: skip


def lora(words: int) -> nn.Module:
    made = llama(words)
    torch.manual_seed(2)
    return get_peft_model(made, LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))


def bert(kind: Any, labels: int) -> Callable[[int], nn.Module]:
    def make(words: int) -> nn.Module:
        torch.manual_seed(1)
        config = BertConfig(  # type: ignore[call-arg]
            vocab_size=words, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=12, max_position_embeddings=32, num_labels=labels,
        )  # fmt: skip
        return kind(config)

    return make


def arguments(folder: Path, **changes: Any) -> TrainingArguments:
    given: dict[str, Any] = {
        "per_device_train_batch_size": 8, "learning_rate": 0.1, "use_cpu": True, "report_to": [],
        "disable_tqdm": True, "logging_steps": 1, "save_strategy": "no",
    }  # fmt: skip
    return TrainingArguments(str(folder), **given | changes)


def trainer(
    folder: Path, tokenizer: Any, *, made: Any = gpt2, label: str = "words",
    kind: type[PrivateTrainer] = PrivateTrainer, **changes: Any,
) -> PrivateTrainer:  # fmt: skip
    named = (set(TrainingArguments.__dataclass_fields__) - {"seed"}) & set(changes)
    args = arguments(folder, **{name: changes.pop(name) for name in named})
    collators: dict[str, Any] = {
        "words": next_words(tokenizer), "classes": DataCollatorWithPadding(tokenizer),
        "tags": DataCollatorForTokenClassification(tokenizer),
    }  # fmt: skip
    given: dict[str, Any] = {
        "plan": PLAN, "owners": "who", "train_dataset": texts(tokenizer, label), "seed": 5,
        "data_collator": collators[label], "processing_class": tokenizer,
    }  # fmt: skip
    return kind(changes.pop("model", None) or made(len(tokenizer)), args, **given | changes)


def weights(model: Any) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


# --- what it trains ---------------------------------------------------------------------------


@pytest.mark.parametrize("protect", ["users", "records"])
def test_the_same_weights_ledger_and_certificate(protect: str, tmp_path: Path) -> None:
    """As `tacit train`, with dropout, batches cut elsewhere and a schedule."""
    base = dialogs(tmp_path) | {
        "model": {"kind": "gpt2", "config": {"layers": 1, "hidden_size": 8, "heads": 2}}
    }
    plan = {"protect": protect, "epsilon": 8, "steps": 3} | (
        {"user_rate": 0.3, "users": 50} if protect == "users" else
        {"record_rate": 0.1, "records": 120}
    )  # fmt: skip
    run = Run(**base, plan=plan, optimizer={"learning_rate": 0.3, "momentum": 0.0})
    theirs = session.train(run, tmp_path / "theirs")
    ctx = open_run(run)
    examples = encode(ctx, ctx.part)
    own = PrivateTrainer(
        ctx.model,
        arguments(
            tmp_path / "own", optim="sgd", learning_rate=0.3, lr_scheduler_type="constant",
            remove_unused_columns=False, per_device_train_batch_size=7,
        ),
        plan=plan, owners=ctx.part.column("user").to_pylist() if protect == "users" else None,
        train_dataset=range(len(examples)), seed=run.seed, processing_class=ctx.tokenizer,
        data_collator=lambda rows: {
            name: value for name, value in examples.batch(rows).items() if name != "record"
        },
    )  # fmt: skip
    own.train()
    for place, tensor in load_file(tmp_path / "own" / "model.safetensors").items():
        expected = load_file(theirs.folder / "model.safetensors")[place]
        torch.testing.assert_close(tensor, expected, rtol=1e-6, atol=1e-6)
    ledgers = [read_ledger(place / "ledger.jsonl") for place in (own.folder, theirs.folder)]
    assert ledgers[0].releases() == ledgers[1].releases()
    for name in ("standing", "sentence", "costs", "plan", "not_covered", "phases", "delta"):
        assert getattr(own.certificate, name) == getattr(theirs.certificate, name), name


CASES: dict[str, dict[str, Any]] = {
    "next words": {},
    "next words of llama": {"made": llama},
    "adapters": {"made": lora},
    "classes": {"made": bert(BertForSequenceClassification, 3), "label": "classes"},
    "numbers": {"made": bert(BertForSequenceClassification, 1), "label": "classes"},
    "tags": {"made": bert(BertForTokenClassification, 2), "label": "tags"},
}


@pytest.mark.parametrize("name", CASES)
def test_tasks(name: str, tokenizer: Any, tmp_path: Path) -> None:
    private = trainer(tmp_path / "run", tokenizer, **CASES[name])
    before = weights(private.model)
    done = private.train()
    assert done.global_step == 3
    learnt = {n for n, p in private.model.named_parameters() if p.requires_grad}
    after = weights(private.model)
    assert {n for n in after if not torch.equal(after[n], before[n])} == learnt
    assert all(check.ok for check in tacit.verify(private.folder))
    assert "Not for release" in (private.folder / "certificate.md").read_text()
    assert private.spent().startswith("epsilon <= ")


def test_the_folder_loads_in_plain_libraries(tokenizer: Any, tmp_path: Path) -> None:
    private = trainer(tmp_path / "run", tokenizer, seed=None)
    private.train()
    assert private.certificate.standing == "proved"
    sent = private.export(tmp_path / "sent")
    assert all(check.ok for check in tacit.verify(sent))
    names = {path.name for path in sent.iterdir()}
    assert {"README.md", "certificate.json", "ledger.jsonl", "model.safetensors"} <= names
    assert not {"account.json", "checkpoint.safetensors"} & names
    ids = AutoTokenizer.from_pretrained(sent)("hello", return_tensors="pt")["input_ids"]
    loaded, own = AutoModelForCausalLM.from_pretrained(sent).eval(), private.model.eval()
    torch.testing.assert_close(loaded(ids).logits, own(ids).logits)
    with pytest.raises(UsageError, match="not empty"):
        private.export(sent)


def test_adapters_are_kept_apart(tokenizer: Any, tmp_path: Path) -> None:
    private = trainer(tmp_path / "run", tokenizer, made=lora)
    private.train()
    sent = private.export(tmp_path / "sent")
    assert (sent / "adapter_model.safetensors").exists()
    assert not (sent / "model.safetensors").exists()
    loaded = PeftModel.from_pretrained(llama(len(tokenizer)), sent).eval()
    ids = torch.tensor([[3, 4, 5]])
    torch.testing.assert_close(loaded(ids).logits, private.model.eval()(ids).logits)


def test_a_classifier_is_evaluated_and_loaded(tokenizer: Any, tmp_path: Path) -> None:
    data = texts(tokenizer, "classes")
    private = trainer(
        tmp_path / "run", tokenizer, **CASES["classes"], eval_dataset=data.select(range(8)),
        eval_strategy="steps", eval_steps=2,
        compute_metrics=lambda it: {"right": (it.predictions.argmax(1) == it.label_ids).mean()},
    )  # fmt: skip
    private.train()
    scored = [one for one in private.private_logs if "eval_right" in one]
    assert [one["step"] for one in scored] == [2, 3]
    assert private.evaluate()["eval_right"] == scored[-1]["eval_right"]
    assert private.predict(data.select(range(4))).predictions.shape == (4, 3)
    AutoModelForSequenceClassification.from_pretrained(private.folder)


# --- what callbacks see -----------------------------------------------------------------------


class Listening(TrainerCallback):
    def __init__(self, stop_after: int | None = None) -> None:
        self.heard: list[dict[str, float]] = []
        self.stop_after = stop_after

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.heard.append(dict(logs))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop |= state.global_step == self.stop_after


def test_callbacks_hear_what_may_be_shown(tokenizer: Any, tmp_path: Path) -> None:
    listening = Listening()
    private = trainer(
        tmp_path / "run", tokenizer, callbacks=[listening], lr_scheduler_type="linear",
        eval_dataset=texts(tokenizer, "words").select(range(4)), eval_strategy="steps",
        eval_steps=1,
    )  # fmt: skip
    private.train()
    assert [set(one) for one in listening.heard] == [{"learning_rate", "noise_std", "epsilon"}] * 3
    rates = [one["learning_rate"] for one in listening.heard]
    assert rates == pytest.approx([0.2 / 3, 0.1 / 3, 0.0])
    assert listening.heard[-1]["epsilon"] == pytest.approx(private.certificate.epsilon, rel=1e-3)
    assert {"loss", "clipped", "units"} <= set(private.private_logs[0])
    assert any("eval_loss" in one for one in private.private_logs)


def test_it_goes_on(tokenizer: Any, tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole", tokenizer)
    whole.train()
    stopped = trainer(tmp_path / "parts", tokenizer, callbacks=[Listening(stop_after=2)])
    assert stopped.train().global_step == 2
    assert "callback stopped" in str(stopped.training.stopped)
    assert stopped.certificate.context["stopped"] == "after 2 of 3 steps"
    again = trainer(tmp_path / "parts", tokenizer)
    with pytest.raises(UsageError, match="in its own folder"):
        again.train(resume_from_checkpoint="elsewhere")
    assert again.train(resume_from_checkpoint=True).global_step == 3
    assert len(read_ledger(again.folder / "ledger.jsonl").entries) == 3
    for name, tensor in weights(whole.model).items():
        torch.testing.assert_close(weights(again.model)[name], tensor, rtol=1e-6, atol=1e-6)
    with pytest.raises(DataError, match="no checkpoint"):
        trainer(tmp_path / "new", tokenizer).train(resume_from_checkpoint=True)


def test_checkpoints_come_as_the_arguments_say(tokenizer: Any, tmp_path: Path) -> None:
    class Crash(TrainerCallback):
        def on_save(self, *given: Any, **_: Any) -> None:
            raise KeyboardInterrupt

    private = trainer(
        tmp_path / "run", tokenizer, save_strategy="steps", save_steps=2, callbacks=[Crash()]
    )
    with pytest.raises(KeyboardInterrupt):
        private.train()
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
    assert len(read_ledger(tmp_path / "run" / "ledger.jsonl").entries) == 2


# --- refused ----------------------------------------------------------------------------------


def data_of(records: int) -> Any:
    return list(range(records))


class OwnLoader(PrivateTrainer):
    def get_train_dataloader(self) -> Any:
        return DataLoader(self._dataset, shuffle=True)


class OwnLoss(PrivateTrainer):
    def compute_loss(self, *given: Any, **named: Any) -> Any:
        return None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fp16": True}, "fp16=True scales losses, and skips steps"),
        ({"bf16": True}, "bf16=True casts"),
        ({"train_sampling_strategy": "group_by_length"}, "train_sampling_strategy=group_by_length"),
        ({"load_best_model_at_end": True, "eval_strategy": "steps", "save_strategy": "steps"},
         "keeps what scores best"),
        ({"callbacks": [EarlyStoppingCallback()]}, "EarlyStoppingCallback stops by"),
        ({"max_grad_norm": 0.3}, r"set plan\.clip_norm"),
        ({"num_train_epochs": 7}, r"set plan\.steps"),
        ({"max_steps": 100}, "the plan has 3 steps"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps"}, "follows a loss"),
        ({"label_smoothing_factor": 0.1}, "override record_losses"),
        ({"logging_strategy": "epoch"}, "drawn anew; give steps"),
        ({"gradient_checkpointing": True}, "runs layers twice"),
        ({"push_to_hub": True}, r"trainer\.export"),
        ({"compute_loss_func": print}, "override record_losses"),
        ({"model_init": print}, "give the model"),
        ({"kind": OwnLoader}, "get_train_dataloader of its own"),
        ({"kind": OwnLoss}, "compute_loss of its own"),
        ({"train_dataset": DataLoader(data_of(2), shuffle=True)}, r"loader\.dataset"),
        ({"train_dataset": iter([1])}, "cannot be drawn from"),
        ({"owners": None}, "needs owners"),
        ({"owners": "whom"}, "which has: input_ids, labels, who. Did you mean 'who'"),
    ],
)  # fmt: skip
def test_what_would_void_the_promise(
    changes: dict[str, Any], said: str, tokenizer: Any, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        trainer(tmp_path / "run", tokenizer, **changes)
    assert len(re.findall(r"[.](?: |$)", str(refused.value))) == 1  # one sentence
    assert not (tmp_path / "run").exists()


def test_what_shows_in_the_first_batch(tokenizer: Any, tmp_path: Path) -> None:
    data = texts(tokenizer, "classes").remove_columns("labels")
    collate = DataCollatorWithPadding(tokenizer)
    unlabelled = trainer(tmp_path / "a", tokenizer, data_collator=collate, train_dataset=data)
    with pytest.raises(UsageError, match="have no labels"):
        unlabelled.train()
    bare = BertModel(BertConfig(vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1,
                                num_attention_heads=2, intermediate_size=12))  # fmt: skip
    with pytest.raises(UsageError, match="BertModel is not a model for next words"):
        trainer(tmp_path / "b", tokenizer, model=bare).train()
    with pytest.raises(UsageError, match="no loader of training records"):
        trainer(tmp_path / "c", tokenizer).get_train_dataloader()


def test_several_labels_at_once() -> None:
    class Model(nn.Module):
        config = type("Config", (), {"problem_type": "multi_label_classification"})

        def forward(self, x: Tensor) -> Any:
            return type("Output", (), {"logits": x})

    class ToyForSequenceClassification(Model):
        pass

    logits, labels = torch.randn(4, 3), torch.randint(0, 2, (4, 3))
    found = record_losses(ToyForSequenceClassification(), {"x": logits, "labels": labels})
    each = [
        F.binary_cross_entropy_with_logits(a, b.float())
        for a, b in zip(logits, labels, strict=True)
    ]
    torch.testing.assert_close(found, torch.stack(each))
    with pytest.raises(UsageError, match="override record_losses"):
        record_losses(Model(), {"x": logits, "labels": labels})
