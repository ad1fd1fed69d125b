"""The published user-entity algorithm, as printed.

Source: Lai et al. 2022, Algorithm 1, Equations 4 to 7; Lai et al. 2023 (patent) for its noise.
Guarantee: what the paper claims is not a bound. What is charged is what really happens: users
drawn by coins and clipped to `clip_norm`, each entity moving each of its holders by up to twice
that, in as many users as hold the entity that most users share.

Departs, where the text contradicts itself: entities are drawn once a step (the listing draws
them inside the loop over users); an entity's weight is applied once (lines 29 and 30 apply it
twice); the weights of entities are summed over entities (Equation 4 and its expectation; line 6
sums over sensitive records, which would scale update and noise alike).
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from tacit.errors import DataError
from tacit.owners import Owners
from tacit.planning.plan import require_sample
from tacit.privacy.accounting.claims import PublishedPrice
from tacit.privacy.events import UserClip
from tacit.privacy.ledger import Releases
from tacit.replication.published import uedp_claim, uedp_release
from tacit.training.data.training_data import Rows, TrainingData, batches, units_together
from tacit.training.dp.gradients import BoundedSum, ClippedSums
from tacit.training.dp.sampling import UserEntityDraw, UserEntitySampler
from tacit.training.methods.independence import Totals, UnitCheck
from tacit.training.methods.method import MethodInputs
from tacit.training.methods.noisy_sums import LossMeter, NoisySumMethod
from tacit.training.settings import SUM_OF_UPDATES, Cap, MethodSettings, Rate, Run
from tacit.training.tasks.examples import Batched

_WEIGHT = "record_weight"


class UedpSettings(MethodSettings):
    """The published user-entity algorithm; docs/studies/papers.md has the paper's letters."""

    estimator: Annotated[
        Literal["f_E", "f_E+"], Field(description="f_E: sensitive records only; f_E+: plain too.")
    ] = "f_E+"
    entity_rule: Annotated[
        Literal["any", "all"],
        Field(description="A record takes part if any, or all, of its entities are drawn."),
    ] = "any"
    noise: Annotated[
        Literal["lemma", "patent"],
        Field(description="Noise by the lemmas (users per step + 1) or the patent (users + 1)."),
    ] = "lemma"
    user_rate: Rate = 0.05
    entity_rate: Rate = 0.5
    plain_rate: Rate = 1.0
    noise_multiplier: Annotated[
        float, Field(ge=0, le=1e9, description="Noise over the published sensitivity.")
    ] = 2.0
    clip_norm: Annotated[float, Field(gt=0, description="Norm of a user's update.")] = 0.1
    local_learning_rate: Annotated[
        float, Field(gt=0, description="Rate by which a gradient becomes a user's update.")
    ] = 1.0
    user_weight_cap: Annotated[Cap, Field(description="Records of a user of full weight.")] = 1
    entity_weight_cap: Annotated[Cap, Field(description="Records of an entity likewise.")] = 1
    plain_weight_cap: Annotated[Cap, Field(description="Plain records in all likewise.")] = 1
    kinds: tuple[str, ...] | None = None
    entity_list: Annotated[
        str | None, Field(description="A file of entities, one a line: only these are sensitive.")
    ] = None
    delta: Annotated[float, Field(gt=0, le=0.01)] = 1e-5


