"""Which entities are protected: all, those of some kinds, or those on the user's own list."""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tacit.corpus import Corpus
from tacit.detection.kinds import kind_of, matches
from tacit.detection.mentions import Entity, Mention, fold
from tacit.errors import DataError, PrivacyRefused
from tacit.files import require_file
from tacit.owners import Owners


@dataclass(frozen=True)
class ProtectedEntities:
    """What counts as an entity; `names` is the length of the list, where there is one."""

    kinds: tuple[str, ...] | None = None
    entities: frozenset[str] | None = None
    names: int = 0
    by_id: bool = False
    """Whether the list has ids, which mean something in one corpus only."""

    def owners(self, corpus: Corpus, mentions: Sequence[Mention]) -> Owners:
        """The graph of these entities in one corpus."""
        own = set(corpus.column("id").to_pylist())
        here = [m for m in mentions if m.record in own]
        wanted = None if self.entities is None else self.entities & {m.entity for m in here}
        return Owners.from_mentions(corpus, here, kinds=self.kinds, entities=wanted)


def list_digest(path: Path) -> str:
    """A SHA-256 of the names on a list; order, repeats and comments do not matter."""
    return hashlib.sha256("\n".join(sorted(set(_lines(path)))).encode()).hexdigest()


def _lines(path: Path) -> list[str]:
    try:
        text = require_file(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8; a list of entities is one name a line.") from None
    lines = [" ".join(line.split()) for line in text.splitlines()]
    found = [line for line in lines if line and not line.startswith("#")]
    if not found:
        raise DataError(f"{path} names no entity; give one name, or one entity id, a line.")
    return found


def _require_found(kinds: Collection[str], seen: Collection[str]) -> None:
    for kind in kinds:
        if not any(matches(other, [kind_of(kind)]) for other in seen):
            raise PrivacyRefused(
                f"kinds has {kind}, but nothing of that kind was found in the corpus; add a "
                f"detector that finds it, or leave {kind} out of what is promised."
            )


def select_entities(
    kinds: Collection[str] | None,
    path: Path | None,
    mentions: Sequence[Mention],
    entities: Sequence[Entity],
) -> ProtectedEntities:
    """The entities that kinds and a list ask for.

    A line is an entity's id, or its name as the entity table beside the mentions has it (case,
    width and white space do not matter). A name that nobody mentions protects nothing and is no
    fault: a list may be written before anybody looks. A kind of which nothing was found is one:
    most detectors know some kinds only, and the certificate would promise what none looked for.
    """
    chosen = None if kinds is None else tuple(kinds)
    _require_found(chosen or (), {m.kind for m in mentions})
    if path is None:
        return ProtectedEntities(chosen)
    lines = _lines(path)
    ids = {m.entity for m in mentions}
    known = [e for e in entities if e.id in ids]
    wanted = set(lines) & ids
    nameless = ids - wanted - {e.id for e in known}
    if nameless and wanted != set(lines) and (wanted or known):
        raise PrivacyRefused(
            f"{path} has names, and the entity table beside the mentions does not say the name of "
            "every entity, so one of the list could go unprotected; put the table back that "
            "`tacit detect` wrote, or list ids alone."
        )
    by_name: dict[str, set[str]] = {}
    for kind in {e.kind for e in known}:
        by_name[kind] = {fold(line, kind) for line in lines}
    wanted |= {e.id for e in known if fold(e.name, e.kind) in by_name[e.kind]}
    if not wanted:
        beside = "" if known else " (the entity table beside them, which has names, is missing)"
        raise DataError(
            f"None of the {len(lines):,} entities on {path} is mentioned{beside}, so there is "
            "nothing to protect; give ids of the mentions, or names of their entity table."
        )
    return ProtectedEntities(chosen, frozenset(wanted), len(lines), bool(set(lines) & ids))
