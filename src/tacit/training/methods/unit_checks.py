"""The check of a run's units before anything is charged, whichever its method."""

from torch import nn

from tacit.planning.plan import Plan
from tacit.training.data.training_data import TrainingData
from tacit.training.methods.dp_fedavg import fedavg_check
from tacit.training.methods.dp_sgd import private_check
from tacit.training.methods.independence import UnitCheck
from tacit.training.methods.noisy_sums import Losses
from tacit.training.methods.selective import selective_check
from tacit.training.methods.uedp import uedp_check
from tacit.training.settings import LocalSettings, Run, UedpSettings


def require_independent_units(
    run: Run, model: nn.Module, losses: Losses, training_data: TrainingData, plan: Plan | None
) -> None:
    """Refuse a model in which one unit's vector depends on the others; see `UnitCheck`.

    Without a promise nothing is asked.
    """
    check = _check(run, model, losses, training_data, plan)
    if check is not None:
        check.need(first=True)


def _check(
    run: Run, model: nn.Module, losses: Losses, training_data: TrainingData, plan: Plan | None
) -> UnitCheck | None:
    if run.method == "uedp":
        return uedp_check(
            model, losses, training_data, run.uedp or UedpSettings(), run.token_budget
        )
    if plan is None:
        return None
    if run.method == "selective":
        return selective_check(model, training_data, plan, run.token_budget)
    if run.method == "fedavg":
        return fedavg_check(model, losses, training_data, plan, run.fedavg or LocalSettings())
    return private_check(model, losses, training_data, plan, run.token_budget)
