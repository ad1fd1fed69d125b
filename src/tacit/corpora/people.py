"""The little world of CustomerSim: customers in households and towns, shops, couriers, orders.

Entities are shared by construction. A household shares its address and often its telephone; a
friend who gets a gift is a customer too; towns, shops, carriers and products follow a Zipf law;
a town's couriers call on everybody there.
"""

import random
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from itertools import accumulate
from typing import Generic, TypeVar

from tacit.corpora.agendas import WORDS
from tacit.errors import MissingExtra

T = TypeVar("T")

_CODE = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
HOUSEHOLD_SIZES = (1, 2, 3, 4)
_HOUSEHOLD_WEIGHTS = (55, 25, 12, 8)


class Zipf(Generic[T]):
    """Draws items so that the n-th is about n times rarer than the first."""

    def __init__(self, items: Sequence[T], power: float = 1.0) -> None:
        self.items = items
        self._shares = list(accumulate((n + 1) ** -power for n in range(len(items))))

    def pick(self, rng: random.Random) -> T:
        """One item."""
        return self.items[bisect(self._shares, rng.random() * self._shares[-1])]


@dataclass(frozen=True, slots=True)
class Town:
    """A city, its state and post code, and the couriers who work there."""

    name: str
    state: str
    postcode: int
    couriers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """Something bought: every number is unique."""

    number: str
    tracking: str
    product: str
    shop: str
    carrier: str
    ordered: date
    due: date


@dataclass(slots=True)
class Customer:
    """A person who calls; name and address stay, the telephone may change by request."""

    id: str
    first: str
    name: str
    town: Town
    address: str
    phone: str
    email: str
    orders: list[Order] = field(default_factory=list)


