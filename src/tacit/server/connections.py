"""Connections with limits: so many, and each sends its request in time.

Somebody who opens connections and never finishes a request would otherwise have them all: a process
has only so many open files. Where there are too many, the one that has waited longest for its
request gives way; one whose request is being answered never does.
"""

import asyncio
import math
import resource
import ssl
from asyncio.sslproto import SSLProtocol
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tacit.errors import UsageError
from tacit.server.settings import KIB, ServerSettings

_OTHER_FILES = 256
"""What a server has open besides: the database, logs, processes, uploads."""
_LONGEST_HEAD = 64 * KIB
_SWEEP_SECONDS = 0.5
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Length: 0\r\n\r\n"
)


def most_connections(settings: ServerSettings) -> int:
    """As many as are wanted and as the process may have files open, of which it asks for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.connections + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return settings.connections
    return max(16, min(settings.connections, soft - _OTHER_FILES))


def context_of(certificate: Path, key: Path | None) -> ssl.SSLContext:
    """What is needed to speak https."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ValueError):
        raise UsageError(
            "The certificate and its key cannot be used; give PEM files that belong together."
        ) from None
    return context


def limited(settings: ServerSettings, tls: ssl.SSLContext | None = None) -> Any:
    """What makes the protocol of each of a server's connections."""
    names: dict[str, Any] = {"settings": settings, "most": most_connections(settings)}
    own: Any = type("OwnProtocol", (LimitedProtocol,), names | {"waiting": {}, "doors": set()})
    return own if tls is None else partial(TlsDoor, own, tls)


class LimitedProtocol(HttpToolsProtocol):
    """A connection that is `waiting` for its request: for the head, the body, or the next one."""

    settings: ClassVar[ServerSettings]
    most: ClassVar[int]
    waiting: ClassVar[dict["LimitedProtocol | TlsDoor", None]]
    """Those whose request is not there yet; the first has waited longest."""
    door: "TlsDoor | None" = None
    """By which it came in, over https."""
    doors: ClassVar[set["TlsDoor"]]
    """Those that are still at their handshake."""
    _sweeping: ClassVar[bool] = False

    def connection_made(self, transport: Any) -> None:
        """Take it, if there is room, or somebody who gives way."""
        if self.door is not None:
            self.door.opened()
        super().connection_made(transport)
        self._awaits, self._since, self._head = "head", self.loop.time(), 0
        if not self.make_room(len(self.connections)):
            transport.write(_FULL)
            transport.close()
            return
        self._wait()

    @classmethod
    def make_room(cls, connections: int) -> bool:
        """Let the one that waited longest go, where there are too many."""
        if connections + len(cls.doors) > cls.most:
            if not cls.waiting:
                return False
            next(iter(cls.waiting)).give_up()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self.waiting.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Note when something of a request came; a head may not be endless."""
        if self._awaits == "request":
            self._awaits, self._since, self._head = "head", self.loop.time(), 0
        elif self._awaits == "body":
            self._since = self.loop.time()
        super().data_received(data)
        if self._awaits == "head" and self in self.waiting:
            self._head += len(data)
            if self._head > _LONGEST_HEAD:
                self.give_up()

    def on_headers_complete(self) -> None:
        """The body may be as long in coming as it likes, if it comes."""
        self._awaits, self._since = "body", self.loop.time()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is there: nobody takes its connection away before its answer."""
        super().on_message_complete()
        if self.cycle is not None and not self.cycle.response_complete:
            self._awaits = "answer"
            self.waiting.pop(self, None)

    def on_response_complete(self) -> None:
        """The next request may come."""
        more = bool(self.pipeline)
        super().on_response_complete()
        if not more and not self.transport.is_closing():
            self._awaits, self._since = "request", self.loop.time()
            self._wait()

    def handle_websocket_upgrade(self) -> None:
        """A channel of the pages is no request that is waited for."""
        self.waiting.pop(self, None)
        super().handle_websocket_upgrade()

    def _wait(self) -> None:
        """From now on, behind all others."""
        self.waiting.pop(self, None)
        self.waiting[self] = None
        self.sweep_later(self.loop)

    def give_up(self) -> None:
        """Let it go, without a word."""
        self.waiting.pop(self, None)
        self._awaits = "nothing"
        self.transport.abort()

    def late(self) -> bool:
        """Whether what it waits for should be here by now."""
        waited = self.loop.time() - self._since
        if self._awaits == "head":
            return waited > self.settings.head_seconds
        # Where we do not read, it is not for them to send.
        reads = not self.flow.read_paused
        return self._awaits == "body" and reads and waited > self.settings.body_seconds

    @classmethod
    def sweep_later(cls, loop: asyncio.AbstractEventLoop) -> None:
        """Look after a while whether somebody is late."""
        if not cls._sweeping:
            cls._sweeping = True
            loop.call_later(_SWEEP_SECONDS, cls._sweep, loop)

    @classmethod
    def _sweep(cls, loop: asyncio.AbstractEventLoop) -> None:
        cls._sweeping = False
        for one in [one for one in cls.waiting if one.late()]:
            one.give_up()
        if cls.waiting:
            cls.sweep_later(loop)


class TlsDoor(SSLProtocol):
    """A connection until its handshake is done: it counts, and may be late, as others do."""

    def __init__(self, inside: type[LimitedProtocol], tls: ssl.SSLContext, **options: Any) -> None:
        self._made, self._inside = inside(**options), inside
        self._made.door = self
        loop, seconds = self._made.loop, math.ceil(inside.settings.head_seconds)
        super().__init__(loop, self._made, tls, None, True, ssl_handshake_timeout=seconds)  # type: ignore[arg-type]

    def connection_made(self, transport: Any) -> None:
        """Begin the handshake, if there is room."""
        self._raw, self._since = transport, self._made.loop.time()
        self._inside.doors.add(self)
        if not self._inside.make_room(len(self._made.connections)):
            self.give_up()
            return
        self._inside.waiting[self] = None
        self._inside.sweep_later(self._made.loop)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """It is gone."""
        self.opened()
        super().connection_lost(exc)

    def opened(self) -> None:
        """The handshake is done: from now on it counts as what it has become."""
        self._inside.doors.discard(self)
        self._inside.waiting.pop(self, None)

    def late(self) -> bool:
        """Whether the handshake should be done by now."""
        return self._made.loop.time() - self._since > self._inside.settings.head_seconds

    def give_up(self) -> None:
        """Let it go, without a word."""
        self.opened()
        self._raw.abort()
