"""Writing files so that nothing is half-written and nothing is lost."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import mkdtemp

from tacit.errors import DataError, UsageError


def refuse_overwrite(*paths: Path, overwrite: bool = False) -> None:
    """Stop before any work if a result would replace a file that is already there."""
    for path in paths:
        if path.exists() and not overwrite:
            raise UsageError(
                f"{path} exists; choose another name, or add --overwrite to replace it."
            )
        if path.is_dir():
            raise UsageError(f"{path} is a folder; give the name of a file.")


def require_file(path: Path) -> Path:
    """The path, if a file is there; else one clear sentence."""
    if path.is_dir():
        raise DataError(f"{path} is a folder; give a file.")
    if not path.exists():
        raise DataError(f"{path} does not exist; check the name and the folder.")
    return path


def beside(corpus: Path, what: str) -> Path:
    """Where something that belongs to a corpus is kept: dialogs.jsonl, dialogs.canaries.json.

    >>> beside(Path("a/dialogs.jsonl.gz"), "canaries").as_posix()
    'a/dialogs.canaries.json'
    """
    stem = corpus.name.removesuffix(".gz").rpartition(".")[0]
    return corpus.with_name(f"{stem or corpus.name}.{what}.json")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` that becomes `path` only if the block succeeds.

    The temporary file is on the same file system, so the last rename is atomic: a reader
    sees the old file or the whole new one, and a failure leaves nothing behind.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    draft = folder / path.name
    try:
        yield draft
        os.replace(draft, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def whole_files(*paths: Path) -> Iterator[list[Path]]:
    """Drafts of several files that appear together, or not at all if the block fails."""
    with ExitStack() as drafts:
        yield [drafts.enter_context(whole_file(path)) for path in paths]


def write_text(path: Path, text: str) -> None:
    """A whole file, or one sentence why not."""
    try:
        with whole_file(path) as draft:
            draft.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise DataError(
            f"{path} could not be written ({problem.strerror}); is the disk full? Make room, then "
            "begin or --resume."
        ) from None
