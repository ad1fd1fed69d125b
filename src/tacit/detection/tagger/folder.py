"""The folder that a tagger is saved in: whole or not at all, and checked when it is read."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tacit.detection.tagger.features import FEATURES
from tacit.errors import DataError, UsageError
from tacit.saved_json import spelled

FORMAT = 1

MODEL, LEXICON, ABOUT = "tagger.crfsuite", "lexicon.json", "tagger.json"


def refuse_folder(out: Path, overwrite: bool) -> None:
    """Refuse a name that is taken, unless a tagger's folder may be replaced."""
    if not out.exists():
        return
    if not overwrite:
        raise UsageError(f"{out} exists; choose another name, or add --overwrite to replace it.")
    # Never remove what may be somebody's other folder.
    if not out.is_dir() or (any(out.iterdir()) and not (out / ABOUT).is_file()):
        raise UsageError(f"{out} is not a tagger's folder; choose another name.")


def draft_folder(out: Path) -> Path:
    """A new folder beside the wanted one, to be filled and then moved."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        return Path(mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise UsageError(
            f"{out} cannot be written ({error.strerror}); choose a folder where you may write."
        ) from None


def move_into_place(draft: Path, out: Path) -> None:
    """Give the finished folder its name; mkdtemp made it private, the umask may be wider."""
    umask = os.umask(0)
    os.umask(umask)
    draft.chmod(0o777 & ~umask)
    if out.exists():
        old = Path(mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        os.replace(out, old)
        os.replace(draft, out)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.replace(draft, out)


def write_json(path: Path, row: Mapping[str, Any]) -> None:
    """Write a JSON object; what people read is indented."""
    indent = 2 if path.name == ABOUT else None
    text = json.dumps(spelled(row), ensure_ascii=False, indent=indent, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_about(folder: Path) -> dict[str, Any]:
    """What a tagger's folder says about itself, if this version can read it."""
    path = folder / ABOUT
    if not path.is_file():
        raise DataError(
            f"{folder} is not a tagger's folder: it has no {ABOUT}; make one with "
            "`tacit detect train CORPUS -o DIR`."
        )
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        version, features = about["format"], about["features"]
        whole = (
            isinstance(about["kinds"], list)
            and about["tokenizer"] in ("given", "pieces")
            and {MODEL, LEXICON} <= set(about["sha256"])
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        whole, version, features = False, FORMAT, FEATURES
    if not isinstance(version, int) or version != FORMAT or features != FEATURES:
        raise DataError(
            f"{path} is of format {version!r}, features {features!r}; this version of tacit reads "
            f"format {FORMAT}, features {FEATURES}: train the tagger again."
        )
    if not whole:
        raise DataError(f"{path} is damaged; copy the whole folder again, or train again.")
    return dict(about)
