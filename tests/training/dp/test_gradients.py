"""Fast clipped sums against a slow loop over owners, one record at a time."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.pytorch_utils import Conv1D

from tacit.errors import UsageError
from tacit.training.dp import grad_norms
from tacit.training.dp.gradients import BoundedSum, ClippedSums
from tacit.training.models.gru import GateGRU
from tacit.training.models.lstm import GateLSTM
from tacit.training.models.recurrent import LSTMConfig, LSTMForCausalLM
from tacit.training.models.weights import summed, train_rows, trained_rows

WORDS = 13
Batch = dict[str, Tensor]


@dataclass
class Case:
    model: nn.Module
    losses: Callable[[Batch], Tensor]
    batch: Batch
    scales: dict[str, Tensor] = field(default_factory=dict)


# --- slow truth ------------------------------------------------------------------------------


def record_gradient(case: Case, row: int) -> dict[str, Tensor]:
    """A record by itself, without its padding."""
    length = int(case.batch["attention_mask"][row].sum())
    alone = {}
    for name, value in case.batch.items():
        cut = name in ("input_ids", "attention_mask") or (name == "labels" and value.dim() == 2)
        alone[name] = value[row : row + 1, :length] if cut else value[row : row + 1]
    own = {n: p for n, p in case.model.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(case.losses(alone).sum(), list(own.values()), allow_unused=True)
    rows = trained_rows(case.model)
    whole = (
        torch.zeros_like(p) if g is None else g for p, g in zip(own.values(), found, strict=True)
    )
    kept = {n: g[rows[n]] if n in rows else g for n, g in zip(own, whole, strict=True)}
    return {n: g * case.scales.get(n, 1.0) for n, g in kept.items()}


def norm(tensors: dict[str, Tensor]) -> float:
    return float(torch.stack([t.double().square().sum() for t in tensors.values()]).sum().sqrt())


def clip(tensors: dict[str, Tensor], bound: float | None) -> dict[str, Tensor]:
    factor = 1.0 if bound is None else min(1.0, bound / max(norm(tensors), 1e-300))
    return {n: t * factor for n, t in tensors.items()}


def add(sums: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {n: torch.stack([s[n] for s in sums]).sum(0) for n in sums[0]}


def slowly(
    case: Case,
    owner: list[int],
    clip_norm: float,
    record_clip: float | None = None,
    weights: list[float] | None = None,
) -> dict[str, Tensor]:
    users = []
    for unit in sorted(set(owner)):
        records = [record_gradient(case, row) for row, own in enumerate(owner) if own == unit]
        user = clip(add([clip(r, record_clip) for r in records]), clip_norm)
        users.append({n: t * (weights[unit] if weights else 1.0) for n, t in user.items()})
    return add(users)


def assert_close(fast: dict[str, Tensor], slow: dict[str, Tensor]) -> None:
    assert list(fast) == list(slow)
    tolerance = 1e-10 if next(iter(slow.values())).dtype == torch.float64 else 1e-5
    whole = norm(slow)
    assert norm({n: fast[n] - slow[n] for n in slow}) <= tolerance * whole
    for name, tensor in slow.items():
        assert (fast[name] - tensor).norm() <= tolerance * (tensor.norm() + 1e-2 * whole), name


# --- models ----------------------------------------------------------------------------------


def ragged(records: int, longest: int = 6) -> Batch:
    """Records of 1, 2, ... tokens, padded on the right."""
    ids = torch.randint(1, WORDS, (records, longest))
    lengths = torch.arange(records) % longest + 1
    mask = (torch.arange(longest) < lengths.unsqueeze(1)).long()
    ids = ids.masked_fill(mask == 0, 0)
    targets = torch.randint(0, WORDS, (records, longest)).masked_fill(mask == 0, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": targets}


def per_token(logits: Tensor, labels: Tensor) -> Tensor:
    each = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=-100)
    return each.sum(1) / (labels != -100).sum(1).clamp(min=1)


def token_case(model: nn.Module, records: int = 9) -> Case:
    def losses(batch: Batch) -> Tensor:
        out = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        return per_token(out.logits, batch["labels"])

    return Case(model, losses, ragged(records))


def gpt2(tied: bool) -> Case:
    config = GPT2Config(
        vocab_size=WORDS,
        n_positions=8,
        n_embd=8,
        n_layer=1,
        n_head=2,
        tie_word_embeddings=tied,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return token_case(GPT2LMHeadModel(config))


def lora() -> Case:
    case = gpt2(tied=True)
    config = LoraConfig(r=2, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)
    model = get_peft_model(case.model, config)
    for name, parameter in model.named_parameters():  # lora_B begins at zero: nothing to see
        if "lora_B" in name:
            nn.init.normal_(parameter)
    return token_case(model)


def llama() -> Case:
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        bos_token_id=0,
        eos_token_id=0,
    )
    return token_case(LlamaForCausalLM(config))


def bert(kind: type[nn.Module]) -> Case:
    config = BertConfig(  # type: ignore[call-arg]
        vocab_size=WORDS,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=WORDS,
    )
    model = kind(config)
    case = token_case(model)
    if kind is BertForTokenClassification:
        return case

    def losses(batch: Batch) -> Tensor:
        out = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        return F.cross_entropy(out.logits, batch["labels"], reduction="none")

    case.batch["labels"] = torch.randint(0, WORDS, (9,))
    return Case(model, losses, case.batch)


class TinyLSTM(nn.Module):
    """A language model with weight-drop and locked dropout, masks given from outside."""

    def __init__(self, layers: int, tied: bool, drop: bool) -> None:
        super().__init__()
        width, units = 6, 6 if tied else 7
        self.embedding = nn.Embedding(WORDS, width, padding_idx=0)
        self.lstm = GateLSTM(width, units, layers, batch_first=True)
        self.head = nn.Linear(units, WORDS, bias=not tied)
        if tied:
            self.head.weight = self.embedding.weight
        self.masks = {
            f"weight_hh_l{i}": torch.bernoulli(torch.full((4 * units, units), 0.6)) / 0.6
            for i in range(layers if drop else 0)
        }

    def forward(self, ids: Tensor, locked: Tensor) -> Tensor:
        x = self.embedding(ids) * locked
        own = dict(self.lstm.named_parameters())
        used = {name: own[name] * mask.to(x.dtype) for name, mask in self.masks.items()}
        out, _ = functional_call(self.lstm, used, (x,)) if used else self.lstm(x)
        return self.head(out)


def lstm(layers: int, tied: bool, drop: bool = True) -> Case:
    model = TinyLSTM(layers, tied, drop)

    def losses(batch: Batch) -> Tensor:
        locked = batch["locked"].to(model.embedding.weight.dtype)
        return per_token(model(batch["input_ids"], locked), batch["labels"])

    batch = ragged(9)
    batch["locked"] = torch.bernoulli(torch.full((9, 1, 6), 0.7)) / 0.7
    return Case(model, losses, batch)


def projected() -> Case:
    """An LSTM that is wider than its embedding, which is its output layer as well."""
    config = LSTMConfig(vocab_size=WORDS, embedding_size=5, hidden_size=7, projection=True)
    return token_case(LSTMForCausalLM(config))


def frequent(case: Case) -> Case:
    """Only some rows of the tables over words are trained; the padding's is one of them."""
    train_rows(case.model, [9, 0, 4, 1])
    return case


