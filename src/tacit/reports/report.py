"""The report: utility, promise and measured leakage of one or several runs, side by side.

Every number says whether it may be shown: *public* (known before any text was read, or computed
from the ledger alone), *protected* (covered by the guarantee) or *not private* (exact figures over
private text). Whoever shows the report to others has to leave the last ones out, or `shareable`
does it for them. Nothing here knows an attack by name: its columns and drawings come with its
scores.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from tacit.attacks.attack import Column, Scores, series_fields
from tacit.errors import require_package
from tacit.files import whole_file
from tacit.privacy.certificates.explanation import headline, in_short
from tacit.privacy.certificates.wording import STANDINGS
from tacit.privacy.rounding import down, percent, up
from tacit.reports.comparison import comparison_sections, leakage_sections
from tacit.reports.drawings import (
    attack_drawing,
    frontier_drawing,
    interval_drawing,
    standing_drawing,
    steps_drawing,
)
from tacit.reports.facts import (
    MEASURES,
    RunFacts,
    Section,
    differ_in_tokens,
    fixed,
    headlines_of,
    leakage_of,
    promised,
    spread,
)
from tacit.reports.impact import group_sections, kept_sections
from tacit.reports.texts import text_section
from tacit.saved_json import spelled


def sections(runs: Sequence[RunFacts], *, shareable: bool = False) -> list[Section]:
    """All parts of the report, for those numbers that may be shown."""
    made = [_in_short(runs, shareable)]
    if not shareable:
        made += comparison_sections(runs)
    made += [replace(_promise(run), folded=len(runs) > _FEW) for run in runs]
    made += _audits(runs)
    folded = [_at_a_glance(runs, shareable)]
    if not shareable:
        folded += [*_frontier(runs), *_verdicts(runs), *_attacks(runs)]
        folded += [*leakage_sections(runs), *_other_attacks(runs)]
        folded += [*group_sections(runs), *kept_sections(runs)]
    made += [_not_covered(runs), _how_to_verify(runs, shareable)]
    return made + [replace(one, folded=True) for one in folded]


_FEW = 2
"""The promises of so many runs are read in full; those of more are folded away."""


def _in_short(runs: Sequence[RunFacts], shareable: bool) -> Section:
    """What somebody takes away who reads nothing else: in words, and in one picture."""
    lines, drawing = [], ""
    for run in runs:
        said = [headline(run.certificate)]
        if not shareable:
            said.append(f"{run.verdict.words} (not private)")
            said += _leaks_in_words(run)
        lower = max((audit.lower for audit in run.audits), default=None)
        if lower is not None:
            said.append(f"An audit of the same training step found at least {down(lower)}.")
        lines.append(f"- **{run.name}** ({run.method}): {' '.join(said)}")
    if not shareable:
        drawing = standing_drawing(runs, baselines(runs) if _one_measure(runs) else {})
    return Section("In short", "\n".join(lines), drawing=drawing)


def _one_measure(runs: Sequence[RunFacts]) -> bool:
    """Whether what stands beside perplexity is comparable with all of these runs."""
    return {run.measure for run in runs} == {"perplexity"} and not differ_in_tokens(runs)


def _leaks_in_words(run: RunFacts) -> list[str]:
    judged = [scores.verdict.leak for scores in run.scores.values() if scores.verdict is not None]
    if not judged:
        return ["No attack was tried."]
    if "shown" in judged:
        return [f"A leak is shown by {_leaking(run)} (not private)."]
    tried = "the one attack that was tried" if len(judged) == 1 else f"{len(judged)} attacks"
    return [f"No leak is shown by {tried} (not private)."]


def _at_a_glance(runs: Sequence[RunFacts], shareable: bool) -> Section:
    headings = ["run", "method", "epsilon (public)", "standing (public)", "at least (public)"]
    prose = (
        "Epsilon is what is promised, at most; *at least* is what an audit of the same training "
        "step found."
    )
    measures = _measures(runs) or ["perplexity"]
    if differ_in_tokens(runs):  # perplexities have a table for each tokenizer
        measures.remove("perplexity")
    leakage = [leakage_of(run.scores.values(), first=True) for run in runs]
    known = {} if shareable else headlines_of(leakage)
    if not shareable:
        headings += [f"{MEASURES[m][0]} (not private)" for m in measures]
        headings.append("is it any good (not private)")
        headings += [f"{one.label} (not private)" for one in known.values()]
        headings.append("leaks shown by (not private)")
        prose = " ".join([prose, *(one.meaning for one in known.values() if one.meaning)])
    rows = []
    for run, own in zip(runs, leakage, strict=True):
        lower = max((audit.lower for audit in run.audits), default=None)
        row = [run.name, run.method, promised(run.promise), run.certificate.standing]
        row.append("-" if lower is None else down(lower))
        if not shareable:
            row += [fixed(run.utility(measure)) for measure in measures]
            row.append(run.verdict.words.rstrip("."))
            row += [str(own[key]) if key in own else "-" for key in known]
            row.append(_leaking(run))
        rows.append(row)
    return Section("At a glance", prose, headings=headings, rows=rows)


def _leaking(run: RunFacts) -> str:
    """The attacks that show a leak; a dash where none was judged."""
    judged = {n: s.verdict.leak for n, s in run.scores.items() if s.verdict is not None}
    named = ", ".join(name for name, leak in judged.items() if leak == "shown")
    return named or (f"none of {len(judged)} attacks" if judged else "-")


def _verdicts(runs: Sequence[RunFacts]) -> Iterator[Section]:
    rows = [
        [run.name, name, scores.verdict.leak, scores.verdict.words]
        for run in runs
        for name, scores in run.scores.items()
        if scores.verdict is not None
    ]
    if not rows:
        return
    prose = (
        "Every attack beside what it would get had the model never seen the text: guessing, or "
        "controls that were never planted. Where these do as well, the figures of the attack show "
        "no leak, however large they are; an attack that shows none is no proof that there is none."
    )
    headings = ["run", "attack", "leak (not private)", "by what (not private)"]
    yield Section("What attacks show", prose, (), headings, rows)


def _promise(run: RunFacts) -> Section:
    c = run.certificate
    unit = f"epsilon for {c.scope.named(c.protect)}, at delta {up(c.delta)} (public)"
    standing = f"standing (public): {STANDINGS[c.standing]}"
    prose = in_short(c)
    rows: list[list[str]] = []
    if c.standing == "proved":
        rates = c.costs[c.protect].true_positive_rate
        rows = [[f"{float(fpr):.1%}", percent(tpr)] for fpr, tpr in rates.items()]
        prose.append(
            "If the attacker may be wrong about so many who did not take part, they are right "
            "about so many who did:"
        )
    else:
        prose.append("Nothing limits what an attacker can learn.")
    return Section(
        f"What is promised: {run.name}",
        "\n\n".join(prose),
        [(unit, promised(run.promise)), (standing, c.standing)],
        ["wrong about others (public)", "right, at most (public)"],
        rows,
        steps_drawing(run),
    )


def _audits(runs: Sequence[RunFacts]) -> Iterator[Section]:
    found = [(run.name, audit) for run in runs for audit in run.audits]
    if not found:
        return
    rows = [
        [name, a.unit, down(a.lower), promised(a.upper), a.verdict, f"{a.evidence.confidence:.0%}"]
        for name, a in found
    ]
    prose = "\n\n".join(
        f"**{name}**, {a.unit}: {a.sentence} Found by {a.evidence.how}." for name, a in found
    )
    headings = ["run", "for", "at least (public)", "at most (public)", "verdict (public)",
                "confidence (public)"]  # fmt: skip
    yield Section("Tried and certified", prose, (), headings, rows, interval_drawing(runs))


def _measures(runs: Sequence[RunFacts]) -> list[str]:
    """The measures of all tasks among the runs; mostly one.

    Perplexities of different tokens are not comparable, so bits of a character stand there, too.
    """
    found = [name for name in MEASURES if any(run.measure == name for run in runs)]
    return ["bits_per_character", *found] if differ_in_tokens(runs) else found


def _frontier(runs: Sequence[RunFacts]) -> Iterator[Section]:
    for name in _measures(runs):
        if name == "bits_per_character":
            yield _utility([run for run in runs if run.measure == "perplexity"], name, "")
            continue
        own = [run for run in runs if run.measure == name]
        kinds = dict.fromkeys(run.tokenizer if name == "perplexity" else "" for run in own)
        for number, kind in enumerate(kinds, 1):
            alike = [run for run in own if name != "perplexity" or run.tokenizer == kind]
            yield _utility(alike, name, f", tokenizer {number}" if len(kinds) > 1 else "")


def _utility(own: Sequence[RunFacts], name: str, which: str) -> Section:
    """Scores by one measure; perplexities of one tokenizer."""
    measure, better = MEASURES[name]
    prose = (
        f"{measure.capitalize()} (not private; {better} is better) over epsilon. "
        "Runs without an epsilon are lines. "
    )
    headings = ["run", "epsilon (public)", f"{measure} (not private)"]
    rows = [[run.name, promised(run.promise), fixed(run.utility(name))] for run in own]
    beside = baselines(own, name)
    rows += [[other, "-", fixed(value)] for other, value in beside.items()]
    if name == "perplexity":
        prose += (
            "Methods are to be compared at like perplexity. A promise is worth something only "
            "if the model is much better than word counts (unigram), and better than public "
            "text alone."
        )
        further = {"bits of a character": "bits_per_character", "next word right": "accuracy",
                   "on sensitive tokens": "perplexity_sensitive",
                   "on the rest": "perplexity_plain"}  # fmt: skip
        headings += [f"{label} (not private)" for label in further]
        for row, run in zip(rows, own, strict=False):
            row += [fixed(run.score(key)) for key in further.values()]
        rows = [row + ["-"] * (len(headings) - len(row)) for row in rows]
    elif name == "bits_per_character":
        prose += "These runs have different tokens, so their perplexities are not comparable."
    elif beside:
        prose += "A promise is worth something only if the model does better than public text."
    scored = [(run, value) for run in own if (value := run.utility(name)) is not None]
    drawing = frontier_drawing(scored, beside, measure)
    return Section(f"Utility{which}", prose, (), headings, rows, drawing)


def baselines(runs: Sequence[RunFacts], measure: str = "perplexity") -> dict[str, float]:
    """What stands beside a score: models of counts, unprotected, and the public start."""
    names = {
        "public text only": f"public_only_{measure}",
        "masked text only": f"redacted_only_{measure}",
        "trigram, unprotected": f"trigram_{measure}",
        "unigram, unprotected": f"unigram_{measure}",
        "most frequent label, unprotected": f"majority_{measure}",
        "always the mean, unprotected": f"constant_{measure}",
        "guessing uniformly": f"uniform_{measure}",
    }
    # A de-identified corpus is another text, and so are its counts.
    own = [run for run in runs if run.method != "deidentify"] or list(runs)
    found = {n: next((v for r in own if (v := r.score(key))), None) for n, key in names.items()}
    return {name: value for name, value in found.items() if value is not None}


def _attacks(runs: Sequence[RunFacts]) -> Iterator[Section]:
    """A part for each attack that has a table or a drawing to be shown."""
    for name in dict.fromkeys(name for run in runs for name in run.scores):
        found = [run for run in runs if name in run.scores]
        every = [(run.name, run.scores[name]) for run in found]
        shown = every[0][1].presentation
        if not (shown.columns or shown.drawing):
            continue
        headings, rows = _figures(every)
        if shown.columns:
            headings = ["run", *(column_heading(column) for column in shown.columns)]
            rows = [
                [run, *(cell(row, column) for column in shown.columns)]
                for run, scores in every
                for row in scores.rows
            ]
        notes = dict.fromkeys(note for _, scores in every for note in scores.notes)
        drawing = attack_drawing(shown.drawing, found, name) if shown.drawing else ""
        prose = "".join(f"- {note}\n" for note in notes)
        yield Section(shown.title or name, prose, (), headings, rows, drawing)


def column_heading(column: Column) -> str:
    """A column with who may see it."""
    return f"{column.label} ({'public' if column.public else 'not private'})"


def cell(row: dict[str, Any], column: Column) -> str:
    """A value of an attack's table, with its interval where it has one."""
    value = row.get(column.key)
    if not column.format or value is None:
        return "-" if value is None else str(value)
    said = fixed(value, column.format)
    low, high = (row.get(key) for key in column.interval or ("", ""))
    between = spread(low, high, column.format)
    return said if between == "-" or said == "-" else f"{said} ({between})"


