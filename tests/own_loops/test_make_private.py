"""A loop of one's own: the weights, the ledger and the certificate of `tacit train`."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, load_model
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

import tacit
from support.small import dialogs
from tacit.errors import PrivacyRefused, TacitError, UsageError
from tacit.owners.graph import graph_of
from tacit.privacy.ledger import read_ledger
from tacit.torch import GRU, LSTM, Private, Whole, make_private, rule
from tacit.training.data.training_data import find_mentions
from tacit.training.dp import dropout, grad_sample_rules
from tacit.training.models.optimizers import make_optimizer, make_schedule
from tacit.training.phases import session
from tacit.training.phases.run_context import encode, open_run
from tacit.training.settings import Run

WORDS, RECORDS, USERS = 13, 40, 10
PLAN = {"protect": "users", "epsilon": 8, "steps": 3, "user_rate": 0.4, "users": USERS}
OWNERS = [f"user {n % USERS}" for n in range(RECORDS)]


class Classifier(nn.Module):
    """A hand-written recurrent network: embedding, LSTM or GRU, dropout, head."""

    def __init__(self, kind: type[nn.Module] = LSTM) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 6)
        self.layer = kind(6, 6, batch_first=True)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.dropout(self.layer(self.embedding(ids))[0].mean(1)))


def dataset() -> TensorDataset:
    torch.manual_seed(3)
    return TensorDataset(torch.randint(0, WORDS, (RECORDS, 5)), torch.arange(RECORDS) % 3)


def classifier(kind: type[nn.Module] = LSTM) -> Classifier:
    torch.manual_seed(4)
    return Classifier(kind)


def private_of(folder: Path, model: nn.Module | None = None, **changes: Any) -> Private:
    """A training of the classifier, with the same start and the same coins every time."""
    model = classifier() if model is None else model
    given: dict[str, Any] = {
        "owners": OWNERS,
        "ledger": folder / "ledger.jsonl",
        "seed": 5,
    } | changes
    optimizer = given.pop("optimizer", None) or torch.optim.SGD(model.parameters(), lr=0.5)
    return make_private(model, optimizer, given.pop("plan", PLAN), **given)


def losses_of(private: Private, batch: Any) -> Tensor:
    ids, labels = batch
    return F.cross_entropy(private.training.model(ids), labels, reduction="none")


def train(private: Private, losses: Callable[..., Tensor] = losses_of, **how: Any) -> Private:
    for batch in private.batches(dataset(), **how):
        private.step(losses(private, batch))
    return private


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=tolerance, atol=tolerance)


# --- as tacit train ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    small = {"kind": "gpt2", "config": {"layers": 1, "hidden_size": 8, "heads": 2}}
    return dialogs(tmp_path_factory.mktemp("data")) | {"model": small}


PLANS: dict[str, dict[str, Any]] = {
    "users": {"protect": "users", "epsilon": 8, "steps": 3, "user_rate": 0.3, "users": 50},
    "records": {"protect": "records", "epsilon": 8, "steps": 3, "record_rate": 0.1, "records": 120},
    "users+entities": {
        "protect": "users+entities", "epsilon": 8, "steps": 3, "user_rate": 0.3, "clip_norm": 0.5,
    },
    "clip quantile": {
        "protect": "users", "epsilon": 8, "steps": 3, "user_rate": 0.3, "users": 50,
        "clip_quantile": 0.5,
    },
}  # fmt: skip


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_same_weights_ledger_and_certificate(
    plan: dict[str, Any], base: dict[str, Any], tmp_path: Path
) -> None:
    """Of a model with dropout, whose batches are cut elsewhere."""
    run = Run(**base, plan=plan, optimizer={"learning_rate": 0.3, "schedule": "linear"})
    theirs = session.train(run, tmp_path / "theirs")
    ctx = open_run(run)
    examples = encode(ctx, ctx.part)
    model, folder = ctx.model, tmp_path / "own"
    optimizer = make_optimizer(model, run.optimizer)
    owners: Any = ctx.part.column("user").to_pylist() if "records" not in plan["protect"] else None
    if "entities" in plan["protect"]:
        found = find_mentions(run, ctx.corpus)
        owners = graph_of(ctx.part, found.mentions, found.provenance)
    private = make_private(
        model, optimizer, plan, owners=owners, ledger=folder / "ledger.jsonl", seed=run.seed,
        schedule=make_schedule(optimizer, run.optimizer, plan["steps"]),
    )  # fmt: skip
    for rows in private.batches(range(len(examples)), at_once=7):
        private.step(ctx.task.losses(model, examples.batch(rows.numpy())))
    own = private.certificate(tokenizer=ctx.tokenizer)
    assert_same(
        load_file(folder / "model.safetensors"),
        load_file(theirs.folder / "model.safetensors"),
        1e-6,
    )
    ledgers = [read_ledger(place / "ledger.jsonl") for place in (folder, theirs.folder)]
    assert [(e.phase, e.event) for e in ledgers[0].entries] == [
        (e.phase, e.event) for e in ledgers[1].entries
    ]
    for name in ("standing", "sentence", "costs", "plan", "phases", "delta"):
        assert getattr(own, name) == getattr(theirs.certificate, name), name
    # How much was found is measured on other splits than the one that a loop is given.
    assert [one for one in theirs.certificate.not_covered if "recall" not in one] == [
        one for one in own.not_covered if "recall" not in one
    ]
    assert [check for check in tacit.verify(folder) if not check.ok] == []


def test_memory_decides_nothing(tmp_path: Path) -> None:
    few, many = (train(private_of(tmp_path / str(n)), at_once=n) for n in (3, 100))
    assert_same(weights(few.training.model), weights(many.training.model), 1e-6)


def test_a_run_without_a_seed_is_proved(tmp_path: Path) -> None:
    private = train(private_of(tmp_path, seed=None))
    certificate = private.certificate()
    assert certificate.standing == "proved"
    assert certificate.epsilon <= 8
    assert any("caller's own loop (Classifier)" in one for one in certificate.assumptions)
    assert all(check.ok for check in tacit.verify(tmp_path))
    assert str(private).startswith("Private(3 of 3 steps, epsilon <= ")
    assert private.public["step"] == 3
    assert private.private["records"] > 0
    again = classifier()
    load_model(again, tmp_path / "model.safetensors")
    assert_same(weights(again), weights(private.training.model), 0.0)


# --- models -----------------------------------------------------------------------------------


def gpt2() -> nn.Module:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=WORDS, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0,
            eos_token_id=0,
        )
    )  # fmt: skip


def llama() -> nn.Module:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS, hidden_size=8, intermediate_size=12, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1, bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip


def bert() -> nn.Module:
    return BertForSequenceClassification(
        BertConfig(  # type: ignore[call-arg]
            vocab_size=WORDS, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=12, max_position_embeddings=8, num_labels=3,
        )
    )  # fmt: skip


def lora() -> nn.Module:
    return get_peft_model(llama(), LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))


def next_words(private: Private, batch: Any) -> Tensor:
    ids, _ = batch
    logits = private.training.model(input_ids=ids).logits[:, :-1]
    return F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").mean(1)


def classes(private: Private, batch: Any) -> Tensor:
    ids, labels = batch
    logits = private.training.model(input_ids=ids).logits
    return F.cross_entropy(logits, labels, reduction="none")


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Tensor]]] = {
    "gpt2": (gpt2, next_words),
    "llama": (llama, next_words),
    "bert": (bert, classes),
    "lora": (lora, next_words),
    "lstm": (classifier, losses_of),
    "gru": (lambda: classifier(GRU), losses_of),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_of_ones_own(name: str, tmp_path: Path) -> None:
    make, losses = MODELS[name]
    torch.manual_seed(0)
    model = make()
    before = weights(model)
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    private = private_of(tmp_path, model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01))
    train(private, losses)
    after = weights(model)
    assert {n for n in after if not torch.equal(after[n], before[n])} == trained
    assert all(parameter.grad is None for parameter in model.parameters())
    private.certificate()
    assert all(check.ok for check in tacit.verify(tmp_path))


@pytest.mark.parametrize("adapter", [True, False])
def test_adapters_load_in_plain_libraries(adapter: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = lora()
    private = train(private_of(tmp_path, model), next_words)
    private.certificate(adapter=adapter)
    assert all(check.ok for check in tacit.verify(tmp_path))
    ids = torch.tensor([[1, 2, 3]])
    model.eval()
    loaded: Any
    if adapter:
        torch.manual_seed(0)  # the same frozen weights
        loaded = PeftModel.from_pretrained(llama(), tmp_path)
        assert "AutoPeftModelForCausalLM" in (tmp_path / "README.md").read_text()
    else:
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    loaded.eval()
    torch.testing.assert_close(loaded(input_ids=ids).logits, model(input_ids=ids).logits)


class Scale(nn.Module):
    """A layer that nobody has a rule for."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


