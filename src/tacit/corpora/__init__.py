"""The papers' corpora by name: each loader knows its files, its user rule and its splits.

The corpora themselves are not part of this package; `load` reads copies that you have. An installed
package adds a corpus by an entry point of the group `tacit.corpora` that names a `NamedCorpus`.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tacit.corpora.sources import corpus_folder
from tacit.corpus import Corpus
from tacit.corpus.reading import Layout, read
from tacit.errors import UsageError
from tacit.registry import Registry


@dataclass(frozen=True)
class NamedCorpus:
    """A corpus that can be loaded by name: a line about it, and what reads its folder.

    `read` takes the folder and a seed, and gives all splits as a table of the corpus schema.
    """

    summary: str
    read: Callable[[Path, int], pa.Table]


CORPORA: Registry[NamedCorpus] = Registry(
    "corpus",
    "tacit.corpora",
    {
        "conll2003": "tacit.corpora.conll:CONLL2003",
        "ag_news": "tacit.corpora.agnews:AG_NEWS",
        "wikitext2": "tacit.corpora.wikitext:WIKITEXT2",
        "sst2": "tacit.corpora.glue:SST2",
        "qnli": "tacit.corpora.glue:QNLI",
        "stsb": "tacit.corpora.glue:STSB",
        "cuad": "tacit.corpora.cuad:CUAD",
        "newsgroups20": "tacit.corpora.newsgroups:NEWSGROUPS20",
    },
)


def load(name: str, data: Path, *, seed: int = 0) -> Corpus:
    """All splits of a corpus, read from its folder or from a parent that holds `data/name`.

    The seed decides what the release leaves open: which user a record is dealt to, and the
    splits where none are given.
    """
    corpus = CORPORA[name]
    if seed < 0:
        raise UsageError(f"seed={seed} is negative; give 0 or more.")
    return Corpus(corpus.read(corpus_folder(Path(data), name), seed), name=name)


def is_known(name: str) -> bool:
    """Whether this names a corpus of the registry; a file of that name comes first."""
    return name in CORPORA and not Path(name).exists()


def open_corpus(
    name: str,
    data: str | Path | None = None,
    layout: Layout | None = None,
    progress: Callable[[int], None] | None = None,
) -> Corpus:
    """A corpus by file, or by name from the folder that holds the known ones."""
    if not is_known(name):
        return read(Path(name), layout, progress=progress)
    folder = data or os.environ.get("TACIT_DATA")
    if folder is None:
        raise UsageError(
            f"{name} is a known corpus; say which folder holds it with --data DIR, in a run with "
            "--set data=DIR (or set TACIT_DATA)."
        )
    return load(name, Path(folder))
