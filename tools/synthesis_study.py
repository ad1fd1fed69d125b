"""What private votes are worth: the studies of docs/studies/synthesis.md.

    python tools/synthesis_study.py choose --data DIR         constants, on 20 Newsgroups
    python tools/synthesis_study.py agnews --data DIR --seeds 3   the gate, scored on test
    python tools/synthesis_study.py dialogs --data DIR        a model of a model's dialogs
    python tools/synthesis_study.py copies --data DIR         runs of words, and canaries

Candidates are public sentences (WikiText-2 and QNLI) unless --pool names a file of others, so that
a run costs seconds. Every run is `tacit.synthesis.session`, with its ledger and certificate.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

import tacit
from tacit.attacks.canaries import TEMPLATES, beside, plant
from tacit.audits.audit import audit_run
from tacit.corpora import customersim, open_corpus
from tacit.corpus import Corpus
from tacit.corpus.splitting import training_part
from tacit.corpus.writing import write
from tacit.synthesis.quality import RUN, Texts, error_rate, frontier, longest_shared
from tacit.synthesis.session import prepared, synthesize_file
from tacit.synthesis.settings import Synthesis
from tacit.synthesis.space import Space, likeness
from tacit.training.data.public_inputs import public_corpus

SAYS = {
    "World": "world politics war election government",
    "Sports": "sports game team player",
    "Business": "business company market economy",
    "Sci-Tech": "science technology computer",
}
GROUPS = {
    "comp": "computer software hardware",
    "rec": "sports cars game team",
    "sci": "science medicine space electronics",
    "talk": "politics religion debate",
}
"""What is public of each label."""


def sentences(data: str, most: int) -> Corpus:
    """Public sentences of nine to forty words, each once, taken evenly."""
    found = public_corpus(("wikitext2", "qnli"), data, unit="sentence")
    texts = dict.fromkeys(t.strip() for t in found.column("text").to_pylist())
    good = [t for t in texts if 9 <= len(t.split()) <= 40]
    rows = np.linspace(0, len(good) - 1, min(most, len(good))).astype(int)
    return Corpus.from_records([{"id": str(n), "text": good[row]} for n, row in enumerate(rows)])


def by_words(texts: Texts, says: dict[str, str], space: Space) -> Texts:
    """The same texts, each with the label whose words are nearest: what is public of a label."""
    words = space.points(list(says.values()), "words of labels")
    chosen = np.concatenate([p.argmax(1) for _, p in likeness(texts.points, words)])
    names = list(says)
    return Texts(texts.texts, texts.points, [names[at] for at in chosen])


def once(fields: dict[str, Any], seed: int, folder: Path) -> tuple[Any, Corpus]:
    ready = prepared(Synthesis(**fields, seed=seed))
    done = synthesize_file(ready, folder / f"out-{seed}.jsonl", overwrite=True)
    return done, done.corpus


def measured(
    fields: dict[str, Any], seeds: int, test: Texts, real: Texts, space: Space, folder: Path
) -> dict[str, Any]:
    """Errors of a classifier that learnt from what is chosen, by seed; and the divergence."""
    errors, clusters, counts = [], [], []
    for seed in range(1, seeds + 1):
        done, corpus = once(fields, seed, folder)
        made = Texts.of(corpus, space)
        errors.append(round(error_rate(made, test), 4))
        clusters.append(round(frontier(made.points, real.points), 3))
        counts.append(len(corpus))
    plan = done.certificate.plan
    return {
        "epsilon": done.certificate.epsilon, "protect": done.certificate.protect,
        "noise": plan["noise_multiplier"], "texts": counts, "error": errors, "clusters": clusters,
        "mean error": round(float(np.mean(errors)), 4),
    }  # fmt: skip


def four_groups(data: str) -> Corpus:
    """20 Newsgroups with four labels, of which neither the gate nor its test text is a part."""
    found = open_corpus("newsgroups20", data)
    kept = [
        r.row() | {"label": r.label.partition(".")[0], "text": r.text[:600]}
        for r in found.records()
        if r.label and r.label.partition(".")[0] in GROUPS and len(r.text.split()) > 8
    ]
    return Corpus.from_records(kept)


WORDS = {
    "kind": "words", "size": 2000, "punctuation": True, "digits": True, "public_text": "generated",
}  # fmt: skip
SMALL = {
    "kind": "lstm", "public_frequencies": True,
    "config": {"embedding_size": 64, "hidden_size": 64, "embedding_range": 1.0},
}  # fmt: skip
ADAM = {"name": "adamw", "learning_rate": 0.01, "schedule": "linear", "warmup": 10}


def dialogs(texts: int, steps: int, folder: Path) -> dict[str, Any]:
    """A private model of dialogs, its synthetic dialogs, and a small model of these."""
    corpus = folder / "dialogs.jsonl"
    write(customersim.generate(2400, seed=5, users=1800), corpus)
    start = {"corpus": "generated", "steps": steps, "batch": 16, "optimizer": ADAM}
    shared = {"model": SMALL, "tokenizer": WORDS, "context": 256}
    private = tacit.train(
        str(corpus), folder=folder / "private", pretrain=start,
        plan={"protect": "users", "epsilon": 6, "steps": 60, "user_rate": 0.2, "users": 1400,
              "clip_norm": 0.5},
        method="dp-sgd", recipe=None,
        optimizer={"name": "dp-adam", "learning_rate": 0.015, "schedule": "linear"}, **shared,
    )  # fmt: skip
    began = time.process_time()
    done = tacit.synthesize(
        str(corpus), folder / "synthetic.jsonl", like=private.folder, texts=texts, candidates=2,
        tokens=200, plan={"protect": "users", "epsilon": 8, "users": 1400},
        lengths=(32, 64, 128),
    )  # fmt: skip
    took = time.process_time() - began
    found: dict[str, Any] = {"texts": len(done.corpus), "epsilon": done.certificate.epsilon}
    found["seconds of CPU"] = round(took)
    scores = {"private": private.evaluate()["perplexity"]}
    scores["its start"] = private.evaluate()["public_only_perplexity"]
    for name, chosen in (("synthetic", done.corpus), ("unselected", done.unselected)):
        write(chosen, folder / f"{name}-train.jsonl", format="jsonl")
        made = tacit.train(
            str(folder / f"{name}-train.jsonl"), folder=folder / name, method="plain",
            recipe=None, steps=steps, batch=16, pretrain=start,
            optimizer=ADAM | {"learning_rate": 0.005}, **shared,
        )  # fmt: skip
        test = open_corpus(str(corpus)).only("test")
        scores[name] = made.evaluate(test)["perplexity"]
    found |= {name: round(value, 3) for name, value in scores.items()}
    return found | {"ratio": round(scores["synthetic"] / scores["private"], 3)}


def copies(data: str, seed: int, asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Words in a row that are shared with private posts, and what canaries tell of the text."""
    rng = np.random.default_rng(seed)
    corpus, plan = plant(
        training_part(four_groups(data)), TEMPLATES["digits"], repetitions=(1,), each=500,
        coins=True, rng=rng,
    )  # fmt: skip
    write(corpus, folder / "planted.jsonl")
    plan.write(beside(folder / "planted.jsonl"))
    write(sentences(data, asked.candidates), folder / "pool.jsonl")
    users = len(corpus.users()) // 100 * 100
    done = tacit.synthesize(
        folder / "planted.jsonl", folder / "out.jsonl", like=folder / "pool.jsonl",
        texts=asked.texts, plan={"protect": "users", "epsilon": 8, "users": users}, rounds=1,
    )  # fmt: skip
    (audit,) = audit_run(done.folder)
    private = corpus.column("text").to_pylist()
    longest = {
        name: longest_shared(texts.column("text").to_pylist(), private)
        for name, texts in (("synthetic", done.corpus), ("unselected", done.unselected))
    }
    found: dict[str, Any] = {f"longest run, {n}": int(v.max()) for n, v in longest.items()}
    found |= {f"texts with {RUN} words, {n}": int((v >= RUN).sum()) for n, v in longest.items()}
    right = f"{audit.evidence.correct} of {audit.evidence.guesses}"
    return found | {"canaries right": right, "epsilon at least": audit.lower}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("choose", "agnews", "dialogs", "copies"))
    parser.add_argument("--data", default=os.environ.get("TACIT_DATA"))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--pool", help="a file of candidates instead of public sentences")
    parser.add_argument("--candidates", type=int, default=40_000)
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--epsilons", default="8,2")
    parser.add_argument("--protect", default="users")
    parser.add_argument("--neighbours", default="4")
    parser.add_argument("--smooth", type=float, default=4.0)
    parser.add_argument("--space", default="wordllama")
    asked = parser.parse_args()
    folder = Path(mkdtemp(prefix="tacit-synthesis-"))
    if asked.what == "copies":
        for seed in range(1, asked.seeds + 1):
            own = folder / str(seed)
            own.mkdir()
            print(json.dumps(copies(asked.data, seed, asked, own)), flush=True)
        return
    if asked.what == "dialogs":
        for seed in range(1, asked.seeds + 1):
            own = folder / str(seed)
            own.mkdir()
            print(json.dumps(dialogs(asked.texts, asked.steps, own)), flush=True)
        return
    space = Space(asked.space, 128)
    corpus = (
        four_groups(asked.data) if asked.what == "choose" else open_corpus("ag_news", asked.data)
    )
    says = GROUPS if asked.what == "choose" else SAYS
    write(corpus, folder / "private.parquet")
    pool = Path(asked.pool) if asked.pool else folder / "pool.jsonl"
    if not asked.pool:
        write(sentences(asked.data, asked.candidates), pool)
    private, test = training_part(corpus), corpus.only("test")
    users = len(private.users())
    real, unseen = Texts.of(private, space, asked.texts), Texts.of(test, space)
    given = Texts.of(open_corpus(str(pool)), space)
    if not any(given.labels):
        given = by_words(given, says, space)
    base = {
        "users": users, "records": len(private), "candidates": len(given),
        "error, real": round(error_rate(real, unseen), 4),
        "error, unselected": round(error_rate(given, unseen, most=asked.texts), 4),
        "clusters, unselected": round(frontier(given.points, real.points), 3),
        "clusters, real test": round(frontier(unseen.points, real.points), 3),
    }  # fmt: skip
    print(json.dumps(base), flush=True)
    for neighbours in map(int, asked.neighbours.split(",")):
        for epsilon in map(float, asked.epsilons.split(",")):
            plan = {"protect": asked.protect, "epsilon": epsilon, "users": users // 100 * 100}
            fields = {
                "corpus": str(folder / "private.parquet"), "generator": str(pool), "rounds": 1,
                "labels": tuple(says), "texts": asked.texts, "neighbours": neighbours,
                "space": asked.space, "plan": plan, "smooth": asked.smooth,
            }  # fmt: skip
            if asked.protect != "users":
                fields["detect"] = "names,lists,patterns"
            try:
                found = measured(fields, asked.seeds, unseen, real, space, folder)
            except tacit.TacitError as refused:
                found = {"epsilon": epsilon, "refused": str(refused)}
            print(json.dumps({"neighbours": neighbours} | found), flush=True)


if __name__ == "__main__":
    sys.exit(main())
