"""An adapter above frozen states: one softmax, exact clipping, a folder that stands alone."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.topics import TOKENIZER
from tacit.errors import PrivacyRefused, UsageError
from tacit.training.data.public_inputs import GENERATED, public_corpus
from tacit.training.dp.gradients import ClippedSums
from tacit.training.evaluation.scoring import evaluate, predict
from tacit.training.models import networks, weights
from tacit.training.models.above_states import directions
from tacit.training.models.state_adapter import StateAdapterForCausalLM
from tacit.training.phases.local_inputs import inputs_of
from tacit.training.phases.run_context import encode, open_run, tokenize
from tacit.training.phases.session import resume, train
from tacit.training.settings import Run
from tacit.training.tasks.measuring import forward
from tacit.training.tasks.tasks import USUAL
from tacit.verification.runs import verify

TOKENS = 225
PLAN = {"protect": "users", "epsilon": 8, "steps": 3, "user_rate": 1.0, "users": 6}


class Whole(torch.nn.Module):
    """A model that says nothing but its logits."""

    def __init__(self, inside: Any) -> None:
        super().__init__()
        self.inside, self.config = inside, inside.config

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        return self.inside(input_ids=input_ids, attention_mask=attention_mask)


def a_base(folder: Path, kind: str = "llama") -> str:
    """A small causal model, saved as if somebody had pretrained it."""
    sizes = {"kind": kind, "layers": 2, "hidden_size": 16, "heads": 2, "context": 32}
    model = networks.scratch_model(sizes, "next-word", tokenizer=TOKENIZER, seed=3)
    for parameter in model.parameters():  # far from uniform
        parameter.data.mul_(4)
    weights.save_model(model, TOKENIZER, folder)
    return str(folder)


@pytest.fixture(
    params=["llama map", "gpt2 map", "llama bias", "llama last-block", "gpt2 last-block"]
)
def fields(tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    words = [word for word in TOKENIZER.get_vocab() if word.isalpha()]
    records = [
        {"id": str(n), "user": f"u{n % 6}", "text": " ".join(rng.choice(words, rng.integers(2, 9))),
         "split": "test" if n >= 24 else "train"}
        for n in range(30)
    ]  # fmt: skip
    corpus = tmp_path / "notes.jsonl"
    corpus.write_text("".join(json.dumps(record) + "\n" for record in records))
    kind, adapter = request.param.split()
    model = {"kind": "states", "folder": a_base(tmp_path / "base", kind), "adapter": adapter}
    model |= {"adapter_tokens": TOKENS, "adapter_rank": 3, "adapter_writes": 12}
    return {"corpus": str(corpus), "model": model, "context": 12, "seed": 0}


def moved(fields: dict[str, Any]) -> Any:
    """An open run whose adapter is somewhere else than where it begins."""
    ctx = open_run(Run(**fields, method="dp-sgd", plan=PLAN))
    torch.manual_seed(1)
    for parameter in weights.trainable(ctx.model).values():
        parameter.add_(torch.randn(parameter.shape))
    return ctx


def test_few_numbers_are_trained_and_nothing_is_moved_at_first(fields: dict[str, Any]) -> None:
    ctx = open_run(Run(**fields, method="dp-sgd", plan=PLAN))
    assert isinstance(ctx.model, StateAdapterForCausalLM)
    learns = {name: tuple(p.shape) for name, p in weights.trainable(ctx.model).items()}
    assert learns.pop("spread.bias") == (TOKENS + 1,)
    match fields["model"]["adapter"]:
        case "bias":
            assert not learns
        case "map":
            assert learns == {"mix.weight": (12, 3)}
        case _:
            assert learns
            assert all(n.startswith("block.") and 3 in shape for n, shape in learns.items())
    base = networks.load_model(fields["model"]["folder"], "next-word")
    ids = {"input_ids": torch.tensor([[3, 7, 300, 5]])}
    untouched = forward(base, ids, mask=False).softmax(-1)
    torch.testing.assert_close(forward(ctx.model, ids, mask=False).softmax(-1), untouched)


def test_directions_of_less_variance_are_longer_but_not_without_end() -> None:
    mixed = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(0))).Q
    variances = torch.tensor([1e-9, 1.0, 16.0, 81.0])
    found = directions(mixed * variances @ mixed.t(), 4, 0.25)
    least = 0.01 * float(variances.mean())
    longer = torch.tensor([1, (81 / 16) ** 0.25, 3, (81 / least) ** 0.25])
    torch.testing.assert_close(found.norm(dim=0), longer, rtol=1e-3, atol=1e-3)
    along = (mixed.flip(1) * found).sum(0).abs()  # each points where its variance lies
    torch.testing.assert_close(along, longer, rtol=1e-3, atol=1e-3)
    narrow = directions(mixed * variances @ mixed.t(), 2, 0.25)
    torch.testing.assert_close(narrow, found[:, :2])


def test_public_states_are_read_with_a_mean_length_of_one(fields: dict[str, Any]) -> None:
    if fields["model"]["adapter"] != "map":
        pytest.skip("reads no directions")
    ctx = open_run(Run(**fields, method="dp-sgd", plan=PLAN))
    text = public_corpus(GENERATED, None).take(range(128))
    shown = ctx.task.encode(text, ctx.tokenizer, context=fields["context"])
    read = encode_states(ctx.model, shown)
    assert float(read.norm(dim=1).mean()) == pytest.approx(1, abs=0.02)
    torch.testing.assert_close(read.mean(0), torch.zeros(3), atol=0.02, rtol=0)


def encode_states(model: Any, shown: Any) -> torch.Tensor:
    """The coordinates of every token of some texts."""
    batch = shown.batch(np.arange(len(shown)))
    read = model.features(batch["input_ids"])[..., : model.config.reads]
    return torch.as_tensor(read[batch["attention_mask"] > 0])


def test_the_tokens_that_are_moved_are_the_most_frequent_in_public_text(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    text = tmp_path / "public.jsonl"
    text.write_text('{"id": "1", "text": "zebra zebra"}\n{"id": "2", "text": "zebra"}\n')
    model = fields["model"] | {"adapter_text": str(text), "adapter_tokens": 40, "adapter_rank": 2}
    ctx = open_run(Run(**fields | {"model": model}, method="dp-sgd", plan=PLAN))
    seen = {*ctx.tokenizer("zebra zebra")["input_ids"], ctx.tokenizer.eos_token_id}
    others = [i for i in range(len(ctx.tokenizer)) if i not in seen]  # then those merged first
    chosen: list[int] = ctx.model.encoder.chosen.tolist()
    assert max(seen) > 40
    assert chosen == sorted([*seen, *others[: 40 - len(seen)]])


def test_all_of_it_sums_to_one_and_others_keep_their_shares(fields: dict[str, Any]) -> None:
    ctx = moved(fields)
    base = networks.load_model(fields["model"]["folder"], "next-word")
    ids = {"input_ids": torch.tensor([[3, 7, 30, 5], [9, 9, 2, 1]])}
    now = forward(ctx.model, ids, mask=False).softmax(-1)
    before = forward(base, ids, mask=False).softmax(-1)
    torch.testing.assert_close(now.sum(-1), torch.ones(2, 4))
    assert not torch.allclose(now, before, atol=1e-3)
    rest = torch.ones(now.shape[-1], dtype=torch.bool)
    rest[ctx.model.encoder.chosen] = False
    others, were = now[..., rest], before[..., rest]
    torch.testing.assert_close(
        others / others.sum(-1, keepdim=True), were / were.sum(-1, keepdim=True)
    )


def test_losses_from_features_are_those_of_the_whole_vocabulary(fields: dict[str, Any]) -> None:
    ctx = moved(fields)
    plain, cached = tokenize(ctx, ctx.part), encode(ctx, ctx.part)
    assert cached.features is not None
    whole = fields["model"]["adapter"] == "last-block"
    assert cached.features.values.dtype == (np.float32 if whole else np.float16)
    rows = np.array([4, 1, 9])
    batch = plain.batch(rows)
    logits = forward(ctx.model, batch, mask=False).log_softmax(-1)
    for row, ids in enumerate(plain.ids[r] for r in rows):
        at = torch.from_numpy(ids[1:].astype(np.int64)).unsqueeze(1)
        slow = -logits[row, : len(ids) - 1].gather(1, at).mean()
        fast = [ctx.task.losses(ctx.model, e.batch(rows))[row] for e in (plain, cached)]
        torch.testing.assert_close(fast[0], slow, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(fast[1], slow, rtol=2e-3, atol=2e-3)


def test_scores_are_those_of_the_whole_vocabulary(fields: dict[str, Any]) -> None:
    ctx = moved(fields)
    with torch.no_grad():
        end = ctx.model.encoder.slots[ctx.tokenizer.eos_token_id]
        ctx.model.spread.bias[end] += 20  # so that some are right
    found = ctx.task.score(ctx.model, tokenize(ctx, ctx.part))
    expected = ctx.task.score(Whole(ctx.model), tokenize(ctx, ctx.part))
    assert found == pytest.approx(expected, rel=1e-4)
    assert 0 < found["accuracy"] < 1


def test_clipped_sums_are_those_of_autograd(fields: dict[str, Any]) -> None:
    ctx = moved(fields | {"weigh": "tokens"})
    inputs, _ = inputs_of(ctx, ctx.run.made_plan())
    data, clip = inputs.training_data, 0.05
    learns = [p for p in ctx.model.parameters() if p.requires_grad]
    slow = [torch.zeros_like(p) for p in learns]
    batches = []
    for unit, rows in enumerate(data.rows_of_user):
        batch = data.examples.batch(rows)
        batches.append((batch, torch.full((len(rows),), unit)))
        whole = ctx.task.losses(ctx.model, batch) * (batch["attention_mask"].sum(1) - 1) / USUAL
        own = torch.autograd.grad(whole.sum(), learns)
        norm = torch.cat([g.flatten() for g in own]).norm()
        for total, gradient in zip(slow, own, strict=True):
            total += gradient * min(1.0, clip / float(norm))
    fast = ClippedSums(ctx.model).users(
        lambda batch: inputs.losses(ctx.model, batch), batches, clip_norm=clip
    )
    for total, name in zip(slow, weights.trainable(ctx.model), strict=True):
        torch.testing.assert_close(fast.tensors[name], total, rtol=1e-4, atol=1e-6)
    less = ClippedSums(ctx.model).users(
        lambda batch: inputs.losses(ctx.model, batch), batches[:-1], clip_norm=clip
    )
    gap = sum(float((fast.tensors[n] - less.tensors[n]).square().sum()) for n in fast.tensors)
    assert 0 < gap**0.5 <= clip * 1.0001


def test_a_private_run_stands_alone_and_generates(tmp_path: Path, fields: dict[str, Any]) -> None:
    done = train(Run(**fields | {"seed": None}, method="dp-sgd", plan=PLAN), tmp_path / "run")
    assert done.certificate.standing == "proved"
    (tmp_path / "base").rename(tmp_path / "gone")
    assert all(check.ok for check in verify(tmp_path / "run"))
    answered = predict(tmp_path / "run", "red", words=4)
    assert len(answered["next"]) == 5
    model: Any = networks.load_model(tmp_path / "run", "next-word")
    learns = weights.trainable(model)
    assert len(learns) == {"bias": 1, "map": 2}.get(fields["model"]["adapter"], len(learns))
    assert all(bool(tensor.any()) for tensor in learns.values())
    ids = torch.tensor([[3, 7, 5]])
    given = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 6, "min_new_tokens": 6}
    remembered, anew = (
        model.generate(ids, use_cache=cached, eos_token_id=None, **given)
        for cached in (True, False)
    )
    assert remembered.tolist() == anew.tolist()
    assert remembered.shape == (1, 9)


def test_scores_of_a_run_stand_beside_those_of_the_untouched_model(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    train(Run(**fields, method="dp-sgd", plan=PLAN), tmp_path / "run")
    scores = evaluate(tmp_path / "run", "test")
    assert scores["perplexity"] != scores["public_only_perplexity"]
    ctx = open_run(Run(**fields, method="dp-sgd", plan=PLAN))
    base = networks.load_model(fields["model"]["folder"], "next-word")
    alone = ctx.task.score(Whole(base), tokenize(ctx, ctx.corpus.only("test")))
    assert scores["public_only_perplexity"] == pytest.approx(alone["perplexity"], rel=2e-3)


def test_a_run_that_was_stopped_goes_on_to_the_same_weights(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    run = Run(**fields, method="dp-sgd", plan=PLAN)
    whole = train(run, tmp_path / "whole")

    def stop(at: Any) -> None:
        if at.phase == "train" and at.step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "cut", on_progress=stop)
    resume(tmp_path / "cut")
    models = [networks.load_model(tmp_path / name, "next-word") for name in ("whole", "cut")]
    one, two = (weights.trainable(model) for model in models)
    assert whole.certificate.epsilon <= 8
    for name in one:
        torch.testing.assert_close(one[name], two[name])


def test_a_run_is_continued_with_the_adapter_that_it_has(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    train(Run(**fields | {"seed": None}, method="dp-sgd", plan=PLAN), tmp_path / "one")
    on = fields["model"] | {"folder": str(tmp_path / "one")}
    with pytest.raises(PrivacyRefused, match="carry_ledger"):
        open_run(Run(**fields | {"model": on}, method="dp-sgd", plan=PLAN))
    ctx = open_run(
        Run(**fields | {"model": on | {"carry_ledger": True}}, method="dp-sgd", plan=PLAN)
    )
    assert all(bool(tensor.any()) for tensor in weights.trainable(ctx.model).values())


def test_records_spread_over_a_user_are_a_matter_of_that_user_alone(fields: dict[str, Any]) -> None:
    def texts(corpus: str) -> dict[str, list[str]]:
        run = Run(**fields | {"corpus": corpus}, method="dp-sgd", plan=PLAN, spread_records=2)
        part = open_run(run).part
        found: dict[str, list[str]] = {}
        for user, text in zip(
            part.require_users().to_pylist(), part.column("text").to_pylist(), strict=True
        ):
            found.setdefault(user, []).append(text)
        return found

    path = Path(fields["corpus"])
    everybody = texts(str(path))
    every = texts_of(path)
    assert everybody == {
        u: [own[len(own) // 4], own[3 * len(own) // 4]] for u, own in every.items()
    }
    lines = [line for line in path.read_text().splitlines() if json.loads(line)["user"] != "u3"]
    path.with_name("without.jsonl").write_text("\n".join(lines) + "\n")
    without = texts(str(path.with_name("without.jsonl")))
    assert without == {user: own for user, own in everybody.items() if user != "u3"}


def texts_of(path: Path) -> dict[str, list[str]]:
    """The texts of each user to train on, in their order."""
    found: dict[str, list[str]] = {}
    for record in map(json.loads, path.read_text().splitlines()):
        if record["split"] == "train":
            found.setdefault(record["user"], []).append(record["text"])
    return found


def test_what_may_be_shared_names_no_folder() -> None:
    model = {"kind": "states", "folder": "/home/ann/lm", "adapter_text": "/home/ann/news.txt"}
    run = Run(corpus="x", method="dp-sgd", plan=PLAN, model=model)
    assert run.shareable()["model"]["adapter_text"] == "news.txt"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": {"kind": "states"}}, "model.folder"),
        ({"model": {"kind": "states", "folder": "x", "lora_rank": 2}}, "lora_rank"),
        ({"model": {"kind": "lstm", "adapter_text": "x"}}, "adapter_text"),
        ({"spread_records": 2, "plan": {"protect": "records", "epsilon": 8, "steps": 2,
                                       "record_rate": 0.5}}, "spread_records"),
        ({"weigh": "tokens", "task": "regression"}, "weigh=tokens"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(change: dict[str, Any], named: str) -> None:
    given: dict[str, Any] = {"corpus": "x", "method": "dp-sgd", "plan": PLAN}
    with pytest.raises(UsageError, match=named):
        Run(**given | change)


def test_activations_are_for_their_owner_alone(
    tmp_path: Path, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    ctx = open_run(Run(**fields, method="dp-sgd", plan=PLAN))
    encode(ctx, ctx.part)
    [kept] = (tmp_path / "cache" / "activations").glob("*.npy")
    assert kept.stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("TACIT_CACHE", "off")
    kept.unlink()
    assert encode(ctx, ctx.part).features is not None
    assert not list((tmp_path / "cache" / "activations").glob("*.npy"))
    assert replace(encode(ctx, ctx.part), features=None).batch(np.array([0]))["input_ids"].any()
