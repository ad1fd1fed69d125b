"""Neighbours have two roles, and the price is that of the worse one, whichever it is."""

import pytest

from tacit.privacy.accounting.composition import composed, first_step, worse_role
from tacit.privacy.accounting.dominating_pairs import common_adjacency, dominating_items
from tacit.privacy.accounting.pld_grid import BothRoles
from tacit.privacy.events import AnyEvent, Flat, SampledGaussian, Unit, UserClip

EVENTS: dict[str, tuple[AnyEvent, Unit]] = {
    "users": (SampledGaussian(unit="users", rate=0.1, noise_multiplier=1.0), "users"),
    "entities": (
        UserClip(user_rate=0.1, users_per_entity=3, entity_share=0.5, noise_multiplier=2.0),
        "entities",
    ),
    "flat": (
        Flat(record_rate=0.1, records_per_user=2, records_per_entity=2, noise_multiplier=2.0),
        "users+entities",
    ),
}


@pytest.mark.parametrize("name", EVENTS)
def test_exchanging_the_neighbours_changes_no_price(name: str) -> None:
    event, unit = EVENTS[name]
    releases = {event: 20}
    items = dominating_items(releases, unit, common_adjacency(releases, unit))
    assert items is not None
    roles = composed(items, first_step(items, 1e-5), 1e-5)
    own = worse_role(roles, items, 1e-5)
    assert worse_role(BothRoles(roles.backward, roles.forward), items, 1e-5) == own
    alone = [worse_role(BothRoles(one, one), items, 1e-5) for one in roles]
    assert max(alone) == own
    assert alone[0] != pytest.approx(alone[1], rel=1e-3)  # else it would show nothing
