"""Ways in which a certificate could be false: each is refused, or said in its own words."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from tacit.cli.common import out
from tacit.cli.train import _print_metrics, print_promise
from tacit.corpora import customersim
from tacit.corpus import Corpus
from tacit.corpus.writing import write
from tacit.detection import detect
from tacit.detection.mentions import write_lines
from tacit.errors import DataError, PrivacyRefused, UsageError
from tacit.planning.dry_run import explain
from tacit.planning.plan import Plan, calibrated
from tacit.privacy.certificates.certificate import Finding, amend, read_certificate
from tacit.privacy.certificates.explanation import gained
from tacit.privacy.certificates.manifest import file_digest
from tacit.privacy.rounding import up
from tacit.reports.facts import read_all
from tacit.reports.report import sections
from tacit.server.sharing import promise_of
from tacit.training.data.scope import recall_on
from tacit.training.phases import session
from tacit.training.settings import Run
from tacit.verification.runs import verify

SMALL = {"kind": "lstm", "config": {"embedding_size": 8, "hidden_size": 8, "layers": 1}}
USERS = {"protect": "users", "epsilon": 4, "steps": 1, "user_rate": 0.5, "users": 50}
BOTH = {"protect": "users+entities", "epsilon": 8, "steps": 1, "user_rate": 0.5}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write(customersim.generate(60, 3), folder / "c.jsonl")
    records = [
        {"id": f"{u}-{i}", "user": f"u{u}", "label": ("spam", "ham")[i % 2],
         "text": f"user {u} writes message {i} about the weather in may"}
        for u in range(6) for i in range(2)
    ]  # fmt: skip
    records[0]["label"] = "only-user-zero-says-so"
    write(Corpus.from_records(records), folder / "labelled.jsonl")
    return folder


def base(data: Path, name: str = "c.jsonl", **fields: Any) -> dict[str, Any]:
    return {"corpus": str(data / name), "model": SMALL, "tokenizer": {"size": 300},
            "context": 16} | fields  # fmt: skip


def everywhere(folder: Path) -> dict[str, str]:
    """All that a reader may see of a promise, on one line each."""
    names = ("certificate.md", "certificate.html", "README.md")
    texts = {name: (folder / name).read_text() for name in names}
    certificate = read_certificate(folder / "certificate.json")
    texts["API"] = json.dumps(promise_of(certificate), ensure_ascii=False)
    with out.capture() as captured:
        print_promise(certificate)
    texts["command line"] = captured.get()
    facts = read_all([folder])
    parts = sections(facts, shareable=True)
    texts["report"] = "\n".join([part.prose for part in parts])
    return {name: " ".join(text.replace("**", "").split()) for name, text in texts.items()}


# --- which entities --------------------------------------------------------------------------


def test_the_promise_names_its_kinds_and_those_that_it_leaves_out(
    data: Path, tmp_path: Path
) -> None:
    run = Run(**base(data, detect="gold"), plan=BOTH | {"kinds": ["PII"]})
    done = session.train(run, tmp_path / "run")
    scope = done.certificate.scope.entities
    assert scope is not None
    assert scope.kinds == ("PII",)
    assert all(kind.startswith("PII") for kind in scope.found or ())
    assert "PERSON" in (scope.unprotected or ())
    assert "any one entity of the kind PII was detected" in done.certificate.sentence
    left = gained(done.certificate, "users+entities")
    for name, text in everywhere(tmp_path / "run").items():
        assert "entity of the kind PII" in text, name
        assert f"the protection is {left.grade}" in text, name
        assert "for users and entities of the kind PII" in text, name
        assert "Found and not protected: DATE" in text, name
        assert "kinds that were found and are not protected: DATE" in text, name
        assert "PERSON" in text, name
        assert "gold (tacit" in text, name
        assert "(recall): unknown" in text, name
        assert left.verdict in text, name
        assert left.figures in text, name
    assert "PERSON" in (tmp_path / "run" / "certificate.json").read_text()
    assert [c for c in verify(tmp_path / "run") if not c.ok] == []


def test_kinds_that_were_not_found_and_not_looked_for_are_said(data: Path, tmp_path: Path) -> None:
    run = Run(**base(data, detect="patterns"), plan=BOTH)
    certificate = session.train(run, tmp_path / "run").certificate
    said = " ".join(certificate.not_covered)
    assert "No names of people, organisations or places were found by patterns." in said
    assert "patterns did not look for" in said
    assert "PERSON" in said.split("did not look for")[1]
    assert "found nothing" in said


def test_recall_is_unknown_where_no_gold_marks_are_at_hand(data: Path, tmp_path: Path) -> None:
    run = Run(**base(data, "labelled.jsonl", detect="patterns"), plan=BOTH)
    certificate = session.train(run, tmp_path / "run").certificate
    assert any("(recall): unknown (no gold marks" in point for point in certificate.not_covered)
    assert "Look at what the detectors marked" in (tmp_path / "run" / "certificate.md").read_text()


def test_detectors_of_a_file_of_mentions_are_named_only_if_it_is_theirs(
    data: Path, tmp_path: Path
) -> None:
    corpus = customersim.generate(60, 3)
    found = detect(corpus, "patterns")
    path = tmp_path / "m.jsonl"
    write_lines(path, found.mentions)
    summary = found.summary() | {"mentions_sha256": file_digest(path), "corpus": "another"}
    (tmp_path / "m.summary.json").write_text(json.dumps(summary))
    run = Run(**base(data, mentions=str(path)), plan=BOTH)
    scope = session.train(run, tmp_path / "run").certificate.scope.entities
    assert scope is not None
    assert scope.detectors[0].version == "whose detectors are not known"


def test_recall_is_measured_on_gold_marks_outside_of_the_training_text(
    data: Path, tmp_path: Path
) -> None:
    run = Run(**base(data, detect="patterns"), plan=BOTH)
    certificate = session.train(run, tmp_path / "run").certificate
    scope = certificate.scope.entities
    assert scope is not None
    assert scope.recall is not None
    assert scope.recall_from == "the test split, exact matches"
    assert scope.recall["PERSON"] == 0.0
    assert any("PERSON 0.00" in point for point in certificate.not_covered)


def test_a_plan_says_the_same_before_anything_is_trained() -> None:
    said = explain(calibrated(Plan(**BOTH | {"kinds": ["PII"]})))
    assert "any one entity of the kind PII was detected" in said
    assert "Which detectors mark entities" in said
    assert "(recall): unknown" in said


def test_recall_is_never_rounded_up() -> None:
    """Of 1000 marks 999 found is not all of them."""
    corpus = Corpus.from_records(
        [{"id": "1", "user": "u", "text": "x " * 1000, "split": "test",
          "spans": [{"start": 2 * i, "end": 2 * i + 1, "kind": "PII/ID"} for i in range(1000)]}]
    )  # fmt: skip
    found = [m for m in detect(corpus, "gold").mentions if m.start]
    assert recall_on(corpus.only("test"), found) == {"PII": 0.99}


def test_a_broken_certificate_is_broken_on_its_model_card_too(data: Path, tmp_path: Path) -> None:
    session.train(Run(**base(data), plan=USERS), tmp_path / "run")
    assert "**Proved" in (tmp_path / "run" / "README.md").read_text()
    finding = Finding(kind="audit", outcome="more was found", date="2026-01-01")
    amend(tmp_path / "run", finding=finding, broken=True)
    amend(tmp_path / "run", finding=finding, broken=True)
    card = (tmp_path / "run" / "README.md").read_text()
    assert card.count("Broken.") == 1
    assert card.split("## What it promises")[1].strip().startswith("**Broken.**")
    assert {c.what for c in verify(tmp_path / "run") if not c.ok} - {"standing"} == {"audit"}
    for name, text in everywhere(tmp_path / "run").items():
        assert "Broken." in text, name
        if name != "API":  # whose fields have no order
            assert "Broken." in text.split("The released model is")[0], name
        if name != "README.md":
            assert "right at most" not in text.split("not covered")[0], name


def test_a_list_is_named_by_a_keyed_digest(data: Path, tmp_path: Path) -> None:
    corpus = customersim.generate(60, 3)
    found = detect(corpus, "gold")
    (tmp_path / "list.txt").write_text("\n".join(e.id for e in found.entities[:5]))
    plan = BOTH | {"entity_list": str(tmp_path / "list.txt")}
    certificate = session.train(Run(**base(data, detect="gold"), plan=plan), tmp_path / "run")
    scope = certificate.certificate.scope.entities
    assert scope is not None
    assert (scope.entity_list or "").startswith("hmac-sha256:")
    assert f"on the list {scope.entity_list}" in certificate.certificate.sentence
    assert str(tmp_path) not in (tmp_path / "run" / "settings.yml").read_text()


# --- labels ----------------------------------------------------------------------------------


def test_labels_that_were_counted_end_the_promise(data: Path, tmp_path: Path) -> None:
    run = Run(**base(data, "labelled.jsonl", task="classification"), plan=USERS)
    certificate = session.train(run, tmp_path / "run").certificate
    assert certificate.standing == "heuristic"
    assert certificate.not_covered[0].startswith("The names of the labels")
    assert certificate.sentence.startswith("Nothing is promised")


def test_declared_labels_are_all_that_a_model_shows(data: Path, tmp_path: Path) -> None:
    given = base(data, "labelled.jsonl", task="classification", labels=["ham", "spam"])
    with pytest.raises(DataError, match="none of the 2 declared in labels") as refused:
        session.train(Run(**given, plan=USERS), tmp_path / "run")
    assert "only-user-zero" not in str(refused.value)
    labels = tmp_path / "labels.txt"
    labels.write_text("ham\nspam\nonly-user-zero-says-so\nnever used\n")
    run = Run(**given | {"labels": str(labels)}, plan=USERS)
    certificate = session.train(run, tmp_path / "run").certificate
    assert certificate.standing == "proved"
    assert any("The set of labels (4 as declared" in said for said in certificate.assumptions)
    assert AutoConfig.from_pretrained(tmp_path / "run").id2label[3] == "never used"


# --- what is called public ---------------------------------------------------------------------


@pytest.mark.parametrize("place", ["tokenizer", "pretrain"])
@pytest.mark.parametrize("how", ["the same file", "a copy", "reformatted"])
def test_private_text_is_not_accepted_as_public(
    data: Path, tmp_path: Path, place: str, how: str
) -> None:
    public = data / "c.jsonl"
    if how == "a copy":
        public = tmp_path / "public.jsonl"
        public.write_bytes((data / "c.jsonl").read_bytes())
    elif how == "reformatted":
        public = tmp_path / "public.txt"
        texts = customersim.generate(60, 3).column("text").to_pylist()
        public.write_text("\n".join(t.upper().replace("\n", " ") for t in texts[5:25]))
    fields = base(data)
    if place == "tokenizer":
        fields["tokenizer"] = {"size": 300, "public_text": str(public)}
    else:
        fields["pretrain"] = {"corpus": str(public), "steps": 1}
    with pytest.raises(PrivacyRefused, match=r"private|stand"):
        session.train(Run(**fields, plan=USERS), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_a_run_began_from_stands_on_its_certificate(data: Path, tmp_path: Path) -> None:
    public = tmp_path / "public.txt"
    public.write_text(
        "\n".join(f"the sea is wide and number {i} is a wave in it" for i in range(90))
    )
    fields = base(data, pretrain={"corpus": str(public), "steps": 1})
    certificate = session.train(Run(**fields, plan=USERS), tmp_path / "run").certificate
    names = {one.what: one for one in certificate.public}
    assert names["the tokenizer's text"].name == "text that tacit generates"
    start = names["the text of the public start"]
    assert start.name == "public.txt"
    assert start.sha256
    assert any("independent of the private text" in said for said in certificate.assumptions)


def test_base_weights_are_named_with_their_digest(data: Path, tmp_path: Path) -> None:
    from tacit.training.models.networks import scratch_model
    from tacit.training.models.tokens import byte_level_bpe
    from tacit.training.models.weights import save_model

    tokenizer = byte_level_bpe(None, 300)
    model = scratch_model(
        {"kind": "gpt2", "layers": 1, "hidden_size": 16, "heads": 2, "context": 32}, "next-word",
        tokenizer=tokenizer,
    )  # fmt: skip
    save_model(model, tokenizer, tmp_path / "base")
    fields = base(data) | {"model": {"kind": "folder", "folder": str(tmp_path / "base")}}
    fields.pop("tokenizer")
    certificate = session.train(Run(**fields, plan=USERS), tmp_path / "run").certificate
    named = {one.what: one for one in certificate.public}
    weights = named["the base weights"]
    assert weights.name == "folder base"
    assert weights.sha256 == file_digest(tmp_path / "base" / "model.safetensors")
    assert any("The base weights (folder base" in said for said in certificate.assumptions)
    assert "the tokenizer" in named


# --- smaller things ----------------------------------------------------------------------------


def test_a_policy_made_for_studies_proves_nothing(data: Path, tmp_path: Path) -> None:
    plan = {"epsilon": 8, "steps": 1, "record_rate": 0.5}
    for policy, standing in (("missing(0.1, digits)", "heuristic"), ("digits", "proved")):
        own = {"redact-then-private": {"steps": 1}}
        run = Run(**base(data, method="redact-then-private", policy=policy) | own, plan=plan)
        certificate = session.train(run, tmp_path / standing).certificate
        assert certificate.standing == standing
    assert certificate.scope.policy == "digits"


def test_delta_is_judged_by_the_users_that_are_counted_where_none_are_declared(
    data: Path, tmp_path: Path
) -> None:
    run = Run(**base(data, detect="gold"), plan=BOTH | {"delta": 0.01})
    few = Run(**base(data, detect="gold"), plan=BOTH | {"delta": 0.009, "users": 100})
    session.train(few, tmp_path / "few")
    corpus = customersim.generate(900, 3, users=900)
    write(corpus, tmp_path / "many.jsonl")
    many = run.model_copy(update={"corpus": str(tmp_path / "many.jsonl")})
    with pytest.raises(UsageError, match="above 1/users"):
        session.train(many, tmp_path / "run")


def test_settings_that_may_be_shared_name_no_place_of_this_machine(
    data: Path, tmp_path: Path
) -> None:
    session.train(Run(**base(data), plan=USERS), tmp_path / "run")
    assert (
        "settings.yml" in json.loads((tmp_path / "run" / "certificate.json").read_text())["files"]
    )
    text = (tmp_path / "run" / "settings.yml").read_text()
    assert "/" not in text
    (tmp_path / "run" / "settings.yml").write_text(text.replace("epsilon: 4", "epsilon: 5"))
    wrong = {c.what for c in verify(tmp_path / "run") if not c.ok}
    assert wrong == {"settings.yml", "file settings.yml"}


def test_what_a_user_is_and_is_not_is_said(data: Path, tmp_path: Path) -> None:
    certificate = session.train(Run(**base(data), plan=USERS), tmp_path / "run").certificate
    text = (tmp_path / "run" / "certificate.md").read_text()
    assert "A user is whoever stands in the corpus's column for the user." in text
    assert any("A person who writes as several users" in point for point in certificate.not_covered)


def test_choices_are_said_to_be_not_covered(data: Path, tmp_path: Path) -> None:
    certificate = session.train(Run(**base(data), plan=USERS), tmp_path / "run").certificate
    assert any(
        point.startswith("Choices made by looking at the private data")
        for point in certificate.not_covered
    )


def test_the_table_and_the_sentence_show_the_same_figure(data: Path, tmp_path: Path) -> None:
    certificate = session.train(Run(**base(data), plan=USERS), tmp_path / "run").certificate
    shown = up(certificate.epsilon)
    text = (tmp_path / "run" / "certificate.md").read_text()
    assert f"({shown}, 1e-05)-indistinguishable" in text
    assert f"| users | {shown} |" in text
    assert f"epsilon {shown} at delta" in text


def test_everything_that_may_be_shared_is_in_the_manifest(data: Path, tmp_path: Path) -> None:
    run = Run(**base(data, keep_checkpoints=1), plan=USERS | {"steps": 2})
    files = session.train(run, tmp_path / "run").certificate.files
    own = {p.relative_to(tmp_path / "run").as_posix() for p in (tmp_path / "run").rglob("*")
           if p.is_file()}  # fmt: skip
    inside = {"run.yml", "metrics.json", "account.json", "checkpoint.safetensors"}
    bound = {"certificate.json", "certificate.md", "certificate.html", "ledger.jsonl"}
    assert own - inside - bound - {"ledger.jsonl.lock"} == set(files)
    assert {"tokenizer.json", "README.md", "plan.yml", "settings.yml"} <= set(files)
    assert "checkpoints/step-000001/model.safetensors" in files
    kept = tmp_path / "run" / "checkpoints" / "step-000001" / "model.safetensors"
    kept.write_bytes(kept.read_bytes() + b"0")
    wrong = {c.what for c in verify(tmp_path / "run") if not c.ok}
    assert wrong == {"file checkpoints/step-000001/model.safetensors"}


def test_figures_over_private_text_are_marked_on_screen() -> None:
    with out.capture() as captured:
        _print_metrics({"valid": {"perplexity": 31.25}})
    assert captured.get().startswith("Not private")
