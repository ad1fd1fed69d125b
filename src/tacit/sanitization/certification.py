"""From a sanitizer to its ledger entry, its public inputs and its certificate."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tacit.privacy.certificates.certificate import commitment, own_salt
from tacit.privacy.certificates.local_privacy import (
    QUANTILES,
    LocalCertificate,
    issue_local,
    publish_local,
)
from tacit.privacy.certificates.manifest import file_digest
from tacit.privacy.certificates.scope import PublicInput
from tacit.privacy.events import AnyEvent, NotPrivate, SanitizedText
from tacit.privacy.ledger import Ledger, read_ledger
from tacit.sanitization.embeddings import OWN, Embedding
from tacit.sanitization.mechanisms import PROVED
from tacit.sanitization.operators import Replacer
from tacit.sanitization.sanitizer import Sanitizer

VECTORS = "the word vectors"
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
    kinds = {
        f"its {n}{'st' if n == 1 else 'th'} {what}neighbour": n
        for n in NEIGHBOURS
        if n < space.width
    }
    others = f"any other {what}word"
    found: dict[str, list[np.ndarray]] = {name: [] for name in (*kinds, others)}
    every = np.arange(0, space.width, max(1, space.width // 100))
    for block in space.blocks(words):
        rows = space.distances(block)
        # The word itself is no neighbour: it stands first.
        part = np.partition(rows, sorted(kinds.values()), axis=1)
        for name, n in kinds.items():
            found[name].append(part[:, n])
        itself = space.outputs[every][None, :] == block[:, None]
        found[others].append(rows[:, every][~itself])
    return {
        name: dict(
            zip(
                QUANTILES,
                (float(q) for q in np.quantile(np.concatenate(values), [0.1, 0.5, 0.9])),
                strict=True,
            )
        )
        for name, values in found.items()
    }


def event_of(work: Sanitizer | Replacer) -> AnyEvent:
    """What the ledger says before the first word is drawn."""
    if isinstance(work, Replacer):
        return NotPrivate(
            what=f"text in which only detected mentions were replaced (method {work.method}), and "
            "whatever was missed or left out stands as it was"
        )
    # A subclass may draw otherwise than what was proved of its parent.
    if type(work.mechanism) not in PROVED:
        return NotPrivate(
            what=f"text whose words were replaced by a mechanism of which nothing is proved "
            f"(method {work.recipe.method})"
        )
    recipe = work.recipe
    return SanitizedText(
        mechanism=recipe.method,  # type: ignore[arg-type]
        epsilon_per_distance=float(recipe.epsilon_per_distance or 0.0),
        replace_plain_rate=recipe.replace_plain_rate,
        vocabulary=len(work.embedding),
        output_vocabulary=len(work.outputs),
        unknown=recipe.unknown,
        unit="words" if work.embedding.pieces is None else "pieces",
    )


def context_of(work: Sanitizer | Replacer, more: Mapping[str, Any]) -> dict[str, Any]:
    """What a reader must know to repeat the mechanism: all of it public."""
    if isinstance(work, Replacer):
        return {"method": work.method, **more}
    embedding = work.embedding
    facts: dict[str, Any] = {
        "vocabulary": f"{len(embedding):,} words, {embedding.vectors.shape[1]} numbers each",
        "words with the same vector as another": embedding.twins,
        "how text is cut": embedding.rules,
        "unknown words": work.recipe.unknown,
    }
    if type(work.mechanism) not in PROVED:
        facts = {"method": work.recipe.method, **facts}
    if embedding.counted:  # its size, and a digest of it, would be facts about private text
        facts["vocabulary"] = "those words that occur in the private text"
        del facts["words with the same vector as another"]
    if embedding.repeated:
        facts["repeated words left out"] = embedding.repeated
    if work.sensitive is not None:
        count = "" if embedding.counted else f"{len(work.sensitive):,} of {len(embedding):,}: "
        facts["sensitive words"] = count + "; ".join(work.sensitive.sources)
    return facts | dict(more)


def vectors_input(embedding: Embedding, checked: str | None = None) -> PublicInput:
    """The word vectors as an input that is said to be public."""
    if embedding.name == OWN:
        checked = "made by this package from text that it generates"
    return PublicInput(what=VECTORS, name=embedding.name, sha256=embedding.whole, checked=checked)


class Certified:
    """The folder beside an output: a ledger that is written first, then the certificate.

    `public` are the inputs that are said to owe nothing to the text; `columns` those of the result.
    """

    def __init__(
        self,
        folder: Path,
        work: Sanitizer | Replacer,
        *,
        more: Mapping[str, Any],
        public: Sequence[PublicInput] = (),
        leaks: Sequence[str] = (),
        columns: Sequence[str] = ("text",),
    ) -> None:
        self._folder, self._event = folder, event_of(work)
        given = list(public)
        if isinstance(work, Sanitizer) and all(one.what != VECTORS for one in given):
            given.insert(0, vectors_input(work.embedding))
        self._about: dict[str, Any] = {
            "randomness": work.streams.name,
            "context": json.loads(json.dumps(context_of(work, more), allow_nan=False)),
            "public": [one.model_dump(mode="json") for one in given],
            # Distances between the words of private text would be facts about it.
            "distances": distances(work)
            if isinstance(work, Sanitizer)
            and isinstance(self._event, SanitizedText)
            and not work.embedding.counted
            else {},
            "columns": list(columns),
            "leaks": list(leaks),
        }

    def charge(self, data: str) -> None:
        """Write the entry; only after that may anything leave."""
        about = {"data": commitment(data, own_salt()), **self._about}
        with Ledger(self._folder / "ledger.jsonl", about) as ledger:
            ledger.charge(self._event, phase="sanitize")

    def issue(self, file: Path, name: str) -> LocalCertificate:
        """Write the certificate for the finished file, and bind both by the ledger's last line."""
        books = read_ledger(self._folder / "ledger.jsonl")
        certificate = publish_local(issue_local(books, {name: file_digest(file)}), self._folder)
        (self._folder / "ledger.jsonl.lock").unlink(missing_ok=True)
        return certificate
