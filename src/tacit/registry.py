"""Registries: what can be chosen by name, ours and third parties', each loaded when first used.

A registry is a table of names and the places (`module:attribute`) where what they name is defined.
Installed packages add to it by an entry point of the registry's group (`tacit.methods`,
`tacit.detectors`, ...), and code by `add`. Our own names cannot be taken.
"""

import difflib
from collections.abc import Iterator, Mapping
from functools import cached_property
from hashlib import sha256
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Generic, TypeVar

from tacit.errors import UsageError, missing_package

T = TypeVar("T")


def did_you_mean(given: str, known: Iterator[str] | list[str] | tuple[str, ...]) -> str:
    """` Did you mean 'plain'?` where a known name is close; else nothing.

    >>> did_you_mean("plian", ["plain", "uedp"])
    " Did you mean 'plain'?"
    >>> did_you_mean("something", ["plain", "uedp"])
    ''
    """
    near = difflib.get_close_matches(given, list(known), n=1, cutoff=0.7)
    return f" Did you mean {near[0]!r}?" if near else ""


class Registry(Generic[T]):
    """Things of one kind by name; each is imported when it is asked for."""

    def __init__(self, kind: str, group: str, own: Mapping[str, str]) -> None:
        self.kind, self.group = kind, group
        self._own = dict(own)
        self._added: dict[str, T | str] = {}
        self._loaded: dict[str, T] = {}

    @cached_property
    def _installed(self) -> dict[str, EntryPoint]:
        return {e.name: e for e in entry_points(group=self.group) if e.name not in self._own}

    def names(self) -> tuple[str, ...]:
        """Every name: ours first, then those of installed packages, then added ones."""
        return tuple(dict.fromkeys((*self._own, *self._installed, *self._added)))

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __getitem__(self, name: str) -> T:
        """What the name stands for; unknown names are refused with what is accepted."""
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def origin(self, name: str) -> str | None:
        """Whose a thing is: None for ours, else the package and version, or the module."""
        if name in self._own:
            return None
        found = self._installed.get(name)
        if found is not None and found.dist is not None:
            return f"{found.dist.name} {found.dist.version}"
        return self._module(name)

    def code(self, name: str) -> str:
        """A digest of the source file in which a thing is defined."""
        source = getattr(import_module(self._module(name)), "__file__", None)
        return sha256(Path(source).read_bytes() if source else b"").hexdigest()

    def _module(self, name: str) -> str:
        thing = self[name]
        return str(getattr(thing, "__module__", None) or type(thing).__module__)

    def require(self, name: str) -> str:
        """The name, if it is known; nothing is imported to know it."""
        if name not in self.names():
            raise UsageError(
                f"{self.kind} {name!r} is not known; accepted: {', '.join(sorted(self.names()))}."
                f"{did_you_mean(name, self.names())}"
            )
        return name

    def values(self) -> list[T]:
        """All of them, in order."""
        return [self[name] for name in self.names()]

    def add(self, name: str, what: T | str) -> None:
        """Register a thing, or the place where it is defined; our own names are refused."""
        if name in self._own or name in self._installed:
            raise UsageError(f"{self.kind} {name!r} is there already; choose another name.")
        self._added[name] = what
        self._loaded.pop(name, None)

    def remove(self, name: str) -> None:
        """Take back what `add` registered."""
        self._added.pop(name, None)
        self._loaded.pop(name, None)

    def _load(self, name: str) -> T:
        if name in self._installed:
            return self._installed[name].load()
        found = self._own.get(self.require(name)) or self._added[name]
        if not isinstance(found, str):
            return found
        module, _, attribute = found.partition(":")
        try:
            made: T = getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("tacit"):
                raise
            raise missing_package(error, f"{self.kind} {name!r}") from None
        return made
