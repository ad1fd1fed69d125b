"""First on text whose sensitive tokens are masked, then DP-SGD on the whole text.

Source: Shi et al. 2022, section 6, and their "Just fine-tune twice".
"""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from tacit.planning.plan import Plan
from tacit.training.methods.dp_sgd import DpSgd
from tacit.training.settings import MethodSettings, OptimizerSettings, Run


class MaskedPhase(MethodSettings):
    """Training on masked text before the private phase."""

    steps: Annotated[int, Field(ge=1)] = 300
    batch: Annotated[int, Field(ge=1)] = 32
    optimizer: OptimizerSettings = OptimizerSettings(
        name="adamw", learning_rate=2e-3, schedule="linear"
    )


class RedactThenPrivate(DpSgd):
    """*Guarantee*: for neighbours that replace the sensitive tokens of one record."""

    name = "redact-then-private"
    title = "First on masked text, then on all of it with noise"
    summary = (
        "first on text whose sensitive tokens are masked, then on the whole text with clipping and "
        "noise; the plan protects the tokens that a policy marks"
    )
    protects = ("tokens",)
    plan_fields = {"protect": "tokens", "mechanism": "redact-then-private"}  # noqa: RUF012
    settings = MaskedPhase
    tasks = ("next-word", "masked-word", "classification", "regression")
    federated = False
    masked_phase = True

    def problems(self, run: Run, plan: Plan | None) -> Iterator[str]:
        """Sensitive tokens must be known."""
        yield from run.policy_problems()

    def facts(self, run: Run) -> dict[str, Any]:
        """What each phase does."""
        return {
            "phases": "redacted: without noise on text whose sensitive tokens are masked, which "
            "says nothing about them and protects nothing else; train: on the whole text, records "
            "clipped, summed and noised, which protects the sensitive tokens"
        }


REDACT_THEN_PRIVATE = RedactThenPrivate()
