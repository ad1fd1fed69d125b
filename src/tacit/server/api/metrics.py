"""Counts for Prometheus; none of them is about text or about a person."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tacit.server.services import Services


class Metrics:
    """The counts of one server."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "tacit_requests", "Requests by route and answer.", ["method", "route", "status"],
            registry=self._registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "tacit_request_seconds", "Time to an answer.", registry=self._registry
        )
        self._jobs = Gauge("tacit_jobs", "Jobs by state.", ["state"], registry=self._registry)

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """One request."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.observe(seconds)

    def text(self) -> str:
        """As Prometheus reads it."""
        counts = self._services.jobs.counts()
        for state in ("queued", "running", "done", "failed", "cancelled", "deleted"):
            self._jobs.labels(state).set(counts.get(state, 0))
        return generate_latest(self._registry).decode()
