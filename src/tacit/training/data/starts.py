"""What a public start says about itself: `start.json`, checked against the files beside it."""

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from tacit.corpus.overlap import Pieces, load_pieces
from tacit.errors import DataError
from tacit.privacy.certificates.manifest import file_digest
from tacit.training.settings import TextUnit

START, PIECES, WEIGHTS = "start.json", "pieces.npz", "model.safetensors"


class Start(BaseModel):
    """What a public start read, under which licence, and how well it does on text it did not read.

    `text` is a SHA-256 of all that it was given, `tokens` how many of them it read in one pass.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    corpus: tuple[str, ...]
    unit: TextUnit
    licence: str
    text: str
    tokens: int
    weights: int
    context: int
    steps: int
    scores: dict[str, float]
    files: dict[str, str]


def read_start(folder: Path) -> Start | None:
    """The start of a folder; None where it is none. Files that were changed since are refused."""
    file = folder / START
    if not file.is_file():
        return None
    try:
        start = Start.model_validate(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError):
        raise DataError(f"{file} does not describe a public start; build it again.") from None
    for name in (WEIGHTS, PIECES):
        if start.files.get(name) != file_digest(folder / name):
            raise DataError(
                f"{name} in {folder} is not what {START} names; build the start again, or take "
                f"{START} away and answer for the weights yourself."
            )
    return start


def start_pieces(folder: Path) -> Pieces:
    """The hashes of the text that a start was given."""
    return load_pieces(folder / PIECES)
