"""Flower's SuperLink with its doors: from other machines only clients may come in.

Flower serves three things at one address: what SuperNodes ask for, what starts runs, and what the
server's own processes ask for. It asks nobody who starts a run for a name; and whoever starts one
has every client run a program of theirs. So all but the first is for this machine alone.

    python -m tacit.federated.superlink --host HOST --port PORT ...   # options of flower-superlink
"""

import ipaddress
from collections.abc import Awaitable, Callable
from typing import Any

CLIENTS = "/v1/fleet/"

Scope = dict[str, Any]
Asgi = Callable[[Scope, Any, Any], Awaitable[None]]


class Doors:
    """Answers 403 to whoever comes from another machine for something that is not for clients."""

    def __init__(self, app: Asgi) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """One request, or the server's own beginning and end."""
        if scope["type"] == "lifespan" or scope["path"].startswith(CLIENTS) or _from_here(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body", "body": b"only from the server's machine"})


def _from_here(scope: Scope) -> bool:
    """Whether a connection begins on this machine: at loopback, or at the address it leads to."""
    client, server = scope.get("client"), scope.get("server")
    try:
        address = ipaddress.ip_address(client[0] if client else "")
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or bool(server and client and client[0] == server[0])


def main() -> None:
    """Run a SuperLink until it is ended."""
    from flwr.superlink import main as superlink
    from flwr.superlink.cli import flower_superlink

    make = superlink.create_app

    def guarded(*given: Any, **named: Any) -> Any:
        app = make(*given, **named)
        app.add_middleware(Doors)  # the last one added is asked first
        return app

    superlink.create_app = guarded
    flower_superlink()


if __name__ == "__main__":
    main()
