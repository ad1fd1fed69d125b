"""Language models that learn from people's text and keep its secrets.

The names here are the public surface. They are loaded when they are first used, so that
`import tacit` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.corpus import Corpus, Record
    from tacit.corpus.reading import Layout, from_dataset, read
    from tacit.corpus.writing import write
    from tacit.detection import Detection, detect
    from tacit.detection.mentions import Mention
    from tacit.errors import TacitError
    from tacit.owners import Owners
    from tacit.owners.bounding import Bounded, bound
    from tacit.planning.plan import Plan
    from tacit.privacy.accounting.pricing import Price, price
    from tacit.privacy.certificates.certificate import Certificate
    from tacit.privacy.ledger import Ledger
    from tacit.sanitization import sanitize
    from tacit.server.client import Client
    from tacit.training.evaluation.scoring import evaluate, predict
    from tacit.training.phases.session import resume, train
    from tacit.training.settings import Run
    from tacit.verification.runs import verify

_HOMES = {
    "Bounded": "tacit.owners.bounding",
    "Certificate": "tacit.privacy.certificates.certificate",
    "Client": "tacit.server.client",
    "Corpus": "tacit.corpus",
    "Detection": "tacit.detection",
    "Layout": "tacit.corpus.reading",
    "Ledger": "tacit.privacy.ledger",
    "Mention": "tacit.detection.mentions",
    "Owners": "tacit.owners",
    "Plan": "tacit.planning.plan",
    "Price": "tacit.privacy.accounting.pricing",
    "Record": "tacit.corpus",
    "Run": "tacit.training.settings",
    "TacitError": "tacit.errors",
    "bound": "tacit.owners.bounding",
    "detect": "tacit.detection",
    "evaluate": "tacit.training.evaluation.scoring",
    "from_dataset": "tacit.corpus.reading",
    "predict": "tacit.training.evaluation.scoring",
    "price": "tacit.privacy.accounting.pricing",
    "read": "tacit.corpus.reading",
    "sanitize": "tacit.sanitization",
    "resume": "tacit.training.phases.session",
    "train": "tacit.training.phases.session",
    "verify": "tacit.verification.runs",
    "write": "tacit.corpus.writing",
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
