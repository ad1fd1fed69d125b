"""`tacit.plan`: a promise before anything is read, shown in a notebook."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from tacit.files import refuse_overwrite, whole_file
from tacit.notebook import rows_html
from tacit.owners import Owners
from tacit.planning import dry_run, forecasts, pipeline, recipes
from tacit.planning.plan import Plan
from tacit.privacy.rounding import up
from tacit.python.asking import asked_fields, model_fields
from tacit.training.settings import Run


@dataclass(frozen=True)
class Planned:
    """A calibrated plan, the settings that a recipe chose for it, and what to expect of it."""

    plan: Plan
    fields: Mapping[str, Any]
    """The settings of the run, but for its corpus."""
    choices: Sequence[recipes.Choice]
    forecast: forecasts.Forecast | None
    dry: dry_run.DryRun

    @property
    def epsilon(self) -> dict[str, float]:
        """What is promised for each unit, as a price that is rounded up where it is shown."""
        return {unit: float(e) for unit, e in self.dry.as_json()["epsilon"].items()}

    def explain(self) -> str:
        """What is promised, assumed and left open, in Markdown."""
        return self.dry.explain()

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the plan as `tacit plan -o` does, for `tacit train --plan`."""
        path = Path(path)
        refuse_overwrite(path, overwrite=overwrite)
        with whole_file(path) as draft:
            draft.write_text(pipeline.plan_file(self.plan, self.dry.owners), encoding="utf-8")
        return path

    def __repr__(self) -> str:
        shown = ", ".join(f"{up(e)} for {unit}" for unit, e in self.epsilon.items())
        return f"Planned(epsilon {shown} at delta {up(self.plan.delta)})"

    def _repr_html_(self) -> str:
        """What a notebook shows: the choices, what to expect, the promise."""
        rows = [(one.setting, one.value, "yours" if one.own else one.why) for one in self.choices]
        html = rows_html("Chosen by the recipe", ("setting", "value", "why"), rows)
        if self.forecast is not None:
            expected = [(up(r.epsilon), r.likely, r.low, r.high) for r in self.forecast.rows]
            headings = ("epsilon", "likely", "from", "to")
            html += rows_html("What to expect", headings, expected, self.forecast.sentence)
        return html + str(MarkdownIt("js-default", {"html": False}).render(self.explain()))


def plan(
    *,
    protect: str,
    epsilon: float,
    users: int | None = None,
    task: str = "next-word",
    labels: Sequence[str] | None = None,
    model: str | Mapping[str, Any] | None = None,
    adapter: str | None = None,
    owners: Owners | str | Path | None = None,
    **fields: Any,
) -> Planned:
    """Find the settings and the noise that meet a promise; nothing is read but the owner graph.

    `users` is a round number that you knew before: it is public, so it is not counted from the
    text. `fields` are further fields of the plan, such as `delta`, `records` or `steps`. For what a
    recipe does not know (other tasks, other methods), give `tacit.Run` to `tacit.train` instead.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    given |= {"protect": protect, "epsilon": epsilon, "users": users}
    asked: dict[str, Any] = {f"plan.{k}": v for k, v in given.items() if v is not None}
    asked["task"] = task
    if labels is not None:
        asked["labels"] = list(labels)
    if model is not None or adapter is not None:
        asked["model"] = model_fields(model, adapter)
    chosen = recipes.resolve(asked_fields(None, asked))
    wanted = Run(**chosen.fields).made_plan()
    assert wanted is not None, "a recipe always plans"
    graph = Owners.load(Path(owners)) if isinstance(owners, str | Path) else owners
    made = dry_run.dry_run(wanted, graph if "entities" in protect else None)
    return Planned(
        made.plan, chosen.fields, chosen.choices, forecasts.forecast(chosen.fields), made
    )
