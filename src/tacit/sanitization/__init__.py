"""Change text on its owner's side: metric local privacy for words, and plain operators.

words, embeddings, pieces   text as points
sensitive                   which words are sensitive
kernel                      exact rows and draws
mechanisms, sanitizer       mechanisms by name, with their parameters; texts in, texts out
operators                   redact, mask, pseudonym
streaming, certification      files in and out, a ledger and a certificate
profiling                   numbers to choose epsilon by
"""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pyarrow as pa

from tacit.corpus import Corpus, Record
from tacit.corpus.reading import opened
from tacit.corpus.writing import CorpusFile
from tacit.errors import UsageError
from tacit.files import refuse_overwrite
from tacit.privacy.certificates.local_privacy import LocalCertificate
from tacit.privacy.certificates.scope import PublicInput
from tacit.sanitization.certification import Certified
from tacit.sanitization.embeddings import OWN, Embedding, open_embeddings
from tacit.sanitization.mechanisms import MECHANISMS, Progress, Recipe
from tacit.sanitization.operators import FromDetectors, MentionMechanism, Replacer
from tacit.sanitization.sanitizer import Counted, Sanitizer, as_it_stands, open_sanitizer
from tacit.sanitization.sensitive import Sensitive, choose_sensitive
from tacit.sanitization.streaming import PASSED_ON, Passing
from tacit.workers import Workers


def sanitize(
    corpus: Corpus | str | Path,
    recipe: Recipe | str,
    embeddings: str | Path | Embedding = OWN,
    *,
    epsilon_per_distance: float | None = None,
    replace_plain_rate: float | None = None,
    seed: int | None = None,
    workers: int = 1,
    progress: Progress | None = None,
    **sensitive: Any,
) -> Corpus:
    """The corpus with every text sanitized word by word; columns of the old text are left out.

    `recipe` is a method's name, with its epsilon, or a `Recipe` with all of its fields; `sensitive`
    are the options of `choose_sensitive`, for mechanisms that know sensitive words.
    Release what comes out with a certificate: `tacit sanitize` writes one.

    >>> corpus = Corpus.from_records([{"id": "1", "text": "my order is late"}])
    >>> done = sanitize(corpus, "santext", epsilon_per_distance=1.0)
    >>> len(done.column("text")[0].as_py().split())
    4
    """
    corpus = opened(corpus)
    if isinstance(recipe, str):
        recipe = Recipe(recipe, epsilon_per_distance, replace_plain_rate)
    elif epsilon_per_distance is not None or replace_plain_rate is not None:
        raise UsageError("A Recipe says its epsilon and its rate itself; leave these out.")
    work = open_sanitizer(recipe, embeddings, seed=seed, workers=workers, **sensitive)
    done = Passing(work, progress)(corpus.table.to_batches())
    table = pa.Table.from_batches(list(done))
    kept = [n for n in table.column_names if n in corpus.columns]
    return Corpus(table.select(kept), name=corpus.name)


def sanitize_query(
    text: str,
    method: str,
    *,
    epsilon_per_distance: float | None = None,
    embeddings: str = OWN,
    sensitive_words: Path | None = None,
    using: str = "patterns,lists,names",
) -> str:
    """One text as a model is to see it, sanitized on its owner's side.

    Give the method, the epsilon and the embeddings that the training text was sanitized with: a
    model reads best what it learned from. Each query is a release of its own, with fresh
    randomness.

    >>> len(sanitize_query("my order is late", "random").split())
    4
    """
    if issubclass(MECHANISMS[method], MentionMechanism):
        if epsilon_per_distance is not None:
            raise UsageError(f"method={method} has no epsilon: it promises nothing.")
        return Replacer(method, FromDetectors(using))([Record("query", text)])[0][0]
    recipe = Recipe(method, epsilon_per_distance)
    return open_sanitizer(recipe, embeddings, words=sensitive_words)(["query"], [text])[0][0]


@dataclass(frozen=True)
class Written:
    """What a sanitized file came with; the counts are exact and stay inside."""

    file: Path
    folder: Path
    certificate: LocalCertificate
    counted: Counted


def certificate_folder(file: Path) -> Path:
    """Where the certificate of an output lies: beside it.

    >>> certificate_folder(Path("a/out.jsonl.gz")).name
    'out.certificate'
    """
    stem = Path(file.name.removesuffix(".gz")).stem
    return file.with_name(stem + ".certificate")


def _move_into_place(inside: Path, folder: Path, draft: Path, to: Path) -> None:
    """The certificate first: text without one would be worse than a certificate without text."""
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(inside, folder)
    os.replace(draft, to)


def sanitize_file(
    batches: Iterable[pa.RecordBatch],
    to: Path,
    work: Sanitizer | Replacer,
    *,
    drop: Sequence[str] = (),
    leaks: Sequence[str] = (),
    context: Mapping[str, Any] | None = None,
    public: Sequence[PublicInput] = (),
    overwrite: bool = False,
    progress: Progress | None = None,
    workers: Workers | None = None,
) -> Written:
    """Sanitize a stream of records into a file, with a ledger and a certificate beside it.

    Everything is made under a temporary name. The ledger is on disk before the certificate, the
    certificate before the text; a failure leaves nothing behind. `workers` share the records: for
    the same seed, the same file. `public` are inputs that were compared with the text, `context`
    what else a reader should know.
    """
    folder = certificate_folder(to)
    refuse_overwrite(to, overwrite=overwrite)
    if folder.exists() and not overwrite:
        raise UsageError(f"{folder} exists; choose another name, or add --overwrite.")
    to.parent.mkdir(parents=True, exist_ok=True)
    drafts = Path(mkdtemp(prefix=f".{to.name}.", dir=to.parent))
    try:
        passing = Passing(work, progress, workers)
        with CorpusFile(drafts / to.name, drop=drop) as file:
            for batch in passing(batches):
                file.write(batch)
        inside = drafts / folder.name
        inside.mkdir()
        columns = [name for name in PASSED_ON if name in file.held]
        certified = Certified(
            inside, work, more=context or {}, public=public, leaks=leaks, columns=columns
        )
        certified.charge(passing.digest)
        certificate = certified.issue(drafts / to.name, to.name)
        _move_into_place(inside, folder, drafts / to.name, to)
    finally:
        shutil.rmtree(drafts, ignore_errors=True)
    return Written(to, folder, certificate, passing.counted)


__all__ = [
    "MECHANISMS",
    "Embedding",
    "MentionMechanism",
    "Recipe",
    "Replacer",
    "Sanitizer",
    "Sensitive",
    "Written",
    "as_it_stands",
    "certificate_folder",
    "choose_sensitive",
    "open_embeddings",
    "open_sanitizer",
    "sanitize",
    "sanitize_file",
    "sanitize_query",
]
