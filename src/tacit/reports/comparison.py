"""Runs side by side: utility, promise, leakage, cost; and leakage at like perplexity.

What has learnt less leaks less, so methods are compared where their perplexities are alike.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from tacit.attacks.matching import HARDLY, common_level, off
from tacit.reports.drawings import OFF, comparison_drawing, leakage_drawing
from tacit.reports.facts import (
    Model,
    RunFacts,
    Section,
    differ_in_tokens,
    fixed,
    headlines_of,
    leakage_of,
    promised,
)
from tacit.training.evaluation.groups import FEWEST, MOST

NEAR = 1.25
"""Perplexities whose ratio is at most this are called alike."""

UTILITY = {
    "perplexity": "perplexity",
    "bits": "bits of a character",
    "plain": "on plain tokens",
    "sensitive": "on sensitive tokens",
    "top_1": "next word right",
    "masked": "perplexity of masked words",
    "error_rate": "error rate",
    "pearson": "correlation",
    "tags": "right tags",
}
COSTS = {
    "cost": "time of a record, times plain",
    "drop_most": f"perplexity lost, {MOST}",
    "drop_fewest": f"perplexity lost, {FEWEST}",
}
RATIOS = ("perplexity", "plain", "sensitive", "masked")
"""Perplexities are ratios; bits are logarithms already, and shares end at one."""

OF_TOKENS = ("perplexity", "plain", "sensitive", "top_1", "drop_most", "drop_fewest")
"""What can be compared only between models of the same tokens."""

# What a figure means; only those that are shown are explained.
_MEANINGS: dict[tuple[str, ...], str] = {
    ("perplexity", "top_1"): "Perplexity and next words are those of held-out text as it was "
    "written.",
    ("error_rate",): "The error rate is the share of held-out labels that are guessed wrong.",
    ("pearson",): "Correlation is that of held-out scores with the guessed ones.",
    ("cost",): "Time is the processor's for steps of training, over the records that passed the "
    "model; where a step takes many of them, they share the cost of its update.",
    ("drop_most", "drop_fewest"): "Perplexity lost is against the plain run, the mean over five "
    "users of each one's difference.",
}


def figures_of(run: RunFacts, plain: RunFacts | None) -> dict[str, float | None]:
    """The figures of a run by name, leakage by `attack.name`; None where one was not measured."""
    own, base = seconds_per_record(run), seconds_per_record(plain) if plain else None
    made: dict[str, float | None] = {
        "perplexity": _on_text(run, "perplexity"),
        "bits": _on_text(run, "bits_per_character"),
        "plain": _on_text(run, "perplexity_plain"),
        "sensitive": _on_text(run, "perplexity_sensitive"),
        "top_1": _on_text(run, "accuracy") if run.measure == "perplexity" else None,
        "masked": run.score("masked_perplexity"),
        "error_rate": run.score("error_rate"),
        "pearson": run.score("pearson"),
        "tags": run.score("accuracy") if run.measure == "accuracy" else None,
    }
    made |= {key: one.value for key, one in leakage_of(run.scores.values()).items()}
    made["cost"] = own / base if own and base else None
    for name, group in (("drop_most", MOST), ("drop_fewest", FEWEST)):
        one, other = (
            next((g.perplexity for g in r.ends.groups if g.name == group), None)
            if r and r.ends
            else None
            for r in (run, plain)
        )
        made[name] = None if one is None or other is None else one - other
    return made


def _on_text(run: RunFacts, name: str) -> float | None:
    """A score on held-out text as it was written, also of a model of de-identified text."""
    return run.score(f"whole_text_{name}" if run.method == "deidentify" else name)


def seconds_per_record(run: RunFacts) -> float | None:
    """Processor time of all phases over all records that passed the model in them."""
    phases = run.metrics.get("time", {})
    known = [p for p in phases.values() if isinstance(p, dict) and p.get("records")]
    if not known or len(known) < len(phases):
        return None
    return float(sum(p["cpu_seconds"] for p in known) / sum(p["records"] for p in known))


def comparison_sections(runs: Sequence[RunFacts]) -> Iterator[Section]:
    """One row for each run and one panel for each figure; nothing for a single run."""
    if len(runs) < 2:
        return
    plain = next((run for run in runs if run.method == "plain"), None)
    found = {run.name: figures_of(run, plain) for run in runs}
    leakage = headlines_of(leakage_of(run.scores.values()) for run in runs)
    labels = UTILITY | {key: one.label for key, one in leakage.items()} | COSTS
    apart = OF_TOKENS if differ_in_tokens(runs) else ()
    known = [
        name
        for name in labels
        if name not in apart and any(one.get(name) is not None for one in found.values())
    ]
    headings = ["run", "standing (public)", "epsilon (public)"]
    headings += [f"{labels[name]} (not private)" for name in known]
    rows = []
    for run in runs:
        private = math.isfinite(run.epsilon)
        cost = f"{promised(run.epsilon)} for {run.certificate.protect}" if private else "none"
        cells = [fixed(v, _digits(v)) for v in map(found[run.name].get, known)]
        rows.append([run.name, run.certificate.standing, cost, *cells])
    prose = ["Epsilons for different units are not comparable."]
    prose += [sentence for names, sentence in _MEANINGS.items() if set(names) & set(known)]
    prose += [one.meaning for key, one in leakage.items() if one.meaning and key in known]
    if apart:
        prose.append("These runs have different tokens: perplexities stand in tables of their own.")
    alike = "perplexity" if "perplexity" in known else "utility"
    prose.append(f"What has learnt less also leaks less: compare at like {alike}.")
    drawing = comparison_drawing(found, {name: labels[name] for name in known}, RATIOS)
    yield Section("Side by side", " ".join(prose), (), headings, rows, drawing)


def _digits(value: float | None) -> str:
    return ",.0f" if value is not None and 1000 <= abs(value) < 1e6 else ".3g"


def matched(models: Mapping[str, Sequence[Model]]) -> tuple[float, dict[str, Model]] | None:
    """The lowest perplexity that all runs reached, and the model of each that is nearest to it.

    A run that has no model near it is left out, and so is one that hardly learnt.
    """
    known = {
        name: {one.perplexity: one for one in reversed(found) if one.perplexity is not None}
        for name, found in models.items()
    }
    best = {name: min(found) for name, found in known.items() if found}
    level = common_level(best)
    if level is None or sum(value <= level for value in best.values()) < 2:
        return None
    near = {}
    for name in (name for name, value in best.items() if value <= level):
        nearest = min(known[name], key=lambda perplexity: off(perplexity, level))
        if off(nearest, level) <= math.log(NEAR):
            near[name] = known[name][nearest]
    return level, near


def leakage_sections(runs: Sequence[RunFacts]) -> Iterator[Section]:
    """The models of all runs over perplexity, and those at like perplexity side by side.

    Nothing where runs differ in their tokens: no two perplexities are alike then.
    """
    models = {run.name: run.models for run in runs if run.series}
    if not models or differ_in_tokens(runs):
        return
    known = headlines_of(one.leakage for found in models.values() for one in found)
    headings = ["run", "step (public)", "test perplexity (not private)"]
    headings += [f"{one.label} (not private)" for one in known.values()]

    def row(name: str, one: Model) -> list[str]:
        return [name, f"{one.step:,}", fixed(one.perplexity), *(fixed(one.value(k)) for k in known)]

    prose = (
        "Models kept on the way, and the last one of each run. What has learnt less also gives "
        "away less, so methods are to be compared where their curves stand at one perplexity. "
        f"Models of {OFF:,.0f} times the lowest perplexity are not drawn."
    )
    rows = [row(name, one) for name, found in models.items() for one in found]
    drawing = leakage_drawing(models, known)
    yield Section("Leakage against perplexity", prose, (), headings, rows, drawing)
    found = matched(models)
    if found is None:
        return
    level, near = found
    prose = (
        f"The lowest perplexity that every run reached is {level:.4g} (not private), those left "
        f"out whose best is over {HARDLY:.0f} times the best of all. Of each run, the model "
        f"nearest to it, if within {NEAR - 1:.0%}."
    )
    lacking = [name for name in models if name not in near]
    if lacking:
        prose += f" None that near: {', '.join(lacking)}; more models kept on the way may help."
    rows = [row(name, one) for name, one in near.items()] if len(near) > 1 else []
    yield Section("At like perplexity", prose, (), headings, rows)
