"""How fast a model would learn here: from runs that ended here, else guessed from its size."""

import time
from functools import cache

import numpy as np
from sqlalchemy import select

from tacit.server import Json
from tacit.server.run_requests import shape_of
from tacit.server.storage import Job, Storage
from tacit.training.settings import Run

# Fitted to private steps of four models (LSTMs of 16, 96 and two layers of 256, GPT-2 of four
# layers of 256; 4,000 words), of which it misses none by more than a fifth.
_SHARE_OF_PRODUCT = 0.75
_OPERATIONS_PER_WORD = 850.0
_CHARACTERS_PER_TOKEN = 3.5

_LSTM = {"embedding_size": 100, "hidden_size": 200, "layers": 1}
_SIZES: dict[str, dict[str, int]] = {
    "lstm": _LSTM,
    "awd-lstm": {"embedding_size": 100, "hidden_size": 1150, "layers": 3},
    "gpt2": {"hidden_size": 768, "layers": 12},
    "bert": {"hidden_size": 768, "layers": 12},
    "llama": {"hidden_size": 4096, "layers": 32},
}
"""What a model has where nothing is said."""


def records_per_second(storage: Storage, run: Run, characters: float) -> tuple[float | None, str]:
    """Records a second, and what that is known from; `characters` has a record in the mean."""
    query = select(Job.result).where(Job.kind == "train", Job.state.in_(("done", "deleted")))
    results = storage.scalars(query.order_by(Job.id.desc()).limit(50))
    shape = shape_of(run)
    same = [
        float(r["records_per_second"])
        for r in results
        if r and r.get("records_per_second") and r.get("shape") == shape
    ][:5]
    if same:
        return sum(same) / len(same), "from the speed of the last runs of this very model here"
    needed = operations_per_token(run)
    if needed is None:
        return None, "not known before a first run of such a model here"
    tokens = min(float(run.context), max(1.0, characters / _CHARACTERS_PER_TOKEN))
    return (
        _operations_per_second() / (needed * tokens),
        "guessed from the size of the model and the speed of this machine; known better after a "
        "first run",
    )


def operations_per_token(run: Run) -> float | None:
    """What a token costs in a step, forward and back; None for a model that is not described."""
    if run.model.kind not in _SIZES:
        return None
    sizes: Json = _SIZES[run.model.kind] | run.model.config
    try:
        width, layers = int(sizes["hidden_size"]), int(sizes["layers"])
        inside = 12.0 * layers * width**2
        if "embedding_size" in sizes:  # an LSTM: four gates that see input and state
            inside = 4.0 * width * (int(sizes["embedding_size"]) + width * (2 * layers - 1))
    except (TypeError, ValueError):
        return None
    words = run.tokenizer.size if run.task == "next-word" else 0
    return 6 * (inside + width * words) / _SHARE_OF_PRODUCT + _OPERATIONS_PER_WORD * words


@cache
def _operations_per_second() -> float:
    """The speed of a matrix product on one core here, measured once."""
    square = np.ones((512, 512), dtype=np.float32)
    square @ square
    begun = time.thread_time()
    for _ in range(4):
        square @ square
    return 4 * 2 * 512**3 / max(time.thread_time() - begun, 1e-6)
