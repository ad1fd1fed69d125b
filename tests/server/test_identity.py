"""Who is known, and what they may do."""

import itertools
from collections.abc import Iterator
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.people import everybody, somebody
from tacit.errors import UsageError
from tacit.server.errors import Conflict, NotAllowed, NotAuthenticated, NotFound
from tacit.server.identity import (
    ALLOWED,
    PERMISSIONS,
    ROLES,
    Caller,
    Grant,
    RateLimiter,
    Role,
    granted,
)
from tacit.server.services import Services
from tacit.server.storage import Token, now


def test_a_token_is_kept_as_a_digest_only(services: Services) -> None:
    account = services.identity.add_account("ann", "analyst")
    made = services.identity.add_token(account["id"], label="laptop")
    secret = made["token"]
    assert len(secret) == len("tacit_") + 43  # 256 bits
    with services.storage.read() as session:
        row = session.get(Token, made["id"])
        assert row is not None
        assert secret not in str(vars(row))
        assert len(row.digest) == 64
    assert services.identity.caller(secret).name == "ann"
    assert "token" not in services.identity.tokens()[0]


def test_a_revoked_token_is_worth_nothing_at_once(services: Services) -> None:
    account = services.identity.add_account("ann", "analyst")
    made = services.identity.add_token(account["id"])
    services.identity.caller(made["token"])
    assert services.identity.cached(made["token"]) is not None
    services.identity.revoke(made["id"])
    assert services.identity.cached(made["token"]) is None
    with pytest.raises(NotAuthenticated, match="revoked"):
        services.identity.caller(made["token"])
    with pytest.raises(NotFound):
        services.identity.revoke("nothing")


def test_a_disabled_account_and_an_old_token_are_not_known(lite: Services) -> None:
    account = lite.identity.add_account("ann", "analyst")
    old = lite.identity.add_token(account["id"], days=-1)
    with pytest.raises(NotAuthenticated, match="expired"):
        lite.identity.caller(old["token"])
    made = lite.identity.add_token(account["id"])
    lite.identity.change_account(account["id"], disabled=True)
    with pytest.raises(NotAuthenticated):
        lite.identity.caller(made["token"])


@pytest.mark.parametrize("wrong", ["", "tacit_", "tacit_" + "a" * 43, "x" * 10_000, "\ud800"])
def test_any_other_word_is_no_token(lite: Services, wrong: str) -> None:
    with pytest.raises(NotAuthenticated):
        lite.identity.caller(wrong)


@pytest.mark.parametrize("role", ROLES)
def test_a_role_allows_what_it_says_and_no_more(lite: Services, role: Role) -> None:
    caller = somebody(lite, role)
    for permission in PERMISSIONS:
        if permission in ALLOWED[role]:
            caller.require(permission)
        else:
            with pytest.raises(NotAllowed):
                caller.require(permission)


def test_a_token_can_have_less_than_its_role_and_never_more(lite: Services) -> None:
    account = lite.identity.add_account("ann", "analyst")
    made = lite.identity.add_token(account["id"], scopes=["plan"])
    assert lite.identity.caller(made["token"]).permissions == {"plan"}
    with pytest.raises(UsageError, match="records:any"):
        lite.identity.add_token(account["id"], scopes=["records:any"])


def test_a_token_for_one_dataset_knows_of_no_other(lite: Services) -> None:
    admin = somebody(lite, "admin")
    one, other = (lite.datasets.add(n, admin, limits={"users": 1})["id"] for n in ("one", "other"))
    account = lite.identity.add_account("ann", "analyst")
    token = lite.identity.add_token(account["id"], dataset=one)["token"]
    caller = lite.identity.caller(token)
    caller.require_dataset(one)
    with pytest.raises(NotFound):
        caller.require_dataset(other)
    assert [d["id"] for d in lite.datasets.all(caller.dataset)] == [one]


def test_passwords_are_long_hashed_and_checked(lite: Services) -> None:
    with pytest.raises(UsageError, match="12 or more"):
        lite.identity.add_account("bob", "admin", "short")
    lite.identity.add_account("bob", "admin", "a long enough one")
    assert lite.identity.check_password("bob", "a long enough one").role == "admin"
    for name, password in (("bob", "another long one"), ("nobody", "a long enough one")):
        with pytest.raises(NotAuthenticated, match="name or the password"):
            lite.identity.check_password(name, password)


