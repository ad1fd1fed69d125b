"""What a server refuses, beside what the rest of the package does."""

import re

from tacit.errors import PrivacyRefused, TacitError

_PATH = re.compile(r"(?<![\w.:/<-])/(?:[\w.+@%~-]+/)+([\w.+@%~-]*)")


class NotFound(TacitError):
    """Nothing of that name is there, or the caller may not know of it."""


class NotAllowed(TacitError):
    """The caller's role or token does not allow this."""


class NotAuthenticated(TacitError):
    """The caller gave no token, or none that is valid."""


class Conflict(TacitError):
    """It contradicts what is there already."""


class TooLarge(TacitError):
    """More than the server accepts at once."""


class Busy(TacitError):
    """Too much at once; the same later may be accepted."""


class Unavailable(TacitError):
    """Not now, through no fault of the caller's; the same later is accepted."""


class LeaseLost(Unavailable):
    """Another server has the database now."""


def without_paths(text: str) -> str:
    """A text that may be shown to others: where files lie on this machine is nobody's business.

    >>> without_paths("Cannot read /srv/tacit/jobs/7/run.yml; see https://example.org/a/b.")
    'Cannot read run.yml; see https://example.org/a/b.'
    """
    return _PATH.sub(r"\1", text)


_CODES: tuple[tuple[type[TacitError], int], ...] = (
    (NotAuthenticated, 401),
    (NotAllowed, 403),
    (NotFound, 404),
    (Conflict, 409),
    (PrivacyRefused, 409),
    (TooLarge, 413),
    (Busy, 429),
    (Unavailable, 503),
    (TacitError, 422),
)


def code_of(error: TacitError) -> int:
    """The status with which HTTP says it."""
    return next(code for kind, code in _CODES if isinstance(error, kind))
