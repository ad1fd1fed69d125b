"""A server that listens, until somebody stops it."""

import gc
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import uvicorn

from tacit.errors import UsageError
from tacit.server.api import make_app
from tacit.server.connections import context_of, limited
from tacit.server.services import Services
from tacit.server.settings import ServerSettings

Ready = Callable[[str, str | None, str | None], None]
"""Told the address; and at the first start the admin's token, and an address that signs in once."""


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        # Whoever reads the address may come at once; they wait in line until we are up.
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise UsageError(
            f"Cannot listen on host={host}, port={port} ({error.strerror}); give another --port, "
            "or stop what uses it."
        ) from None


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
    with ExitStack() as stack:
        listening = _listen(host, port)
        stack.callback(listening.close)
        context = context_of(*tls) if tls is not None else None
        services = Services.open(settings)
        stack.callback(services.close)
        shown = f"[{host}]" if ":" in host else host
        scheme = "https" if tls is not None else "http"
        address = f"{scheme}://{shown}:{listening.getsockname()[1]}"
        app = make_app(services)
        if pages:
            # Only where they are wanted: the component library takes a second to load.
            from tacit.server.pages import mount_pages

            # Whoever has a proxy before it has it speak https.
            mount_pages(app, services, secure=tls is not None or bool(settings.trusted_proxies))
        config = uvicorn.Config(
            app, http=limited(settings, context), log_level="warning", access_log=False,
            server_header=False, proxy_headers=bool(settings.trusted_proxies),
            forwarded_allow_ips=settings.trusted_proxies, timeout_keep_alive=30,
            timeout_graceful_shutdown=3,
        )  # fmt: skip
        token = services.identity.first_admin()
        code = services.sessions.code_for(token) if pages and token is not None else None
        ready(address, token, f"{address}/sign-in?code={code}" if code else None)
        # A shell's background job ignores Ctrl-C; a server must be stoppable all the same.
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        # What is loaded by now stays: to look through all of it for garbage, again and again, would
        # stop every request for a fifth of a second each time.
        gc.collect()
        gc.freeze()
        uvicorn.Server(config).run(sockets=[listening])
