"""Accounts, roles, tokens and sessions: who may do what; and the audit log: who did it.

A role is a set of permissions; a token has those of its account, or fewer. A token is a random
256-bit number that is shown once: the database has its SHA-256, which is enough to know it again
and no help to whoever reads the database. Passwords, where the pages use them, are kept by argon2.

A session of the pages is such a number in a cookie; the database has its SHA-256, whose it is, and
the token by which they came in, if it was one. What the session may do is looked up at every use:
it ends with its account, its token, its password or its day.
"""

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Literal, get_args

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from sqlalchemy import select, update

from tacit.errors import UsageError
from tacit.server import Json
from tacit.server.errors import Conflict, NotAllowed, NotAuthenticated, NotFound
from tacit.server.storage import (
    Account,
    AuditEntry,
    Dataset,
    PageSession,
    Storage,
    Token,
    fields_of,
    new_id,
    now,
    require,
)

Role = Literal["admin", "analyst", "contributor", "consumer", "worker"]
ROLES: tuple[Role, ...] = get_args(Role)

Permission = Literal[
    "accounts", "audit-log", "datasets:write", "datasets:read", "records:add", "records:own",
    "records:any", "budget:read", "detect", "entity-lists", "plan", "runs:write", "runs:read",
    "attack", "models:use", "work",
]  # fmt: skip
PERMISSIONS: tuple[Permission, ...] = get_args(Permission)

ALLOWED: dict[Role, frozenset[Permission]] = {
    "admin": frozenset(PERMISSIONS),
    "analyst": frozenset(
        ("datasets:read", "budget:read", "detect", "entity-lists", "plan", "runs:write",
         "runs:read", "attack", "models:use")
    ),
    "contributor": frozenset(("datasets:read", "records:add", "records:own")),
    "consumer": frozenset(("models:use",)),
    "worker": frozenset(("work",)),
}  # fmt: skip
"""What each role may do; whatever is not here is refused."""

PREFIX = "tacit_"
SHORTEST_PASSWORD = 12
_HASHER = PasswordHasher()
_CACHE_SECONDS = 60.0
SESSION_HOURS = 12
CODE_MINUTES = 15
_AUDIT_FIELDS = ("number", "at", "account", "token", "what", "target", "outcome")


@dataclass(frozen=True)
class Caller:
    """Somebody who is known, and what they may do with the token at hand."""

    account: str
    name: str
    role: Role
    token: str | None
    permissions: frozenset[Permission]
    dataset: str | None = None
    """The one dataset that the token is for; any if None."""
    expires: datetime | None = None
    """When the token ends by itself."""

    def require(self, permission: Permission) -> None:
        """Refuse what the role, or the token, does not allow."""
        if permission not in self.permissions:
            raise NotAllowed(f"This token of role {self.role} does not allow {permission}.")

    def require_dataset(self, dataset: str) -> None:
        """Refuse a dataset other than the token's own."""
        if self.dataset is not None and self.dataset != dataset:
            raise NotFound("There is no such dataset.")

    def may(self, permission: Permission) -> bool:
        """Whether it is allowed."""
        return permission in self.permissions


@dataclass(frozen=True)
class Grant:
    """What a token is to allow, as asked for or as it was cut to size."""

    scopes: Sequence[str] | None = None
    dataset: str | None = None
    expires: datetime | None = None


def granted(granter: Caller, account: str, role: Role, asked: Grant) -> Grant:
    """A grant within the rights, the dataset and the lifetime of whoever gives it.

    What is asked for beyond these is refused; what is left open becomes as much as they may give.
    """
    allowed = ALLOWED[role]
    scopes = asked.scopes
    may = frozenset(
        p for p in allowed if not rights_for(account, {p}, granter) - granter.permissions
    )
    if scopes is None and may != allowed:
        scopes = sorted(may)
    beyond = set(scopes or ()) - may
    if beyond or scopes == []:
        what = ", ".join(sorted(beyond)) or "anything that this role may do"
        raise NotAllowed(f"Your own token does not allow {what}, so it cannot grant that.")
    dataset = asked.dataset if asked.dataset is not None else granter.dataset
    if dataset is not None:
        granter.require_dataset(dataset)
    expires = asked.expires
    if granter.expires is not None:
        expires = expires or granter.expires
        if expires > granter.expires:
            raise NotAllowed("Your own token ends before that; give fewer days.")
    return Grant(scopes, dataset, expires)


