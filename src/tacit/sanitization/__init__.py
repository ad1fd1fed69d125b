"""Change text on its owner's side: metric local privacy for words, and plain operators.

words, embeddings, pieces   text as points
sensitive                   which words are sensitive
kernel                      exact rows and draws
recipes, sanitizer          a method with its parameters; texts in, texts out
operators                   redact, mask, pseudonym
streaming, certifying       files in and out, a ledger and a certificate
profiling                   numbers to choose epsilon by
queries                     one text, before a model sees it
"""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pyarrow as pa

from tacit.corpus import Corpus
from tacit.errors import UsageError
from tacit.files import refuse_overwrite
from tacit.privacy.certificates.local_privacy import LocalCertificate
from tacit.privacy.certificates.scope import PublicInput
from tacit.sanitization.certification import Certified
from tacit.sanitization.embeddings import OWN, Embedding, open_embeddings
from tacit.sanitization.operators import Replacer
from tacit.sanitization.recipes import METHODS, Method, Recipe, Unknown
from tacit.sanitization.sanitizer import Counted, Progress, Sanitizer, as_it_stands
from tacit.sanitization.sensitive import Sensitive, choose_sensitive
from tacit.sanitization.streaming import CorpusFile, Passing
from tacit.workers import Workers


def sanitize(
    corpus: Corpus,
    method: Method = "santext",
    *,
    epsilon_per_distance: float | None = None,
    replace_plain_rate: float | None = None,
    sensitive_share: float | None = None,
    sensitive_words: Path | None = None,
    embeddings: str | Path | Embedding = OWN,
    unknown: Unknown = "random",
    seed: int | None = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> Corpus:
    """The corpus with every text sanitized word by word; columns of the old text are left out.

    Release what comes out with a certificate: `tacit sanitize` writes one.

    >>> corpus = Corpus.from_records([{"id": "1", "text": "my order is late"}])
    >>> len(sanitize(corpus, epsilon_per_distance=1.0).column("text")[0].as_py().split())
    4
    """
    recipe = Recipe(method, epsilon_per_distance, replace_plain_rate, unknown)
    embedding = embeddings if isinstance(embeddings, Embedding) else open_embeddings(embeddings)
    sensitive = None
    if method == "santext+":
        sensitive = choose_sensitive(embedding, share=sensitive_share, words=sensitive_words)
    elif sensitive_share is not None or sensitive_words is not None:
        raise UsageError("Sensitive words go with method=santext+.")
    sanitizer = Sanitizer(embedding, recipe, sensitive, seed=seed, workers=workers)
    done = Passing(sanitizer, progress)(corpus.table.to_batches())
    table = pa.Table.from_batches(list(done))
    kept = [n for n in table.column_names if n in corpus.columns]
    return Corpus(table.select(kept), name=corpus.name)


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
        certified = Certified(
            inside, work, more=context or {}, public=public, leaks=leaks, columns=file.columns
        )
        certified.charge(passing.digest)
        certificate = certified.issue(drafts / to.name, to.name)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(inside, folder)
        os.replace(drafts / to.name, to)
    finally:
        shutil.rmtree(drafts, ignore_errors=True)
    return Written(to, folder, certificate, passing.counted)


__all__ = [
    "METHODS",
    "Embedding",
    "Recipe",
    "Replacer",
    "Sanitizer",
    "Sensitive",
    "Written",
    "as_it_stands",
    "certificate_folder",
    "choose_sensitive",
    "open_embeddings",
    "sanitize",
    "sanitize_file",
]
