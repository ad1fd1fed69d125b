"""The papers' own formulas, standing "published": what was claimed, and whether it is a bound.

Nothing here is a promise of ours. A figure is computed the way its authors computed it, so that
a reader can check the printed numbers and set them beside a proved price. Each result says in
one line whether the figure is an upper bound on epsilon and, where it is not, why not. Sound
prices live in `tacit.privacy.accounting`; an instance that contradicts the user-entity figures
lives in `tacit.replication.counterexample`. All papers are listed in `docs/studies/papers.md`.
"""

import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import dp_accounting
import numpy as np

from tacit.errors import UsageError
from tacit.privacy.accounting.claims import PublishedPrice as PublishedPrice
from tacit.privacy.accounting.divergences import gaussian_epsilon
from tacit.privacy.arguments import (
    check_not_negative,
    check_one_of,
    check_probability,
    check_user_rate,
    check_whole,
    require_delta,
)
from tacit.privacy.events import AnyEvent, SelectivePart, UserClip

UEDP_SOURCE = "Lai et al. 2022"
SELECTIVE_SOURCE = "Shi et al. 2022"
REGULARIZATION_SOURCE = "Mireshghallah et al. 2021, after Bu et al. 2020"
DPNR_SOURCE = "Lai et al. 2022, appendix G, correcting Lyu et al. 2020a"
BINARY_SOURCE = "Lai et al. 2022, appendix H, on Lyu et al. 2020b"

UEDP_WHY_NOT = (
    "an entity held by many users moves each holder by up to twice the clip norm, and no coin of "
    "the method has the rate used here; a counter-example exceeds this figure."
)
SELECTIVE_WHY_NOT = (
    "plain-token updates of the same batch reveal who is in it, so sampling does not amplify; a "
    "replaced record moves a clipped gradient by twice the clip norm."
)
GDP_WHY_NOT = (
    "a central-limit approximation, exact only in the limit of many steps at a small rate; it can "
    "fall below the true epsilon."
)

# The moments accountant as this paper ran it: integer orders up to 64.
UEDP_ORDERS: tuple[float, ...] = tuple(float(order) for order in range(2, 65))


# The grid that came with the training library of that year.
SELECTIVE_ORDERS: tuple[float, ...] = (
    *(1 + tenth / 10 for tenth in range(1, 100)),
    *(float(order) for order in range(12, 64)),
)

# Beyond this the square of mu overflows; epsilon is then reported as infinite.
_LARGEST_MU = 1e150


# --- the moments accountant as the papers ran it: a grid of orders, the older conversion --------


