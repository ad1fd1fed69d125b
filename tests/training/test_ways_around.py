"""Ways around a true certificate that an ordinary user has: files, settings, the order of commands.

Each is refused, or takes the standing `proved` with it.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tacit.corpora import customersim
from tacit.corpus import Corpus
from tacit.corpus.reading import read
from tacit.corpus.writing import write
from tacit.detection import Detection, detect
from tacit.detection.mentions import Aliases, write_lines
from tacit.detection.tagger import tagger
from tacit.errors import DataError, PrivacyRefused, UsageError
from tacit.privacy.certificates.certificate import Finding, amend
from tacit.privacy.certificates.manifest import file_digest
from tacit.training.models import networks, tokens, weights
from tacit.training.phases import session
from tacit.training.phases.loop import Progress
from tacit.training.settings import Run
from tacit.verification.runs import verify

SMALL = {"kind": "lstm", "config": {"embedding_size": 8, "hidden_size": 8, "layers": 1}}
USERS = {"protect": "users", "epsilon": 4, "steps": 1, "user_rate": 0.5, "users": 50}
BOTH = {"protect": "users+entities", "epsilon": 8, "steps": 1, "user_rate": 0.5}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write(customersim.generate(60, 3), folder / "c.jsonl")
    return folder


@pytest.fixture(scope="module")
def first(data: Path) -> Path:
    session.train(Run(**base(data), plan=USERS), data / "first")
    return data / "first"


@pytest.fixture
def copied(first: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(first, tmp_path / "copied"))


def base(data: Path, **fields: Any) -> dict[str, Any]:
    return {"corpus": str(data / "c.jsonl"), "model": SMALL, "tokenizer": {"size": 300},
            "context": 16} | fields  # fmt: skip


# --- tokenizers ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def counted(data: Path) -> Path:
    words = {"kind": "words", "min_count": 1}
    session.train(Run(**base(data, tokenizer=words), plan=USERS), data / "counted")
    return data / "counted"


def test_a_counted_vocabulary_is_known_wherever_it_was_copied(
    data: Path, counted: Path, tmp_path: Path
) -> None:
    place = tmp_path / "tokenizer"
    place.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(counted / name, place)
    given = {"kind": "folder", "folder": str(place)}
    done = session.train(Run(**base(data, tokenizer=given), plan=USERS), tmp_path / "run")
    assert done.certificate.standing == "heuristic"
    assert "counted from the private text" in done.certificate.not_covered[0]
    assert not any("the tokenizer" in one.what for one in done.certificate.public)


def test_a_vocabulary_that_is_the_private_one_is_refused_without_its_mark(
    data: Path, counted: Path, tmp_path: Path
) -> None:
    place = tmp_path / "tokenizer"
    place.mkdir()
    shutil.copy(counted / "tokenizer.json", place)
    fields = json.loads((counted / "tokenizer_config.json").read_text())
    del fields["counted_from_private_text"]
    (place / "tokenizer_config.json").write_text(json.dumps(fields))
    given = {"kind": "folder", "folder": str(place)}
    with pytest.raises(PrivacyRefused, match="words of the private text"):
        session.train(Run(**base(data, tokenizer=given), plan=USERS), tmp_path / "run")


def test_a_tokenizer_comes_from_one_place(data: Path, first: Path) -> None:
    # With a folder beside it, the public text was used and compared with nothing.
    given = {"kind": "words", "folder": str(first), "public_text": str(data / "c.jsonl")}
    model = {"kind": "folder", "folder": str(first), "carry_ledger": True}
    with pytest.raises(UsageError, match=r"tokenizer\.folder goes with"):
        Run(**base(data, model=model, tokenizer=given), plan=USERS)


# --- public text -----------------------------------------------------------------------------


def test_other_splits_of_the_private_corpus_are_not_public(tmp_path: Path) -> None:
    records = [
        {"id": f"{u}-{i}", "user": f"u{u}", "split": "valid" if i else "train",
         "text": f"user {u} writes in message {i} that the number is {u * 7919 + i} since may"}
        for u in range(20) for i in range(2)
    ]  # fmt: skip
    write(Corpus.from_records(records), tmp_path / "c.jsonl")
    valid = [{"id": r["id"], "text": r["text"]} for r in records if r["split"] == "valid"]
    write(Corpus.from_records(valid), tmp_path / "v.jsonl")
    start = {"corpus": str(tmp_path / "v.jsonl"), "steps": 1}
    with pytest.raises(PrivacyRefused, match="holds private text"):
        session.train(Run(**base(tmp_path, pretrain=start), plan=USERS), tmp_path / "run")


def test_text_that_shows_an_adapters_directions_is_compared_above_a_run_too(
    data: Path, tmp_path: Path
) -> None:
    small = {"kind": "gpt2", "config": {"hidden_size": 16, "layers": 1, "heads": 2}}
    session.train(Run(**base(data, model=small), plan=USERS), tmp_path / "first")
    text = str(shutil.copy(data / "c.jsonl", tmp_path / "public.jsonl"))
    model = {"kind": "states", "folder": str(tmp_path / "first"), "carry_ledger": True,
             "adapter_rank": 4, "adapter_writes": 4, "adapter_tokens": 50}  # fmt: skip
    fields = base(data, model=model | {"adapter_text": text}) | {"tokenizer": {}}
    with pytest.raises(PrivacyRefused, match="adapter's directions"):
        session.train(Run(**fields, plan=USERS | {"epsilon": 8}), tmp_path / "second")
    fields["model"] = model
    done = session.train(Run(**fields, plan=USERS | {"epsilon": 8}), tmp_path / "second")
    assert "the text of the adapter's directions" in {one.what for one in done.certificate.public}


def test_text_in_which_rows_are_counted_is_compared_and_named(
    data: Path, first: Path, tmp_path: Path
) -> None:
    place = tmp_path / "tokenizer"
    place.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(first / name, place)
    text = str(shutil.copy(data / "c.jsonl", tmp_path / "public.jsonl"))
    given = {"kind": "folder", "folder": str(place), "public_text": text}
    rows = {"model": SMALL | {"trained_rows": 20}}
    with pytest.raises(PrivacyRefused, match="tokens are counted"):
        session.train(Run(**base(data, tokenizer=given) | rows, plan=USERS), tmp_path / "run")
    run = Run(**base(data, tokenizer=given | {"public_text": "generated"}) | rows, plan=USERS)
    done = session.train(run, tmp_path / "run")
    assert "the text in which tokens are counted" in {one.what for one in done.certificate.public}


# --- names -----------------------------------------------------------------------------------


def test_a_tagger_of_the_same_text_marks_no_names(tmp_path: Path) -> None:
    """Whoever left would change what it marks in the texts of others."""
    corpus = customersim.generate(20, 3)
    write(corpus, tmp_path / "c.jsonl")
    tagger.train(read(tmp_path / "c.jsonl"), tmp_path / "tagger", iterations=3)
    plan = USERS | {"protect": "users+names"}
    run = Run(**base(tmp_path, detect=f"tagger={tmp_path / 'tagger'}"), plan=plan)
    with pytest.raises(PrivacyRefused, match="learned from the text"):
        session.train(run, tmp_path / "run")
    found = detect(read(tmp_path / "c.jsonl"), f"tagger={tmp_path / 'tagger'}")
    marks = found.save(tmp_path / "m.jsonl")
    with pytest.raises(PrivacyRefused, match="learned from the text"):
        session.train(Run(**base(tmp_path, mentions=str(marks)), plan=plan), tmp_path / "run")


# --- entities --------------------------------------------------------------------------------


def test_names_on_a_list_need_the_names_of_all_entities(data: Path, tmp_path: Path) -> None:
    found = detect(customersim.generate(60, 3), "gold")
    write_lines(tmp_path / "m.jsonl", found.mentions)
    one, other = [e for e in found.entities if e.records > 1][:2]
    (tmp_path / "list.txt").write_text(f"{one.id}\n{other.name}\n")
    plan = BOTH | {"entity_list": str(tmp_path / "list.txt")}
    run = Run(**base(data, mentions=str(tmp_path / "m.jsonl")), plan=plan)
    with pytest.raises(PrivacyRefused, match="entity table"):
        session.train(run, tmp_path / "run")
    write_lines(tmp_path / "m.entities.jsonl", [e for e in found.entities if e.id != other.id])
    with pytest.raises(PrivacyRefused, match="entity table"):
        session.train(run, tmp_path / "run")
    (tmp_path / "list.txt").write_text(f"{one.name}\n{other.name}\n")
    with pytest.raises(PrivacyRefused, match="entity table"):
        session.train(run, tmp_path / "run")
    write_lines(tmp_path / "m.entities.jsonl", found.entities)
    assert session.train(run, tmp_path / "run").certificate.standing == "proved"


def test_marks_of_unknown_origin_are_the_same_in_both_runs_only_if_the_file_is(
    data: Path, tmp_path: Path
) -> None:
    found = detect(customersim.generate(60, 3), "gold")
    write_lines(tmp_path / "m.jsonl", found.mentions)
    write_lines(tmp_path / "fewer.jsonl", found.mentions[::7])
    run = Run(**base(data, mentions=str(tmp_path / "m.jsonl")), plan=BOTH)
    session.train(run, tmp_path / "first")
    model = {"kind": "folder", "folder": str(tmp_path / "first"), "carry_ledger": True}
    fields = base(data, model=model) | {"tokenizer": {}}
    plan = BOTH | {"epsilon": 16}
    other = Run(**fields, mentions=str(tmp_path / "fewer.jsonl"), plan=plan)
    with pytest.raises(PrivacyRefused, match="detectors differ"):
        session.train(other, tmp_path / "second")
    same = Run(**fields, mentions=str(tmp_path / "m.jsonl"), plan=plan)
    assert session.train(same, tmp_path / "second").certificate.standing == "proved"


# --- what was found out later ------------------------------------------------------------------


FOUND = Finding(kind="audit", outcome="epsilon for users is at least 9", date="2026-01-01")


def test_broken_stays_broken_when_a_finished_run_is_resumed(copied: Path) -> None:
    amend(copied, finding=FOUND, broken=True)
    done = session.resume(copied)
    assert done.certificate.standing == "broken"
    assert FOUND in done.certificate.findings
    assert any(c.what == "audit" and not c.ok for c in verify(copied))


def test_a_certificate_that_was_edited_is_not_bound_anew(copied: Path) -> None:
    path = copied / "certificate.json"
    fields = json.loads(path.read_text())
    (copied / "model.safetensors").write_bytes(b"other weights")
    fields["files"]["model.safetensors"] = file_digest(copied / "model.safetensors")
    path.write_text(json.dumps(fields))
    with pytest.raises(PrivacyRefused, match="last line"):
        amend(copied, finding=FOUND)
    assert any(not c.ok for c in verify(copied))


def test_nothing_is_said_about_files_that_changed(copied: Path) -> None:
    (copied / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(PrivacyRefused, match=r"model\.safetensors"):
        amend(copied, finding=FOUND)
    assert amend(copied, finding=FOUND, broken=True).standing == "broken"


# --- files put into a folder that is not finished ----------------------------------------------


class Stop(Exception):
    pass


def _stop(at: Progress) -> None:
    if at.step == 3:
        raise Stop


@pytest.mark.parametrize(
    "name", ["adapter_model.safetensors", "merges.txt", "checkpoints/step-000001/model.safetensors"]
)
def test_files_that_the_run_did_not_write_are_not_certified(
    data: Path, tmp_path: Path, name: str
) -> None:
    run = Run(**base(data, keep_checkpoints=1), plan=USERS | {"steps": 4})
    with pytest.raises(Stop):
        session.train(run, tmp_path / "run", on_progress=_stop)
    planted = tmp_path / "run" / name
    planted.parent.mkdir(exist_ok=True)
    planted.write_bytes(b"private text")
    with pytest.raises(DataError, match=name):
        session.resume(tmp_path / "run")
    planted.unlink()
    files = session.resume(tmp_path / "run").certificate.files
    assert "checkpoints/step-000002/model.safetensors" in files
    assert [c for c in verify(tmp_path / "run") if not c.ok] == []


# --- labels ------------------------------------------------------------------------------------


def test_labels_of_a_run_that_counted_them_stay_a_leak(tmp_path: Path) -> None:
    records = [
        {"id": f"{u}-{i}", "user": f"u{u}", "label": "of one user" if u == i == 0 else "usual",
         "text": f"user {u} writes message {i} about the weather in may"}
        for u in range(6) for i in range(2)
    ]  # fmt: skip
    write(Corpus.from_records(records), tmp_path / "c.jsonl")
    fields = base(tmp_path, task="classification")
    session.train(Run(**fields, plan=USERS), tmp_path / "first")
    model = {"kind": "folder", "folder": str(tmp_path / "first"), "carry_ledger": True}
    fields |= {"model": model, "tokenizer": {}, "labels": "pretrained"}
    done = session.train(Run(**fields, plan=USERS | {"epsilon": 8}), tmp_path / "second")
    assert done.certificate.standing == "heuristic"
    assert "counted from the private text" in done.certificate.not_covered[0]


# --- the cache of public starts ----------------------------------------------------------------


def test_a_public_start_above_private_weights_is_nobody_elses(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adapters begin alike above any base, so they alone do not name a start."""
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    gpt2 = {"kind": "gpt2", "config": {"layers": 1, "hidden_size": 8, "heads": 1}}
    fields = base(data, model=gpt2, method="plain", steps=1)
    session.train(Run(**fields), tmp_path / "private")
    tokenizer = tokens.byte_level_bpe(None, 300)
    made = {"kind": "gpt2", "context": 16, **gpt2["config"]}  # type: ignore[dict-item]
    public = networks.scratch_model(made, "next-word", tokenizer=tokenizer, seed=1)
    weights.save_model(public, tokenizer, tmp_path / "public")
    start = {"corpus": "generated", "steps": 2, "batch": 4}
    fields |= {"tokenizer": {}, "pretrain": start}

    def begun(name: str, base_model: str, **more: Any) -> dict[str, Any]:
        model = {"kind": "folder", "folder": str(tmp_path / base_model), "lora_rank": 1} | more
        session.train(Run(**fields | {"model": model}), tmp_path / name)
        return load_file(tmp_path / name / "public-start.safetensors")

    after_private = begun("second", "private", carry_ledger=True)
    after_public = begun("third", "public")
    assert after_private.keys() == after_public.keys()
    assert any(not torch.equal(after_private[n], after_public[n]) for n in after_public)
    again = begun("fourth", "public")
    assert all(torch.equal(again[n], after_public[n]) for n in again)


