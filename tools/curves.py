"""Train every method of a study over epsilons and seeds, score each model once on test, draw.

    python tools/curves.py conll2003 --data DIR          # what is missing is trained
    python tools/curves.py customersim customersim-tokens customersim-residuals
    python tools/curves.py conll2003-kinds conll2003-caps conll2003-plain-rate --data DIR
    python tools/curves.py conll2003-models conll2003-adapters --data DIR
    python tools/curves.py newsgroups20-english --data DIR
    python tools/curves.py newsgroups20-smollm2 --data DIR
    python tools/curves.py agnews newsgroups20-topics --data DIR
    python tools/curves.py wikitext2 wikitext2-norms wikitext2-residuals --data DIR
    python tools/curves.py wikitext2-pretrained --data DIR --pipeline build/contextual/pipeline
    python tools/curves.py --list

Scores are kept in docs/results/STUDY.jsonl, one line for each model; a line that is there is not
trained again. Figures go to docs/figures. All of it is in experiment mode: the seeds are fixed, so
that anybody gets the same lines, and the models are not for release.
"""

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import yaml

from tacit.planning.recipes import resolve

os.environ.setdefault("OMP_NUM_THREADS", "1")

HERE = Path(__file__).resolve().parent.parent
RESULTS, FIGURES = HERE / "docs" / "results", HERE / "docs" / "figures"
PRESETS = HERE / "src" / "tacit" / "presets"
SEEDS = (0, 1, 2)
KINDS = {"PERSON": ["PERSON"], "ORG": ["ORG"], "LOC": ["LOC"], "MISC": ["MISC"]}


@dataclass(frozen=True)
class Case:
    """One model to train: where it stands in the figure, and what differs from its preset."""

    series: str
    x: float | None
    preset: str
    changes: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = SEEDS


@dataclass(frozen=True)
class Study:
    """Cases that are drawn together."""

    cases: list[Case]
    title: str
    across: str
    score: str = "perplexity"
    close: bool = False
    """The curves lie so near each other that the figure shows nothing else."""


def _rates(preset: str, epsilon: float) -> dict[str, Any]:
    """The learning rate falls with epsilon, as the noise grows: a rule that looks at no data."""
    highest = float(
        yaml.safe_load((PRESETS / f"{preset}.yml").read_text())["optimizer"]["learning_rate"]
    )
    return {
        "plan.epsilon": epsilon,
        "optimizer.learning_rate": highest * min(1.0, (epsilon / 8) ** 0.5),
    }


def over_epsilon(corpus: str, model: str, epsilons: tuple[float, ...]) -> list[Case]:
    """Without protection, de-identified, users, users+entities, and the published algorithm."""
    stem = f"{corpus}-{model}"
    cases = [Case(m, None, f"{stem}-{m}") for m in ("plain", "deidentify")]
    for protect in ("users", "users+entities"):
        preset = f"{stem}-{protect}"
        cases += [Case(protect, e, preset, _rates(preset, e)) for e in epsilons]
    cases.append(Case("uedp", None, f"{stem}-uedp"))
    return cases


def from_public_text() -> list[Case]:
    """From GloVe and public sentences; the unprotected model last."""
    users, names, both = (
        f"conll2003-lstm-{protect}" for protect in ("users", "users+names", "users+entities")
    )
    # Fewer weights have less noise; where it is loudest, steps are shorter.
    few, short = {"model.trained_rows": 200}, {"optimizer.learning_rate": 0.006}
    return [
        Case("users", 8.0, users, {"plan.epsilon": 8.0}),
        Case("users", 2.0, users, {"plan.epsilon": 2.0} | few),
        Case("users", 1.0, users, {"plan.epsilon": 1.0} | few | short),
        Case("users+names", 8.0, names, {"plan.epsilon": 8.0}),
        Case("users+names", 2.0, names, {"plan.epsilon": 2.0} | few),
        Case("users+names", 1.0, names, {"plan.epsilon": 1.0} | few | short),
        Case("users+entities", 8.0, both, {"plan.epsilon": 8.0}),
        Case("users+entities", 2.0, both, {"plan.epsilon": 2.0} | short),
        Case("plain", None, "conll2003-lstm-plain"),
    ]


