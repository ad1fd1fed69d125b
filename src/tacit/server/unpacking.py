"""A process that reads an uploaded file and writes its records as JSON lines, within limits.

Compressed files and Parquet unpack to any size, and whoever reads damaged ones may crash. Here that
harms nobody: the process has limits of its own, and all that it says is a number or a sentence.
"""

import contextlib
import json
import os
import resource
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from tacit.errors import DataError, TacitError
from tacit.saved_json import spelled
from tacit.server import Json
from tacit.server.child_processes import NOT_PASSED_ON
from tacit.server.errors import TooLarge
from tacit.server.settings import MIB, ServerSettings

_MEMORY = 4096 * MIB
_SECONDS = 600
_NICER = 5
_CANNOT = "The file cannot be read: it is damaged, or unpacks to more than is accepted."


@dataclass(frozen=True)
class Upload:
    """A file, where its records go, and how much of it is accepted."""

    file: str
    out: str
    columns: dict[str, str]
    most_records: int
    most_bytes: int


def unpack(upload: Upload) -> int:
    """Write the records of a file as JSON lines, in a process of its own; how many they are."""
    environment = {k: v for k, v in os.environ.items() if k not in NOT_PASSED_ON}
    command = [
        sys.executable,
        "-m",
        "tacit.server.unpacking",
        json.dumps(asdict(upload), allow_nan=False),
    ]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=environment | {"OMP_NUM_THREADS": "1"}, timeout=_SECONDS, check=False,
        )  # fmt: skip
        said = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        raise DataError(_CANNOT) from None
    if "records" not in said:
        raise (TooLarge if said["error"] == "TooLarge" else DataError)(said["message"])
    return int(said["records"])


def limits_of(settings: ServerSettings) -> dict[str, int]:
    """How much a server accepts of one file."""
    return {"most_records": settings.upload_records, "most_bytes": settings.unpacked_bytes}


def _write(upload: Upload) -> int:
    import pyarrow as pa

    from tacit.corpus import Corpus
    from tacit.corpus.reading import Layout, stream
    from tacit.corpus.reading.casting import without_empty

    path, count, size = Path(upload.file), 0, 0
    with Path(upload.out).open("w", encoding="utf-8") as out:
        for batch in stream(path, Layout(upload.columns)):
            if not batch.num_rows:
                continue
            table = without_empty(pa.Table.from_batches([batch]))
            for record in Corpus(table, name=path.name).records():
                line = json.dumps(record.row(), ensure_ascii=False, allow_nan=False)
                count, size = count + 1, size + len(line)
                if count > upload.most_records:
                    raise TooLarge(f"The file has more than {upload.most_records:,} records.")
                if size > upload.most_bytes:
                    raise TooLarge(f"The file unpacks to more than {upload.most_bytes // MIB} MiB.")
                out.write(line + "\n")
    if not count:
        raise DataError("The file has no records.")
    return count


def _said(upload: Upload) -> Json:
    try:
        return {"records": _write(upload)}
    except TacitError as error:
        # Where the file lies on this machine is nobody's business.
        message = str(error).replace(upload.file, Path(upload.file).name)
        return {"error": type(error).__name__, "message": message}
    except Exception:
        return {"error": "DataError", "message": _CANNOT}


def main() -> None:
    """Read one file."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is no answer
    with contextlib.suppress(OSError):
        os.nice(_NICER)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    said = spelled(_said(Upload(**json.loads(sys.argv[1]))))
    print(json.dumps(said, allow_nan=False), file=answer, flush=True)


if __name__ == "__main__":
    main()
