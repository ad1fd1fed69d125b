"""Utility and defence rate of sanitized text: the figures of docs/studies/sanitizing.md.

    python tools/sanitized_learning.py DATA ENCODER WORK table1    # accuracy by mechanism, GloVe
    python tools/sanitized_learning.py DATA ENCODER WORK table3    # with and without pretraining
    python tools/sanitized_learning.py DATA ENCODER WORK figure3   # accuracy over (w, p)
    python tools/sanitized_learning.py DATA ENCODER WORK figure4   # defence rate
    python tools/sanitized_learning.py DATA ENCODER WORK pairs     # QNLI and STS-B
    python tools/sanitized_learning.py DATA ENCODER WORK draw      # the pictures, in docs/figures

DATA holds sst2, glove100d and so on, as for TACIT_DATA; ENCODER is the folder of a BERT-like
encoder; WORK keeps the models that are made on the way. Each figure is a line in
docs/results/sanitizing.jsonl (or --results FILE); what is there already is not done again.

Two models are made of the encoder, since two cores are few. The *learner* is new but for its input
embeddings, the encoder's reduced to 128 numbers: 2 layers, 128 wide. The *attacker* is the
encoder's first two layers, with a head for masked words that is trained here.
All seeds are fixed, and all runs go through the training loop that `tacit train` uses.
"""

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np

from tacit import corpora
from tacit.corpus import Corpus
from tacit.corpus.writing import write
from tacit.sanitization import Recipe, Sanitizer, as_it_stands, choose_sensitive, open_embeddings
from tacit.sanitization.embeddings import Embedding
from tacit.sanitization.sanitizer import Counted
from tacit.sanitization.streaming import Passing

TRAIN, EPOCHS, BATCH, LAYERS, WIDTH, CONTEXT, RATE = 10_000, 2, 32, 2, 128, 32, 5e-4
MASK_STEPS, ATTACKER_STEPS, MASK_BATCH, PUBLIC = 600, 1200, 32, 20_000
MORE_STEPS, TOP_RATE = 100, 2e-4
"""What the attacker, taken as a learner, is trained further; and its rate when it is tuned."""
GLOVE_EPSILONS, PIECE_EPSILONS = (1.0, 2.0, 3.0, 4.0, 5.0), (12.0, 14.0, 16.0)
FBDD_EPSILONS = (1.0, 2.0, 3.0, 5.0, 10.0, 15.0)
"""Its noise grows with the number of dimensions, so words begin to stay at a larger epsilon."""
NO_LIMIT = 1e6
ATTACKED = 150
SMALL, WIDE = "2 x 128, new", "2 x 384, of the encoder"
DOCS = Path(__file__).resolve().parent.parent / "docs"


