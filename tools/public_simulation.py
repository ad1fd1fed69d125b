"""Choose clip norms and learning rates without private text: public text plays its part.

    python tools/public_simulation.py --data DIR
    python tools/public_simulation.py --data DIR --clip-norm 10 --protect users+names
    python tools/public_simulation.py --data DIR --adapter --epsilons 8 --rates 32

A model that has read WikiText-2 meets AG News, whose sentences are dealt to users that do not
exist. Printed are the median norm of such a user's gradient, where it begins, and for each epsilon
and learning rate the perplexity on sentences of other users, on all, plain and marked tokens, for
the presets conll2003-lstm-users and -users+entities. Marked is what the detector of names finds;
with `--protect users+names` it is replaced. Norms halve while a model learns, so the clip norm is
half of that. A quarter of the users with a quarter of the noise has as much noise in its mean as
all of them.

With `--adapter` it is SmolLM2 of conll2003-smollm2-users, whose tokens and directions come from AG
News, and it meets WikiText-2: sentences with marks set apart, three for each of 60 users.
"""

import argparse
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

USERS, SENTENCES, SHARE = 946, 15, 4
"""As many users as the private corpus is known to have, with about as many sentences."""
EPSILONS = (8.0, 2.0, 1.0)
RATES = (8e-3, 12e-3)
PRESET = Path("preset:conll2003-lstm-users")
ADAPTER = Path("preset:conll2003-smollm2-users")
FEW_USERS, FEW_SENTENCES = 60, 3
"""As many as a pretrained model reads in a minute."""


def made_up_users(data: str | None, path: Path) -> Path:
    """Sentences of AG News, some for each user; a tenth as many users are kept for the score."""
    from tacit.training.data.public_inputs import public_corpus

    texts = public_corpus("ag_news", data, "sentence", "treebank").column("text").to_pylist()
    count = USERS // SHARE
    users = count + count // 10
    return _dealt(texts, users, count, SENTENCES, path)


def few_users(data: str | None, path: Path) -> Path:
    """The last sentences of WikiText-2, three for each; a third as many users for the score."""
    from tacit.training.data.public_inputs import public_corpus

    texts = public_corpus("wikitext2", data, "sentence", "treebank").column("text").to_pylist()
    users = FEW_USERS + FEW_USERS // 3
    return _dealt(texts[-users * FEW_SENTENCES :], users, FEW_USERS, FEW_SENTENCES, path)


def _dealt(texts: list[str], users: int, count: int, each: int, path: Path) -> Path:
    """Sentences dealt to users, of whom `count` are learnt from."""
    from tacit.corpus import Corpus
    from tacit.corpus.writing import write

    records = (
        {"id": f"{user}-{n}", "user": f"u{user}", "text": texts[user * each + n],
         "split": "train" if user < count else "test"}
        for user in range(users) for n in range(each)
    )  # fmt: skip
    write(Corpus.from_records(records), path)
    return path


def settings_of(
    corpus: Path, data: str | None, epsilon: float, clip: float, protect: str = "users"
) -> dict[str, Any]:
    """The preset on made-up users: the noise that epsilon asks for, over fewer users."""
    noise = _noise(PRESET, data, epsilon)
    return {
        "data": data, "corpus": str(corpus), "detect": "names", "seed": 0, "checkpoint_every": 1000,
        "plan.protect": protect, "pretrain.corpus": "wikitext2", "pretrain.steps": 500,
        "plan.epsilon": 1e6, "plan.users": USERS // SHARE, "plan.clip_norm": clip,
        "plan.noise_multiplier": noise / SHARE,
    }  # fmt: skip


def settings_of_adapter(corpus: Path, data: str | None, epsilon: float) -> dict[str, Any]:
    """The preset of the adapter on made-up users, with the noise in their mean that 946 have."""
    return {
        "data": data, "corpus": str(corpus), "detect": "patterns", "seed": 0,
        "checkpoint_every": 1000, "plan.epsilon": 1e6, "plan.users": FEW_USERS,
        "plan.noise_multiplier": _noise(ADAPTER, data, epsilon) * FEW_USERS / USERS,
    }  # fmt: skip


