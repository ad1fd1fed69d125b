"""Steps, sums and checks of a method without a whole run: only what the method itself reads."""

from typing import Any

from torch import nn

from tacit.planning.plan import Plan
from tacit.privacy.ledger import Ledger
from tacit.training.data.attributes import Attribute
from tacit.training.data.training_data import TrainingData
from tacit.training.dp.random_source import RandomSource
from tacit.training.methods import METHODS
from tacit.training.methods.independence import Losses, Totals, UnitCheck
from tacit.training.methods.method import MethodInputs
from tacit.training.methods.noisy_sums import LossMeter
from tacit.training.settings import MethodSettings, Run


def inputs_of(
    name: str,
    model: nn.Module,
    losses: Losses,
    training_data: TrainingData,
    plan: Plan | None = None,
    *,
    ledger: Ledger | None = None,
    randomness: RandomSource | None = None,
    options: MethodSettings | None = None,
    attribute: Attribute | None = None,
    **fields: Any,
) -> MethodInputs:
    """What a method is given; a run's other settings are not looked at."""
    own = options if options is not None else METHODS[name].settings()
    given: dict[str, Any] = {"corpus": "none", "token_budget": 64, "batch": 32} | fields
    run = Run.model_construct(method=name, options=own, task="next-word", plan={}, **given)
    return MethodInputs(
        run, model, losses, training_data, randomness or RandomSource(1), plan, ledger, attribute
    )


def make_step(name: str, *given: Any, **named: Any) -> Any:
    """The steps of a method."""
    return METHODS[name].step(inputs_of(name, *given, **named))


def totals_of(name: str, *given: Any, meter: LossMeter | None = None, **named: Any) -> Totals:
    """The sums of a method whose step is one."""
    inputs = inputs_of(name, *given, **named)
    made: Totals = METHODS[name].totals(  # type: ignore[attr-defined]
        inputs, meter or LossMeter(inputs.model, inputs.losses)
    )
    return made


def check_of(name: str, *given: Any, **named: Any) -> UnitCheck:
    """The check of a method's units."""
    check = METHODS[name].unit_check(inputs_of(name, *given, **named))
    assert check is not None
    return check