class Study:
    """Data, encoder and results."""

    def __init__(self, data: Path, encoder: Path, work: Path, results: Path) -> None:
        self.data, self.encoder, self.work, self.results = data, encoder, work, results
        work.mkdir(parents=True, exist_ok=True)
        self._embeddings: dict[str, Embedding] = {}
        self._corpora: dict[str, Corpus] = {}

    # --- what is done once ---------------------------------------------------------------

    def rows(self) -> list[dict[str, Any]]:
        if not self.results.exists():
            return []
        return [json.loads(line) for line in self.results.read_text().splitlines()]

    def done(self, key: dict[str, Any]) -> bool:
        return any(all(row.get(k) == v for k, v in key.items()) for row in self.rows())

    def note(self, key: dict[str, Any], found: dict[str, Any], began: float) -> None:
        row = {**key, **found, "seconds": round(time.time() - began, 1)}
        with self.results.open("a") as lines:
            lines.write(json.dumps(row) + "\n")
        print(row, flush=True)

    # --- data ----------------------------------------------------------------------------

    def task(self, name: str) -> Corpus:
        """Records to learn from, and others to score on: the first of a fixed shuffle."""
        if name not in self._corpora:
            whole = corpora.load(name, self.data)
            train = whole.only("train")
            rows = np.random.default_rng(5).permutation(len(train))[:TRAIN]
            scored = "valid" if "valid" in whole.splits() else "test"
            parts = [train.take(np.sort(rows)), whole.only(scored)]
            records = [r for part in parts for r in part.records()]
            named = [
                {**r.row(), "split": "train" if n < len(parts[0]) else "valid"}
                for n, r in enumerate(records)
            ]
            self._corpora[name] = Corpus.from_records(named, name=name)
        return self._corpora[name]

    def public(self) -> list[str]:
        """Sentences that stand for public text: of the training part that is not learned from."""
        train = corpora.load("sst2", self.data).only("train")
        order = np.random.default_rng(5).permutation(len(train))[TRAIN:]
        texts = train.column("text").to_pylist()
        return [texts[r] for r in order if len(texts[r].split()) >= 6][:PUBLIC]

    def embedding(self, name: str) -> Embedding:
        if name not in self._embeddings:
            where = {
                "glove": self.data / "glove100d" / "glove_100d_top40k.npz",
                "pieces": self.encoder,
            }
            self._embeddings[name] = open_embeddings(where[name])
        return self._embeddings[name]

    def sanitizer(self, space: str, method: str, epsilon: float | None, *, seed: int = 1,
                  share: float = 0.9, rate: float | None = None) -> Sanitizer:  # fmt: skip
        embedding = self.embedding(space)
        sensitive = choose_sensitive(embedding, share=share) if method == "santext+" else None
        recipe = Recipe(method, epsilon, rate)  # type: ignore[arg-type]
        return Sanitizer(embedding, recipe, sensitive, seed=seed)

    def sanitized(self, task: str, work: Sanitizer | None) -> tuple[Corpus, dict[str, float]]:
        """The records as they are learned from and scored on, and how many words are as before."""
        import pyarrow as pa

        corpus = self.task(task)
        if work is None:
            return corpus, {}
        passing = Passing(work)
        table = pa.Table.from_batches(list(passing(corpus.table.to_batches())))
        kept = [n for n in table.column_names if n in corpus.columns]
        return Corpus(table.select(kept), name=task), _seen(passing.counted)

    # --- learning ------------------------------------------------------------------------

    def start(self) -> Path:
        """The learner before any training: new, but for its input embeddings."""
        import torch
        from transformers import BertConfig, BertForMaskedLM

        from tacit.training.models.networks import load_model
        from tacit.training.models.tokens import load_tokenizer
        from tacit.training.models.weights import save_model

        folder = self.work / "start"
        if folder.exists():
            return folder
        tokenizer = load_tokenizer(self.encoder)
        table = (
            load_model(self.encoder, "masked-word").get_input_embeddings().weight.detach().double()
        )
        centred = table - table.mean(0)
        _, turns = torch.linalg.eigh(centred.T @ centred)
        points = centred @ turns[:, -WIDTH:]
        torch.manual_seed(1)
        model = BertForMaskedLM(
            BertConfig(
                vocab_size=len(table), hidden_size=WIDTH, num_hidden_layers=LAYERS,
                num_attention_heads=2, intermediate_size=4 * WIDTH, max_position_embeddings=128,
                pad_token_id=tokenizer.pad_token_id,
            )
        )  # fmt: skip
        with torch.no_grad():
            model.get_input_embeddings().weight.copy_(points / points.std() * 0.05)
        save_model(model, tokenizer, folder)
        return folder

    def fine_tune(
        self,
        key: dict[str, Any],
        task: str,
        work: Sanitizer | None,
        start: Path,
        *,
        epochs: float = EPOCHS,
        rate: float = RATE,
    ) -> None:
        from tacit.training.phases import session
        from tacit.training.settings import Run

        if self.done(key):
            return
        began = time.time()
        corpus, seen = self.sanitized(task, work)
        path, folder = self.work / "corpus.parquet", self.work / "run"
        write(corpus, path)
        shutil.rmtree(folder, ignore_errors=True)
        records = len(corpus.only("train"))
        steps = int(epochs * records) // BATCH
        run = Run(
            corpus=str(path), method="plain", steps=steps, batch=BATCH,
            task="regression" if task == "stsb" else "classification",
            model={"kind": "folder", "folder": str(start)},
            context=CONTEXT if task == "sst2" else 2 * CONTEXT,
            optimizer={"name": "adamw", "learning_rate": rate, "schedule": "linear",
                       "warmup": steps // 10},
            checkpoint_every=steps, seed=1,
        )  # fmt: skip
        found = session.train(run, folder).metrics["valid"]
        metric = "pearson" if task == "stsb" else "accuracy"
        sizes = {"scored": found["records"], "train": records, "steps": steps}
        self.note(key, {metric: round(found[metric], 4), **seen, **sizes}, began)
        shutil.rmtree(folder, ignore_errors=True)

    def taught(self, name: str, start: Path, epsilon: float | None = None, **options: Any) -> Path:
        """A masked-word model of public text: as it stands, or as pieces sanitized at epsilon."""
        from tacit.training.tasks.masking import Pretraining, pretrain

        text = "plain" if epsilon is None else f"pieces-{epsilon:g}"
        folder = self.work / (name if name == "attacker" else f"{name}-{text}")
        if not folder.exists():
            began = time.time()
            work = self.sanitizer("pieces", "santext", epsilon, seed=7) if epsilon else None
            settings = Pretraining(batch=MASK_BATCH, context=CONTEXT, **options)
            scores = pretrain(start, self.public(), folder, settings, sanitizer=work)
            self.note({"what": "masked-word model", "name": name, "text": text}, scores, began)
        return folder

    def masked(self, epsilon: float | None) -> Path:
        """The learner, taught to fill masks."""
        return self.taught(
            "masked", self.start(), epsilon, steps=MASK_STEPS, learning_rate=1e-3, copies=3, seed=1
        )

    def attacker(self) -> Path:
        """The encoder's first layers with a head for masked words."""
        return self.taught(
            "attacker", self.encoder, steps=ATTACKER_STEPS, learning_rate=5e-4, layers=LAYERS,
            copies=3, seed=1,
        )  # fmt: skip

    def further(self, epsilon: float | None) -> Path:
        """The attacker's model, taught further."""
        return self.taught(
            "further",
            self.attacker(),
            epsilon,
            steps=MORE_STEPS,
            learning_rate=5e-4,
            copies=1,
            seed=2,
        )

    def attack(self, key: dict[str, Any], work: Sanitizer, folder: Path) -> None:
        from tacit.training.models.networks import load_model
        from tacit.training.models.tokens import load_tokenizer
        from tacit.training.tasks.mask_inference import guess_masked, verdict
        from tacit.training.tasks.masking import align

        if self.done(key):
            return
        began = time.time()
        texts = self.task("sst2").only("valid").column("text").to_pylist()[:ATTACKED]
        tokenizer = load_tokenizer(folder)
        found = guess_masked(
            load_model(folder, "masked-word"), tokenizer, align(texts, tokenizer, work)
        )
        _, counted = work([str(n) for n in range(len(texts))], texts)
        unsanitized = key.get("mechanism") == "none"
        said = {"verdict": verdict(found)} if unsanitized else _seen(counted)
        self.note(
            key,
            {"defence_rate": round(found.defence_rate, 4), "error": round(found.error, 4),
             "tokens": found.tokens, **said},
            began,
        )  # fmt: skip


def _seen(counted: Counted) -> dict[str, float]:
    return {
        "unchanged": round(counted.unchanged / counted.words, 4),
        "unknown": round(counted.unknown / counted.words, 4),
    }


# --- the figures -----------------------------------------------------------------------------


def glove_grid() -> list[tuple[str, float]]:
    plain = [(m, e) for e in GLOVE_EPSILONS for m in ("santext", "santext+")]
    return plain + [("fbdd", e) for e in FBDD_EPSILONS]


def table1(study: Study) -> None:
    start = study.start()
    study.fine_tune({"what": "table1", "mechanism": "none"}, "sst2", None, start)
    for method, epsilon in [("random", None), *glove_grid()]:
        key = {"what": "table1", "mechanism": method, "epsilon": epsilon}
        if not study.done(key):
            study.fine_tune(key, "sst2", study.sanitizer("glove", method, epsilon), start)


def table3(study: Study, epsilon: float = 14.0) -> None:
    work = study.sanitizer("pieces", "santext", epsilon)
    starts = [
        (SMALL, "none", study.start()),
        (SMALL, "plain public text", study.masked(None)),
        (SMALL, "sanitized public text", study.masked(epsilon)),
        (WIDE, "none", study.attacker()),
        (WIDE, "plain public text", study.further(None)),
        (WIDE, "sanitized public text", study.further(epsilon)),
    ]
    for learner, pretraining, start in starts:
        key = {"epsilon": epsilon, "learner": learner, "pretraining": pretraining}
        # The larger learner takes six times as long for a step: half an epoch.
        more = {"epochs": 0.5, "rate": TOP_RATE} if learner == WIDE else {}
        study.fine_tune({"what": "table3", **key}, "sst2", work, start, **more)
        # Is a model that learned to undo the mechanism a better attacker?
        if (learner, pretraining) != (SMALL, "none"):
            study.attack({"what": "table3 attack", **key}, work, start)


def figure3(study: Study) -> None:
    """Accuracy over (w, p); w = 0.9 with p = 0.3 is a row of table 1."""
    for share in (0.5, 0.9, 0.99):
        for rate in (0.1, 0.6):
            work = study.sanitizer("glove", "santext+", 2.0, share=share, rate=rate)
            key = {"what": "figure3", "w": share, "p": rate}
            study.fine_tune(key, "sst2", work, study.start())


def figure4(study: Study) -> None:
    # Below 3 FBDD leaves fewer than one word in two hundred, as at 3.
    words = [(m, e) for m, e in glove_grid() if m != "fbdd" or e >= 3]
    grids: dict[str, list[tuple[str, float | None]]]
    grids = {
        # At the last one nothing changes but words that the vocabulary lacks.
        "glove": [("random", None), *words, ("santext", NO_LIMIT)],
        "pieces": [("santext", e) for e in PIECE_EPSILONS],
    }
    for space, grid in grids.items():
        key = {"what": "figure4", "space": space}
        study.attack(
            {**key, "mechanism": "none"}, as_it_stands(study.embedding(space)), study.attacker()
        )
        for method, epsilon in grid:
            named = {**key, "mechanism": method, "epsilon": epsilon}
            study.attack(named, study.sanitizer(space, method, epsilon), study.attacker())


def pairs(study: Study) -> None:
    for task in ("stsb", "qnli"):
        key = {"what": "pairs", "task": task}
        study.fine_tune({**key, "mechanism": "none"}, task, None, study.start())
        for method, epsilon in (("santext", 3.0), ("santext+", 3.0)):
            named = {**key, "mechanism": method, "epsilon": epsilon}
            work = study.sanitizer("glove", method, epsilon)
            study.fine_tune(named, task, work, study.start())
    # Would the encoder's own layers do better?
    wide = {"what": "pairs", "task": "stsb", "learner": WIDE, "mechanism": "none"}
    study.fine_tune(wide, "stsb", None, study.attacker(), epochs=1, rate=TOP_RATE)


def draw(study: Study) -> None:
    """Accuracy and defence rate over epsilon, and accuracy over (w, p), from the results."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    from tacit.reports.plots import BLUE, GREY, INK, RULE, STYLE, VERMILION, save

    rows = [r for r in study.rows() if r.get("space", "glove") == "glove"]
    names = {"santext": "SanText", "santext+": "SanText+", "fbdd": "FBDD"}
    colours = dict(zip(names, (BLUE, VERMILION, INK), strict=True))
    with rc_context(STYLE):
        figure = Figure(figsize=(12.5, 3.9), layout="constrained", facecolor="white")
        over = figure.subplots(1, 3)
        for axes, what, metric, title in (
            (over[0], "table1", "accuracy", "Accuracy on sanitized SST-2"),
            (over[1], "figure4", "defence_rate", "Words that the attacker misses"),
        ):
            mine = [r for r in rows if r["what"] == what]
            for mechanism, name in names.items():
                points = sorted(
                    (r["epsilon"], r[metric])
                    for r in mine
                    if r["mechanism"] == mechanism and r["epsilon"] < NO_LIMIT
                )
                axes.plot(
                    *zip(*points, strict=True), "o-", color=colours[mechanism], lw=1.6, ms=4.5,
                    label=name,
                )  # fmt: skip
            for r in mine:
                if r["mechanism"] in ("none", "random"):
                    axes.axhline(r[metric], color=GREY, lw=0.8, ls=":")
                    name = "unsanitized" if r["mechanism"] == "none" else "random words"
                    axes.text(
                        15.5, r[metric], name, fontsize=8, color=GREY, va="bottom", ha="right"
                    )
            axes.set_xscale("log")
            axes.set_xticks([1, 2, 3, 5, 10, 15], ["1", "2", "3", "5", "10", "15"])
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set_xlabel("epsilon per distance (GloVe, 100 numbers)", fontsize=9, color=GREY)
            axes.set_title(title, fontsize=10, color=INK, loc="left")
        over[0].legend(frameon=False, fontsize=9, loc=(0.03, 0.62))
        _draw_grid(over[2], rows, (BLUE, VERMILION, INK))
        over[2].set_title("SanText+ at epsilon 2, over (w, p)", fontsize=10, color=INK, loc="left")
        over[2].set_xlabel("p: how often a plain word is replaced", fontsize=9, color=GREY)
        for axes in over:
            axes.grid(axis="y", color=RULE, lw=0.6)
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
            axes.tick_params(colors=GREY, labelsize=8.5)
        (DOCS / "figures").mkdir(exist_ok=True)
        save(figure, DOCS / "figures" / "sanitizing.svg")


def _draw_grid(axes: Any, rows: list[dict[str, Any]], colours: tuple[str, ...]) -> None:
    """Figure 3: a line for each share of sensitive words."""
    grid = {(r["w"], r["p"]): r["accuracy"] for r in rows if r["what"] == "figure3"}
    known = {"what": "table1", "mechanism": "santext+", "epsilon": 2.0}
    grid[0.9, 0.3] = next(r["accuracy"] for r in rows if known.items() <= r.items())
    for colour, share in zip(colours, sorted({w for w, _ in grid}), strict=True):
        points = sorted((p, found) for (w, p), found in grid.items() if w == share)
        axes.plot(
            *zip(*points, strict=True), "o-", color=colour, lw=1.6, ms=4.5, label=f"w = {share:g}"
        )
    axes.legend(frameon=False, fontsize=9)


def main() -> None:
    figures = {f.__name__: f for f in (table1, table3, figure3, figure4, pairs, draw)}
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("data", "encoder", "work"):
        parser.add_argument(name, type=Path)
    parser.add_argument("figure", choices=figures, nargs="+")
    parser.add_argument("--results", type=Path, default=DOCS / "results" / "sanitizing.jsonl")
    given = parser.parse_args()
    study = Study(given.data, given.encoder, given.work, given.results)
    for name in given.figure:
        figures[name](study)


if __name__ == "__main__":
    main()
