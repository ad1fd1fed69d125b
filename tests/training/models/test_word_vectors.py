"""Public word vectors as first embeddings: looked up, brought to width and scale, and declared."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tacit.corpora import customersim
from tacit.corpus import Corpus
from tacit.corpus.writing import write
from tacit.errors import DataError, PrivacyRefused, UsageError
from tacit.sanitization.embeddings import Embedding
from tacit.training.models import tokens
from tacit.training.models.networks import scratch_model
from tacit.training.models.word_vectors import begin_with_vectors, open_vectors
from tacit.training.phases import session
from tacit.training.settings import Run

WORDS = ("sea", "wave", "rock", "sun", "sand", "wind")


def vectors(width: int) -> np.ndarray:
    return np.random.default_rng(1).normal(3, 2, (len(WORDS), width)).astype(np.float32)


def model_for(width: int) -> tuple[Any, Any]:
    text = " ".join((*WORDS, "unseen"))
    corpus = Corpus.from_records([{"id": "1", "text": text}])
    tokenizer, _ = tokens.word_vocabulary(corpus, min_count=1)
    config = {"kind": "lstm", "embedding_size": width, "hidden_size": width, "layers": 1}
    return scratch_model(config, "next-word", tokenizer=tokenizer), tokenizer


def angles(rows: np.ndarray) -> np.ndarray:
    rows = rows - rows.mean(0)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows @ rows.T


@pytest.mark.parametrize("width", [6, 5, 10])
def test_words_begin_where_their_vectors_stand(width: int) -> None:
    model, tokenizer = model_for(width)
    table = model.get_input_embeddings().weight
    before = table.detach().clone()
    begin_with_vectors(model, tokenizer, Embedding("v", WORDS, vectors(6)), 0)
    own = [tokenizer.get_vocab()[word] for word in WORDS]
    after = table.detach().numpy()
    # Six centred points span five directions, so five principal components keep all angles.
    assert np.allclose(angles(after[own][:, :6]), angles(vectors(6)), atol=1e-4)
    assert torch.equal(table[:, 6:], before[:, 6:])
    reach = after[own][:, :6].std()
    assert reach == pytest.approx(float(before.std()), rel=0.02)
    unseen = after[tokenizer.get_vocab()["unseen"], :6]
    assert np.abs(unseen).max() < reach
    assert np.abs(unseen).max() > 0
    assert model.get_output_embeddings().weight is table  # a tied head learnt the same


def test_the_same_seed_gives_the_same_table() -> None:
    made = []
    for seed in (0, 0, 1):
        model, tokenizer = model_for(6)
        begin_with_vectors(model, tokenizer, Embedding("v", WORDS, vectors(6)), seed)
        made.append(model.get_input_embeddings().weight.detach())
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


def test_pieces_of_words_are_found_as_words_too() -> None:
    tokenizer = tokens.byte_level_bpe(["sea Wave sea Wave rock"] * 5, 300)
    model = scratch_model({"kind": "lstm", "embedding_size": 6, "hidden_size": 6}, "next-word",
                          tokenizer=tokenizer)  # fmt: skip
    begin_with_vectors(model, tokenizer, Embedding("v", WORDS, vectors(6)), 0)
    known = tokenizer.get_vocab()
    rows = [known["Ġsea"], known["ĠWave"], known["Ġrock"]]
    after = model.get_input_embeddings().weight.detach().numpy()[rows]
    assert np.allclose(angles(after), angles(vectors(6)[:3]), atol=1e-4)


def test_vectors_without_a_known_word_are_refused() -> None:
    model, tokenizer = model_for(6)
    with pytest.raises(DataError, match="no two words of the tokenizer"):
        begin_with_vectors(model, tokenizer, Embedding("v", ("x", "y"), vectors(6)[:2]), 0)


def test_what_is_not_there_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TACIT_DATA", raising=False)
    with pytest.raises(UsageError, match="which folder holds it"):
        open_vectors("glove", None)
    with pytest.raises(DataError, match="no file glove"):
        open_vectors("glove", str(tmp_path))
    with pytest.raises(DataError, match="is not a file"):
        open_vectors("vectors.npz", None)
    np.savez(tmp_path / "glove_6d.npz", words=np.array(WORDS), vectors=vectors(6))
    assert open_vectors("glove", str(tmp_path)).words == WORDS


def test_wordllama_gives_every_word_a_vector() -> None:
    pytest.importorskip("wordllama")
    model, tokenizer = model_for(16)
    found = open_vectors("wordllama", None)
    begin_with_vectors(model, tokenizer, found, 0)
    own = [tokenizer.get_vocab()[word] for word in (*WORDS, "unseen")]
    rows = model.get_input_embeddings().weight.detach().numpy()[own]
    assert np.linalg.norm(rows, axis=1).min() > 0.1 * np.linalg.norm(rows, axis=1).max()
    assert "wordllama" in found.name


def test_vectors_stand_on_the_certificate_and_are_compared(tmp_path: Path) -> None:
    private = customersim.generate(60, 3)
    write(private, tmp_path / "c.jsonl")
    np.savez(tmp_path / "v.npz", words=np.array(["a", "e", *WORDS]),
             vectors=np.ones((8, 4), np.float32) * np.arange(8)[:, None])  # fmt: skip
    fields: dict[str, Any] = {
        "corpus": str(tmp_path / "c.jsonl"), "tokenizer": {"size": 300}, "context": 16,
        "model": {"config": {"embedding_size": 4, "hidden_size": 4},
                  "embeddings": str(tmp_path / "v.npz")},
        "plan": {"protect": "users", "epsilon": 4, "steps": 1, "user_rate": 0.5, "users": 50},
    }  # fmt: skip
    run = Run(**fields)
    assert run.shareable()["model"]["embeddings"] == "v.npz"
    done = session.train(run, tmp_path / "run")
    named = {one.what: one for one in done.certificate.public}
    assert named["the word vectors"].name == "v.npz"
    assert named["the word vectors"].sha256
    assert "list of all words" in str(named["the word vectors"].checked)
    words = sorted({w for text in private.column("text").to_pylist() for w in text.split()})
    np.savez(tmp_path / "v.npz", words=np.array(words), vectors=np.ones((len(words), 4)))
    with pytest.raises(PrivacyRefused, match="holds the words of the private text"):
        session.train(run, tmp_path / "again")
