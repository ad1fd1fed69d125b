"""Models written as GGUF files, read back by transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch

from support.topics import TOKENIZER
from tacit.errors import UsageError
from tacit.training.models import networks, tokens
from tacit.training.models.gguf_files import write_gguf


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_what_is_written_is_read(kind: str, tied: bool, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {
        "kind": kind,
        "layers": 2,
        "hidden_size": 32,
        "heads": 4,
        "context": 32,
    }
    if kind == "llama":
        sizes |= {"num_key_value_heads": 2}
    sizes |= {"tie_word_embeddings": tied}
    model = networks.scratch_model(sizes, "next-word", tokenizer=TOKENIZER)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    write_gguf(model, TOKENIZER, tmp_path / "model.gguf")
    again = networks.load_model(tmp_path / "model.gguf", "next-word").eval()
    ids = torch.tensor([TOKENIZER("a small text of our own")["input_ids"]])
    torch.testing.assert_close(again(ids).logits, model.eval()(ids).logits, rtol=1e-4, atol=1e-4)
    read = tokens.load_tokenizer(str(tmp_path / "model.gguf"))
    for text in ("a small text of our own", "Grüße, 12 x"):
        # Ours puts a space before a text, which readers of these files leave to the caller.
        assert read(" " + text)["input_ids"] == TOKENIZER(text)["input_ids"]


def test_what_has_no_place_there(tmp_path: Path) -> None:
    sizes = {"kind": "lstm", "hidden_size": 8, "embedding_size": 8}
    lstm = networks.scratch_model(sizes, "next-word", tokenizer=TOKENIZER)
    with pytest.raises(UsageError, match="has no layout in GGUF"):
        write_gguf(lstm, TOKENIZER, tmp_path / "model.gguf")
    assert not list(tmp_path.iterdir())
