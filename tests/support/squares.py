"""Work for other processes, in a module that they import quickly: each begins anew."""

import os
import signal
from pathlib import Path

from tacit.errors import DataError


class Squares:
    """Squares, and ends its process at the shares of `at`, as long as a file says so."""

    def __init__(self, folder: Path, at: tuple[int, ...] = (), always: bool = False) -> None:
        self._folder, self._at, self._always = folder, at, always

    def __call__(self, share: int) -> tuple[int, int]:
        if share in self._at:
            mark = self._folder / str(share)
            if self._always or not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        if share < 0:
            raise DataError(f"share {share} is below zero")
        return share * share, os.getpid()