def _figures(every: Sequence[tuple[str, Scores]]) -> tuple[list[str], list[list[str]]]:
    """All figures of attacks as a table."""
    rows = []
    for run, scores in every:
        for figure, value in scores.figures.items():
            low, high = scores.intervals.get(figure, (None, None))
            between = spread(low, high, ".3g")
            rows.append([run, scores.attack, figure.replace("_", " "), fixed(value),
                         "" if between == "-" else between, fixed(scores.perplexity)])  # fmt: skip
    headings = ["run", "attack", "figure", "value (not private)",
                "95 % interval (not private)", "perplexity (not private)"]  # fmt: skip
    return headings, rows


def _other_attacks(runs: Sequence[RunFacts]) -> Iterator[Section]:
    every = [(run.name, scores) for run in runs for scores in run.scores.values()]
    bare = [
        (name, scores)
        for name, scores in every
        if not (scores.presentation.columns or scores.presentation.drawing)
    ]
    headings, rows = _figures(bare)
    if rows:
        yield Section("Other attacks", "", (), headings, rows)


def _not_covered(runs: Sequence[RunFacts]) -> Section:
    lines = []
    for run in runs:
        lines.append(f"\n**{run.name}**\n")
        lines += [f"- {line}" for line in run.certificate.not_covered] or ["- see its certificate"]
    return Section("What is not covered", "\n".join(lines))


