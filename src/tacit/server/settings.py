"""Where a server keeps things, and how much it accepts."""

from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path

from tacit.errors import UsageError

KIB, MIB = 1 << 10, 1 << 20

FIRST_SIGN_IN = "first-sign-in.txt"
"""How to sign in for the first time, in the folder, where the output is no terminal."""


@dataclass(frozen=True)
class ServerSettings:
    """Everything that decides how a server runs; the defaults are those of `tacit serve`."""

    folder: Path
    database: str | None = None
    """A SQLAlchemy address; a SQLite file in the folder if not given."""
    jobs: int = 1
    """Child processes at once; with 0, workers do everything."""
    worker_lost_seconds: float = 60.0
    """Without a word from a worker, after which its job is nobody's."""
    work_bytes: int = 8192 * MIB
    """Of what a worker sends at once: weights, among other things."""
    queue: int = 20
    """Jobs that may wait."""
    resumes: int = 3
    """How often a run whose process died is taken up again by itself."""
    poll_seconds: float = 0.25
    requests_per_second: float = 100.0
    burst: int = 400
    """For each token; strangers have a tenth of it together, by address."""
    body_bytes: int = 1 * MIB
    upload_bytes: int = 256 * MIB
    unpacked_bytes: int = 1024 * MIB
    """Of a file that is compressed, or Parquet, once it is unpacked."""
    upload_records: int = 1_000_000
    text_characters: int = 100_000
    waiting_records: int = 20_000
    """Records that may wait for the writer before callers are told to come back."""
    models_in_memory: int = 2
    predictions_per_second: float = 20.0
    prediction_burst: int = 40
    """Questions to models, for each token; they cost more than other requests."""
    predictions_per_second_of_role: float = 200.0
    prediction_burst_of_role: int = 400
    """For all tokens of a role together."""
    waiting_predictions: int = 256
    waiting_predictions_of_token: int = 32
    prediction_deadline: float = 30.0
    """Seconds after which a question is refused that still waits for its answer."""
    prediction_seconds: float = 10.0
    """Seconds of computing after which an answer is as long as it is by then."""
    prediction_kill_seconds: float = 25.0
    """Seconds after which its process is killed, loading the model included."""
    welcome: bool = True
    """Whether strangers see a front page; else they are asked to sign in."""
    connections: int = 1000
    """Open at once, and fewer where the process may not have so many files open."""
    head_seconds: float = 10.0
    """For the head of a request to arrive."""
    body_seconds: float = 20.0
    """Within which more of a request's body must arrive."""
    trusted_proxies: str = ""
    """Addresses and networks, with commas, whose word for a client's address and scheme counts."""
    free_bytes: int = 256 * MIB
    """With less room on the disk, the server says that it is not well."""
    writer_seconds: float = 30.0
    """After which a write that has not ended is a reason to look."""
    kill_after_seconds: float = 5.0
    lease_seconds: float = 2.0
    """How often a server looks whether the database is still its own."""
    lease_wait_seconds: float = 10.0
    """How long a start waits for a server that is just ending."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder).absolute())
        for proxy in filter(None, self.trusted_proxies.split(",")):
            try:
                ip_network(proxy.strip())
            except ValueError:
                raise UsageError(
                    "trusted_proxies has something that is no address or network; give "
                    "127.0.0.1,10.0.0.0/8."
                ) from None
        if self.jobs < 0:
            raise UsageError(f"jobs={self.jobs} is too small; give 0 or more.")
        for name in (
            "queue",
            "burst",
            "connections",
            "body_bytes",
            "upload_bytes",
            "upload_records",
        ):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)} is too small; give 1 or more.")

    @property
    def address(self) -> str:
        """The database's address, with the driver that is installed with the server."""
        if self.database is None:
            return f"sqlite:///{self.folder / 'tacit.db'}"
        for plain in ("postgresql://", "postgres://"):
            if self.database.startswith(plain):
                return "postgresql+psycopg://" + self.database.removeprefix(plain)
        if not self.database.startswith(("sqlite:///", "postgresql+psycopg://")):
            raise UsageError(
                "database is neither SQLite nor PostgreSQL; give sqlite:///FILE or "
                "postgresql://USER@HOST/NAME."
            )
        return self.database

    def job_folder(self, job: str) -> Path:
        """Where a job keeps its snapshot, log and results."""
        return self.folder / "jobs" / job