class Stack(nn.Module):
    """An embedding, a layer to examine, and a way to logits."""

    def __init__(self, layer: nn.Module, width: int = 5, twice: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width, padding_idx=0)
        self.layer = layer
        self.head = nn.Linear(width, WORDS, bias=False)
        self.twice = twice

    def forward(self, ids: Tensor) -> Tensor:
        x = torch.tanh(self.layer(self.embedding(ids)))
        return self.head(self.layer(x) if self.twice else x)


def stack(layer: nn.Module, twice: bool = False) -> Case:
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    model = Stack(layer, twice=twice)
    return Case(model, lambda b: per_token(model(b["input_ids"]), b["labels"]), ragged(9))


class OverTime(nn.Module):
    """A convolution over tokens: they are the last dimension there."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.inner = nn.Conv1d(6, 6, **options)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


def convolved(**options: object) -> Case:
    """Records of one length: what is padded would be read, too."""
    torch.manual_seed(2)
    model = Stack(OverTime(**options), width=6)
    batch = {
        "input_ids": torch.randint(1, WORDS, (9, 6)),
        "attention_mask": torch.ones(9, 6, dtype=torch.long),
        "labels": torch.randint(0, WORDS, (9,)),
    }

    def losses(batch: Batch) -> Tensor:
        logits = model(batch["input_ids"]).mean(1)
        return F.cross_entropy(logits, batch["labels"], reduction="none")

    return Case(model, losses, batch)


class Recurrence(nn.Module):
    """The outputs of a recurrent layer alone."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]


