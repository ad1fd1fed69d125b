"""Synthetic text in a report: what is promised of it, and the first few texts."""

from pathlib import Path

from tacit.corpus.reading import read
from tacit.errors import DataError
from tacit.privacy.certificates.certificate import read_certificate
from tacit.privacy.certificates.explanation import in_short
from tacit.privacy.certificates.wording import TEXT
from tacit.reports.facts import Section
from tacit.sanitization import certificate_folder
from tacit.verification.runs import verify

SHOWN = 10


def text_section(file: Path) -> Section:
    """A corpus that may be shared, with its certificate; refused where that does not hold."""
    folder = certificate_folder(file)
    wrong = next((check for check in verify(folder) if not check.ok), None)
    if wrong is not None:
        raise DataError(
            f"{file} cannot be shown as certified: {wrong.what}: {wrong.detail} (tacit verify "
            f"{folder})."
        )
    certificate = read_certificate(folder / "certificate.json")
    if certificate.released != TEXT:
        raise DataError(f"{folder} is the certificate of a model; give a synthetic corpus.")
    corpus = read(file)
    rows = [
        [str(number), " ".join(text.replace("|", "/").split())]
        for number, text in enumerate(corpus.column("text").to_pylist()[:SHOWN], 1)
    ]
    said = [*in_short(certificate), f"{len(rows)} of its {len(corpus):,} texts, for anybody:"]
    headings = ["", "text (protected)"]
    return Section(f"Text that may be shared: {file.name}", "\n\n".join(said), (), headings, rows)
