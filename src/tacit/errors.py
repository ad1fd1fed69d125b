"""The one error family.

    TacitError                  exit code
    ├── UsageError              2   an option or a combination of options cannot be
    │   └── MissingExtra        2   an optional package or model is not installed
    ├── DataError               3   a file or a record is not what it should be
    └── PrivacyRefused          4   going on would void or exceed a guarantee
        └── OverBudget          4   one more release would exceed a budget

A message says what was given, what is accepted and what to do next. It never quotes corpus
text: it names the file, the record number and the offsets.
"""

import re
from importlib import import_module
from typing import Any


class TacitError(Exception):
    """Whatever tacit raises on purpose; the command line prints it without a traceback."""

    exit_code = 1


class UsageError(TacitError):
    """An option, or a combination of options, cannot be."""

    exit_code = 2


class MissingExtra(UsageError):
    """An optional package or a model is needed and not installed."""

    @classmethod
    def of(cls, what: str, *extras: str) -> "MissingExtra":
        """`what` is missing; it comes with these extras, from the sources or from a wheel."""
        names = ",".join(extras)
        return cls(
            f"{what}. It comes with the extra {' and '.join(extras)} of tacit: run pip install "
            f"-c constraints.txt -e '.[{names}]' where tacit's sources lie, or pip install "
            f"'FILE.whl[{names}]' with the wheel."
        )


def require_package(module: str, what: str) -> Any:
    """An optional module, imported; where it is missing, a sentence that names its extra."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise missing_package(error, what) from None


def missing_package(error: ModuleNotFoundError, what: str) -> TacitError:
    """The sentence for a module that is not installed, with the extra that brings it."""
    from importlib.metadata import PackageNotFoundError, requires

    module = (error.name or "").partition(".")[0]
    try:
        asked = requires("tacit") or []
    except PackageNotFoundError:
        asked = []
    wanted = re.sub(r"[-_.]+", "-", module).lower()
    extras = [
        extra[1]
        for line in asked
        if (extra := re.search(r"""extra == ['"](.+?)['"]""", line))
        and re.match(rf"{re.escape(wanted)}\b", line.replace("_", "-").lower())
    ]
    if extras:  # torch comes with several: who lacks it wants to train
        best = "train" if "train" in extras else extras[0]
        return MissingExtra.of(f"{what} needs the package {module}", best)
    return MissingExtra(f"{what} needs the package {module}, which is not installed.")


class DataError(TacitError):
    """A file or a record is not what it should be."""

    exit_code = 3


class PrivacyRefused(TacitError):
    """Going on would void or exceed a guarantee."""

    exit_code = 4


class OverBudget(PrivacyRefused):
    """One more release would exceed a budget; what was released before stands."""