def gru(layers: int, bias: bool = True) -> Case:
    return stack(Recurrence(GateGRU(5, 5, layers, bias=bias, batch_first=True)))


class HandWrittenGRU(nn.Module):
    """Two linear maps, called once for every token."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.keep = nn.Linear(5, 15), nn.Linear(5, 15)

    def forward(self, x: Tensor) -> Tensor:
        state, said = x.new_zeros(len(x), 5), []
        for token in x.unbind(1):
            (r, z, n), (ur, uz, un) = (
                part.chunk(3, 1) for part in (self.read(token), self.keep(state))
            )
            z = torch.sigmoid(z + uz)
            state = (1 - z) * torch.tanh(n + torch.sigmoid(r + ur) * un) + z * state
            said.append(state)
        return torch.stack(said, 1)


def with_scales(case: Case, reach: float = 2.0) -> Case:
    """Every entry of the gradient is multiplied by another number, some by hundreds."""
    for name, like in summed(case.model).items():
        case.scales[name] = torch.exp(reach * torch.randn_like(like))
    return case


def linear_head_only() -> Case:
    case = stack(nn.Linear(5, 5))
    case.model.embedding.requires_grad_(False)
    case.model.layer.weight.requires_grad_(False)
    return case


CASES: dict[str, Callable[[], Case]] = {
    "linear": lambda: stack(nn.Linear(5, 5)),
    "linear without bias": lambda: stack(nn.Linear(5, 5, bias=False)),
    "linear used twice": lambda: stack(nn.Linear(5, 5), twice=True),
    "some frozen": linear_head_only,
    "conv1d": lambda: stack(Conv1D(5, 5)),
    "layernorm": lambda: stack(nn.LayerNorm(5)),
    "layernorm without bias": lambda: stack(nn.LayerNorm(5, bias=False)),
    "rmsnorm": lambda: stack(nn.RMSNorm(5)),
    "convolution": lambda: convolved(kernel_size=3, padding=1),
    "convolution, apart": lambda: convolved(kernel_size=2, stride=2, dilation=2, groups=3),
    "convolution, around": lambda: convolved(
        kernel_size=3, padding="same", padding_mode="circular", groups=2, bias=False
    ),
    "gru": lambda: gru(1),
    "gru 2 without bias": lambda: gru(2, bias=False),
    "gru by hand": lambda: stack(HandWrittenGRU()),
    "gpt2 tied": lambda: gpt2(True),
    "gpt2 untied": lambda: gpt2(False),
    "gpt2 lora": lora,
    "llama": llama,
    "bert classes": lambda: bert(BertForSequenceClassification),
    "bert tags": lambda: bert(BertForTokenClassification),
    "lstm 1": lambda: lstm(1, False, drop=False),
    "lstm 1 tied": lambda: lstm(1, True),
    "lstm 2 tied": lambda: lstm(2, True, drop=False),
    "lstm 3": lambda: lstm(3, False),
    "lstm projected": projected,
    "lstm projected, some rows": lambda: frequent(projected()),
    "gpt2 tied, some rows": lambda: frequent(gpt2(True)),
    "gpt2 untied, some rows": lambda: frequent(gpt2(False)),
    "linear used twice, scaled": lambda: with_scales(stack(nn.Linear(5, 5), twice=True)),
    "layernorm, scaled": lambda: with_scales(stack(nn.LayerNorm(5))),
    "gpt2 tied, scaled": lambda: with_scales(gpt2(True)),
    "lstm 3, scaled": lambda: with_scales(lstm(3, False)),
    "lstm projected, some rows, scaled": lambda: with_scales(frequent(projected())),
}


def make(name: str, dtype: torch.dtype = torch.float64) -> Case:
    torch.manual_seed(1)
    case = CASES[name]()
    case.model.to(dtype)
    case.scales = {name: scale.to(dtype) for name, scale in case.scales.items()}
    case.model.train()
    return case


WAYS = {"fused": 0.0, "ghost or direct": 1e12}
OWNER = [0, 0, 1, 3, 3, 3, 0, 4, 1]  # nobody is 2


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(grad_norms, "FUSED_COST", WAYS[request.param])
    return request.param


# --- fast equals slow ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_users_equal_a_loop(name: str, dtype: torch.dtype, way: str) -> None:
    """Double precision finds wrong formulas, single precision finds what rounding does."""
    case = make(name, dtype)
    sums = ClippedSums(case.model, case.scales)
    weights = [1.0, 0.5, 0.25, 0.0, 0.75]
    middle = norm(record_gradient(case, 3))
    for clip_norm, record_clip, given_weights in (
        (middle, None, None),
        (1e6, None, weights),
        (middle, 0.8 * middle, weights),
    ):
        got = sums.users(
            case.losses,
            [(case.batch, torch.tensor(OWNER))],
            clip_norm=clip_norm,
            record_clip=record_clip,
            weights=torch.tensor(given_weights).double() if given_weights else None,
        )
        assert_close(got.tensors, slowly(case, OWNER, clip_norm, record_clip, given_weights))
        assert (got.units, got.unit, got.not_finite) == (5, "users", 0)
        assert (got.clip_norm, got.record_clip) == (clip_norm, record_clip)


@pytest.mark.parametrize("name", CASES)
def test_records_equal_a_loop(name: str, way: str) -> None:
    case = make(name)
    middle = 1.01 * norm(record_gradient(case, 3))
    owner = list(range(9))
    got = ClippedSums(case.model, case.scales).records(
        case.losses, [(case.batch, torch.tensor(owner))], clip_norm=middle
    )
    assert_close(got.tensors, slowly(case, owner, middle))
    assert (got.units, got.unit, got.record_clip) == (9, "records", None)
    norms = [norm(record_gradient(case, row)) for row in owner]
    assert got.clipped == sum(n > middle for n in norms)


@pytest.mark.parametrize("record_clip", [None, 0.5])
@pytest.mark.parametrize("name", ["gpt2 tied", "lstm 3", "lstm projected, some rows"])
@pytest.mark.parametrize("cuts", [[4], [1, 2, 3, 8]])
def test_a_user_may_go_on_in_later_batches(
    name: str, cuts: list[int], record_clip: float | None, way: str
) -> None:
    case = make(name)
    owner = torch.tensor([0, 0, 0, 1, 1, 2, 3, 3, 3])
    clip_norm = 2 * norm(record_gradient(case, 3))
    cut = {n: v.tensor_split(cuts) for n, v in case.batch.items()}
    batches = [
        ({n: pieces[i] for n, pieces in cut.items()}, part)
        for i, part in enumerate(owner.tensor_split(cuts))
    ]
    got = ClippedSums(case.model).users(
        case.losses, iter(batches), clip_norm=clip_norm, record_clip=record_clip
    )
    assert_close(got.tensors, slowly(case, owner.tolist(), clip_norm, record_clip))
    assert got.units == 4


def test_users_of_one_to_six_records(way: str) -> None:
    torch.manual_seed(3)
    model = token_case(make("gpt2 tied").model, records=21)
    owner = [unit for unit in range(6) for _ in range(unit + 1)]
    for record_clip in (None, 1.0):
        got = ClippedSums(model.model).users(
            model.losses,
            [(model.batch, torch.tensor(owner))],
            clip_norm=1.5,
            record_clip=record_clip,
        )
        assert_close(got.tensors, slowly(model, owner, 1.5, record_clip))


def test_many_units_are_done_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grad_norms, "_GRAM_ENTRIES", 80)
    monkeypatch.setattr(grad_norms, "FUSED_COST", 1e12)
    case = make("gpt2 tied")
    got = ClippedSums(case.model).users(
        case.losses, [(case.batch, torch.tensor(OWNER))], clip_norm=1.0, record_clip=0.7
    )
    assert_close(got.tensors, slowly(case, OWNER, 1.0, 0.7))


def test_batches_may_say_who_goes_on(way: str) -> None:
    """Units that are laid together come and go in several batches; between them others end."""
    case = make("gpt2 tied")
    owner = torch.tensor([0, 1, 2, 0, 1, 3, 0, 2, 1])
    cuts = [3, 6]
    pieces = {n: v.tensor_split(cuts) for n, v in case.batch.items()}
    batches = [
        ({n: p[i] for n, p in pieces.items()}, own, goes_on)
        for i, (own, goes_on) in enumerate(
            zip(owner.tensor_split(cuts), ({0, 1, 2}, {0, 1}, set[int]()), strict=True)
        )
    ]
    for record_clip in (None, 0.7):
        got = ClippedSums(case.model).users(
            case.losses, batches, clip_norm=1.0, record_clip=record_clip
        )
        assert_close(got.tensors, slowly(case, owner.tolist(), 1.0, record_clip))
    with pytest.raises(UsageError, match="none came"):
        ClippedSums(case.model).users(case.losses, batches[:2], clip_norm=1.0)
    with pytest.raises(UsageError, match="comes back"):
        ClippedSums(case.model).users(
            case.losses, [(b, own, set()) for b, own, _ in batches], clip_norm=1.0
        )


@pytest.mark.parametrize("batches", [[], [({}, torch.zeros(0, dtype=torch.int64))]])
def test_nobody_is_a_valid_sum(batches: list) -> None:
    case = make("gpt2 tied")
    for units in (None, 3):
        got = ClippedSums(case.model).users(case.losses, batches, clip_norm=1.0, units=units)
        assert got.units == (units or 0)
        assert all(not tensor.any() for tensor in got.tensors.values())


def test_only_tables_over_the_vocabulary_have_rows_that_are_not_trained() -> None:
    case = make("lstm projected, some rows")
    assert case.model.head.weight is case.model.body.embedding.weight
    assert set(trained_rows(case.model)) == {"body.embedding.weight", "head.bias"}
    got = ClippedSums(case.model).users(
        case.losses, [(case.batch, torch.tensor(OWNER))], clip_norm=1.0
    )
    own = dict(case.model.named_parameters())
    for name, tensor in got.tensors.items():
        rows = 4 if name in trained_rows(case.model) else len(own[name])
        assert tensor.shape == (rows, *own[name].shape[1:])
    assert ClippedSums(case.model).apart(case.losses, case.batch) is None


# --- the bound -------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from([1e-3, 1.0, 30.0, 1e4]),
    clip_norm=st.floats(1e-6, 1e3),
    record_clip=st.none() | st.floats(1e-3, 1e3),
    left_over=st.none() | st.sampled_from([0.0, 1e-6, 1e-4, 1e-3, 1e-2, 0.1, 0.5]),
    cost=st.sampled_from(list(WAYS.values())),
    rows=st.booleans(),
    scaled=st.booleans(),
)
def test_no_user_adds_more_than_the_clip_norm(
    seed: int,
    size: float,
    clip_norm: float,
    record_clip: float | None,
    left_over: float | None,
    cost: float,
    rows: bool,
    scaled: bool,
) -> None:
    """Whoever is taken away, then: it is the whole of what a user adds."""
    torch.manual_seed(seed)
    case = frequent(projected()) if rows else stack(nn.Linear(5, 5))
    case = with_scales(case, 4.0) if scaled else case
    model, batch = case.model, ragged(6)
    sign = torch.ones(6)
    if left_over is not None:  # the same record over and over, cancelling but for a little
        batch = {name: value[[5] * 6] for name, value in batch.items()}
        sign = torch.tensor([1.0 + left_over, -1.0, 1.0, -1.0, 1.0, -1.0])

    def losses(batch: Batch) -> Tensor:
        return size * sign * case.losses(batch)

    before = grad_norms.FUSED_COST
    grad_norms.FUSED_COST = cost  # type: ignore[assignment]
    try:
        got = ClippedSums(model, case.scales).users(
            losses,
            [(batch, torch.zeros(6, dtype=torch.int64))],
            clip_norm=clip_norm,
            record_clip=record_clip,
        )
    finally:
        grad_norms.FUSED_COST = before
    assert norm(got.tensors) <= clip_norm * (1 + 1e-6)


class ByWord(nn.Module):
    """A linear map of given vectors: one record can cancel itself token by token."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(40, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