def test_names_are_unique_and_the_last_admin_stays(lite: Services) -> None:
    admin = everybody(lite)["admin"]
    with pytest.raises(Conflict, match="already"):
        lite.identity.add_account(admin.name, "consumer")
    with pytest.raises(Conflict, match="last admin"):
        lite.identity.change_account(admin.account, disabled=True)


@given(st.integers(1, 50), st.integers(1, 200))
def test_a_bucket_gives_its_burst_and_no_more_at_once(burst: int, asked: int) -> None:
    rates = RateLimiter(0.0, burst)
    given_ = [rates.allows("ann") for _ in range(asked)]
    assert sum(given_) == min(burst, asked)
    assert rates.allows("bob")


# --- what a token may grant ---------------------------------------------------------------------

SOON, LATER = (now() + timedelta(days=days) for days in (1, 9))
SCOPES: list[list[str] | None] = [None, ["accounts", "models:use"]]
SCOPES += [[permission] for permission in PERMISSIONS]


def _granters() -> Iterator[Caller]:
    """An admin with every kind of token, and somebody of each other role."""
    for scopes, dataset, expires in itertools.product(SCOPES, (None, "mine"), (None, SOON)):
        allowed = ALLOWED["admin"] & frozenset(scopes or PERMISSIONS)
        yield Caller("me", "me", "admin", "t", allowed, dataset, expires)
    for role in ROLES:
        yield Caller("me", "me", role, "t", ALLOWED[role])


def test_no_token_grants_more_than_it_has() -> None:
    """Whoever grants, whatever is asked for: rights, dataset and lifetime do not grow."""
    given_out = refused = 0
    asked = itertools.product(
        ROLES, ("me", "other"), SCOPES, (None, "mine", "another"), (None, SOON, LATER)
    )
    cases = list(asked)
    for granter in _granters():
        for role, account, scopes, dataset, expires in cases:
            if scopes is not None and not set(scopes) <= ALLOWED[role]:
                continue
            try:
                made = granted(granter, account, role, Grant(scopes, dataset, expires))
            except (NotAllowed, NotFound):
                refused += 1
                continue
            given_out += 1
            rights = ALLOWED[role] & frozenset(made.scopes or ALLOWED[role])
            assert rights <= granter.permissions
            assert made.scopes is None or rights == set(made.scopes)
            assert granter.dataset in (None, made.dataset)
            assert granter.expires is None or made.expires is not None
            assert granter.expires is None or made.expires <= granter.expires
            if account != granter.account and rights & {"records:own", "records:add"}:
                assert granter.may("records:any"), "as somebody else is as anybody"
    assert given_out > 1000
    assert refused > 1000


def test_a_limited_token_opens_no_other_way_in(lite: Services) -> None:
    """Not by a token, an account with a password, a new password, or an account opened again."""
    identity = lite.identity
    admin = identity.add_account("boss", "admin")
    other = identity.add_account("other boss", "admin", "a long password")
    identity.change_account(other["id"], disabled=True)
    full = identity.caller(identity.add_token(admin["id"])["token"])
    dataset = lite.datasets.add("diary", full, limits={"users": 1})["id"]
    for limit in ({"scopes": ["accounts"]}, {"dataset": dataset}, {"days": 1}):
        by = identity.caller(identity.add_token(admin["id"], **limit)["token"])
        with pytest.raises(NotAllowed):
            identity.add_account("third boss", "admin", "a long password", by=by)
        for change in ({"password": "another password"}, {"disabled": False}):
            with pytest.raises(NotAllowed):
                identity.change_account(other["id"], by=by, **change)
        made = identity.add_token(admin["id"], by=by)
        again = identity.caller(made["token"])
        assert again.permissions <= by.permissions
        assert (again.dataset, again.expires) == (by.dataset, by.expires)
    assert identity.add_account("fourth boss", "admin", "a long password", by=full)
    assert identity.change_account(other["id"], disabled=False, by=full)
