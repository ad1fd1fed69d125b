"""The papers' own formulas, standing "published": what was claimed, and whether it is a bound.

Nothing here is a promise of ours. A figure is computed the way its authors computed it, so that
a reader can check the printed numbers and set them beside a proved price. Each result says in
one line whether the figure is an upper bound on epsilon and, where it is not, why not. Sound
prices live in `tacit.privacy.accounting`; an instance that contradicts the user-entity figures
lives in `tacit.replication.counterexample`. All papers are listed in `docs/studies/papers.md`.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tacit.privacy.accounting.claims import PublishedPrice, PublishedScale
from tacit.replication.published.other_papers import (
    binary_encoding,
    dpnr,
    gdp,
    gdp_mu,
    gdp_noise_multiplier,
    selective,
    selective_claim,
)
from tacit.replication.published.tables import (
    SELECTIVE_TABLE,
    UEDP_CORPORA,
    SelectiveRow,
    UedpCorpus,
    UedpRow,
    uedp_table,
)
from tacit.replication.published.user_entity import (
    lemma1,
    lemma2,
    patent,
    uedp,
    uedp_claim,
    uedp_rate,
    uedp_release,
    user,
)

__all__ = [
    "PUBLISHED",
    "SELECTIVE_TABLE",
    "UEDP_CORPORA",
    "PublishedPrice",
    "PublishedScale",
    "SelectiveRow",
    "UedpCorpus",
    "UedpRow",
    "binary_encoding",
    "dpnr",
    "gdp",
    "gdp_mu",
    "gdp_noise_multiplier",
    "lemma1",
    "lemma2",
    "patent",
    "selective",
    "selective_claim",
    "uedp",
    "uedp_claim",
    "uedp_rate",
    "uedp_release",
    "uedp_table",
    "user",
]

PUBLISHED: Mapping[str, Callable[..., PublishedPrice]] = MappingProxyType(
    {"uedp": uedp, "user": user, "selective": selective, "gdp": gdp, "dpnr": dpnr}
)
