"""The papers' own formulas, standing "published": what was claimed, and whether it is a bound.

Nothing here is a promise of ours. A figure is computed the way its authors computed it, so that
a reader can check the printed numbers and set them beside a proved price. Each result says in
one line whether the figure is an upper bound on epsilon and, where it is not, why not. Sound
prices live in `tacit.privacy.accounting`; an instance that contradicts the user-entity figures
lives in `tacit.privacy.counterexample`. All papers are listed in `docs/papers.md`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import dp_accounting
import numpy as np

from tacit.errors import UsageError

__all__ = [
    "PUBLISHED",
    "SELECTIVE_TABLE",
    "UEDP_CORPORA",
    "PublishedPrice",
    "PublishedScale",
    "SelectiveRow",
    "UedpCorpus",
    "UedpRow",
    "binary_encoding",
    "dpnr",
    "gdp",
    "gdp_mu",
    "gdp_noise_multiplier",
    "lemma1",
    "lemma2",
    "patent",
    "selective",
    "uedp",
    "uedp_rate",
    "uedp_table",
    "user",
]

Estimator = Literal["f_E", "f_E+"]

UEDP_SOURCE = "Lai et al. 2022"
PATENT_SOURCE = "Lai et al. 2023 (patent)"
SELECTIVE_SOURCE = "Shi et al. 2022"
REGULARIZATION_SOURCE = "Mireshghallah et al. 2021, after Bu et al. 2020"
DPNR_SOURCE = "Lai et al. 2022, appendix G, correcting Lyu et al. 2020a"
BINARY_SOURCE = "Lai et al. 2022, appendix H, on Lyu et al. 2020b"

UEDP_WHY_NOT = (
    "an entity held by many users moves each holder by up to twice the clip norm, and no coin of "
    "the method has the rate used here; a counter-example exceeds this figure."
)
SCALE_WHY_NOT = (
    "one entity can turn each drawn holder's clipped update around (twice the clip norm), and the "
    "number of users drawn is random; the true bound is 2 * holders drawn + 1 in units of the clip."
)
PATENT_WHY_NOT = (
    "one entity can turn each drawn holder's clipped update around (twice the clip norm); counting "
    "every user covers the random number drawn, not the factor two."
)
SELECTIVE_WHY_NOT = (
    "plain-token updates of the same batch reveal who is in it, so sampling does not amplify; a "
    "replaced record moves a clipped gradient by twice the clip norm."
)
GDP_WHY_NOT = (
    "a central-limit approximation, exact only in the limit of many steps at a small rate; it can "
    "fall below the true epsilon."
)

# The moments accountant as these papers ran it: integer orders up to 64 for user-entity DP, and
# for selective DP the grid that came with the training library of that year.
UEDP_ORDERS: tuple[float, ...] = tuple(float(order) for order in range(2, 65))
SELECTIVE_ORDERS: tuple[float, ...] = (
    *(1 + tenth / 10 for tenth in range(1, 100)),
    *(float(order) for order in range(12, 64)),
)

# Beyond this the square of mu overflows; epsilon is then reported as infinite.
_LARGEST_MU = 1e150


@dataclass(frozen=True)
class PublishedPrice:
    """Epsilon as a paper claims it, with what kind of claim it is.

    `epsilon` maps what is protected (`users`, `users+entities`, `records`, `tokens`) to the
    figure. `is_bound` says whether the figure is an upper bound on the true epsilon under
    `condition`; when it is not, `why_not` is the reason in one line.
    """

    method: str
    epsilon: Mapping[str, float]
    delta: float
    inputs: Mapping[str, Any]
    is_bound: bool
    why_not: str
    source: str
    condition: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    standing: Literal["published"] = "published"

    def __post_init__(self) -> None:
        """Freeze the mappings too."""
        for name in ("epsilon", "inputs", "details"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def as_dict(self) -> dict[str, Any]:
        """A plain dictionary of everything, ready for JSON (an infinite epsilon stays `inf`)."""
        return {
            "method": self.method,
            "epsilon": dict(self.epsilon),
            "delta": self.delta,
            "standing": self.standing,
            "is_bound": self.is_bound,
            "why_not": self.why_not,
            "condition": self.condition,
            "source": self.source,
            "inputs": dict(self.inputs),
            "details": dict(self.details),
        }


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


# ---------------------------------------------------------------------------------------------
# User-entity DP: epsilon
# ---------------------------------------------------------------------------------------------


def uedp_rate(
    *,
    estimator: str,
    users: int,
    users_per_step: float,
    entity_rate: float,
    sensitive: int | None = None,
    records: int | None = None,
) -> float:
    """The single sampling rate that the user-entity paper hands to its accountant.

    Source: Lai et al. 2022; the product was recovered from the printed epsilons: users per step
    over users, times the entity rate and, for `f_E+`, times the share of sensitive records.
    """
    check_one_of("estimator", estimator, ("f_E", "f_E+"))
    rate = check_user_rate(users, users_per_step) * check_probability("entity_rate", entity_rate)
    if estimator == "f_E":
        return rate
    if sensitive is None or records is None:
        raise UsageError(
            f"estimator=f_E+ with sensitive={sensitive}, records={records} is incomplete; "
            "give both counts, or choose estimator=f_E."
        )
    check_whole("records", records, least=1)
    check_whole("sensitive", sensitive, least=0)
    if sensitive > records:
        raise UsageError(
            f"sensitive={sensitive} is larger than records={records}; "
            f"give a count between 0 and {records}."
        )
    return rate * sensitive / records


def uedp(
    *,
    users: int,
    users_per_step: float,
    entity_rate: float,
    noise_multiplier: float,
    steps: int,
    delta: float = 1e-5,
    estimator: str = "f_E+",
    sensitive: int | None = None,
    records: int | None = None,
) -> PublishedPrice:
    """The user-entity paper's epsilon for its estimator `f_E` or `f_E+`.

    Source: Lai et al. 2022, Theorem 1, Figures 2 and 6: moments of the Poisson-sampled Gaussian
    at `uedp_rate`, integer orders 2 to 64, the older conversion to epsilon.
    Guarantee: none; see `tacit.privacy.counterexample`.

    >>> round(uedp(estimator="f_E+", users=946, users_per_step=50, entity_rate=0.5,
    ...            sensitive=5187, records=14040, noise_multiplier=2, steps=500,
    ...            delta=1e-5).epsilon["users+entities"], 3)
    0.603
    """
    rate = uedp_rate(
        estimator=estimator,
        users=users,
        users_per_step=users_per_step,
        entity_rate=entity_rate,
        sensitive=sensitive,
        records=records,
    )
    epsilon = _moments_epsilon(rate, noise_multiplier, steps, delta, UEDP_ORDERS)
    return PublishedPrice(
        method="uedp",
        epsilon={"users+entities": epsilon},
        delta=delta,
        inputs={
            "estimator": estimator,
            "users": users,
            "users_per_step": users_per_step,
            "entity_rate": entity_rate,
            "sensitive": sensitive,
            "records": records,
            "noise_multiplier": noise_multiplier,
            "steps": steps,
        },
        is_bound=False,
        why_not=UEDP_WHY_NOT,
        source=f"{UEDP_SOURCE}, Theorem 1",
        details={"rate": rate, "epsilon_floor": _epsilon_floor(delta)},
    )


def user(
    *,
    users: int,
    users_per_step: float,
    noise_multiplier: float,
    steps: int,
    delta: float = 1e-5,
) -> PublishedPrice:
    """The same paper's epsilon for user-level DP, its baseline.

    Source: McMahan et al. 2018, as run by Lai et al. 2022: the rate is users per step over users.
    Guarantee: a valid though loose user-level bound under `condition`.

    >>> round(user(users=946, users_per_step=50, noise_multiplier=2, steps=500).epsilon["users"], 2)
    3.4
    """
    rate = check_user_rate(users, users_per_step)
    epsilon = _moments_epsilon(rate, noise_multiplier, steps, delta, UEDP_ORDERS)
    return PublishedPrice(
        method="user",
        epsilon={"users": epsilon},
        delta=delta,
        inputs={
            "users": users,
            "users_per_step": users_per_step,
            "noise_multiplier": noise_multiplier,
            "steps": steps,
        },
        is_bound=True,
        why_not="",
        condition=(
            "each user is drawn independently (not a fixed number per step), the whole update is "
            "clipped, denominators are public; says nothing about entities."
        ),
        source=f"McMahan et al. 2018, as run by {UEDP_SOURCE}",
        details={"rate": rate, "epsilon_floor": _epsilon_floor(delta)},
    )


# ---------------------------------------------------------------------------------------------
# User-entity DP: sensitivity and noise
# ---------------------------------------------------------------------------------------------


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
    user_rate = check_user_rate(users, users_per_step)
    return _scale(
        units=users_per_step + 1,
        clip_norm=clip_norm,
        user_weight_cap=user_weight_cap,
        user_part=user_rate * check_positive("user_weight_sum", user_weight_sum),
        record_part=_entity_part(entity_rate, entity_weight_sum),
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
    user_rate = check_user_rate(users, users_per_step)
    return _scale(
        units=users_per_step + 1,
        clip_norm=clip_norm,
        user_weight_cap=user_weight_cap,
        user_part=user_rate * check_positive("user_weight_sum", user_weight_sum),
        record_part=_entity_part(entity_rate, entity_weight_sum)
        + _plain_part(plain_rate, plain_weight_sum),
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
    user_rate = check_user_rate(users, users_per_step)
    return _scale(
        units=users + 1,
        clip_norm=clip_norm,
        user_weight_cap=user_weight_cap,
        user_part=user_rate * check_positive("user_weight_sum", user_weight_sum),
        record_part=_entity_part(entity_rate, entity_weight_sum)
        + _plain_part(plain_rate, plain_weight_sum),
        noise_multiplier=noise_multiplier,
        source=f"{PATENT_SOURCE}, Equation 5",
        why_not=PATENT_WHY_NOT,
    )


# ---------------------------------------------------------------------------------------------
# Other papers
# ---------------------------------------------------------------------------------------------


def selective(
    *,
    noise_multiplier: float,
    record_rate: float,
    gradient_releases: int,
    state_releases: int = 0,
    delta: float = 8e-5,
) -> PublishedPrice:
    """Selective DP-SGD's epsilon: the moments accountant over every private release.

    `gradient_releases` counts private updates and `state_releases` noisy hidden states, all at
    one noise multiplier. The paper prints the noise multiplier and delta; the batch size, the
    number of epochs and the number of private segments are not in it, so that its epsilons
    cannot be recomputed from the paper alone (`SELECTIVE_TABLE` lists them).
    Source: Shi et al. 2022, Theorem 2 and Table 2.
    Guarantee: none; `tacit.privacy.accounting` prices selective training without amplification,
    at twice the clip norm, with the number of private segments per record capped.
    """
    check_whole("gradient_releases", gradient_releases, least=0)
    check_whole("state_releases", state_releases, least=0)
    releases = gradient_releases + state_releases
    if releases == 0:
        raise UsageError(
            "gradient_releases=0 with state_releases=0 releases nothing; give at least 1 in all."
        )
    check_probability("record_rate", record_rate)
    epsilon = _moments_epsilon(record_rate, noise_multiplier, releases, delta, SELECTIVE_ORDERS)
    return PublishedPrice(
        method="selective",
        epsilon={"tokens": epsilon},
        delta=delta,
        inputs={
            "noise_multiplier": noise_multiplier,
            "record_rate": record_rate,
            "gradient_releases": gradient_releases,
            "state_releases": state_releases,
        },
        is_bound=False,
        why_not=SELECTIVE_WHY_NOT,
        source=f"{SELECTIVE_SOURCE}, Theorem 2",
        details={"sound_price": "tacit.privacy.accounting"},
    )


def gdp_mu(*, record_rate: float, noise_multiplier: float, steps: int) -> float:
    """The Gaussian-DP mu of DP-SGD in the central limit; infinite where it overflows.

    Source: Bu et al. 2020: rate * sqrt(steps * (exp(1 / noise_multiplier^2) - 1)).

    >>> round(gdp_mu(record_rate=256 / 60000, noise_multiplier=1.3, steps=3516), 3)
    0.227
    """
    check_probability("record_rate", record_rate)
    check_not_negative("noise_multiplier", noise_multiplier)
    check_whole("steps", steps, least=1)
    if record_rate == 0:
        return 0.0
    exponent = noise_multiplier**-2 if noise_multiplier > 1e-150 else math.inf
    log_mu = math.log(record_rate) + 0.5 * (math.log(steps) + _log_expm1(exponent))
    return math.exp(log_mu) if log_mu < math.log(_LARGEST_MU) else math.inf


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


def gdp(
    *,
    record_rate: float,
    noise_multiplier: float,
    steps: int,
    delta: float = 1e-5,
) -> PublishedPrice:
    """Epsilon at delta of the Gaussian-DP mu that the regularization paper accounts with.

    Source: Mireshghallah et al. 2021, after Bu et al. 2020; mu to epsilon after Dong et al. 2022.
    Guarantee: none, an approximation; the paper itself calls its own value practically infinite.
    """
    check_delta(delta)
    mu = gdp_mu(record_rate=record_rate, noise_multiplier=noise_multiplier, steps=steps)
    return PublishedPrice(
        method="gdp",
        epsilon={"records": _gaussian_epsilon(mu, delta)},
        delta=delta,
        inputs={
            "record_rate": record_rate,
            "noise_multiplier": noise_multiplier,
            "steps": steps,
        },
        is_bound=False,
        why_not=GDP_WHY_NOT,
        source=REGULARIZATION_SOURCE,
        details={"mu": mu},
    )


def dpnr(*, epsilon: float, dimensions: int, word_dropout: float = 0.0) -> PublishedPrice:
    """What a noisy text representation really costs: epsilon for every one of its coordinates.

    Source: Lai et al. 2022, appendix G: dimensions * epsilon and, when each word is dropped with
    probability `word_dropout`, ln[(1 - dropout) exp(dimensions * epsilon) + dropout].
    Guarantee: pure local DP of one released representation, for texts that differ in one word.

    >>> round(dpnr(epsilon=0.05, dimensions=768).epsilon["tokens"], 2)
    38.4
    """
    check_not_negative("epsilon", epsilon)
    check_whole("dimensions", dimensions, least=1)
    check_probability("word_dropout", word_dropout)
    return PublishedPrice(
        method="dpnr",
        epsilon={"tokens": _dropout_epsilon(dimensions * epsilon, word_dropout)},
        delta=0.0,
        inputs={
            "epsilon": epsilon,
            "dimensions": dimensions,
            "word_dropout": word_dropout,
        },
        is_bound=True,
        why_not="",
        condition=(
            "one release by a fixed public extractor, every coordinate scaled to [0, 1], a dropped "
            "word counts as a different word; training on the noisy vectors is not covered."
        ),
        source=DPNR_SOURCE,
        details={"claimed_before": epsilon},
    )


def binary_encoding(
    *,
    epsilon_per_bit: float,
    elements: int,
    integer_bits: int,
    fraction_bits: int,
) -> PublishedPrice:
    """The budget of a bitwise randomized binary encoding, as argued there.

    Source: Lai et al. 2022, appendix H: a bit costs `epsilon_per_bit` times its place value,
    integer bit i 2^(i-1), sign bit 2^(integer_bits + 1), fraction bit i 2^-i.
    Departs: we doubt it. Randomized response on a bit costs `epsilon_per_bit` whatever the bit
    is worth; `details` has that plain sum, and `is_bound` says whether the figure covers it.
    """
    check_not_negative("epsilon_per_bit", epsilon_per_bit)
    check_whole("elements", elements, least=1)
    check_whole("integer_bits", integer_bits, least=0)
    check_whole("fraction_bits", fraction_bits, least=0)
    argued = _times_power(
        elements * epsilon_per_bit * _place_values(integer_bits, fraction_bits),
        integer_bits,
    )
    plain = elements * (1 + integer_bits + fraction_bits) * epsilon_per_bit
    covers = argued >= plain
    return PublishedPrice(
        method="dpnr-binary",
        epsilon={"records": argued},
        delta=0.0,
        inputs={
            "epsilon_per_bit": epsilon_per_bit,
            "elements": elements,
            "integer_bits": integer_bits,
            "fraction_bits": fraction_bits,
        },
        is_bound=covers,
        why_not=(
            ""
            if covers
            else "a fraction bit costs as much as any other bit; the plain sum over bits is larger."
        ),
        condition="as argued there; the plain sum over bits is the cost we would state.",
        source=BINARY_SOURCE,
        details={"plain_sum": plain, "label": "as argued there"},
    )


PUBLISHED: Mapping[str, Callable[..., PublishedPrice]] = MappingProxyType(
    {"uedp": uedp, "user": user, "selective": selective, "gdp": gdp, "dpnr": dpnr}
)


# ---------------------------------------------------------------------------------------------
# The printed numbers
# ---------------------------------------------------------------------------------------------


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


# ---------------------------------------------------------------------------------------------
# Kernels
# ---------------------------------------------------------------------------------------------


def _moments_epsilon(
    rate: float,
    noise_multiplier: float,
    steps: int,
    delta: float,
    orders: Sequence[float],
) -> float:
    """Epsilon by the moments accountant with the older conversion.

    Legend: a order, r(a) Renyi divergence of all steps; epsilon = min_a r(a) - ln(delta)/(a-1)
    (Abadi et al. 2016, Theorem 2; Mironov 2017, Proposition 3).
    """
    check_not_negative("noise_multiplier", noise_multiplier)
    check_whole("steps", steps, least=1)
    check_delta(delta)
    return min(_renyi(a, rate, noise_multiplier, steps) - math.log(delta) / (a - 1) for a in orders)


def _renyi(order: float, rate: float, noise_multiplier: float, steps: int) -> float:
    """Renyi divergence of `steps` Poisson-sampled Gaussian steps, from the library's accountant.

    The library reveals its divergences only through its own, tighter conversion
    epsilon = r + ln(1 - 1/a) - ln(d a)/(a - 1); undo it at a d so small that epsilon stays above
    0 unless r is 0.
    """
    if rate == 0:
        return 0.0
    if noise_multiplier < 1e-6:  # the library squares and inverts; no figure is finite here
        return math.inf
    tiny = 1e-100
    step = dp_accounting.PoissonSampledDpEvent(
        rate, dp_accounting.GaussianDpEvent(noise_multiplier)
    )
    accountant = dp_accounting.rdp.RdpAccountant(orders=[order])
    accountant.compose(dp_accounting.SelfComposedDpEvent(step, steps))
    epsilon = float(accountant.get_epsilon(tiny))
    if epsilon == 0:
        return 0.0
    undone = epsilon - math.log1p(-1 / order) + math.log(tiny * order) / (order - 1)
    return max(0.0, undone)


def _epsilon_floor(delta: float) -> float:
    """The least epsilon this accountant can print, however little was released: order 64."""
    return -math.log(delta) / (UEDP_ORDERS[-1] - 1)


def _scale(
    *,
    units: float,
    clip_norm: float,
    user_weight_cap: float,
    user_part: float,
    record_part: float,
    noise_multiplier: float,
    source: str,
    why_not: str,
) -> PublishedScale:
    """Sensitivity = units * weight cap * clip / (user part * record part); noise = multiple."""
    check_positive("clip_norm", clip_norm)
    check_positive("user_weight_cap", user_weight_cap)
    check_not_negative("noise_multiplier", noise_multiplier)
    denominator = user_part * record_part
    if denominator <= 0:
        raise UsageError(
            f"the denominator is {denominator}; give rates and weight sums above 0, so that a "
            "step averages over something."
        )
    sensitivity = units * user_weight_cap * clip_norm / denominator
    return PublishedScale(
        sensitivity=sensitivity,
        noise_std=noise_multiplier * sensitivity,
        source=source,
        why_not=why_not,
    )


def _entity_part(entity_rate: float, entity_weight_sum: float) -> float:
    return check_probability("entity_rate", entity_rate) * check_not_negative(
        "entity_weight_sum", entity_weight_sum
    )


def _plain_part(plain_rate: float, plain_weight_sum: float) -> float:
    return check_probability("plain_rate", plain_rate) * check_not_negative(
        "plain_weight_sum", plain_weight_sum
    )


def _gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon at delta of one Gaussian release with signal-to-noise mu, from the library."""
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return math.inf
    with np.errstate(all="ignore"):
        return max(0.0, float(dp_accounting.get_epsilon_gaussian(1 / mu, delta)))


