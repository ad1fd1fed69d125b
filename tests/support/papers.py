"""What papers print beside the formulas that `tacit price` knows: tables and lemmas.

Nothing of ours uses these; the tests compare them with the printed figures.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np

from tacit.errors import UsageError
from tacit.privacy.arguments import (
    check_not_negative,
    check_positive,
    check_probability,
    check_user_rate,
    check_whole,
)
from tacit.replication.published import UEDP_SOURCE, uedp, user

PATENT_SOURCE = "Lai et al. 2023 (patent)"

SCALE_WHY_NOT = (
    "one entity can turn each drawn holder's clipped update around (twice the clip norm), and the "
    "number of users drawn is random; the true bound is 2 * holders drawn + 1 in units of the clip."
)
PATENT_WHY_NOT = (
    "one entity can turn each drawn holder's clipped update around (twice the clip norm); counting "
    "every user covers the random number drawn, not the factor two."
)


@dataclass(frozen=True)
class PublishedScale:
    """A sensitivity and the noise that a paper derives from it, for one released average.

    Both are in units of the released average, after division by the denominator. `noise_std` is
    a standard deviation; passing its square to a sampler is the classic way to lose everything.
    """

    sensitivity: float
    noise_std: float
    source: str
    why_not: str
    is_bound: bool = False
    standing: Literal["published"] = "published"


def lemma1(
    *,
    users: int,
    users_per_step: float,
    entity_rate: float,
    user_weight_sum: float,
    entity_weight_sum: float,
    clip_norm: float,
    noise_multiplier: float,
    user_weight_cap: float = 1.0,
) -> PublishedScale:
    """The claimed sensitivity and noise of `f_E`, the average over sensitive records.

    Source: Lai et al. 2022, Lemma 1 and Equation 5.
    Guarantee: none; `why_not` says where the bound breaks.
    """
    weight = _mean_weight(
        check_user_rate(users, users_per_step),
        user_weight_sum,
        entity_rate,
        entity_weight_sum,
    )
    return _scale(
        units=users_per_step + 1,
        mean_weight=weight,
        clip_norm=clip_norm,
        user_weight_cap=user_weight_cap,
        noise_multiplier=noise_multiplier,
        source=f"{UEDP_SOURCE}, Lemma 1",
        why_not=SCALE_WHY_NOT,
    )


def lemma2(
    *,
    users: int,
    users_per_step: float,
    entity_rate: float,
    plain_rate: float,
    user_weight_sum: float,
    entity_weight_sum: float,
    plain_weight_sum: float,
    clip_norm: float,
    noise_multiplier: float,
    user_weight_cap: float = 1.0,
) -> PublishedScale:
    """The claimed sensitivity and noise of `f_E+`, which also averages over plain records.

    Source: Lai et al. 2022, Lemma 2 and Equation 7.
    Guarantee: none; `why_not` says where the bound breaks.
    """
    weight = _mean_weight(
        check_user_rate(users, users_per_step),
        user_weight_sum,
        entity_rate,
        entity_weight_sum,
        plain_rate,
        plain_weight_sum,
    )
    return _scale(
        units=users_per_step + 1,
        mean_weight=weight,
        clip_norm=clip_norm,
        user_weight_cap=user_weight_cap,
        noise_multiplier=noise_multiplier,
        source=f"{UEDP_SOURCE}, Lemma 2",
        why_not=SCALE_WHY_NOT,
    )


def patent(
    *,
    users: int,
    users_per_step: float,
    entity_rate: float,
    user_weight_sum: float,
    entity_weight_sum: float,
    clip_norm: float,
    noise_multiplier: float,
    plain_rate: float = 0.0,
    plain_weight_sum: float = 0.0,
    user_weight_cap: float = 1.0,
) -> PublishedScale:
    """The patent's form: every user counts in the numerator, not only those expected in a step.

    Source: Lai et al. 2023 (patent), Equations 5 and 6, for `f_E`; with `plain_weight_sum` above
    0 it is the same form for `f_E+`, as the paper's table of notation prints it.
    Guarantee: none; `why_not` says what remains open.
    """
    weight = _mean_weight(
        check_user_rate(users, users_per_step),
        user_weight_sum,
        entity_rate,
        entity_weight_sum,
        plain_rate,
        plain_weight_sum,
    )
    return _scale(
        units=users + 1,
        mean_weight=weight,
        clip_norm=clip_norm,
        user_weight_cap=user_weight_cap,
        noise_multiplier=noise_multiplier,
        source=f"{PATENT_SOURCE}, Equation 5",
        why_not=PATENT_WHY_NOT,
    )


def _mean_weight(
    user_rate: float,
    user_weight_sum: float,
    entity_rate: float,
    entity_weight_sum: float,
    plain_rate: float = 0.0,
    plain_weight_sum: float = 0.0,
) -> float:
    """The weight that a step averages over, users times records, in expectation."""
    users = user_rate * check_positive("user_weight_sum", user_weight_sum)
    named = check_probability("entity_rate", entity_rate) * check_not_negative(
        "entity_weight_sum", entity_weight_sum
    )
    plain = check_probability("plain_rate", plain_rate) * check_not_negative(
        "plain_weight_sum", plain_weight_sum
    )
    return users * (named + plain)


def _scale(
    *,
    units: float,
    mean_weight: float,
    clip_norm: float,
    user_weight_cap: float,
    noise_multiplier: float,
    source: str,
    why_not: str,
) -> PublishedScale:
    """Sensitivity = units * weight cap * clip / mean weight; noise = multiple."""
    check_positive("clip_norm", clip_norm)
    check_positive("user_weight_cap", user_weight_cap)
    check_not_negative("noise_multiplier", noise_multiplier)
    if mean_weight <= 0:
        raise UsageError(
            f"the denominator is {mean_weight}; give rates and weight sums above 0, so that a "
            "step averages over something."
        )
    sensitivity = units * user_weight_cap * clip_norm / mean_weight
    return PublishedScale(
        sensitivity=sensitivity,
        noise_std=noise_multiplier * sensitivity,
        source=source,
        why_not=why_not,
    )


def gdp_noise_multiplier(*, mu: float, record_rate: float, steps: int) -> float:
    """The noise multiplier that a printed mu implies, for a given rate and number of steps.

    The regularization paper prints mu (about 1e20) and not its noise: at batches of 100 out of
    48,000 records and one pass the implied noise multiplier is about 0.1.
    """
    check_positive("mu", mu)
    check_positive("record_rate", check_probability("record_rate", record_rate))
    check_whole("steps", steps, least=1)
    log_square = 2 * (math.log(mu) - math.log(record_rate)) - math.log(steps)
    return float(1 / math.sqrt(np.logaddexp(0.0, log_square)))


@dataclass(frozen=True)
class UedpCorpus:
    """Counts of one corpus as the user-entity paper prints them, and its users per step.

    The printed user rate 0.05 is a rounding: the epsilons belong to whole numbers of users.
    """

    name: str
    records: int
    users: int
    users_per_step: int
    sensitive: Mapping[str, int]


UEDP_CORPORA: Mapping[str, UedpCorpus] = MappingProxyType(
    {
        corpus.name: corpus
        for corpus in (
            UedpCorpus(
                name="CoNLL-2003",
                records=14_040,
                users=946,
                users_per_step=50,
                sensitive=MappingProxyType(
                    {
                        "Org": 5_187,
                        "Loc": 5_433,
                        "Person": 4_406,
                        "Misc": 3_438,
                        "All": 11_176,
                    }
                ),
            ),
            UedpCorpus(
                name="AG",
                records=112_000,
                users=7_536,
                users_per_step=500,
                sensitive=MappingProxyType(
                    {
                        "Org": 58_177,
                        "Loc": 39_988,
                        "GPE": 18_506,
                        "PII": 42_683,
                        "All": 67_157,
                    }
                ),
            ),
            UedpCorpus(
                name="SEC",
                records=5_188,
                users=1_592,
                users_per_step=100,
                sensitive=MappingProxyType(
                    {"Org": 1_955, "Loc": 273, "GPE": 60, "PII": 357, "All": 2_166}
                ),
            ),
        )
    }
)

# corpus, steps, estimator ("user" for the baseline), category of sensitive records, epsilon.
# The figure at 50 steps is captioned "all entities"; the text, and the arithmetic, say Org.
_UEDP_PRINTED: tuple[tuple[str, int, str, str, float], ...] = (
    ("CoNLL-2003", 50, "f_E", "Org", 0.62),
    ("CoNLL-2003", 50, "f_E+", "Org", 0.36),
    ("CoNLL-2003", 50, "user", "", 1.18),
    ("AG", 50, "f_E", "Org", 0.75),
    ("AG", 50, "f_E+", "Org", 0.47),
    ("AG", 50, "user", "", 1.48),
    ("SEC", 50, "f_E", "Org", 0.71),
    ("SEC", 50, "f_E+", "Org", 0.38),
    ("SEC", 50, "user", "", 1.40),
    ("CoNLL-2003", 500, "f_E+", "Misc", 0.44),
    ("CoNLL-2003", 500, "f_E+", "Person", 0.52),
    ("CoNLL-2003", 500, "f_E+", "Org", 0.61),
    ("CoNLL-2003", 500, "f_E+", "Loc", 0.63),
    ("CoNLL-2003", 500, "f_E+", "All", 1.31),
    ("CoNLL-2003", 500, "user", "", 3.40),
    ("AG", 500, "f_E+", "GPE", 0.39),
    ("AG", 500, "f_E+", "Loc", 0.73),
    ("AG", 500, "f_E+", "PII", 0.78),
    ("AG", 500, "f_E+", "Org", 1.07),
    ("AG", 500, "f_E+", "All", 1.24),
    ("AG", 500, "user", "", 4.34),
    ("SEC", 500, "f_E+", "GPE", 0.19),
    ("SEC", 500, "f_E+", "Loc", 0.24),
    ("SEC", 500, "f_E+", "PII", 0.26),
    ("SEC", 500, "f_E+", "Org", 0.73),
    ("SEC", 500, "f_E+", "All", 0.81),
    ("SEC", 500, "user", "", 4.08),
)


@dataclass(frozen=True)
class UedpRow:
    """One printed epsilon of the user-entity paper beside the same figure recomputed."""

    corpus: str
    steps: int
    estimator: str
    category: str
    printed: float
    recomputed: float

    @property
    def residual(self) -> float:
        """Recomputed minus printed; printed figures carry two decimals."""
        return self.recomputed - self.printed


def uedp_table() -> list[UedpRow]:
    """All 27 epsilons that the user-entity paper prints, each recomputed from its own counts.

    Source: Lai et al. 2022, Table 1 (counts), Figures 2 and 6; noise multiplier 2, entity rate
    one half, delta 1e-5.
    """
    return [
        UedpRow(
            corpus=corpus,
            steps=steps,
            estimator=estimator,
            category=category,
            printed=printed,
            recomputed=_recompute(corpus, steps, estimator, category),
        )
        for corpus, steps, estimator, category, printed in _UEDP_PRINTED
    ]


def _recompute(corpus_name: str, steps: int, estimator: str, category: str) -> float:
    corpus = UEDP_CORPORA[corpus_name]
    if estimator == "user":
        price = user(
            users=corpus.users,
            users_per_step=corpus.users_per_step,
            noise_multiplier=2.0,
            steps=steps,
        )
        return price.epsilon["users"]
    price = uedp(
        estimator=estimator,
        users=corpus.users,
        users_per_step=corpus.users_per_step,
        entity_rate=0.5,
        sensitive=corpus.sensitive[category],
        records=corpus.records,
        noise_multiplier=2.0,
        steps=steps,
    )
    return price.epsilon["users+entities"]


@dataclass(frozen=True)
class SelectiveRow:
    """One printed epsilon of the selective-DP paper; batch size and epochs are not printed."""

    corpus: str
    method: str
    noise_multiplier: float
    clip_norm: float
    delta: float
    printed: float


SELECTIVE_TABLE: tuple[SelectiveRow, ...] = (
    SelectiveRow("WikiText-2", "DP-SGD", 0.5, 0.1, 8e-5, 4.89),
    SelectiveRow("WikiText-2", "selective", 0.5, 1e-3, 8e-5, 4.91),
    SelectiveRow("CustomerSim", "DP-SGD", 0.6, 0.01, 8e-5, 2.51),
    SelectiveRow("CustomerSim", "selective", 0.7, 5e-3, 8e-5, 2.74),
)
