"""Answers of models: a queue and processes of their own, so that they keep nobody else waiting.

A question waits for its turn until its deadline, and no caller may have more than a few waiting.
Whoever computes for longer than that is killed, and a new process takes its place.
"""

import contextlib
import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit import errors
from tacit.errors import DataError, TacitError
from tacit.server import Json
from tacit.server import errors as server_errors
from tacit.server.child_processes import NOT_PASSED_ON
from tacit.server.errors import Busy
from tacit.server.identity import Caller, RateLimiter
from tacit.server.settings import ServerSettings

_START_SECONDS = 180.0
"""For a process to load what it needs: on a machine that is busy that takes a while."""
_LATE = "The model did not answer in time; ask for fewer words, or again later."
_KINDS: dict[str, type[TacitError]] = {
    name: kind
    for name, kind in {**vars(errors), **vars(server_errors)}.items()
    if isinstance(kind, type) and issubclass(kind, TacitError)
}


@dataclass(frozen=True)
class Question:
    """What somebody asks a model, in words that a process understands."""

    folder: Path
    text: str
    words: int = 10
    choices: int = 5

    def line(self, seconds: float) -> Json:
        """As the process reads it."""
        asked = {"text": self.text, "words": self.words, "choices": self.choices}
        return {"folder": str(self.folder), "seconds": seconds, **asked}


@dataclass(frozen=True)
class _Waiting:
    line: Json
    who: str
    until: float
    done: "Future[Json]" = field(default_factory=Future)


class Predictions:
    """The questions that wait, and the processes that answer them."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self._waiting: queue.Queue[_Waiting | None] = queue.Queue(settings.waiting_predictions)
        self._of: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._rates = RateLimiter(settings.predictions_per_second, settings.prediction_burst)
        self._role_rates = RateLimiter(
            settings.predictions_per_second_of_role, settings.prediction_burst_of_role
        )
        self._process: Predictor | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def ask(self, question: Question, caller: Caller) -> "Future[Json]":
        """Wait for a turn; refused at once where too many wait, or come too fast."""
        who = caller.token or caller.account
        self.require_rate(caller)
        until = time.monotonic() + self.settings.prediction_deadline
        item = _Waiting(question.line(self.settings.prediction_seconds), who, until)
        with self._lock:
            if self._of[who] >= self.settings.waiting_predictions_of_token:
                raise Busy("Too many of your questions wait already; wait for their answers.")
            self._put(item)
            self._of[who] += 1
        item.done.add_done_callback(lambda _: self._left(who))
        return item.done

    def require_rate(self, caller: Caller) -> None:
        """Refuse who asks too fast for what takes a while to compute."""
        who = caller.token or caller.account
        if not (self._rates.allows(who) and self._role_rates.allows(caller.role)):
            raise Busy("Too many questions to models; wait a second.")

    def forget(self, folder: Path) -> None:
        """Keep no weights in memory of a model that was deleted."""
        if self._process is not None:
            with contextlib.suppress(Busy):  # then others crowd it out soon enough
                self._put(_Waiting({"folder": str(folder)}, "", time.monotonic() + 3600))

    def warm_up(self) -> None:
        """Load what predictions need before somebody waits for words."""
        with self._lock:
            self._begin()

    def close(self) -> None:
        """Answer nobody any more."""
        self._closed = True
        process = self._process
        if process is not None:
            process.end()
        while True:
            try:
                left = self._waiting.get_nowait()
            except queue.Empty:
                break
            if left is not None:
                left.done.cancel()
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(5)

    def _put(self, item: _Waiting) -> None:
        self._begin()
        try:
            self._waiting.put_nowait(item)
        except queue.Full:
            raise Busy("Too many questions wait for an answer; try again later.") from None

    def _begin(self) -> None:
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._work, name="predictions", daemon=True)
            self._thread.start()

    def _left(self, who: str) -> None:
        with self._lock:
            self._of[who] -= 1
            if not self._of[who]:
                del self._of[who]

    # --- the thread that asks the process -------------------------------------------------------

    def _work(self) -> None:
        with contextlib.suppress(TacitError, OSError):  # the first question will say so
            self._running()
        while (item := self._waiting.get()) is not None:
            if not item.done.set_running_or_notify_cancel():
                continue
            try:
                item.done.set_result(self._answer(item))
            except Exception as error:  # whoever waits must hear of it
                item.done.set_exception(error)

    def _answer(self, item: _Waiting) -> Json:
        if time.monotonic() > item.until:
            raise Busy(_LATE)
        process = self._running()
        # What a process needs to load a model comes on top of what it may compute.
        answered = process.ask(item.line, self.settings.prediction_kill_seconds)
        if answered is None:
            self._process = None
            process.kill()
            raise Busy(_LATE)
        if "error" in answered:
            raise _KINDS.get(answered["error"], DataError)(answered["message"])
        return dict(answered["answer"])

    def _running(self) -> "Predictor":
        if self._process is None and not self._closed:
            self._process = Predictor(self.settings)
            if self._process.read(_START_SECONDS) is None:
                self._process.kill()
                self._process = None
        if self._process is None:
            raise Busy("Models cannot be asked now; try again later.")
        return self._process


class Predictor:
    """One process that answers, and the two pipes to it."""

    command = (sys.executable, "-m", "tacit.server.predictor")

    def __init__(self, settings: ServerSettings) -> None:
        environment = {k: v for k, v in os.environ.items() if k not in NOT_PASSED_ON}
        environment |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [*self.command, str(settings.models_in_memory)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, bufsize=0,
        )  # fmt: skip
        self._unread = b""

    def ask(self, line: Json, seconds: float) -> Json | None:
        """Its answer; None if there is none in time, or ever."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        except OSError:
            return None
        return self.read(seconds)

    def read(self, seconds: float) -> Json | None:
        """The next line that it says."""
        assert self._process.stdout is not None
        until, source = time.monotonic() + seconds, self._process.stdout.fileno()
        while b"\n" not in self._unread:
            left = until - time.monotonic()
            if left <= 0 or not select.select([source], [], [], left)[0]:
                return None
            part = os.read(source, 1 << 16)
            if not part:
                return None
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        found: Any = json.loads(line)
        return dict(found)

    def end(self) -> None:
        """End it; whoever reads its answer finds none."""
        self._process.kill()

    def kill(self) -> None:
        """End it, and leave nothing of it."""
        self.end()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
