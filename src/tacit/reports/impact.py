"""Who pays: perplexity by group, and what detection found and the caps dropped."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tacit.reports.overview import Section

if TYPE_CHECKING:
    from tacit.reports.report import RunFacts


def group_sections(runs: Sequence["RunFacts"]) -> Iterator[Section]:
    """Perplexity of each group under each run, and over that of the plain run where there is one.

    Runs are compared that were looked at by the same groups of the same split.
    """
    from tacit.reports.report_figures import groups_drawing

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
                    [
                        run.name,
                        group.name,
                        f"{group.users:,}",
                        f"{group.perplexity:.4g}",
                        "-" if group.low is None else f"{group.low:.4g} to {group.high:.4g}",
                        "-" if times is None or run is plain else f"{times:.3g}",
                    ]
                )
        headings = [
            "run",
            "group",
            "users (not private)",
            "perplexity (not private)",
            "95 % interval (not private)",
            "times the plain run's (not private)",
        ]
        prose = (
            f"Perplexity on the split {split} by group ({_said(by)}). Clipping and noise can cost "
            "some people more than others: where a protected run multiplies the plain perplexity "
            "of one group by more than that of another, that group pays more for the promise."
        )
        drawing = groups_drawing(same)
        yield Section("Who pays: groups", prose, figures, headings, rows, drawing)


def _said(by: str) -> str:
    return {
        "records": "users by how many records they wrote",
        "label": "records by label",
    }.get(by, f"users by {by}")


_COUNTS = {
    "detected": "detected in the training text",
    "detected_kinds": "mentions of kind",
    "bounding_caps": "cap (public)",
    "bounding": "bounding",
    "dropped_by": "records dropped by the cap",
    "training": "used in training",
}


def kept_sections(runs: Sequence["RunFacts"]) -> Iterator[Section]:
    """What was detected, what the caps kept and dropped, and what did not fit; a column a run."""
    rows = []
    for part, words in _COUNTS.items():
        values = [_counts(run, part) for run in runs]
        for name in dict.fromkeys(name for found in values for name in found):
            rows.append([words, _words(name), *(_count(found.get(name)) for found in values)])
    if not rows:
        return
    prose = (
        "What detectors marked in the training records, what the plan's caps kept of them, and "
        "what training used. Only what was marked is protected as an entity; what the caps "
        "dropped was never learnt, which hides it without any noise."
    )
    headings = ["part", "what", *(f"{run.name} (not private)" for run in runs)]
    yield Section("What was detected, kept and dropped", prose, (), headings, rows)


def _counts(run: "RunFacts", part: str) -> dict[str, Any]:
    found = run.metrics.get(part, {})
    return found if isinstance(found, dict) else {}


def _words(name: str) -> str:
    return name.replace("_", " ") if name.islower() else name


def _count(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{float(value):.4g}"
