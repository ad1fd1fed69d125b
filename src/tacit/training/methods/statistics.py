"""One noisy sum, from which heads are fitted as often as one likes.

Each user gives class sums of features, class counts and, if wanted, second moments: one vector,
clipped, summed, released once. Ridge regression, linear discriminants or prototypes are then made
of it without any further look at the text.

A record's vector is the gradient of a loss that is linear in the layers of `Statistics`, so that
sums, bounds, federations, ranks and audits are those of DP-SGD.

Source: Wang 2018 (AdaSSP: ridge regression on noisy statistics); Mehta et al. 2023 (features of
frozen encoders). Departs: one vector, clipped whole, for each user; regularisation by the noise.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase

from tacit.errors import DataError, UsageError
from tacit.planning.plan import Plan
from tacit.training.data.public_inputs import public_corpus
from tacit.training.methods.dp_sgd import PlannedSums, user_sums
from tacit.training.methods.independence import Losses, Totals
from tacit.training.methods.method import MethodInputs
from tacit.training.methods.noisy_sums import LossMeter
from tacit.training.models.features import (
    CONSTANT,
    LENGTH,
    FeaturesConfig,
    FeaturesForSequenceClassification,
    Statistics,
    with_features,
)
from tacit.training.settings import SUM_OF_UPDATES, MethodSettings, OptimizerSettings, Run
from tacit.training.tasks.encoding import ExampleBuilder
from tacit.training.tasks.measuring import inputs as accepted_inputs
from tacit.training.tasks.tasks import Task

Matrix = NDArray[np.float64]
Head = Literal["ridge", "lda", "prototypes"]
_PUBLIC_TEXTS = 2000
"""About so many texts show the covariance of features."""
_SHARPNESS = 10.0
"""By what the shares that ridge regression predicts are multiplied: softmax of them says little."""


class StatisticsSettings(MethodSettings):
    """What is released, and which head is first made of it."""

    head: Annotated[
        Head, Field(description="Which head is fitted; `tacit refit` fits others for nothing.")
    ] = "ridge"
    moments: Annotated[
        bool,
        Field(
            description="Release second moments, too: ridge needs them; the others can do without."
        ),
    ] = True
    public_text: Annotated[
        str | None,
        Field(
            description="Public text for the covariance of features (lda): a file, a known corpus, "
            "or generated. The released moments serve if none is given."
        ),
    ] = None
    ridge: Annotated[
        float,
        Field(ge=0, description="Regularisation, as a multiple of what the noise asks for."),
    ] = 1.0


class OneRelease(PlannedSums[StatisticsSettings]):
    """Sums of features by class, released once.

    *Guarantee*: the plan's for one step, as of DP-SGD: docs/explanations/guarantees.md. Whatever is
    fitted afterwards is made of that release and of public things.
    """

    name = "statistics"
    title = "One noisy sum of features, and any head made of it"
    summary = (
        "class sums, counts and second moments of frozen features, released once; ridge, lda or "
        "prototypes are fitted from them"
    )
    settings = StatisticsSettings
    optimizer = SUM_OF_UPDATES
    plan_fields = {"steps": 1}  # noqa: RUF012
    tasks = ("classification", "regression")
    federated = True

    def problems(self, run: Run, plan: Plan | None) -> Iterator[str]:
        """What would make the sum of the release something else than the mean over users."""
        own = self.options(run)
        if run.model.kind not in ("features", "folder"):
            yield "method=statistics sums features of a frozen encoder; give model.kind=features."
        if plan is not None and plan.user_rate not in (None, 1.0):
            yield "method=statistics asks everybody once; give plan.user_rate=1."
        if plan is not None and plan.select == "best":
            yield "method=statistics fits its head after its release; leave select=best out."
        if plan is not None and plan.user_rate is None:
            yield f"method=statistics sums over users; mechanism={plan.mechanism} does not."
        if run.optimizer != OptimizerSettings.model_validate(SUM_OF_UPDATES):
            yield "method=statistics fits its head without an optimizer; leave that out."
        if plan is not None and plan.select == "best":
            yield "method=statistics releases nothing but sums, so there is nothing to select from."
        if run.pretrain is not None:
            yield "method=statistics fits a new head, so a public start is of no use; leave it out."
        yield from _head_problems(own.head, run.task, own.moments, own.public_text is not None)

    def losses(self, task: Task) -> Losses:
        """A loss whose gradient is the record's statistics."""

        def linear(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
            own = _need_features(model)
            x = batch.get("features")
            if x is None:
                names = ("input_ids", "attention_mask", "token_type_ids")
                x = own.features(**accepted_inputs(names, batch, mask=True))
            labels = batch["labels"].to(x.device)
            if task.name == "regression":
                targets = torch.nan_to_num(labels).to(x.dtype).unsqueeze(-1)
            else:  # who has no label is in no class
                classes = own.classifier.out_features
                targets = F.one_hot(labels.clamp(min=0), classes) * (labels >= 0).unsqueeze(-1)
            assert own.statistics is not None
            return own.statistics(x, targets)

        return linear

    def prepare_model(self, run: Run, model: nn.Module) -> None:
        """Room for the sums, and nothing else to train."""
        own, config = _need_features(model), model.config
        assert isinstance(config, FeaturesConfig)
        config.statistics = {"moments": self.options(run).moments, "noise": None}
        own.statistics = Statistics(config).to(own.classifier.weight)
        own.requires_grad_(False)
        own.statistics.requires_grad_(True)

    def totals(self, inputs: MethodInputs, meter: LossMeter) -> Totals:
        """Clipped sums of users' statistics."""
        return user_sums(inputs, meter)

    def finish(self, inputs: MethodInputs, tokenizer: PreTrainedTokenizerBase) -> None:
        """Fit the head from what was released."""
        model, plan, options = (
            _need_features(inputs.model),
            inputs.need_plan(),
            self.options(inputs.run),
        )
        assert model.statistics is not None
        noise = float(plan.noise_multiplier or 0) * plan.clip_norm / self.denominator(inputs)
        model.config.statistics["noise"] = noise
        if options.public_text is not None:
            covariance = _public_covariance(model, tokenizer, inputs.run, options.public_text)
            model.statistics.covariance.data.copy_(torch.from_numpy(covariance))
        fit(model, options.head, options.ridge)

    def facts(self, run: Run) -> dict[str, Any]:
        """That the head is post-processing."""
        return {"head": f"{self.options(run).head}, fitted from the one release"}


def _head_problems(head: Head, task: str, moments: bool, public: bool) -> Iterator[str]:
    if task == "regression" and head != "ridge":
        yield f"head={head} tells classes apart; a regression needs ridge."
    if head == "ridge" and not moments:
        yield "head=ridge needs second moments; give statistics.moments=true, or another head."
    if head == "lda" and not (moments or public):
        yield "head=lda needs statistics.moments=true, or a statistics.public_text."


def _need_features(model: nn.Module) -> FeaturesForSequenceClassification:
    if not isinstance(model, FeaturesForSequenceClassification):
        raise UsageError("Statistics are sums of frozen features; give model.kind=features.")
    return model


def _public_covariance(
    model: FeaturesForSequenceClassification,
    tokenizer: PreTrainedTokenizerBase,
    run: Run,
    name: str,
) -> Matrix:
    """The covariance of features of public text: of some texts, taken evenly, not headings."""
    corpus = public_corpus(name, run.data)
    long = [row for row, text in enumerate(corpus.column("text").to_pylist()) if len(text) > 50]
    if len(long) < 2:
        raise DataError(f"{name} has fewer than two texts of 50 characters; give more public text.")
    corpus = corpus.take(long[:: max(1, len(long) // _PUBLIC_TEXTS)])
    builder = ExampleBuilder(corpus, tokenizer, run.context, None, False)
    examples = with_features(model, builder.whole_texts(np.zeros(len(corpus)), {}))
    assert examples.features is not None
    found: Matrix = np.cov(examples.features.values, rowvar=False, dtype=np.float64)
    return found


# --- heads from statistics ----------------------------------------------------------------------


def class_shares(model: nn.Module) -> dict[str, float]:
    """How frequent the classes are, as far as the release tells."""
    own = _need_features(model)
    counts = np.clip(_Released(own).counts, 0, None)
    names: Any = own.config.id2label or {}
    return {str(names[n]): float(c) for n, c in enumerate(counts / max(counts.sum(), 1e-12))}


@torch.no_grad()
def fit(model: nn.Module, head: Head, ridge: float = 1.0) -> None:
    """Put a head in place that is made of released statistics, and of nothing else."""
    own = _need_features(model)
    if own.statistics is None or own.config.statistics.get("noise") is None:
        raise UsageError("This model has no released statistics; train with method=statistics.")
    found = _Released(own)
    task = "regression" if own.config.problem_type == "regression" else "classification"
    for problem in _head_problems(head, task, found.moments is not None, found.public is not None):
        raise UsageError(problem)
    if head == "ridge":
        weight, bias = _ridge(found, ridge)
        sharpness = 1.0 if task == "regression" else _SHARPNESS
        weight, bias = weight * sharpness, bias * sharpness
    else:
        weight, bias = _discriminant(found, ridge, spherical=head == "prototypes")
    own.classifier.weight.copy_(torch.from_numpy(np.c_[weight, bias / CONSTANT]))


class _Released:
    """A release as means over users: sums of features, counts and moments, and their noise."""

    def __init__(self, model: FeaturesForSequenceClassification) -> None:
        layers = model.statistics
        assert layers is not None
        sums = _array(layers.classes.weight) / layers.scale
        self.noise = float(model.config.statistics["noise"] or 0) / layers.scale * LENGTH
        self.sums, self.counts = sums[:, :-1] * LENGTH, sums[:, -1] * LENGTH / CONSTANT
        self.joint = sums
        self.moments: Matrix | None = None
        if layers.moments is not None:
            whole = _array(layers.moments.weight) / layers.scale
            self.moments = (whole + whole.T) / 2
        kept = _array(layers.covariance)
        self.public: Matrix | None = kept if kept.any() else None

    @property
    def width(self) -> int:
        """How many numbers a feature has."""
        return int(self.sums.shape[1])


def _array(tensor: Tensor) -> Matrix:
    made: Matrix = tensor.detach().cpu().double().numpy()
    return made


def _ridge(found: _Released, ridge: float) -> tuple[Matrix, Matrix]:
    """Least squares on released moments, to which as much is added as noise may have taken away."""
    assert found.moments is not None
    added = ridge * _swing(found.noise / LENGTH, found.width)
    solved = _solve(found.moments, added, found.joint.T).T
    # What is regressed on is (x, CONSTANT) / LENGTH.
    return solved[:, :-1] / LENGTH, solved[:, -1] * CONSTANT / LENGTH


def _discriminant(found: _Released, ridge: float, *, spherical: bool) -> tuple[Matrix, Matrix]:
    """Normal classes of one covariance, around means from which noise is taken as far as known."""
    counts = np.clip(found.counts, max(found.noise / CONSTANT, 1e-9), None)
    shares, middle = counts / counts.sum(), found.sums.sum(0) / counts.sum()
    apart = found.sums / counts[:, None] - middle
    noise = ridge * (found.noise / counts) ** 2  # the variance of a coordinate of each mean
    between = max(float(shares @ (apart**2).sum(1) - found.width * (shares @ noise)), _LEAST)
    size = max(1 - float((middle**2).sum()) - between, 1e-3) / found.width
    within, taken = size * np.eye(found.width), np.zeros(len(counts))
    if found.public is not None:
        apart = _likely(apart, noise, found.public, between)
        if not spherical:
            round_ = np.trace(found.public) / found.width * np.eye(found.width)
            within = (found.public + _ROUND * round_) / (1 + _ROUND)
    else:
        if not spherical:
            assert found.moments is not None
            whole = LENGTH**2 * found.moments[:-1, :-1] / counts.sum()
            within = whole - np.outer(middle, middle) - (apart.T * shares) @ apart
            swing = ridge * _swing(LENGTH * found.noise, found.width) / counts.sum()
            within = _lifted(within, swing)
        within += found.width * (shares @ noise) / 10 * np.eye(found.width)
        taken = noise * np.trace(np.linalg.inv(within))  # what noise adds to squared lengths
    weight = np.linalg.solve(within, apart.T).T
    squares = (weight * apart).sum(1) - taken
    return weight, np.log(shares) - squares / 2 - weight @ middle


_ROUND = 10.0
"""How much more a sphere counts than the covariance of public text, which is of other text.

Of 0.3 to 1,000, ten did best on AG News, SST-2 and 20 Newsgroups together.
"""
_LEAST = 0.02
"""The squared distance of classes from their middle that is assumed where noise hides it."""


def _likely(apart: Matrix, noise: Matrix, public: Matrix, between: float) -> Matrix:
    """Where means of classes are, given where they seem to be.

    Beforehand classes are expected to differ more where texts do: in a direction, by as much as
    the root of the variance that public text has there. The variance of the noise is known.
    """
    values, vectors = np.linalg.eigh(public)
    expected = np.sqrt(np.clip(values, 1e-12, None))
    expected *= between / expected.sum()
    seen = apart @ vectors
    made: Matrix = (seen * expected / (expected + noise[:, None])) @ vectors.T
    return made


def _swing(deviation: float, width: int) -> float:
    """How far noise moves most eigenvalues of a symmetric matrix, two entries of it averaged.

    The largest moves by sqrt(2 width) times the deviation. Those that noise made negative count
    as zero, so less is needed: on SST-2 a tenth to a third of it did best of what was tried.
    """
    return deviation * math.sqrt(width) / 4


def _solve(matrix: Matrix, added: float, right: Matrix) -> Matrix:
    """(matrix + added I)^-1 right, for a matrix that noise has made indefinite."""
    return np.asarray(np.linalg.solve(_lifted(matrix, added), right), dtype=np.float64)


def _lifted(matrix: Matrix, added: float) -> Matrix:
    """A matrix that noise has made indefinite, with eigenvalues of `added` and more."""
    values, vectors = np.linalg.eigh(matrix)
    values = np.clip(values, 0, None) + added + 1e-6 * max(float(values[-1]), 1e-12)
    lifted: Matrix = (vectors * values) @ vectors.T
    return lifted


STATISTICS = OneRelease()
