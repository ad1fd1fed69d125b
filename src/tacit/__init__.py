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
    from tacit.owners import Owners, owners
    from tacit.owners.bounding import Bounded, bound
    from tacit.planning.plan import Plan
    from tacit.privacy.accounting.pricing import Price, price
    from tacit.privacy.certificates.certificate import Certificate
    from tacit.privacy.ledger import Ledger
    from tacit.python.models import models
    from tacit.python.planning import Planned, plan
    from tacit.python.runs import TrainedRun, compare, open_run, resume, train
    from tacit.python.synthesis import synthesize
    from tacit.sanitization import sanitize
    from tacit.server.client import Client
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
    "Planned": "tacit.python.planning",
    "Price": "tacit.privacy.accounting.pricing",
    "Record": "tacit.corpus",
    "Run": "tacit.training.settings",
    "TacitError": "tacit.errors",
    "TrainedRun": "tacit.python.runs",
    "bound": "tacit.owners.bounding",
    "compare": "tacit.python.runs",
    "detect": "tacit.detection",
    "from_dataset": "tacit.corpus.reading",
    "models": "tacit.python.models",
    "open_run": "tacit.python.runs",
    "owners": "tacit.owners",
    "plan": "tacit.python.planning",
    "price": "tacit.privacy.accounting.pricing",
    "read": "tacit.corpus.reading",
    "sanitize": "tacit.sanitization",
    "resume": "tacit.python.runs",
    "synthesize": "tacit.python.synthesis",
    "train": "tacit.python.runs",
    "verify": "tacit.verification.runs",
    "write": "tacit.corpus.writing",
}

_ROOMS = ("hf", "torch")
"""Packages with a surface of their own, such as `tacit.torch`."""

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
    "Planned",
    "Price",
    "Record",
    "Run",
    "TacitError",
    "TrainedRun",
    "bound",
    "compare",
    "detect",
    "from_dataset",
    "models",
    "open_run",
    "owners",
    "plan",
    "price",
    "read",
    "resume",
    "sanitize",
    "synthesize",
    "train",
    "verify",
    "write",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _ROOMS:
        return import_module(f"tacit.{name}")
    raise AttributeError(f"module 'tacit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS])
