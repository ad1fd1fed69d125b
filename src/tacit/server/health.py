"""Whether a server works: its disk, its database, its writer; and whether it may be asked now."""

import shutil
import tempfile
from dataclasses import dataclass

from tacit.server import Json
from tacit.server.errors import Unavailable
from tacit.server.jobs import Jobs
from tacit.server.lease import Lease
from tacit.server.records import Records
from tacit.server.settings import ServerSettings
from tacit.server.storage import Fact, Storage


@dataclass(frozen=True)
class Health:
    """What an operator's probes look at; nothing in it is about text or a person."""

    settings: ServerSettings
    storage: Storage
    records: Records
    jobs: Jobs
    lease: Lease

    def checks(self) -> Json:
        """What works: all of it, or an operator should look."""
        checks = {
            "disk": self._disk(),
            "database": self._database(),
            "writer": self.records.works(),
        }
        return {"ok": all(checks.values()), **checks}

    def readiness(self) -> Json:
        """Whether requests should be sent here now: it may be well, and busy or taken over."""
        ready = {
            **self.checks(),
            "lease": self.lease.held,
            "room": self.records.has_room(),
            "queue": self.jobs.works(),
        }
        return ready | {"ok": all(ready.values())}

    def _disk(self) -> bool:
        """Whether something can be written, and there is room for more."""
        folder = self.settings.folder
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"x")
            return shutil.disk_usage(folder).free >= self.settings.free_bytes
        except OSError:
            return False

    def _database(self) -> bool:
        try:
            return self.storage.get(Fact, "folder") is not None
        except Unavailable:
            return False
