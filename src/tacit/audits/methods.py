"""How each method is audited: the one place where audits know methods by name.

A method that keeps a plan and whose step is a `NoisySums` is audited as any other, without a line
here: its own sampler, sums and noise on canaries that fill the bounds of its plan.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tacit.audits.auditing import Auditing
from tacit.audits.epsilon_bounds import Evidence
from tacit.audits.in_situ import Copy, CopyOfSelective, CopyOfUedp, CopyWithGuests
from tacit.audits.white_box import audit_published, audit_selective, audit_sums
from tacit.privacy.events import Unit
from tacit.training.settings import Run


@dataclass(frozen=True)
class HowToAudit:
    """How runs of a method are audited.

    `white_box` audits the step alone, given what is certified for each unit and the run's folder;
    `copy` is the run trained once more. `slow` divides the number of canaries. Where `only` is
    given, it names what a unit must hold for the method's claim to be about it.
    """

    white_box: Callable[[Auditing, Mapping[Unit, float], Path], dict[Unit, Evidence]] = audit_sums
    copy: type[Copy] = CopyWithGuests
    slow: int = 1
    only: str = ""


AUDITED: dict[str, HowToAudit] = {
    "dp-fedavg": HowToAudit(slow=4),  # every user trains by themselves
    "selective": HowToAudit(audit_selective, CopyOfSelective),
    "uedp": HowToAudit(audit_published, CopyOfUedp, only="entities"),
}


def how_to_audit(run: Run) -> HowToAudit | None:
    """How a run is audited; None where its method promises nothing."""
    return AUDITED.get(run.method, HowToAudit() if run.spec.planned else None)
