"""One page in one browser: what its reader may ask for, and how they are answered.

A page has no way to the data but `PageContext.call`, which makes a call of the API as the one who
signed in: the same function, the same permission, the same entry in the audit log, the same rate.
"""

import inspect
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from nicegui import ui
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from tacit.errors import TacitError
from tacit.server import Json
from tacit.server.api.access import RequestContext, check
from tacit.server.api.middleware import INTERNAL_ERROR, AccessGate, log_internal
from tacit.server.errors import NotAuthenticated, NotFound, without_paths
from tacit.server.identity import Caller, Permission, form_key
from tacit.server.pages.rendering import fragment
from tacit.server.services import Services

_ID = re.compile(r"[a-z0-9]{1,40}")


class Notice:
    """A place for a sentence; empty it takes no room, and a screen reader is told of changes."""

    def __init__(self, sentence: str = "", kind: str = "bad") -> None:
        self._html = ui.html("", sanitize=False).props('role="status" aria-live="polite"')
        if sentence:
            self.show(sentence, kind)

    def show(self, sentence: str, kind: str = "bad") -> None:
        """Show it: `bad`, `warn`, `good` or plain."""
        self._html.set_content(fragment("notice", sentence, kind))

    def clear(self) -> None:
        """Show nothing."""
        self._html.set_content("")


@dataclass(frozen=True)
class PageContext:
    """One page in one browser, of somebody who has signed in."""

    services: Services
    access: AccessGate
    secret: str
    caller: Caller
    """As of when the page was built; what is allowed is asked anew at every call."""
    flash: Json = field(default_factory=dict)
    """What a form that was just sent has to say on the next page."""

    @property
    def form_key(self) -> str:
        """What every form of the page must carry."""
        return form_key(self.secret)

    def may(self, permission: Permission) -> bool:
        """Whether to show a way at all; whether it may be gone is asked when it is."""
        return self.caller.may(permission)

    async def call(self, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Make a call of the API as whoever has signed in."""
        caller = await run_in_threadpool(self.services.sessions.caller, self.secret)
        self.access.limit(caller)
        check(call, caller)
        if any(isinstance(one, str) and "\0" in one for one in (*given, *named.values())):
            raise NotFound("There is no such thing.")
        named["ctx"] = RequestContext(self.services, caller)
        if inspect.iscoroutinefunction(call):
            return await call(*given, **named)
        return await run_in_threadpool(call, *given, **named)

    def on(
        self, act: Callable[..., Awaitable[Any]], notice: Notice | None = None
    ) -> Callable[..., Awaitable[None]]:
        """What a button does; a refusal becomes a sentence in the notice."""

        async def done(*given: Any) -> None:
            kinds = [p.kind for p in inspect.signature(act).parameters.values()]
            takes = sum(kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for kind in kinds)
            try:
                if notice is not None:
                    notice.clear()
                await act(*given[:takes])
            except NotAuthenticated:
                ui.navigate.to("/sign-in")
            except Exception as error:
                sentence = sentence_of(error)
                if notice is not None:
                    notice.show(sentence)
                else:
                    ui.notify(sentence, close_button="Close", timeout=0, multi_line=True)

        return done


def require_id(given: str) -> str:
    """An id as the API takes it; a page of anything else is not there."""
    if not _ID.fullmatch(given):
        raise NotFound("There is no such page.")
    return given


def sentence_of(error: Exception) -> str:
    """What may be said of an error: never what it quotes, unless it is one of ours."""
    if isinstance(error, TacitError):
        return without_paths(str(error))
    if isinstance(error, ValidationError):
        found = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in found["loc"]) or "The request"
        return f"{where}: {found['msg']}."
    log_internal(error)
    return INTERNAL_ERROR
