"""The methods: each is one file with a `MethodSpec`, and one line here.

method.py      MethodSpec: all that the house asks of a method, with defaults
noisy_sums.py  NoisySumMethod: sampler + bounded sum + noise, the step of most private methods
independence.py  a unit alone gives what it gives among others, or nothing is released
segments.py, states.py, regularized.py  what only some methods use

Other packages add methods by entry points of the group `tacit.methods`; see CONTRIBUTING.md.
"""

from typing import TYPE_CHECKING, Any

from tacit.registry import Registry

if TYPE_CHECKING:
    from tacit.training.methods.method import MethodSpec

DEFAULT_METHOD = "dp-sgd"
_HERE = "tacit.training.methods"

METHODS: "Registry[MethodSpec[Any]]" = Registry(
    "method",
    "tacit.methods",
    {
        "plain": f"{_HERE}.plain:PLAIN",
        "deidentify": f"{_HERE}.deidentify:DEIDENTIFY",
        "dp-sgd": f"{_HERE}.dp_sgd:DP_SGD",
        "statistics": f"{_HERE}.statistics:STATISTICS",
        "ngrams": f"{_HERE}.ngrams:NGRAMS",
        "dp-fedavg": f"{_HERE}.dp_fedavg:DP_FEDAVG",
        "selective": f"{_HERE}.selective:SELECTIVE",
        "redact-then-private": f"{_HERE}.redact_then_private:REDACT_THEN_PRIVATE",
        "residual-tokens": f"{_HERE}.residual_tokens:RESIDUAL_TOKENS",
        "adversarial": f"{_HERE}.adversarial:ADVERSARIAL",
        "triplet": f"{_HERE}.triplet:TRIPLET",
        "uedp": f"{_HERE}.uedp:UEDP",
    },
)
