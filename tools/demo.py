"""The whole path that exists, on generated dialogs: every command is shown before it is run."""

import json
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from tacit.bounding import preview
from tacit.cli import run
from tacit.detecting.mentions import read_entities
from tacit.owners import Owners
from tacit.plan import calibrated, prices, read_plan
from tacit.planning import apply_caps, explain
from tacit.pricing import quote
from tacit.privacy.certificate import read_certificate
from tacit.reading import read
from tacit.reporting.curves import price_figure
from tacit.reporting.overview import Section, write_overview
from tacit.reporting.plots import degree_figure, inline_svg
from tacit.training.scoring import evaluate

DIALOGS, USERS, SEED, OTHER_SEED = 1500, 1000, 5, 77
RUNS = ("plain", "users", "users+entities")
STEPS = 30

PLAN = """\
# Whom to protect, and at what price. `tacit plan plan.yml` says what this promises.
protect: users+entities
kinds: [PERSON, PII]
epsilon: 8
steps: 30
user_rate: 0.2
clip_norm: 0.1
"""


def tacit(command: str) -> None:
    """Show a command and run it; stop if it fails."""
    print(f"\n\033[1m$ tacit {command}\033[0m", flush=True)
    code = run(shlex.split(command))
    if code:
        sys.exit(code)


def main(folder: Path) -> None:
    """Run the path and write the report."""
    start = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    at = str(folder)
    generate = "corpus generate customersim --overwrite"
    tacit(f"{generate} --dialogs {DIALOGS} --users {USERS} --seed {SEED} -o {at}/dialogs.jsonl")
    tacit(f"corpus describe {at}/dialogs.jsonl")
    # The tagger learns from other people than those it will have to find; their dialogs are
    # public here, so the models may start from them, too.
    tacit(f"{generate} --dialogs 600 --seed {OTHER_SEED} -o {at}/other-dialogs.jsonl")
    tacit(f"detect train {at}/other-dialogs.jsonl -o {at}/tagger --overwrite")
    tacit(
        f"detect {at}/dialogs.jsonl --with patterns,lists,tagger={at}/tagger --score "
        f"-o {at}/mentions.jsonl --overwrite"
    )
    tacit(
        f"owners {at}/dialogs.jsonl --mentions {at}/mentions.jsonl --kinds PERSON,PII "
        f"--plot {at}/degrees.svg -o {at}/owners.json --overwrite"
    )
    (folder / "plan.yml").write_text(PLAN, encoding="utf-8")
    tacit(f"plan {at}/plan.yml --owners {at}/owners.json -o {at}/calibrated.yml --overwrite")
    for name in RUNS:
        train(folder, name)
    report = folder / "report.html"
    write_report(folder, report)
    minutes = (time.monotonic() - start) / 60
    print(f"\nDone in {minutes:.1f} minutes. Open {report} in a browser.")


def train(folder: Path, name: str) -> None:
    """Train one way, score it, and check what it promises."""
    at = str(folder)
    shutil.rmtree(folder / name, ignore_errors=True)
    changes = {
        "corpus": f"{at}/dialogs.jsonl",
        "mentions": f"{at}/mentions.jsonl",
        "pretrain.corpus": f"{at}/other-dialogs.jsonl",
        "pretrain.steps": 150,
        "pretrain.optimizer": '"{name: adamw, rate: 0.01, schedule: linear, warmup: 10}"',
        "pretrain.batch": 16,
        "steps": STEPS if name != "plain" else 150,
    }
    if name != "plain":
        changes |= {"plan.user_rate": 0.2, "optimizer.rate": 2.0}
    if name == "users":
        changes["plan.users"] = 800  # a round number known in advance
    given = " ".join(f"--set {key}={value}" for key, value in changes.items())
    tacit(f"train presets/customersim-lstm-{name}.yml {given} -o {at}/{name}")
    print(f"\n\033[1m$ tacit evaluate {at}/{name} --split test\033[0m", flush=True)
    scores = evaluate(folder / name, "test")
    (folder / name / "test.json").write_text(json.dumps(scores, indent=2) + "\n")
    print(f"perplexity {scores['perplexity']:.2f} (unigram {scores['unigram_perplexity']:.1f}, "
          f"trigram {scores['trigram_perplexity']:.1f}, "
          f"public text only {scores['public_only_perplexity']:.2f})")  # fmt: skip
    if name != "plain":
        tacit(f"verify {at}/{name}")