def dialogs() -> list[Case]:
    """CustomerSim from scratch; names at the rates of users."""
    stem = "customersim-lstm"
    names = [
        Case("users+names", e, f"{stem}-users+names", _rates(f"{stem}-users", e), (0,))
        for e in (8.0, 2.0)
    ]
    return over_epsilon("customersim", "lstm", (8.0, 2.0)) + names


def own_mail() -> list[Case]:
    """Authors of posts as users, from the start that comes with the package."""
    rated = "newsgroups20-english-users"
    cases = [
        Case(protect, e, f"newsgroups20-english-{protect}", _rates(rated, e))
        for protect in ("users", "users+names")
        for e in (8.0, 2.0, 1.0)
    ]
    return [*cases, Case("plain", None, "newsgroups20-english-plain")]


FEW = 400
"""Authors of a comparison that a pretrained model can be part of in minutes."""


def little_mail() -> list[Case]:
    """Few authors, and what recipes choose for them: above SmolLM2, and from the shipped start."""
    declared = {"plan.users": FEW, "plan.records": FEW, "plan.protect": "users"}
    presets = {"SmolLM2": "own-data-smollm2", "start:english": "own-data-lstm"}
    return [
        Case(name, e, preset, declared | {"plan.epsilon": e, "detect": None}, (0,))
        for name, preset in presets.items()
        for e in (8.0, 2.0)
    ]


STATIC = {"model.folder": "wordllama"}
"""Static word vectors instead of a Transformer's states."""


def heads(stem: str, entities: tuple[str, ...]) -> list[Case]:
    """Heads above frozen encoders, trained in twenty steps or fitted from one release.

    Which of the two, and the rates, are as `recipe: auto` chooses from the declared numbers.
    """
    plain = f"{stem}-plain"
    every = ("users", "users+names", "users+entities")
    protects = [one for one in every if one != "users+entities" or one in entities]
    both = [(protect, epsilon) for protect in protects for epsilon in (8.0, 2.0, 1.0)]
    trained, static, once = [Case("plain", None, plain)], [], []
    static.append(Case("plain, static vectors", None, plain, STATIC))
    for protect, epsilon in both:
        fields = {"plan.epsilon": epsilon} | _release_for(stem, protect)
        release = f"{stem}-statistics", fields
        preset, at = _chosen(stem, protect, epsilon) or release
        trained.append(Case(protect, epsilon, preset, at))
        static.append(Case(f"{protect}, static vectors", epsilon, preset, at | STATIC))
        name = f"{protect}, one release, static vectors"
        once.append(Case(name, epsilon, release[0], fields | STATIC))
    loud = Case("users, hardly any noise", None, f"{stem}-users", {"plan.epsilon": 1e6})
    others = [Case(one, None, f"{stem}-{one}") for one in entities if one != "users+entities"]
    return [*trained, *static, *once, loud, *others]


def _chosen(stem: str, protect: str, epsilon: float) -> tuple[str, dict[str, Any]] | None:
    """The preset of steps with the rate that the recipe chooses; None where it takes one release.

    The declared users are those of the preset for users.
    """
    common, users = (
        yaml.safe_load((PRESETS / f"{stem}{part}.yml").read_text()) for part in ("", "-users")
    )
    own = yaml.safe_load((PRESETS / f"{stem}-{protect}.yml").read_text())["plan"]
    declared = {"users": users["plan"]["users"], "epsilon": epsilon}
    facts = {name: common[name] for name in ("task", "labels", "model")}
    own = {name: own[name] for name in ("protect", "clip_norm", "entity_share") if name in own}
    chosen = resolve({"recipe": "auto", **facts, "plan": own | declared}).fields
    if chosen["method"] == "statistics":
        return None
    rate = chosen["optimizer"]["learning_rate"]
    return f"{stem}-{protect}", {"plan.epsilon": epsilon, "optimizer.learning_rate": rate}


def _release_for(stem: str, protect: str) -> dict[str, Any]:
    """What makes the preset of one release one about users and entities."""
    if protect != "users+entities":
        return {} if protect == "users" else {"plan.protect": protect}
    plan = yaml.safe_load((PRESETS / f"{stem}-users+entities.yml").read_text())["plan"]
    fields = {f"plan.{k}": v for k, v in plan.items() if k not in ("epsilon", "steps")}
    return fields | {"plan.users": None}


