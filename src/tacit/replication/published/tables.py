"""The numbers that the papers print, and those that can be recomputed from their own counts."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tacit.replication.published.user_entity import uedp, user


@dataclass(frozen=True)
class UedpCorpus:
    """Counts of one corpus as the user-entity paper prints them, and its users per step.

    The printed user rate 0.05 is a rounding: the epsilons belong to whole numbers of users.
    """

    name: str
    records: int
    users: int
    users_per_step: int
    sensitive: Mapping[str, int]


UEDP_CORPORA: Mapping[str, UedpCorpus] = MappingProxyType(
    {
        corpus.name: corpus
        for corpus in (
            UedpCorpus(
                name="CoNLL-2003",
                records=14_040,
                users=946,
                users_per_step=50,
                sensitive=MappingProxyType(
                    {
                        "Org": 5_187,
                        "Loc": 5_433,
                        "Person": 4_406,
                        "Misc": 3_438,
                        "All": 11_176,
                    }
                ),
            ),
            UedpCorpus(
                name="AG",
                records=112_000,
                users=7_536,
                users_per_step=500,
                sensitive=MappingProxyType(
                    {
                        "Org": 58_177,
                        "Loc": 39_988,
                        "GPE": 18_506,
                        "PII": 42_683,
                        "All": 67_157,
                    }
                ),
            ),
            UedpCorpus(
                name="SEC",
                records=5_188,
                users=1_592,
                users_per_step=100,
                sensitive=MappingProxyType(
                    {"Org": 1_955, "Loc": 273, "GPE": 60, "PII": 357, "All": 2_166}
                ),
            ),
        )
    }
)

# corpus, steps, estimator ("user" for the baseline), category of sensitive records, epsilon.
# The figure at 50 steps is captioned "all entities"; the text, and the arithmetic, say Org.
_UEDP_PRINTED: tuple[tuple[str, int, str, str, float], ...] = (
    ("CoNLL-2003", 50, "f_E", "Org", 0.62),
    ("CoNLL-2003", 50, "f_E+", "Org", 0.36),
    ("CoNLL-2003", 50, "user", "", 1.18),
    ("AG", 50, "f_E", "Org", 0.75),
    ("AG", 50, "f_E+", "Org", 0.47),
    ("AG", 50, "user", "", 1.48),
    ("SEC", 50, "f_E", "Org", 0.71),
    ("SEC", 50, "f_E+", "Org", 0.38),
    ("SEC", 50, "user", "", 1.40),
    ("CoNLL-2003", 500, "f_E+", "Misc", 0.44),
    ("CoNLL-2003", 500, "f_E+", "Person", 0.52),
    ("CoNLL-2003", 500, "f_E+", "Org", 0.61),
    ("CoNLL-2003", 500, "f_E+", "Loc", 0.63),
    ("CoNLL-2003", 500, "f_E+", "All", 1.31),
    ("CoNLL-2003", 500, "user", "", 3.40),
    ("AG", 500, "f_E+", "GPE", 0.39),
    ("AG", 500, "f_E+", "Loc", 0.73),
    ("AG", 500, "f_E+", "PII", 0.78),
    ("AG", 500, "f_E+", "Org", 1.07),
    ("AG", 500, "f_E+", "All", 1.24),
    ("AG", 500, "user", "", 4.34),
    ("SEC", 500, "f_E+", "GPE", 0.19),
    ("SEC", 500, "f_E+", "Loc", 0.24),
    ("SEC", 500, "f_E+", "PII", 0.26),
    ("SEC", 500, "f_E+", "Org", 0.73),
    ("SEC", 500, "f_E+", "All", 0.81),
    ("SEC", 500, "user", "", 4.08),
)


@dataclass(frozen=True)
class UedpRow:
    """One printed epsilon of the user-entity paper beside the same figure recomputed."""

    corpus: str
    steps: int
    estimator: str
    category: str
    printed: float
    recomputed: float

    @property
    def residual(self) -> float:
        """Recomputed minus printed; printed figures carry two decimals."""
        return self.recomputed - self.printed


def uedp_table() -> list[UedpRow]:
    """All 27 epsilons that the user-entity paper prints, each recomputed from its own counts.

    Source: Lai et al. 2022, Table 1 (counts), Figures 2 and 6; noise multiplier 2, entity rate
    one half, delta 1e-5.
    """
    return [
        UedpRow(
            corpus=corpus,
            steps=steps,
            estimator=estimator,
            category=category,
            printed=printed,
            recomputed=_recompute(corpus, steps, estimator, category),
        )
        for corpus, steps, estimator, category, printed in _UEDP_PRINTED
    ]


def _recompute(corpus_name: str, steps: int, estimator: str, category: str) -> float:
    corpus = UEDP_CORPORA[corpus_name]
    if estimator == "user":
        price = user(
            users=corpus.users,
            users_per_step=corpus.users_per_step,
            noise_multiplier=2.0,
            steps=steps,
        )
        return price.epsilon["users"]
    price = uedp(
        estimator=estimator,
        users=corpus.users,
        users_per_step=corpus.users_per_step,
        entity_rate=0.5,
        sensitive=corpus.sensitive[category],
        records=corpus.records,
        noise_multiplier=2.0,
        steps=steps,
    )
    return price.epsilon["users+entities"]


@dataclass(frozen=True)
class SelectiveRow:
    """One printed epsilon of the selective-DP paper; batch size and epochs are not printed."""

    corpus: str
    method: str
    noise_multiplier: float
    clip_norm: float
    delta: float
    printed: float


SELECTIVE_TABLE: tuple[SelectiveRow, ...] = (
    SelectiveRow("WikiText-2", "DP-SGD", 0.5, 0.1, 8e-5, 4.89),
    SelectiveRow("WikiText-2", "selective", 0.5, 1e-3, 8e-5, 4.91),
    SelectiveRow("CustomerSim", "DP-SGD", 0.6, 0.01, 8e-5, 2.51),
    SelectiveRow("CustomerSim", "selective", 0.7, 5e-3, 8e-5, 2.74),
)
