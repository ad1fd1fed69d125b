"""Mechanisms by name: how each word of a text is replaced at random, and with which parameters.

A mechanism is one class. `WordMechanism` replaces words by words of a vocabulary;
`tacit.sanitization.operators.MentionMechanism` replaces what detectors find. An installed package
adds one by an entry point of the group `tacit.mechanisms`. What is added is never certified: a
claim needs a proof, so only the four classes of `PROVED`, exactly as they stand here, have one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from tacit.errors import UsageError
from tacit.privacy.arguments import check_not_negative, check_one_of, check_probability
from tacit.registry import Registry
from tacit.sanitization.kernel import Floats, Places, draw, each, noise, uniform
from tacit.sanitization.random_streams import Streams

if TYPE_CHECKING:
    from tacit.sanitization.operators import MentionMechanism
    from tacit.sanitization.sanitizer import Sanitizer

Unknown = Literal["random", "drop", "keep"]
Progress = Callable[[int], None]

MECHANISMS: "Registry[type[WordMechanism] | type[MentionMechanism]]" = Registry(
    "method",
    "tacit.mechanisms",
    {
        "santext": "tacit.sanitization.mechanisms:SanText",
        "santext+": "tacit.sanitization.mechanisms:SanTextPlus",
        "fbdd": "tacit.sanitization.mechanisms:Fbdd",
        "random": "tacit.sanitization.mechanisms:Uniform",
        "redact": "tacit.sanitization.operators:Redact",
        "mask": "tacit.sanitization.operators:Mask",
        "pseudonym": "tacit.sanitization.operators:Pseudonym",
    },
)


@dataclass(frozen=True)
class Recipe:
    """A word mechanism with its parameters, all of them public.

    `epsilon_per_distance` is the papers' epsilon: two words at distance d are told apart with a
    loss of at most epsilon_per_distance times d. `replace_plain_rate` is SanText+'s p.
    """

    method: str = "santext"
    epsilon_per_distance: float | None = None
    replace_plain_rate: float | None = None
    unknown: Unknown = "random"

    def __post_init__(self) -> None:
        check_one_of("unknown", self.unknown, get_args(Unknown))
        self.mechanism.check(self)
        if "sensitive words" in self.mechanism.takes:
            rate = 0.3 if self.replace_plain_rate is None else self.replace_plain_rate
            object.__setattr__(
                self, "replace_plain_rate", check_probability("replace_plain_rate", rate)
            )
        elif self.replace_plain_rate is not None:
            raise UsageError(f"replace_plain_rate goes with method=santext+, not {self.method}.")

    @property
    def mechanism(self) -> "type[WordMechanism]":
        """The class that the method names."""
        found = MECHANISMS[self.method]
        if not issubclass(found, WordMechanism):
            raise UsageError(
                f"method={self.method} replaces what detectors find, and not every word; give a "
                "method that replaces words, such as santext."
            )
        return found


@dataclass(frozen=True)
class Draws:
    """The randomness of some texts: for each word two uniform numbers, for each text a stream."""

    streams: Streams
    names: Sequence[str]
    lengths: Sequence[int]
    coins: Floats
    choices: Floats
    progress: Progress | None = None


class WordMechanism:
    """Replaces every word; `takes` names its parameters.

    `exact_rows` says that its probabilities are those of Eq. 1, which `tacit sanitize --profile`
    reads. The class states no promise: see `PROVED`.
    """

    name: str
    summary: str
    takes: tuple[str, ...] = ("epsilon_per_distance",)
    exact_rows = False

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Refuse parameters that are missing, or that this mechanism does not have."""
        epsilon = recipe.epsilon_per_distance
        if "epsilon_per_distance" not in cls.takes:
            if epsilon is not None:
                raise UsageError(f"method={recipe.method} takes no epsilon_per_distance.")
        elif epsilon is None:
            raise UsageError(
                f"method={recipe.method} needs epsilon_per_distance; `--profile` shows what a "
                "value does with these embeddings."
            )
        else:
            check_not_negative("epsilon_per_distance", epsilon)

    def replace(self, work: "Sanitizer", words: Places, draws: Draws) -> Places:
        """An output word for each word, as places in the vocabulary.

        A word that the vocabulary does not have is -1; what is given for it is not looked at.
        """
        raise NotImplementedError


