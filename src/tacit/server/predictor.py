"""A process that answers questions to models: a line of JSON comes in, one goes out.

The server starts it and kills it when an answer takes too long. It has no database, no token and no
text but the one that it was just asked about, and it ends with the server, whose end closes its
standard input.
"""

import contextlib
import json
import os
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

from tacit.errors import TacitError
from tacit.saved_json import spelled
from tacit.server import Json

_NICER = 5
"""Behind the server, which answers everybody else on the same cores."""


class Loaded:
    """The models that were asked last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._models: OrderedDict[str, Any] = OrderedDict()

    def answer(self, asked: Json) -> Json:
        """Do what a line asks for."""
        from tacit.training.evaluation.predicting import answer

        folder = str(asked["folder"])
        if "text" not in asked:
            self._models.pop(folder, None)
            return {}
        shared = self._model(folder)
        return answer(
            shared.model, shared.tokenizer, shared.task, asked["text"], words=asked["words"],
            choices=asked["choices"], seconds=asked["seconds"],
        )  # fmt: skip

    def _model(self, folder: str) -> Any:
        from tacit.training.models.shared import load_shared

        if folder not in self._models:
            while len(self._models) >= self._most:
                self._models.popitem(last=False)
            self._models[folder] = load_shared(Path(folder))
        self._models.move_to_end(folder)
        return self._models[folder]


def refusal(error: Exception) -> Json:
    """An error as the server may repeat it: only this package's own sentences quote no text."""
    if isinstance(error, TacitError):
        return {"error": type(error).__name__, "message": str(error)}
    return {"error": "DataError", "message": "The model cannot answer this."}


def main() -> None:
    """Answer until nobody asks any more."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is no answer
    with contextlib.suppress(OSError):
        os.nice(_NICER)
    import tacit.training.evaluation.predicting
    import tacit.training.models.shared  # noqa: F401

    loaded = Loaded(int(sys.argv[1]))
    print(json.dumps({"ready": True}, allow_nan=False), file=out, flush=True)
    for line in sys.stdin:
        try:
            answered = {"answer": loaded.answer(json.loads(line))}
        except Exception as error:
            answered = refusal(error)
        print(json.dumps(spelled(answered), allow_nan=False), file=out, flush=True)


if __name__ == "__main__":
    main()