TWO = {"plan.users_per_entity": 2}
"""What the cap was before training had shown that one is better."""


def with_two() -> list[Case]:
    """Users and entities, an entity kept in two users."""
    preset = "conll2003-small-users+entities"
    return [
        Case("users+entities, k = 2", e, preset, _rates(preset, e) | TWO)
        for e in (8.0, 2.0, 4.0, 1.0)
    ]


def kinds() -> list[Case]:
    """Users and one kind of entity, the kinds of the corpus each in turn."""
    preset = "conll2003-small-users+entities"
    return [
        Case(f"users+{name}", e, preset, _rates(preset, e) | {"plan.kinds": own})
        for name, own in KINDS.items()
        for e in (2.0, 8.0)
    ]


def caps() -> list[Case]:
    """How many users may share an entity, and how far one entity may move a user.

    Three seeds for those that one seed could not tell apart, one for the others.
    """
    preset = "conll2003-small-users+entities"
    close = {(1, 0.25), (1, 0.5), (2, 0.25)}
    return [
        Case(
            f"k = {k}, tau = {tau:g}",
            e,
            preset,
            _rates(preset, e) | {"plan.users_per_entity": k, "plan.entity_share": tau},
            SEEDS if (k, tau) in close else (0,),
        )
        for k in (1, 2, 4)
        for tau in (0.25, 0.5, 1.0)
        for e in (1.0, 2.0, 4.0, 8.0)
    ]


def plain_rates() -> list[Case]:
    """The published algorithm over the share of plain records that it draws.

    Once with the noise that its lemma asks for, and once with as much as one of the authors'
    scripts adds: it passes a variance where a standard deviation is expected. A share of none is
    its other estimator. The printed mean divides by the weight of all entities and plain records
    that may come, thousands; the rate takes that back, so that the mean over users moves by 1.
    """
    cases = []
    for name, noise in {"noise of Lemma 2": 2.0, "41,431 times less": 2.0 / 41431}.items():
        for share in (0.0, 0.25, 0.5, 1.0):
            changes: dict[str, Any] = {"uedp.noise_multiplier": noise}
            changes |= {"uedp.plain_rate": share} if share else {"uedp.estimator": "f_E"}
            if noise < 1:
                changes["optimizer.learning_rate"] = round(0.5 * 7738 + share * 2909)
            cases.append(Case(name, share, "conll2003-small-uedp", changes))
    return cases


def models() -> list[Case]:
    """The same corpus with a small AWD-LSTM."""
    cases = [Case("AWD-LSTM 3 x 128, plain", None, "conll2003-smallawd-plain")]
    for protect in ("users", "users+entities"):
        preset = f"conll2003-smallawd-{protect}"
        cases += [
            Case(f"AWD-LSTM 3 x 128, {protect}", e, preset, _rates(preset, e)) for e in (8.0, 2.0)
        ]
    return cases


def adapters() -> list[Case]:
    """The same corpus with adapters of a small pretrained model, whose tokens are others.

    Inside of the model (LoRA), and above its frozen states.
    """
    users = "conll2003-smollm2-users"
    return [
        Case("plain, LoRA", None, "conll2003-lora-plain"),
        Case("users, LoRA", 8.0, "conll2003-lora-users"),
        Case("users", 8.0, users),
        Case("users", 2.0, users, {"plan.epsilon": 2.0, "optimizer.learning_rate": 13.0}),
        Case("plain", None, "conll2003-smollm2-plain"),
    ]


def marked_tokens(corpus: str, seeds: tuple[int, ...] = SEEDS) -> list[Case]:
    """What protects the tokens that a policy marks, beside what Selective DP compares with."""
    stem = f"{corpus}-lstm"
    cases = [Case(m, None, f"{stem}-{m}", seeds=seeds) for m in ("plain", "deidentify")]
    for method in ("records", "selective", "redact-then-private"):
        preset = f"{stem}-{method}"
        cases.append(Case(method, 8.0, preset, seeds=seeds))
        cases.append(Case(method, 2.0, preset, _rates(preset, 2.0), seeds))
    return cases


