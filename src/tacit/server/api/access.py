"""Who calls, and whether they may."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

from fastapi import Depends, Header, Path, Query, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from tacit.server import Json
from tacit.server.errors import Conflict, NotAllowed
from tacit.server.identity import Caller, Permission
from tacit.server.run_requests import RunRequest
from tacit.server.services import Services

_PERMISSIONS: dict[Callable[..., Any], Permission | None] = {}
"""Which permission each dependency asks for; None where any valid token is enough."""

_bearer = HTTPBearer(auto_error=False, description="A token that an admin of the server gave out.")

REFUSALS: dict[int | str, Json] = {
    401: {"description": "No token, or none that is valid."},
    403: {"description": "The token does not allow this."},
    404: {"description": "Nothing of that name, or not for you."},
    409: {"description": "Refused for privacy, or it contradicts what is there."},
    413: {"description": "Too large."},
    422: {"description": "Not accepted; the message says why."},
    429: {"description": "Too much at once; try again."},
}
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[A-Za-z0-9_.:-]{1,128}$",
        description="The same key does the same thing once, however often it is sent.",
    ),
]
After = Annotated[
    str,
    Query(pattern=r"^[a-z0-9]{0,40}$", description="The id of the last one of the page before."),
]
Limit = Annotated[int, Query(ge=1, le=1000, description="At most so many.")]
IdPath = Annotated[str, Path(pattern=r"^[a-z0-9]{1,40}$", description="Its id.")]


@dataclass(frozen=True)
class RequestContext:
    """Who calls, and the services that answer; what a token is not for is not there to it."""

    services: Services
    caller: Caller

    def may(self, permission: Permission) -> bool:
        """Whether the caller has a permission."""
        return self.caller.may(permission)

    def dataset(self, dataset: str) -> str:
        """The id of a dataset that is there for the caller."""
        self.caller.require_dataset(dataset)
        return self.services.datasets.require(dataset)

    def job(self, job: str, kind: str | None = None) -> Json:
        """A job that is there for the caller."""
        found = self.services.jobs.get(job, kind)
        self.caller.require_dataset(found["dataset"])
        return found

    def require_named(self, asked: RunRequest) -> None:
        """Refuse a request that names a model or a dataset which is not there for the caller."""
        if asked.continue_from is not None:
            self.job(asked.continue_from, "train")
        if asked.public_start is not None:
            self.dataset(asked.public_start.dataset)

    def finished_run(self, run: str) -> Json:
        """A run that is done."""
        found = self.job(run, "train")
        if found["state"] != "done":
            raise Conflict(f"The run is {found['state']}; wait until it is done.")
        return found

    def note(self, what: str, target: str = "", outcome: str = "done") -> None:
        """An entry of the audit log."""
        self.services.note(self.caller, what, target, outcome)


def requires(permission: Permission | None) -> Any:
    """A dependency: the context of a caller who has the permission."""

    # Not a plain function, which would be given a thread each time. The middleware has looked up
    # the token before it let the request in; `_bearer` describes it.
    async def context(
        request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
    ) -> RequestContext:
        caller: Caller = request.state.caller
        if permission is not None:
            caller.require(permission)
        return RequestContext(request.app.state.services, caller)

    _PERMISSIONS[context] = permission
    return Depends(context)


AnyCaller = Annotated[RequestContext, requires(None)]


def check(call: Callable[..., Any], caller: Caller) -> None:
    """Refuse a caller whom a call of the API would refuse: what the pages ask before they call it.

    A call that takes no context has no rule, so it is refused whoever asks.
    """
    for hint in get_type_hints(call, include_extras=True).values():
        for mark in getattr(hint, "__metadata__", ()):
            asked = getattr(mark, "dependency", None)
            if asked in _PERMISSIONS:
                permission = _PERMISSIONS[asked]
                if permission is not None:
                    caller.require(permission)
                return
    raise NotAllowed(f"{call.__name__} is not for pages.")
