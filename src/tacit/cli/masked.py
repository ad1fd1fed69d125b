"""`tacit pretrain` and `tacit guess`: masked words under sanitized text, to learn and to attack."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tacit.cli.common import out, print_json, progress, reads_corpus, say, simple_table
from tacit.cli.options import SENSITIVE_SHARE, AsJson, Sanitizing, sanitizes
from tacit.corpus import Corpus
from tacit.errors import UsageError

_Encoder = Annotated[
    str, typer.Option(help="Folder of a BERT-like encoder, or `all-minilm-l6-v2`.")
]
_Layers = Annotated[
    int | None, typer.Option(min=1, help="Only the first so many layers of the encoder.")
]
_Context = Annotated[int, typer.Option(min=8, help="Longest text, in pieces.")]


@reads_corpus
@sanitizes(SENSITIVE_SHARE)
def pretrain(
    corpus: Corpus,
    encoder: _Encoder,
    to: Annotated[Path, typer.Option("-o", "--out", help="Folder for the trained encoder.")],
    sanitizing: Sanitizing,
    steps: Annotated[int, typer.Option(min=1, help="Steps.")] = 500,
    batch: Annotated[int, typer.Option(min=1, help="Texts in a step.")] = 32,
    rate: Annotated[float, typer.Option(help="Learning rate.")] = 5e-4,
    layers: _Layers = None,
    context: _Context = 64,
    seed: Annotated[int, typer.Option(min=0, help="Seed.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Teach an encoder to read sanitized text: guess masked originals in *public* sanitized text.

    The folder is a start for `tacit train` (model: {kind: folder, folder: ...}). The text must be
    public: no privacy is accounted for.

    Example: `tacit pretrain public.txt --encoder all-minilm-l6-v2 --sanitize santext
    --epsilon-per-distance 14 -o aware`
    """
    from tacit.training.tasks.masking import Pretraining
    from tacit.training.tasks.masking import pretrain as train

    if to.exists():
        raise UsageError(f"{to} exists; give a new folder.")
    texts = corpus.column("text").to_pylist()
    how = Pretraining(
        steps, batch, rate, layers=layers, context=context, seed=seed,
        held_out=min(200, max(1, len(texts) // 10)),
    )  # fmt: skip
    work = sanitizing.sanitizer(encoder, seed)
    with progress("Training", steps) as advance:
        scores = train(encoder, texts, to, how, sanitizer=work, on_progress=lambda _: advance(1))
    if as_json:
        print_json({"folder": str(to), **scores})
        return
    out.print(
        f"Masked originals guessed on held-out text: {scores['accuracy']:.1%}, perplexity "
        f"{scores['perplexity']:.1f}"
    )
    say(f"encoder: {to}")


_Model = Annotated[
    Path, typer.Option(help="Folder of a masked-word model (`tacit pretrain` makes one).")
]


@reads_corpus
@sanitizes(SENSITIVE_SHARE, method="santext")
def guess(
    corpus: Corpus,
    model: _Model,
    sanitizing: Sanitizing,
    texts: Annotated[int, typer.Option(min=1, help="How many texts to attack.")] = 100,
    context: _Context = 64,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sanitizer.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Attack sanitized text: mask each word in turn and let a model guess the original.

    The defence rate is the share of words it misses, beside the same for unsanitized text. An
    attacker who recovers less than a quarter of unsanitized text is marked as too weak.

    Example: `tacit guess mail.jsonl --model attacker --epsilon-per-distance 14`
    """
    from tacit.sanitization import as_it_stands
    from tacit.training.models.networks import load_model
    from tacit.training.models.tokens import load_tokenizer
    from tacit.training.tasks.mask_inference import guess_masked, verdict
    from tacit.training.tasks.masking import align

    work = sanitizing.sanitizer(str(model), seed)
    same = as_it_stands(work.embedding)
    network, tokenizer = load_model(model, "masked-word"), load_tokenizer(model)
    chosen = corpus.column("text").slice(0, texts).to_pylist()
    found = {}
    with progress("Guessing", None) as advance:
        for name, one in (("unsanitized", same), ("sanitized", work)):
            aligned = align(chosen, tokenizer, one)
            found[name] = guess_masked(
                network, tokenizer, aligned, context=context, progress=advance
            )
    _print_guesses(found, verdict(found["unsanitized"]), as_json)


def _print_guesses(found: dict[str, Any], said: str, as_json: bool) -> None:
    if as_json:
        rows: dict[str, Any] = {
            name: {"defence_rate": g.defence_rate, "error": g.error, "tokens": g.tokens}
            for name, g in found.items()
        }
        print_json({**rows, "verdict": said})
        return
    table = simple_table("text", "words", "defence rate", "standard error")
    for name, g in found.items():
        table.add_row(name, f"{g.tokens:,}", f"{g.defence_rate:.1%}", f"{g.error:.1%}")
    out.print(table)
    out.print(said)
