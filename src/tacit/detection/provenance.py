"""How a detection was made: which detectors, of which version, with which files, for which kinds.

A promise about entities is a promise about what these detectors mark, so it names them.
"""

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from secrets import token_hex
from typing import Any

from tacit.detection.detector import Detector
from tacit.detection.kinds import KINDS, family
from tacit.errors import DataError


@dataclass(frozen=True)
class Used:
    """One detector as it was used; `files` is a digest of what its option named, and private."""

    name: str
    version: str
    files: str | None = None


@dataclass(frozen=True)
class Provenance:
    """How mentions came about; `sought` are the kinds looked for, None where nobody can tell."""

    detectors: tuple[Used, ...]
    sought: tuple[str, ...] | None
    rules: str | None = None
    aliases: str | None = None
    """A digest of the rules by which names were merged, and private."""
    learned: tuple[str, ...] = ()
    """Detectors that were trained on the text that they marked."""

    def as_json(self) -> dict[str, Any]:
        """Fields for JSON."""
        return asdict(self)

    @property
    def unsought(self) -> tuple[str, ...] | None:
        """The coarse kinds that no detector looks for."""
        if self.sought is None:
            return None
        looked = {family(kind) for kind in self.sought}
        return tuple(kind for kind in KINDS if kind not in looked)


UNKNOWN = Provenance((Used("a file of mentions", "whose detectors are not known"),), None)
"""For mentions that nobody says anything about."""


def unknown_origin(mentions: Path) -> Provenance:
    """Marks that nobody vouches for are those of one file, and of no other."""
    (used,) = UNKNOWN.detectors
    digest = hashlib.sha256(mentions.read_bytes()).hexdigest()
    return replace(UNKNOWN, detectors=(replace(used, files=digest),))


def provenance_of(
    detectors: Sequence[Detector],
    using: str | Sequence[Any],
    *,
    kinds: Sequence[str] | None = None,
    minimum_score: float = 0.0,
    aliases: str | None = None,
) -> Provenance:
    """How these detectors will be used; `aliases` is a digest of the rules that merge names."""
    parts = using.split(",") if isinstance(using, str) else list(using)
    options = [p.partition("=")[2] if isinstance(p, str) else "" for p in parts if p]
    used = tuple(
        Used(d.name, _version(d), _files_digest(option))
        for d, option in zip(detectors, options, strict=False)
    )
    sought: set[str] | None = set()
    for detector in detectors:
        own = getattr(detector, "kinds", None)
        sought = None if sought is None or own is None else sought | set(own)
    if sought is not None and kinds is not None:
        sought = {k for k in sought if k in kinds or family(k) in kinds}
    rules = []
    if kinds is not None:
        rules.append(f"only the kinds {', '.join(sorted(kinds))}")
    if minimum_score:
        rules.append(f"findings scored {minimum_score:g} or more")
    if aliases is not None:
        rules.append("names merged by an alias file")
    return Provenance(used, None if sought is None else tuple(sorted(sought)),
                      "; ".join(rules) or None, aliases)  # fmt: skip


def read_provenance(fields: Any) -> Provenance:
    """What `as_json` gave."""
    try:
        return Provenance(
            tuple(Used(**one) for one in fields["detectors"]),
            None if fields["sought"] is None else tuple(map(str, fields["sought"])),
            fields["rules"],
            fields["aliases"],
            tuple(map(str, fields.get("learned", ()))),
        )
    except (KeyError, TypeError, AttributeError):
        raise DataError(
            "The summary beside the mentions is of another version; run `tacit detect` again."
        ) from None


def _version(detector: Detector) -> str:
    """What a detector says of itself, or what its code is: never that another's is ours."""
    own, module = getattr(detector, "version", None), type(detector).__module__
    if own is not None:
        return str(own)
    if module.partition(".")[0] == "tacit":
        return f"tacit {version('tacit')}, {_own_code()}"
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:  # typed in somewhere: the same as no other, whatever its name is
        return f"{module}, code that was not kept, {token_hex(6)}"
    return f"{module}, code {hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]}"


@cache
def _own_code() -> str:
    """A short digest of the rules, lists and code of the detectors that come with the package."""
    sha = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*")):
        if file.is_file() and file.suffix != ".pyc":
            sha.update(file.name.encode() + file.read_bytes())
    return f"rules {sha.hexdigest()[:12]}"


def _files_digest(option: str) -> str | None:
    """A digest of the files that an option names; None where it names none."""
    sha, found = hashlib.sha256(), False
    for part in [option] if Path(option).exists() else option.split("+"):
        place = Path(part) if part else None
        if place is None or not place.exists():
            continue
        files = [place] if place.is_file() else [f for f in place.rglob("*") if f.is_file()]
        for file in sorted(files):
            found = True
            sha.update(file.name.encode() + file.read_bytes())
    return sha.hexdigest() if found else None