def rights_for(
    account: str, wanted: Iterable[Permission], granter: Caller
) -> frozenset[Permission]:
    """What somebody must be allowed themself to let an account do something.

    To write or read as somebody else is to reach anybody's text, and so is to train on it.
    """
    rights = set(wanted)
    if "work" in rights:
        rights.add("records:any")
    if account != granter.account and rights & {"records:own", "records:add"}:
        rights.add("records:any")
    return frozenset(rights)


def require_unlimited(granter: Caller, account: str, role: Role) -> None:
    """Refuse to let anybody in who may do more than whoever lets them in, or for longer."""
    missing = rights_for(account, ALLOWED[role], granter) - granter.permissions
    if missing or granter.dataset is not None or granter.expires is not None:
        raise NotAllowed(
            f"Your own token is limited, so it cannot let in an account of role {role} without "
            "limits; use one without."
        )


class Identity:
    """Accounts and tokens of one server."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._hasher = _HASHER
        self._cache: dict[str, tuple[float, Caller]] = {}
        self._changes = 0
        self._lock = threading.Lock()

    # --- accounts -------------------------------------------------------------------------

    def add_account(
        self, name: str, role: Role, password: str | None = None, *, by: Caller | None = None
    ) -> Json:
        """A new account; `by` is whoever makes it, None for the server itself."""
        if role not in ROLES:
            raise UsageError(f"role={role!r} is not known; accepted: {', '.join(ROLES)}.")
        if by is not None and password is not None:
            require_unlimited(by, "", role)
        hashed = self._hashed(password) if password is not None else None
        account = Account(
            id=new_id(), name=name, role=role, password=hashed, disabled=False, created=now()
        )
        self.storage.add(account, f"There is an account {name!r} already; give another name.")
        return _account(account)

    def accounts(self, *, after: str = "", limit: int | None = None) -> list[Json]:
        """All of them, or so many after one."""
        query = select(Account).where(Account.id > after).order_by(Account.id).limit(limit)
        return [_account(a) for a in self.storage.scalars(query)]

    def change_account(
        self, account: str, *, disabled: bool | None = None, password: str | None = None,
        by: Caller | None = None,
    ) -> Json:  # fmt: skip
        """Disable an account, which ends all its tokens; or give it a password."""
        with self.storage.write() as session:
            found = require(session, Account, account)
            if by is not None and (password is not None or disabled is False):
                require_unlimited(by, account, found.role)  # type: ignore[arg-type]
            if disabled is not None:
                admins = select(Account).where(Account.role == "admin", ~Account.disabled)
                others = session.scalars(admins.where(Account.id != account)).all()
                if disabled and found.role == "admin" and not others:
                    raise Conflict("This is the last admin; make another one first.")
                found.disabled = disabled
            if password is not None:
                found.password = self._hashed(password)
                # Whoever signed in with the old one is asked for the new one.
                open_ones = (PageSession.account_id == account, PageSession.ended.is_(None))
                session.execute(update(PageSession).where(*open_ones).values(ended=now()))
            result = _account(found)
        self._drop_cache()
        return result

    def check_password(self, name: str, password: str) -> Caller:
        """The account of that name, if the password is right; the same refusal otherwise."""
        found = next(iter(self.storage.scalars(select(Account).where(Account.name == name))), None)
        # An unknown name takes as long as a wrong password: one check against a digest.
        nobody = _of_nobody(self._hasher)
        kept = (found.password if found else None) or nobody
        try:
            right = bool(self._hasher.verify(kept, password))
        except (VerificationError, InvalidHashError):
            right = False
        if not right or found is None or found.disabled or found.password is None:
            raise NotAuthenticated("The name or the password is wrong.")
        return caller_from(found, None)

    def _hashed(self, password: str) -> str:
        if len(password) < SHORTEST_PASSWORD:
            raise UsageError(
                f"The password has {len(password)} characters; give {SHORTEST_PASSWORD} or more."
            )
        return self._hasher.hash(password)

    # --- tokens ---------------------------------------------------------------------------

    def add_token(
        self, account: str, *, label: str = "", scopes: Sequence[str] | None = None,
        dataset: str | None = None, days: float | None = None, by: Caller | None = None,
    ) -> Json:  # fmt: skip
        """A new token of an account; the only time that it is shown.

        It allows at most what `by` may do themself, None for the server itself.
        """
        expires = now() + timedelta(days=days) if days is not None else None
        grant = Grant(None if scopes is None else list(scopes), dataset, expires)
        with self.storage.write() as session:
            owner = require(session, Account, account)
            role: Role = owner.role  # type: ignore[assignment]
            _check_scopes(role, grant.scopes or ())
            if by is not None:
                grant = granted(by, account, role, grant)
            if grant.dataset is not None:
                require(session, Dataset, grant.dataset)
            secret = PREFIX + secrets.token_urlsafe(32)
            token = Token(
                id=new_id(), account_id=account, digest=digest_of(secret), label=label,
                scopes=None if grant.scopes is None else list(grant.scopes),
                dataset_id=grant.dataset, created=now(), expires=grant.expires,
            )  # fmt: skip
            session.add(token)
            return _token(token, owner.name) | {"token": secret}

    def tokens(self, *, after: str = "", limit: int | None = None) -> list[Json]:
        """All tokens, or so many after one, without what they are."""
        query = select(Token, Account.name).join(Account).where(Token.id > after)
        query = query.order_by(Token.id).limit(limit)
        return [_token(token, name) for token, name in self.storage.rows(query)]

    def revoke(self, token: str) -> None:
        """End a token, from the next request on."""
        with self.storage.write() as session:
            found = require(session, Token, token)
            found.revoked = found.revoked or now()
        self._drop_cache()

    def cached(self, secret: str) -> Caller | None:
        """Who has this token, if that was looked up a moment ago."""
        at, caller = self._cache.get(digest_of(secret), (0.0, None))
        return caller if time.monotonic() - at < _CACHE_SECONDS else None

    def caller(self, secret: str) -> Caller:
        """Who has this token; refused if it is unknown, revoked, out of date or disabled."""
        return self.caller_of_digest(digest_of(secret))

    def caller_of_digest(self, digest: str) -> Caller:
        """The same, of a token that is known by its digest."""
        changes = self._changes
        query = select(Token, Account).join(Account).where(Token.digest == digest)
        found = self.storage.rows(query)
        if not found:
            raise NotAuthenticated("The token is not known; ask an admin of this server for one.")
        token, account = found[0]
        if token.revoked is not None or account.disabled:
            raise NotAuthenticated(
                "The token was revoked; ask an admin of this server for another."
            )
        if token.expires is not None and token.expires < now():
            raise NotAuthenticated(
                "The token has expired; ask an admin of this server for another."
            )
        caller = caller_from(account, token)
        with self._lock:
            if len(self._cache) > 10_000:
                self._cache.clear()
            # Not if a token was revoked meanwhile: it may have been this one.
            if token.expires is None and changes == self._changes:
                self._cache[digest] = (time.monotonic(), caller)
        return caller

    def _drop_cache(self) -> None:
        with self._lock:
            self._changes += 1
            self._cache.clear()

    def first_admin(self) -> str | None:
        """A token of a new admin, where the server has no account yet."""
        if self.accounts(limit=1):
            return None
        admin = self.add_account("admin", "admin")
        return str(self.add_token(admin["id"], label="printed at the first start")["token"])


class RateLimiter:
    """A token bucket for each caller, filled at a steady rate."""

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second, self._burst = per_second, burst
        self._left: dict[str, tuple[float, float]] = {}

    def allows(self, who: str) -> bool:
        """Take one request from a bucket; False if it is empty."""
        at = time.monotonic()
        left, before = self._left.get(who, (float(self._burst), at))
        left = min(self._burst, left + (at - before) * self._per_second)
        if len(self._left) > 100_000:
            self._left.clear()
        self._left[who] = (max(left - 1, 0), at) if left >= 1 else (left, at)
        return left >= 1


@cache
def _of_nobody(hasher: PasswordHasher) -> str:
    """The digest of a password that nobody has."""
    return hasher.hash(secrets.token_hex(16))


def _check_scopes(role: Role, scopes: Sequence[str]) -> None:
    allowed: frozenset[str] = ALLOWED[role]
    for scope in scopes:
        if scope not in allowed:
            raise UsageError(
                f"scopes has {scope!r}, which role {role} does not have; accepted: "
                f"{', '.join(sorted(allowed))}."
            )


def digest_of(secret: str) -> str:
    """What the database has of a token or a session: enough to know it again."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def caller_from(account: Account, token: Token | None) -> Caller:
    """What an account may do, or fewer things with a token of it."""
    role: Role = account.role  # type: ignore[assignment]
    allowed = ALLOWED[role]
    if token is not None and token.scopes is not None:
        allowed = allowed & frozenset(token.scopes)
    if token is None:
        return Caller(account.id, account.name, role, None, allowed)
    return Caller(account.id, account.name, role, token.id, allowed, token.dataset_id,
                  token.expires)  # fmt: skip