def _how_to_verify(runs: Sequence[RunFacts], shareable: bool) -> Section:
    # Where a folder lies is nobody's business but this machine's.
    places = [run.folder.name if shareable else run.folder for run in runs]
    lines = [
        "Every public figure can be recomputed from ledger and plan, without the data:",
        "",
        *[f"- `tacit verify {place}`" for place in places],
        "",
        "Attacks and audits can be repeated with `tacit attack` and `tacit audit`.",
    ]
    return Section("How to verify", "\n".join(lines))


def write_report(
    path: Path,
    runs: Sequence[RunFacts],
    *,
    title: str,
    shareable: bool = False,
    texts: Sequence[Path] = (),
) -> list[Path]:
    """The HTML page, and Markdown and JSON beside it; all the paths that were written.

    `texts` are files of synthetic text, shown after the first part.
    """
    from jinja2 import Environment, StrictUndefined

    MarkdownIt = require_package("markdown_it", "A report").MarkdownIt

    first, *others = sections(runs, shareable=shareable)
    parts = [first, *map(text_section, texts), *others]
    lead = headline(runs[0].certificate).replace("**", "")
    if len(runs) > 1:
        proved = sum(run.certificate.standing == "proved" for run in runs)
        lead = f"{len(runs)} models, {proved or 'none'} of them with a promise that is proved."
    prose = MarkdownIt("commonmark", {"html": False})
    ready = [
        {**part.__dict__, "prose": prose.render(part.prose), "words": _word_columns(part)}
        for part in map(_narrow, parts)
    ]

    def rendered(template: str, parts: Sequence[Any], *, escaped: bool) -> str:
        source = (files("tacit.reports") / template).read_text(encoding="utf-8")
        page = Environment(
            autoescape=escaped, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        ).from_string(source)
        return page.render(title=title, lead=lead, sections=parts, shareable=shareable)

    pages = {
        path: rendered("report.html.jinja", ready, escaped=True),
        path.with_suffix(".md"): rendered("report.md.jinja", parts, escaped=False),
        path.with_suffix(".json"): _as_json(runs, shareable),
    }
    for place, text in pages.items():
        with whole_file(place) as draft:
            draft.write_text(text, encoding="utf-8")
    return list(pages)


