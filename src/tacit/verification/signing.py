"""Vouching for a certificate: signatures in the format of OpenSSF model signing, made offline.

A certificate can be recomputed from its ledger, but whoever edits a ledger can issue a certificate
for what it then says. A signature says whose ledger it is. It covers the certificate, the ledger
and every file of the manifest but models kept on the way, which the signed certificate covers.
`model_signing verify key` checks it without us.
"""

import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tacit.errors import DataError, MissingExtra, UsageError
from tacit.files import refuse_overwrite, whole_file
from tacit.privacy.certificates.certificate import read_certificate
from tacit.privacy.certificates.local_privacy import is_local
from tacit.privacy.certificates.manifest import CERTIFICATE_FILES, KEPT, SIGNATURE
from tacit.privacy.certificates.wording import TEXT
from tacit.verification.runs import Check, verify


def make_key(path: Path) -> Path:
    """A new private key (P-256, PEM, for its owner alone); the public one, beside it."""
    _library()  # a key is of use only where something can be signed
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import ec

    public = path.with_name(path.name + ".pub")
    refuse_overwrite(path, public)
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    shown = key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
    with whole_file(path) as draft:
        draft.touch(mode=0o600)
        draft.write_bytes(private)
    with whole_file(public) as draft:
        draft.write_bytes(shown)
    return public


def sign(folder: Path, key: Path) -> Path:
    """Sign a folder whose certificate holds; the signature, as a file in it."""
    tools = _library()  # said before the work of verifying
    wrong = next((check for check in verify(folder) if not check.ok), None)
    if wrong is not None:
        raise DataError(
            f"{folder} does not verify ({wrong.what}: {wrong.detail}), so it is not signed."
        )
    signature = folder / SIGNATURE
    others = [f for f in _files(folder) if f not in signed_files(folder)]
    hashing = tools.hashing.Config().set_ignored_paths(paths=[*others, SIGNATURE])
    try:
        config = tools.signing.Config().use_elliptic_key_signer(private_key=key)
    except (ValueError, TypeError, OSError):
        raise UsageError(
            f"{key} is not a private key that signs here; make one with tacit sign --new-key KEY."
        ) from None
    with whole_file(signature) as draft:
        config.set_hashing_config(hashing).sign(folder, draft)
    return signature


def signature_check(folder: Path, public_key: Path) -> Check:
    """Whether the holder of a key vouches for everything the certificate rests on."""
    tools = _library()
    path = folder / SIGNATURE
    if not path.is_file():
        return Check("signature", False, f"there is none ({SIGNATURE})")
    try:
        checking = tools.verifying.Config().use_elliptic_key_verifier(public_key=public_key)
    except (ValueError, TypeError, OSError):
        raise UsageError(f"{public_key} is not a public key (PEM, elliptic curve).") from None
    try:
        signed = _signed_names(path)
        missing = sorted(signed_files(folder) - signed)
        if missing:
            return Check("signature", False, f"does not cover {', '.join(missing)}")
        checking.set_ignore_unsigned_files(True).verify(folder, path)
    except Exception:
        # Its library raises whatever a bad file or signature leads to; all of it means no.
        return Check("signature", False, "is not of this key, or of other files")
    return Check("signature", True, f"of {public_key.name}, over {len(signed)} files")


def signed_files(folder: Path) -> set[str]:
    """What a signature has to cover: the certificate, the ledger, the model."""
    path = folder / "certificate.json"
    # A certified corpus lies beside this folder: the certificate, which is signed, has its digest.
    named = {} if is_local(path) else read_certificate(path).files
    if not is_local(path) and read_certificate(path).released == TEXT:
        named = {}
    wanted = {name for name in named if not name.startswith(f"{KEPT}/")}
    return wanted | {name for name in CERTIFICATE_FILES if (folder / name).exists()}


def _signed_names(path: Path) -> set[str]:
    """The files that a signature names; what it names is checked only after that."""
    envelope = json.loads(path.read_text(encoding="utf-8"))["dsseEnvelope"]
    statement = json.loads(base64.b64decode(envelope["payload"]))
    return {str(one["name"]) for one in statement["predicate"]["resources"]}


def _files(folder: Path) -> Iterable[str]:
    return [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]


def _library() -> Any:
    try:
        import model_signing
    except ImportError:
        raise MissingExtra.of(
            "Signatures need the packages model-signing and pyOpenSSL", "sign"
        ) from None
    return model_signing
