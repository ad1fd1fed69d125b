"""Who calls, and whether they may."""

from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

from fastapi import Depends, Path, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from tacit.server.errors import NotAllowed
from tacit.server.identity import Caller, Permission
from tacit.server.services import Services

_PERMISSIONS: dict[Callable[..., Any], Permission] = {}
"""Which permission each dependency asks for."""

_bearer = HTTPBearer(auto_error=False, description="A token that an admin of the server gave out.")

REFUSALS: dict[int | str, dict[str, Any]] = {
    401: {"description": "No token, or none that is valid."},
    403: {"description": "The token does not allow this."},
    404: {"description": "Nothing of that name, or not for you."},
    409: {"description": "Refused for privacy, or it contradicts what is there."},
    413: {"description": "Too large."},
    422: {"description": "Not accepted; the message says why."},
    429: {"description": "Too much at once; try again."},
}


async def services_of(request: Request) -> Services:
    """The services of this app; not a plain function, which would be given a thread each time."""
    services: Services = request.app.state.services
    return services


async def caller_of(
    request: Request,
    given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Caller:
    """Who has the token of the request: the guard has asked before it let the request in."""
    caller: Caller = request.state.caller
    return caller


def need(permission: Permission) -> Callable[..., Any]:
    """A dependency: a caller who has the permission."""

    async def allowed(caller: Annotated[Caller, Depends(caller_of)]) -> Caller:
        caller.need(permission)
        return caller

    _PERMISSIONS[allowed] = permission
    return allowed


def check(call: Callable[..., Any], caller: Caller) -> None:
    """Refuse a caller whom a call of the API would refuse: what the pages ask before they call it.

    A call that names no caller has no rule, so it is refused whoever asks.
    """
    for hint in get_type_hints(call, include_extras=True).values():
        for mark in getattr(hint, "__metadata__", ()):
            asked = getattr(mark, "dependency", None)
            if asked is caller_of:
                return
            if asked in _PERMISSIONS:
                caller.need(_PERMISSIONS[asked])
                return
    raise NotAllowed(f"{call.__name__} is not for pages.")


Serving = Annotated[Services, Depends(services_of)]
Known = Annotated[Caller, Depends(caller_of)]
IdPath = Annotated[str, Path(pattern=r"^[a-z0-9]{1,40}$", description="Its id.")]
