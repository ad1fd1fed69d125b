"""Making public starts: a model, a tokenizer and a card from public text alone, kept by name.

A start is a folder in Hugging Face layout, with `start.json`, which says what it read, and
`pieces.npz`, the hashes by which that text is compared with private text.
"""

import os
import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated, Any

import numpy as np
import torch
import yaml
from pydantic import Field, ValidationError
from transformers import PreTrainedTokenizerBase

from tacit.corpus import Corpus
from tacit.corpus.overlap import KEPT, read_pieces, texts_of
from tacit.errors import DataError, UsageError
from tacit.files import require_file
from tacit.packaged_models import new_start, starts
from tacit.privacy.certificates.manifest import file_digest
from tacit.training.data.public_inputs import public_corpus, shown_name
from tacit.training.data.starts import PIECES, START, WEIGHTS, Start, read_start
from tacit.training.data.training_data import prepare
from tacit.training.dp.random_source import RandomSource
from tacit.training.methods.plain import PlainStep
from tacit.training.models import networks, tokens, word_vectors
from tacit.training.models.optimizers import make_optimizer
from tacit.training.models.shared import load_shared
from tacit.training.models.weights import save_model
from tacit.training.phases.loop import Loop, OnProgress
from tacit.training.settings import (
    ModelSettings,
    OptimizerSettings,
    PublicStart,
    TokenizerSettings,
    each,
)
from tacit.training.tasks.tasks import NextWord

LICENCES = {
    "wikitext2": "CC BY-SA 3.0",
    "qnli": "CC BY-SA 4.0",
    "cuad": "CC BY 4.0",
    "generated": "Apache-2.0",
}
"""Of corpora that are known by name; of any other text, whoever builds a start says it."""

_HELD_OUT = 50
"""One text of so many is read by nobody, and scored."""


class StartSettings(PublicStart):
    """A public start: what it reads, and the model for next words that reads it."""

    licence: Annotated[str | None, Field(description="Of the text; known for some corpora.")] = None
    tokenizer: TokenizerSettings = TokenizerSettings(size=6000)
    model: ModelSettings = ModelSettings(
        config={"embedding_size": 128, "hidden_size": 256, "layers": 1, "projection": True},
        public_frequencies=True,
    )
    context: Annotated[int, Field(ge=2, description="Longest stretch of text, in tokens.")] = 128
    steps: Annotated[int, Field(ge=1)] = 2000
    optimizer: OptimizerSettings = OptimizerSettings(
        name="adamw", learning_rate=3e-3, schedule="cosine", warmup=50
    )


def start_settings(path: Path | None, **given: Any) -> StartSettings:
    """The settings of a file, with those over it that are given."""
    fields: Any = {}
    if path is not None:
        try:
            fields = yaml.safe_load(require_file(path).read_text(encoding="utf-8")) or {}
        except (yaml.YAMLError, UnicodeDecodeError):
            fields = None
    if not isinstance(fields, dict):
        raise DataError(f"{path} does not hold settings of a start: `name: value` lines.")
    try:
        settings = StartSettings(**fields | {k: v for k, v in given.items() if v is not None})
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError(f"A start's {place} is not accepted: {first['msg']}.") from None
    if settings.model.kind == "folder" or settings.tokenizer.kind == "folder":
        raise UsageError("A start is a new model with a tokenizer of its own; give no folder.")
    return settings


