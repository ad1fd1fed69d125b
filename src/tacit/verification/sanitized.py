"""Check the certificate of a sanitized corpus from its ledger: no data, no embeddings needed."""

from collections.abc import Iterator
from pathlib import Path

from tacit.errors import TacitError
from tacit.privacy.certificates.documents import FILE
from tacit.privacy.certificates.local_privacy import (
    LocalCertificate,
    binding,
    issue_local,
    pages,
    read_local,
)
from tacit.privacy.certificates.manifest import CERTIFICATE_FILES, SIGNATURE, digest_in, not_covered
from tacit.privacy.ledger import Books, read_ledger
from tacit.verification.runs import Check

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
    "public",
    "context",
    "columns",
    "data",
    "randomness",
)
"""What must follow from the ledger."""


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
        _closing(certificate, books),
    ]
    try:
        checks += _recomputed(certificate, books)
    except TacitError as error:
        checks.append(Check("promise", False, str(error)))
    checks += _pages(certificate, folder)
    checks += _files(certificate, folder)
    checks.append(_others(folder))
    return checks


def _closing(certificate: LocalCertificate, books: Books) -> Check:
    bound = books.closing == binding(certificate)
    detail = "binds this certificate and the corpus" if bound else "binds something else"
    return Check("ledger's last line", bound, detail if books.closing else "is not there")


def _recomputed(certificate: LocalCertificate, books: Books) -> Iterator[Check]:
    fresh = issue_local(books, certificate.files)
    for name in _FOLLOWS:
        fits = getattr(fresh, name) == getattr(certificate, name)
        shown = getattr(fresh, name)
        detail = str(shown) if isinstance(shown, float | str) and name != "sentence" else ""
        said = (f"{detail}, as recomputed" if detail else "as recomputed").strip()
        yield Check(name.replace("_", " "), fits, said if fits else "differs from what holds")


def _pages(certificate: LocalCertificate, folder: Path) -> Iterator[Check]:
    """The pages for people: what is there must say the same; somebody may share the JSON alone."""
    for name, wanted in pages(certificate).items():
        path = folder / name
        if not (path.exists() or path.is_symlink()):
            continue
        try:
            same = not path.is_symlink() and path.read_bytes() == wanted.encode()
        except OSError:
            same = False
        yield Check(name, same, "says the same" if same else "says something else")


def _files(certificate: LocalCertificate, folder: Path) -> Iterator[Check]:
    """The corpus, which lies beside the folder of its certificate."""
    named = bool(certificate.files)
    yield Check("output", named, f"{len(certificate.files)} file(s) named" if named else "none")
    for name, digest in certificate.files.items():
        found = digest_in(folder.resolve().parent, name) if Path(name).name == name else None
        detail = "as certified" if found == digest else "missing" if found is None else "differs"
        yield Check(f"file {name}", found == digest, detail)


def _others(folder: Path) -> Check:
    """Whatever else lies in the folder: nobody may take it for a part of what is certified."""
    _, unknown = not_covered(folder, ())
    if unknown:
        named = ", ".join(unknown)
        return Check("other files", False, f"not covered by this certificate, take out: {named}")
    known = {*CERTIFICATE_FILES, SIGNATURE}
    left = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if (path.is_file() or path.is_symlink())
        and path.relative_to(folder).as_posix() not in known
    )
    return Check("other files", True, f"not covered: {', '.join(left)}" if left else "none")
