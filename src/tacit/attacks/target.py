"""A model with what an attacker may have: text that it saw, text that it did not, canaries."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedTokenizerBase

from tacit.attacks.attack import Need
from tacit.attacks.canaries import Planted, beside, read_planted
from tacit.corpus import Corpus
from tacit.detection.mentions import Mention, read_mentions
from tacit.errors import DataError, UsageError
from tacit.planning.dry_run import apply_caps
from tacit.planning.plan import read_plan
from tacit.sanitization.sanitizer import Sanitizer
from tacit.training.evaluation.scoring import whole_text_scores
from tacit.training.models import networks, tokens
from tacit.training.phases.run_context import RunContext, load_run
from tacit.training.tasks.examples import Examples
from tacit.training.tasks.tasks import NextWord

_HELD_OUT = ("test", "valid", "validation", "dev")


@dataclass(frozen=True)
class Reader:
    """A model of next words with its tokenizer: whoever has it can ask how likely a text is."""

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    context: int
    task: NextWord = field(default_factory=NextWord)

    def encode(self, corpus: Corpus) -> Examples:
        """The records as the model reads them."""
        return self.task.encode(corpus, self.tokenizer, context=self.context, training=False)

    def losses(self, corpus: Corpus) -> NDArray[np.float64]:
        """The mean loss of a token of each record."""
        return self.task.record_losses(self.model, self.encode(corpus))

    def total_losses(self, corpus: Corpus) -> NDArray[np.float64]:
        """The loss of each whole record: comparable between tokenizers."""
        examples = self.encode(corpus)
        targets = np.maximum(examples.lengths - 1, 0)
        return self.task.record_losses(self.model, examples) * targets


@dataclass(frozen=True)
class Masked:
    """Texts, what hides their words, and what leaves them as they are: for masks to be guessed."""

    texts: tuple[str, ...]
    sanitizer: Sanitizer
    unchanged: Sanitizer


@dataclass(frozen=True)
class Target:
    """What is attacked, and what the attacker has; `opened` where it is a run.

    `kept` names the training records that the caps of a plan left in, where there are caps.
    """

    folder: Path
    reader: Reader
    members: Corpus | None = None
    others: Corpus | None = None
    mentions: tuple[Mention, ...] = ()
    planted: Planted | None = None
    reference: Reader | None = None
    perplexity: float | None = None
    ctx: RunContext | None = None
    kept: frozenset[str] | None = None
    masked: Masked | None = None

    def has(self) -> Iterator[Need]:
        """What an attack finds here."""
        if self.planted is not None:
            yield "canaries"
        if self.members is not None:
            yield "members"
            if has_users(self.members):
                yield "users"
        if self.others is not None:
            yield "non-members"
        if self.mentions:
            yield "mentions"
        if self.reference is not None:
            yield "reference"
        if self.masked is not None:
            yield "masked"


def has_users(corpus: Corpus) -> bool:
    """Whether every record says who wrote it."""
    return "user" in corpus.columns and not corpus.column("user").null_count


def rows_by_user(corpus: Corpus) -> dict[str, list[int]]:
    """Which records each user wrote."""
    found: dict[str, list[int]] = {}
    for row, user in enumerate(corpus.require_users().to_pylist()):
        found.setdefault(user, []).append(row)
    return found


def text_by_id(*parts: Corpus) -> dict[str, str]:
    """The texts of records by their ids."""
    columns = [(one.column("id").to_pylist(), one.column("text").to_pylist()) for one in parts]
    return {name: text for ids, texts in columns for name, text in zip(ids, texts, strict=True)}


def open_target(
    folder: Path,
    *,
    corpus: Corpus | None = None,
    mentions: Path | None = None,
    canaries: Path | None = None,
    reference: Path | None = None,
    context: int = 128,
    perplexity: bool = True,
) -> Target:
    """A run folder, or the folder of any causal model in the Hugging Face layout.

    A run brings its own corpus; canaries are looked for beside it. Pickled weights are refused.
    """
    folder = Path(folder)
    require_model(folder)
    known = _reader(reference, context) if reference is not None else None
    if not (folder / "run.yml").exists():
        planted = read_planted(canaries) if canaries is not None else None
        target = Target(folder, _reader(folder, context), planted=planted, reference=known)
        if corpus is None:
            if mentions is not None:
                raise UsageError("--mentions speak of a corpus; give --corpus, too.")
            return target
        return _with_text(target, corpus, mentions, perplexity)
    if corpus is not None:
        raise UsageError(f"{folder} is a run and brings its own corpus; leave --corpus out.")
    return _run_target(folder, mentions, canaries, known, perplexity)


def _run_target(
    folder: Path,
    mentions: Path | None,
    canaries: Path | None,
    reference: Reader | None,
    perplexity: bool,
) -> Target:
    """A run folder with the corpus that it was trained on."""
    ctx = load_run(folder)
    if ctx.run.task != "next-word":
        raise UsageError(
            f"{folder} was trained for task={ctx.run.task}; attacks are on models of next words."
        )
    plan = canaries or canary_plan(folder, Path(ctx.run.corpus))
    split = held_out(ctx.corpus)
    found = ctx.mentions
    if mentions is not None:
        found = read_mentions(mentions, ctx.corpus)
    return Target(
        folder,
        Reader(ctx.model, ctx.tokenizer, ctx.run.context),
        members=ctx.part,
        others=ctx.corpus.only(split) if split else None,
        mentions=tuple(found),
        planted=read_planted(plan) if plan is not None else None,
        reference=reference,
        perplexity=run_perplexity(ctx) if perplexity else None,
        ctx=ctx,
        kept=kept_records(folder, ctx),
    )


def canary_plan(folder: Path, corpus: Path) -> Path | None:
    """Where the plan of a run's canaries is: in its folder, else beside its corpus."""
    return next((p for p in (folder / "canaries.json", beside(corpus)) if p.exists()), None)


