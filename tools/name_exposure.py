"""How exposed a name is that several users wrote, beside names of its form that nobody wrote.

    python tools/name_exposure.py
    python tools/name_exposure.py --seed 1
    python tools/name_exposure.py --only-table

Canaries "My name is FIRST LAST" are planted in generated dialogs, each name with 1, 5 or 20 users;
others of the form never are: the controls. Models are small and read names as pieces of words, so
that they could be learnt. Exposure is 1.44 bits on average for a name that a model knows nothing
of. With hardly any noise (epsilon a million) what is left is what the mechanism does by itself.
Scores are kept in docs/results/name-exposure.jsonl; a line that is there is not measured again.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results" / "name-exposure.jsonl"
REPETITIONS, EACH, HELD_OUT = (1, 5, 20), 12, 36
LOUD, QUIET = 8.0, 1e6
SHOWN = {"name_share": 0.05, "users_per_name": 2, "names_per_user": 4}
CASES: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "users": {"protect": "users", "epsilon": LOUD},
    "users+names": {"protect": "users+names", "epsilon": LOUD},
    "users+names, names shown": {"protect": "users+names", "epsilon": LOUD} | SHOWN,
    "users, hardly any noise": {"protect": "users", "epsilon": QUIET},
    "users+names, hardly any noise": {"protect": "users+names", "epsilon": QUIET},
    "users+names, names shown, hardly any noise":
        {"protect": "users+names", "epsilon": QUIET} | SHOWN,
}  # fmt: skip
COMMON: dict[str, Any] = {
    "detect": "gold,patterns,lists,names",
    "tokenizer": {"size": 600, "public_text": "generated"},
    "model": {"kind": "lstm", "config": {"embedding_size": 64, "hidden_size": 64}},
    "context": 48,
    "checkpoint_every": 1000,
}
STEPS = 150
PRIVATE = {
    "method": "dp-sgd",
    "plan": {"user_rate": 0.2, "users": 400, "steps": STEPS, "clip_norm": 0.5},
    "optimizer": {"name": "dp-adam", "learning_rate": 0.01},
}
PLAIN = {
    "method": "plain",
    "steps": STEPS,
    "batch": 96,
    "optimizer": {"name": "adamw", "learning_rate": 0.01},
}


def planted_dialogs(path: Path, seed: int) -> None:
    """Generated dialogs with names planted in them, and the plan of these beside the file."""
    import numpy as np

    from tacit.attacks.canaries import TEMPLATES, beside, plant
    from tacit.corpora import customersim
    from tacit.corpus.writing import write

    corpus, plan = plant(
        customersim.generate(600, 5, 500), TEMPLATES["name"], repetitions=REPETITIONS, each=EACH,
        held_out=HELD_OUT, placing="entity", rng=np.random.default_rng(seed),
    )  # fmt: skip
    plan.write(beside(path))
    write(corpus, path)


def measured(case: str, corpus: Path, seed: int, folder: Path) -> dict[str, Any]:
    """Train one model, and rank the planted names and the controls by it."""
    import numpy as np

    from tacit.attacks.exposure import ATTACK
    from tacit.attacks.target import open_target
    from tacit.training.phases import session
    from tacit.training.settings import Run

    start, own = time.process_time(), CASES[case]
    method = PLAIN if own is None else PRIVATE | {"plan": PRIVATE["plan"] | own}
    session.train(Run(corpus=str(corpus), seed=seed, **COMMON, **method), folder)
    scores = ATTACK.run(open_target(folder), rng=np.random.default_rng(seed))
    rows = {str(row["repetitions"]): row for row in scores.rows}
    return {
        "case": case,
        "seed": seed,
        "perplexity": scores.perplexity,
        "bits": {count: row["mean_bits"] for count, row in rows.items()},
        "interval": {count: [row["low"], row["high"]] for count, row in rows.items()},
        "verdict": str(scores.verdict),
        "cpu_seconds": round(time.process_time() - start, 1),
    }


def lines() -> list[dict[str, Any]]:
    """What was measured before."""
    return [json.loads(x) for x in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def table() -> str:
    """Mean exposure over seeds, as Markdown."""
    counts = [str(n) for n in (0, *REPETITIONS)]
    rows = ["| | perplexity | controls | 1 user | 5 users | 20 users | seeds |", "|---" * 7 + "|"]
    for case in CASES:
        own = [line for line in lines() if line["case"] == case]
        if own:
            bits = [statistics.mean(line["bits"][count] for line in own) for count in counts]
            read = statistics.mean(line["perplexity"] for line in own)
            cells = [f"{read:.3g}", *(f"{one:.2f}" for one in bits), str(len(own))]
            rows.append(f"| {case} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", nargs="*", choices=[*CASES, []], default=list(CASES))
    parser.add_argument("--only-table", action="store_true")
    given = parser.parse_args()
    known = {(line["case"], line["seed"]) for line in lines()}
    wanted = [case for case in given.cases if (case, given.seed) not in known]
    with tempfile.TemporaryDirectory() as scratch:
        corpus = Path(scratch) / "dialogs.jsonl"
        if wanted and not given.only_table:
            planted_dialogs(corpus, given.seed)
            for number, case in enumerate(wanted):
                line = measured(case, corpus, given.seed, Path(scratch) / str(number))
                with RESULTS.open("a") as out:
                    out.write(json.dumps(line) + "\n")
                print(json.dumps(line), file=sys.stderr, flush=True)
    print(table())


if __name__ == "__main__":
    main()
