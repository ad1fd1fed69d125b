"""The report: utility, promise and measured leakage of one or several runs, side by side.

Every number says whether it may be shown: *public* (known before any text was read, or computed
from the ledger alone), *protected* (covered by the guarantee) or *not private* (exact figures over
private text). Whoever shows the report to others has to leave the last ones out, or `shareable`
does it for them.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from tacit.attacks.attack import Scores, Series, read_scores, read_series
from tacit.audits.epsilon_bounds import Audit, read_audit
from tacit.errors import DataError, require_package
from tacit.files import whole_file
from tacit.privacy.certificates.certificate import Certificate, read_certificate
from tacit.privacy.certificates.explanation import headline, in_short
from tacit.privacy.certificates.wording import STANDINGS
from tacit.privacy.rounding import down, percent, up
from tacit.reports.comparison import comparison_sections
from tacit.reports.impact import group_sections, kept_sections
from tacit.reports.leakage import finite, leakage_sections, most_repeated
from tacit.reports.overview import Section
from tacit.saved_json import spelled
from tacit.training.evaluation.groups import Groups, read_groups

Label = Literal["public", "protected", "not private"]


@dataclass(frozen=True)
class Measure:
    """How a kind of task is scored."""

    name: str
    better: str = "lower"


MEASURES = {
    "perplexity": Measure("perplexity"),
    "masked_perplexity": Measure("perplexity of masked words"),
    "error_rate": Measure("error rate"),
    "pearson": Measure("correlation", "higher"),
    "accuracy": Measure("right tags", "higher"),
}


@dataclass(frozen=True)
class RunFacts:
    """What a run's folder says: read from its files, nothing computed from text."""

    name: str
    folder: Path
    method: str
    certificate: Certificate
    metrics: dict[str, Any]
    scores: dict[str, Scores] = field(default_factory=dict)
    audits: tuple[Audit, ...] = ()
    series: Series = field(default_factory=dict)
    groups: Groups | None = None
    ends: Groups | None = None

    @property
    def epsilon(self) -> float:
        """Epsilon for what is protected."""
        return self.certificate.epsilon

    @property
    def promise(self) -> float:
        """Epsilon as a reader may take it: infinite where nothing is promised."""
        void = self.certificate.standing in ("heuristic", "broken")
        return math.inf if void else self.epsilon

    @property
    def perplexity(self) -> float | None:
        """What stands beside the attacks, on held-out text, else that of an evaluation."""
        found = self.score("perplexity")
        beside = next((s.perplexity for s in self.scores.values() if s.perplexity), None)
        return beside if beside is not None else found

    @property
    def measure(self) -> str | None:
        """By what the task of this run is scored; None before it was evaluated."""
        return next((name for name in MEASURES if self.utility(name) is not None), None)

    def utility(self, measure: str) -> float | None:
        """The score by a measure."""
        return self.perplexity if measure == "perplexity" else self.score(measure)

    def score(self, name: str) -> float | None:
        """A score on test if the run was evaluated there, else on the validation split."""
        for split in ("test", "valid"):
            value = self.metrics.get(split, {}).get(name)
            if isinstance(value, float) and not math.isnan(value):
                return value
        return None


