"""Training on text whose sensitive tokens are masked, before noise and the whole text.

Source: Shi et al. 2022, section 6, and their "Just fine-tune twice".
Guarantee: for neighbours that differ in sensitive tokens only, this phase sees the same text, so it
costs nothing for `tokens`, and everything for records, users and entities: the ledger says so.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from torch import nn
from transformers import PreTrainedTokenizerBase

from tacit.corpus import Corpus
from tacit.detection.policies import spans_of
from tacit.errors import PrivacyRefused
from tacit.planning.plan import Plan
from tacit.privacy.events import NotPrivate
from tacit.privacy.ledger import Ledger
from tacit.training.data.residuals import Redacted
from tacit.training.data.training_data import prepare
from tacit.training.dp.random_source import RandomSource
from tacit.training.methods.plain import PlainStep
from tacit.training.methods.redact_then_private import MaskedPhase
from tacit.training.models.features import with_features
from tacit.training.models.optimizers import make_optimizer
from tacit.training.phases.checkpoints import load_weights, read_place, save_weights
from tacit.training.phases.loop import Loop, OnProgress, Timed
from tacit.training.phases.run_context import RunContext, make_model, sensitive_spans
from tacit.training.tasks.encoding import pieces_of, touching
from tacit.training.tasks.examples import Examples, Spans, require_sensitive

PHASE = "redacted"
NAME = "redacted-start.safetensors"
MASK = "[MASK]"


def start_on_redacted_text(
    ctx: RunContext,
    plan: Plan,
    folder: Path,
    ledger: Ledger,
    on_progress: OnProgress | None = None,
    keep: Callable[[int], None] | None = None,
    kept: frozenset[int] = frozenset(),
) -> Timed:
    """Train without noise on masked text, unless that is already behind us; what it took.

    The folder keeps the weights, to be scored beside what the whole text adds to them.
    """
    start = ctx.run.options
    assert isinstance(start, MaskedPhase)
    event = next(e for e in plan.releases() if isinstance(e, NotPrivate))
    if event not in ledger.releases:
        ledger.charge(event, phase=PHASE)
    place = read_place(folder)
    if place is not None and place.phase == "train":
        return Timed()
    training_data = prepare(redacted_examples(ctx), ctx.part, [], None)
    # With a fixed seed, too, the two phases draw by coins of their own.
    randomness = RandomSource(None if ctx.randomness.seed is None else ctx.randomness.seed + 1)
    step = PlainStep(
        ctx.model, ctx.task.losses, training_data, randomness, None, batch=start.batch, what=PHASE
    )
    optimizer = make_optimizer(ctx.model, start.optimizer)
    loop = Loop(
        ctx.model, step, optimizer, start.optimizer, start.steps, randomness, phase=PHASE,
        folder=folder, ledger=ledger, checkpoint_every=ctx.run.checkpoint_every, keep=keep,
        kept=kept,
    )  # fmt: skip
    loop.resume()
    loop.run(on_progress)
    loop.finish()
    save_weights(ctx.model, folder / NAME, private=True)
    return loop.timed


def redacted_examples(ctx: RunContext) -> Examples:
    """The training records with masks for their sensitive tokens, as the run's task reads them."""
    masked = redacted(ctx.part, ctx.tokenizer, sensitive_spans(ctx, ctx.part))
    return ctx.task.encode(masked, ctx.tokenizer, context=ctx.run.context)


def redacted_beside(ctx: RunContext, examples: Examples) -> Redacted | None:
    """The masked texts of these training records; None where no private step reads them."""
    if not ctx.run.spec.reads_masked:
        return None
    require_sensitive(any(marks.any() for marks in examples.sensitive or ()))
    return Redacted.beside(examples, with_features(ctx.model, redacted_examples(ctx)))


def load_redacted_start(ctx: RunContext, folder: Path) -> nn.Module | None:
    """The model before it read a sensitive token; None where there was no such phase."""
    if not (folder / NAME).exists():
        return None
    model = make_model(ctx.run, ctx.task, ctx.tokenizer)
    return model if load_weights(model, folder / NAME) else None


def redacted(corpus: Corpus, tokenizer: PreTrainedTokenizerBase, sensitive: Spans) -> Corpus:
    """The corpus with one mask for every stretch of sensitive tokens, however long it was.

    Whole tokens are masked, not characters: a token that touches something sensitive goes.
    """
    if "pair" in corpus.columns:
        raise PrivacyRefused(
            "Records with a second text cannot be redacted: nothing is marked there. Give one text."
        )
    ids, old = corpus.column("id").to_pylist(), corpus.column("text").to_pylist()
    texts = []
    for record, text, pieces in zip(ids, old, pieces_of(old, tokenizer), strict=True):
        gone = np.zeros(len(text), dtype=bool)
        for first, last in spans_of(touching(pieces, sensitive.get(record, ()))):
            gone[pieces.starts[first] : pieces.ends[last - 1]] = True
        for start, end in sensitive.get(record, ()):
            gone[start:end] = True  # also what no token touches
        parts, at = [], 0
        for start, end in spans_of(gone):
            parts += [text[at:start], MASK]
            at = end
        texts.append("".join([*parts, text[at:]]))
    kept = [n for n in corpus.columns if n not in ("text", "tokens", "tags", "pos", "spans")]
    table = corpus.table.select(kept).append_column("text", pa.array(texts, pa.string()))
    return Corpus(table, name=corpus.name)
