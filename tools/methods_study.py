"""Train one corpus by seven methods, attack all of them, and compare at like perplexity.

    python tools/methods_study.py customersim
    python tools/methods_study.py newsgroups20 --data DIR
    python tools/methods_study.py customersim --only-draw

Files for `tacit compare` are written, and it is called. Every method begins with the preset of its
name, made small enough for two cores; each user's records are dealt to train and test, four to one,
and canaries are planted with users of the corpus, 1 to 10, 20, 30, 40 and 50 times. Runs and
reports go to build/study-NAME; figures of every model to docs/results/methods-NAME.jsonl, drawings
to docs/figures. Seeds are fixed: the models are not for release.
"""

import argparse
import json
import math
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

os.environ.setdefault("OMP_NUM_THREADS", "1")

HERE = Path(__file__).resolve().parent.parent
RESULTS, FIGURES = HERE / "docs" / "results", HERE / "docs" / "figures"
PRESETS = HERE / "src" / "tacit" / "presets"
METHODS = ("plain", "deidentify", "records", "selective", "redact-then-private", "adversarial",
           "triplet")  # fmt: skip
REPETITIONS = (*range(1, 11), 20, 30, 40, 50)
ATTACKS = "exposure,membership,secrets,tab,linkage"
KEPT = 3
"""Models on the way that are attacked, beside the last."""
ON_THE_WAY = 62
"""Models that are kept at first, so that of each method one is near to any perplexity."""

# What differs from the presets, which are made for corpora several times as large.
STEPS = 250
_FREE = ("plain", "deidentify", "adversarial", "triplet")
_SMALL: dict[str, dict[str, Any]] = {
    **{method: {"steps": STEPS} for method in _FREE},
    "records": {"plan": {"records": 1200, "steps": 150}, "optimizer": {"learning_rate": 4.0}},
    "selective": {"plan": {"record_rate": 0.03, "steps": STEPS, "clip_norm": 1e-4}},
    "redact-then-private": {"redact-then-private": {"steps": STEPS}},
}
SMALL: dict[str, dict[str, dict[str, Any]]] = {
    "customersim": _SMALL
    | {
        "": {
            "tokenizer": {"digits": True},
            "context": 96,
            "model": {"config": {"embedding_size": 64, "hidden_size": 64, "embedding_range": 1.0}},
        },
    },
    "newsgroups20": _SMALL
    | {
        "": {"tokenizer": {"size": 4000}, "context": 64},
    },
}
DIGITS = 5
"""Of a canary: a hundred thousand secrets are ranked in seconds."""


def corpus_of(name: str, data: str | None, folder: Path, *, seed: int) -> Path:
    """The corpus of a study, canaries planted; made once."""
    from tacit.attacks.canaries import TEMPLATES, beside, plant
    from tacit.corpora import customersim, open_corpus
    from tacit.corpus.writing import write

    path = folder / "planted.jsonl"
    if path.exists():
        return path
    if name == "customersim":
        whole = customersim.generate(1000, 5, 100)
    else:
        whole = open_corpus("newsgroups20", data)
        counts = Counter(whole.require_users().to_pylist())
        # Every fourth of those with eight posts or more: some with many, most with few.
        able = [user for user, n in counts.most_common() if n >= 8][::4]
        users = whole.require_users().to_pylist()
        chosen = set(able)
        whole = whole.take([row for row, user in enumerate(users) if user in chosen])
    rng = np.random.default_rng(seed)
    six = TEMPLATES["digits"]
    form = replace(six, slots=six.slots[:DIGITS])
    dealt = dealt_within_users(whole, rng)
    planted, plan = plant(
        dealt, form, repetitions=REPETITIONS, each=2, held_out=20,
        placing="one-user", rng=rng,
    )  # fmt: skip
    plan.write(beside(path))
    write(planted, path)
    return path


