"""From a sanitizer to its ledger entry, its public inputs and its certificate."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tacit.files import whole_file
from tacit.privacy.certificate import commitment, file_digest, own_salt
from tacit.privacy.documents import FILE
from tacit.privacy.events import AnyEvent, NotPrivate, SanitizedText
from tacit.privacy.ledger import Ledger, read_ledger
from tacit.privacy.local import LocalCertificate, issue_local, render_local
from tacit.sanitizing.operators import Replacer
from tacit.sanitizing.sanitizer import Sanitizer

NEIGHBOURS = (1, 10, 100)
_PROBES = 1000


def distances(sanitizer: Sanitizer, probes: int = _PROBES) -> dict[str, dict[str, float]]:
    """How far words are from their neighbours, over words of the vocabulary drawn by a fixed rule.

    Only the public embedding is looked at. With sensitive words it is about these, among
    themselves: between a sensitive and a plain word epsilon_0 would have to be added.
    """
    space = sanitizer.space
    words = space.outputs
    if len(words) > probes:
        rng = np.random.default_rng(20_210_801)
        words = np.sort(rng.choice(words, probes, replace=False))
    what = "" if sanitizer.sensitive is None else "sensitive "
    kinds = {_ordinal(n, what): n for n in NEIGHBOURS if n < space.width}
    others = f"any other {what}word"
    found: dict[str, list[np.ndarray]] = {name: [] for name in (*kinds, others)}
    for block in space.blocks(words):
        rows = space.distances(block)
        # The word itself is no neighbour: it stands first.
        part = np.partition(rows, sorted(kinds.values()), axis=1)
        for name, n in kinds.items():
            found[name].append(part[:, n])
        found[others].append(rows[:, :: max(1, space.width // 100)].ravel())
    return {
        name: dict(
            zip(
                ("10 %", "median", "90 %"),
                (float(q) for q in np.quantile(np.concatenate(values), [0.1, 0.5, 0.9])),
                strict=True,
            )
        )
        for name, values in found.items()
    }


def _ordinal(n: int, what: str) -> str:
    return f"its {n}{'st' if n == 1 else 'th'} {what}neighbour"


def event_of(work: Sanitizer | Replacer) -> AnyEvent:
    """What the ledger says before the first word is drawn."""
    if isinstance(work, Replacer):
        return NotPrivate(
            what=f"text in which only detected mentions were replaced (method {work.operator})"
        )
    recipe = work.recipe
    return SanitizedText(
        mechanism=recipe.method,
        epsilon_per_distance=float(recipe.epsilon_per_distance or 0.0),
        replace_plain_rate=recipe.replace_plain_rate,
        vocabulary=len(work.embedding),
        output_vocabulary=len(work.outputs),
        unknown=recipe.unknown,
    )


def public_inputs(work: Sanitizer | Replacer, more: Mapping[str, Any]) -> dict[str, Any]:
    """What a reader must know to repeat the mechanism: all of it public."""
    if isinstance(work, Replacer):
        return {"method": work.operator, **more}
    embedding = work.embedding
    facts: dict[str, Any] = {
        "embeddings": f"{embedding.name}, sha256 {embedding.digest}",
        "vocabulary": f"{len(embedding):,} words, {embedding.vectors.shape[1]} numbers each",
        "words with the same vector as another": embedding.twins,
        "unit": "pieces of words" if embedding.pieces is not None else "words",
        "case, punctuation, numbers": "looked up as written, then in lower case; punctuation and "
        "numbers are words like any other; spacing is not carried over",
        "unknown words": work.recipe.unknown,
    }
    if embedding.repeated:
        facts["repeated words left out"] = embedding.repeated
    if work.sensitive is not None:
        facts["sensitive words"] = f"{len(work.sensitive):,} of {len(embedding):,}: " + "; ".join(
            work.sensitive.sources
        )
    return facts | dict(more)


class Certified:
    """The folder beside an output: a ledger that is written first, then the certificate."""

    def __init__(
        self,
        folder: Path,
        work: Sanitizer | Replacer,
        *,
        more: Mapping[str, Any],
        leaks: Sequence[str] = (),
    ) -> None:
        self._folder, self._work, self._leaks = folder, work, leaks
        self._public = json.loads(json.dumps(public_inputs(work, more), allow_nan=False))

    def charge(self, data: str) -> None:
        """Write the entries; only after that may anything leave."""
        self._data = commitment(data, own_salt())
        about = {
            "data": self._data,
            "randomness": self._work.streams.name,
            "public": self._public,
        }
        with Ledger(self._folder / "ledger.jsonl", about) as ledger:
            for leak in self._leaks:
                ledger.charge(NotPrivate(what=leak), phase="prepare")
            ledger.charge(event_of(self._work), phase="sanitize")
        (self._folder / "ledger.jsonl.lock").unlink(missing_ok=True)

    def issue(self, file: Path, name: str) -> LocalCertificate:
        """Write the certificate for the finished file."""
        certificate = issue_local(
            read_ledger(self._folder / "ledger.jsonl"),
            distances={} if isinstance(self._work, Replacer) else distances(self._work),
            public=self._public,
            files={name: file_digest(file)},
            data=self._data,
            randomness=self._work.streams.name,
        )
        for each, text in ((FILE, certificate.to_json()),
                           ("certificate.md", render_local(certificate))):  # fmt: skip
            with whole_file(self._folder / each) as draft:
                draft.write_text(text, encoding="utf-8")
        return certificate
