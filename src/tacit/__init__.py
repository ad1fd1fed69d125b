"""Language models that learn from people's text and keep its secrets.

The names here are the public surface. They are loaded when they are first used, so that
`import tacit` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.bounding import Bounded, bound
    from tacit.corpus import Corpus, Record
    from tacit.detecting import Detection, detect
    from tacit.detecting.mentions import Mention
    from tacit.errors import TacitError
    from tacit.owners import Owners
    from tacit.plan import Plan
    from tacit.privacy.accounting import Price, price
    from tacit.privacy.certificate import Certificate
    from tacit.privacy.ledger import Ledger
    from tacit.reading import Layout, from_dataset, read
    from tacit.sanitizing import sanitize
    from tacit.server.client import Client
    from tacit.training.runs import resume, train
    from tacit.training.scoring import evaluate, predict
    from tacit.training.settings import Run
    from tacit.verifying import verify
    from tacit.writing import write

_HOMES = {
    "Bounded": "tacit.bounding",
    "Certificate": "tacit.privacy.certificate",
    "Client": "tacit.server.client",
    "Corpus": "tacit.corpus",
    "Detection": "tacit.detecting",
    "Layout": "tacit.reading",
    "Ledger": "tacit.privacy.ledger",
    "Mention": "tacit.detecting.mentions",
    "Owners": "tacit.owners",
    "Plan": "tacit.plan",
    "Price": "tacit.privacy.accounting",
    "Record": "tacit.corpus",
    "Run": "tacit.training.settings",
    "TacitError": "tacit.errors",
    "bound": "tacit.bounding",
    "detect": "tacit.detecting",
    "evaluate": "tacit.training.scoring",
    "from_dataset": "tacit.reading",
    "predict": "tacit.training.scoring",
    "price": "tacit.privacy.accounting",
    "read": "tacit.reading",
    "sanitize": "tacit.sanitizing",
    "resume": "tacit.training.runs",
    "train": "tacit.training.runs",
    "verify": "tacit.verifying",
    "write": "tacit.writing",
}

__all__ = [
    "Bounded",
    "Certificate",
    "Client",
    "Corpus",
    "Detection",
    "Layout",
    "Ledger",
    "Mention",
    "Owners",
    "Plan",
    "Price",
    "Record",
    "Run",
    "TacitError",
    "bound",
    "detect",
    "evaluate",
    "from_dataset",
    "predict",
    "price",
    "read",
    "resume",
    "sanitize",
    "train",
    "verify",
    "write",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tacit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
