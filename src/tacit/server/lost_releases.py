"""What workers may have released that were lost: nobody knows, so all of it is charged."""

import json
from pathlib import Path

from tacit.errors import DataError, TacitError
from tacit.files import whole_file
from tacit.privacy.events import read_event, write_event
from tacit.privacy.ledger import Releases
from tacit.server.budget import together

_FILE = "lost.json"


def lost_of(folder: Path) -> Releases:
    """What the workers of a job may have released beside what its ledger holds."""
    try:
        read = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        return {read_event(event): int(count) for event, count in read}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, TacitError):
        raise DataError("What a lost worker may have released cannot be read.") from None


def note_lost(folder: Path, more: Releases) -> None:
    """Add to it, before anybody else goes on with the run."""
    rows = [[write_event(event), count] for event, count in together(lost_of(folder), more).items()]
    with whole_file(folder / _FILE) as draft:
        draft.write_text(json.dumps(rows, allow_nan=False), encoding="utf-8")
