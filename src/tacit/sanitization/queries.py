"""One text sanitized on the user's side, before a model sees it."""

from pathlib import Path
from typing import Any

from tacit.corpus import Record
from tacit.errors import UsageError
from tacit.sanitization.embeddings import OWN, open_embeddings
from tacit.sanitization.operators import OPERATORS, FromDetectors, Replacer
from tacit.sanitization.recipes import METHODS, Recipe
from tacit.sanitization.sanitizer import Sanitizer
from tacit.sanitization.sensitive import choose_sensitive


def sanitize_query(
    text: str,
    method: str,
    *,
    epsilon_per_distance: float | None = None,
    embeddings: str = OWN,
    sensitive_words: Path | None = None,
    using: str = "patterns,lists",
) -> str:
    """The text as the model is to see it; nothing else of it should leave.

    Give the method, the epsilon and the embeddings that the training text was sanitized with: a
    model reads best what it learned from. Each query is a release of its own, with fresh chance.

    >>> len(sanitize_query("my order is late", "random").split())
    4
    """
    if method in OPERATORS:
        from tacit.detection import open_detectors

        if epsilon_per_distance is not None:
            raise UsageError(f"method={method} has no epsilon: it promises nothing.")
        operator: Any = method
        work = Replacer(operator, FromDetectors(open_detectors(using)))
        return work([Record("query", text)])[0][0]
    if method not in METHODS:
        raise UsageError(
            f"method={method} is not known; give one of {', '.join((*METHODS, *OPERATORS))}."
        )
    recipe = Recipe(method, epsilon_per_distance)  # type: ignore[arg-type]
    embedding = open_embeddings(embeddings)
    sensitive = choose_sensitive(embedding, words=sensitive_words) if method == "santext+" else None
    return Sanitizer(embedding, recipe, sensitive)(["query"], [text])[0][0]
