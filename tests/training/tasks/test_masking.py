"""Masked words under sanitized context, and the attack that guesses them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (  # type: ignore[attr-defined]
    BertConfig,
    BertForMaskedLM,
    BertTokenizerFast,
)

from tacit.errors import DataError, UsageError
from tacit.sanitization import Recipe, Sanitizer, open_embeddings
from tacit.sanitization.embeddings import Embedding
from tacit.training.models.networks import load_model
from tacit.training.models.tokens import load_tokenizer
from tacit.training.tasks.examples import IGNORED
from tacit.training.tasks.mask_inference import WEAK, Guessed, guess_masked, verdict
from tacit.training.tasks.masking import (
    Aligned,
    Pretraining,
    align,
    logits_at,
    masked_examples,
    original_losses,
    pretrain,
)

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = list("abcdefghijklmnop")
PIECES = [*SPECIAL, *LETTERS, "##z"]
QUICK = Pretraining(60, 32, 5e-3, context=16, held_out=50, seed=1)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A very small encoder whose words are letters."""
    folder = tmp_path_factory.mktemp("encoder")
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    tokenizer = BertTokenizerFast(vocab=str(folder / "vocab.txt"))
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(PIECES), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=32,
    )  # fmt: skip
    BertForMaskedLM(config).save_pretrained(folder)
    return folder


def alike(count: int, seed: int = 0) -> list[str]:
    """Texts of one letter each: what is seen tells what is hidden."""
    rng = np.random.default_rng(seed)
    return [" ".join([LETTERS[n]] * 8) for n in rng.integers(0, len(LETTERS), count)]


def test_without_a_sanitizer_text_stands_for_itself(encoder: Path) -> None:
    tokenizer = load_tokenizer(encoder)
    aligned = align(["a b c", "d ? e"], tokenizer)
    assert [[p for (p,) in row] for row in aligned.shown] == [[5, 6, 7], [8, 1, 9]]
    assert aligned.target == [[5, 6, 7], [8, IGNORED, 9]]


def test_pieces_are_aligned_with_their_originals(encoder: Path) -> None:
    tokenizer, work = (
        load_tokenizer(encoder),
        Sanitizer(open_embeddings(encoder), Recipe("random"), seed=1),
    )
    aligned = align(["a b c d"], tokenizer, work)
    assert aligned.target == [[5, 6, 7, 8]]
    assert [len(p) for p in aligned.shown[0]] == [1, 1, 1, 1]
    assert [p for (p,) in aligned.shown[0]] != aligned.target[0]
    same = Sanitizer(open_embeddings(encoder), Recipe("santext", 1e6), seed=1)
    assert align(["a b c d"], tokenizer, same).shown == [[[5], [6], [7], [8]]]


def test_words_of_several_pieces(encoder: Path) -> None:
    tokenizer = load_tokenizer(encoder)
    vectors = np.eye(3, dtype=np.float32)
    words = Embedding("words", ("a", "bz", "c"), vectors)
    aligned = align(["a bz c"], tokenizer, Sanitizer(words, Recipe("santext", 1e6), seed=1))
    # "bz" is two pieces, so one mask cannot stand for it.
    assert aligned.shown == [[[5], [6, 21], [7]]]
    assert aligned.target == [[5, IGNORED, 7]]
    with pytest.raises(UsageError, match="unknown=drop"):
        align(["a"], tokenizer, Sanitizer(words, Recipe("random", unknown="drop"), seed=1))


def test_masks_hide_the_shown_and_ask_for_the_original(encoder: Path) -> None:
    tokenizer = load_tokenizer(encoder)
    aligned = Aligned([[[5], [6, 21], [7]]] * 50, [[8, IGNORED, 9]] * 50)
    made = masked_examples(aligned, tokenizer, rng=np.random.default_rng(0))
    for ids, labels in zip(made.ids, made.labels or [], strict=True):
        hidden = ids == tokenizer.mask_token_id
        assert hidden.sum() == 1
        assert ((labels >= 0) == hidden).all()
        assert set(labels[hidden]) <= {8, 9}
        assert ids[0] == tokenizer.cls_token_id
        assert ids[-1] == tokenizer.sep_token_id
    with pytest.raises(DataError, match="no text"):
        masked_examples(Aligned([[]], [[]]), tokenizer, rng=np.random.default_rng(0))


