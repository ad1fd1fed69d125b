"""Figures of a run under way, to loggers: those that may leave, and those that must stay inside.

A logger is whatever has `log` (Weights & Biases, trackio), `add_scalar` (TensorBoard) or
`log_metrics` (MLflow), a function of one dict, or the path of a file for JSON lines.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tacit.errors import UsageError
from tacit.saved_json import spelled

Figures = dict[str, float]
Sink = Callable[[Figures, int], None]
Loggers = Any
"""One logger, or several in a list; None is nobody."""
FEATURES = "features"
"""The phase that learns nothing: its progress has no figures."""


class Tracking:
    """Tells public figures to some loggers, and all figures to those that stay inside."""

    def __init__(self, public: Loggers = None, private: Loggers = None) -> None:
        """Say who hears what: who is told private figures must let nobody see them."""
        self._public = [sink_of(one) for one in _each(public)]
        self._private = [sink_of(one, mode=0o600) for one in _each(private)]
        self._phase, self._before, self._last = "", 0, 0

    def __call__(self, at: Any) -> None:
        """After a step of training; `at` is its `Progress`."""
        if at.phase == FEATURES:
            return
        if at.phase != self._phase:  # loggers want steps that never go back
            self._phase, self._before = at.phase, self._last
        self._last = self._before + at.step
        public = _named(at.phase, at.public)
        for tell in self._public:
            tell(public, self._last)
        for tell in self._private:
            tell(public | _named(f"not private/{at.phase}", at.private), self._last)


def sink_of(logger: Any, *, mode: int = 0o644) -> Sink:
    """How a logger is told."""
    if isinstance(logger, str | Path):
        return _lines(Path(logger), mode)
    if hasattr(logger, "add_scalar"):
        return lambda figures, step: _scalars(logger, figures, step)
    if hasattr(logger, "log_metrics"):
        return lambda figures, step: logger.log_metrics(figures, step=step)
    if hasattr(logger, "log"):
        return lambda figures, step: logger.log(figures, step=step)
    if callable(logger):
        return lambda figures, step: logger({**figures, "step": step})
    raise UsageError(
        f"A {type(logger).__name__} is no logger; give what has log, add_scalar or log_metrics, a "
        "function, or the path of a file that ends in .jsonl."
    )


def _each(loggers: Loggers) -> Iterable[Any]:
    if loggers is None:
        return ()
    return loggers if isinstance(loggers, list | tuple) else (loggers,)


def _named(phase: str, figures: Mapping[str, float]) -> Figures:
    """Figures by phase and name; a logger counts steps itself, and knows no number but numbers."""
    return {
        f"{phase}/{name}": float(value)
        for name, value in figures.items()
        if name != "step" and math.isfinite(value)
    }


def _scalars(writer: Any, figures: Figures, step: int) -> None:
    for name, value in figures.items():
        writer.add_scalar(name, value, step)


def _lines(path: Path, mode: int) -> Sink:
    if path.suffix != ".jsonl":
        raise UsageError(f"{path}: end the name in .jsonl; a line is added for each step.")

    def tell(figures: Figures, step: int) -> None:
        place = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, mode)
        with os.fdopen(place, "a", encoding="utf-8") as lines:
            lines.write(json.dumps(spelled({"step": step, **figures}), allow_nan=False) + "\n")

    return tell
