"""Who may speak to a SuperLink: other machines' clients, and this machine for all the rest."""

import asyncio
import importlib
import sys
from typing import Any

import pytest
from flwr.superlink import main as superlink

from tacit.federated.superlink import Doors, main


async def _nothing() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _inside(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


def status(path: str, client: str | None, inside: Any = None) -> int:
    """What a request is answered."""
    said: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"",
        "headers": [],
    }
    scope |= {"server": ("10.0.0.5", 9092), "client": (client, 40000) if client else None}
    asyncio.run((inside or Doors(_inside))(scope, _nothing, send))
    return int(said[0]["status"])


@pytest.mark.parametrize("client", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.5"])
def test_this_machine_may_do_all(client: str) -> None:
    assert status("/v1/control/start-run", client) == 200


@pytest.mark.parametrize("client", ["10.0.0.9", "2001:db8::1", "::ffff:10.0.0.9", "unknown", None])
def test_others_come_in_as_clients_only(client: str | None) -> None:
    assert status("/v1/fleet/pull-messages", client) == 200
    for path in ("/v1/control/start-run", "/v1/runtime/push", "/docs", "/v1/fleet", "//v1/fleet/x"):
        assert status(path, client) == 403, path


def test_the_doors_are_on_flowers_own_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower makes its app by a name that we replace; if that moves, this says so."""
    served: list[Any] = []
    # The package has a function of the module's name, so the module is asked for by its own.
    module = importlib.import_module("flwr.superlink.cli.flower_superlink")
    monkeypatch.setattr(module.uvicorn, "run", lambda app, **_: served.append(app))
    monkeypatch.setattr(superlink, "create_app", superlink.create_app)  # put back afterwards
    monkeypatch.setattr(sys, "argv", ["link", "--insecure", "--host", "127.0.0.1", "--port", "1"])
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("FLWR_DISABLE_UPDATE_CHECK", "1")
    main()
    (app,) = served
    for path, client, wanted in (
        ("/v1/control/list-runs", "10.0.0.9", 403),
        ("/docs", "10.0.0.9", 403),
        ("/docs", "127.0.0.1", 200),
        ("/v1/fleet/nothing", "10.0.0.9", 404),
    ):
        assert status(path, client, inside=app) == wanted, (path, client)
