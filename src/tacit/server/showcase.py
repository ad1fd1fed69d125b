"""Small models of made-up dialogs, trained on this machine: what the front page shows strangers.

One of the dialogs' customers repeats a secret. The same network learns the same dialogs without
protection and with it, at several epsilons, each after the same steps on public text; the same
attack then tries every secret of the form on each. The page is given what came out, as a file:
no stranger's request ever reaches a model.
"""

import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.corpora import customersim
from tacit.errors import UsageError
from tacit.privacy.rounding import up
from tacit.saved_json import read_fields, write_fields
from tacit.server import Json
from tacit.server.settings import ServerSettings

if TYPE_CHECKING:
    from tacit.attacks.canaries import Planted, Template
    from tacit.python.runs import TrainedRun

EPSILONS = (1.0, 2.0, 4.0, 8.0)
BEGINNINGS = (
    "SYS: Hello , how can I help you ? USR:",
    "USR: My parcel",
    "USR: I would like to",
    "SYS: Could you give me your",
)
FORMAT, VERSION = "tacit-showcase", 1
_USERS, _SEED = 600, 5
_TIMES = 40
"""So often one customer says the secret."""
_WORDS = 16
_OPTIMIZER: Json = {"name": "adamw", "learning_rate": 0.01, "schedule": "linear", "warmup": 10}
_SHARED: Json = {
    "tokenizer": {"kind": "words", "size": 2000, "punctuation": True, "digits": True,
                  "public_text": "generated"},
    "model": {"kind": "lstm", "config": {"embedding_size": 64, "hidden_size": 64,
                                         "embedding_range": 1.0}, "public_frequencies": True},
    "context": 128,
    "pretrain": {"corpus": "generated", "steps": 300, "batch": 16, "optimizer": _OPTIMIZER},
}  # fmt: skip
_PLAIN: Json = {"method": "plain", "steps": 150, "batch": 32, "optimizer": _OPTIMIZER}
_PRIVATE: Json = {
    "method": "dp-sgd",
    "optimizer": {"name": "dp-adam", "learning_rate": 0.012, "schedule": "linear"},
}
_PLAN: Json = {"protect": "users", "steps": 40, "user_rate": 0.2, "users": 480, "clip_norm": 0.5}


def path_of(settings: ServerSettings) -> Path:
    """Where a server keeps what its front page shows."""
    return settings.folder / "showcase.json"


def read_showcase(settings: ServerSettings) -> Json | None:
    """What was made for the front page; None before that."""
    path = path_of(settings)
    return _read(path, path.stat().st_mtime_ns) if path.exists() else None


@cache
def _read(path: Path, _: int) -> Json:
    return read_fields(path, FORMAT, VERSION)


def make_showcase(
    settings: ServerSettings, *, say: Callable[[str], None] = print, scale: float = 0.5,
    epsilons: tuple[float, ...] = EPSILONS,
) -> Json:  # fmt: skip
    """Train the models, attack them, and keep what came out; a smaller `scale` takes less time."""
    settings.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not epsilons:
        raise UsageError("Give at least one epsilon.")
    with tempfile.TemporaryDirectory(dir=settings.folder, prefix="showcase-") as place:
        found = _made(Path(place), say, scale, epsilons)
    write_fields(path_of(settings), {"format": FORMAT, "version": VERSION} | found)
    return found


def _made(folder: Path, say: Callable[[str], None], scale: float, epsilons: Any) -> Json:
    import tacit
    from tacit.attacks.canaries import plant

    def scaled(fields: Json) -> Json:
        return fields | {"steps": max(2, round(fields["steps"] * scale))}

    users = max(60, round(_USERS * scale))
    template = _pin()
    corpus, planted = plant(
        customersim.generate(round(1.5 * users), _SEED, users), template, repetitions=(_TIMES,),
        each=1, held_out=0, split="train", rng=np.random.default_rng(_SEED),
    )  # fmt: skip
    shared = _SHARED | {"pretrain": scaled(_SHARED["pretrain"])}
    models = []
    for epsilon in (None, *epsilons):
        say("Without protection" if epsilon is None else f"Users protected, epsilon {up(epsilon)}")
        plan = None if epsilon is None else scaled(_PLAN) | {"epsilon": epsilon}
        if plan is not None:
            plan["users"] = round(0.8 * users)
        how = scaled(_PLAIN) if plan is None else _PRIVATE
        run = tacit.train(corpus, plan, folder=folder / f"model-{epsilon}", **shared, **how)
        models.append(_shown(run, planted) | {"epsilon": epsilon})
        shutil.rmtree(run.folder)
    return {
        "dialogs": len(corpus), "users": users + 1, "secret": planted.canaries[0].secret,
        "before": template.before, "times": _TIMES, "possible": template.size,
        "models": models,
    }  # fmt: skip


def _pin() -> "Template":
    from tacit.attacks.canaries import Template

    digits = tuple("0123456789")
    return Template("pin", "My PIN is ", (digits,) * 4, "", "PII/ID")


def _shown(run: "TrainedRun", planted: "Planted") -> Json:
    """How good a model is, how it goes on, and what it gives away."""
    scores = run.evaluate()
    said = run.generate(list(BEGINNINGS), max_new_tokens=_WORDS, temperature=0.0)
    pairs = zip(BEGINNINGS, said, strict=True)
    return {
        "said": {begun: text[len(begun):].strip() for begun, text in pairs},
        "right": scores["accuracy"], "start_right": scores["public_only_accuracy"],
        **attack(run, planted),
    }  # fmt: skip


def attack(run: "TrainedRun", planted: "Planted") -> Json:
    """Every secret of the form by its likelihood: which is first, and where the real one is."""
    from tacit.attacks.likelihood import log_likelihoods
    from tacit.attacks.target import open_target

    reader, template = open_target(run.folder).reader, planted.template
    first, _ = reader.task.frame(reader.tokenizer)
    every = list(template.all())
    rows = reader.tokenizer([template.text(s) for s in every], add_special_tokens=False)
    # All of the form share the tokens before the secret, which ends the text.
    same = len(reader.tokenizer(template.before, add_special_tokens=False)["input_ids"])
    ids = [row[same:] for row in rows["input_ids"]]
    before = [*first, *rows["input_ids"][0][:same]]
    scores = log_likelihoods(reader.model, before, ids)
    best = [int(at) for at in np.argsort(-scores)[:3]]
    own = scores[every.index(planted.canaries[0].secret)]
    share = np.exp(scores - np.logaddexp.reduce(scores))
    return {
        "rank": int((scores > own).sum()) + 1,
        "guesses": [[every[at], float(share[at])] for at in best],
    }  # fmt: skip


def sample_lines(dialogs: int = 300, seed: int = 7) -> list[str]:
    """Made-up dialogs to try everything with, as the lines of a file."""
    kept = ("text", "user", "label", "split")
    rows = (record.row() for record in customersim.stream(dialogs, seed))
    return [json.dumps({k: r[k] for k in kept if r.get(k)}, allow_nan=False) for r in rows]
