"""Another head from the statistics that a run released: post-processing, which costs nothing."""

import shutil
from pathlib import Path

from tacit.errors import PrivacyRefused, UsageError
from tacit.privacy.certificates.certificate import Certificate, publish, read_certificate
from tacit.privacy.certificates.manifest import make_manifest
from tacit.training.methods.statistics import Head, class_shares, fit
from tacit.training.models import weights
from tacit.training.models.shared import load_shared
from tacit.training.phases.session import MADE_HERE
from tacit.verification.runs import verify

_COPIED = ("ledger.jsonl", "plan.yml", "settings.yml", "README.md", "run.yml", "account.json")


def refit(
    run: Path, to: Path, head: Head, *, ridge: float = 1.0
) -> tuple[Certificate, dict[str, float]]:
    """The model of a run with another head, in a folder of its own, and shares of classes.

    Only the run's certified files are read, no text. The new folder has the same ledger, in which
    nothing but the new certificate is entered: that is the proof that nothing more was spent.
    """
    if to.exists() and any(to.iterdir()):
        raise UsageError(f"{to} is not empty; give a new folder.")
    wrong = next((check for check in verify(run) if not check.ok), None)
    if wrong is not None:
        raise PrivacyRefused(f"{run} does not verify ({wrong.what}: {wrong.detail}).")
    shared = load_shared(run)
    fit(shared.model, head, ridge)
    to.mkdir(parents=True, exist_ok=True)
    for name in _COPIED:
        if (run / name).exists():
            shutil.copy2(run / name, to / name)
    weights.save_model(shared.model, shared.tokenizer, to, mark=MADE_HERE)
    before = read_certificate(run / "certificate.json")
    said = f"{head}, ridge {ridge:g}, fitted again from the one release; nothing more was spent"
    changed = {"context": before.context | {"head": said}, "files": make_manifest(to)}
    shares = class_shares(shared.model) if shared.task.name == "classification" else {}
    return publish(before.model_copy(update=changed), to), shares