def _noise(preset: Path, data: str | None, epsilon: float) -> float:
    """The noise multiplier that a preset asks for."""
    from tacit.planning.plan import Plan, calibrated
    from tacit.training.settings import read_run

    plan = read_run(preset, {"data": data, "plan.epsilon": epsilon}).made_plan()
    assert plan is not None
    return float(calibrated(Plan(**plan.model_dump())).noise_multiplier or 0)


def median_norm(given: dict[str, Any], folder: Path) -> float:
    """Of the gradients of single users, where the private phase would begin."""
    import torch

    from tacit.privacy.ledger import Ledger
    from tacit.training.data.training_data import prepare
    from tacit.training.methods.dp_sgd import DP_SGD
    from tacit.training.methods.method import MethodInputs
    from tacit.training.methods.noisy_sums import LossMeter
    from tacit.training.phases.public_start import start_on_public_text
    from tacit.training.phases.run_context import encode, open_run
    from tacit.training.settings import read_run

    run = read_run(PRESET, given | {"plan.clip_norm": 1e9})
    ctx, plan = open_run(run), run.made_plan()
    with Ledger(folder / "ledger.jsonl", {}) as ledger:
        start_on_public_text(ctx, folder, ledger)
    data = prepare(encode(ctx, ctx.part), ctx.part, [], plan)
    inputs = MethodInputs(run, ctx.model, ctx.task.losses, data, ctx.randomness, plan)
    total = DP_SGD.totals(inputs, LossMeter(ctx.model, ctx.task.losses))
    norms = (
        torch.cat([t.reshape(-1) for t in total(1, [user]).tensors.values()]).norm()  # type: ignore[arg-type]
        for user in range(data.users)
    )
    return statistics.median(float(norm) for norm in norms)


def try_rates(
    preset: Path, epsilon: float, given: dict[str, Any], rates: list[float], scratch: Path
) -> None:
    """Train once with each learning rate, and print what the model and its start score."""
    from tacit.training.evaluation import scoring
    from tacit.training.phases import session
    from tacit.training.settings import read_run

    for rate in rates:
        folder = scratch / f"{epsilon}-{rate}"
        session.train(read_run(preset, given | {"optimizer.learning_rate": rate}), folder)
        scores = scoring.evaluate(folder, "test")
        print(
            f"epsilon {epsilon:g}, learning rate {rate:g}: {scores['perplexity']:.2f} "
            f"(start {scores['public_only_perplexity']:.2f})", end="", flush=True,
        )  # fmt: skip
        apart = (f"{one} {scores[f'perplexity_{one}']:.2f}" for one in ("plain", "sensitive")
                 if f"perplexity_{one}" in scores)  # fmt: skip
        print("", *apart, sep=", ", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of the known corpora")
    parser.add_argument("--clip-norm", type=float, help="not measured again where it is given")
    parser.add_argument("--epsilons", type=float, nargs="*", default=EPSILONS)
    parser.add_argument("--rates", type=float, nargs="*", default=RATES)
    parser.add_argument("--protect", choices=("users", "users+names"), default="users")
    parser.add_argument("--adapter", action="store_true", help="SmolLM2 meets WikiText-2")
    parser.add_argument("--set", nargs="*", default=[], help="other settings: name=value")
    own = parser.parse_args()
    others = {name: float(value) for name, value in (one.split("=") for one in own.set)}
    with tempfile.TemporaryDirectory() as scratch:
        if own.adapter:
            corpus = few_users(own.data, Path(scratch) / "users.jsonl")
            for epsilon in own.epsilons:
                given = settings_of_adapter(corpus, own.data, epsilon) | others
                try_rates(ADAPTER, epsilon, given, own.rates, Path(scratch))
            return
        corpus = made_up_users(own.data, Path(scratch) / "users.jsonl")
        clip = own.clip_norm
        if clip is None:
            given = settings_of(corpus, own.data, 8.0, 1.0)
            clip = median_norm(given, Path(scratch))
        print(f"median norm of a user's gradient: {clip:.3g}", flush=True)
        for epsilon in own.epsilons:
            given = settings_of(corpus, own.data, epsilon, clip, own.protect) | others
            try_rates(PRESET, epsilon, given, own.rates, Path(scratch))


if __name__ == "__main__":
    main()