@dataclass(frozen=True, eq=False)
class Weights:
    """The published weights, counted once on the owner graph.

    Legend: w_u = min(n_u / cap, 1) of a user with n_u records; w_e = min(n_e / cap, 1) of an
    entity named in n_e records; w_s = min(n_s / cap, 1) of each of the n_s plain records.
    """

    users: NDArray[np.float64]
    entities: NDArray[np.float64]
    plain: float
    plain_records: int

    @classmethod
    def count(
        cls, training_data: TrainingData, owners: Owners, settings: UedpSettings
    ) -> "Weights":
        """From the records that are trained on."""
        n_u = np.array([len(rows) for rows in training_data.rows_of_user], dtype=np.float64)
        plain = int((~_sensitive(training_data, owners)).sum())
        return cls(
            np.minimum(n_u / settings.user_weight_cap, 1.0),
            np.minimum(owners.records_per_entity / settings.entity_weight_cap, 1.0),
            min(plain / settings.plain_weight_cap, 1.0),
            plain,
        )

    def denominator(self, settings: UedpSettings) -> float:
        """Equations 4 and 6: the weight that a step has in expectation."""
        records = settings.entity_rate * float(self.entities.sum())
        if settings.estimator == "f_E+":
            records += settings.plain_rate * self.plain * self.plain_records
        return settings.user_rate * float(self.users.sum()) * records


class Uedp(NoisySumMethod[UedpSettings]):
    """Users' weighted sums over drawn entities' records (and plain ones, for f_E+), clipped.

    The local update of a record is `local_learning_rate` times its gradient, and the update is
    clipped: gradients are clipped to clip_norm / local_learning_rate, which is the same.
    """

    name = "uedp"
    title = "The user-entity algorithm as published; its claim is not proved here"
    summary = (
        "the user-entity algorithm as its paper prints it; the price that is proved stands beside"
    )
    standing = "published"
    settings = UedpSettings
    optimizer = SUM_OF_UPDATES
    needs_entities = True
    owner_graph = True
    draw_arrays = 3

    def sampler(self, inputs: MethodInputs) -> UserEntitySampler:
        """Users, entities and plain records, each with a rate of its own."""
        settings, owners = self.options(inputs.run), require_entities(inputs.training_data)
        require_sample("users", settings.user_rate, inputs.training_data.users)
        return UserEntitySampler(
            inputs.training_data.users, settings.user_rate,
            len(owners.entities), settings.entity_rate,
            len(owners), settings.plain_rate, settings.entity_rule,
        )  # fmt: skip

    def denominator(self, inputs: MethodInputs) -> float:
        """Equations 4 and 6, over the local learning rate."""
        settings, owners = self.options(inputs.run), require_entities(inputs.training_data)
        weights = Weights.count(inputs.training_data, owners, settings)
        return weights.denominator(settings) / settings.local_learning_rate

    def totals(self, inputs: MethodInputs, meter: LossMeter) -> Totals:
        """Sums over drawn users of their clipped gradients, records and users weighted."""
        settings, training_data = self.options(inputs.run), inputs.training_data
        owners = require_entities(training_data)
        weights = Weights.count(training_data, owners, settings)
        sums = ClippedSums(inputs.model)
        together = units_together(inputs.model)
        user_weight = torch.tensor(weights.users, dtype=torch.float32)

        def total(_: int, drawn: UserEntityDraw) -> BoundedSum:
            of_row = record_weights(owners, drawn, weights, settings)
            of_row = of_row[training_data.examples.record]
            units = [_used(training_data.rows_of_user[u], of_row) for u in drawn.users]
            weighing = _Weighing(training_data.examples, of_row)
            return sums.users(
                lambda batch: _weighted(meter, batch),
                batches(weighing, units, inputs.run.token_budget, together=together),
                clip_norm=settings.clip_norm / settings.local_learning_rate,
                weights=user_weight[drawn.users],
                weight_cap=float(user_weight.max()),
                units=len(units),
            )

        return total

    def unit_check(self, inputs: MethodInputs) -> UnitCheck:
        """Whether users give in a sum what they give alone, where all entities and records come."""
        settings, training_data = self.options(inputs.run), inputs.training_data
        owners = require_entities(training_data)

        def everything(users: NDArray[np.int64]) -> UserEntityDraw:
            return UserEntityDraw(
                users, np.ones(len(owners.entities), dtype=bool), np.ones(len(owners), dtype=bool)
            )

        weights = Weights.count(training_data, owners, settings)
        worth = record_weights(owners, everything(np.arange(0)), weights, settings)
        rows = _used(training_data.rows, worth[training_data.examples.record])
        return self.check_of(inputs, drawn=everything, rows=rows)

    def event(self, inputs: MethodInputs) -> UserClip:
        """What one step really releases."""
        settings = self.options(inputs.run)
        return uedp_release(**_about(inputs.training_data, settings), user_rate=settings.user_rate)

    def claim(self, inputs: MethodInputs, releases: Releases) -> PublishedPrice:
        """What the paper claims for so many steps."""
        settings, training_data = self.options(inputs.run), inputs.training_data
        owners = require_entities(training_data)
        return uedp_claim(
            **_about(training_data, settings),
            user_rate=settings.user_rate,
            estimator=settings.estimator,
            sensitive=int(_sensitive(training_data, owners).sum()),
            records=len(training_data.rows),
            steps=releases.get(self.event(inputs), 0),
            delta=settings.delta,
        )

    def facts(self, run: Run) -> dict[str, Any]:
        """The paper's letters."""
        return {
            "settings of the paper": run.options.model_dump(mode="json", exclude={"entity_list"})
        }