def _log_expm1(x: float) -> float:
    """ln(e^x - 1) for x > 0 without overflow."""
    return x if x > 50 else math.log(math.expm1(x))


def _dropout_epsilon(epsilon: float, dropout: float) -> float:
    """ln[(1 - dropout) e^epsilon + dropout], by logarithms so that a huge epsilon is no trouble."""
    if dropout == 0 or math.isinf(epsilon):
        return epsilon if dropout < 1 else 0.0
    if dropout == 1:
        return 0.0
    return max(0.0, float(np.logaddexp(math.log1p(-dropout) + epsilon, math.log(dropout))))


def _place_values(integer_bits: int, fraction_bits: int) -> float:
    """Sum of the claimed place values of all bits, over 2^integer_bits.

    Legend: m integer bits, n fraction bits. Sign 2^(m+1), integers 2^m - 1, fractions 1 - 2^-n:
    together 3 * 2^m - 2^-n.
    """
    return 3.0 - math.ldexp(1.0, -(integer_bits + fraction_bits))


def _times_power(value: float, power: int) -> float:
    """value * 2^power, infinite where it overflows."""
    try:
        return math.ldexp(value, power)
    except OverflowError:
        return math.inf


# ---------------------------------------------------------------------------------------------
# Checks
# ---------------------------------------------------------------------------------------------