@pytest.fixture
def registered() -> Iterator[None]:
    @rule(Scale, "factor")
    def _factor(layer: nn.Module, x: Tensor, gradient: Tensor) -> Whole:
        return Whole((x * gradient).sum(1))

    yield
    del grad_sample_rules._RULES[Scale]


def scaled() -> Classifier:
    model = classifier()
    model.embedding = nn.Sequential(model.embedding, Scale())  # type: ignore[assignment]
    return model


def test_a_rule_of_ones_own(registered: None, tmp_path: Path) -> None:
    model = scaled()
    train(private_of(tmp_path, model))
    assert not torch.equal(model.embedding[1].factor, torch.ones(6))


# --- stopped and gone on with -----------------------------------------------------------------


def interrupted(private: Private, after: int) -> None:
    for batch in private.batches(dataset()):
        if private.step(losses_of(private, batch)) and private.done == after:
            break


@pytest.mark.parametrize("saved", [True, False])
def test_it_goes_on_where_it_was_left(saved: bool, tmp_path: Path) -> None:
    def begun(folder: Path) -> Private:
        model = classifier()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        slower = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        return private_of(folder, model, optimizer=optimizer, schedule=slower)

    whole = train(begun(tmp_path / "whole"))
    first = begun(tmp_path / "parts")
    interrupted(first, after=2)
    if saved:
        first.save()
    with pytest.raises(UsageError, match=r"holds 2 releases already; call private\.resume"):
        train(begun(tmp_path / "parts"))
    second = begun(tmp_path / "parts")
    second.resume()
    train(second)
    assert_same(weights(second.training.model), weights(whole.training.model), 1e-6)
    assert len(read_ledger(tmp_path / "parts" / "ledger.jsonl").entries) == 3
    assert second.certificate().costs == whole.certificate().costs


