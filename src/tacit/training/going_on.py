"""Going on from the model of an earlier run, whose releases are part of the new one's price."""

from pathlib import Path

from tacit.errors import PrivacyRefused
from tacit.plan import Plan, read_plan
from tacit.privacy.ledger import Books, read_ledger
from tacit.training.settings import Run


def earlier_books(run: Run) -> Books | None:
    """What the run that this one goes on from released; None where it begins by itself.

    Whether an earlier run counts is never guessed: a folder with a ledger needs a word on it.
    """
    ledger = Path(str(run.model.folder)) / "ledger.jsonl"
    if run.model.kind != "folder" or run.model.carry_ledger is False:
        return None
    if run.model.carry_ledger is None:
        if not ledger.exists():
            return None
        raise PrivacyRefused(
            f"model.folder={run.model.folder} is the model of a run, and what that run released "
            "may be part of this one's price; say model.carry_ledger=true, or =false if all text "
            "that it read is public."
        )
    return read_ledger(ledger)


def need_same_owners(run: Run, plan: Plan) -> None:
    """Refuse to promise entities that the earlier run did not protect, or not as such."""
    path = Path(str(run.model.folder)) / "plan.yml"
    if not run.model.carry_ledger or "entities" not in plan.protect or not path.exists():
        return
    earlier = read_plan(path)
    if plan.entity_list is not None or earlier.entity_list is not None:
        raise PrivacyRefused(
            "plan.entity_list can't be promised across two runs, whose lists may differ; protect "
            "kinds, or begin from a model that has read no private text."
        )
    if earlier.kinds is not None and not (plan.kinds and set(plan.kinds) <= set(earlier.kinds)):
        raise PrivacyRefused(
            f"the earlier run protected the kinds {', '.join(earlier.kinds)} only, and what it "
            "released of others cannot be taken back; promise those, or fewer."
        )
