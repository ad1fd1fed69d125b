"""The whole path, on generated dialogs: every command is shown before it is run."""

import shlex
import shutil
import sys
import time
from pathlib import Path
from textwrap import indent

from tacit.cli import run

DIALOGS, USERS, SEED, OTHER_SEED = 2400, 1800, 5, 77
METHODS = ("plain", "users", "users+entities")
QUESTION = "USR: The lamp that I ordered arrived broken. SYS: I am sorry to hear that."
BEGINNING = "SYS: Hello , how can I help you ? USR:"

# Whom to protect, and at what price: for `tacit plan`, and again in the settings of the third run.
PLAN = """\
protect: users+entities
kinds: [PERSON, PII]
users_per_entity: 1
entity_share: 2
epsilon: 8
steps: 60
user_rate: 0.2
clip_norm: 0.5
"""

# All models have the same size and the same public start, and read the same text about ten times.
SETTINGS = {
    "classifier": """\
# What a dialog is about: a recipe chooses the rest from what is declared here.
corpus: {at}/dialogs.jsonl
recipe: auto
task: classification
labels: [cancel order, change address, change e-mail, damaged item, delivery date, gift order,
  missing parcel, praise driver, return and refund, track parcel, update phone, wrong item]
model: {{kind: features, folder: wordllama}}
plan: {{protect: users, epsilon: 8, users: 1400, records: 2000}}
""",
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
  steps: 400
  batch: 16
  optimizer: {{name: adamw, learning_rate: 0.01, schedule: linear, warmup: 10}}
""",
    "run-plain": """\
# Nobody is protected.
base: run.yml
method: plain
steps: 600
batch: 32
optimizer: {{name: adamw, learning_rate: 0.01, schedule: linear, warmup: 10}}
""",
    "run-users": """\
# Every customer is protected. Their number is public: a round one, known in advance.
base: run.yml
method: dp-sgd
plan: {{protect: users, epsilon: 8, steps: 60, user_rate: 0.2, users: 1400, clip_norm: 0.5}}
optimizer: {{name: dp-adam, learning_rate: 0.015, schedule: linear}}
""",
    "run-users+entities": """\
# Every customer is protected, and every person and private number that dialogs name.
# An entity may move a user by all of the clip norm (entity_share: 2), so a customer may name it in
# as many dialogs as they like: no planted secret is dropped, and only noise can hide it.
base: run.yml
method: dp-sgd
plan:
{plan}optimizer: {{name: dp-adam, learning_rate: 0.006, schedule: linear}}
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
    for name, text in SETTINGS.items():
        (folder / f"{name}.yml").write_text(
            text.format(at=at, plan=indent(PLAN, "  ")), encoding="utf-8"
        )
    generate = "corpus generate customersim --overwrite"
    tacit(f"{generate} --dialogs {DIALOGS} --users {USERS} --seed {SEED} -o {at}/dialogs.jsonl")
    tacit(f"corpus describe {at}/dialogs.jsonl")
    classify(at)
    mark(at, generate)
    tacit(
        f"compare {at}/run.yml --methods {','.join(METHODS)} --using exposure,membership "
        f"--workers 2 --title 'Three ways to learn from dialogs' -o {at}/compared --overwrite"
    )
    for name in METHODS[1:]:
        tacit(f"verify {at}/compared/{name}")
    tacit(f"predict {at}/compared/users '{BEGINNING}' --words 30 --temperature 0.7 --seed 1")
    share(at)
    minutes = (time.monotonic() - start) / 60
    print(f"\nDone in {minutes:.1f} minutes. Open in a browser:")
    print(f"  {folder / 'report.html'}   what each model promises, learns, gives away")
    print(f"  {folder / 'mentions.html'}          what is sensitive in the dialogs")
    print(f"  {folder / 'degrees.svg'}            who shares it")


def share(at: str) -> None:
    """Dialogs that anybody may have, from a model that no customer can be found in."""
    tacit(
        f"synthesize {at}/planted.jsonl --like {at}/compared/users -n 10 --epsilon 8.5 "
        "--users 1400 --set candidates=8 --set tokens=120 --set temperature=0.7 --no-card "
        f"-o {at}/synthetic.jsonl --overwrite"
    )
    tacit(f"verify {at}/synthetic.certificate")
    runs = " ".join(f"{at}/compared/{name}" for name in METHODS)
    tacit(
        f"report {runs} --text {at}/synthetic.jsonl --title 'Three ways to learn from dialogs' "
        f"-o {at}/report.html --overwrite"
    )


def classify(at: str) -> None:
    """A classifier: what to expect is told before anything is spent."""
    tacit(f"plan {at}/classifier.yml")
    shutil.rmtree(f"{at}/classifier", ignore_errors=True)  # of an earlier demo
    tacit(f"train {at}/classifier.yml -o {at}/classifier")
    tacit(f"predict {at}/classifier '{QUESTION}'")


def mark(at: str, generate: str) -> None:
    """Planted secrets, marks of what is sensitive, and a plan."""
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
    (Path(at) / "plan.yml").write_text(PLAN, encoding="utf-8")
    tacit(f"plan {at}/plan.yml --owners {at}/owners.json -o {at}/calibrated.yml --overwrite")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
