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


class TacitError(Exception):
    """Whatever tacit raises on purpose; the command line prints it without a traceback."""

    exit_code = 1


class UsageError(TacitError):
    """An option, or a combination of options, cannot be."""

    exit_code = 2


class MissingExtra(UsageError):
    """An optional package or a model is needed and not installed."""


class DataError(TacitError):
    """A file or a record is not what it should be."""

    exit_code = 3


class PrivacyRefused(TacitError):
    """Going on would void or exceed a guarantee."""

    exit_code = 4


class OverBudget(PrivacyRefused):
    """One more release would exceed a budget; what was released before stands."""