def write_report(folder: Path, report: Path) -> None:
    """One page: corpus, detection, owners, plan."""
    corpus = read(folder / "dialogs.jsonl")
    found = json.loads((folder / "mentions.summary.json").read_text())
    owners = Owners.load(folder / "owners.json")
    names = {e.id: e.name for e in read_entities(folder / "mentions.entities.jsonl")}
    plan = calibrated(read_plan(folder / "calibrated.yml"))
    costs = prices(plan)
    write_overview(
        report,
        "From dialogs to a promise",
        "Generated customer-service dialogs: what is sensitive in them, who shares it, and what a "
        "plan would promise to users and to the entities they name.",
        [
            Section(
                "The corpus",
                figures=[
                    ("dialogs", f"{len(corpus):,}"),
                    ("customers", f"{len(corpus.users()):,}"),
                    ("mentions found", f"{found['mentions']:,}"),
                    ("entities", f"{found['entities']:,}"),
                ],
                prose="Customers return; households share addresses and telephones; shops, "
                "carriers and agents recur. So protecting users, entities and both are three "
                "things.",
            ),
            _detection(found),
            Section(
                "Who shares what",
                prose="Protected are people and what identifies them (`PERSON`, `PII`); shops, "
                "cities and products are left out by choice. "
                "Every guarantee about users or entities is a statement about this graph. "
                "Caps limit how far one entity reaches; the third picture shows what they cost.",
                drawing=inline_svg(degree_figure(owners, preview(owners, seed=0), names=names)),
            ),
            Section(
                "The plan",
                figures=[
                    (f"epsilon for {unit}", f"{cost.epsilon:.3g}") for unit, cost in costs.items()
                ]
                + [("delta", f"{plan.delta:g}"), ("standing", costs[plan.protect].standing)],
                prose=explain(plan, owners, apply_caps(plan, owners)),
                drawing=inline_svg(price_figure(_quote(plan))),
            ),
            _models(folder),
        ],
    )


def _detection(found: dict[str, Any]) -> Section:
    scores = found["scores"]
    rows = [
        [
            kind,
            f"{s['support']:,}",
            f"{s['precision']:.3f}",
            f"{s['recall']:.3f}",
            f"{s['f1']:.3f}",
            f"{s['f2']:.3f}",
        ]
        for kind, s in scores["kinds"].items()
    ]
    micro = scores["micro"]
    rows.append(
        ["all", f"{micro['support']:,}", f"{micro['precision']:.3f}", f"{micro['recall']:.3f}",
         f"{micro['f1']:.3f}", f"{micro['f2']:.3f}"]
    )  # fmt: skip
    return Section(
        "What was found",
        prose="Patterns, word lists, and a tagger that was trained on dialogs of other people. "
        "The dialogs are generated, so the truth is known and the finding can be scored.",
        headings=["kind", "there are", "precision", "recall", "F1", "F2"],
        rows=rows,
        links={"Browse the dialogs": "mentions.html"},
    )


def _models(folder: Path) -> Section:
    """What each way of training costs and promises, side by side."""
    rows = []
    for name in RUNS:
        scores = json.loads((folder / name / "test.json").read_text())
        certificate = read_certificate(folder / name / "certificate.json")
        promised = certificate.standing != "heuristic"
        rows.append(
            [
                name,
                f"{scores['perplexity']:.2f}",
                f"{scores['perplexity_sensitive']:.2f}",
                f"{scores['perplexity_plain']:.2f}",
                f"{certificate.epsilon:.3g}" if promised else "none",
                certificate.standing,
            ]
        )
    beside = {
        "public text only": "public_only_perplexity",
        "trigram, unprotected": "trigram_perplexity",
        "unigram, unprotected": "unigram_perplexity",
    }
    rows += [[what, f"{scores[key]:.2f}", "", "", "", ""] for what, key in beside.items()]
    return Section(
        "The models",
        prose="A small LSTM that has read public dialogs of other people, then these dialogs in "
        "three ways. Perplexity on test, lower is better: over all tokens, over those that touch "
        "a mention, and over the rest. " + certificate.sentence,
        headings=["trained for", "perplexity", "sensitive", "plain", "epsilon", "standing"],
        rows=rows,
        links={"The certificate": "users+entities/certificate.md"},
    )


def _quote(plan):
    return quote(
        plan.event(),
        plan.steps,
        plan.delta,
        plan.protect,
        over_steps=True,
        degrees=(1, 2, 4, 8, 16),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