def kept_records(folder: Path, ctx: RunContext) -> frozenset[str] | None:
    """The ids of the records that a run's plan kept; None where it capped nothing."""
    if ctx.protected is None or not (folder / "plan.yml").exists():
        return None
    bounded = apply_caps(
        read_plan(folder / "plan.yml"), ctx.protected.owners(ctx.part, ctx.mentions)
    )
    ids = ctx.part.column("id").to_pylist()
    return frozenset(name for name, kept in zip(ids, bounded.kept, strict=True) if kept)


def open_masked(folder: Path, masked: Masked, *, context: int = 64) -> Target:
    """The folder of a masked-word model, and sanitized text for it to guess."""
    folder = Path(folder)
    require_model(folder)
    reader = Reader(
        networks.load_model(folder, "masked-word"), tokens.load_tokenizer(folder), context
    )
    return Target(folder, reader, masked=masked)


def run_perplexity(ctx: RunContext) -> float | None:
    """The perplexity of a run's model on the split that it never saw, where there is one.

    Of text as it was written: one from de-identified text could be compared with no other.
    """
    split = held_out(ctx.corpus)
    return float(whole_text_scores(ctx, split)["perplexity"]) if split else None


def require_model(folder: Path) -> None:
    """Refuse what is no folder of a model, and weights that could run code when they are read."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give a run, or the folder of a model.")
    if not (folder / "config.json").exists():
        raise DataError(
            f"{folder} holds no trained model (there is no config.json); give a finished run, or "
            "the folder of a model."
        )
    networks.require_safe_weights(folder)


def _reader(folder: Path, context: int) -> Reader:
    require_model(Path(folder))
    tokenizer = tokens.load_tokenizer(folder)
    model = networks.load_model(folder, "next-word", pad_token_id=tokenizer.pad_token_id)
    return Reader(model, tokenizer, context)


def _with_text(target: Target, corpus: Corpus, mentions: Path | None, perplexity: bool) -> Target:
    """A model that is no run, with the corpus that it was trained on."""
    split, reader = held_out(corpus), target.reader
    others = corpus.only(split) if split else None
    score = None
    if perplexity and others is not None:
        score = reader.task.score(reader.model, reader.encode(others))["perplexity"]
    return replace(
        target,
        members=corpus.only("train") if "train" in corpus.splits() else corpus,
        others=others,
        mentions=tuple(read_mentions(mentions, corpus)) if mentions is not None else (),
        perplexity=score,
    )


def held_out(corpus: Corpus) -> str | None:
    """The split that a model never saw: test before the others."""
    return next((name for name in _HELD_OUT if name in corpus.splits()), None)
