"""Which files a certificate speaks for: a digest of each that may be shared, by its path.

A file of a folder is one of three things: *covered*, because the manifest has its digest; *inside*,
one of our own that must not be shared and that nobody may take for part of what is certified; or
unknown. An unknown file that a program could load as part of a model is refused.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from tacit.errors import DataError

Manifest = dict[str, str]
"""From a path inside the folder, with slashes, to the SHA-256 of the file."""

MODEL_FILES = (
    "model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json",
    "adapter_model.safetensors", "adapter_config.json", "public-start.safetensors",
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt",
    "spiece.model", "tokenizer.model", "chat_template.jinja",
)  # fmt: skip
"""What a folder of weights and their tokenizer may hold."""

SHAREABLE = (*MODEL_FILES, "README.md", "plan.yml", "settings.yml")
"""What may leave a run's folder beside its certificate and ledger; see docs/guides/training.md."""

CERTIFICATE_FILES = ("certificate.json", "certificate.md", "certificate.html", "ledger.jsonl")
"""What carries the certificate; checked against it, not by the manifest inside it."""

SIGNATURE = "model.sig"

_INSIDE = (
    "run.yml", "account.json", "metrics.json", "canaries.json", "attacks.json",
    "attacks-over-steps.json", "groups.json", "ends.json", "audit.json", "federation.yml",
    "federation/*",
    "checkpoint.safetensors", "redacted-start.safetensors", "*.lock", ".*",
)  # fmt: skip
_HARMLESS = (".png", ".svg", ".pdf", ".html", ".log")
"""Endings of files that no program loads as part of a model."""

KEPT = "checkpoints"
"""The folder of models kept on the way; they may be left out when a model is shared."""


def file_digest(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_manifest(folder: Path) -> Manifest:
    """The digest of every file of a run's folder that may be shared, kept models included."""
    names = [name for name in _names(folder) if _is_shareable(name)]
    for name in names:
        if not _inside(folder, name):
            raise DataError(f"{name} leads out of {folder}; put the file itself there.")
    return {name: file_digest(folder / name) for name in names}


def digest_in(folder: Path, name: str) -> str | None:
    """The digest of a file of the folder; None where it is not there, or lies outside."""
    try:
        path = folder / name
        return file_digest(path) if _inside(folder, name) and path.is_file() else None
    except (OSError, ValueError, RuntimeError):
        return None


def not_covered(folder: Path, covered: Iterable[str]) -> tuple[list[str], list[str]]:
    """Files that a certificate does not speak for: our own inside ones, and unknown ones.

    Pictures and pages are among the first, whoever made them: nothing loads them, but a page that
    says another epsilon must not be taken for a certified one.
    """
    known = {*covered, *CERTIFICATE_FILES, SIGNATURE}
    others = [name for name in _names(folder) if name not in known]
    inside = [name for name in others if _is_inside(name) or Path(name).suffix in _HARMLESS]
    return inside, [name for name in others if name not in inside]


def digest_of(manifest: Mapping[str, str]) -> str:
    """One digest for a whole manifest.

    >>> digest_of({"b": "1", "a": "2"}) == digest_of({"a": "2", "b": "1"})
    True
    """
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(manifest.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _names(folder: Path) -> Iterator[str]:
    """Every file below a folder, by its path inside it, links to files included."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() or path.is_symlink():
            yield path.relative_to(folder).as_posix()


def _is_shareable(name: str) -> bool:
    top, _, rest = name.partition("/")
    if rest:
        step, _, own = rest.partition("/")
        kept = top == KEPT and fnmatchcase(step, "step-*") and "/" not in own
        return kept and any(fnmatchcase(own, pattern) for pattern in MODEL_FILES)
    return any(fnmatchcase(name, pattern) for pattern in SHAREABLE)


def _is_inside(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in _INSIDE)


def _inside(folder: Path, name: str) -> bool:
    path = folder / name
    return not path.is_symlink() and path.resolve().is_relative_to(folder.resolve())
