"""Training on public text before any private text is read, kept so that it is done once."""

import hashlib
import os
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from pathlib import Path
from tempfile import NamedTemporaryFile

from filelock import FileLock
from torch import nn

from tacit.privacy.accounting.price_cache import cache_folder
from tacit.privacy.events import Public
from tacit.privacy.ledger import Ledger
from tacit.training.data.public_inputs import public_corpus, shown_name
from tacit.training.data.training_data import TrainingData, prepare
from tacit.training.dp.random_source import RandomSource
from tacit.training.methods.plain import PlainStep
from tacit.training.models import weights
from tacit.training.models.optimizers import make_optimizer
from tacit.training.models.state_adapter import StateAdapterForCausalLM
from tacit.training.models.weights import trainable
from tacit.training.phases.checkpoints import load_weights, save_weights
from tacit.training.phases.loop import Loop, OnProgress
from tacit.training.phases.run_context import RunContext, make_model
from tacit.training.settings import PublicStart, each
from tacit.training.tasks.examples import Examples
from tacit.training.tasks.tasks import NextWord

NAME = "public-start.safetensors"


def start_on_public_text(
    ctx: RunContext, folder: Path, ledger: Ledger, on_progress: OnProgress | None = None
) -> None:
    """Train on public text first, unless that is already behind us.

    Nothing of it is secret: the seed is fixed, so the same start is found in the cache the next
    time. The folder keeps a copy, to be scored beside what private text adds to it.
    """
    start = ctx.run.pretrain
    if start is None:
        return
    _charge(start, ledger)
    public = public_corpus(start.corpus, ctx.run.data, start.unit, start.style)
    # Nobody is protected here, so a long text may be cut into several.
    task = NextWord(long="split") if ctx.run.task == "next-word" else ctx.task
    examples = task.encode(public, ctx.tokenizer, context=ctx.run.context)
    loop = _loop(ctx, start, prepare(examples, public, [], None), folder, ledger)
    if loop.behind():
        return
    # After an earlier run's weights this is a start on public text, and no public start.
    continues = ctx.run.model.carry_ledger
    kept = None if continues else _kept(ctx.model, examples, start)
    with _one_at_a_time(kept):
        if kept is None or not kept.exists() or not load_weights(ctx.model, kept):
            loop.resume()
            loop.run(on_progress)
            loop.finish()
            save_weights(ctx.model, folder / NAME, private=continues)
            if kept is not None:
                _keep(folder / NAME, kept)
        else:
            save_weights(ctx.model, folder / NAME, private=continues)


def _charge(start: PublicStart, ledger: Ledger) -> None:
    """Say in the ledger which public corpora are read, once."""
    cut = ", cut into sentences" if start.unit == "sentence" else ""
    cut += ", written as treebanks are" if start.style == "treebank" else ""
    for name in each(start.corpus):
        event = Public(what=f"training on the public corpus {shown_name(name)}{cut}")
        if event not in ledger.releases:
            ledger.charge(event, phase="pretrain")


def _loop(
    ctx: RunContext, start: PublicStart, data: TrainingData, folder: Path, ledger: Ledger
) -> Loop:
    randomness = RandomSource(start.seed)
    method = PlainStep(
        ctx.model, ctx.task.losses, data, randomness, None, batch=start.batch, what="public"
    )
    return Loop(
        ctx.model, method, make_optimizer(ctx.model, start.optimizer), start.optimizer,
        start.steps, randomness, phase="pretrain", folder=folder, ledger=ledger,
        checkpoint_every=50,
    )  # fmt: skip


def load_public_start(ctx: RunContext, folder: Path) -> nn.Module | None:
    """The model before any private text was read; None where it began, or its head, at random."""
    kept = (folder / NAME).exists()
    begun = ctx.run.model.kind in ("folder", "states") or ctx.run.model.public_frequencies
    if not begun and not kept:
        return None
    if isinstance(ctx.model, StateAdapterForCausalLM) and not ctx.run.model.carry_ledger:
        model: nn.Module = ctx.model.untouched()
    else:
        model = make_model(ctx.run, ctx.task, ctx.tokenizer)
    if kept:
        load_weights(model, folder / NAME)
    return model if kept or not getattr(model, "new_head", False) else None


def _kept(model: nn.Module, examples: Examples, start: PublicStart) -> Path | None:
    """Where the weights lie if this start was made before: named by all that decides them.

    Frozen weights decide it too: adapters that learnt above another base are another start.
    """
    root = cache_folder()
    if root is None:
        return None
    sha = hashlib.sha256(start.model_dump_json(exclude={"corpus"}).encode())
    sha.update(f"{version('torch')} dropout by record".encode())
    sha.update(
        repr(getattr(model, "config", None)).encode() + repr(sorted(trainable(model))).encode()
    )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        sha.update(f"{name} {weights.digest_of(tensor)}".encode())
    labels = [] if examples.labels is None else examples.labels
    for array in (*examples.ids, *(labels if isinstance(labels, list) else [labels])):
        sha.update(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
    return root / "public-starts" / f"{sha.hexdigest()[:32]}.safetensors"


def _one_at_a_time(kept: Path | None) -> AbstractContextManager[object]:
    """Runs that begin alike at the same moment wait for the first instead of doing it twice."""
    if kept is None:
        return nullcontext()
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(str(kept) + ".lock").acquire()
    except OSError:
        return nullcontext()


def _keep(made: Path, kept: Path) -> None:
    """Copy into the cache; if there is no room for it, the next run trains again."""
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=kept.parent, delete=False) as draft:
            draft.write(made.read_bytes())
        os.replace(draft.name, kept)
    except OSError:
        return
