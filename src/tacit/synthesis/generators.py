"""Where candidates come from: a run with its ledger, a public model, or public texts.

None of them sees private text but through a run's own releases, which are carried into the ledger
of the corpus and are part of its price.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tacit.corpus import Corpus
from tacit.corpus.overlap import Pieces, require_independent
from tacit.corpus.reading import format_of, read
from tacit.errors import PrivacyRefused, TacitError, UsageError
from tacit.packaged_models import located
from tacit.privacy.certificates.scope import PublicInput
from tacit.training.data.public_inputs import shown_name, weights_input
from tacit.training.evaluation.generation import Sampling, complete
from tacit.training.models import networks, tokens
from tacit.training.models.shared import load_shared
from tacit.training.phases.continuing import Continued, continue_from
from tacit.training.settings import ModelSettings
from tacit.training.tasks.tasks import NextWord

_WAY_OUT = "give that run's whole folder as the generator"


@dataclass(frozen=True)
class Generator:
    """A model that goes on from prompts; `earlier` is the run that made it, if one did."""

    where: str
    tokens: int
    earlier: Continued | None = None
    varies = True

    def require(self) -> None:
        """Refuse, before anything is spent, a model that writes no text."""
        self._loaded  # noqa: B018

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        if self.earlier is None:
            settings = ModelSettings(kind="folder", folder=self.where)
            tokenizer = tokens.load_tokenizer(self.where)
            model: Any = networks.make_model(
                settings, "next-word", tokenizer=tokenizer, labels=None, context=self.tokens, seed=0
            )
            return model, tokenizer
        shared = load_shared(Path(self.where))
        if not isinstance(shared.task, NextWord):
            raise UsageError(
                f"generator={self.where} writes no text: its task is {shared.task.name}; give a "
                "model of next words."
            )
        return shared.model, shared.tokenizer

    def texts(self, starts: Sequence[str], how: Sampling) -> list[str]:
        """What the model adds to each of these."""
        model, tokenizer = self._loaded
        return complete(model, tokenizer, starts, how, tokens=self.tokens)

    def input(self, private: Callable[[], Pieces]) -> PublicInput | None:
        """The weights as something public; those of a run speak by its ledger."""
        if self.earlier is not None:
            return None
        return weights_input(self.where, f"generator={self.where}", _WAY_OUT, private)


@dataclass(frozen=True)
class GivenTexts:
    """Public texts, from which private records choose."""

    where: str
    tokens: int
    earlier: Continued | None = None
    varies = False

    @cached_property
    def corpus(self) -> Corpus:
        """The file."""
        return read(Path(self.where))

    def require(self) -> None:
        """Refuse a file that cannot be read."""
        self.corpus  # noqa: B018

    def input(self, private: Callable[[], Pieces]) -> PublicInput | None:
        """The texts, compared with the private ones."""
        found = require_independent(private(), self.corpus, what=f"generator={self.where}")
        name = shown_name(self.where)
        return PublicInput(
            what="the texts to choose from", name=name, sha256=found.digest, checked=found.checked
        )


AnyGenerator = Generator | GivenTexts


def open_generator(where: str, tokens: int, *, of_corpus: str) -> AnyGenerator:
    """What a setting names; a run is verified, and must be one on this corpus (`of_corpus`)."""
    path = Path(where)
    if path.is_file() and _is_corpus(path):
        return GivenTexts(where, tokens)
    if not (path / "ledger.jsonl").exists():
        located(where)
        return Generator(where, tokens)
    earlier = continue_from(path, f"generator={where}")
    if earlier.certificate.provenance.data != of_corpus:
        raise PrivacyRefused(
            f"generator={where} is a run on other text than this corpus, so its ledger speaks of "
            "other people; train it on this corpus file, under this TACIT_HOME, or give a public "
            "model."
        )
    if earlier.certificate.standing != "proved":
        raise PrivacyRefused(
            f"generator={where} promises nothing (standing {earlier.certificate.standing}), and "
            "what it writes is no better; give a run with a proved promise, or a public model."
        )
    return Generator(where, tokens, earlier)


def _is_corpus(path: Path) -> bool:
    try:
        return format_of(path) in ("jsonl", "csv", "tsv", "parquet", "text")
    except TacitError:
        return False