@pytest.mark.parametrize("left_over", [0.0, 1e-5, 1e-3, 1e-2, 0.1])
@pytest.mark.parametrize("unit", ["records", "users"])
def test_tokens_that_cancel_do_not_hide_a_norm(
    unit: str, left_over: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grad_norms, "FUSED_COST", 1e12)
    torch.manual_seed(0)
    model = ByWord()
    x = torch.randn(1, 1, 40).repeat(1, 6, 1)
    x[0, 3:] *= -(1 - left_over)
    batch = {"x": x}

    def losses(batch: Batch) -> Tensor:
        return 1e4 * model(batch["x"]).sum((1, 2))

    sums = ClippedSums(model)
    call = sums.records if unit == "records" else sums.users
    clip_norm = 1e-3
    got = call(losses, [(batch, torch.zeros(1, dtype=torch.int64))], clip_norm=clip_norm)
    assert norm(got.tensors) <= clip_norm * (1 + 1e-6)


def test_nobody_else_makes_a_bounded_sum() -> None:
    with pytest.raises(TypeError, match="ClippedSums"):
        BoundedSum({}, 1.0, "users", None, 0, 0, 0)


# --- records that are not finite -------------------------------------------------------------


@pytest.mark.parametrize(
    ("poison", "where"),
    [("nan", "loss"), ("inf", "loss"), ("nan", "gradient"), ("-inf", "gradient")],
)
@pytest.mark.parametrize("record_clip", [None, 0.5])
@pytest.mark.parametrize("name", ["linear used twice", "gpt2 tied", "lstm 1 tied"])
def test_a_record_that_is_not_finite_adds_nothing(
    name: str, record_clip: float | None, where: str, poison: str, way: str
) -> None:
    case = make(name)
    case.batch["poison"] = torch.zeros(9, dtype=torch.float64)
    case.batch["poison"][4] = float(poison)

    def losses(batch: Batch) -> Tensor:
        values = case.losses(batch)
        if where == "loss":
            return values + values * batch["poison"]
        return values + Poison.apply(values, batch["poison"])

    slow = Case(
        case.model, case.losses, {n: v[torch.arange(9) != 4] for n, v in case.batch.items()}
    )
    owner = [own for row, own in enumerate(OWNER) if row != 4]
    expected = slowly(slow, owner, 1.0, record_clip)
    for cuts in ([], [4], [5]):
        pieces = {n: v.tensor_split(cuts) for n, v in case.batch.items()}
        order = torch.tensor([0, 0, 1, 3, 3, 3, 5, 4, 6] if cuts else OWNER)
        batches = [
            ({n: p[i] for n, p in pieces.items()}, own)
            for i, own in enumerate(order.tensor_split(cuts))
        ]
        if cuts:
            expected = slowly(slow, [0, 0, 1, 3, 3, 5, 4, 6], 1.0, record_clip)
        got = ClippedSums(case.model).users(losses, batches, clip_norm=1.0, record_clip=record_clip)
        assert got.not_finite == 1
        assert_close(got.tensors, expected)


