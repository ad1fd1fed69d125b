"""What a server refuses, beside what the rest of the package does."""

from tacit.errors import TacitError


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