class SanText(WordMechanism):
    """Draws a word by Eq. 1 of Yue et al. (2021), whatever the word is.

    Guarantee: metric local differential privacy; see `Sanitizer`.
    """

    name = "santext"
    summary = "every word is replaced by one that is near, by Eq. 1 of Yue et al. (2021)"
    exact_rows = True

    def replace(self, work: "Sanitizer", words: Places, draws: Draws) -> Places:
        """Those that move are drawn by their rows; the others stay."""
        chosen = words.copy()
        at = np.flatnonzero((words >= 0) & self._moves(work, words, draws.coins))
        epsilon = float(work.recipe.epsilon_per_distance or 0.0)
        chosen[at] = draw(
            work.space, words[at], draws.choices[at], epsilon, workers=work.workers,
            progress=draws.progress,
        )  # fmt: skip
        return chosen

    def _moves(self, work: "Sanitizer", words: Places, coins: Floats) -> Any:
        return np.ones(len(words), dtype=bool)


class SanTextPlus(SanText):
    """SanText for sensitive words, among themselves; a plain word is drawn at a stated rate.

    Guarantee: utility-optimized metric local differential privacy; see `Sanitizer`.
    """

    name = "santext+"
    summary = "sensitive words as santext, among themselves; plain words mostly stay"
    takes = ("epsilon_per_distance", "replace_plain_rate", "sensitive words")

    def _moves(self, work: "Sanitizer", words: Places, coins: Floats) -> Any:
        """Which words are drawn anew: the sensitive ones, and plain ones whose coin says so."""
        assert work.sensitive is not None
        sensitive = work.sensitive.mask[words] & (words >= 0)
        return sensitive | (coins < float(work.recipe.replace_plain_rate or 0.0))


class Fbdd(WordMechanism):
    """Noise on a word's vector, then the nearest word.

    Guarantee: metric local differential privacy; see `Sanitizer`.
    Source: Feyisetan et al. (2020).
    """

    name = "fbdd"
    summary = "noise on the word's vector, then the nearest word (Feyisetan et al. 2020)"

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """As for all, and epsilon must not be 0: its noise would have no bound."""
        super().check(recipe)
        if recipe.epsilon_per_distance == 0:
            raise UsageError("method=fbdd needs epsilon_per_distance above 0; else use random.")

    def replace(self, work: "Sanitizer", words: Places, draws: Draws) -> Places:
        """Each record's noise comes from its own stream; nearest words are found in blocks."""
        nearest, vectors, lengths = work.nearest, work.embedding.vectors, draws.lengths
        chosen = words.copy()
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        # Whole records, in groups of about as many words as the search takes at once.
        groups = np.unique(
            np.searchsorted(starts, np.arange(0, starts[-1], nearest.points_at_once))
        )
        edges = [*groups.tolist(), len(lengths)] if len(groups) else [0, len(lengths)]
        epsilon = float(work.recipe.epsilon_per_distance or 0.0)

        def one(number: int) -> int:
            first, last = edges[number], edges[number + 1]
            own = slice(int(starts[first]), int(starts[last]))
            places = words[own]
            points = vectors[np.maximum(places, 0)].astype(np.float64)
            for record in range(first, last):
                part = slice(starts[record] - own.start, starts[record + 1] - own.start)
                if lengths[record]:
                    rng = draws.streams.generator("noise\0" + draws.names[record])
                    points[part] += noise(lengths[record], points.shape[1], epsilon, rng)
            chosen[own] = nearest(points)
            if draws.progress:
                draws.progress(int((places >= 0).sum()))
            return number

        each(one, range(len(edges) - 1), work.workers)
        return chosen


class Uniform(WordMechanism):
    """Any word, all equally likely.

    Guarantee: metric local differential privacy with factor 1; see `Sanitizer`.
    """

    name = "random"
    summary = "every word is replaced by any word; nothing of the text is left"
    takes = ()

    def replace(self, work: "Sanitizer", words: Places, draws: Draws) -> Places:
        """The choice alone decides."""
        return uniform(work.space, draws.choices)


PROVED = frozenset({SanText, SanTextPlus, Fbdd, Uniform})
"""The mechanisms whose claim is proved (docs/sanitizing.md): these classes, and no subclass."""
