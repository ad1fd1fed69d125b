"""What sensitive tokens change, clipped; masked text as it is, which no sensitive token reaches."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, target
from hypothesis import strategies as st
from torch import Tensor

from tacit.corpus import Corpus
from tacit.corpus.writing import write
from tacit.errors import DataError, UsageError
from tacit.privacy.ledger import Ledger
from tacit.training.dp.random_source import RandomSource
from tacit.training.methods.method import MethodInputs
from tacit.training.methods.noisy_sums import LossMeter
from tacit.training.methods.plain import PlainStep
from tacit.training.methods.residual_tokens import RESIDUAL_TOKENS
from tacit.training.phases.local_inputs import inputs_of, shared_method
from tacit.training.phases.redacted_start import redacted_examples
from tacit.training.phases.run_context import RunContext, open_run
from tacit.training.settings import Run
from tacit.training.tasks.examples import Examples

CLIP, SLACK = 0.05, 1 + 1e-5
TEXTS = [
    "my code is {} and the dog sleeps on the old sofa",
    "the dog barks at {} and {}",
    "{} is the number of the house by the river where we met and ate bread and cheese",
    "nothing to hide here",
    "call {} soon",
]
MODELS: dict[str, dict[str, Any]] = {
    "lstm": {"kind": "lstm", "config": {"embedding_size": 8, "hidden_size": 8, "layers": 1}},
    "gpt2": {"kind": "gpt2", "config": {"n_layer": 1, "n_embd": 16, "n_head": 2}},
}


def corpus_of(secrets: list[str]) -> Corpus:
    """The texts with these secrets, one after the other."""
    left, made = iter(secrets), []
    for number, text in enumerate(TEXTS):
        filled = text.format(*(next(left) for _ in range(text.count("{}"))))
        made.append({"id": str(number), "text": filled})
    return Corpus.from_records(made)


SECRETS = ["4711", "7", "1", "123456", "99"]


def opened(folder: Path, model: str = "lstm", **more: Any) -> RunContext:
    write(corpus_of(SECRETS), folder / "c.jsonl")
    plan = {"epsilon": 1e9, "steps": 1, "noise_multiplier": 0.0, "record_rate": 0.7,
            "clip_norm": CLIP}  # fmt: skip
    fields = {
        "corpus": str(folder / "c.jsonl"), "model": MODELS[model], "tokenizer": {"size": 300},
        "method": "residual-tokens", "policy": "digits", "plan": plan, "context": 24, "seed": 3,
        "residual-tokens": {"batch": 3, "masked_weight": 0.5}, "token_budget": 64,
    }  # fmt: skip
    return open_run(Run(**fields | more))


def inputs_for(ctx: RunContext, corpus: Corpus, ledger: Ledger, seed: int = 3) -> MethodInputs:
    """What the method is given where the private text is another one."""
    plan = ctx.run.made_plan()
    inputs, _ = inputs_of(replace(ctx, part=corpus), plan)
    return replace(inputs, ledger=ledger, randomness=RandomSource(seed))


def flat(tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors.values()]).double()


@pytest.mark.parametrize("model", MODELS)
def test_residual_sums_equal_a_loop(tmp_path: Path, model: str) -> None:
    ctx = opened(tmp_path, model)
    with Ledger(tmp_path / "ledger.jsonl", {}) as ledger:
        inputs = inputs_for(ctx, corpus_of(SECRETS), ledger)
    inputs.model.eval()
    meter = LossMeter(inputs.model, inputs.losses)
    total = RESIDUAL_TOKENS.totals(inputs, meter)(1, np.arange(len(TEXTS)))
    whole, masked = inputs.training_data.examples, redacted_examples(ctx)
    assert isinstance(whole, Examples)
    parameters = dict(inputs.model.named_parameters())
    right = torch.zeros_like(flat(parameters))
    for row in range(len(TEXTS)):
        one = inputs.losses(inputs.model, whole.batch(np.array([row])))[0]
        other = inputs.losses(inputs.model, masked.batch(np.array([row])))[0]
        own = torch.autograd.grad(one - other, list(parameters.values()))
        change = flat(dict(zip(parameters, own, strict=True)))
        right += change * min(1.0, CLIP / max(1e-30, float(change.norm())))
    assert float((flat(total.tensors) - right).norm()) <= 1e-5 * float(right.norm())
    assert (total.unit, total.clip_norm, total.units) == ("records", CLIP, 4)
    assert 0 < total.clipped <= 4


SECRET = st.from_regex(r"[0-9]{1,9}", fullmatch=True)


@pytest.mark.parametrize("model", MODELS)
def test_neighbours_move_the_release_by_the_bound_and_the_rest_not_at_all(
    tmp_path: Path, model: str
) -> None:
    """Other digits, more or fewer of them, in one record; tokenized, cut, padded and batched.

    The noise-free part is the same, bit by bit, before an update and after it.
    """
    ctx = opened(tmp_path, model)

    @settings(max_examples=12, deadline=None)
    @given(one=SECRET, other=SECRET, place=st.sampled_from([0, 3, 4]), seed=st.integers(0, 50))
    def search(one: str, other: str, place: int, seed: int) -> None:
        released, plain = [], []
        for secret in (one, other):
            secrets = [*SECRETS[:place], secret, *SECRETS[place + 1 :]]
            with Ledger(tmp_path / "ledger.jsonl", {}) as ledger:
                step: Any = RESIDUAL_TOKENS.step(inputs_for(ctx, corpus_of(secrets), ledger, seed))
                noisy, stats = step.noisy(1)
                released.append(flat(noisy) * step.denominator)
                made, _ = step.direction(1, noisy, stats)
            plain.append(flat(step._plain.gradient(1)[0]))
            assert torch.allclose(flat(made) - flat(noisy), 0.5 * plain[-1], atol=1e-6)
        moved = float((released[0] - released[1]).norm())
        target(moved)
        assert moved <= 2 * CLIP * SLACK
        assert torch.equal(plain[0], plain[1])

    search()


def test_one_clip_norm_would_be_too_little(tmp_path: Path) -> None:
    """Both neighbours have a residual: replacing tokens is not the same as masking them."""
    ctx = opened(tmp_path)
    plan = ctx.run.made_plan()
    assert plan is not None
    small = plan.model_copy(update={"clip_norm": 1e-3, "record_rate": 1.0})
    sums = []
    for secret in ("99999999", "3"):
        with Ledger(tmp_path / "ledger.jsonl", {}) as ledger:
            inputs = replace(inputs_for(ctx, corpus_of([secret, *SECRETS[1:]]), ledger), plan=small)
            step: Any = RESIDUAL_TOKENS.step(inputs)
            sums.append(flat(step.noisy(1)[0]) * step.denominator)
    moved = float((sums[0] - sums[1]).norm())
    assert 1.2e-3 < moved <= 2e-3 * SLACK


def test_the_visible_batch_says_nothing_about_the_hidden_sample(tmp_path: Path) -> None:
    """With a fixed seed, too: other coins, and who is in the one is in the other by chance."""
    ctx = opened(tmp_path)
    records = [{"id": str(n), "text": f"the dog is {n}"} for n in range(40)]
    with Ledger(tmp_path / "ledger.jsonl", {}) as ledger:
        inputs = inputs_for(ctx, Corpus.from_records(records), ledger)
    inputs = replace(inputs, ledger=ledger)
    seen: list[np.ndarray] = []
    masked = inputs.training_data.redacted
    assert masked is not None

    class Overheard:
        def __getattr__(self, name: str) -> Any:
            return getattr(masked.examples, name)

        def __len__(self) -> int:
            return len(masked.examples)

        def batch(self, rows: np.ndarray) -> dict[str, Tensor]:
            seen.append(rows)
            return masked.examples.batch(rows)

    heard = replace(masked, examples=Overheard())
    data = replace(inputs.training_data, redacted=heard)
    step: Any = RESIDUAL_TOKENS.step(replace(inputs, training_data=data))
    assert isinstance(step._plain, PlainStep)
    together, drawn_often = 0, 0
    for number in range(1, 101):
        ours = step._plain._randomness.stream("coins", number).random(4)
        assert not np.array_equal(ours, inputs.randomness.stream("coins", number).random(4))
        hidden = set(step._sampler.draw(inputs.randomness.stream("coins", number)).tolist())
        seen.clear()
        step._plain.gradient(number)
        visible = {int(row) for rows in seen for row in rows}
        assert len(visible) == 3
        together += len(visible & hidden)
        drawn_often += 3
    chance = 0.7 * drawn_often
    assert abs(together - chance) <= 4 * math.sqrt(chance * 0.3)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    ctx = opened(tmp_path)
    with Ledger(tmp_path / "ledger.jsonl", {}) as ledger:
        plain = Corpus.from_records([{"id": "1", "text": "nothing"}, {"id": "2", "text": "at all"}])
        with pytest.raises(DataError, match="nothing to protect"):
            inputs_for(ctx, plain, ledger)
        inputs = inputs_for(ctx, corpus_of(SECRETS), ledger)
        without = replace(inputs, training_data=replace(inputs.training_data, redacted=None))
        with pytest.raises(TypeError, match="no masked text"):
            RESIDUAL_TOKENS.step(without)
    with pytest.raises(UsageError, match="in one process"):
        shared_method(ctx.run)
    for wrong, said in (({"clip_quantile": 0.5}, "clip_quantile"), ({"precondition": True}, "pre")):
        with pytest.raises(UsageError, match=said):
            opened(tmp_path, plan=ctx.run.plan | wrong)
