"""An audit of a text that was released: what it tells, by itself, of canaries in the private one.

Canaries were planted in the private corpus by fair coins before the text was made. A trigram model
is counted on the released text alone, and those canaries that it finds likeliest are guessed in.
This shows what leaked into words; a vote that moved a choice among public candidates is beyond it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tacit.attacks.canaries import read_planted
from tacit.audits.epsilon_bounds import Audit, certified, from_canaries, judge
from tacit.corpus import Corpus
from tacit.corpus.reading import read
from tacit.errors import DataError, UsageError
from tacit.privacy.certificates.certificate import Certificate
from tacit.privacy.certificates.manifest import digest_in
from tacit.training.evaluation.baselines import Ngram
from tacit.training.models.tokens import byte_level_bpe
from tacit.training.tasks.examples import Examples
from tacit.training.tasks.tasks import NextWord

CANARIES = "canaries.json"
_CONTEXT = 1024


def audit_text(folder: Path, certificate: Certificate, confidence: float) -> list[Audit]:
    """The bound for users that the text beside a certificate's folder gives."""
    path = folder / CANARIES
    plan = read_planted(path) if path.exists() else None
    if plan is None or not plan.coins or plan.placing not in ("own-user", "one-user"):
        raise UsageError(
            f"{folder} has no canaries of users by coins, so its text cannot be audited; plant "
            "them (tacit canaries plant --coins --each 500), and synthesize from that corpus."
        )
    if "users" not in certificate.costs:
        raise UsageError("The certificate does not speak of users, of whom these canaries are.")
    planted = {c.secret: c.planted for c in plan.canaries if c.repetitions}
    texts = {secret: plan.template.text(secret) for secret in planted}
    found = from_canaries(
        planted, likelihoods(_released(folder, certificate), texts), certificate.delta,
        epsilon=certified(certificate, "users"), confidence=confidence,
    )  # fmt: skip
    how = "released text: canaries in or out by fair coins, guessed by a trigram model of it"
    return [judge(certificate, "users", replace(found, how=how))]


def _released(folder: Path, certificate: Certificate) -> Sequence[str]:
    """The text that was certified; refused where it is another one."""
    beside = folder.resolve().parent
    for name, digest in certificate.files.items():
        if digest_in(beside, name) != digest:
            raise DataError(f"{beside / name} is not the text that was certified; put it back.")
    return [
        text
        for name in certificate.files
        for text in read(beside / name).column("text").to_pylist()
    ]


def likelihoods(texts: Sequence[str], asked: Mapping[str, str]) -> dict[str, float]:
    """How likely a trigram model that was counted on some texts finds each of others."""
    tokenizer, task = byte_level_bpe(), NextWord(long="truncate")

    def encoded(some: Sequence[str]) -> Examples:
        corpus = Corpus.from_records({"id": str(n), "text": text} for n, text in enumerate(some))
        return task.encode(corpus, tokenizer, context=_CONTEXT)

    counted = Ngram.fit(encoded(texts), len(tokenizer), 3, rng=np.random.default_rng(0))
    examples = encoded(list(asked.values()))
    chances = np.log(counted.probabilities(examples))
    ends = np.cumsum(examples.lengths - 1)
    sums = [float(part.sum()) for part in np.split(chances, ends[:-1])]
    return dict(zip(asked, sums, strict=True))
