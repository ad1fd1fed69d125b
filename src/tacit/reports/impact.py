"""Who pays: perplexity by group, and what detection found and the caps dropped."""

from collections.abc import Iterator, Sequence
from typing import Any

from tacit.reports.drawings import groups_drawing
from tacit.reports.facts import RunFacts, Section, fixed, spread


def group_sections(runs: Sequence[RunFacts]) -> Iterator[Section]:
    """Perplexity of each group under each run, and over that of the plain run where there is one.

    Runs are compared that were looked at by the same groups of the same split.
    """
    kinds = dict.fromkeys((r.groups.by, r.groups.split) for r in runs if r.groups is not None)
    for by, split in kinds:
        same = [r for r in runs if r.groups and (r.groups.by, r.groups.split) == (by, split)]
        plain = next((r for r in same if r.method == "plain"), None)
        base = {g.name: g.perplexity for g in plain.groups.groups} if plain and plain.groups else {}
        rows, figures = [], []
        for run in same:
            assert run.groups is not None
            figures.append(
                (f"{run.name}: largest over smallest (not private)", f"{run.groups.gap:.2f}")
            )
            for group in run.groups.groups:
                times = group.perplexity / base[group.name] if group.name in base else None
                rows.append(
                    [run.name, group.name, f"{group.users:,}", fixed(group.perplexity),
                     spread(group.low, group.high, ".4g"),
                     fixed(None if run is plain else times, ".3g")]
                )  # fmt: skip
        private = ("users", "perplexity", "95 % interval", "times the plain run's")
        headings = ["run", "group", *(f"{name} (not private)" for name in private)]
        said = {"records": "users by how many records they wrote", "label": "records by label"}.get(
            by, f"users by {by}"
        )
        prose = (
            f"Perplexity on the split {split} by group ({said}). Clipping and noise can cost "
            "some people more than others: where a protected run multiplies the plain perplexity "
            "of one group by more than that of another, that group pays more for the promise."
        )
        drawing = groups_drawing(same)
        yield Section("Who pays: groups", prose, figures, headings, rows, drawing)


_COUNTS = {
    "detected": "detected in the training text",
    "detected_kinds": "mentions of kind",
    "bounding_caps": "cap (public)",
    "bounding": "bounding",
    "dropped_by": "records dropped by the cap",
    "training": "used in training",
}


def kept_sections(runs: Sequence[RunFacts]) -> Iterator[Section]:
    """What was detected, what the caps kept and dropped, and what did not fit; a column a run."""
    rows = []
    for part, words in _COUNTS.items():
        parts = [run.metrics.get(part, {}) for run in runs]
        values = [found if isinstance(found, dict) else {} for found in parts]
        for name in dict.fromkeys(name for found in values for name in found):
            said = name.replace("_", " ") if name.islower() else name
            rows.append([words, said, *(_count(found.get(name)) for found in values)])
    if not rows:
        return
    prose = (
        "What detectors marked in the training records, what the plan's caps kept of them, and "
        "what training used. Only what was marked is protected as an entity; what the caps "
        "dropped was never learnt, which hides it without any noise."
    )
    headings = ["part", "what", *(f"{run.name} (not private)" for run in runs)]
    yield Section("What was detected, kept and dropped", prose, (), headings, rows)


def _count(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{float(value):.4g}"
