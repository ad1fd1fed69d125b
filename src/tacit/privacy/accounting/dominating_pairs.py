"""From releases to dominating pairs: which pair each event has, and how often it happened."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from tacit.errors import PrivacyRefused, UsageError
from tacit.privacy.accounting.dominating_curves import OwnerMixture, Pair, ShiftMixture, VisibleCoin
from tacit.privacy.accounting.name_chains import NameChain
from tacit.privacy.events import (
    MOST,
    Adjacency,
    AnyEvent,
    Flat,
    MentionSubstitution,
    NotPrivate,
    Public,
    ReplaceOne,
    SampledGaussian,
    Selective,
    Unit,
    UserClip,
    require_event,
    whole_passes,
)

# Any: a mapping from events of one kind is no mapping from events of any kind to a type checker.
Releases: TypeAlias = AnyEvent | Mapping[Any, int] | Iterable[tuple[AnyEvent, int]]
Items: TypeAlias = tuple[tuple[Pair, int], ...]


def counted_releases(releases: Releases) -> dict[AnyEvent, int]:
    """How often each event happened; equal events are added up, unknown ones refused.

    Parts of selective passes are put together: it is the pass that has a price.
    """
    if isinstance(releases, Mapping):
        entries: Iterable[Any] = releases.items()
    elif isinstance(releases, Iterable) and not isinstance(releases, str | bytes):
        entries = releases if not hasattr(releases, "model_dump") else [(releases, 1)]
    else:
        entries = [(releases, 1)]
    counted: dict[AnyEvent, int] = {}
    for entry in entries:
        if not (isinstance(entry, tuple | list) and len(entry) == 2):
            raise UsageError("A release is not a pair of an event and a count; give such pairs.")
        event, count = require_event(entry[0]), entry[1]
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST:
            raise UsageError(f"count={_shown(count)} is not a whole number from 0 to {MOST}.")
        counted[event] = counted.get(event, 0) + count
    return whole_passes({event: count for event, count in counted.items() if count})


def common_adjacency(counted: Mapping[AnyEvent, int], unit: Unit) -> Adjacency | None:
    """The neighbours for which all releases are priced: the strictest any of them was stated for.

    Removing a unit is a case of zeroing it out while the graph is fixed, so those two mix; where
    names are substituted, users are really removed, so those two mix as well.
    """
    stated = {event.adjacency for event in counted if unit in event.bounds}
    strictest_first: tuple[Adjacency, ...] = (
        "replace",
        "zero-out",
        "substitute",
        "add-or-remove",
    )
    for adjacency in strictest_first:
        if adjacency in stated:
            return adjacency
    return None


def dominating_items(
    counted: Mapping[AnyEvent, int], unit: Unit, adjacency: Adjacency | None
) -> Items | None:
    """The dominating pair of every release that costs something; None if one is unbounded."""
    items: dict[Pair, int] = {}
    for event, count in counted.items():
        if isinstance(event, Public) or (isinstance(event, NotPrivate) and unit in event.bounds):
            continue
        if unit not in event.bounds or isinstance(event, NotPrivate):
            return None
        if adjacency == "replace" and isinstance(event, UserClip | Flat):
            return None  # zeroing out says nothing about replacing
        if adjacency != "substitute" and isinstance(event, MentionSubstitution):
            return None  # nor does substituting say anything about either
        pair = _pair(event, unit, adjacency)
        if pair is None:
            continue
        if not pair.revealed_shift < 1e100:
            return None
        items[pair] = items.get(pair, 0) + count
    return tuple(items.items())


def _pair(event: AnyEvent, unit: Unit, adjacency: Adjacency | None) -> Pair | None:
    """What dominates one such release; None if it does not depend on the unit at all."""
    match event:
        case SampledGaussian() | ReplaceOne():
            scale = _inverse(event.noise_multiplier)
            if event.rate == 0:
                return None
            if adjacency == "replace":
                return OwnerMixture(event.rate, 1, 2.0, 1.0, False, scale)
            return ShiftMixture(event.rate, 1, scale)
        case UserClip():
            return _user_clip(event, unit)
        case Flat():
            units = {
                "users": event.records_per_user,
                "entities": event.records_per_entity,
                "users+entities": event.records_per_user + event.records_per_entity,
            }[unit]
            if event.record_rate == 0 or units == 0:
                return None
            return ShiftMixture(event.record_rate, units, _inverse(event.noise_multiplier))
        case MentionSubstitution():
            return _mention_substitution(event, unit)
        case Selective():
            return _selective(event)
        case _:
            raise PrivacyRefused(f"A {type(event).__name__} has no dominating pair; no price.")


def _user_clip(event: UserClip, unit: Unit) -> Pair | None:
    moves = event.entity_share > 0 and event.entity_rate > 0 and unit != "users"
    holders = event.users_per_entity if moves else 0
    with_user = unit != "entities"
    if event.user_rate == 0 or (holders == 0 and not with_user):
        return None
    scale = _inverse(event.noise_multiplier)
    if holders == 0:
        return ShiftMixture(event.user_rate, 1, scale)
    return OwnerMixture(
        event.user_rate, holders, event.entity_share, event.entity_rate, with_user, scale
    )


def _mention_substitution(event: MentionSubstitution, unit: Unit) -> Pair | None:
    """A user who leaves, then every shown name that may come or go with the user and the name.

    A user's nominations free at most `names_per_user` places in the lists of names, a name stands
    in at most `users_per_name` users; where everybody takes part all of it is one Gaussian.
    """
    holders = event.users_per_name if event.shows and unit != "users" else 0
    promotions = event.names_per_user if event.shows and unit != "names" else 0
    with_user, moves = unit != "names", holders + promotions
    if event.user_rate == 0 or not (moves or with_user):
        return None
    scale = _inverse(event.noise_multiplier)
    if moves == 0 or event.user_rate == 1:
        return ShiftMixture(event.user_rate, 1, (with_user + moves * event.name_share) * scale)
    return NameChain(event.user_rate, holders, promotions, event.name_share, with_user, scale)


def _selective(event: Selective) -> Pair | None:
    """One pass is one Gaussian: mu^2 = segments ((2/z)^2 + states (2/z_state)^2).

    A replaced record can turn a clipped vector into its opposite, hence the 2.
    """
    if event.rate == 0 or event.segments == 0:
        return None
    gradient = 2 * _inverse(event.noise_multiplier)
    state = 2 * _inverse(event.state_noise_multiplier) if event.states else 0.0
    shift = math.sqrt(event.segments) * math.hypot(gradient, math.sqrt(event.states) * state)
    return VisibleCoin(event.rate, shift)


def _inverse(noise_multiplier: float) -> float:
    return 1 / noise_multiplier if noise_multiplier > 1e-200 else math.inf


def _shown(value: object) -> str:
    try:
        return repr(value)[:60]
    except (ValueError, RecursionError):
        return f"a {type(value).__name__}"
