"""Training on masked text without noise; what sensitive tokens change is clipped and noised.

In every step the gradient of a batch of masked texts is added, as it is, to a noisy sum over a
sample of its own: for each record drawn, the gradient of its text as written minus that of its
masked text, clipped. Together they are the gradient of the text as written, and only what depends
on sensitive tokens is clipped and noised.

Guarantee: for neighbours that replace the sensitive tokens of one record, with the same marks and
the same plain tokens; see docs/explanations/guarantees.md, section 8.1.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from tacit.planning.plan import Plan
from tacit.training.data.residuals import SIGN, Pairs, Redacted
from tacit.training.data.training_data import TrainingData, batches
from tacit.training.dp.gradients import BoundedSum, ClippedSums
from tacit.training.dp.random_source import RandomSource
from tacit.training.dp.sampling import Drawn
from tacit.training.methods.dp_sgd import PlannedSums
from tacit.training.methods.independence import Totals, UnitCheck
from tacit.training.methods.method import Method, MethodInputs, StepStats
from tacit.training.methods.noisy_sums import LossMeter, NoisySums
from tacit.training.methods.plain import PlainStep
from tacit.training.methods.redact_then_private import MaskedPhase
from tacit.training.models.weights import trained_rows
from tacit.training.settings import Run


class ResidualSums(NoisySums[Drawn]):
    """Noisy sums of residuals, to which the gradient of a batch of masked texts is added."""

    def beside(self, plain: PlainStep, weight: float, rows: dict[str, Tensor]) -> None:
        """Take steps of `plain`, too; of some parameters only these rows are trained."""
        self._plain, self._weight, self._rows = plain, weight, rows

    def direction(
        self, step: int, released: dict[str, Tensor], stats: StepStats
    ) -> tuple[dict[str, Tensor], StepStats]:
        """The release plus a gradient that reads masked text and earlier releases alone."""
        gradient, seen = self._plain.gradient(step)
        made = dict(released)
        for name, tensor in gradient.items():
            own = tensor[self._rows[name]] if name in self._rows else tensor
            made[name] = released[name] + self._weight * own
        records = stats.records + seen.records
        left_out = stats.not_finite + seen.not_finite
        return made, replace(stats, loss=seen.loss, records=records, not_finite=left_out)


class ResidualSettings(MaskedPhase):
    """Training on masked text before the private steps, and batches of it in each of them."""

    masked_weight: Annotated[
        float,
        Field(
            gt=0,
            description="By what the gradient of masked text is multiplied where it is added to "
            "what sensitive tokens change; no part of the promise.",
        ),
    ] = 1.0


class ResidualTokens(PlannedSums[ResidualSettings]):
    """*Guarantee*: for neighbours that replace the sensitive tokens of one record."""

    name = "residual-tokens"
    title = "Masked text as it is; what marked words change, with noise"
    summary = (
        "text whose sensitive tokens are masked as it is, and what these tokens change with "
        "clipping and noise; the plan protects the tokens that a policy marks"
    )
    protects = ("tokens",)
    plan_fields = {"protect": "tokens", "mechanism": "residual-tokens"}  # noqa: RUF012
    settings = ResidualSettings
    tasks = ("next-word", "classification", "regression")
    masked_phase = True
    reads_masked = True

    def problems(self, run: Run, plan: Plan | None) -> Iterator[str]:
        """Sensitive tokens must be known."""
        yield from run.policy_problems()

    def step(self, inputs: MethodInputs) -> Method:
        """Noisy sums of residuals beside plain steps on masked text."""
        meter, event = LossMeter(inputs.model, inputs.losses), self.event(inputs)
        assert event is not None
        sums = ResidualSums(
            self.sampler(inputs), event, self.totals(inputs, meter),
            self.denominator(inputs), meter, inputs.need_ledger(), inputs.randomness,
            check=self.unit_check(inputs),
        )  # fmt: skip
        rows, seed = inputs.training_data.rows, inputs.randomness.seed
        # The batch is seen, the sample is hidden: with a fixed seed, too, coins of their own.
        coins = RandomSource(None if seed is None else seed + 2)
        masked = TrainingData(_redacted(inputs).examples, rows, (rows,), None, None)
        options = self.options(inputs.run)
        plain = PlainStep(
            inputs.model, inputs.losses, masked, coins, None, batch=options.batch,
            what="masked text",
        )  # fmt: skip
        sums.beside(plain, options.masked_weight, trained_rows(inputs.model))
        return sums

    def totals(self, inputs: MethodInputs, meter: LossMeter) -> Totals:
        """Sums over drawn records of what their sensitive tokens change, clipped."""
        plan, training_data = inputs.need_plan(), inputs.training_data
        sums, redacted = ClippedSums(inputs.model), _redacted(inputs)

        def signed(batch: dict[str, Tensor]) -> Tensor:
            values = meter(batch)
            return values * batch[SIGN].to(values)

        def total(_: int, drawn: Drawn) -> BoundedSum:
            pairs = Pairs(training_data.examples, redacted, training_data.rows[drawn])
            count = len(pairs.units)
            # The texts of a record stand side by side, so all records may be sorted.
            parts = batches(pairs, pairs.units, inputs.run.token_budget, together=max(1, count))
            return sums.texts_of_records(signed, parts, clip_norm=plan.clip_norm, units=count)

        return total

    def unit_check(self, inputs: MethodInputs) -> UnitCheck:
        """Residuals of records that have one, alone and among others."""
        rows = inputs.training_data.rows
        return self.check_of(inputs, of_records=True, rows=rows[_redacted(inputs).differs[rows]])

    def facts(self, run: Run) -> dict[str, Any]:
        """What each part does."""
        return {
            "phases": "redacted: without noise on text whose sensitive tokens are masked, which "
            "says nothing about them and protects nothing else; train: on batches of the same "
            "masked text as they are, and with clipping and noise on what sensitive tokens change "
            "in records of a sample that nobody sees, which protects the sensitive tokens"
        }


def _redacted(inputs: MethodInputs) -> Redacted:
    found = inputs.training_data.redacted
    if found is None:
        raise TypeError("method residual-tokens was given no masked text")
    return found


RESIDUAL_TOKENS = ResidualTokens()