def build(
    name: str,
    settings: StartSettings,
    data: str | None = None,
    *,
    on_progress: OnProgress | None = None,
) -> Path:
    """Train a start on public text and keep it in the cache under a name; gives its folder.

    The same settings and text give the same start. One that is there already is replaced.
    """
    folder = new_start(name)
    licence = _licence(settings)
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(mkdtemp(prefix=".making-", dir=folder.parent))
    try:
        make(draft, settings, licence, data, on_progress=on_progress)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def make(
    folder: Path,
    settings: StartSettings,
    licence: str,
    data: str | None,
    *,
    dtype: torch.dtype = torch.float32,
    hashes: int = KEPT,
    on_progress: OnProgress | None = None,
) -> Start:
    """Train a start into a folder; weights may be written in half precision."""
    public = public_corpus(settings.corpus, data, settings.unit, settings.style)
    numbers = np.arange(len(public))
    held = numbers % _HELD_OUT == _HELD_OUT - 1
    if not held.any():
        raise DataError(f"{public.name} has {len(public)} texts; a start needs {_HELD_OUT}.")
    train = public.take(numbers[~held])
    tokenizer = _tokenizer(settings.tokenizer, train)
    model, seen = _trained(settings, train, tokenizer, data, on_progress)
    save_model(model.to(dtype), tokenizer, folder)
    read_pieces(
        text for name in each(settings.corpus) for text in texts_of(public_corpus(name, data))
    ).save(folder / PIECES, hashes)
    start = Start(
        corpus=tuple(shown_name(name) for name in each(settings.corpus)),
        unit=settings.unit,
        licence=licence,
        text=read_pieces(public).digest,
        tokens=seen,
        weights=sum(p.numel() for p in model.parameters()),
        context=settings.context,
        steps=settings.steps,
        scores=score(folder, public.take(numbers[held]), settings.context),
        files={name: file_digest(folder / name) for name in (WEIGHTS, PIECES)},
    )
    (folder / START).write_text(start.model_dump_json(indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(card(start), encoding="utf-8")
    return start


def _licence(settings: StartSettings) -> str:
    if settings.licence is not None:
        return settings.licence
    names = each(settings.corpus)
    for name in names:
        if name not in LICENCES:
            raise UsageError(
                f"The licence of {shown_name(name)} is not known here; give --licence."
            )
    return "; ".join(f"{name} {LICENCES[name]}" for name in names)


def _tokenizer(settings: TokenizerSettings, public: Corpus) -> PreTrainedTokenizerBase:
    if settings.kind == "words":
        return tokens.word_vocabulary(
            public,
            size=None if settings.min_count else settings.size,
            min_count=settings.min_count,
            punctuation=settings.punctuation,
            digits=settings.digits,
        )[0]
    return tokens.byte_level_bpe(texts_of(public), settings.size)


def _trained(
    settings: StartSettings,
    public: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    data: str | None,
    on_progress: OnProgress | None,
) -> tuple[Any, int]:
    """The model after its steps, and how many tokens it had to read."""
    randomness = RandomSource(settings.seed)
    seed = randomness.torch_seed("init", 0)
    model: Any = networks.make_model(
        settings.model, "next-word", tokenizer=tokenizer, labels=None, context=settings.context,
        seed=seed,
    )  # fmt: skip
    if settings.model.public_frequencies:
        networks.begin_with_frequencies(model, tokens.frequencies(tokenizer, public))
    if settings.model.embeddings is not None:
        vectors = word_vectors.open_vectors(settings.model.embeddings, data)
        word_vectors.begin_with_vectors(model, tokenizer, vectors, seed)
    task = NextWord(long="split")
    examples = task.encode(public, tokenizer, context=settings.context)
    method = PlainStep(
        model, task.losses, prepare(examples, public, [], None), randomness, None,
        batch=min(settings.batch, len(examples)), what="public",
    )  # fmt: skip
    made = make_optimizer(model, settings.optimizer)
    loop = Loop(model, method, made, settings.optimizer, settings.steps, randomness, phase="start")
    loop.run(on_progress)
    loop.finish()
    return model, int(examples.lengths.sum())


def score(folder: Path, public: Corpus, context: int) -> dict[str, float]:
    """How well the model of a folder does on public text: perplexity and bits per character."""
    shared = load_shared(folder)
    task = NextWord(long="split")
    found = task.score(shared.model, task.encode(public, shared.tokenizer, context=context))
    return {name: round(found[name], 4) for name in ("perplexity", "bits_per_character")}


def fits(sample: Corpus) -> dict[str, dict[str, float]]:
    """How well each start does on a sample that is declared public, best first.

    Bits per character compare starts whose tokens differ. The sample must be public: which start
    fits best is a fact about it, and whoever sees a run's settings learns it.
    """
    found = {
        name: score(folder, sample, start.context)
        for name, folder in starts().items()
        if (start := read_start(folder)) is not None
    }
    return dict(sorted(found.items(), key=lambda one: one[1]["bits_per_character"]))


def card(start: Start) -> str:
    """The model card of a start."""
    about = "".join(f"- {name}: {value:g}\n" for name, value in start.scores.items())
    return (
        f"# A public start\n\nA model of next words, {start.weights:,} weights, that read public "
        f"text only: {', '.join(start.corpus)} ({start.tokens:,} tokens, {start.steps:,} steps).\n"
        f"Licence of the text: {start.licence}. SHA-256 of the text: {start.text}.\n\n"
        f"On text that it did not read:\n\n{about}"
    )
