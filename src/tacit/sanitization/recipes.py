"""What a sanitizer is told: the method and its parameters, all of them public."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from tacit.errors import UsageError
from tacit.privacy.arguments import check_not_negative, check_one_of, check_probability, check_whole

Method = Literal["santext", "santext+", "fbdd", "random"]
Unknown = Literal["random", "drop", "keep"]
METHODS: tuple[str, ...] = get_args(Method)
UNKNOWN_RULES: tuple[str, ...] = get_args(Unknown)

SAYS = {
    "santext": "every word is replaced by one that is near, by Eq. 1 of Yue et al. (2021)",
    "santext+": "sensitive words as santext, among themselves; plain words mostly stay",
    "fbdd": "noise on the word's vector, then the nearest word (Feyisetan et al. 2020)",
    "random": "every word is replaced by any word; nothing of the text is left",
}


@dataclass(frozen=True)
class Recipe:
    """A mechanism with its parameters.

    `epsilon_per_distance` is the papers' epsilon: two words at distance d are told apart with a
    loss of at most epsilon_per_distance times d. `replace_plain_rate` is SanText+'s p.
    """

    method: Method = "santext"
    epsilon_per_distance: float | None = None
    replace_plain_rate: float | None = None
    unknown: Unknown = "random"

    def __post_init__(self) -> None:
        check_one_of("method", self.method, METHODS)
        check_one_of("unknown", self.unknown, UNKNOWN_RULES)
        epsilon = self.epsilon_per_distance
        if self.method == "random":
            if epsilon is not None:
                raise UsageError("method=random takes no epsilon: it keeps nothing of the text.")
        elif epsilon is None:
            raise UsageError(
                f"method={self.method} needs epsilon_per_distance; `--profile` shows what a value "
                "does with these embeddings."
            )
        else:
            check_not_negative("epsilon_per_distance", epsilon)
            if self.method == "fbdd" and epsilon == 0:
                raise UsageError("method=fbdd needs epsilon_per_distance above 0; else use random.")
        if self.method == "santext+":
            rate = 0.3 if self.replace_plain_rate is None else self.replace_plain_rate
            object.__setattr__(
                self, "replace_plain_rate", check_probability("replace_plain_rate", rate)
            )
        elif self.replace_plain_rate is not None:
            raise UsageError(f"replace_plain_rate goes with method=santext+, not {self.method}.")

    def as_json(self) -> dict[str, Any]:
        """The parameters, without those that the method does not have."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def check_workers(workers: int) -> int:
    """How many threads; at least one."""
    return check_whole("workers", workers, least=1)
