"""Where a sanitizer's randomness comes from: one secret key, one independent stream per record.

A stream is the output of an extendable hash (SHAKE-128) of the key and the record's name. Nobody
without the key can predict it, and it depends on nothing but the name: not on the batch, the
worker or the order in which records come.
"""

import hashlib
import secrets
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Uniforms = NDArray[np.float64]
_AT_ONCE = 4096


class Streams:
    """Streams of random numbers by name; `seed=None` takes the key from the operating system.

    >>> one, again = (Streams(7).uniforms(["a"], [3]) for _ in range(2))
    >>> bool((one == again).all())
    True
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed
        key = secrets.token_bytes(32) if seed is None else f"fixed seed {seed}".encode()
        self._key = hashlib.sha256(b"tacit sanitize\0" + key).digest()
        self._begun = hashlib.shake_128(self._key)

    def __getstate__(self) -> dict[str, Any]:
        return {"seed": self.seed, "_key": self._key}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _begun=hashlib.shake_128(state["_key"]))

    @property
    def name(self) -> Literal["system", "fixed seed"]:
        """What a certificate says about it."""
        return "system" if self.seed is None else "fixed seed"

    def bytes(self, name: str, count: int) -> bytes:
        """The first bytes of the stream of that name."""
        hashed = self._begun.copy()
        hashed.update(name.encode("utf-8", "surrogatepass"))
        return hashed.digest(count)

    def uniforms(self, names: Sequence[str], counts: Sequence[int]) -> Uniforms:
        """Numbers in [0, 1) with 53 bits: so many of each stream, one stream after the other."""
        found = np.empty(sum(counts))
        at = 0
        for start in range(0, len(names), _AT_ONCE):
            some = zip(
                names[start : start + _AT_ONCE], counts[start : start + _AT_ONCE], strict=True
            )
            parts = b"".join(self.bytes(name, 8 * count) for name, count in some if count)
            whole = np.frombuffer(parts, dtype="<u8")
            np.multiply(whole >> np.uint64(11), 2.0**-53, out=found[at : at + len(whole)])
            at += len(whole)
        return found

    def generator(self, name: str) -> np.random.Generator:
        """A generator of its own for that name, for what is not a uniform number."""
        key = int.from_bytes(self.bytes(name, 16), "little")
        return np.random.Generator(np.random.Philox(key=key))
