"""`tacit presets`: the runs that come with the package."""

from pathlib import Path
from typing import Annotated

import typer

from tacit import presets
from tacit.cli.common import out, print_json, say
from tacit.cli.options import AsJson, Overwrite
from tacit.files import refuse_overwrite, whole_file

app = typer.Typer()
Name = Annotated[str, typer.Argument(metavar="NAME", help="A name that `tacit presets` lists.")]


@app.callback(invoke_without_command=True)
def list_presets(context: typer.Context, as_json: AsJson = False) -> None:
    """List the runs that come with the package; show or copy one.

    `tacit train preset:NAME` trains one as it is, and `--set` changes a setting of it.

    Examples: `tacit presets` · `tacit presets show own-data-lstm` ·
    `tacit presets copy own-data-lstm -o run.yml`
    """
    if context.invoked_subcommand is not None:
        return
    described = {name: presets.description(name) for name in presets.names()}
    if as_json:
        print_json(described)
        return
    width = max(map(len, described))
    for name, says in described.items():
        out.print(f"{name:{width}}  {says}", markup=False, soft_wrap=True)


@app.command()
def show(name: Name) -> None:
    """Print a preset as one YAML file, with the settings of its base.

    Example: `tacit presets show conll2003-lstm-users`
    """
    typer.echo(_whole(name), nl=False)


@app.command()
def copy(
    name: Name,
    to: Annotated[Path, typer.Option("-o", "--out", help="File to write.")],
    overwrite: Overwrite = False,
) -> None:
    """Write a preset to a file of yours, to be edited.

    Example: `tacit presets copy own-data-lstm -o run.yml`
    """
    text = _whole(name)
    refuse_overwrite(to, overwrite=overwrite)
    with whole_file(to) as draft:
        draft.write_text(text, encoding="utf-8")
    say(f"run: {to}")


def _whole(name: str) -> str:
    import yaml

    from tacit.training.settings import run_fields

    fields = run_fields(Path(presets.PREFIX + name))
    text = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)
    return f"# {name}: {presets.description(name)}\n{text}"
