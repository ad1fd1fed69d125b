"""Connections with limits: so many, and each sends its request in time.

Somebody who opens connections and never finishes a request would otherwise have them all: a process
has only so many open files. Where there are too many, the one that has waited longest for its
request gives way; one whose request is being answered never does.
"""

import resource
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

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


def limited(settings: ServerSettings) -> type["LimitedProtocol"]:
    """The protocol of one server's connections."""
    names: dict[str, Any] = {"settings": settings, "most": most_connections(settings)}
    return type("OwnProtocol", (LimitedProtocol,), names | {"waiting": {}})


class LimitedProtocol(HttpToolsProtocol):
    """A connection that is `waiting` for its request: for the head, the body, or the next one."""

    settings: ClassVar[ServerSettings]
    most: ClassVar[int]
    waiting: ClassVar[dict["LimitedProtocol", None]]
    """Those whose request is not there yet; the first has waited longest."""
    _sweeping: ClassVar[bool] = False

    def connection_made(self, transport: Any) -> None:
        """Take it, if there is room, or somebody who gives way."""
        super().connection_made(transport)
        self._awaits, self._since, self._head = "head", self.loop.time(), 0
        if len(self.connections) > self.most:
            if not self.waiting:
                transport.write(_FULL)
                transport.close()
                return
            next(iter(self.waiting))._give_up()
        self._wait()

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
                self._give_up()

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
        self._sweep_later()

    def _give_up(self) -> None:
        self.waiting.pop(self, None)
        self._awaits = "nothing"
        self.transport.abort()

    def _late(self) -> bool:
        waited = self.loop.time() - self._since
        if self._awaits == "head":
            return waited > self.settings.head_seconds
        # Where we do not read, it is not for them to send.
        reads = not self.flow.read_paused
        return self._awaits == "body" and reads and waited > self.settings.body_seconds

    def _sweep_later(self) -> None:
        own = type(self)
        if not own._sweeping:
            own._sweeping = True
            self.loop.call_later(_SWEEP_SECONDS, own._sweep)

    @classmethod
    def _sweep(cls) -> None:
        """Let those go that are late."""
        cls._sweeping = False
        for one in [one for one in cls.waiting if one._late()]:
            one._give_up()
        for one in cls.waiting:
            one._sweep_later()
            break
