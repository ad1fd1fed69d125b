"""Try settings of CustomerSim's presets without its customers: other people of the same generator.

    python tools/dialog_simulation.py --epsilon 8
    python tools/dialog_simulation.py --epsilon 8 --set plan.steps=200
    python tools/dialog_simulation.py --data DIR --set model.embeddings=glove

An eighth of the customers, of another seed, with an eighth of the noise, which has as much noise in
its mean as all of them. Printed is the perplexity on dialogs of others. The generator is ours, so
its dialogs are public; so are its turns of phrase, which no corpus of real people would give away.
Constants may be chosen here. A model that began from this text would know the answers.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

SHARE, SEED = 8, 77
DIALOGS, CUSTOMERS = 940, 625


def settings_of(preset: Path, given: dict[str, Any], epsilon: float) -> dict[str, Any]:
    """The preset on an eighth of the customers, with an eighth of the noise for epsilon."""
    from tacit.planning.plan import calibrated
    from tacit.training.settings import read_run

    plan = read_run(preset, given | {"plan.epsilon": epsilon}).made_plan()
    assert plan is not None
    noise = float(calibrated(plan).noise_multiplier or 0)
    fewer = {"plan.users": plan.users // SHARE} if plan.users is not None else {}
    return given | fewer | {"plan.epsilon": 1e6, "plan.noise_multiplier": noise / SHARE}


def main() -> None:
    """Train and print."""
    from tacit.corpora import customersim
    from tacit.corpus.writing import write
    from tacit.planning.plan import parse_overrides
    from tacit.training.evaluation import scoring
    from tacit.training.phases import session
    from tacit.training.settings import read_run

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="customersim-lstm-users")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--set", dest="changes", action="append", default=[], help="name=value")
    parser.add_argument("--data", help="folder of the known corpora: GloVe and posts")
    own = parser.parse_args()
    preset = Path(f"preset:{own.preset}")
    with tempfile.TemporaryDirectory() as scratch:
        corpus = Path(scratch) / "dialogs.jsonl"
        write(customersim.generate(DIALOGS, SEED, CUSTOMERS), corpus)
        given = {"corpus": str(corpus), "data": own.data, "seed": 0, "checkpoint_every": 1000}
        given = settings_of(preset, given | parse_overrides(own.changes), own.epsilon)
        start = time.process_time()
        session.train(read_run(preset, given), Path(scratch) / "run")
        seconds = time.process_time() - start
        scores = scoring.evaluate(Path(scratch) / "run", "test")
    print(
        f"{own.preset}, epsilon {own.epsilon:g} {' '.join(own.changes)}: perplexity "
        f"{scores['perplexity']:.2f} (public only {scores['public_only_perplexity']:.1f}, trigram "
        f"{scores['trigram_perplexity']:.2f}), {seconds:.0f} CPU seconds"
    )


if __name__ == "__main__":
    main()
