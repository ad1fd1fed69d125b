"""What `tacit plan` and `tacit train` share: a run in a few words, and what a recipe chose."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit import presets
from tacit.cli.common import err, out, simple_table
from tacit.cli.options import Options, gathers
from tacit.privacy.rounding import up

if TYPE_CHECKING:
    from tacit.planning.forecasts import Forecast
    from tacit.planning.recipes import Resolved

_FEW_WORDS: Options = {
    "recipe": (Annotated[str | None, typer.Option(
        help="auto: choose what is not given from the task, the plan and its numbers.",
    )], None),
    "task": (Annotated[str | None, typer.Option(help="classification or next-word.")], None),
    "labels": (Annotated[str | None, typer.Option(
        help="Classes, declared as public: work,home or a file.",
    )], None),
    "protect": (Annotated[str | None, typer.Option(
        help="users, entities, users+entities, names or users+names.",
    )], None),
    "users": (Annotated[int | None, typer.Option(
        help="About how many users there are, as you knew before.",
    )], None),
    "epsilon": (Annotated[float | None, typer.Option(help="The price of the promise.")], None),
}  # fmt: skip


def few_words(**options: Any) -> dict[str, Any]:
    """The options above as settings of a run."""
    given = {name: value for name, value in options.items() if value is not None}
    for name in ("protect", "users", "epsilon"):
        if name in given:
            given[f"plan.{name}"] = given.pop(name)
    labels = given.get("labels")
    # Many names are a longer path than a disk can have, so a comma decides before it is asked.
    if labels is not None and ("," in labels or not Path(labels).is_file()):
        given["labels"] = [one.strip() for one in labels.split(",") if one.strip()]
    return given


asks_in_few_words = gathers("asked", _FEW_WORDS, few_words)
"""Give a command that takes `asked: dict` these options, as settings of a run."""


def names_run_or_corpus(file: Path) -> bool:
    """Whether an argument of `tacit plan` is more than a plan: a preset, a run's file, a corpus."""
    from tacit.planning.plan import plan_file_fields
    from tacit.python.asking import names_run

    if not names_run(file) or str(file).startswith(presets.PREFIX):
        return True
    return not {"corpus", "recipe", "base"}.isdisjoint(plan_file_fields(file))


def print_choices(chosen: "Resolved") -> None:
    """What the recipe chose and why, on standard error."""
    if not chosen.choices:
        return
    table = simple_table("recipe: auto", "", "why")
    for column in table.columns:
        column.justify = "left"
    for one in chosen.choices:
        value = f"{one.value:g}" if isinstance(one.value, float) else str(one.value)
        table.add_row(one.setting, value, "yours" if one.own else one.why)
    err.print(table)


def print_forecast(expected: "Forecast") -> None:
    """What to expect for several epsilons, and in a sentence."""
    from tacit.planning.forecasts import MEASURES

    figure = "{:.3f}" if expected.task == "classification" else "{:.0%}"
    table = simple_table("epsilon", "likely", "eight of ten between")
    for row in expected.rows:
        low, likely, high = (figure.format(v) for v in (row.low, row.likely, row.high))
        table.add_row(up(row.epsilon), likely, f"{low} and {high}")
    out.print(f"[bold]What to expect[/bold]: {MEASURES[expected.task]}", soft_wrap=True)
    out.print(table)
    out.print(expected.sentence, soft_wrap=True)
    out.print(f"{expected.beside} Nothing was read for this.", soft_wrap=True)
