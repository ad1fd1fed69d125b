"""Where randomness comes from.

For a model that is to be released, randomness comes from the operating system, and no state of a
generator is ever stored: whoever has it could subtract the noise. In experiment mode it comes from
a fixed seed; every step then has streams of its own, so that a run that was killed and resumed
equals one that was not, and the certificate says "not for release".

Samples and orders come from numpy's generators. Noise is published, a little of it in every weight,
and comes from a cipher: whoever works out some of it learns nothing of the rest.
"""

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

Purpose = Literal["coins", "noise", "dropout", "order", "init", "subset"]
_PURPOSES: tuple[Purpose, ...] = ("coins", "noise", "dropout", "order", "init", "subset")


@dataclass(frozen=True)
class RandomSource:
    """The source of all random draws of a run; `seed=None` is the operating system."""

    seed: int | None = None

    @property
    def name(self) -> Literal["system", "fixed seed"]:
        """What a certificate says about it."""
        return "system" if self.seed is None else "fixed seed"

    def streams(
        self, purpose: Purpose, step: int, count: int, *, part: int = 0
    ) -> list[np.random.Generator]:
        """Independent generators for one purpose in one step, or in one part of it.

        >>> one, other = (RandomSource(1).streams("noise", 3, 2)[i].random() for i in (0, 1))
        >>> one != other
        True
        """
        if self.seed is None:
            entropy: int | list[int] = secrets.randbits(256)
        else:
            entropy = [self.seed, _PURPOSES.index(purpose), step, *([part] if part else [])]
        parts = np.random.SeedSequence(entropy).spawn(count)
        return [np.random.Generator(np.random.PCG64DXSM(part)) for part in parts]

    def key(self, step: int, part: int = 0) -> bytes:
        """The key of the noise of one step, or of one part of it; see `Normals`.

        >>> RandomSource(1).key(3) == RandomSource(1).key(3) != RandomSource(1).key(3, part=1)
        True
        """
        if self.seed is None:
            return secrets.token_bytes(32)
        return self.streams("noise", step, 1, part=part)[0].bytes(32)

    def stream(self, purpose: Purpose, step: int) -> np.random.Generator:
        """One generator for one purpose in one step."""
        return self.streams(purpose, step, 1)[0]

    def of_users(
        self, purpose: Purpose, step: int, users: int
    ) -> Callable[[int], np.random.Generator]:
        """A generator for each user, which does not depend on who else is drawn.

        >>> RandomSource(1).of_users("order", 3, 9)(8).random() == (
        ...     RandomSource(1).of_users("order", 3, 9)(8).random())
        True
        """
        seeds = self.stream(purpose, step).integers(2**63, size=users)
        return lambda user: np.random.Generator(np.random.PCG64DXSM(int(seeds[user])))

    def torch_seed(self, purpose: Purpose, step: int) -> int:
        """A seed for torch's own generator, which serves what needs no secrecy (dropout)."""
        return int(self.stream(purpose, step).integers(2**63))


class Normals:
    """Standard normal numbers from AES-256 in counter mode; one key has 2^64 streams of them.

    Two numbers are made of 95 random bits: 63 for their distance from the origin, which reaches
    9.3 standard deviations, and 32 for the angle. All of it runs on vectors, which takes half
    the time of numpy's own.

    Source: Box and Muller 1958.
    """

    LENGTH = 1 << 18
    """Numbers in a stream: long enough to share among threads, short enough for a cache."""

    def __init__(self, key: bytes, longest: int = LENGTH) -> None:
        self._cipher = Cipher(AES256(key), CTR(bytes(16))).encryptor()
        pairs = (longest + 1) // 2
        self._zeros = memoryview(bytes(12 * pairs))
        self._bits = bytearray(12 * pairs + 15)
        self._radius = np.empty(pairs, np.float32)
        self._found = np.empty(2 * pairs, np.float32)

    def draw(self, stream: int, count: int) -> NDArray[np.float32]:
        """The first numbers of one stream; the next draw writes over them.

        >>> one, other = (Normals(bytes(32)).draw(i, 1).item() for i in (0, 1))
        >>> one != other
        True
        """
        pairs = (count + 1) // 2
        self._cipher.reset_nonce(stream.to_bytes(8, "big") + bytes(8))
        self._cipher.update_into(self._zeros[: 12 * pairs], self._bits)
        far = np.frombuffer(self._bits, np.int64, pairs)
        turn = np.frombuffer(self._bits, np.int32, pairs, offset=8 * pairs)
        radius, found = self._radius[:pairs], self._found[: 2 * pairs].reshape(2, pairs)
        np.bitwise_and(far, 2**63 - 1, out=far)
        np.bitwise_or(far, 1, out=far)  # never zero, which has no logarithm
        np.copyto(radius, far, casting="unsafe")
        np.log(np.multiply(radius, np.float32(2.0**-63), out=radius), out=radius)
        np.sqrt(np.multiply(radius, np.float32(-2), out=radius), out=radius)
        np.copyto(found[0], turn, casting="unsafe")
        np.multiply(found[0], np.float32(math.pi * 2.0**-31), out=found[0])
        np.sin(found[0], out=found[1])
        np.cos(found[0], out=found[0])
        np.multiply(found, radius, out=found)
        return self._found[:count]
