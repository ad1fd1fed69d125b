"""A policy that overlooks a stated share of what it should mark, and what the model gives away.

    python tools/policy_study.py
    python tools/policy_study.py --seed 1
    python tools/policy_study.py --only-draw

Corpus, canaries, models and files of results are as in methods_study.py.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from methods_study import (
    FIGURES,
    arguments,
    bits_of,
    corpus_of,
    read_lines,
    rounded,
    shown,
    two_drawings,
    work_folder,
    write_lines_of,
    write_runs,
)

MISSED = (0.0, 0.1, 0.5)
MANY, SOME = ("30", "40", "50"), ("8", "9", "10")


def imperfect_policy(folder: Path, seed: int) -> None:
    """Selective and de-identified training under policies that overlook a share of their spans."""
    from tacit.attacks.exposure import ATTACK
    from tacit.attacks.target import open_target
    from tacit.cli.compare import trained
    from tacit.corpus.reading import read
    from tacit.detection import detect
    from tacit.detection.mentions import write_lines
    from tacit.detection.policies import mark, open_policy
    from tacit.training.settings import read_run

    corpus = corpus_of("customersim", None, folder, seed=seed)
    write_runs("customersim", corpus, None, folder, seed)
    whole = read(corpus)
    found = detect(whole, "patterns,lists")
    lines = []
    for rate in MISSED:
        policy = open_policy(f"missing({rate:g}, patterns+lists)")
        kept = dict(mark(whole, policy))
        seen = [
            m for m in found.mentions
            if any(start <= m.start < end for start, end in kept[m.record])
        ]  # fmt: skip
        path = folder / f"mentions-{rate:g}.jsonl"
        write_lines(path, seen)
        write_lines(path.with_suffix(".entities.jsonl"), found.entities)
        for method, changes in {
            "selective": {"policy": policy.name},
            "deidentify": {"mentions": str(path)},
        }.items():
            place = folder / f"{method}-{rate:g}"
            file = folder / f"study-{method}.yml"
            trained(place, read_run(file, changes | {"keep_checkpoints": 0}))
            target = open_target(place)
            scores = ATTACK.run(target, rng=np.random.default_rng(seed))
            lines.append(
                {
                    "method": method,
                    "miss_rate": rate,
                    "seed": seed,
                    "perplexity": rounded(scores.perplexity),
                    "exposure_by_repetitions": bits_of({"exposure": scores}),
                    "missed_canary_records": missed_records(target, kept),
                }
            )
            print(json.dumps(lines[-1]), file=sys.stderr, flush=True)
    write_lines_of("imperfect-policy", lines, seed)


def missed_records(target: Any, kept: dict[str, list[tuple[int, int]]]) -> dict[str, float]:
    """How many records of a canary the policy overlooked, on average, by repetition."""
    by_count = defaultdict(list)
    for canary in target.planted.inside():
        by_count[canary.repetitions].append(sum(not kept[r] for r in canary.records))
    return {str(count): float(np.mean(values)) for count, values in sorted(by_count.items())}


def draw(axes: Any, lines: list[dict[str, Any]]) -> None:
    """Exposure of what was planted often, and of what was planted some times."""
    from tacit.reports.drawings import COLOURS, MARKERS

    for number, method in enumerate(("deidentify", "selective")):
        for place, wanted in zip(axes, (MANY, SOME), strict=True):
            bits = [mean_bits(lines, method, rate, wanted) for rate in MISSED]
            place.errorbar(
                MISSED, [np.mean(b) for b in bits],
                yerr=[np.std(b, ddof=1) if len(b) > 1 else 0.0 for b in bits],
                label=method, color=COLOURS[number], marker=MARKERS[number], capsize=3,
            )  # fmt: skip
            place.set_title(f"canaries planted {wanted[0]} to {wanted[-1]} times", loc="left")
            place.set_xlabel("share of spans that the policy overlooks")


def mean_bits(
    lines: list[dict[str, Any]], method: str, rate: float, wanted: tuple[str, ...]
) -> list[float]:
    """The exposure of canaries planted so often, a number for each seed."""
    own = [x for x in lines if x["method"] == method and x["miss_rate"] == rate]
    return [float(np.mean([line["exposure_by_repetitions"][k] for k in wanted])) for line in own]


def table(lines: list[dict[str, Any]]) -> str:
    """What a policy that overlooks something costs, as Markdown."""
    rows = ["| method | overlooked | perplexity | 30 to 50 times | 8 to 10 times |",
            "|---|---|---|---|---|"]  # fmt: skip
    for method in ("deidentify", "selective"):
        for rate in MISSED:
            own = [x for x in lines if x["method"] == method and x["miss_rate"] == rate]
            cells = [shown([line["perplexity"] for line in own])]
            cells += [shown(mean_bits(lines, method, rate, wanted)) for wanted in (MANY, SOME)]
            rows.append(f"| `{method}` | {rate:g} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> None:
    """Do what is missing, then draw."""
    given = arguments(__doc__).parse_args()
    if not given.only_draw:
        imperfect_policy(work_folder(given, "policy"), given.seed)
    lines = read_lines("imperfect-policy")
    with two_drawings(FIGURES / "imperfect-policy.svg") as axes:
        draw(axes, lines)
    print(table(lines))


if __name__ == "__main__":
    main()