def _account(account: Account) -> Json:
    found = fields_of(account, "id", "name", "role", "disabled", "created")
    return found | {"has_password": account.password is not None}


def _token(token: Token, account: str) -> Json:
    names = ("id", "label", "scopes", "dataset", "created", "expires", "revoked")
    return fields_of(token, *names) | {"account": account}


class Sessions:
    """The sessions of one server."""

    def __init__(self, storage: Storage, identity: Identity) -> None:
        self.storage, self.identity = storage, identity
        self._codes: dict[str, tuple[float, str]] = {}
        """Until when a code holds, and the SHA-256 of the token that it stands for."""
        self._lock = threading.Lock()

    def open(self, caller: Caller) -> str:
        """Begin a session of somebody who is known; what their browser is to keep."""
        secret = secrets.token_urlsafe(32)
        row = PageSession(
            digest=digest_of(secret), account_id=caller.account, token_id=caller.token,
            created=now(), expires=now() + timedelta(hours=SESSION_HOURS),
        )  # fmt: skip
        self.storage.add(row)
        return secret

    def caller(self, secret: str) -> Caller:
        """Whose session it is, and what they may do now; refused if it has ended."""
        query = select(PageSession, Account, Token).join(
            Account, PageSession.account_id == Account.id
        )
        query = query.outerjoin(Token, PageSession.token_id == Token.id)
        rows = self.storage.rows(query.where(PageSession.digest == digest_of(secret)))
        found, account, token = rows[0] if rows else (None, None, None)
        ended = found is None or found.ended is not None or found.expires < now()
        if token is not None:
            ended |= token.revoked is not None
            ended |= token.expires is not None and token.expires < now()
        if ended or account is None or account.disabled:
            raise NotAuthenticated("You are signed out; sign in again.")
        return caller_from(account, token)

    def end(self, secret: str) -> None:
        """Sign out."""
        with self.storage.write() as session:
            found = session.get(PageSession, digest_of(secret))
            if found is not None:
                found.ended = found.ended or now()

    # --- a link that signs in once ------------------------------------------------------------

    def code_for(self, token: str) -> str:
        """A code that signs in once, within minutes, as whoever has this token.

        It is printed at the first start in place of the token, which would stay in the browser's
        history; kept in memory only, by its SHA-256.
        """
        code = secrets.token_urlsafe(24)
        with self._lock:
            self._codes[digest_of(code)] = (time.monotonic() + 60 * CODE_MINUTES, digest_of(token))
        return code

    def by_code(self, code: str) -> Caller:
        """Whose code it is; it is worth nothing afterwards."""
        with self._lock:
            until, token = self._codes.pop(digest_of(code), (0.0, ""))
        if until < time.monotonic():
            raise NotAuthenticated(
                "This link was used before, or has expired; sign in with a token."
            )
        return self.identity.caller_of_digest(token)


def form_key(secret: str) -> str:
    """What a page's form must carry, so that no other site can send it; made from the session."""
    return hmac.new(secret.encode(), b"form", hashlib.sha256).hexdigest()


@dataclass(frozen=True)
class AuditLog:
    """Entries that are added and never changed.

    Single records are not listed: each carries its owner and its time. Uploads, deletions and
    every look at text by somebody other than its owner are.
    """

    storage: Storage

    def note(
        self, account: str, what: str, target: str = "", outcome: str = "done", token: str = ""
    ) -> None:
        """Add an entry."""
        entry = AuditEntry(account=account[:100], token_id=token or None, what=what,
                           target=target[:200], outcome=outcome[:200])  # fmt: skip
        self.storage.add(entry)

    def lines(self, *, before: int | None = None, limit: int = 100) -> list[Json]:
        """The latest entries first."""
        query = select(AuditEntry).order_by(AuditEntry.number.desc()).limit(limit)
        if before is not None:
            query = query.where(AuditEntry.number < before)
        return [fields_of(entry, *_AUDIT_FIELDS) for entry in self.storage.scalars(query)]
