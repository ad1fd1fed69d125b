"""`tacit start`: models that read public text only, to begin private runs from."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from tacit.cli.common import out, print_json, progress, say, simple_table
from tacit.cli.options import AsJson, Overwrite
from tacit.errors import UsageError
from tacit.packaged_models import START_PREFIX, find_start, new_start, starts

if TYPE_CHECKING:
    from tacit.training.phases.loop import Progress

app = typer.Typer(
    help="Make, list and compare public starts: models that read public text only.\n\n"
    "Example: `tacit start build wiki --corpus wikitext2`",
    no_args_is_help=True,
    suggest_commands=False,  # click suggests them itself
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="A name that `tacit start list` shows.")]


@app.command()
def build(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the start will be called.")],
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            "--corpus", help="Public text: a file, a known corpus, or `generated`; repeatable."
        ),
    ] = None,
    settings: Annotated[
        Path | None,
        typer.Option(help="YAML: model, tokenizer, unit, context, steps, batch, optimizer, ..."),
    ] = None,
    licence: Annotated[
        str | None, typer.Option(help="Of the text; that of some corpora is known.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Folder of the known corpora.", envvar="TACIT_DATA")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Train a model on public text only and keep it under a name, with its tokenizer and a card.

    Example: `tacit start build letters --corpus letters.jsonl --licence CC0`
    """
    from tacit.training.phases import starts as making

    if new_start(name).exists() and not overwrite:
        raise UsageError(f"There is a start {name} already; add --overwrite to replace it.")
    given = tuple(corpus) if corpus else None
    how = making.start_settings(settings, corpus=given, licence=licence)
    with progress("Training", how.steps) as advance:

        def tell(_: "Progress") -> None:
            advance(1)

        folder = making.build(name, how, data, on_progress=tell)
    say(f"start: {folder}")
    say(f"Begin a run from it with model: {{kind: folder, folder: {START_PREFIX}{name}}}")


@app.command("list")
def list_(
    sample: Annotated[
        Path | None,
        typer.Option(help="Text that you declare public: says which start fits it best."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the starts on this machine, and how well they do on text that they did not read.

    With `--sample`, on that text instead: bits per character, fewest first. The sample must be
    public, since which start fits it is a fact about it.

    Examples: `tacit start list` · `tacit start list --sample letter.txt`
    """
    from tacit.training.data.starts import read_start

    known = {name: start for name, at in starts().items() if (start := read_start(at)) is not None}
    scores = {name: start.scores for name, start in known.items()}
    if sample is not None:
        from tacit.corpus.reading import read
        from tacit.training.phases.starts import fits

        scores = fits(read(sample))
    if as_json:
        print_json({name: known[name].model_dump() | {"scores": scores[name]} for name in scores})
        return
    table = simple_table("start", "bits per character", "perplexity", "weights", "read")
    for name, found in scores.items():
        start = known[name]
        table.add_row(
            START_PREFIX + name, f"{found['bits_per_character']:.3f}", f"{found['perplexity']:.1f}",
            f"{start.weights:,}", escape(", ".join(start.corpus)),
        )  # fmt: skip
    out.print(table)
    if sample is not None and scores:
        say(f"{START_PREFIX}{next(iter(scores))} fits the sample best.")


@app.command()
def show(name: Name) -> None:
    """Print the card of a start: what it read, under which licence, how well it does, its digest.

    Example: `tacit start show english`
    """
    from tacit.training.data.starts import WEIGHTS, read_start
    from tacit.training.phases.starts import card

    name = name.removeprefix(START_PREFIX)
    folder = find_start(name)
    start = read_start(folder)
    assert start is not None
    typer.echo(card(start))
    typer.echo(f"SHA-256 of the weights: {start.files[WEIGHTS]}\nFolder: {folder}\n")
    typer.echo(f"model: {{kind: folder, folder: {START_PREFIX}{name}}}")