def residuals(corpus: str, context: int, tokens: int) -> list[Case]:
    """Three ways to protect marked tokens, at sizes that minutes are enough for.

    Each reads about as much masked, or plain, text; noisy steps, rates and norms of the last two
    are the same.
    """
    stem, cases = f"{corpus}-lstm", []
    size = {"embedding_size": 64, "hidden_size": 64}
    small = {"context": context, "model.config": size, "tokenizer.size": tokens}
    changes: dict[str, dict[str, Any]] = {
        "redact-then-private": {"plan.steps": 50, "redact-then-private.steps": 120},
        "residual-tokens": {"plan.steps": 50, "residual-tokens.steps": 120},
        "selective": {"plan.steps": 170, "plan.record_rate": 0.03},
    }
    for epsilon in (8.0, 2.0):
        for method, own in changes.items():
            preset = f"{stem}-{method}"
            cases.append(Case(method, epsilon, preset, small | own | _rates(preset, epsilon)))
    return sorted(cases, key=lambda case: case.series == "selective")  # what is known best, last


def norms() -> list[Case]:
    """The norm to which gradients of sensitive segments are clipped, as far as it matters."""
    return [
        Case(
            "selective, epsilon 8", norm, "wikitext2-lstm-selective", {"plan.clip_norm": norm}, (0,)
        )
        for norm in (1e-5, 1e-4, 1e-3, 1e-2)
    ]


def policies() -> list[Case]:
    """A pretrained model under two policies of a spaCy pipeline, which stands for PIPELINE."""
    stem = "wikitext2-smollm2"
    cases = [Case("plain", None, f"{stem}-plain"), Case("records", 8.0, f"{stem}-records")]
    for name, policy in {"entities": "spacy", "contextual": "contextual"}.items():
        changes = {"policy": f"{policy}=PIPELINE"}
        preset = f"{stem}-redact-then-private"
        cases.append(Case(f"redact-then-private, {name}", 8.0, preset, changes))
    return cases


STUDIES = {
    "conll2003": Study(from_public_text(), "CoNLL-2003, next words", "epsilon at delta 1e-5"),
    "conll2003-small": Study(
        over_epsilon("conll2003", "small", (8.0, 2.0, 4.0, 1.0)) + with_two(),
        "CoNLL-2003, next words, a smaller LSTM",
        "epsilon at delta 1e-5",
    ),
    "customersim": Study(
        dialogs(),
        "CustomerSim, next words",
        "epsilon at delta 1e-5",
    ),
    "newsgroups20-english": Study(own_mail(), "20 Newsgroups, next words", "epsilon at delta 1e-5"),
    "newsgroups20-smollm2": Study(
        little_mail(),
        "20 Newsgroups, few authors",
        "epsilon at delta 1e-5",
        "bits_per_character",
    ),
    "agnews": Study(
        heads("agnews-minilm", ("deidentify", "uedp", "users+entities")),
        "AG News, topics",
        "epsilon at delta 1e-5",
        "error_rate",
    ),
    "newsgroups20-topics": Study(
        heads("newsgroups20-topics", ()),
        "20 Newsgroups, groups",
        "epsilon at delta 1e-5",
        "error_rate",
    ),
    "conll2003-kinds": Study(
        kinds(), "CoNLL-2003, one kind of entity", "epsilon at delta 1e-5", close=True
    ),
    "conll2003-caps": Study(caps(), "CoNLL-2003, caps", "epsilon at delta 1e-5", close=True),
    "conll2003-plain-rate": Study(
        plain_rates(), "CoNLL-2003, the published algorithm", "share of plain records drawn"
    ),
    "customersim-tokens": Study(
        marked_tokens("customersim", (0,)),
        "CustomerSim, marked tokens",
        "epsilon at delta 1e-5",
    ),
    "wikitext2": Study(
        marked_tokens("wikitext2"), "WikiText-2, marked tokens", "epsilon at delta 1e-5"
    ),
    "customersim-residuals": Study(
        residuals("customersim", 96, 2000),
        "CustomerSim, marked tokens, small",
        "epsilon at delta 1e-5",
        "perplexity_sensitive",
    ),
    "wikitext2-residuals": Study(
        residuals("wikitext2", 64, 2000),
        "WikiText-2, marked tokens, small",
        "epsilon at delta 1e-5",
        "perplexity_sensitive",
    ),
    "wikitext2-norms": Study(norms(), "WikiText-2, selective", "norm of a segment's gradient"),
    "wikitext2-pretrained": Study(
        policies(), "WikiText-2, SmolLM2 and adapters", "epsilon at delta 1e-5"
    ),
    "conll2003-models": Study(models(), "CoNLL-2003, a small AWD-LSTM", "epsilon at delta 1e-5"),
    "conll2003-adapters": Study(
        adapters(), "CoNLL-2003, SmolLM2 and adapters", "epsilon at delta 1e-5"
    ),
}