def dealt_within_users(corpus: Any, rng: np.random.Generator) -> Any:
    """Of each user's records a fifth, at least one, is test: all users are on both sides."""
    import pyarrow as pa

    from tacit.corpus import Corpus

    by_user = defaultdict(list)
    for row, user in enumerate(corpus.require_users().to_pylist()):
        by_user[user].append(row)
    split = ["train"] * len(corpus)
    for rows in by_user.values():
        for row in rng.permutation(rows)[: max(1, len(rows) // 5) if len(rows) > 1 else 0]:
            split[int(row)] = "test"
    table = corpus.table
    at = table.column_names.index("split")
    return Corpus(table.set_column(at, "split", pa.array(split, pa.string())), name=corpus.name)


def write_runs(name: str, corpus: Path, data: str | None, folder: Path, seed: int) -> Path:
    """One file for each method in the folder, as `tacit compare` takes them; their base."""
    preset = f"{name}-lstm"
    common = {"corpus": str(corpus), "seed": seed, "checkpoint_every": 1000,
              "keep_checkpoints": ON_THE_WAY} | ({"data": data} if data else {})  # fmt: skip
    for method in METHODS:
        fields = yaml.safe_load(
            yaml.safe_dump({"base": str(PRESETS / f"{preset}-{method}.yml"), **common})
        )
        for changes in (SMALL[name][""], SMALL[name].get(method, {})):
            for key, value in changes.items():
                inner = fields.get(key)
                fields[key] = inner | value if isinstance(inner, dict) else value
        (folder / f"study-{method}.yml").write_text(yaml.safe_dump(fields, sort_keys=False))
    base = folder / "study.yml"
    base.write_text(yaml.safe_dump({"base": str(PRESETS / f"{preset}.yml"), **common}))
    return base


def seven_methods(name: str, data: str | None, folder: Path, seed: int) -> None:
    """Compare the methods as `tacit compare` does, and keep the lines."""
    from tacit.cli.compare import compare
    from tacit.reports.facts import read_all

    corpus = corpus_of(name, data, folder, seed=seed)
    base = write_runs(name, corpus, data, folder, seed)
    compare(
        base, ",".join(METHODS), folder, ATTACKS, attack_kept=KEPT, seed=seed,
        title=f"Seven methods on {name}", overwrite=True,
    )  # fmt: skip
    facts = read_all([folder / method for method in METHODS])
    keep_lines(f"methods-{name}", facts, seed)


STORED = {
    "exposure.bits": "exposure", "membership.auc": "auc", "membership.accuracy": "accuracy",
    "tab.beyond_controls": "tab", "linkage.accuracy": "linkage",
}  # fmt: skip
"""Headlines of attacks, and how the lines call them."""


def keep_lines(name: str, facts: list[Any], seed: int) -> None:
    """One line for each attacked model of each run, the last one with all its figures."""
    from tacit.reports.comparison import figures_of

    plain = next(run for run in facts if run.method == "plain")
    lines = []
    for run in facts:
        lines.append(
            {
                "method": run.name,
                "seed": seed,
                "standing": run.certificate.standing,
                "protects": run.certificate.protect,
                "epsilon": run.epsilon if math.isfinite(run.epsilon) else None,
                "published_epsilon": (run.certificate.published or {}).get("epsilon"),
                "last": {STORED.get(k, k): rounded(v) for k, v in figures_of(run, plain).items()},
                "secrets_accuracy": rounded(run.scores["secrets"].figures["accuracy"]),
                "linkage": {k: rounded(v) for k, v in run.scores["linkage"].figures.items()},
                "exposure_by_repetitions": bits_of(run.scores),
                "time": run.metrics["time"],
                "over_steps": [
                    {"step": one.step, "perplexity": rounded(one.perplexity)}
                    | {name: rounded(one.value(key)) for key, name in STORED.items()}
                    | {"exposure_by_repetitions": bits_of(run.series[one.step])}
                    for one in run.models
                ],
            }
        )
    write_lines_of(name, lines, seed)


def bits_of(scores: Any) -> dict[str, float]:
    """The exposure of canaries by how often they were planted."""
    rows = scores["exposure"].rows
    return {str(row["repetitions"]): rounded(row["mean_bits"]) for row in rows}


def write_lines_of(name: str, lines: list[dict[str, Any]], seed: int) -> None:
    """Keep the lines of a seed beside those of other seeds."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    others = [line for line in read_lines(name) if line["seed"] != seed]
    path = RESULTS / f"{name}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [*others, *lines]))
    print(f"results: {path}", file=sys.stderr)


def rounded(value: Any) -> Any:
    """Four digits are more than one seed supports."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


# ---- drawing


def read_lines(name: str) -> list[dict[str, Any]]:
    """What was measured before."""
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@contextmanager
def two_drawings(path: Path) -> Iterator[Any]:
    """Two axes beside each other for bits of exposure, saved when they are drawn."""
    import matplotlib
    from matplotlib.figure import Figure

    from tacit.reports.plots import STYLE, save

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 4.2), layout="constrained")
        axes = figure.subplots(1, 2)
        yield axes
        for place in axes:
            place.set_ylabel("mean exposure, bits")
            place.set_ylim(bottom=0)
            place.spines[["top", "right"]].set_visible(False)
        axes[0].legend(frameon=False, fontsize=8)
    FIGURES.mkdir(parents=True, exist_ok=True)
    save(figure, path)