def test_the_same_object_goes_on(tmp_path: Path) -> None:
    private = private_of(tmp_path)
    interrupted(private, after=1)
    train(private)
    assert private.done == 3
    assert len(read_ledger(tmp_path / "ledger.jsonl").entries) == 3


def test_nothing_to_go_on_from(tmp_path: Path) -> None:
    private = private_of(tmp_path)
    with pytest.raises(TacitError, match="no checkpoint"):
        private.resume()
    with pytest.raises(UsageError, match="nothing to save"):
        private.save()
    with pytest.raises(UsageError, match="nothing to certify"):
        private.certificate()


def test_a_budget_ends_it(tmp_path: Path) -> None:
    private = train(private_of(tmp_path))
    again = private_of(tmp_path)
    again.resume()
    (tmp_path / "checkpoint.safetensors").unlink()
    again.training.resumes = True
    train(again)
    assert again.done == 0
    assert "epsilon" in str(again.stopped)
    assert private.stopped is None


# --- refused ----------------------------------------------------------------------------------


def by_the_batch(private: Private, batch: Any) -> Tensor:
    losses = losses_of(private, batch)
    return losses / losses.detach().sum()


class Centred(Classifier):
    """Records see each other."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        return self.head((x - x.mean(0)).mean(1)) + 0 * self.layer(x)[0].sum((1, 2)).unsqueeze(1)


def normed() -> nn.Module:
    model = classifier()
    model.dropout = nn.BatchNorm1d(6)  # type: ignore[assignment]
    return model


def centred() -> nn.Module:
    torch.manual_seed(4)
    return Centred()


@pytest.mark.parametrize(
    ("made", "losses", "said"),
    [
        (None, lambda p, b: losses_of(p, b).mean(), "one loss for each record, not their mean"),
        (None, lambda p, b: losses_of(p, b).repeat(2), "one loss for each record"),
        (None, lambda p, b: losses_of(p, b).detach(), "depend on no trainable layer"),
        (None, lambda p, b: losses_of(p, b).to("meta"), "losses are on meta"),
        (None, lambda p, b: losses_of((p.training.model.eval(), p)[1], b), "call model.train"),
        (None, lambda p, b: 3.0, "no tensor"),
        (None, lambda p, b: losses_of(p, b) + torch.rand(len(b[0])), "random numbers of its own"),
        (None, by_the_batch, "One unit's clipped vector is another one among others"),
        (centred, losses_of, "One unit's clipped vector is another one among others"),
    ],
)
def test_losses_that_void_the_promise_charge_nothing(
    made: Any, losses: Any, said: str, tmp_path: Path
) -> None:
    with pytest.raises(TacitError, match=said):
        train(private_of(tmp_path, made() if made else None), losses)
    assert not (tmp_path / "ledger.jsonl").exists()


def test_gradients_are_left_to_it(tmp_path: Path) -> None:
    def differentiated(private: Private, batch: Any) -> Tensor:
        losses = losses_of(private, batch)
        losses.sum().backward()
        return losses

    private = private_of(tmp_path)
    with pytest.raises(UsageError, match=r"leave loss\.backward\(\)"):
        train(private, differentiated)
    assert all(p.requires_grad for p in private.training.model.parameters())
    assert not any(m._forward_hooks for m in private.training.model.modules())


def test_every_batch_gets_a_step(tmp_path: Path) -> None:
    private = private_of(tmp_path)
    with pytest.raises(UsageError, match=r"private\.step was not called"):
        list(private.batches(dataset()))
    with pytest.raises(UsageError, match="goes inside"):
        private.step(torch.zeros(3))


def test_a_loop_that_ends_in_a_batch_leaves_no_coins_behind(tmp_path: Path) -> None:
    """Outside of a batch nothing sees the engine's masks, however the loop came to its end."""
    torch.manual_seed(0)
    for end in (RuntimeError("out of memory"), None):
        private = private_of(tmp_path / str(end))
        with contextlib.suppress(RuntimeError):
            for _ in private.batches(dataset()):
                if end is not None:
                    raise end
                break
        assert dropout.record_uniform(3, torch.device("cpu")) is None


