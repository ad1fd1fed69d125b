"""The whole path, on generated dialogs: every command is shown before it is run."""

import json
import shlex
import sys
import time
from pathlib import Path
from textwrap import indent
from typing import Any

from tacit.cli import run
from tacit.corpus.reading import read
from tacit.detection.mentions import read_entities
from tacit.owners import Owners
from tacit.owners.bounding import preview
from tacit.planning.dry_run import apply_caps, explain
from tacit.planning.plan import Plan, calibrated, prices, read_plan
from tacit.planning.prices import Quote, quote
from tacit.privacy.rounding import up
from tacit.reports.overview import Section, write_overview
from tacit.reports.plots import degree_figure, inline_svg
from tacit.reports.price_curves import price_figure

DIALOGS, USERS, SEED, OTHER_SEED = 1000, 700, 5, 77
METHODS = ("plain", "users", "users+entities")

# Whom to protect, and at what price: for `tacit plan`, and again in the settings of the third run.
PLAN = """\
protect: users+entities
kinds: [PERSON, PII]
users_per_entity: 1
entity_share: 2
epsilon: 8
steps: 6
user_rate: 1.0
clip_norm: 0.1
"""

# All models have the same size, read the same text, and go over it six times. Where customers are
# few, steps in which all of them take part need the least noise for that.
SETTINGS = {
    "run": """\
# What all ways of training share: the text, its tokens, the network, and a start on public text.
corpus: {at}/planted.jsonl
mentions: {at}/mentions.jsonl
tokenizer: {{kind: words, size: 2000, punctuation: true, digits: true, public_text: generated}}
model:
  kind: lstm
  config: {{embedding_size: 64, hidden_size: 64, embedding_range: 1.0}}
  public_frequencies: true
context: 256
# Text that comes with the package: dialogs of invented people, made without looking at anybody's.
pretrain:
  corpus: generated
  steps: 120
  batch: 16
  optimizer: {{name: adamw, learning_rate: 0.01, schedule: linear, warmup: 10}}
""",
    "run-plain": """\
# Nobody is protected.
base: run.yml
method: plain
steps: 225
batch: 32
optimizer: {{name: adamw, learning_rate: 0.01, schedule: linear, warmup: 10}}
""",
    "run-users": """\
# Every customer is protected. Their number is public: a round one, known in advance.
base: run.yml
method: private
plan: {{protect: users, epsilon: 8, steps: 6, user_rate: 1.0, users: 600, clip_norm: 0.1}}
optimizer: {{name: sgd, learning_rate: 10.0, momentum: 0.5, schedule: linear}}
""",
    "run-users+entities": """\
# Every customer is protected, and every person and private number that dialogs name.
# An entity may move a user by all of the clip norm (entity_share: 2), so a customer may name it in
# as many dialogs as they like: no planted secret is dropped, and only noise can hide it.
base: run.yml
method: private
plan:
{plan}optimizer: {{name: sgd, learning_rate: 4.0, momentum: 0.5, schedule: linear}}
""",
}


def tacit(command: str) -> None:
    """Show a command and run it; stop if it fails."""
    print(f"\n\033[1m$ tacit {command}\033[0m", flush=True)
    code = run(shlex.split(command))
    if code:
        sys.exit(code)


def main(folder: Path) -> None:
    """Run the path and write the pages."""
    start = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    at = str(folder)
    generate = "corpus generate customersim --overwrite"
    tacit(f"{generate} --dialogs {DIALOGS} --users {USERS} --seed {SEED} -o {at}/dialogs.jsonl")
    tacit(f"corpus describe {at}/dialogs.jsonl")
    # Secrets that nobody else knows: if a model gives them away, it learned them here.
    tacit(
        f"canaries plant {at}/dialogs.jsonl --template digits --repetitions 1,10,40 --each 8 "
        f"--held-out 24 -o {at}/planted.jsonl --overwrite"
    )
    # The tagger learns from other people than those it will have to find.
    tacit(f"{generate} --dialogs 600 --seed {OTHER_SEED} -o {at}/other-dialogs.jsonl")
    tacit(f"detect train {at}/other-dialogs.jsonl -o {at}/tagger --overwrite")
    tacit(
        f"detect {at}/planted.jsonl --with patterns,lists,tagger={at}/tagger --score "
        f"-o {at}/mentions.jsonl --overwrite"
    )
    tacit(
        f"owners {at}/planted.jsonl --mentions {at}/mentions.jsonl --kinds PERSON,PII "
        f"--plot {at}/degrees.svg -o {at}/owners.json --overwrite"
    )
    (folder / "plan.yml").write_text(PLAN, encoding="utf-8")
    tacit(f"plan {at}/plan.yml --owners {at}/owners.json -o {at}/calibrated.yml --overwrite")
    write_overview_page(folder)
    for name, text in SETTINGS.items():
        (folder / f"{name}.yml").write_text(
            text.format(at=at, plan=indent(PLAN, "  ")), encoding="utf-8"
        )
    tacit(
        f"compare {at}/run.yml --methods {','.join(METHODS)} --using exposure,membership "
        f"--workers 2 --title 'Three ways to learn from dialogs' -o {at}/compared --overwrite"
    )
    for name in METHODS[1:]:
        tacit(f"verify {at}/compared/{name}")
    minutes = (time.monotonic() - start) / 60
    print(f"\nDone in {minutes:.1f} minutes. Open in a browser:")
    print(f"  {folder / 'compared' / 'report.html'}   what each model promises, learns, gives away")
    print(f"  {folder / 'corpus.html'}            what is sensitive in the dialogs, who shares it")


def write_overview_page(folder: Path) -> None:
    """One page: corpus, detection, owners, plan."""
    corpus = read(folder / "dialogs.jsonl")
    found = json.loads((folder / "mentions.summary.json").read_text())
    owners = Owners.load(folder / "owners.json")
    names = {e.id: e.name for e in read_entities(folder / "mentions.entities.jsonl")}
    plan = calibrated(read_plan(folder / "calibrated.yml"))
    costs = prices(plan)
    write_overview(
        folder / "corpus.html",
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
                figures=[(f"epsilon for {unit}", up(cost.epsilon)) for unit, cost in costs.items()]
                + [("delta", f"{plan.delta:g}"), ("standing", costs[plan.protect].standing)],
                prose=explain(plan, owners, apply_caps(plan, owners)),
                drawing=inline_svg(price_figure(_quote(plan))),
                links={"The models": "compared/report.html"},
            ),
        ],
    )


def _detection(found: dict[str, Any]) -> Section:
    scores = found["scores"]
    columns = ("precision", "recall", "f1", "f2")
    rows = [
        [kind, f"{s['support']:,}", *(f"{s[column]:.3f}" for column in columns)]
        for kind, s in [*scores["kinds"].items(), ("all", scores["micro"])]
    ]
    return Section(
        "What was found",
        prose="Patterns, word lists, and a tagger that was trained on dialogs of other people. "
        "The dialogs are generated, so the truth is known and the finding can be scored.",
        headings=["kind", "there are", "precision", "recall", "F1", "F2"],
        rows=rows,
        links={"Browse the dialogs": "mentions.html"},
    )


def _quote(plan: Plan) -> Quote:
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