class World:
    """Everybody and everything that dialogs are about, drawn once from a seed.

    Faker is slow, so its names, streets, cities and firms are drawn into pools first, and
    people are put together from the pools.
    """

    def __init__(self, users: int, seed: int) -> None:
        try:
            from faker import Faker
        except ImportError:
            raise MissingExtra.of("CustomerSim needs the package Faker", "generate") from None
        self._fake = Faker("en_US")
        self._fake.seed_instance(seed)
        self.rng = random.Random(f"customersim {seed}")
        self._taken: set[str] = set()
        rng, fake = self.rng, self._fake
        # Draws with repetition: Faker's common names stay common.
        self._firsts = [fake.first_name() for _ in range(600)]
        self._lasts = [fake.last_name() for _ in range(700)]
        self._streets = [fake.street_name() for _ in range(500)]
        self._domains = ("example.com", "example.org", "example.net", "mail.example.com")
        self.agents = Zipf([self._new_name() for _ in range(40)])
        self._shops = Zipf(list(dict.fromkeys(fake.company() for _ in range(60))))
        self._carriers = Zipf(WORDS["carriers"])
        self.products = Zipf(self._new_products(), 0.9)
        self.towns = Zipf(self._new_towns(min(150, max(6, users // 20))), 0.9)
        self.customers = self._new_customers(users)
        self._friends = [
            [rng.randrange(users) for _ in range(rng.choice((1, 1, 2, 3)))] for _ in range(users)
        ]
        self._by_town: dict[str, list[Customer]] = {}
        for customer in self.customers:
            self._by_town.setdefault(customer.town.name, []).append(customer)
        self._stranger = self._new_household("stranger", 1)[0]

    def friend(self, index: int) -> Customer:
        """One of the few people to whom this customer sends gifts: mostly another customer."""
        friend = self.customers[self.rng.choice(self._friends[index])]
        return friend if friend is not self.customers[index] else self._stranger

    def neighbour(self, index: int) -> Customer:
        """Somebody else of the same town, if there is anybody."""
        caller = self.customers[index]
        other = self.rng.choice(self._by_town[caller.town.name])
        return other if other is not caller else self._stranger

    def order(self, customer: Customer) -> Order:
        """An order that the customer has already, or a new one."""
        if customer.orders and self.rng.random() < 0.4:
            return self.rng.choice(customer.orders)
        placed = date(2024, 1, 1) + timedelta(days=self.rng.randrange(720))
        order = Order(
            number=self.new_order_number(),
            tracking=self.new_tracking(),
            product=self.products.pick(self.rng),
            shop=self._shops.pick(self.rng),
            carrier=self._carriers.pick(self.rng),
            ordered=placed,
            due=placed + timedelta(days=self.rng.randint(2, 12)),
        )
        customer.orders.append(order)
        return order

    def new_order_number(self) -> str:
        """A number that no order has yet."""
        draw = self.rng.randrange
        return self._unique(lambda: f"ORD-{draw(10_000):04d}-{draw(10_000):04d}")

    def new_tracking(self) -> str:
        """A tracking number that was not given before."""
        return self._unique(self._tracking)

    def new_phone(self) -> str:
        """A telephone number that nobody had before."""
        return self._unique(self._fake.basic_phone_number)

    def new_email(self, first: str, last: str) -> str:
        """An e-mail address of an example domain, made from the name."""
        rng = self.rng
        shape = rng.choice(("{f}.{l}", "{f}{l}", "{i}{l}", "{l}.{f}", "{f}_{l}"))
        local = shape.format(f=first, l=last, i=first[0]).lower()
        local = "".join(c for c in local if c.isalnum() or c in "._")
        return self._unique(lambda: f"{local}{rng.randint(1, 999)}@{rng.choice(self._domains)}")

    def new_address(self) -> tuple[str, Town]:
        """Somewhere to live, and its town."""
        rng, town = self.rng, self.towns.pick(self.rng)
        unit = f" Apt. {rng.randint(1, 400)}" if rng.random() < 0.25 else ""
        street = f"{rng.randint(1, 9999)} {rng.choice(self._streets)}{unit}"
        code = town.postcode + rng.randrange(30)
        return f"{street}, {town.name}, {town.state} {code:05d}", town

    def said(self, day: date) -> str:
        """A date in one of the ways in which people write it."""
        month = WORDS["months"].split()[day.month - 1]
        shape = self.rng.randrange(5)
        if shape < 2:
            return f"{month} {day.day}"
        if shape == 2:
            return f"{month} {day.day}, {day.year}"
        if shape == 3:
            return f"{day.day} {month}"
        return f"{day.month:02d}/{day.day:02d}/{day.year}"

    def _unique(self, draw: Callable[[], str]) -> str:
        value = draw()
        while value in self._taken:
            value = draw()
        self._taken.add(value)
        return value

    def _tracking(self) -> str:
        shape = self.rng.randrange(3)
        if shape == 0:
            return "-".join(("TRK", self._code(4), self._code(4), self._code(4)))
        if shape == 1:
            return _postal_number(self.rng)
        return self._code(10)

    def _code(self, length: int) -> str:
        letters = self.rng.choices(_CODE, k=length)
        # One digit at least: a code of letters alone could be a word.
        letters[self.rng.randrange(length)] = str(self.rng.randint(2, 9))
        return "".join(letters)

    def _new_products(self) -> list[str]:
        nouns, syllables = WORDS["products"].split("|"), WORDS["syllables"].split()
        rng = self.rng
        brands = ["".join(rng.choices(syllables, k=rng.choice((2, 3)))).title() for _ in range(45)]
        return list(dict.fromkeys(f"{rng.choice(brands)} {rng.choice(nouns)}" for _ in range(160)))

    def _new_towns(self, count: int) -> list[Town]:
        towns = []
        for name in dict.fromkeys(self._fake.city() for _ in range(count)):
            couriers = tuple(self._new_name() for _ in range(self.rng.randint(2, 4)))
            postcode = self.rng.randint(10_000, 99_000)
            towns.append(Town(name, self._fake.state_abbr(), postcode, couriers))
        return towns

    def _new_customers(self, count: int) -> list[Customer]:
        customers: list[Customer] = []
        width = max(5, len(str(count)))
        while len(customers) < count:
            size = self.rng.choices(HOUSEHOLD_SIZES, _HOUSEHOLD_WEIGHTS)[0]
            customers += self._new_household("", min(size, count - len(customers)))
        # Households must not be runs of ids: an id says nothing about who lives with whom.
        self.rng.shuffle(customers)
        for number, customer in enumerate(customers, 1):
            customer.id = f"c{number:0{width}d}"
        return customers

    def _new_household(self, id_: str, size: int) -> list[Customer]:
        rng = self.rng
        address, town = self.new_address()
        phone, family = self.new_phone(), rng.choice(self._lasts)
        members = []
        for _ in range(size):
            last = family if rng.random() < 0.8 else rng.choice(self._lasts)
            name = self._new_name(last)
            own = phone if rng.random() < 0.6 else self.new_phone()
            first = name.split()[0]
            email = self.new_email(first, last)
            members.append(Customer(id_, first, name, town, address, own, email))
        return members

    def _new_name(self, last: str | None = None) -> str:
        """A full name that nobody else has; a middle initial parts namesakes."""
        rng = self.rng
        last = last or rng.choice(self._lasts)
        name = f"{rng.choice(self._firsts)} {last}"
        while name in self._taken:
            initial = rng.choice("ABCDEFGHJKLMNPRSTW")
            name = f"{rng.choice(self._firsts)} {initial}. {last}"
        self._taken.add(name)
        return name


def _postal_number(rng: random.Random) -> str:
    """A number in the shape of international mail: letters, eight digits, a check digit, US."""
    digits = [rng.randrange(10) for _ in range(8)]
    rest = 11 - sum(w * d for w, d in zip((8, 6, 4, 2, 3, 5, 9, 7), digits, strict=True)) % 11
    check = {10: 0, 11: 5}.get(rest, rest)
    letters = rng.choice("LRCE") + rng.choice("ABCDEFGHJKLMNPRSTUVXYZ")
    return f"{letters}{''.join(map(str, digits))}{check}US"
