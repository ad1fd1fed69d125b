"""Who is protected, and under which caps.

`tacit.owners(corpus, found)` is the graph of a corpus: this package can be called.
"""

import sys
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tacit.corpus import Corpus
from tacit.corpus.reading import opened
from tacit.errors import UsageError
from tacit.owners.graph import (
    FORMAT,
    VERSION,
    Counts,
    Ints,
    Mask,
    Owners,
    describe,
    graph_of,
    most_shared,
)

if TYPE_CHECKING:
    from tacit.detection import Detection

__all__ = [
    "FORMAT", "VERSION", "Counts", "Ints", "Mask", "Owners", "describe", "most_shared", "owners",
]  # fmt: skip


class _Callable(ModuleType):
    """The graph record - user - entities of the training part of a corpus."""

    def __call__(
        self, corpus: Corpus | str | Path, found: "Detection", kinds: Collection[str] | None = None
    ) -> Owners:
        """Who wrote which record, and whom it names, by what was detected."""
        whole = opened(corpus)
        if not hasattr(found, "mentions"):
            raise UsageError(
                f"A {type(found).__name__} holds no mentions; give what tacit.detect(corpus) found."
            )
        part = whole.only("train") if "train" in whole.splits() else whole
        return graph_of(part, found.mentions, found.provenance, kinds)


owners: _Callable = sys.modules[__name__]  # type: ignore[assignment]
owners.__class__ = _Callable