def read_facts(folder: Path) -> RunFacts:
    """The facts of a run; attacks and audits where they were made."""
    folder = Path(folder)
    if not (folder / "certificate.json").exists():
        raise DataError(f"{folder} has no certificate.json; give the folder of a finished run.")
    certificate = read_certificate(folder / "certificate.json")
    return RunFacts(
        folder.resolve().name,
        folder,
        str(certificate.context.get("method", "")) or "unknown",
        certificate,
        _json(folder / "metrics.json"),
        {s.attack: s for s in read_scores(folder / "attacks.json")}
        if (folder / "attacks.json").exists()
        else {},
        tuple(read_audit(folder / "audit.json")) if (folder / "audit.json").exists() else (),
        read_series(folder / "attacks-over-steps.json")
        if (folder / "attacks-over-steps.json").exists()
        else {},
        read_groups(folder / "groups.json") if (folder / "groups.json").exists() else None,
        read_groups(folder / "ends.json") if (folder / "ends.json").exists() else None,
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise DataError(f"{path} is not a JSON object; train the run again.")
    return found


def read_all(folders: Sequence[Path]) -> list[RunFacts]:
    """The facts of several runs, under names that differ."""
    found = [read_facts(folder) for folder in folders]
    names = [one.name for one in found]
    return [
        replace(one, name=str(one.folder)) if names.count(one.name) > 1 else one for one in found
    ]


def sections(runs: Sequence[RunFacts], *, shareable: bool = False) -> list[Section]:
    """All parts of the report, for those numbers that may be shown."""
    made = [_at_a_glance(runs, shareable)]
    if not shareable:
        made += comparison_sections(runs)
    made += [_promise(run) for run in runs]
    made += _audits(runs)
    if not shareable:
        made += [*_frontier(runs), *_verdicts(runs), *_exposure(runs), *_membership(runs)]
        made += [*leakage_sections(runs), *_others(runs)]
        made += [*group_sections(runs), *kept_sections(runs)]
    made += [_not_covered(runs), _how_to_verify(runs)]
    return made


def shown(value: float | None) -> str:
    """A number for people; an epsilon that does not exist is said in a word."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return "none" if math.isinf(value) else f"{value:.4g}"


def promised(epsilon: float) -> str:
    """An epsilon as it is written everywhere; one that does not exist is said in a word."""
    return "none" if math.isinf(epsilon) else up(epsilon)


def _at_a_glance(runs: Sequence[RunFacts], shareable: bool) -> Section:
    headings = ["run", "method", "epsilon (public)", "standing (public)", "at least (public)"]
    measures = _measures(runs) or ["perplexity"]
    if not shareable:
        headings += [f"{MEASURES[m].name} (not private)" for m in measures]
        headings += ["exposure, bits (not private)", "of at most (public)",
                     "membership AUC (not private)", "leaks shown by (not private)"]  # fmt: skip
    rows = []
    for run in runs:
        lower = max((audit.lower for audit in run.audits), default=None)
        row = [run.name, run.method, promised(run.promise), run.certificate.standing]
        row.append("-" if lower is None else down(lower))
        if not shareable:
            bits, member = run.scores.get("exposure"), run.scores.get("membership")
            row += [
                *(shown(run.utility(measure)) for measure in measures),
                shown(most_repeated(bits)) if bits else "-",
                shown(bits.figures.get("most_possible_bits")) if bits else "-",
                _with_interval(member, "users_auc", "records_auc") if member else "-",
                _leaking(run),
            ]
        rows.append(row)
    prose = (
        "Epsilon is what is promised, at most; *at least* is what an audit of the same training "
        "step found. Exposure is that of the canaries that were repeated most: near its maximum "
        "they can be read out of the model, at 1.44 they are as well hidden as secrets that were "
        "never in the text. An AUC of 0.5 is guessing."
    )
    return Section("At a glance", prose, headings=headings, rows=rows)


def _leaking(run: RunFacts) -> str:
    """The attacks that show a leak; a dash where none was judged."""
    judged = {n: s.verdict.leak for n, s in run.scores.items() if s.verdict is not None}
    if not judged:
        return "-"
    named = [name for name, leak in judged.items() if leak == "shown"]
    return ", ".join(named) or f"none of {len(judged)} attacks"


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


def _with_interval(scores: Scores, *names: str) -> str:
    name = next((n for n in names if n in scores.figures), None)
    if name is None:
        return "-"
    low, high = scores.intervals.get(name, (math.nan, math.nan))
    return f"{_fixed(scores.figures[name], '.3f')} ({_spread(low, high)})"


def _promise(run: RunFacts) -> Section:
    from tacit.reports.report_figures import steps_drawing

    c = run.certificate
    figures = [
        (
            f"epsilon for {c.scope.named(c.protect)}, at delta {up(c.delta)} (public)",
            promised(run.promise),
        ),
        (f"standing (public): {STANDINGS[c.standing]}", c.standing),
    ]
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
        figures,
        ["wrong about others (public)", "right, at most (public)"],
        rows,
        steps_drawing(run),
    )


def _audits(runs: Sequence[RunFacts]) -> Iterator[Section]:
    from tacit.reports.report_figures import interval_drawing

    audited = [run for run in runs if run.audits]
    if not audited:
        return
    rows = [
        [
            run.name,
            a.unit,
            down(a.lower),
            promised(a.upper),
            a.verdict,
            f"{a.evidence.confidence:.0%}",
        ]
        for run in audited
        for a in run.audits
    ]
    prose = "\n\n".join(
        f"**{run.name}**, {a.unit}: {a.sentence} Found by {a.evidence.how}."
        for run in audited
        for a in run.audits
    )
    headings = ["run", "for", "at least (public)", "at most (public)", "verdict (public)",
                "confidence (public)"]  # fmt: skip
    yield Section("Tried and certified", prose, (), headings, rows, interval_drawing(audited))


def _measures(runs: Sequence[RunFacts]) -> list[str]:
    """The measures of all tasks among the runs; mostly one."""
    return [name for name in MEASURES if any(run.measure == name for run in runs)]


def _frontier(runs: Sequence[RunFacts]) -> Iterator[Section]:
    from tacit.reports.report_figures import frontier_drawing

    for name in _measures(runs):
        measure, own = MEASURES[name], [run for run in runs if run.measure == name]
        prose = (
            f"{measure.name.capitalize()} (not private; {measure.better} is better) over epsilon. "
            "Runs without an epsilon are lines. "
        )
        headings = ["run", "epsilon (public)", f"{measure.name} (not private)"]
        rows = [[run.name, promised(run.promise), shown(run.utility(name))] for run in own]
        beside = baselines(own, name)
        rows += [[other, "-", shown(value)] for other, value in beside.items()]
        if name == "perplexity":
            prose += (
                "Methods are to be compared at like perplexity. A promise is worth something only "
                "if the model is much better than word counts (unigram), and better than public "
                "text alone."
            )
            headings += ["on sensitive tokens (not private)", "on the rest (not private)"]
            for row, run in zip(rows, own, strict=False):
                row += [shown(run.score(f"{name}_{part}")) for part in ("sensitive", "plain")]
            rows = [row + ["-"] * (len(headings) - len(row)) for row in rows]
        elif beside:
            prose += "A promise is worth something only if the model does better than public text."
        scored = [(run, value) for run in own if (value := run.utility(name)) is not None]
        drawing = frontier_drawing(scored, beside, measure.name)
        yield Section("Utility", prose, (), headings, rows, drawing)


def baselines(runs: Sequence[RunFacts], measure: str = "perplexity") -> dict[str, float]:
    """What stands beside a score: models of counts, unprotected, and the public start."""
    names = {
        "public text only": f"public_only_{measure}",
        "masked text only": f"redacted_only_{measure}",
        "trigram, unprotected": f"trigram_{measure}",
        "unigram, unprotected": f"unigram_{measure}",
    }
    # A de-identified corpus is another text, and so are its counts.
    own = [run for run in runs if run.method != "deidentify"] or list(runs)
    found = {n: next((v for r in own if (v := r.score(key))), None) for n, key in names.items()}
    return {name: value for name, value in found.items() if value is not None}


def _exposure(runs: Sequence[RunFacts]) -> Iterator[Section]:
    from tacit.reports.report_figures import exposure_drawing

    found = [run for run in runs if "exposure" in run.scores]
    if not found:
        return
    rows = [
        [
            run.name,
            str(row["repetitions"] or "never planted"),
            str(row["canaries"]),
            _fixed(row["mean_bits"]),
            _spread(row["low"], row["high"]),
            _fixed(row["largest_bits"]),
            f"{row['records_kept']} of {row['records']}" if "records_kept" in row else "-",
            shown(run.scores["exposure"].perplexity),
        ]
        for run in found
        for row in run.scores["exposure"].rows
    ]
    headings = ["run", "repeated (public)", "canaries (public)", "mean bits (not private)",
                "95 % interval (not private)", "largest (not private)",
                "records kept by caps (not private)", "perplexity (not private)"]  # fmt: skip
    notes = "; ".join(dict.fromkeys(n for r in found for n in r.scores["exposure"].notes))
    prose = f"How far up planted secrets rank among all of their form ({notes})."
    yield Section("Exposure of canaries", prose, (), headings, rows, exposure_drawing(found))


def _membership(runs: Sequence[RunFacts]) -> Iterator[Section]:
    from tacit.reports.report_figures import roc_drawing

    found = [run for run in runs if "membership" in run.scores]
    if not found:
        return
    rows = [
        [
            run.name,
            f"{row['of']} by {row['by']}",
            _fixed(row["auc"], ".3f"),
            _spread(row["auc_low"], row["auc_high"], ".3f"),
            *(_share(row, f"tpr_at_{rate}") for rate in ("0.01", "0.001")),
        ]
        for run in found
        for row in run.scores["membership"].rows
    ]
    headings = ["run", "attack"] + [
        f"{name} (not private)"
        for name in ("AUC", "95 % interval", "right at 1 % wrong", "right at 0.1 % wrong")
    ]
    notes = list(dict.fromkeys(n for r in found for n in r.scores["membership"].notes))
    prose = "Whether a record or a user was in the training text.\n\n" + "".join(
        f"- {note}\n" for note in notes
    )
    yield Section("Membership", prose, (), headings, rows, roc_drawing(found))


def _fixed(value: float | None, digits: str = ".2f") -> str:
    known = finite(value)
    return "-" if known is None else format(known, digits)


def _spread(low: float | None, high: float | None, digits: str = ".2f") -> str:
    if finite(low) is None or finite(high) is None:
        return "-"
    return f"{_fixed(low, digits)} to {_fixed(high, digits)}"


def _share(row: Mapping[str, Any], name: str) -> str:
    """A share with its interval, where one was kept."""
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    spread = "" if low is None or high is None else f" ({_spread(low, high, '.1%')})"
    return _fixed(row[name], ".1%") + spread


def _others(runs: Sequence[RunFacts]) -> Iterator[Section]:
    rows = []
    for run in runs:
        for name, scores in run.scores.items():
            if name in ("exposure", "membership"):
                continue
            for figure, value in scores.figures.items():
                low, high = scores.intervals.get(figure, (math.nan, math.nan))
                spread = "" if math.isnan(low) else f"{low:.3g} to {high:.3g}"
                words = figure.replace("_", " ")
                rows.append([run.name, name, words, shown(value), spread, shown(scores.perplexity)])
    if rows:
        headings = ["run", "attack", "figure", "value (not private)",
                    "95 % interval (not private)", "perplexity (not private)"]  # fmt: skip
        yield Section("Other attacks", "", (), headings, rows)


def _not_covered(runs: Sequence[RunFacts]) -> Section:
    lines = []
    for run in runs:
        lines.append(f"\n**{run.name}**\n")
        lines += [f"- {line}" for line in run.certificate.not_covered] or ["- see its certificate"]
    return Section("What is not covered", "\n".join(lines))


def _how_to_verify(runs: Sequence[RunFacts]) -> Section:
    lines = [
        "Every public figure can be recomputed from ledger and plan, without the data:",
        "",
        *[f"- `tacit verify {run.folder}`" for run in runs],
        "",
        "Attacks and audits can be repeated with `tacit attack` and `tacit audit`.",
    ]
    return Section("How to verify", "\n".join(lines))


def write_report(
    path: Path, runs: Sequence[RunFacts], *, title: str, shareable: bool = False
) -> list[Path]:
    """The HTML page, and Markdown and JSON beside it; all the paths that were written."""
    from jinja2 import Environment, StrictUndefined

    MarkdownIt = require_package("markdown_it", "A report").MarkdownIt

    parts = sections(runs, shareable=shareable)
    prose = MarkdownIt("commonmark", {"html": False})
    ready = [
        {**part.__dict__, "prose": prose.render(part.prose), "words": _word_columns(part)}
        for part in parts
    ]
    source = (files("tacit.reports") / "report.html.jinja").read_text(encoding="utf-8")
    page = Environment(autoescape=True, undefined=StrictUndefined).from_string(source)
    html = page.render(title=title, lead=_lead(runs), sections=ready, shareable=shareable)
    texts = {
        path: html,
        path.with_suffix(".md"): _markdown(title, runs, parts),
        path.with_suffix(".json"): _as_json(runs, shareable),
    }
    for place, text in texts.items():
        with whole_file(place) as draft:
            draft.write_text(text, encoding="utf-8")
    return list(texts)


_NUMBER = re.compile(r"[-\d.,%e+() tof]*|none|infinity")


def _word_columns(part: Section) -> list[bool]:
    """Which columns hold words, and stand on the left; numbers stand on the right."""
    return [
        2 * sum(_NUMBER.fullmatch(cell) is None for cell in column) > len(column)
        for column in zip(*part.rows, strict=True)
    ]


def _lead(runs: Sequence[RunFacts]) -> str:
    if len(runs) == 1:
        return headline(runs[0].certificate).replace("**", "")
    proved = sum(run.certificate.standing == "proved" for run in runs)
    return f"{len(runs)} models, {proved or 'none'} of them with a promise that is proved."


def _markdown(title: str, runs: Sequence[RunFacts], parts: Sequence[Section]) -> str:
    lines = [f"# {title}", "", _lead(runs), ""]
    for part in parts:
        lines += [f"## {part.title}", ""]
        lines += [f"- {name}: **{value}**" for name, value in part.figures]
        lines += [""] if part.figures else []
        lines += [part.prose, ""] if part.prose else []
        if part.rows:
            lines += ["| " + " | ".join(part.headings) + " |", "|---" * len(part.headings) + "|"]
            lines += ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |"
                      for row in part.rows]  # fmt: skip
            lines.append("")
    return "\n".join(lines) + "\n"


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
                "metrics": run.metrics,
                "attacks": {name: s.as_dict() for name, s in run.scores.items()},
                "over steps": [
                    {"step": step, "scores": [s.as_dict() for s in found.values()]}
                    for step, found in sorted(run.series.items())
                ],
                "groups": asdict(run.groups) if run.groups else None,
                "ends": asdict(run.ends) if run.ends else None,
            }
        made.append(one)
    fields = {"format": "tacit-report", "version": 1, "runs": spelled(made)}
    return json.dumps(fields, indent=2, allow_nan=False) + "\n"
