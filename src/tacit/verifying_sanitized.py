"""Check the certificate of a sanitized corpus from its ledger: no data, no embeddings needed."""

from collections.abc import Iterator
from pathlib import Path

from tacit.errors import TacitError
from tacit.privacy.certificate import file_digest
from tacit.privacy.documents import FILE
from tacit.privacy.ledger import Books, read_ledger
from tacit.privacy.local import LocalCertificate, issue_local, read_local, render_local
from tacit.verifying import Check

_FOLLOWS = (
    "standing",
    "notion",
    "mechanism",
    "sentence",
    "epsilon_per_distance",
    "epsilon_0",
    "reach",
    "assumptions",
    "not_covered",
)
"""What must follow from the ledger and the stated distances."""


def verify_sanitized(folder: Path) -> list[Check]:
    """Everything that can be checked about the folder beside a sanitized corpus."""
    try:
        certificate = read_local(folder / FILE)
        books = read_ledger(folder / "ledger.jsonl")
    except TacitError as error:
        return [Check("certificate and ledger", False, str(error))]
    checks = [
        Check("certificate", True, "readable, every field known"),
        Check(
            "ledger chain", not books.torn, "torn last line" if books.torn else "every hash fits"
        ),
        Check(
            "ledger digest",
            books.digest == certificate.ledger_digest
            and len(books.entries) == certificate.ledger_entries,
            f"{len(books.entries):,} in the ledger, {certificate.ledger_entries:,} certified",
        ),
    ]
    for name in ("data", "randomness", "public"):
        same = books.about.get(name) == getattr(certificate, name)
        checks.append(Check(name, same, "as in the ledger's first line" if same else "differs"))
    try:
        checks += _recomputed(certificate, books)
    except TacitError as error:
        checks.append(Check("promise", False, str(error)))
    checks += _files(certificate, folder)
    return checks


def _recomputed(certificate: LocalCertificate, books: Books) -> Iterator[Check]:
    fresh = issue_local(
        books,
        distances={name: reach.distance for name, reach in certificate.reach.items()},
        public=certificate.public,
        files=certificate.files,
        data=certificate.data,
        randomness=certificate.randomness,
    )
    for name in _FOLLOWS:
        fits = getattr(fresh, name) == getattr(certificate, name)
        shown = getattr(fresh, name)
        detail = str(shown) if isinstance(shown, float | str) and name != "sentence" else ""
        said = (f"{detail}, as recomputed" if detail else "as recomputed").strip()
        yield Check(name.replace("_", " "), fits, said if fits else "differs from what holds")


def _files(certificate: LocalCertificate, folder: Path) -> Iterator[Check]:
    page = folder / "certificate.md"
    if page.exists():
        try:
            same = page.read_text("utf-8", errors="replace") == render_local(certificate)
        except OSError:
            same = False
        yield Check("certificate.md", same, "says the same" if same else "says something else")
    named = bool(certificate.files)
    yield Check("output", named, f"{len(certificate.files)} file(s) named" if named else "none")
    for name, digest in certificate.files.items():
        # The corpus lies beside the folder of its certificate.
        found = None
        if Path(name).name == name and (folder.resolve().parent / name).is_file():
            found = file_digest(folder.resolve().parent / name)
        detail = "as certified" if found == digest else "missing" if found is None else "differs"
        yield Check(f"file {name}", found == digest, detail)
