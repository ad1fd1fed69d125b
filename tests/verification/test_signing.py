"""Signatures: what nobody can recompute is vouched for by a key, and checked offline."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.runs import make_run
from tacit.corpus import Corpus
from tacit.errors import DataError, UsageError
from tacit.privacy.certificates.certificate import publish, read_certificate
from tacit.privacy.ledger import read_ledger
from tacit.sanitization import Recipe, Sanitizer, open_embeddings, sanitize_file
from tacit.verification.runs import verify
from tacit.verification.signing import make_key, sign, signature_check


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "alice"
    make_key(path)
    return path


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory, key: Path) -> Path:
    folder = make_run(tmp_path_factory.mktemp("runs") / "one", steps=4)
    (folder / "metrics.json").write_text("{}")
    sign(folder, key)
    return folder


def public(key: Path) -> Path:
    return key.with_name(key.name + ".pub")


def test_a_signed_run_is_vouched_for(signed: Path, key: Path) -> None:
    check = signature_check(signed, public(key))
    assert check.ok, check.detail
    assert all(c.ok for c in verify(signed))
    assert key.stat().st_mode & 0o077 == 0


def test_another_key_vouches_for_nothing(signed: Path, tmp_path: Path) -> None:
    make_key(tmp_path / "mallory")
    assert not signature_check(signed, tmp_path / "mallory.pub").ok


def test_keys_are_not_overwritten_and_bad_ones_refused(signed: Path, key: Path) -> None:
    with pytest.raises(UsageError, match="exists"):
        make_key(key)
    with pytest.raises(UsageError, match="not a public key"):
        signature_check(signed, signed / "certificate.md")
    with pytest.raises(UsageError, match="not a private key"):
        sign(signed, signed / "certificate.md")


def restate(folder: Path) -> None:
    """A forger who edits what the ledger cannot show, and binds it anew."""
    said = read_certificate(folder / "certificate.json")
    publish(said.model_copy(update={"context": {"method": "dp-sgd", "recall": 1.0}}), folder)


def reissue(folder: Path) -> None:
    """A forger who forges the whole ledger: half of the steps, and all that follows from it."""
    other = make_run(folder.with_name("other"), steps=2)
    for name in ("ledger.jsonl", "certificate.json", "certificate.md", "certificate.html"):
        shutil.copy(other / name, folder / name)


def backdate(folder: Path) -> None:
    said = read_certificate(folder / "certificate.json")
    made = said.provenance.model_copy(update={"created": "2001-01-01"})
    publish(said.model_copy(update={"provenance": made}), folder)


FORGED: dict[str, Callable[[Path], None]] = {
    "other context": restate, "another ledger": reissue, "another day": backdate,
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_what_recomputing_cannot_see_the_signature_does(
    signed: Path, key: Path, tmp_path: Path, name: str
) -> None:
    forged = tmp_path / "forged"
    shutil.copytree(signed, forged, ignore=shutil.ignore_patterns("*.lock"))
    FORGED[name](forged)
    assert all(c.ok for c in verify(forged)), "no recomputation can find this"
    assert not signature_check(forged, public(key)).ok


@pytest.mark.parametrize(
    "name", ["model.safetensors", "ledger.jsonl", "certificate.json", "certificate.md", "plan.yml"]
)
def test_every_signed_file_counts(signed: Path, key: Path, tmp_path: Path, name: str) -> None:
    forged = tmp_path / "forged"
    shutil.copytree(signed, forged)
    (forged / name).write_bytes((forged / name).read_bytes() + b"\n")
    assert not signature_check(forged, public(key)).ok
    (forged / name).unlink()
    check = signature_check(forged, public(key)) if name != "certificate.json" else None
    assert check is None or not check.ok


def test_a_signature_over_less_is_none(signed: Path, key: Path, tmp_path: Path) -> None:
    """Somebody signs the weights alone, and puts that signature beside a certificate."""
    import model_signing

    folder = tmp_path / "partly"
    shutil.copytree(signed, folder)
    ignored = [p for p in folder.iterdir() if p.name != "model.safetensors"]
    hashing = model_signing.hashing.Config().set_ignored_paths(paths=[p.name for p in ignored])
    config = model_signing.signing.Config().use_elliptic_key_signer(private_key=key)
    config.set_hashing_config(hashing).sign(folder, folder / "model.sig")
    check = signature_check(folder, public(key))
    assert not check.ok
    assert "does not cover" in check.detail


def test_what_does_not_hold_is_not_signed(tmp_path: Path, key: Path) -> None:
    folder = make_run(tmp_path / "run", steps=2)
    (folder / "model.safetensors").write_bytes(b"other")
    with pytest.raises(DataError, match="not signed"):
        sign(folder, key)


def test_no_signature_is_said(tmp_path: Path, key: Path) -> None:
    folder = make_run(tmp_path / "run", steps=2)
    assert "there is none" in signature_check(folder, public(key)).detail
    (folder / "model.sig").write_text(json.dumps({"dsseEnvelope": {}}))
    assert not signature_check(folder, public(key)).ok
    assert read_ledger(folder / "ledger.jsonl").closing


def test_a_sanitized_corpus_is_signed_too(tmp_path: Path, key: Path) -> None:
    corpus = Corpus.from_records([{"id": "1", "text": "my order is late"}])
    work = Sanitizer(open_embeddings("own"), Recipe("santext", 2.0, None, "random"))
    done = sanitize_file(corpus.table.to_batches(), tmp_path / "out.jsonl", work)
    sign(done.folder, key)
    assert signature_check(done.folder, public(key)).ok
    assert all(c.ok for c in verify(done.folder))
    (done.folder / "ledger.jsonl").write_bytes(b"")
    assert not signature_check(done.folder, public(key)).ok
