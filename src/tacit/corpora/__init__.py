"""The papers' corpora by name: each loader knows its files, its user rule and its splits.

The corpora themselves are not part of this package; `load` reads copies that you have.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tacit.corpora.agnews import load_ag_news
from tacit.corpora.conll import load_conll2003
from tacit.corpora.cuad import load_cuad
from tacit.corpora.glue import load_qnli, load_sst2, load_stsb
from tacit.corpora.newsgroups import load_newsgroups20
from tacit.corpora.sources import corpus_folder
from tacit.corpora.wikitext import load_wikitext2
from tacit.corpus import Corpus
from tacit.errors import UsageError

__all__ = ["known", "load"]


@dataclass(frozen=True)
class Entry:
    """A corpus's line in the registry."""

    load: Callable[[Path, int], pa.Table]
    summary: str


_REGISTRY = {
    "conll2003": Entry(
        load_conll2003, "news with entity and part-of-speech tags; a document is a user"
    ),
    "ag_news": Entry(
        load_ag_news, "news of four topics; records dealt to users with N(15, 2²) each"
    ),
    "wikitext2": Entry(
        load_wikitext2,
        "encyclopedia text; an article is a user; without a train file, valid is train",
    ),
    "sst2": Entry(load_sst2, "film review sentences, negative or positive; records dealt to users"),
    "qnli": Entry(
        load_qnli,
        "questions and sentences, entailment or not; records dealt to users; "
        "without a train file, dev is split into train and test",
    ),
    "stsb": Entry(
        load_stsb, "sentence pairs scored for likeness from 0 to 5; records dealt to users"
    ),
    "cuad": Entry(load_cuad, "contract paragraphs with expert clause labels; a company is a user"),
    "newsgroups20": Entry(load_newsgroups20, "posts to twenty newsgroups; an author is a user"),
}


def known() -> dict[str, str]:
    """The corpora that can be loaded, each with a line about it."""
    return {name: entry.summary for name, entry in _REGISTRY.items()}


def load(name: str, data: Path, *, seed: int = 0) -> Corpus:
    """All splits of a corpus, read from its folder or from a parent that holds `data/name`.

    The seed decides what the release leaves open: which user a record is dealt to, and the
    splits where none are given.
    """
    if name not in _REGISTRY:
        raise UsageError(f"corpus {name!r} is unknown; accepted: {', '.join(_REGISTRY)}.")
    if seed < 0:
        raise UsageError(f"seed={seed} is negative; give 0 or more.")
    table = _REGISTRY[name].load(corpus_folder(Path(data), name), seed)
    return Corpus(table, name=name)
