"""`tacit owners`: who is protected, who shares what, what caps would keep."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from tacit.cli.common import (
    bar,
    named_corpus,
    names_corpus,
    out,
    print_bars,
    print_json,
    say,
    simple_table,
    whole_numbers,
)
from tacit.cli.options import AsJson, Kinds, Overwrite, Seed
from tacit.errors import UsageError
from tacit.files import refuse_overwrite, whole_files

if TYPE_CHECKING:
    from tacit.owners import Owners


_Mentions = Annotated[Path, typer.Option(help="Mentions file that `tacit detect` wrote.")]
_Entities = Annotated[
    Path | None,
    typer.Option(help="Entity table, for names; the one beside the mentions if not given."),
]
_Caps = Annotated[str, typer.Option(help="Caps on users per entity to preview.")]
_RecordsPerUser = Annotated[int | None, typer.Option(help="Cap on a user's records.")]
_RecordsPerUserEntity = Annotated[
    int | None, typer.Option(help="Cap on a user's records that name one entity.")
]
_Plot = Annotated[Path | None, typer.Option(help="Picture to write: .png, .svg, .html.")]
_To = Annotated[
    Path | None, typer.Option("-o", "--out", help="Owner graph to write, for `tacit plan`.")
]


@names_corpus
def owners(
    corpus: dict[str, Any],
    mentions: _Mentions,
    entities: _Entities = None,
    kinds: Kinds = "",
    caps: _Caps = "1,2,4,8,16,32",
    records_per_user: _RecordsPerUser = None,
    records_per_user_entity: _RecordsPerUserEntity = None,
    plot: _Plot = None,
    save: _To = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    overwrite: Overwrite = False,
) -> None:
    """Show the owner graph: degrees, the entities that most users share, what each cap keeps.

    Where a corpus has splits, the graph is that of its training split, as `tacit train` will build
    it; another one by `--split`, all of them by `--split all`.

    Example: `tacit owners mail.jsonl --mentions mentions.jsonl --plot degrees.png -o owners.json`
    """
    from tacit.owners import describe
    from tacit.owners.bounding import preview

    files = _new_files(plot, save, overwrite)
    graph = _graph(corpus, mentions, kinds.split(",") if kinds else None)
    rows = preview(
        graph, whole_numbers(caps, "--caps"), records_per_user=records_per_user,
        records_per_user_entity=records_per_user_entity, seed=seed,
    )  # fmt: skip
    names = _names(entities, mentions)
    summary = describe(graph) | {"caps": [asdict(row) for row in rows]}
    for entity in summary["most_shared"]:
        entity["name"] = names.get(entity["entity"])
    with whole_files(*files.values()) as drafts:
        for what, draft in zip(files, drafts, strict=True):
            if what == "picture":
                _draw(graph, rows, names, draft)
            else:
                graph.save(draft)
    if as_json:
        print_json(summary)
    else:
        _print(summary)
    for what, file in files.items():
        say(f"{what}: {file}")


def _new_files(plot: Path | None, save: Path | None, overwrite: bool) -> dict[str, Path]:
    """The files that will be written; they must have names of their own, and be new."""
    if plot is not None and plot == save:
        raise UsageError(f"--plot and --out are both {plot}; give two names.")
    files = {
        what: file for what, file in (("picture", plot), ("owner graph", save)) if file is not None
    }
    refuse_overwrite(*files.values(), overwrite=overwrite)
    if plot:
        from tacit.reports.plots import format_of

        format_of(plot)
    return files


def _graph(corpus: dict[str, Any], mentions: Path, kinds: list[str] | None) -> "Owners":
    """The graph of the training split, or of the split that was asked for."""
    from tacit.corpus.splitting import training_part
    from tacit.detection.mentions import read_mentions
    from tacit.owners.graph import graph_of
    from tacit.planning.pipeline import provenance_beside

    split = corpus.pop("split")
    whole = named_corpus(**corpus, split="all")
    part = training_part(whole) if split is None else whole
    part = part if split in (None, "all") else part.only(split)
    found = read_mentions(mentions, whole)
    return graph_of(part, found, provenance_beside(mentions, whole), kinds)


def _names(given: Path | None, mentions: Path) -> dict[str, str]:
    """The entities' names, where somebody keeps them; the graph does without."""
    from tacit.detection.mentions import read_entities

    table = given or mentions.with_name(mentions.stem + ".entities.jsonl")
    return {e.id: e.name for e in read_entities(table)} if given or table.exists() else {}


def _draw(graph: Any, rows: Any, names: dict[str, str], picture: Path) -> None:
    from tacit.reports.plots import degree_figure, save

    save(degree_figure(graph, rows, names=names), picture)


_MANY_USERS, _MANY_SHARE = 10, 0.05


def _print_perhaps_public(summary: dict[str, Any]) -> None:
    """Names that very many users share: footers, lists, the firm itself; the owner decides."""
    least = max(_MANY_USERS, _MANY_SHARE * summary["users"])
    many = [e for e in summary["most_shared"] if e["users"] >= least][:10]
    if not many:
        return
    out.print("\n[bold]is this public?[/bold]")
    for e in many:
        out.print(
            f"{escape(e['name'] or e['entity'])} ({e['kind']}) stands in {e['records']:,} records "
            f"of {e['users']:,} users"
        )
    named = [e["name"] for e in many if e["name"]]
    if named:
        out.print(
            "What may be shown to anybody goes into the plan of `protect: users+names`, and is "
            "then not protected:"
        )
        listed = json.dumps(named, ensure_ascii=False, allow_nan=False)
        out.print(escape(f"public_entities: {listed}"), soft_wrap=True)


def _print(summary: dict[str, Any]) -> None:
    out.print(
        f"{summary['records']:,} records of {summary['users']:,} users, "
        f"{summary['sensitive_records']:,} of them naming one or more of "
        f"{summary['entities']:,} entities; {summary['shared_entities']:,} entities are shared by "
        "several users"
    )
    for title, what in (
        ("records_per_user", "records per user (users)"),
        ("users_per_entity", "users per entity (entities)"),
    ):
        out.print(f"\n[bold]{what}[/bold]")
        print_bars(summary[title]["histogram"])
    out.print("\n[bold]shared by most users[/bold]")
    table = simple_table("entity", "kind", "users", "records")
    for entity in summary["most_shared"][:10]:
        name, counts = entity["name"] or entity["entity"], (entity["users"], entity["records"])
        table.add_row(escape(name), entity["kind"], *(f"{count:,}" for count in counts))
    out.print(table)
    _print_perhaps_public(summary)
    out.print("\n[bold]what a cap on users per entity keeps[/bold]")
    table = simple_table("cap", "records", "naming an entity", "entities", "users", "")
    table.columns[5].justify = "left"
    shown = ("users_per_entity", "records", "sensitive_records", "entities", "users")
    for row in summary["caps"]:
        kept = bar(row["records"] / summary["records"], 24)
        table.add_row(*(f"{row[name]:,}" for name in shown), kept)
    out.print(table)
    say("\nThese are exact counts over private text: keep them inside.", style="dim")
