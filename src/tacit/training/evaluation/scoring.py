"""Using what was trained: scores beside the baselines, and predictions."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tacit.errors import UsageError
from tacit.files import whole_file
from tacit.saved_json import spelled
from tacit.training.data.deidentification import deidentified
from tacit.training.data.training_data import training_part
from tacit.training.evaluation import baselines
from tacit.training.evaluation.groups import Groups, compare_groups, ends_of, group_names
from tacit.training.evaluation.predicting import answer
from tacit.training.models.shared import load_shared
from tacit.training.phases.public_start import load_public_start
from tacit.training.phases.redacted_start import load_redacted_start
from tacit.training.phases.run_context import Opened, encode, load_run
from tacit.training.tasks.examples import Examples
from tacit.training.tasks.tasks import NextWord


def evaluate(
    folder: Path, split: str, *, progress: Callable[[int], None] | None = None
) -> dict[str, Any]:
    """Scores on a split of the run's corpus, beside the baselines."""
    folder = Path(folder)
    return scores(load_run(folder), split, beside=folder, progress=progress)


def keep_scores(folder: Path, split: str, values: dict[str, Any]) -> None:
    """Put the scores on a split beside those that a run has in `metrics.json`, for its report."""
    path = Path(folder) / "metrics.json"
    metrics = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    text = json.dumps(spelled(metrics | {split: values}), indent=2, allow_nan=False)
    with whole_file(path) as draft:
        draft.write_text(text + "\n", encoding="utf-8")


def scores(
    opened: Opened,
    split: str,
    *,
    beside: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Scores on a split; with the folder of a run, `beside` the baselines and its public start."""
    part = opened.corpus.only(split)
    if opened.run.method == "deidentify":
        part = deidentified(part, opened.mentions)
    examples = encode(opened, part, training=False)
    found: dict[str, Any] = dict(opened.task.score(opened.model, examples, progress=progress))
    if beside is None:
        return found
    if opened.run.method == "deidentify" and isinstance(opened.task, NextWord):
        found |= {
            f"whole_text_{name}": value for name, value in whole_text_scores(opened, split).items()
        }
    if opened.run.task == "next-word":
        learnt = training_part(opened.corpus)
        if opened.run.method == "deidentify":
            learnt = deidentified(learnt, opened.mentions)
        train = encode(opened, learnt)
        others = baselines.baseline_perplexities(
            train, examples, len(opened.tokenizer), rng=np.random.default_rng(0)
        )
        found |= {f"{name}_perplexity": value for name, value in others.items()}
    for what, load in (("public", load_public_start), ("redacted", load_redacted_start)):
        start = load(opened, beside)
        if start is not None:
            score = opened.task.score(start, examples)
            found |= {f"{what}_only_{name}": score[name] for name in _HEADLINES if name in score}
    return found


def whole_text_scores(opened: Opened, split: str) -> dict[str, float]:
    """Scores on a split as it is, also where the model learnt from a de-identified one.

    Methods can only be compared on one text; sensitive is what the run's mentions mark.
    """
    return dict(opened.task.score(opened.model, _as_written(opened, split)))


def _as_written(opened: Opened, split: str) -> Examples:
    run = opened.run
    if run.method == "deidentify":
        opened = replace(opened, run=run.model_copy(update={"method": "plain"}))
    return encode(opened, opened.corpus.only(split), training=False)


def ends_of_users(
    opened: Opened, split: str, *, planted: frozenset[str] = frozenset()
) -> Groups | None:
    """How well the users with most and with fewest records are served; None if there are few.

    Records are counted in the whole corpus, `planted` ones left out; the split is read as it is.
    """
    part, every = opened.corpus.only(split), opened.corpus
    pairs = zip(every.column("id").to_pylist(), every.need_users().to_pylist(), strict=True)
    wrote = Counter(user for record, user in pairs if record not in planted)
    users = part.need_users().to_pylist()
    examples = _as_written(opened, split)
    tokens = np.maximum(examples.lengths - 1, 0)
    assert isinstance(opened.task, NextWord)
    losses = opened.task.record_losses(opened.model, examples) * tokens
    return ends_of(wrote, [users[row] for row in examples.record], losses, tokens, split)


def evaluate_groups(folder: Path, split: str, by: str) -> Groups:
    """The perplexity of a run's model for each group of users, or of records, of a split."""
    return groups_of(load_run(Path(folder)), split, by)


def groups_of(opened: Opened, split: str, by: str) -> Groups:
    """The same of a run that is open."""
    if not isinstance(opened.task, NextWord):
        raise UsageError(f"task={opened.run.task} has no perplexity to compare groups by.")
    part = opened.corpus.only(split)
    names = group_names(opened.corpus, part, by)
    users = (
        part.need_users().to_pylist() if "user" in part.columns else part.column("id").to_pylist()
    )
    if opened.run.method == "deidentify":
        part = deidentified(part, opened.mentions)
    examples = encode(opened, part, training=False)
    tokens = np.maximum(examples.lengths - 1, 0)
    losses = opened.task.record_losses(opened.model, examples) * tokens
    rows = examples.record
    found = compare_groups(
        [names[row] for row in rows], [users[row] for row in rows], losses, tokens,
        rng=np.random.default_rng(0),
    )  # fmt: skip
    return Groups(by if by in ("records", "label") else Path(by).stem, split, found)


_HEADLINES = ("perplexity", "accuracy", "error_rate", "pearson")


def predict(folder: Path, text: str, *, words: int = 10, choices: int = 5) -> dict[str, Any]:
    """Next tokens with probabilities and a completion; or a class; or tags.

    The folder of a run, or what was shared of it: its corpus is not needed.
    """
    shared = load_shared(Path(folder))
    return answer(shared.model, shared.tokenizer, shared.task, text, words=words, choices=choices)