def key(case: Case, seed: int) -> str:
    """What makes a line the line of this case."""
    return json.dumps([case.series, case.x, case.preset, case.changes, seed], sort_keys=True)


def train(case: Case, seed: int, given: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train one model, score it on test, and read its price from its certificate."""
    from tacit.training.evaluation import scoring
    from tacit.training.phases import session
    from tacit.training.settings import read_run

    start = time.process_time()
    given = dict(given)
    pipeline = given.pop("pipeline", None)
    changes = {
        k: v.replace("PIPELINE", str(pipeline)) if k == "policy" else v
        for k, v in case.changes.items()
    }
    run = read_run(
        PRESETS / f"{case.preset}.yml",
        given | changes | {"seed": seed, "checkpoint_every": 1000},
    )
    done = session.train(run, folder)
    scores = scoring.evaluate(folder, "test")
    certificate = done.certificate
    return {
        "series": case.series,
        "x": case.x,
        "preset": case.preset,
        "changes": case.changes,
        "seed": seed,
        "epsilon": {unit: cost.epsilon for unit, cost in certificate.costs.items()},
        "published": certificate.published,
        "standing": certificate.standing,
        "cpu_seconds": round(time.process_time() - start, 1),
        "scores": {k: v for k, v in scores.items() if isinstance(v, int | float)},
    }


def lines(name: str) -> list[dict[str, Any]]:
    """What was measured before."""
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def missing(name: str, seeds: int, series: list[str] | None = None) -> Iterator[tuple[Case, int]]:
    """The models of a study that are not yet measured; the first seed of all of them first."""
    known = {
        json.dumps([x["series"], x["x"], x["preset"], x["changes"], x["seed"]], sort_keys=True)
        for x in lines(name)
    }
    for seed in SEEDS[:seeds]:
        for case in STUDIES[name].cases:
            wanted = seed in case.seeds and (series is None or case.series in series)
            if wanted and key(case, seed) not in known:
                yield case, seed


def grouped(name: str) -> dict[str, dict[float | None, list[float]]]:
    """The score of every series and place, a number for each seed."""
    found: dict[str, dict[float | None, list[float]]] = {}
    for line in lines(name):
        score = line["scores"][STUDIES[name].score]
        found.setdefault(line["series"], {}).setdefault(line["x"], []).append(score)
    return found


def spread(values: list[float]) -> tuple[float, float]:
    """The mean, and the standard deviation over seeds."""
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def draw(name: str) -> None:
    """One figure: curves with error bars, and what stands beside them as level lines.

    None of a study with one place only: that is a table.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    from tacit.reports.plots import GREY, STYLE, save

    study, found = STUDIES[name], grouped(name)
    if len({x for places in found.values() for x in places if x is not None}) < 2:
        return
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.4, 4.6), layout="constrained")
        axes = figure.add_subplot()
        levels: list[tuple[str, float, str]] = []
        colours = iter(["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
                        "#222222", "#999933", "#882255"])  # fmt: skip
        for series, places in found.items():
            colour = next(colours)
            points = sorted((x, *spread(v)) for x, v in places.items() if x is not None)
            if points:
                xs, means, errors = zip(*points, strict=True)
                axes.errorbar(xs, means, yerr=errors, marker="o", capsize=3, color=colour,
                              label=series)  # fmt: skip
            if None in places:
                levels.append((series, spread(places[None])[0], colour))
        scores = [line["scores"] for line in lines(name)]
        for level in ("public_only", "trigram", "unigram"):
            values = [s[f"{level}_{study.score}"] for s in scores if f"{level}_{study.score}" in s]
            if values:
                levels.append((level.replace("_", " "), statistics.median(values), GREY))
        if "share" not in study.across:
            axes.set_xscale("log", base=2)
            ticks = sorted({x for p in found.values() for x in p if x is not None})
            axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
        axes.set_xlabel(study.across)
        axes.set_ylabel(f"{study.score.replace('_', ' ')} on test")
        axes.set_title(study.title, loc="left")
        if axes.get_legend_handles_labels()[1]:
            axes.legend(framealpha=1, edgecolor="none", fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        means = [spread(v)[0] for places in found.values() for v in places.values()]
        if study.close:
            axes.set_title(f"{study.title} (not from zero)", loc="left")
            if max(means) > 3 * min(means):
                axes.set_yscale("log")
                axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.2, 1.5, 2, 3, 4, 6, 8)))
                axes.yaxis.set_major_formatter("{x:g}")
                axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            _draw_levels(axes, levels, means)
        FIGURES.mkdir(parents=True, exist_ok=True)
        save(figure, FIGURES / f"{name}.svg")