def check_user_rate(users: int, users_per_step: float) -> float:
    """Users per step over users, if both are counts that can be."""
    check_whole("users", users, least=1)
    if not (_is_number(users_per_step) and 0 < users_per_step <= users):
        raise UsageError(
            f"users_per_step={users_per_step} is out of range; "
            f"give a number above 0, at most users={users}."
        )
    return users_per_step / users


def _is_number(value: object) -> bool:
    return (
        isinstance(value, int | float | np.integer | np.floating)
        and not isinstance(value, bool)
        and math.isfinite(value)
    )


def check_probability(name: str, value: float) -> float:
    """The value, if it lies between 0 and 1."""
    if not (_is_number(value) and 0 <= value <= 1):
        raise UsageError(f"{name}={value} is not a probability; give a value between 0 and 1.")
    return value


def check_delta(value: float) -> float:
    """The value, if it lies strictly between 0 and 1."""
    if not (_is_number(value) and 0 < value < 1):
        raise UsageError(f"delta={value} is out of range; give a value above 0 and below 1.")
    return value


def check_not_negative(name: str, value: float) -> float:
    """The value, if it is finite and 0 or more."""
    if not (_is_number(value) and value >= 0):
        raise UsageError(f"{name}={value} is out of range; give a finite number, 0 or more.")
    return value


def check_positive(name: str, value: float) -> float:
    """The value, if it is finite and above 0."""
    if not (_is_number(value) and value > 0):
        raise UsageError(f"{name}={value} is out of range; give a finite number above 0.")
    return value


def check_whole(name: str, value: int, *, least: int) -> int:
    """The value, if it is a whole number and large enough."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise UsageError(f"{name}={value} is out of range; give a whole number, at least {least}.")
    return int(value)


def check_one_of(name: str, value: str, accepted: Sequence[str]) -> str:
    """The value, if it is one of the accepted words."""
    if value not in accepted:
        raise UsageError(f"{name}={value} is not known; give one of {', '.join(accepted)}.")
    return value
