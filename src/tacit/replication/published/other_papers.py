"""Other papers' epsilons: selective DP, the regularization paper, noisy text representations."""

import math
from collections.abc import Mapping

import numpy as np

from tacit.errors import UsageError
from tacit.privacy.accounting.claims import PublishedPrice
from tacit.privacy.accounting.divergences import gaussian_epsilon
from tacit.privacy.arguments import (
    check_not_negative,
    check_positive,
    check_probability,
    check_whole,
    require_delta,
)
from tacit.privacy.events import AnyEvent, SelectivePart
from tacit.replication.published.moments import moments_epsilon

SELECTIVE_SOURCE = "Shi et al. 2022"
REGULARIZATION_SOURCE = "Mireshghallah et al. 2021, after Bu et al. 2020"
DPNR_SOURCE = "Lai et al. 2022, appendix G, correcting Lyu et al. 2020a"
BINARY_SOURCE = "Lai et al. 2022, appendix H, on Lyu et al. 2020b"

SELECTIVE_WHY_NOT = (
    "plain-token updates of the same batch reveal who is in it, so sampling does not amplify; a "
    "replaced record moves a clipped gradient by twice the clip norm."
)
GDP_WHY_NOT = (
    "a central-limit approximation, exact only in the limit of many steps at a small rate; it can "
    "fall below the true epsilon."
)

# The grid that came with the training library of that year.
SELECTIVE_ORDERS: tuple[float, ...] = (
    *(1 + tenth / 10 for tenth in range(1, 100)),
    *(float(order) for order in range(12, 64)),
)

# Beyond this the square of mu overflows; epsilon is then reported as infinite.
_LARGEST_MU = 1e150


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
    epsilon = moments_epsilon(record_rate, noise_multiplier, releases, delta, SELECTIVE_ORDERS)
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
    require_delta(delta)
    mu = gdp_mu(record_rate=record_rate, noise_multiplier=noise_multiplier, steps=steps)
    return PublishedPrice(
        method="gdp",
        epsilon={"records": math.inf if math.isinf(mu) else gaussian_epsilon(mu, delta)},
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
