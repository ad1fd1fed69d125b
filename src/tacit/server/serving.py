"""A server that listens, until somebody stops it."""

import gc
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from tacit.errors import UsageError
from tacit.server.api import make_app
from tacit.server.services import Services
from tacit.server.settings import ServerSettings

Ready = Callable[[str, str | None, str | None], None]
"""Told the address; and at the first start the admin's token, and an address that signs in once."""


def serve_forever(
    settings: ServerSettings,
    host: str,
    port: int,
    ready: Ready,
    *,
    tls: tuple[Path, Path | None] | None = None,
    pages: bool = True,
) -> None:
    """Open the services, listen, and close them in order when told to stop."""
    listening = _listen(host, port)
    try:
        services = Services.open(settings)
    except BaseException:
        listening.close()
        raise
    try:
        address = _address(host, listening.getsockname()[1], tls is not None)
        app = make_app(services)
        if pages:
            # Only where they are wanted: the component library takes a second to load.
            from tacit.server.pages import mount_pages

            mount_pages(app, services, secure=tls is not None)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=3,
            ssl_certfile=str(tls[0]) if tls else None,
            ssl_keyfile=str(tls[1]) if tls else None,
        )
        token = services.identity.first_admin()
        code = services.sessions.code_for(token) if pages and token is not None else None
        # Whoever reads the address may come at once; they wait in line until we are up.
        listening.listen(2048)
        ready(address, token, f"{address}/sign-in?code={code}" if code else None)
        # A shell's background job ignores Ctrl-C; a server must be stoppable all the same.
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        # What is loaded by now stays: to look through all of it for garbage, again and again, would
        # stop every request for a fifth of a second each time.
        gc.collect()
        gc.freeze()
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        services.close()


def _listen(host: str, port: int) -> socket.socket:
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(kind, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise UsageError(
            f"host={host}, port={port} cannot be used ({error.strerror}); give another --port, or "
            "stop what is there."
        ) from None
    return listening


def _address(host: str, port: int, tls: bool) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{shown}:{port}"
