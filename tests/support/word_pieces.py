"""A tiny model folder whose vocabulary is pieces of words."""

import json
import struct
from pathlib import Path

import numpy as np

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "good", "film", "##s", "anna",
          ",", "un", "##seen"]  # fmt: skip


def model_folder(folder: Path, kind: str = "F32") -> Path:
    """A folder with a vocabulary and a safetensors file, written by hand."""
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    vectors = np.random.default_rng(0).standard_normal((len(PIECES), 4)).astype(np.float32)
    if kind == "BF16":
        data = (vectors.view(np.uint32) >> 16).astype("<u2").tobytes()
    else:
        data = vectors.astype({"F32": "<f4", "F16": "<f2"}[kind]).tobytes()
    entry = {"dtype": kind, "shape": list(vectors.shape), "data_offsets": [0, len(data)]}
    header = json.dumps({"bert.embeddings.word_embeddings.weight": entry}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    return folder