def _draw_levels(axes: Any, levels: list[tuple[str, float, str]], means: list[float]) -> None:
    """Level lines with their names, which are moved apart where lines nearly meet."""
    for _, value, colour in levels:
        axes.axhline(value, color=colour, linestyle="--", linewidth=1)
    heights = [value for _, value, _ in levels] + means
    if max(heights) > 10 * min(heights):
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.05 * max(heights))
    last = -1.0
    for label, value, colour in sorted(levels, key=lambda level: level[1]):
        last = max(_height(axes, value), last + 0.04)
        name = "deidentify (another text)" if label == "deidentify" else label
        axes.annotate(f"{name} {value:.3g}", (1.005, last), color=colour, va="center",
                      xycoords="axes fraction", fontsize=8)  # fmt: skip


def _height(axes: Any, value: float) -> float:
    """Where a value stands between the bottom of a figure, 0, and its top, 1."""
    scale = math.log if axes.get_yscale() == "log" else float
    low, high, at = (scale(x) for x in (*axes.get_ylim(), value))
    return (at - low) / (high - low)


def table(name: str) -> str:
    """The study as a Markdown table."""
    rows = [f"| method | {STUDIES[name].across} | {STUDIES[name].score} on test | seeds |",
            "|---|---|---|---|"]  # fmt: skip
    for series, places in grouped(name).items():
        for x, values in places.items():
            mean, error = spread(values)
            place = "-" if x is None else f"{x:g}"
            digits = 1 if mean >= 10 else 2 if mean >= 1 else 3
            rows.append(
                f"| {series} | {place} | {mean:.{digits}f} ± {error:.{digits}f} | {len(values)} |"
            )
    return "\n".join(rows)


