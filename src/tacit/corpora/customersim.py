"""CustomerSim: made-up customer service dialogs with gold spans, as many as you like.

A record is one dialog of `SYS:` and `USR:` lines, a user is the customer, the label is the
agenda, and `spans` mark every name, address, number, firm, place, product and date exactly.

Source: the corpus of that name in Shi et al. 2022, Selective Differential Privacy for Language
Modeling, section 5 and Table 1.
Departs: the paper's corpus is not published in full; agendas and wording here are our own, and
unlike there customers return and share entities, so that protecting users, entities and both
are three different things.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import pyarrow as pa

from tacit.corpora.agendas import FILLERS, WORDS, Exchange, agendas
from tacit.corpora.dealing import deal_splits
from tacit.corpora.people import Customer, World
from tacit.corpus import SCHEMA, SPAN, Corpus, Record, Span
from tacit.errors import UsageError

DIALOGS_PER_USER = 3
_BATCH = 4096


def generate(dialogs: int, seed: int, users: int | None = None) -> Corpus:
    """A corpus of so many dialogs; the same arguments give the same corpus.

    Without `users` there is one for every three dialogs. Users are dealt to train, valid and
    test, 8:1:1, with all their dialogs.
    """
    records = stream(dialogs, seed, users)
    batches = []
    while batch := list(islice(records, _BATCH)):
        batches.append(_to_table(batch))
    return Corpus(pa.concat_tables(batches).combine_chunks(), name="customersim")


def stream(dialogs: int, seed: int, users: int | None = None) -> Iterator[Record]:
    """The same dialogs one by one; only the customers stay in memory."""
    if dialogs < 1:
        raise UsageError(f"dialogs={dialogs} is too few; give 1 or more.")
    if seed < 0:
        raise UsageError(f"seed={seed} is negative; give 0 or more.")
    if users is None:
        users = max(1, round(dialogs / DIALOGS_PER_USER))
    if not 1 <= users <= dialogs:
        raise UsageError(
            f"users={users} does not fit dialogs={dialogs}; give 1 up to {dialogs}: "
            "each user has a dialog at least."
        )
    return _stream(dialogs, seed, users)


def _stream(dialogs: int, seed: int, users: int) -> Iterator[Record]:
    world = World(users, seed)
    rng = random.Random(f"customersim dialogs {seed}")
    numbers = np.random.default_rng([seed, 5])
    splits = deal_splits([customer.id for customer in world.customers], numbers)
    width = max(6, len(str(dialogs)))
    for number, index in enumerate(_callers(dialogs, users, numbers).tolist(), 1):
        customer = world.customers[index]
        agenda = rng.choice(agendas())
        slots = _fill_slots(world, index, agenda.slots)
        text, spans = _say(agenda.exchanges, slots, rng)
        # A new telephone stays; other members of the household keep the shared one.
        customer.phone = slots.get("new_phone", customer.phone)
        yield Record(
            id=f"d{number:0{width}d}",
            user=customer.id,
            text=text,
            label=agenda.name,
            spans=spans,
            split=splits[customer.id],
        )


def _callers(dialogs: int, users: int, rng: np.random.Generator) -> np.ndarray:
    """Who calls, dialog by dialog: everybody once, and the rest with a heavy tail."""
    weights = np.minimum(rng.pareto(1.5, size=users) + 1, 60)
    extra = rng.multinomial(dialogs - users, weights / weights.sum())
    return rng.permutation(np.repeat(np.arange(users), 1 + extra))


def _fill_slots(world: World, index: int, wanted: frozenset[str]) -> dict[str, str]:
    """A value for every wanted slot, the same throughout a dialog."""
    caller, rng = world.customers[index], world.rng
    order, friend = world.order(caller), world.friend(index)
    if len(caller.orders) > 1:
        other_order, other_product = caller.orders[0].number, caller.orders[0].product
    else:
        other_order, other_product = world.new_order_number(), world.products.pick(rng)
    slots = {
        "name": caller.name,
        "first": caller.first,
        "agent": world.agents.pick(rng),
        "courier": rng.choice(caller.town.couriers),
        "neighbour": world.neighbour(index).name,
        "recipient": friend.name,
        "recipient_first": friend.first,
        "address": caller.address,
        "recipient_address": friend.address,
        "phone": caller.phone,
        "email": caller.email,
        "order": order.number,
        "other_order": other_order,
        # The slip in the wrong box is the friend's: one order number, two customers.
        "stray_order": friend.orders[0].number if friend.orders else other_order,
        "tracking": order.tracking,
        "shop": order.shop,
        "carrier": order.carrier,
        "city": caller.town.name,
        "depot": world.towns.pick(rng).name,
        "recipient_city": friend.town.name,
        "product": order.product,
        "other_product": other_product,
        "ordered": world.said(order.ordered),
        "due": world.said(order.due),
        "soon": rng.choice(WORDS["soon"]),
    }
    return slots | _new_slots(world, caller, friend, wanted)


def _new_slots(
    world: World, caller: Customer, friend: Customer, wanted: frozenset[str]
) -> dict[str, str]:
    """What is new, drawn only where it can be said: each draw must differ from all before."""
    slots: dict[str, str] = {}
    if "new_phone" in wanted:
        slots["new_phone"] = world.new_phone()
    if "new_email" in wanted:
        slots["new_email"] = world.new_email(caller.first, caller.name.split()[-1])
    if "return_tracking" in wanted:
        slots["return_tracking"] = world.new_tracking()
    if "new_address" in wanted:
        moves_in = world.rng.random() < 0.5
        address, town = (friend.address, friend.town) if moves_in else world.new_address()
        slots |= {"new_address": address, "new_city": town.name}
    return slots


def _say(
    exchanges: Sequence[Exchange], slots: dict[str, str], rng: random.Random
) -> tuple[str, tuple[Span, ...]]:
    """The text of a dialog, and where its entities stand in it."""
    pieces: list[str] = []
    spans: list[Span] = []
    length, speaker = 0, ""
    for exchange in exchanges:
        if exchange.chance < 1 and rng.random() >= exchange.chance:
            continue
        for line in rng.choice(exchange.choices):
            # Who goes on speaking stays on the line: turns alternate.
            opening = " " if line.speaker == speaker else f"\n{line.speaker}: "
            opening, speaker = opening if pieces else opening.lstrip(), line.speaker
            pieces.append(opening)
            length += len(opening)
            for part in rng.choice(line.variants):
                words = part.words
                if part.slot is not None:
                    words = slots[part.slot] if part.kind else rng.choice(FILLERS[part.slot])
                if part.kind is not None:
                    spans.append(Span(length, length + len(words), part.kind))
                pieces.append(words)
                length += len(words)
    return "".join(pieces), tuple(spans)


def _to_table(records: Sequence[Record]) -> pa.Table:
    """Arrow memory from records, with the spans column made flat: no dictionary per span."""
    flat = [span for record in records for span in record.spans or ()]
    offsets = np.concatenate([[0], np.cumsum([len(r.spans or ()) for r in records])])
    marks = pa.StructArray.from_arrays(
        [
            pa.array([s.start for s in flat], pa.int32()),
            pa.array([s.end for s in flat], pa.int32()),
            pa.array([s.kind for s in flat], pa.string()),
        ],
        fields=list(SPAN),
    )
    columns = {
        name: pa.array([getattr(r, name) for r in records], pa.string())
        for name in ("id", "user", "text", "label", "split")
    }
    columns["spans"] = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), marks)
    return pa.table({name: columns[name] for name in SCHEMA.names if name in columns})