_WIDEST = 8
"""Columns that fit a sheet of paper."""


def _narrow(part: Section) -> Section:
    """A wide table of few runs with the runs as columns: so it fits paper, and a phone."""
    if len(part.headings) <= _WIDEST or not len(part.rows) < _WIDEST // 2:
        return part
    names = [row[0] for row in part.rows]
    if len(set(names)) < len(names):
        return part
    rows = [[h, *(row[at] for row in part.rows)] for at, h in enumerate(part.headings) if at]
    return replace(part, headings=[part.headings[0], *names], rows=rows)


_NUMBER = re.compile(r"[-\d.,%e+() tof]*|none|infinit[ye]")


def _word_columns(part: Section) -> list[bool]:
    """Which columns hold words, and stand on the left; numbers stand on the right."""
    return [
        2 * sum(_NUMBER.fullmatch(cell) is None for cell in column) > len(column)
        for column in zip(*part.rows, strict=True)
    ]


def _as_json(runs: Sequence[RunFacts], shareable: bool) -> str:
    made = []
    for run in runs:
        one: dict[str, Any] = {
            "name": run.name,
            "method": run.method,
            "public": {
                "certificate": run.certificate.model_dump(mode="json"),
                "audits": [audit.as_dict() for audit in run.audits],
            },
        }
        if not shareable:
            one["not private"] = {
                "verdict": run.verdict.as_json(),
                "metrics": run.metrics,
                "attacks": {name: s.as_dict() for name, s in run.scores.items()},
                "over steps": series_fields(run.series),
                "groups": asdict(run.groups) if run.groups else None,
                "ends": asdict(run.ends) if run.ends else None,
            }
        made.append(one)
    fields = {"format": "tacit-report", "version": 2, "runs": spelled(made)}
    return json.dumps(fields, indent=2, allow_nan=False) + "\n"