def main() -> None:
    """Train what is missing, then draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("studies", nargs="*", choices=[*STUDIES, []], default=[])
    parser.add_argument("--data", help="folder of the known corpora")
    parser.add_argument("--pipeline", help="a spaCy pipeline (tools/contextual_model.py)")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--series", nargs="*", help="only these lines of a figure")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only-draw", action="store_true")
    given = parser.parse_args()
    if given.list:
        print("\n".join(STUDIES))
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in given.studies:
        with tempfile.TemporaryDirectory() as scratch:
            settings: dict[str, Any] = {"data": given.data} if given.data else {}
            if name.startswith("customersim"):
                few = (1500, 1000) if name.endswith("residuals") else (7500, 5000)
                settings["corpus"] = str(_dialogs(Path(scratch), *few))
            if name == "wikitext2-residuals" and not given.only_draw:
                settings["corpus"] = str(_few_lines(Path(scratch), given.data, 20, 1500, 300))
            if name == "wikitext2-pretrained" and not given.only_draw:
                settings["corpus"] = str(_few_lines(Path(scratch), given.data))
                settings["pipeline"] = given.pipeline or sys.exit("give --pipeline")
            if name == "newsgroups20-smollm2" and not given.only_draw:
                settings["corpus"] = str(_few_authors(Path(scratch), given.data))
            if name == "conll2003-adapters" and not given.only_draw:
                settings["corpus"] = str(_without_valid("conll2003", Path(scratch), given.data))
            found = Mentions(Path(scratch), given.data)
            todo = [] if given.only_draw else list(missing(name, given.seeds, given.series))
            for number, (case, seed) in enumerate(todo):
                own = settings | found.of(name, case)
                line = train(case, seed, own, Path(scratch) / str(number))
                with (RESULTS / f"{name}.jsonl").open("a") as out:
                    out.write(json.dumps(line) + "\n")
                score = line["scores"][STUDIES[name].score]
                where = "" if case.x is None else f" at {case.x:g}"
                print(f"{number + 1}/{len(todo)} {case.series}{where}, seed {seed}: {score:.4g}"
                      f" ({line['cpu_seconds']:.0f} s)", file=sys.stderr, flush=True)  # fmt: skip
                if not math.isfinite(score):
                    sys.exit("a score is not finite")
        draw(name)
        print(table(name))


def _dialogs(folder: Path, dialogs: int, users: int) -> Path:
    """Generated dialogs; four fifths of the customers are in the train split."""
    from tacit.corpora import customersim
    from tacit.corpus.writing import write

    path = folder / "dialogs.jsonl"
    write(customersim.generate(dialogs, 5, users), path)
    return path


def _few_lines(
    folder: Path, data: str | None, words: int = 60, trained: int = 800, tested: int = 100
) -> Path:
    """Long lines of WikiText-2, so few that two cores run a pretrained model over them."""
    from tacit.corpora import open_corpus
    from tacit.corpus.writing import write

    whole = open_corpus("wikitext2", data)
    splits, texts = whole.column("split").to_pylist(), whole.column("text").to_pylist()
    long = [row for row, text in enumerate(texts) if len(text.split()) >= words]
    train = [row for row in long if splits[row] == "train"][:trained]
    test = [row for row in long if splits[row] == "test"][:tested]
    path = folder / "lines.jsonl"
    write(whole.take(train + test), path)
    return path


def _few_authors(folder: Path, data: str | None) -> Path:
    """The first post of some authors, and some posts of others to test on."""
    from tacit.corpora import open_corpus
    from tacit.corpus.writing import write

    whole = open_corpus("newsgroups20", data)
    users = whole.require_users().to_pylist()
    first = {user: row for row, user in reversed(list(enumerate(users)))}
    splits = whole.column("split").to_pylist()
    rows = {part: [r for r in first.values() if splits[r] == part] for part in ("train", "test")}
    train, test = sorted(rows["train"])[:FEW], sorted(rows["test"])[:150]
    path = folder / "posts.jsonl"
    write(whole.take(train + test), path)
    return path


def _without_valid(corpus: str, folder: Path, data: str | None) -> Path:
    """A corpus without valid, which every run scores: a pretrained model takes minutes for it."""
    from tacit.corpora import open_corpus
    from tacit.corpus.writing import write

    whole = open_corpus(corpus, data)
    splits = whole.column("split").to_pylist()
    path = folder / f"{corpus}.jsonl"
    write(whole.take([row for row, split in enumerate(splits) if split != "valid"]), path)
    return path


class Mentions:
    """What is sensitive in a large corpus, found once for all models that look for the same."""

    corpora: ClassVar = {
        "agnews": "ag_news",
        "newsgroups20-topics": "newsgroups20",
        "newsgroups20-english": "newsgroups20",
    }

    def __init__(self, folder: Path, data: str | None) -> None:
        self._folder, self._data = folder, data

    def of(self, study: str, case: Case) -> dict[str, str]:
        """The setting of a case that needs mentions; names need the detector of names, too."""
        protect = str(case.changes.get("plan.protect", case.preset))
        detectors = "patterns,lists,names" if "names" in protect else "patterns,lists"
        others = ("names", "entities", "deidentify", "uedp")
        if study not in self.corpora or not any(word in protect for word in others):
            return {}
        return {"mentions": str(self._found(self.corpora[study], detectors))}

    def _found(self, corpus: str, detectors: str) -> Path:
        from tacit.cli import run

        path = self._folder / f"{corpus}-{detectors.replace(',', '-')}.jsonl"
        where = ["--data", self._data] if self._data else []
        asked = ["detect", corpus, *where, "--split", "all", "--with", detectors]
        if not path.exists() and run([*asked, "-o", str(path)]):
            sys.exit("detection failed")
        return path


if __name__ == "__main__":
    main()
