"""What made a model: digests of the code and of the material that decide its weights."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from torch import nn

import tacit
from tacit.training.data.training_data import TrainingData
from tacit.training.models.weights import digest_of
from tacit.training.tasks.examples import Examples

_PARTS = ("training", "privacy", "planning", "owners")


def code_digest(*also: str) -> str:
    """A SHA-256 over the sources of training and privacy, folders inside them included."""
    sha = hashlib.sha256()
    root = Path(tacit.__file__).parent
    for part in (*_PARTS, *also):
        place = root / part
        for file in [place] if place.is_file() else sorted(place.rglob("*.py")):
            sha.update(file.relative_to(root).as_posix().encode())
            sha.update(file.read_bytes())
    return sha.hexdigest()


def training_data_digest(training_data: TrainingData, model: nn.Module) -> str:
    """A SHA-256 over what is learnt from, as it is learnt.

    That is tokens, marks, labels, owners, what the caps kept, the names that may be shown, and the
    weights that stay as they are. A corpus alone does not decide these: mentions, lists, policies,
    tokenizers and the folder of a model are read from other files, and detectors from other code.
    """
    examples = training_data.examples
    assert isinstance(examples, Examples)
    sha = hashlib.sha256()

    def add(arrays: Iterable[np.ndarray]) -> None:
        for array in arrays:
            sha.update(f"{array.dtype.str}{array.shape}".encode())
            sha.update(np.ascontiguousarray(array).tobytes())

    add([examples.user, examples.record])
    add(examples.ids)
    for kept in (examples.sensitive, examples.types, examples.labels):
        add(kept if isinstance(kept, list) else [] if kept is None else [kept])
    if training_data.owners is not None:
        sha.update(training_data.owners.digest().encode())
    if training_data.names is not None:
        sha.update(training_data.names.digest().encode())
    add([training_data.rows, *training_data.rows_of_user])
    frozen = [p for p in model.parameters() if not p.requires_grad]
    for tensor in (*frozen, *model.buffers()):
        sha.update(digest_of(tensor).encode())
    return sha.hexdigest()
