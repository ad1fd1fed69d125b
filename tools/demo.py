"""The whole path, on generated dialogs: every command is shown before it is run."""

import shlex
import sys
import time
from pathlib import Path
from textwrap import indent

from tacit.cli import run

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
    print(f"  {folder / 'mentions.html'}          what is sensitive in the dialogs")
    print(f"  {folder / 'degrees.svg'}            who shares it")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