class Poison(torch.autograd.Function):
    """A finite loss whose gradient is not."""

    @staticmethod
    def forward(ctx, values, poison):
        ctx.save_for_backward(poison)
        return torch.zeros_like(values)

    @staticmethod
    def backward(ctx, gradient):
        (poison,) = ctx.saved_tensors
        return gradient * poison, None


# --- refusals, and leaving no trace ----------------------------------------------------------


class OddLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.strange = nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.strange


class OddLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


class Changing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 1
        out = self.inner(x)
        x.add_(1)
        return out + x


def test_layers_without_a_rule_are_refused() -> None:
    tied = Stack(nn.LayerNorm(5))
    tied.other = nn.LayerNorm(5)
    tied.other.weight = tied.layer.weight  # type: ignore[assignment]
    frozen = Stack(nn.LayerNorm(5)).requires_grad_(False)
    renormed = Stack(nn.LayerNorm(5))
    renormed.embedding.max_norm = 1.0
    for model, words in (
        (Stack(OddLayer()), ["'layer'", "OddLayer", "strange", "freeze"]),
        (Stack(OddLinear(5, 5)), ["'layer'", "OddLinear"]),
        (Stack(nn.BatchNorm1d(5)), ["'layer'", "BatchNorm1d", "LayerNorm"]),
        (Stack(nn.BatchNorm1d(5, affine=False)), ["'layer'", "BatchNorm1d"]),
        (Stack(nn.LSTM(5, 5)), ["'layer'", "GateLSTM"]),
        (Stack(nn.GRU(5, 5)), ["'layer'", "GateGRU"]),
        (Stack(nn.MultiheadAttention(5, 1)), ["'layer'", "MultiheadAttention", "in_proj_weight"]),
        (tied, ["'layer'", "'other'", "shared"]),
        (renormed, ["'embedding'", "max_norm"]),
        (frozen, ["no trainable parameter"]),
    ):
        with pytest.raises(UsageError) as refused:
            ClippedSums(model)
        assert all(word in str(refused.value) for word in words), refused.value