def test_weights_are_left_to_it(tmp_path: Path) -> None:
    def meddling(private: Private) -> None:
        for batch in private.batches(dataset()):
            if private.step(losses_of(private, batch)):
                nn.init.ones_(private.training.model.get_parameter("head.bias"))

    with pytest.raises(PrivacyRefused, match="changed between two private steps"):
        meddling(private_of(tmp_path))


def test_evaluation_between_steps_changes_nothing(tmp_path: Path) -> None:
    """Not even one that draws random numbers."""
    quiet = train(private_of(tmp_path / "quiet"))
    private = private_of(tmp_path / "looked at")
    model = private.training.model
    for batch in private.batches(dataset()):
        if private.step(losses_of(private, batch)):
            model.eval()
            with torch.no_grad():
                for ids, _ in DataLoader(dataset(), batch_size=4, shuffle=True):
                    model(ids)
            model.train()
    assert_same(weights(model), weights(quiet.training.model), 0.0)


def meta() -> nn.Module:
    with torch.device("meta"):
        return Classifier()


def untied() -> dict[str, Any]:
    return {"optimizer": torch.optim.SGD(classifier().parameters(), lr=1)}


def partial_optimizer() -> dict[str, Any]:
    model = classifier()
    return {"model": model, "optimizer": torch.optim.SGD(model.head.parameters(), lr=1)}


def plateau() -> dict[str, Any]:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    looks = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    return {"model": model, "optimizer": optimizer, "schedule": looks}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (lambda: {"model": normed()}, "BatchNorm1d, which mixes the records"),
        (lambda: {"model": scaled()}, "there is no rule for its factor"),
        (lambda: {"model": classifier(nn.LSTM)}, "GateLSTM"),
        (lambda: {"model": meta()}, "no weights yet"),
        (untied, "not this model's"),
        (partial_optimizer, "lacks trainable parameters"),
        (plateau, "follows a loss, which is private"),
        (lambda: {"owners": None}, "needs owners: the user of each record"),
        (lambda: {"owners": []}, "owners is empty"),
        (lambda: {"owners": [*OWNERS[1:], None]}, "Record 39 has no owner"),
        (lambda: {"plan": PLAN | {"protect": "users+entities"}}, r"owners=tacit\.owners"),
        (lambda: {"plan": PLAN | {"protect": "users+names"}}, r"done by tacit\.train"),
        (lambda: {"plan": PLAN | {"select": "best"}}, r"done by tacit\.train"),
        (lambda: {"plan": PLAN | {"epsilonn": 2}}, "epsilonn"),
        (lambda: {"ledger": "RUN"}, r"ends? in ledger\.jsonl"),
    ],
)
def test_what_make_private_refuses(
    changes: Callable[[], dict[str, Any]], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        private_of(tmp_path, **changes())


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (DataLoader(dataset(), shuffle=True), r"give its dataset: loader\.dataset"),
        (iter([1, 2]), "cannot be drawn from"),
        ({"a": 1}, "cannot be drawn from"),
        (list(range(7)), "users of 40 records, and the dataset has 7"),
        ([object()] * RECORDS, "give collate_fn"),
    ],
)
def test_what_batches_refuses(data: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        next(iter(private_of(tmp_path).batches(data)))
    with pytest.raises(UsageError, match="at_once=0"):
        next(iter(private_of(tmp_path).batches(dataset(), at_once=0)))


def test_another_file_is_not_certified(tmp_path: Path) -> None:
    private = train(private_of(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TacitError, match=r"tokenizer\.json was not written by this training"):
        private.certificate()
