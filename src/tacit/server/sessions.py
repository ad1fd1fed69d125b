"""Who has signed in to the pages, and for how long.

A session is a random 256-bit number in a cookie; the database has its SHA-256, whose it is, and the
token by which they came in, if it was one. What the session may do is looked up at every use: it
ends with its account, its token, its password or its day.
"""

import hashlib
import hmac
import secrets
import threading
import time
from datetime import timedelta

from sqlalchemy import select

from tacit.server.errors import NotAuthenticated
from tacit.server.identity import Caller, Identity, caller_from, digest_of
from tacit.server.storage import Account, PageSession, Storage, Token, now

HOURS = 12
CODE_MINUTES = 15


class Sessions:
    """The sessions of one server."""

    def __init__(self, storage: Storage, identity: Identity) -> None:
        self.storage, self.identity = storage, identity
        self._codes: dict[str, tuple[float, str]] = {}
        self._lock = threading.Lock()

    def open(self, caller: Caller) -> str:
        """Begin a session of somebody who is known; what their browser is to keep."""
        secret = secrets.token_urlsafe(32)
        with self.storage.write() as session:
            session.add(
                PageSession(
                    digest=digest_of(secret), account_id=caller.account, token_id=caller.token,
                    created=now(), expires=now() + timedelta(hours=HOURS),
                )
            )  # fmt: skip
        return secret

    def caller(self, secret: str) -> Caller:
        """Whose session it is, and what they may do now; refused if it has ended."""
        with self.storage.read() as session:
            row = session.execute(
                select(PageSession, Account, Token)
                .join(Account, PageSession.account_id == Account.id)
                .outerjoin(Token, PageSession.token_id == Token.id)
                .where(PageSession.digest == digest_of(secret))
            ).first()
        found, account, token = row or (None, None, None)
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
        caller = self.identity.caller(token)
        with self._lock:
            self._codes[digest_of(code)] = (time.monotonic() + 60 * CODE_MINUTES, caller.account)
        return code

    def by_code(self, code: str) -> Caller:
        """Whose code it is; it is worth nothing afterwards."""
        with self._lock:
            until, account = self._codes.pop(digest_of(code), (0.0, ""))
        if until < time.monotonic():
            raise NotAuthenticated(
                "This link was used before, or has expired; sign in with a token."
            )
        with self.storage.read() as session:
            found = session.get(Account, account)
        if found is None or found.disabled:
            raise NotAuthenticated("The account of this link is gone.")
        return caller_from(found, None)


def form_key(secret: str) -> str:
    """What a page's form must carry, so that no other site can send it; made from the session."""
    return hmac.new(secret.encode(), b"form", hashlib.sha256).hexdigest()
