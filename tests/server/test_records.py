"""Records: none lost, none doubled, none shown to others, none left when forgotten."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.people import everybody, somebody
from tacit.errors import TacitError, UsageError
from tacit.server.errors import Conflict, NotFound, TooLarge
from tacit.server.identity import Caller
from tacit.server.records import Draft
from tacit.server.services import Services


def dataset_of(services: Services, admin: Caller, name: str = "diary") -> str:
    return str(services.datasets.add(name, admin, limits={"users": 8})["id"])


def add(
    services: Services, dataset: str, caller: Caller, *texts: str, key: str | None = None
) -> tuple[str, ...]:
    user = "ann" if caller.role == "admin" else None
    drafts = [Draft(text, user) for text in texts]
    return services.records.append(dataset, caller, drafts, key).result(30).records


def test_what_many_send_at_once_is_all_there_once(services: Services) -> None:
    people = everybody(services)
    dataset, sender = dataset_of(services, people["admin"]), people["contributor"]

    def send(number: int) -> str:
        # Everybody sends everything twice, as clients do whose first answer was lost.
        first = add(services, dataset, sender, f"text {number}", key=f"k{number}")
        again = add(services, dataset, sender, f"text {number}", key=f"k{number}")
        assert first == again
        return first[0]

    with ThreadPoolExecutor(16) as pool:
        names = list(pool.map(send, range(150)))
    assert len(set(names)) == 150
    assert services.records.counts(dataset) == {"records": 150, "users": 1}
    kept = {row["text"] for row in services.records.corpus(dataset).table.to_pylist()}
    assert kept == {f"text {n}" for n in range(150)}


def test_the_same_key_at_the_same_moment_is_one_record(services: Services) -> None:
    people = everybody(services)
    dataset, sender = dataset_of(services, people["admin"]), people["contributor"]
    start = threading.Barrier(12)

    def send(_: int) -> tuple[str, ...]:
        start.wait()
        return add(services, dataset, sender, "one", "two", key="the key")

    with ThreadPoolExecutor(12) as pool:
        assert len(set(pool.map(send, range(12)))) == 1
    assert services.records.counts(dataset)["records"] == 2


def test_a_key_is_about_one_text_one_owner_and_one_dataset(services: Services) -> None:
    admin, ann, bob = (
        somebody(services, "admin"),
        somebody(services, "contributor", "ann"),
        somebody(services, "contributor", "bob"),
    )
    one, other = dataset_of(services, admin), dataset_of(services, admin, "other")
    first = add(services, one, ann, "a text", key="k")
    with pytest.raises(Conflict, match="another text"):
        add(services, one, ann, "another text", key="k")
    assert first != add(services, one, bob, "a text", key="k")
    assert first != add(services, other, ann, "a text", key="k")
    assert services.records.counts(one) == {"records": 2, "users": 2}


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4), st.booleans()), max_size=25))
def test_any_order_of_sends_retries_and_deletions(
    lite: Services, steps: list[tuple[int, int, bool]]
) -> None:
    """Against a dictionary: a key stores its records once, and what is forgotten stays so."""
    admin = lite.identity.add_account(f"admin {len(lite.identity.accounts())}", "admin")
    caller = lite.identity.caller(lite.identity.add_token(admin["id"])["token"])
    dataset = dataset_of(lite, caller, f"set {len(lite.datasets.all())}")
    stored: dict[int, int] = {}
    gone: set[int] = set()
    for key, size, delete in steps:
        if delete:
            lite.records.forget(dataset, owner=None, user=f"u{key}")
            gone |= {key} & stored.keys()
            continue
        size = stored.setdefault(key, size)
        drafts = [Draft(f"text {key} {n}", f"u{key}") for n in range(size)]
        lite.records.append(dataset, caller, drafts, f"k{key}").result(30)
    expected = sum(size for key, size in stored.items() if key not in gone)
    assert lite.records.counts(dataset)["records"] == expected


def test_a_contributor_sees_and_deletes_their_own_only(services: Services) -> None:
    admin = somebody(services, "admin")
    ann, bob = (somebody(services, "contributor", name) for name in ("ann", "bob"))
    dataset = dataset_of(services, admin)
    (mine,) = add(services, dataset, ann, "ann's own")
    (theirs,) = add(services, dataset, bob, "bob's own")
    # What an admin brought for ann is ann's as well.
    (brought,) = add(services, dataset, admin, "about ann's day")
    seen = {row["id"] for row in services.records.page(dataset, owner=ann)}
    assert seen == {mine, brought}
    with pytest.raises(NotFound):
        services.forget(dataset, ann, record=theirs)
    assert services.forget(dataset, ann)["deleted"] == 2
    assert [r["id"] for r in services.records.page(dataset, owner=None)] == [theirs]


def test_a_contributor_writes_as_themself(lite: Services) -> None:
    admin, ann = somebody(lite, "admin"), somebody(lite, "contributor", "ann")
    dataset = dataset_of(lite, admin)
    with pytest.raises(UsageError, match="another user"):
        lite.records.append(dataset, ann, [Draft("a text", "bob")])
    with pytest.raises(UsageError, match="has no user"):
        lite.records.append(dataset, admin, [Draft("a text")])


def test_a_late_retry_does_not_bring_back_what_was_forgotten(services: Services) -> None:
    admin, ann = somebody(services, "admin"), somebody(services, "contributor", "ann")
    dataset = dataset_of(services, admin)
    add(services, dataset, ann, "a secret", key="k")
    assert services.forget(dataset, ann)["deleted"] == 1
    add(services, dataset, ann, "a secret", key="k")
    assert services.records.counts(dataset)["records"] == 0
    add(services, dataset, ann, "something new", key="k2")
    assert services.records.counts(dataset)["records"] == 1


@pytest.mark.parametrize(
    "draft",
    [
        Draft(""),
        Draft("  \n"),
        Draft("a\0b"),
        Draft("\ud800"),
        Draft("x" * 100_001),
        Draft("fine", label="a\0"),
        Draft("fine", split="nowhere"),
    ],
)
def test_what_cannot_be_stored_is_refused_without_quoting_it(lite: Services, draft: Draft) -> None:
    people = everybody(lite)
    dataset = dataset_of(lite, people["admin"])
    with pytest.raises(TacitError) as refused:
        lite.records.append(dataset, people["contributor"], [draft])
    assert draft.text.strip() == "" or draft.text not in str(refused.value)


def test_a_good_neighbour_is_stored_although_another_fails(services: Services) -> None:
    """Records that are committed together fail one by one."""
    people = everybody(services)
    dataset, ann = dataset_of(services, people["admin"]), people["contributor"]
    good = [services.records.append(dataset, ann, [Draft(f"text {n}")]) for n in range(20)]
    bad = services.records.append("nowhere", ann, [Draft("lost")])
    more = [services.records.append(dataset, ann, [Draft(f"more {n}")]) for n in range(20)]
    with pytest.raises(NotFound, match="nothing was stored"):
        bad.result(30)
    for one in good + more:
        one.result(30)
    assert services.records.counts(dataset)["records"] == 40


@pytest.mark.parametrize("text", ["naïve café", "日本語", "🤷🏽", "\u202eabc", "a\u0301", "\x7f"])
def test_text_of_the_world_comes_back_as_it_was(services: Services, text: str) -> None:
    people = everybody(services)
    dataset = dataset_of(services, people["admin"])
    add(services, dataset, people["contributor"], text)
    (row,) = services.records.page(dataset, owner=people["contributor"])
    assert row["text"] == text


def test_too_many_at_once_are_refused(lite: Services) -> None:
    people = everybody(lite)
    dataset = dataset_of(lite, people["admin"])
    with pytest.raises(TooLarge, match="at most"):
        lite.records.append(dataset, people["contributor"], [Draft("x")] * 1_000_001)
