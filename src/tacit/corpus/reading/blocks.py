"""The bytes of a text file in blocks of whole lines, checked as they pass.

Checked are the encoding, NUL bytes, the length of lines, and the wholeness of gzip data; what is
wrong is named by line number.
"""

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tacit.errors import DataError, UsageError

MAX_RECORD = 16 << 20
"""The longest record that is accepted, in bytes: 16 MiB."""

_CHUNK = 4 << 20


def open_bytes(path: Path) -> IO[bytes]:
    """A file's bytes, unpacked if it is gzip (told by its first two bytes, not its name)."""
    file = path.open("rb")
    magic = file.read(2)
    file.seek(0)
    return gzip.GzipFile(fileobj=file) if magic == b"\x1f\x8b" else file  # type: ignore[return-value]


def checked_chunks(path: Path, encoding: str = "utf-8") -> Iterator[bytes]:
    """The file as UTF-8 chunks, whatever its encoding; raises `DataError` at the first fault."""
    try:
        decoder = codecs.getincrementaldecoder(_usual(encoding))()
    except LookupError:
        raise UsageError(
            f"encoding={encoding!r} is unknown; accepted are names like utf-8, latin-1, cp1252."
        ) from None
    line, line_length = 1, 0
    with open_bytes(path) as file:
        while True:
            chunk = _read(file, path)
            pending = decoder.getstate()[0]
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                before = max(0, error.start - len(pending))
                at = line + chunk[:before].count(b"\n")
                raise DataError(
                    f"{path}, line {at}, is not {encoding}; convert the file to UTF-8, or say what "
                    "it is with --encoding NAME (often cp1252 or latin-1)."
                ) from None
            out = text.encode()
            _require_text(out, path, line, line_length)
            breaks = out.count(b"\n")
            line += breaks
            line_length = len(out) - out.rfind(b"\n") - 1 if breaks else line_length + len(out)
            if out:
                yield out
            if not chunk:
                return


def _require_text(out: bytes, path: Path, line: int, line_length: int) -> None:
    """Refuse a NUL byte, and a line that is too long with what came of it before."""
    nul = out.find(b"\0")
    if nul >= 0:
        at = line + out[:nul].count(b"\n")
        raise DataError(
            f"{path}, line {at}, has a NUL byte; text files hold none: remove it, or "
            "check that the file is text (a UTF-16 file needs --encoding utf-16)."
        )
    newline = out.find(b"\n")
    if line_length + (newline if newline >= 0 else len(out)) > MAX_RECORD:
        raise DataError(
            f"{path}, line {line}, is longer than {MAX_RECORD >> 20} MiB, the longest "
            "record accepted; split it into several records."
        )


def _usual(encoding: str) -> str:
    # A byte order mark is no text.
    return "utf-8-sig" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else encoding


def _read(file: IO[bytes], path: Path) -> bytes:
    try:
        return file.read(_CHUNK)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise DataError(
            f"{path} is not a whole gzip file; check that it was fully copied."
        ) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from None


def line_blocks(path: Path, encoding: str = "utf-8") -> Iterator[tuple[int, bytes]]:
    """Blocks of whole lines, each with the number of its first line."""
    line, rest = 1, b""
    for chunk in checked_chunks(path, encoding):
        cut = chunk.rfind(b"\n") + 1
        if not cut:
            rest += chunk
            continue
        block = rest + chunk[:cut]
        rest = chunk[cut:]
        yield line, block
        line += block.count(b"\n")
    if rest:
        yield line, rest


class CheckedFile(io.RawIOBase):
    """Checked chunks behind the interface of a file, for readers that want one."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def readable(self) -> bool:
        """Yes."""
        return True

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes; none at the end."""
        parts, have = [self._rest], len(self._rest)
        while size < 0 or have < size:
            chunk = next(self._chunks, b"")
            if not chunk:
                break
            parts.append(chunk)
            have += len(chunk)
        data = b"".join(parts)
        size = have if size < 0 else size
        self._rest = data[size:]
        return data[:size]