def draw(name: str) -> None:
    """Exposure over how often a canary was planted, and over perplexity."""
    from matplotlib.ticker import LogLocator, NullFormatter

    from tacit.reports.drawings import COLOURS, MARKERS

    lines = read_lines(f"methods-{name}")
    if not lines:
        return
    with two_drawings(FIGURES / f"methods-{name}.svg") as axes:
        for number, (method, own) in enumerate(by_method(lines).items()):
            look = {"color": COLOURS[number % 7], "marker": MARKERS[number % 7], "ms": 5}
            bits = [line["exposure_by_repetitions"] for line in own]
            mean = {k: sum(b[k] for b in bits) / len(bits) for k in bits[0]}
            axes[0].plot(range(len(mean)), list(mean.values()), label=method, **look)
            axes[0].set_xticks(range(len(mean)), list(mean), fontsize=7)
            for line in own:
                points = sorted((p["perplexity"], p["exposure"]) for p in line["over_steps"])
                axes[1].plot(*zip(*points, strict=True), label=method, **look)
        axes[0].set_xlabel("how often a canary was planted")
        axes[1].set_xlabel("perplexity on test")
        axes[1].set_xscale("log")
        axes[1].xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes[1].xaxis.set_major_formatter("{x:g}")
        axes[1].xaxis.set_minor_formatter(NullFormatter())


COLUMNS = {
    "perplexity": "perplexity", "plain": "plain tokens", "sensitive": "sensitive tokens",
    "top_1": "next word", "exposure": "exposure", "auc": "AUC", "accuracy": "member accuracy",
    "tab": "tab", "linkage": "linkage", "cost": "time", "drop_most": "lost, most",
    "drop_fewest": "lost, fewest",
}  # fmt: skip


def by_method(lines: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The lines of each method, one for each seed."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        found.setdefault(line["method"], []).append(line)
    return found


def tables(name: str) -> str:
    """The study as Markdown: the last models, and those nearest to one perplexity of a seed."""
    from tacit.reports.comparison import NEAR

    lines = read_lines(f"methods-{name}")
    if not lines:
        return ""
    rows = ["| method | epsilon | " + " | ".join(COLUMNS.values()) + " |",
            "|---" * (len(COLUMNS) + 2) + "|"]  # fmt: skip
    for method, own in by_method(lines).items():
        one = own[0]
        price = "-" if one["epsilon"] is None else f"{one['epsilon']:.2f}, {one['protects']}"
        cells = [shown([line["last"][key] for line in own]) for key in COLUMNS]
        rows.append(f"| `{method}` | {price} | " + " | ".join(cells) + " |")
    rows += [
        "",
        "| method | step | perplexity | exposure | AUC | tab | linkage | 5 times | 10 times |",
        "|---" * 9 + "|",
    ]
    levels = {
        seed: max(
            min(one["perplexity"] for one in line["over_steps"])
            for line in lines
            if line["seed"] == seed
        )
        for seed in {line["seed"] for line in lines}
    }
    for method, own in by_method(lines).items():
        near = [nearest(line, levels[line["seed"]]) for line in own]
        keys = ("step", "perplexity", "exposure", "auc", "tab", "linkage")
        cells = [shown([o[k] for o in near]) for k in keys]
        cells += [
            shown([o["exposure_by_repetitions"][times] for o in near]) for times in ("5", "10")
        ]
        off = [
            abs(math.log(o["perplexity"] / levels[x["seed"]]))
            for x, o in zip(own, near, strict=True)
        ]
        if max(off) > math.log(NEAR):
            cells[1] += " (far)"
        rows.append(f"| `{method}` | " + " | ".join(cells) + " |")
    level = ", ".join(f"{value:.4g} (seed {seed})" for seed, value in sorted(levels.items()))
    return "\n".join([*rows, "", f"level: {level}"])


def nearest(line: dict[str, Any], level: float) -> dict[str, Any]:
    """The attacked model of a run whose perplexity is nearest."""
    models: list[dict[str, Any]] = line["over_steps"]
    return min(models, key=lambda one: abs(math.log(one["perplexity"] / level)))


def shown(values: list[float | None]) -> str:
    """Three digits of the mean over seeds, and their spread where there are several."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean = sum(known) / len(known)
    text = f"{mean:,.0f}" if abs(mean) >= 1000 else f"{mean:.3g}"
    if len(known) == 1:
        return text
    return f"{text} ± {float(np.std(known, ddof=1)):.2g}"


def main() -> None:
    """Do what is missing, then draw."""
    parser = arguments(__doc__)
    parser.add_argument("study", choices=["customersim", "newsgroups20"])
    parser.add_argument("--data", help="folder of the known corpora")
    given = parser.parse_args()
    if not given.only_draw:
        seven_methods(given.study, given.data, work_folder(given, given.study), given.seed)
    draw(given.study)
    print(tables(given.study))


def arguments(about: str) -> argparse.ArgumentParser:
    """What the studies of methods are all told."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help="folder of the runs; build/study-NAME")
    parser.add_argument("--only-draw", action="store_true")
    return parser


def work_folder(given: argparse.Namespace, name: str) -> Path:
    """Where the runs of a study are; what is finished there is not done again."""
    ending = f"-{given.seed}" if given.seed else ""
    folder: Path = (given.work or HERE / "build" / f"study-{name}{ending}").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


if __name__ == "__main__":
    main()
