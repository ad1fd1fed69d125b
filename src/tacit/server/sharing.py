"""What may leave a model's folder, checked on its way out and on its way in."""

import contextlib
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from tacit.errors import DataError, TacitError
from tacit.privacy.certificates.attacker_gain import Gained
from tacit.privacy.certificates.certificate import Certificate, read_certificate
from tacit.privacy.certificates.explanation import gained, headline, protected
from tacit.privacy.certificates.manifest import CERTIFICATE_FILES, SHAREABLE, SIGNATURE
from tacit.server import Json
from tacit.server.errors import TooLarge
from tacit.server.settings import MIB
from tacit.verification.runs import verify
from tacit.verification.signing import make_key, sign, signature_check

SHARED = (
    *CERTIFICATE_FILES, SIGNATURE, "audit.json",
    *(name for name in SHAREABLE if "*" not in name),
)  # fmt: skip
"""What may leave a run's folder; see docs/guides/training.md."""

KEY = "signing-key"
"""The server's own key in its folder; `signing-key.pub` is for whoever wants to check."""

MOST_UNPACKED = 512 * MIB
MOST_WRITTEN = 64 * MIB
"""Of weights, and of everything that is read as text: ledgers, certificates, tokenizers."""


_WARNINGS = {
    "proved": None,
    "broken": "An audit contradicted this model's certificate: treat it as private text.",
    "published": "What is promised about this model is a paper's claim that is not proved here; "
    "it may give away text that it was trained on.",
    "heuristic": "Nothing is promised about this model: it may give away text that it was trained "
    "on.",
}


def warning_of(certificate: Certificate) -> str | None:
    """What a model's answers must say where nothing, or nothing any more, is proved about it."""
    return _WARNINGS.get(certificate.standing, _WARNINGS["heuristic"])


def promise_of(certificate: Certificate) -> Json:
    """What a certificate says now, in its own words, for the API and the pages."""
    gain = None
    if certificate.standing == "proved":
        gain = gain_words(gained(certificate, certificate.protect))
    return {
        "standing": certificate.standing,
        "protect": certificate.protect,
        "epsilon": {unit: cost.epsilon for unit, cost in certificate.costs.items()},
        "delta": certificate.delta,
        "sentence": certificate.sentence,
        "headline": headline(certificate).replace("**", ""),
        "protected": protected(certificate),
        "not_covered": list(certificate.not_covered),
        "gain": gain,
    }


def gain_words(left: Gained) -> dict[str, str]:
    """What an attacker is left with, in the certificate's words."""
    return {"grade": left.grade, "verdict": left.verdict, "figures": left.figures}


def vouch(home: Path, folder: Path) -> None:
    """Sign a run with the server's own key; what does not verify any more loses its signature."""
    public_key(home)
    try:
        sign(folder, home / KEY)
    except DataError:
        (folder / SIGNATURE).unlink(missing_ok=True)


def public_key(home: Path) -> str:
    """The key with which whoever has a model of this server checks its signature."""
    if not (home / KEY).exists():
        make_key(home / KEY)
    return (home / f"{KEY}.pub").read_text(encoding="ascii")


def checked(folder: Path, key: Path | None = None) -> Json:
    """Every check of a folder; files that were not given are listed apart.

    With a public `key`, the signature is checked, too.
    """
    checks = [asdict(check) for check in verify(folder)]
    standing, named = "unknown", set()
    with contextlib.suppress(TacitError):
        certificate = read_certificate(folder / "certificate.json")
        standing, named = certificate.standing, set(certificate.files)
    absent = {f"file {name}" for name in named if not (folder / name).exists()}
    left_out = [c for c in checks if c["what"] in absent]
    done = [c for c in checks if c not in left_out]
    if key is not None:
        done.append(asdict(signature_check(folder, key)))
    return {
        "ok": bool(done) and all(c["ok"] for c in done),
        "standing": standing,
        "checks": done,
        "not_checked": [c["what"] for c in left_out],
    }


def verify_uploaded(files: Mapping[str, BinaryIO], inside: Path) -> Json:
    """Check a certificate of somebody else's: its files one by one, or one zip of them."""
    with tempfile.TemporaryDirectory(dir=inside) as place:
        folder = Path(place)
        for name, content in files.items():
            if name.endswith(".zip"):
                _unpack(content, folder)
            elif name in SHARED:
                _copy(content, folder / name)
            else:
                raise DataError(
                    "The upload has a file that does not belong to a model; accepted: "
                    f"{', '.join(SHARED)}."
                )
        return checked(folder)


def _copy(content: Any, to: Path) -> None:
    most = MOST_UNPACKED if to.suffix == ".safetensors" else MOST_WRITTEN
    left = most
    with to.open("wb") as out:
        while part := content.read(MIB):
            left -= len(part)
            if left < 0:
                raise TooLarge(f"{to.name} unpacks to more than {most // MIB} MiB.")
            out.write(part)


def _unpack(content: Path | BinaryIO, folder: Path) -> None:
    """Only files that a model has, at the top, each once, and not more than fits."""
    try:
        with zipfile.ZipFile(content) as archive:
            members = archive.infolist()
            if sum(m.file_size for m in members) > MOST_UNPACKED:
                raise TooLarge(f"The zip unpacks to more than {MOST_UNPACKED // MIB} MiB.")
            for member in members:
                if member.filename not in SHARED or (folder / member.filename).exists():
                    raise DataError(
                        "The zip must hold only the files of one model, at its top level; "
                        f"accepted: {', '.join(SHARED)}."
                    )
                with archive.open(member) as packed:
                    _copy(packed, folder / member.filename)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError, OSError):
        raise DataError("The upload is not a complete, unencrypted zip file.") from None


def unpack_model(archive: Path | BinaryIO, folder: Path) -> None:
    """A downloaded model as a folder of its own; nothing half-written is left behind."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _unpack(archive, draft)
        draft.chmod(0o755)
        draft.replace(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
