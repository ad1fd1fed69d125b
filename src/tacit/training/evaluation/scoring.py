"""Using what was trained: scores beside the baselines, and predictions."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tacit.corpus import Corpus
from tacit.corpus.reading import read
from tacit.corpus.splitting import training_part
from tacit.errors import UsageError
from tacit.files import whole_file
from tacit.saved_json import spelled
from tacit.training.evaluation import baselines
from tacit.training.evaluation.generation import Sampling
from tacit.training.evaluation.groups import Groups, compare_groups, ends_of, group_names
from tacit.training.evaluation.predicting import answer, completions
from tacit.training.models.shared import load_shared
from tacit.training.phases.public_start import load_public_start
from tacit.training.phases.redacted_start import load_redacted_start
from tacit.training.phases.run_context import RunContext, encode, load_run, tokenize
from tacit.training.tasks.examples import Examples
from tacit.training.tasks.tasks import NextWord


def evaluate(
    folder: Path,
    split: str,
    *,
    test: Corpus | Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Scores on a split of the run's corpus, or on the corpus `test`, beside the baselines."""
    folder = Path(folder)
    ctx = load_run(folder)
    return scores(ctx if test is None else on_file(ctx, test), split, beside=folder,
                  progress=progress)  # fmt: skip


def on_file(ctx: RunContext, test: Corpus | Path) -> RunContext:
    """The run with other records as its test split; what it was trained on stays."""
    if ctx.run.spec.changes_text:
        raise UsageError(
            f"method={ctx.run.method} changes what mentions mark, and other text has none; score a "
            "split of the corpus, which `tacit corpus split` makes before training."
        )
    other = test if isinstance(test, Corpus) else read(test)
    return replace(ctx, corpus=other.with_splits(["test"] * len(other)), mentions=[])


def keep_scores(folder: Path, split: str, values: dict[str, Any]) -> None:
    """Put the scores on a split beside those that a run has in `metrics.json`, for its report."""
    path = Path(folder) / "metrics.json"
    metrics = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    text = json.dumps(spelled(metrics | {split: values}), indent=2, allow_nan=False)
    with whole_file(path) as draft:
        draft.write_text(text + "\n", encoding="utf-8")


def scores(
    ctx: RunContext,
    split: str,
    *,
    beside: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Scores on a split; with the folder of a run, `beside` the baselines and its public start."""
    part = ctx.corpus.only(split)
    part = ctx.run.spec.read(part, ctx.mentions)
    examples = encode(ctx, part, training=False)
    found: dict[str, Any] = dict(ctx.task.score(ctx.model, examples, progress=progress))
    if beside is None:
        return found
    if ctx.run.spec.changes_text and isinstance(ctx.task, NextWord):
        found |= {
            f"whole_text_{name}": value for name, value in whole_text_scores(ctx, split).items()
        }
    found |= baselines.baseline_scores(ctx.task, _counted(ctx, split), examples, len(ctx.tokenizer))
    for what, load in (("public", load_public_start), ("redacted", load_redacted_start)):
        start = load(ctx, beside)
        if start is not None:
            score = ctx.task.score(start, examples)
            found |= {f"{what}_only_{name}": score[name] for name in _HEADLINES if name in score}
    return found


def _counted(ctx: RunContext, split: str) -> Examples | None:
    """The training records, for what is counted; None where they are elsewhere, or are scored."""
    part = ctx.part
    if ctx.run.spec.changes_text:
        part = ctx.run.spec.read(training_part(ctx.corpus), ctx.mentions)
    scored = part.splits() not in ([], ["train"]) or split == "train"
    return None if ctx.elsewhere or scored else tokenize(ctx, part)


def whole_text_scores(ctx: RunContext, split: str) -> dict[str, float]:
    """Scores on a split as it is, also where the model learnt from a de-identified one.

    Methods can only be compared on one text; sensitive is what the run's mentions mark.
    """
    return dict(ctx.task.score(ctx.model, _as_written(ctx, split)))


def _as_written(ctx: RunContext, split: str) -> Examples:
    if ctx.run.spec.changes_text:
        ctx = replace(ctx, run=ctx.run.model_copy(update={"method": "plain"}))
    return encode(ctx, ctx.corpus.only(split), training=False)


def ends_of_users(
    ctx: RunContext, split: str, *, planted: frozenset[str] = frozenset()
) -> Groups | None:
    """How well the users with most and with fewest records are served; None if there are few.

    Records are counted in the whole corpus, `planted` ones left out; the split is read as it is.
    """
    part, every = ctx.corpus.only(split), ctx.corpus
    pairs = zip(every.column("id").to_pylist(), every.require_users().to_pylist(), strict=True)
    wrote = Counter(user for record, user in pairs if record not in planted)
    users = part.require_users().to_pylist()
    examples = _as_written(ctx, split)
    tokens = np.maximum(examples.lengths - 1, 0)
    losses = ctx.task.record_losses(ctx.model, examples) * tokens
    return ends_of(wrote, [users[row] for row in examples.record], losses, tokens, split)


def evaluate_groups(folder: Path, split: str, by: str, *, test: Path | None = None) -> Groups:
    """The perplexity of a run's model for each group of users, or of records, of a split."""
    ctx = load_run(Path(folder))
    return groups_of(ctx if test is None else on_file(ctx, test), split, by)


def groups_of(ctx: RunContext, split: str, by: str) -> Groups:
    """The same of a run that is open."""
    if not isinstance(ctx.task, NextWord):
        raise UsageError(f"task={ctx.run.task} has no perplexity to compare groups by.")
    part = ctx.corpus.only(split)
    names = group_names(ctx.corpus, part, by)
    users = part.require_users() if "user" in part.columns else part.column("id")
    part = ctx.run.spec.read(part, ctx.mentions)
    examples = encode(ctx, part, training=False)
    tokens = np.maximum(examples.lengths - 1, 0)
    losses = ctx.task.record_losses(ctx.model, examples) * tokens
    rows = examples.record
    found = compare_groups(
        [names[row] for row in rows], users.take(rows).to_pylist(), losses, tokens,
        rng=np.random.default_rng(0),
    )  # fmt: skip
    return Groups(by if by in ("records", "label") else Path(by).stem, split, found)


_HEADLINES = (
    "perplexity", "masked_perplexity", "bits_per_character", "accuracy", "error_rate", "pearson",
    "squared_error",
)  # fmt: skip


def predict(
    folder: Path, text: str, *, words: int = 10, choices: int = 5, sampling: Sampling | None = None
) -> dict[str, Any]:
    """Next tokens with probabilities and a completion; or a class; or tags.

    The folder of a run, or what was shared of it: its corpus is not needed.
    """
    shared = load_shared(Path(folder))
    return answer(
        shared.model, shared.tokenizer, shared.task, text, words=words, choices=choices,
        sampling=sampling,
    )  # fmt: skip


def generate(folder: Path, texts: Sequence[str], *, words: int, sampling: Sampling) -> list[str]:
    """Each text, and what the model of a folder adds to it."""
    shared = load_shared(Path(folder))
    return completions(
        shared.model, shared.tokenizer, shared.task, texts, words=words, sampling=sampling
    )