def test_what_shows_only_in_a_pass_is_refused() -> None:
    unused = stack(nn.Linear(5, 5))
    unused.model.other = nn.Linear(5, 5)
    turned = stack(nn.Linear(5, 5))
    turned.model.layer.register_forward_pre_hook(lambda m, x: (x[0].transpose(0, 1),))
    turned.model.layer.register_forward_hook(lambda m, x, y: y.transpose(0, 1))
    changed = stack(Changing())
    for case, words in (
        (unused, ["'other'", "no gradient"]),
        (turned, ["'layer'", "(6, 9, 5)"]),
        (changed, ["'layer.inner'", "in place"]),
    ):
        with pytest.raises(UsageError) as refused:
            ClippedSums(case.model).records(
                case.losses, [(case.batch, torch.arange(9))], clip_norm=1.0
            )
        assert all(word in str(refused.value) for word in words), refused.value


def test_wrong_arguments_are_refused() -> None:
    case = make("linear")
    sums = ClippedSums(case.model)
    half = ({n: v[:4] for n, v in case.batch.items()}, torch.tensor([0, 0, 1, 1]))

    def call(batches=((case.batch, torch.arange(9)),), **options):
        return sums.users(case.losses, batches, **{"clip_norm": 1.0} | options)

    for options, words in (
        ({"clip_norm": 0.0}, "clip_norm=0.0"),
        ({"clip_norm": float("nan")}, "clip_norm=nan"),
        ({"record_clip": -1.0}, "record_clip=-1.0"),
        ({"weights": torch.full((9,), 1.1)}, "weight_cap=1"),
        ({"weights": torch.full((9,), float("nan"))}, "weight_cap=1"),
        ({"weights": torch.ones(8)}, "Unit 8"),
        ({"weights": torch.ones(8), "units": 9}, "units=9"),
        ({"batches": [(case.batch, torch.arange(9) - 1)]}, "0 or more"),
        ({"batches": [half, (half[0], half[1] + 2), half]}, "Unit 0 comes back"),
    ):
        with pytest.raises(UsageError, match=words):
            call(**options)
    with pytest.raises(UsageError, match="Two records"):
        sums.records(case.losses, [half], clip_norm=1.0)
    with pytest.raises(UsageError, match="one number for each record"):
        sums.users(lambda b: case.losses(b).mean(), [half], clip_norm=1.0)
    assert call(weights=torch.full((9,), 1.5), weight_cap=1.5).clip_norm == 1.5