def require_entities(training_data: TrainingData) -> Owners:
    """The owner graph, if it names an entity."""
    owners = training_data.owners
    if owners is None or not len(owners.entities):
        raise DataError(
            "No record names an entity, so method=uedp has nothing to draw; check mentions, kinds "
            "and entity_list."
        )
    return owners


def _about(training_data: TrainingData, settings: UedpSettings) -> dict[str, Any]:
    owners = require_entities(training_data)
    return {
        "users": training_data.users,
        "users_per_step": settings.user_rate * training_data.users,
        "entity_rate": settings.entity_rate,
        "noise_multiplier": settings.noise_multiplier,
        "holders": int(owners.users_per_entity.max()),
        "entity_rule": settings.entity_rule,
        "noise": settings.noise,
    }


def record_weights(
    owners: Owners, drawn: UserEntityDraw, weights: Weights, settings: UedpSettings
) -> NDArray[np.float64]:
    """By what each record's update is multiplied in this step; 0 if it takes no part.

    A record that names several drawn entities counts once for each, as printed.
    """
    named = owners.entities_per_record
    record = np.repeat(np.arange(len(owners)), named)
    come = drawn.entities[owners.indices]
    worth = np.where(come, weights.entities[owners.indices], 0.0)
    total = np.bincount(record, worth, minlength=len(owners)).astype(np.float64)
    if settings.entity_rule == "all":
        total[np.bincount(record, come, minlength=len(owners)) < named] = 0.0
    if settings.estimator == "f_E+":
        total[(named == 0) & drawn.plain] = weights.plain
    return total


def _sensitive(training_data: TrainingData, owners: Owners) -> NDArray[np.bool_]:
    """Which of the trained records name an entity."""
    return owners.sensitive[training_data.examples.record[training_data.rows]]


def _used(rows: Rows, of_row: NDArray[np.float64]) -> Rows:
    return rows[of_row[rows] > 0]


class _Weighing:
    """Examples whose batches carry each record's weight."""

    def __init__(self, examples: Batched, of_row: NDArray[np.float64]) -> None:
        self._examples, self._of_row = examples, of_row
        self.lengths = examples.lengths

    def batch(self, rows: NDArray[Any]) -> dict[str, Tensor]:
        """These examples, and their weights."""
        weight = torch.tensor(self._of_row[rows], dtype=torch.float32)
        return self._examples.batch(rows) | {_WEIGHT: weight}


def _weighted(meter: LossMeter, batch: dict[str, Tensor]) -> Tensor:
    """Losses times weights: the gradient of a weighted loss is the weighted gradient."""
    weight = batch[_WEIGHT]
    values = meter({name: tensor for name, tensor in batch.items() if name != _WEIGHT})
    return values * weight.to(values)


UEDP = Uedp()
