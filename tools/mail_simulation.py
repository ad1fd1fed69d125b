"""Choose the learning rate of newsgroups20-english-users without private text.

    python tools/mail_simulation.py --data DIR --rates 4e-3 8e-3
    python tools/mail_simulation.py --data DIR --set optimizer.schedule=constant
    python tools/mail_simulation.py --data DIR --norms

Texts of AG News are dealt to users that do not exist, one each, and play the part of the mail: the
start has read nothing like them. An eighth of the users with an eighth of the noise has as much
noise in its mean as all of them. Printed is the perplexity on texts of other users; or, with
`--norms`, norms of the gradients of users who have 1, 4 or 10 texts, where such a run begins.
"""

import argparse
import os
import statistics
import tempfile
from pathlib import Path

from public_simulation import try_rates

os.environ.setdefault("OMP_NUM_THREADS", "1")

SHARE, SCORED = 8, 300
PRESET = Path("preset:newsgroups20-english-users")


def made_up_users(data: str | None, count: int, path: Path) -> Path:
    """A text of AG News for each user; some more users are kept for the score."""
    from tacit.corpus import Corpus
    from tacit.corpus.writing import write
    from tacit.training.data.public_inputs import public_corpus

    texts = public_corpus("ag_news", data).column("text").to_pylist()[: count + SCORED]
    rows = (
        {"id": str(n), "user": f"u{n}", "text": text, "split": "train" if n < count else "test"}
        for n, text in enumerate(texts)
    )
    write(Corpus.from_records(rows), path)
    return path


def norms(data: str | None, texts: int, users: int = 24) -> list[float]:
    """The norms of users' gradients at start:english, each of so many texts."""
    import torch

    from tacit.corpus import Corpus
    from tacit.corpus.writing import write
    from tacit.training.data.public_inputs import public_corpus
    from tacit.training.data.training_data import prepare
    from tacit.training.methods.dp_sgd import DP_SGD
    from tacit.training.methods.method import MethodInputs
    from tacit.training.methods.noisy_sums import LossMeter
    from tacit.training.phases.run_context import encode, open_run
    from tacit.training.settings import read_run

    own = public_corpus("ag_news", data).column("text").to_pylist()[: users * texts]
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "users.jsonl"
        rows = ({"id": str(n), "user": f"u{n // texts}", "text": t} for n, t in enumerate(own))
        write(Corpus.from_records(rows), path)
        given = {"corpus": str(path), "seed": 0, "plan.records_per_step": None}
        run = read_run(PRESET, given | {"plan.users": users, "plan.clip_norm": 1e9})
        ctx, plan = open_run(run), run.made_plan()
        units = prepare(encode(ctx, ctx.part), ctx.part, [], plan)
        inputs = MethodInputs(run, ctx.model, ctx.task.losses, units, ctx.randomness, plan)
        total = DP_SGD.totals(inputs, LossMeter(ctx.model, ctx.task.losses))
        found = (total(1, [user]).tensors.values() for user in range(units.users))  # type: ignore[arg-type]
        return [float(torch.cat([t.reshape(-1) for t in one]).norm()) for one in found]


def main() -> None:
    """Train and print."""
    from tacit.planning.plan import calibrated, parse_overrides
    from tacit.training.settings import read_run

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of the known corpora")
    parser.add_argument("--epsilons", type=float, nargs="*", default=[8.0, 2.0, 1.0])
    parser.add_argument("--rates", type=float, nargs="*", default=[4e-3, 8e-3, 16e-3])
    parser.add_argument("--set", dest="changes", action="append", default=[], help="name=value")
    parser.add_argument("--norms", action="store_true", help="norms of gradients instead")
    own = parser.parse_args()
    if own.norms:
        for texts in (1, 4, 10):
            print(f"{texts} texts: median norm {statistics.median(norms(own.data, texts)):.2f}")
        return
    with tempfile.TemporaryDirectory() as scratch:
        for epsilon in own.epsilons:
            plan = read_run(PRESET, {"plan.epsilon": epsilon}).made_plan()
            assert plan is not None
            assert plan.users is not None
            users = plan.users // SHARE
            corpus = made_up_users(own.data, users, Path(scratch) / "users.jsonl")
            noise = float(calibrated(plan).noise_multiplier or 0) / SHARE
            given = {
                "corpus": str(corpus), "data": own.data, "seed": 0, "checkpoint_every": 1000,
                "plan.epsilon": 1e6, "plan.users": users, "plan.noise_multiplier": noise,
            } | parse_overrides(own.changes)  # fmt: skip
            try_rates(PRESET, epsilon, given, own.rates, Path(scratch))


if __name__ == "__main__":
    main()