@pytest.mark.parametrize("name", ["gpt2 tied", "gpt2 lora", "lstm 2 tied", "lstm 3"])
@pytest.mark.parametrize("fails", ["no", "forward", "backward"])
def test_the_model_is_left_as_it_was(name: str, fails: str) -> None:
    case = make(name)
    flags = {n: p.requires_grad for n, p in case.model.named_parameters()}
    state = copy.deepcopy(case.model.state_dict())
    for parameter in case.model.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)

    def losses(batch: Batch) -> Tensor:
        values = case.losses(batch)
        if fails == "forward":
            raise RuntimeError("as planned")
        if fails == "backward":
            values.register_hook(_fail)
        return values

    sums = ClippedSums(case.model)
    batches = [(case.batch, torch.tensor(OWNER))]
    if fails == "no":
        sums.users(losses, batches, clip_norm=1.0)
    else:
        with pytest.raises(RuntimeError, match="as planned"):
            sums.users(losses, batches, clip_norm=1.0)
    assert {n: p.requires_grad for n, p in case.model.named_parameters()} == flags
    assert all((p.grad == 7).all() for p in case.model.parameters())
    assert all(torch.equal(v, state[n]) for n, v in case.model.state_dict().items())
    for module in case.model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert getattr(module, "listener", None) is None


