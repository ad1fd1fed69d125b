"""A run in few words: the settings of a file, or of a corpus that a recipe is to be found for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit import presets
from tacit.detection import DEFAULT
from tacit.owners import Owners
from tacit.owners.graph import graph_of
from tacit.planning import pipeline
from tacit.planning.plan import Plan
from tacit.training.settings import Run, changed, run_fields


def names_run(file: Path) -> bool:
    """Whether an argument names a run's settings; else it names a corpus."""
    return str(file).startswith(presets.PREFIX) or file.suffix in (".yml", ".yaml")


def asked_fields(file: Path | None, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run's file, or of a corpus that a recipe is to be found for."""
    if file is not None and names_run(file):
        return run_fields(file, changes)
    fields = changed({"corpus": str(file or "corpus"), "recipe": "auto"}, changes)
    whom = str((fields.get("plan") or {}).get("protect"))
    if ("entities" in whom or "names" in whom) and not fields.get("mentions"):
        fields.setdefault("detect", DEFAULT)
    return fields


def model_fields(model: str | Mapping[str, Any] | None, adapter: str | None) -> dict[str, Any]:
    """The settings of a model that is named as recipes name it, and of what of it is trained."""
    fields = {"name": model} if isinstance(model, str) else dict(model or {})
    return {**fields, **({"adapter": adapter} if adapter is not None else {})}


def require_graph(
    run: Run, plan: Plan | None, *, promised: str | None, file: Path | None = None
) -> None:
    """Refuse a run whose owner graph is not the one that was planned with."""
    from tacit.corpora import open_corpus
    from tacit.corpus.splitting import training_part
    from tacit.training.data.training_data import find_mentions

    corpus = open_corpus(run.corpus, run.data)
    found = find_mentions(run, corpus)
    graph = graph_of(training_part(corpus), found.mentions, found.provenance)
    pipeline.require_same_owners(plan, graph, promised=promised, file=file)


def graph_digest(plan: Plan, owners: Owners | None) -> str | None:
    """What a plan remembers of the owner graph that it was made on."""
    if owners is None or "entities" not in plan.protect:
        return None
    return owners.of_kinds(plan.kinds).digest()
