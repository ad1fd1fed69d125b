"""User-entity DP as published: epsilon, and the noise of a step.

Source: Lai et al. 2022, and the patent by the same authors of 2023.
"""

import math
from dataclasses import replace
from typing import Any

from tacit.errors import UsageError
from tacit.privacy.accounting.claims import PublishedPrice, PublishedScale
from tacit.privacy.arguments import (
    check_not_negative,
    check_one_of,
    check_positive,
    check_probability,
    check_user_rate,
    check_whole,
)
from tacit.privacy.events import UserClip
from tacit.replication.published.moments import moments_epsilon

UEDP_SOURCE = "Lai et al. 2022"
PATENT_SOURCE = "Lai et al. 2023 (patent)"

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

# The moments accountant as this paper ran it: integer orders up to 64.
UEDP_ORDERS: tuple[float, ...] = tuple(float(order) for order in range(2, 65))


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
    rate = uedp_rate(
        estimator=estimator,
        users=users,
        users_per_step=users_per_step,
        entity_rate=entity_rate,
        sensitive=sensitive,
        records=records,
    )
    epsilon = moments_epsilon(rate, noise_multiplier, steps, delta, UEDP_ORDERS)
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
    rate = check_user_rate(users, users_per_step)
    epsilon = moments_epsilon(rate, noise_multiplier, steps, delta, UEDP_ORDERS)
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


def _epsilon_floor(delta: float) -> float:
    """The least epsilon this accountant can print, however little was released: order 64."""
    return -math.log(delta) / (UEDP_ORDERS[-1] - 1)


# --- sensitivity and noise ----------------------------------------------------------------------


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