# --- the same entities in both runs --------------------------------------------------------------


def _detected(corpus: Corpus, path: Path, aliases: Aliases | None = None) -> Detection:
    found = detect(corpus, "gold", aliases=aliases)
    write_lines(path, found.mentions)
    write_lines(path.with_name(f"{path.stem}.entities.jsonl"), found.entities)
    summary = found.summary() | {"mentions_sha256": file_digest(path)}
    path.with_name(f"{path.stem}.summary.json").write_text(json.dumps(summary))
    return found


def _continued(data: Path, first: Path, **fields: Any) -> Run:
    model = {"kind": "folder", "folder": str(first), "carry_ledger": True}
    fields["plan"] = fields.pop("plan", {}) | {"epsilon": 16}
    return Run(**base(data, model=model) | {"tokenizer": {}} | fields)


def test_ids_on_a_list_are_not_carried_to_another_corpus(data: Path, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("e3\n")
    write(customersim.generate(60, 4), tmp_path / "c.jsonl")
    plan = BOTH | {"entity_list": str(tmp_path / "list.txt")}
    session.train(Run(**base(data, detect="gold"), plan=plan), tmp_path / "first")
    session.train(_continued(data, tmp_path / "first", detect="gold", plan=plan), tmp_path / "same")
    with pytest.raises(PrivacyRefused, match="ids, which mean others"):
        session.train(
            _continued(tmp_path, tmp_path / "first", detect="gold", plan=plan), tmp_path / "other"
        )


def test_names_merged_otherwise_are_other_entities(data: Path, tmp_path: Path) -> None:
    corpus = customersim.generate(60, 3)
    names = [e.name for e in detect(corpus, "gold").entities if e.kind == "PERSON"]
    _detected(corpus, tmp_path / "one.jsonl", Aliases({"PERSON": {names[0]: [names[1]]}}))
    _detected(corpus, tmp_path / "two.jsonl", Aliases({"PERSON": {names[2]: [names[3]]}}))
    run = Run(**base(data, mentions=str(tmp_path / "one.jsonl")), plan=BOTH)
    scope = session.train(run, tmp_path / "first").certificate.scope.entities
    assert scope is not None
    assert scope.detectors[0].name == "gold"
    again = {"mentions": str(tmp_path / "one.jsonl"), "plan": BOTH}
    session.train(_continued(data, tmp_path / "first", **again), tmp_path / "same")
    other = again | {"mentions": str(tmp_path / "two.jsonl")}
    with pytest.raises(PrivacyRefused, match="other aliases"):
        session.train(_continued(data, tmp_path / "first", **other), tmp_path / "other")


# --- names and marks -----------------------------------------------------------------------------


def test_weights_that_another_program_wrote_anew_are_known(data: Path, tmp_path: Path) -> None:
    gpt2 = {"kind": "gpt2", "config": {"layers": 1, "hidden_size": 8, "heads": 1}}
    session.train(Run(**base(data, model=gpt2, method="plain", steps=1)), tmp_path / "private")
    AutoModelForCausalLM.from_pretrained(tmp_path / "private").save_pretrained(tmp_path / "new")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tmp_path / "private" / name, tmp_path / "new")
    model = {"kind": "folder", "folder": str(tmp_path / "new")}
    run = Run(**base(data, model=model) | {"tokenizer": {}}, plan=USERS)
    with pytest.raises(PrivacyRefused, match="made by a run of tacit"):
        session.train(run, tmp_path / "run")


def test_names_of_files_put_no_words_into_a_certificate(data: Path, tmp_path: Path) -> None:
    records = [{"id": str(i), "text": f"line {i} of a public text by nobody"} for i in range(9)]
    name = "x <script>y\n\n# Epsilon 0.1\n.jsonl"
    write(Corpus.from_records(records), tmp_path / name)
    start = {"corpus": str(tmp_path / name), "steps": 1}
    session.train(Run(**base(data, pretrain=start), plan=USERS), tmp_path / "run")
    for page in ("certificate.md", "certificate.html", "README.md"):
        text = (tmp_path / "run" / page).read_text()
        assert "<script>" not in text, page
        assert "\n# Epsilon 0.1" not in text, page
    assert [c for c in verify(tmp_path / "run") if not c.ok] == []


def test_pages_that_nobody_certified_are_named(copied: Path) -> None:
    (copied / "certificate.pdf").write_bytes(b"epsilon 0.01")
    checks = {c.detail for c in verify(copied) if c.what == "not covered"}
    assert any("certificate.pdf" in detail for detail in checks)