def test_logits_at_the_masks_are_the_models_own(encoder: Path) -> None:
    model = load_model(encoder, "masked-word").eval()
    batch = {
        "input_ids": torch.tensor([[2, 5, 4, 3], [2, 4, 3, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]),
    }
    known = batch["input_ids"] == 4
    with torch.no_grad():
        torch.testing.assert_close(logits_at(model, batch, known), model(**batch).logits[known])
        losses = original_losses(
            model, {**batch, "labels": torch.where(known, 7, torch.tensor(IGNORED))}
        )
        wanted = -model(**batch).logits[known].log_softmax(-1)[:, 7]
    torch.testing.assert_close(losses, wanted)


def test_pretraining_learns_and_the_attack_succeeds_on_plain_text(
    encoder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "plain"
    assert pretrain(encoder, alike(400), folder, QUICK)["accuracy"] > 0.8
    model, tokenizer = load_model(folder, "masked-word"), load_tokenizer(folder)
    texts = alike(30, seed=9)
    plain = guess_masked(model, tokenizer, align(texts, tokenizer), context=16)
    assert plain.tokens == 240
    assert plain.defence_rate < 0.3
    assert "recovers" in verdict(plain)
    assert "too weak" not in verdict(plain)
    work = Sanitizer(open_embeddings(encoder), Recipe("random"), seed=3)
    hidden = guess_masked(model, tokenizer, align(texts, tokenizer, work), context=16)
    assert hidden.defence_rate > 0.75
    # One mask at a time, however the batches are cut.
    assert (
        guess_masked(model, tokenizer, align(texts, tokenizer), context=16, token_budget=64)
        == plain
    )


def test_pretraining_on_sanitized_text_recovers_more(encoder: Path, tmp_path: Path) -> None:
    """With the identity as mechanism, the original is what is shown; with `random`, hardly."""
    embedding = open_embeddings(encoder)
    found = [
        pretrain(encoder, alike(300), tmp_path / name, QUICK, sanitizer=work)
        for name, work in (
            ("same", Sanitizer(embedding, Recipe("santext", 1e6), seed=1)),
            ("random", Sanitizer(embedding, Recipe("random"), seed=1)),
        )
    ]
    assert found[0]["accuracy"] > found[1]["accuracy"] + 0.2


def test_the_two_commands(encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    from tacit.cli import run

    text = tmp_path / "public.txt"
    text.write_text("\n".join(alike(300)) + "\n")
    common = ["--epsilon-per-distance", "1000000", "--context", "16", "--json"]
    folder = str(tmp_path / "aware")
    words = ["pretrain", str(text), "--encoder", str(encoder), "--steps", "60", "--rate", "0.005",
             "--sanitize", "santext", "-o", folder, *common]  # fmt: skip
    assert run(words) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] > 0.8
    assert run(words) == 2
    capsys.readouterr()
    assert run(["guess", str(text), "--model", folder, "--texts", "20", *common]) == 0
    found = json.loads(capsys.readouterr().out)
    # At this epsilon nothing is changed.
    assert found["sanitized"] == found["unsanitized"]
    assert "too weak" not in found["verdict"]
    assert (
        run(["guess", str(text), "--model", folder, "--sanitize", "random", "--texts", "20"]) == 0
    )
    assert "defence rate" in capsys.readouterr().out


def test_a_weak_attacker_is_marked() -> None:
    assert "attacker too weak" in verdict(Guessed(1000, int(WEAK * 1000) - 1))
    assert "too weak" not in verdict(Guessed(1000, int(WEAK * 1000)))


def test_an_encoder_without_head_gets_a_new_one_and_fewer_layers(
    encoder: Path, tmp_path: Path
) -> None:
    base = load_model(encoder, "masked-word").base_model
    base.save_pretrained(tmp_path)
    found = load_model(tmp_path, "masked-word", layers=1)
    assert found.config.num_hidden_layers == 1
    torch.testing.assert_close(
        found.get_input_embeddings().weight, base.get_input_embeddings().weight
    )
    with pytest.raises(DataError, match="not the folder of a model"):
        load_model(tmp_path.parent, "masked-word")
