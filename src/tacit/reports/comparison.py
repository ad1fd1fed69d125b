"""All methods in one table and one drawing: utility, promise, leakage, cost and who pays."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tacit.reports.leakage import leaks
from tacit.reports.overview import Section
from tacit.training.evaluation.groups import FEWEST, MOST

if TYPE_CHECKING:
    from tacit.reports.report import RunFacts

HEADINGS = {
    "perplexity": "perplexity (not private)",
    "plain": "on plain tokens (not private)",
    "sensitive": "on sensitive tokens (not private)",
    "top_1": "next word right (not private)",
    "masked": "perplexity of masked words (not private)",
    "error_rate": "error rate (not private)",
    "pearson": "correlation (not private)",
    "tags": "right tags (not private)",
    "exposure": "exposure, bits (not private)",
    "auc": "membership AUC (not private)",
    "accuracy": "membership accuracy (not private)",
    "tab": "tab accuracy beyond controls (not private)",
    "linkage": "linkage accuracy (not private)",
    "cost": "time of a record, times plain (not private)",
    "drop_most": f"perplexity lost, {MOST} (not private)",
    "drop_fewest": f"perplexity lost, {FEWEST} (not private)",
}

# What a figure means; only those that are shown are explained.
_MEANINGS: tuple[tuple[set[str], str], ...] = (
    (
        {"perplexity", "top_1"},
        "Perplexity and next words are those of held-out text as it was written.",
    ),
    ({"error_rate"}, "The error rate is the share of held-out labels that are guessed wrong."),
    ({"pearson"}, "Correlation is that of held-out scores with the guessed ones."),
    ({"exposure"}, "Exposure is that of the canaries that were planted most often."),
    (
        {"tab"},
        "Tab asks whether a canary follows from what stands before its secret and the secret's "
        "first token; the share of controls, never planted, that do so is taken off.",
    ),
    ({"linkage"}, "Linkage tells authors from hidden states."),
    (
        {"cost"},
        "Time is the processor's for steps of training, over the records that passed the model; "
        "where a step takes many of them, they share the cost of its update.",
    ),
    (
        {"drop_most", "drop_fewest"},
        "Perplexity lost is against the plain run, the mean over five users of each one's "
        "difference.",
    ),
)


def figures_of(run: "RunFacts", plain: "RunFacts | None") -> dict[str, float | None]:
    """The figures of a run, by the names of `HEADINGS`; None where something was not measured."""
    leak = leaks(0, run.scores)
    own, base = seconds_per_record(run), seconds_per_record(plain) if plain else None
    made: dict[str, float | None] = {
        "perplexity": score_on_text(run, "perplexity"),
        "plain": score_on_text(run, "perplexity_plain"),
        "sensitive": score_on_text(run, "perplexity_sensitive"),
        "top_1": score_on_text(run, "accuracy") if run.measure == "perplexity" else None,
        "masked": run.score("masked_perplexity"),
        "error_rate": run.score("error_rate"),
        "pearson": run.score("pearson"),
        "tags": run.score("accuracy") if run.measure == "accuracy" else None,
        "exposure": leak.exposure,
        "auc": leak.auc,
        "accuracy": leak.accuracy,
        "tab": leak.tab,
        "linkage": leak.linkage,
        "cost": own / base if own and base else None,
    }
    for name, group in (("drop_most", MOST), ("drop_fewest", FEWEST)):
        one, other = _of_group(run, group), _of_group(plain, group) if plain else None
        made[name] = None if one is None or other is None else one - other
    return made


def score_on_text(run: "RunFacts", name: str) -> float | None:
    """A score on held-out text as it was written, also of a model of de-identified text."""
    return run.score(f"whole_text_{name}" if run.method == "deidentify" else name)


def seconds_per_record(run: "RunFacts") -> float | None:
    """Processor time of all phases over all records that passed the model in them."""
    phases = run.metrics.get("time", {})
    known = [p for p in phases.values() if isinstance(p, dict) and p.get("records")]
    if not known or len(known) < len(phases):
        return None
    return float(sum(p["cpu_seconds"] for p in known) / sum(p["records"] for p in known))


def _of_group(run: "RunFacts", name: str) -> float | None:
    found = run.ends.groups if run.ends is not None else ()
    return next((group.perplexity for group in found if group.name == name), None)


def comparison_sections(runs: Sequence["RunFacts"]) -> Iterator[Section]:
    """One row for each run and one panel for each figure; nothing for a single run."""
    from tacit.reports.report import promised
    from tacit.reports.report_figures import comparison_drawing

    if len(runs) < 2:
        return
    plain = next((run for run in runs if run.method == "plain"), None)
    found = {run.name: figures_of(run, plain) for run in runs}
    known = [n for n in HEADINGS if any(one[n] is not None for one in found.values())]
    rows = [
        [
            run.name,
            run.certificate.standing,
            f"{promised(run.epsilon)} for {run.certificate.protect}"
            if math.isfinite(run.epsilon)
            else "none",
            *(_shown(found[run.name][name]) for name in known),
        ]
        for run in runs
    ]
    headings = ["run", "standing (public)", "epsilon (public)", *(HEADINGS[n] for n in known)]
    prose = " ".join(
        [
            "Epsilons for different units are not comparable.",
            *(sentence for names, sentence in _MEANINGS if names & set(known)),
            "What has learnt less also leaks less: compare at like "
            + ("perplexity." if "perplexity" in known else "utility."),
        ]
    )
    drawing = comparison_drawing(found, {name: HEADINGS[name] for name in known})
    yield Section("Side by side", prose, (), headings, rows, drawing)


def _shown(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "infinite"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"