def _fail(gradient: Tensor) -> None:
    raise RuntimeError("as planned")


@pytest.mark.parametrize("name", CASES)
def test_records_alone_agree_with_autograd(name: str) -> None:
    case = make(name)
    assert ClippedSums(case.model).apart(case.losses, case.batch, 1e-9) is None


def test_what_rules_cannot_see_is_found() -> None:
    outside = stack(nn.Linear(5, 5))
    model = outside.model
    model.head.register_forward_hook(
        lambda m, x, y: (
            y * F.linear(torch.ones_like(x[0]), model.layer.weight).sum(-1, True)  # type: ignore[arg-type]
        )
    )
    mixing = stack(nn.Linear(5, 5))
    mixing.model.layer.register_forward_hook(lambda m, x, y: y * y.mean(0, keepdim=True))
    for case in (outside, mixing):
        found = ClippedSums(case.model).apart(case.losses, case.batch)
        assert found is not None
        assert "cannot be split by record" in found


def test_long_rows_that_are_not_trained_hide_nothing() -> None:
    """A planted bug in a trained row, beside a row that is far longer and in no sum."""
    case = make("lstm projected, some rows")
    table = case.model.body.embedding.weight

    def losses(bug: float) -> Callable[[Batch], Tensor]:
        return lambda b: case.losses(b) + 1e7 * table[2].sum() + bug * table[9].sum()

    sums = ClippedSums(case.model)
    assert sums.apart(losses(0), case.batch) is None
    found = sums.apart(losses(1), case.batch)
    assert found is not None
    assert "body.embedding.weight" in found
