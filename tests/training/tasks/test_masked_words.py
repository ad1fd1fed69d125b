"""Words behind masks: what is hidden, what is guessed, and each record's own gradient."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForMaskedLM, pipeline

from support.small import dialogs
from tacit.corpus import Corpus
from tacit.errors import UsageError
from tacit.training.dp.gradients import ClippedSums
from tacit.training.evaluation import scoring
from tacit.training.models import networks, tokens
from tacit.training.phases import session
from tacit.training.settings import Run
from tacit.training.tasks.masked_words import RATE, MaskedWord
from tacit.verification.runs import verify

ENCODER = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2,
           "intermediate_size": 24}  # fmt: skip
USERS = {"protect": "users", "epsilon": 8, "steps": 3, "user_rate": 0.3, "users": 50}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    made = tokens.byte_level_bpe(size=300)
    made.mask_token = made.unk_token
    return made


def some_texts() -> Corpus:
    words = "the quick brown fox jumps over one lazy dog".split()  # noqa: SIM905
    return Corpus.from_records(
        {"id": str(n), "user": f"u{n % 2}", "text": " ".join(words[: n + 1])} for n in range(8)
    )


def test_a_share_is_hidden_and_never_the_frame(tokenizer: Any) -> None:
    task = MaskedWord.of(tokenizer)
    corpus = Corpus.from_records([{"id": "0", "text": "words " * 400}])
    examples = task.encode(corpus, tokenizer, context=400)
    batch = examples.batch(torch.arange(1).numpy())
    seen: dict[str, torch.Tensor] = {}

    class Watch(torch.nn.Module):
        config = type("C", (), {"vocab_size": len(tokenizer)})()

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
            seen["ids"] = input_ids
            shape = (*input_ids.shape, len(tokenizer))
            return type("Out", (), {"logits": torch.zeros(shape)})()

    _, targets = task._guess(Watch(), batch)
    hidden = targets[0] >= 0
    assert 0.08 < float(hidden.float().mean()) < 0.25
    assert abs(float(hidden.float().mean()) - RATE) < 0.1
    assert bool((seen["ids"][0][hidden] == task.mask).all())
    assert bool((seen["ids"][0][~hidden] == batch["input_ids"][0][~hidden]).all())
    for token in tokenizer.all_special_ids:
        assert not bool((targets == token).any())


class SameDraws(MaskedWord):
    """The same random numbers for a record, alone or with others: those of its tokens."""

    def _uniform(self, ids: torch.Tensor, rng: Any) -> torch.Tensor:
        seeds = (torch.Generator().manual_seed(int(row[:4].sum())) for row in ids)
        return torch.stack([torch.rand(ids.shape[1], generator=seed) for seed in seeds])


def test_the_sum_is_that_of_a_loop_over_users(tokenizer: Any) -> None:
    task = SameDraws.of(tokenizer)
    config = {"kind": "bert", "context": 64, "dropout": 0.0, "attention_dropout": 0.0} | ENCODER
    model = networks.scratch_model(config, "masked-word", tokenizer=tokenizer).double()
    examples = task.encode(some_texts(), tokenizer, context=64)
    batch = examples.batch(examples.record)
    owner = torch.from_numpy(examples.user.astype("int64"))

    def losses(given: dict[str, torch.Tensor]) -> torch.Tensor:
        return task.losses(model, given)

    model.eval()
    got = ClippedSums(model).users(losses, [(batch, owner)], clip_norm=0.3)
    names = dict(model.named_parameters())
    wanted = {name: torch.zeros_like(p) for name, p in names.items()}
    for user in (0, 1):
        own = {name: value[owner == user] for name, value in batch.items()}
        gradients = torch.autograd.grad(losses(own).sum(), list(names.values()))
        norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
        factor = min(1.0, 0.3 / float(norm))
        for name, gradient in zip(names, gradients, strict=True):
            wanted[name] += factor * gradient
    for name, tensor in got.tensors.items():
        torch.testing.assert_close(tensor, wanted[name].detach(), rtol=1e-9, atol=1e-12)


def test_a_private_run_of_masked_words(tmp_path: Path) -> None:
    run = dialogs(tmp_path, customers=80) | {"task": "masked-word", "context": 16, "seed": None}
    run["model"] = {"kind": "bert", "config": ENCODER}
    done = session.train(Run(**run, plan=USERS), tmp_path / "run")
    assert done.certificate.standing == "proved"
    assert [c.what for c in verify(tmp_path / "run") if not c.ok] == []
    scores = scoring.evaluate(tmp_path / "run", "test")
    assert scores["masked_perplexity"] > 1
    assert scores["masks_sensitive"] + scores["masks_plain"] == scores["masks"]
    again = scoring.evaluate(tmp_path / "run", "test")
    assert again["masked_perplexity"] == scores["masked_perplexity"]
    found = scoring.predict(tmp_path / "run", "where is my <unk> and my <unk>", choices=3)
    assert {name: len(one) for name, one in found.items()} == {"mask 1": 3, "mask 2": 3}
    with pytest.raises(UsageError, match="Nothing is masked"):
        scoring.predict(tmp_path / "run", "where is it")
    # Plain transformers needs nothing of ours.
    AutoModelForMaskedLM.from_pretrained(tmp_path / "run")
    filled = pipeline("fill-mask", model=str(tmp_path / "run"))("where is my <unk>")
    assert len(filled) == 5


def test_a_vocabulary_without_a_mask_is_refused(tmp_path: Path) -> None:
    run = dialogs(tmp_path, customers=30) | {"task": "masked-word", "method": "plain", "steps": 1}
    run |= {"model": {"kind": "bert", "config": ENCODER}, "tokenizer": {"kind": "words"}}
    with pytest.raises(UsageError, match="tokenizer with a mask"):
        session.train(Run(**run), tmp_path / "run")