def moments_epsilon(
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
    require_delta(delta)
    return min(renyi(a, rate, noise_multiplier, steps) - math.log(delta) / (a - 1) for a in orders)


def renyi(order: float, rate: float, noise_multiplier: float, steps: int) -> float:
    """Renyi divergence of `steps` Poisson-sampled Gaussian steps, from the library's accountant.

    The library reveals its divergences only through its own, tighter conversion
    epsilon = r + ln(1 - 1/a) - ln(d a)/(a - 1); undo it at a d so small that epsilon stays above
    0 unless r is 0.
    """
    if rate == 0:
        return 0.0
    if noise_multiplier < 1e-6:  # the library squares and inverts; no figure is finite here
        return math.inf
    # It logs every order whose series does not converge; such an order comes out infinite.
    logging.getLogger("absl").setLevel(logging.ERROR)
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


def _inputs(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a formula as its result states them; delta stands apart."""
    return {name: value for name, value in arguments.items() if name != "delta"}


# --- user-entity DP -----------------------------------------------------------------------------


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
    Guarantee: none; see `tacit.replication.counterexample`.

    >>> round(uedp(estimator="f_E+", users=946, users_per_step=50, entity_rate=0.5,
    ...            sensitive=5187, records=14040, noise_multiplier=2, steps=500,
    ...            delta=1e-5).epsilon["users+entities"], 3)
    0.603
    """
    inputs = _inputs(locals())
    rate = uedp_rate(
        estimator=estimator, users=users, users_per_step=users_per_step, entity_rate=entity_rate,
        sensitive=sensitive, records=records,
    )  # fmt: skip
    epsilon = moments_epsilon(rate, noise_multiplier, steps, delta, UEDP_ORDERS)
    return PublishedPrice(
        method="uedp",
        epsilon={"users+entities": epsilon},
        delta=delta,
        inputs=inputs,
        is_bound=False,
        why_not=UEDP_WHY_NOT,
        source=f"{UEDP_SOURCE}, Theorem 1",
        details={"rate": rate, "epsilon_floor": _epsilon_floor(delta)},
    )


def uedp_release(
    *,
    users: int,
    users_per_step: float,
    user_rate: float,
    entity_rate: float,
    noise_multiplier: float,
    holders: int,
    entity_rule: str = "any",
    noise: str = "lemma",
) -> UserClip:
    """What one step of the published algorithm really releases, as an event that has a price.

    A user's whole update is clipped, so an entity moves each of its holders by up to twice the
    clip norm; with the rule `any` a record may be used although the entity was not drawn, so the
    entity's coin counts for nothing. The noise, over the clip norm of one user, is the published
    multiplier times users per step + 1 (the lemmas) or users + 1 (the patent).

    Guarantee: for fixed-graph neighbours, under which weights and denominators are constants, if
    no entity is in more than `holders` users; docs/explanations/guarantees.md, section 5.

    >>> uedp_release(users=946, users_per_step=50, user_rate=50 / 946, entity_rate=0.5,
    ...              noise_multiplier=2.0, holders=112).noise_multiplier
    102.0
    """
    check_user_rate(users, users_per_step)
    check_one_of("entity_rule", entity_rule, ("any", "all"))
    check_one_of("noise", noise, ("lemma", "patent"))
    units = users_per_step + 1 if noise == "lemma" else users + 1
    return UserClip(
        user_rate=user_rate,
        users_per_entity=holders,
        entity_share=2.0,
        entity_rate=entity_rate if entity_rule == "all" else 1.0,
        noise_multiplier=noise_multiplier * units,
    )


def uedp_claim(*, steps: int, delta: float, **setting: Any) -> PublishedPrice:
    """The paper's epsilon for a run, with what `uedp_release` needs to know in its details."""
    beside = ("user_rate", "holders", "entity_rule", "noise")
    given = {name: value for name, value in setting.items() if name not in beside}
    claim = uedp(steps=steps, delta=delta, **given)
    return replace(claim, details={**claim.details, **{n: setting[n] for n in beside}})


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
    inputs = _inputs(locals())
    rate = check_user_rate(users, users_per_step)
    epsilon = moments_epsilon(rate, noise_multiplier, steps, delta, UEDP_ORDERS)
    return PublishedPrice(
        method="user",
        epsilon={"users": epsilon},
        delta=delta,
        inputs=inputs,
        is_bound=True,
        why_not="",
        condition=(
            "each user is drawn independently (not a fixed number per step), the whole update is "
            "clipped, denominators are public; says nothing about entities."
        ),
        source=f"McMahan et al. 2018, as run by {UEDP_SOURCE}",
        details={"rate": rate, "epsilon_floor": _epsilon_floor(delta)},
    )


def _epsilon_floor(delta: float) -> float:
    """The least epsilon this accountant can print, however little was released: order 64."""
    return -math.log(delta) / (UEDP_ORDERS[-1] - 1)


# --- other papers -------------------------------------------------------------------------------


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
    inputs = _inputs(locals())
    check_whole("gradient_releases", gradient_releases, least=0)
    check_whole("state_releases", state_releases, least=0)
    releases = gradient_releases + state_releases
    if releases == 0:
        raise UsageError(
            "gradient_releases=0 with state_releases=0 releases nothing; give at least 1 in all."
        )
    check_probability("record_rate", record_rate)
    epsilon = moments_epsilon(record_rate, noise_multiplier, releases, delta, SELECTIVE_ORDERS)
    return PublishedPrice(
        method="selective",
        epsilon={"tokens": epsilon},
        delta=delta,
        inputs=inputs,
        is_bound=False,
        why_not=SELECTIVE_WHY_NOT,
        source=f"{SELECTIVE_SOURCE}, Theorem 2",
        details={"sound_price": "tacit.privacy.accounting.pricing"},
    )


def selective_claim(releases: Mapping[AnyEvent, int], delta: float) -> PublishedPrice | None:
    """What the paper's accounting says of the selective passes that a ledger holds.

    None where there are none, or where gradients and states have noise of two sizes, for which
    the paper has no figure.
    """
    parts = {e: n for e, n in releases.items() if isinstance(e, SelectivePart)}
    settings = {(e.noise_multiplier, e.state_noise_multiplier, e.rate) for e in parts}
    if len(settings) != 1:
        return None
    noise, state_noise, rate = next(iter(settings))
    if noise != state_noise:
        return None
    return selective(
        noise_multiplier=noise,
        record_rate=rate,
        gradient_releases=sum(n for e, n in parts.items() if e.state == 0),
        state_releases=sum(n for e, n in parts.items() if e.state > 0),
        delta=delta,
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
    inputs = _inputs(locals())
    require_delta(delta)
    mu = gdp_mu(record_rate=record_rate, noise_multiplier=noise_multiplier, steps=steps)
    return PublishedPrice(
        method="gdp",
        epsilon={"records": math.inf if math.isinf(mu) else gaussian_epsilon(mu, delta)},
        delta=delta,
        inputs=inputs,
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
    inputs = _inputs(locals())
    check_not_negative("epsilon", epsilon)
    check_whole("dimensions", dimensions, least=1)
    check_probability("word_dropout", word_dropout)
    return PublishedPrice(
        method="dpnr",
        epsilon={"tokens": _dropout_epsilon(dimensions * epsilon, word_dropout)},
        delta=0.0,
        inputs=inputs,
        is_bound=True,
        why_not="",
        condition=(
            "one release by a fixed public extractor, every coordinate scaled to [0, 1], a dropped "
            "word counts as a different word; training on the noisy vectors is not covered."
        ),
        source=DPNR_SOURCE,
        details={"claimed_before": epsilon},
    )


def binary(
    *, epsilon: float, dimensions: int, integer_bits: int, fraction_bits: int
) -> PublishedPrice:
    """What a representation costs whose numbers are written in bits, each of which may be flipped.

    Source: Lai et al. 2022, appendix H: a bit costs `epsilon` times its place value, integer bit i
    2^(i-1), the sign bit 2^(integer_bits + 1), fraction bit i 2^-i.
    Departs: we doubt it. Randomized response on a bit costs `epsilon` whatever the bit is worth;
    `details` has that plain sum, and `is_bound` says whether the figure covers it.

    >>> found = binary(epsilon=0.1, dimensions=10, integer_bits=2, fraction_bits=3)
    >>> round(found.epsilon["records"], 3), round(found.details["plain_sum"], 3)
    (11.875, 6.0)
    """
    inputs = _inputs(locals())
    check_not_negative("epsilon", epsilon)
    check_whole("dimensions", dimensions, least=1)
    check_whole("integer_bits", integer_bits, least=0)
    check_whole("fraction_bits", fraction_bits, least=0)
    # Sign 2^(m+1), integers 2^m - 1, fractions 1 - 2^-n: together 3 * 2^m - 2^-n.
    places = 3.0 - math.ldexp(1.0, -(integer_bits + fraction_bits))
    argued = _times_power(dimensions * epsilon * places, integer_bits)
    plain = dimensions * (1 + integer_bits + fraction_bits) * epsilon
    return PublishedPrice(
        method="binary",
        epsilon={"records": argued},
        delta=0.0,
        inputs=inputs,
        is_bound=argued >= plain,
        why_not=(
            "" if argued >= plain
            else "a fraction bit costs as much as any other bit; the plain sum over bits is larger."
        ),
        condition="as argued there; the plain sum over bits is the cost we would state.",
        source=BINARY_SOURCE,
        details={"plain_sum": plain, "label": "as argued there"},
    )  # fmt: skip


def _times_power(value: float, power: int) -> float:
    """value * 2^power, infinite where it overflows."""
    try:
        return math.ldexp(value, power)
    except OverflowError:
        return math.inf


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


PUBLISHED: Mapping[str, Callable[..., PublishedPrice]] = MappingProxyType(
    {
        "uedp": uedp, "user": user, "selective": selective, "gdp": gdp, "dpnr": dpnr,
        "binary": binary,
    }
)  # fmt: skip

_POINTS = 8


def over_steps(name: str, values: Mapping[str, Any]) -> dict[str, list[tuple[int, float]]]:
    """A claimed epsilon up to the last step, beside what the same paper claims for its rivals.

    For the user-entity paper these are the lines of its Figures 2 and 6: both estimators (f_E+
    where the counts of records are given) and users alone.
    """
    if "steps" not in values:
        raise UsageError(f"published={name} does not go by steps, so there is nothing to draw.")
    formula = PUBLISHED[name]
    lines: dict[str, Callable[[int], PublishedPrice]] = {}
    if name == "uedp":
        estimators = ("f_E",) if values.get("records") is None else ("f_E", "f_E+")
        for estimator in estimators:
            given = {**values, "estimator": estimator}
            lines[f"users and entities, {estimator}"] = partial(_at, formula, given)
        users = {n: values[n] for n in inspect.signature(user).parameters if n in values}
        lines["users alone"] = partial(_at, user, users)
    else:
        lines[name] = partial(_at, formula, values)
    last = values["steps"]
    at = sorted({max(1, last * point // _POINTS) for point in range(1, _POINTS + 1)})
    return {
        line: [(steps, next(iter(price(steps).epsilon.values()))) for steps in at]
        for line, price in lines.items()
    }


def _at(
    formula: Callable[..., PublishedPrice], values: Mapping[str, Any], steps: int
) -> PublishedPrice:
    return formula(**{**values, "steps": steps})
