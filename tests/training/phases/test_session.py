"""Runs end to end, on a small LSTM and generated dialogs: promise, resume, refusals."""

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from support.forking import run_python
from support.small import dialogs
from tacit.audits.direct_checks import caps_checks
from tacit.corpus import Corpus
from tacit.corpus.writing import write
from tacit.errors import DataError, PrivacyRefused, TacitError, UsageError
from tacit.owners.bounding import Caps
from tacit.planning.plan import Plan
from tacit.privacy.certificates.certificate import publish
from tacit.privacy.events import NotPrivate
from tacit.privacy.ledger import read_ledger
from tacit.training.data.public_inputs import public_corpus
from tacit.training.data.training_data import prepare
from tacit.training.evaluation import scoring
from tacit.training.evaluation.verdicts import verdict
from tacit.training.models.networks import scratch_model
from tacit.training.models.tokens import byte_level_bpe, frequencies
from tacit.training.models.weights import save_model
from tacit.training.phases import session
from tacit.training.phases.loop import Progress
from tacit.training.phases.run_context import encode, open_run
from tacit.training.settings import Run, read_run, run_yaml
from tacit.verification.runs import verify

USERS = {"protect": "users", "epsilon": 8, "steps": 3, "user_rate": 0.3, "users": 50}
BOTH = {"protect": "users+entities", "epsilon": 8, "steps": 3, "user_rate": 0.3, "clip_norm": 0.5}
RECORDS = {"protect": "records", "epsilon": 8, "steps": 3, "record_rate": 0.1, "records": 120}
FLAT = {
    "protect": "users+entities", "mechanism": "flat", "epsilon": 20, "steps": 3,
    "record_rate": 0.2, "records_per_user": 2, "records_per_entity": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return dialogs(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize(
    "plan", [USERS, BOTH, RECORDS, FLAT], ids=["users", "both", "records", "flat"]
)
def test_a_private_run_keeps_its_promise_on_paper(
    tmp_path: Path, base: dict[str, Any], plan: dict[str, Any]
) -> None:
    seen: list[Progress] = []
    done = session.train(Run(**base, plan=plan), tmp_path / "run", on_progress=seen.append)
    assert [c.what for c in verify(tmp_path / "run") if not c.ok] == []
    assert done.certificate.standing == "heuristic"  # a fixed seed promises nothing
    assert "With unpredictable randomness" in done.certificate.sentence
    assert done.certificate.epsilon <= plan["epsilon"]
    assert [at.step for at in seen] == [1, 2, 3]
    assert seen[-1].spent.startswith("epsilon <=")
    assert len(read_ledger(tmp_path / "run" / "ledger.jsonl").entries) == 3
    assert (
        done.metrics["parameters"] == {"moved": 5, "unmoved": 0}
        or done.metrics["parameters"]["unmoved"] == 0
    )
    assert "Not for release" in (tmp_path / "run" / "certificate.md").read_text()


@pytest.mark.parametrize("method", ["plain", "deidentify"])
def test_a_run_without_promise_says_so(tmp_path: Path, base: dict[str, Any], method: str) -> None:
    done = session.train(Run(**base, method=method, steps=3), tmp_path / "run")
    assert done.certificate.standing == "heuristic"
    # No word of a seed or of noise, as if others would help.
    assert done.certificate.sentence == "Nothing is promised for users."
    assert [c.what for c in verify(tmp_path / "run") if not c.ok] == []
    (event,) = read_ledger(tmp_path / "run" / "ledger.jsonl").releases()
    assert isinstance(event, NotPrivate)


def test_a_vocabulary_of_the_private_text_ends_the_promise(
    tmp_path: Path, base: dict[str, Any]
) -> None:
    counted = base | {"tokenizer": {"kind": "words", "min_count": 2}, "seed": None}
    done = session.train(Run(**counted, plan=USERS), tmp_path / "run")
    made = done.certificate
    assert made.standing == "heuristic"
    assert made.sentence.startswith("Nothing is promised for what is released")
    assert "The vocabulary was counted from the private text" in made.not_covered[0]
    assert [c.what for c in verify(tmp_path / "run") if not c.ok] == []
    better = made.model_copy(update={"standing": "proved"})
    publish(better, tmp_path / "run")
    assert "standing" in [c.what for c in verify(tmp_path / "run") if not c.ok]


ROWS = 40


def test_rows_that_are_not_trained_are_neither_moved_nor_noised(
    tmp_path: Path, base: dict[str, Any]
) -> None:
    model = base["model"] | {"trained_rows": ROWS}
    run = Run(**base | {"model": model}, plan=USERS, optimizer={"name": "dp-adam"})
    ctx = open_run(run)
    start = {name: p.detach().clone() for name, p in ctx.model.named_parameters()}
    rows = set(ctx.model.trained_rows.tolist())
    shares = frequencies(ctx.tokenizer, public_corpus("generated", None))
    assert len(rows) == ROWS
    assert min(shares[list(rows)]) >= max(np.delete(shares, list(rows)))
    session.train(run, tmp_path / "run")
    after = load_file(tmp_path / "run" / "model.safetensors")
    for name in ("body.embedding.weight", "head.bias"):
        moved = (after[name] != start[name]).reshape(len(shares), -1)
        assert set(moved.any(1).nonzero().view(-1).tolist()) == rows
        assert moved[sorted(rows)].all()
    assert all(bool((after[n] != start[n]).all()) for n in start if "layers" in n)
    assert [c.what for c in verify(tmp_path / "run") if not c.ok] == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"method": "plain", "steps": 2}, "is about clipped sums"),
        ({"plan": USERS, "optimizer": {"weight_decay": 0.1}}, "nor weight_decay"),
        ({"plan": USERS, "tokenizer": {"kind": "words"}}, "and here is none"),
    ],
)
def test_rows_that_nobody_could_choose_or_leave_are_refused(
    base: dict[str, Any], changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        Run(**base | {"model": {"kind": "lstm", "trained_rows": 9}} | changes)


TINY = {"n_layer": 1, "n_embd": 8, "n_head": 1}
ENCODER = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
           "intermediate_size": 16}  # fmt: skip


class Kill(Exception):
    pass


@pytest.mark.parametrize("optimizer", ["sgd", "dp-adam"])
def test_killed_and_resumed_equals_uninterrupted(
    tmp_path: Path, base: dict[str, Any], optimizer: str
) -> None:
    """A real process is killed between steps; the weights come out the same (fixed seed)."""
    by = {"name": optimizer, "learning_rate": 0.01, "momentum": 0.9, "average": 0.5}
    run = Run(**base, plan=BOTH | {"steps": 5}, optimizer=by)
    whole = session.train(run, tmp_path / "whole")
    (tmp_path / "run.yml").write_text(run_yaml(run))
    code = (
        "import os, signal, sys; from pathlib import Path;"
        "from tacit.training.phases import session; from tacit.training.settings import read_run;"
        "die = lambda at: at.step == 3 and os.kill(os.getpid(), signal.SIGKILL);"
        "session.train(read_run(Path(sys.argv[1])), Path(sys.argv[2]), on_progress=die)"
    )
    killed = run_python("-c", code, str(tmp_path / "run.yml"), str(tmp_path / "cut"))
    assert killed.returncode == -signal.SIGKILL
    cut = session.resume(tmp_path / "cut")
    one, other = (load_file(t.folder / "model.safetensors") for t in (whole, cut))
    assert one.keys() == other.keys()
    assert all(bool((one[name] == other[name]).all()) for name in one)
    assert cut.certificate.epsilon == whole.certificate.epsilon
    assert [c.what for c in verify(tmp_path / "cut") if not c.ok] == []


def test_a_step_in_flight_is_charged_again(tmp_path: Path, base: dict[str, Any]) -> None:
    """Killed after the charge and before the checkpoint: the entry stays, the step is redone."""
    plan = USERS | {"epsilon": 30, "noise_multiplier": 3.0}
    run = Run(**base | {"seed": None}, plan=plan)

    def stop(at: Progress) -> None:
        if at.step == 2:
            checkpoint = tmp_path / "run" / "checkpoint.safetensors"
            checkpoint.write_bytes(saved[0])  # as if step 2's checkpoint had not been written
            raise Kill
        saved.append((tmp_path / "run" / "checkpoint.safetensors").read_bytes())

    saved: list[bytes] = []
    with pytest.raises(Kill):
        session.train(run, tmp_path / "run", on_progress=stop)
    done = session.resume(tmp_path / "run")
    entries = read_ledger(tmp_path / "run" / "ledger.jsonl").entries
    assert len(entries) == 4  # three steps, one of them charged twice
    assert done.certificate.ledger_entries == 4


@pytest.mark.parametrize("caps", ["userclip", "flat"])
def test_only_records_that_the_caps_keep_can_take_part(base: dict[str, Any], caps: str) -> None:
    more: dict[str, Any] = {"user_rate": 0.3, "users_per_entity": 1, "records_per_user": 1}
    if caps == "flat":
        more = {"record_rate": 0.3, "records_per_entity": 1, "records_per_user": 1}
    plan = Plan(protect="users+entities", mechanism=caps, epsilon=8, steps=1, **more)
    ctx = open_run(Run(**base, plan=plan.model_dump(mode="json", exclude_none=True)))
    training_data = prepare(encode(ctx, ctx.part), ctx.part, ctx.mentions, plan, ctx.protected)
    assert training_data.owners is not None
    assert 0 < len(training_data.rows) < len(training_data.examples)
    given = np.concatenate(training_data.rows_of_user)
    assert sorted(given.tolist()) == training_data.rows.tolist()
    kept = np.zeros(len(training_data.owners), dtype=bool)
    kept[training_data.examples.record[given]] = True
    assert Caps(**plan.caps).broken_by(training_data.owners.subset(kept)) == {}
    assert [check.passed for check in caps_checks(training_data, plan)] == [True]
    everything = np.arange(len(training_data.examples))
    uncapped = replace(training_data, rows=everything, rows_of_user=(everything,))
    assert [check.passed for check in caps_checks(uncapped, plan)] == [False]
    # Nobody's record is taken for another's.
    for user, rows in enumerate(training_data.rows_of_user):
        whose = {
            training_data.owners.record_user[training_data.examples.record[row]] for row in rows
        }
        assert len(whose) == 1, user


def test_training_stops_before_the_budget_is_exceeded(tmp_path: Path, base: dict[str, Any]) -> None:
    run = Run(**base, plan=USERS | {"steps": 4})
    with pytest.raises(Kill):
        session.train(run, tmp_path / "run", on_progress=_kill_at(2))
    (tmp_path / "run" / "checkpoint.safetensors").unlink()  # all steps must be done again
    done = session.resume(tmp_path / "run")
    assert done.stopped is not None
    assert "over the budget" in done.stopped
    assert done.certificate.epsilon <= 8
    assert [c.what for c in verify(tmp_path / "run") if not c.ok] == []


def _kill_at(step: int) -> Any:
    def on_progress(at: Progress) -> None:
        if at.step == step:
            raise Kill

    return on_progress


def test_resuming_is_refused_when_something_changed(tmp_path: Path, base: dict[str, Any]) -> None:
    run = Run(**base, plan=USERS)
    with pytest.raises(Kill):
        session.train(run, tmp_path / "run", on_progress=_kill_at(1))
    with pytest.raises(UsageError, match="not empty"):
        session.train(run, tmp_path / "run")
    good = (tmp_path / "run" / "run.yml").read_text()
    (tmp_path / "run" / "run.yml").write_text(good.replace("context: 24", "context: 25"))
    with pytest.raises(PrivacyRefused, match="another plan, corpus or run"):
        session.resume(tmp_path / "run")
    (tmp_path / "run" / "run.yml").write_text(good)
    plan = (tmp_path / "run" / "plan.yml").read_text()
    (tmp_path / "run" / "plan.yml").write_text(plan.replace("epsilon: 8", "epsilon: 9"))
    with pytest.raises(PrivacyRefused, match="another plan, corpus or run"):
        session.resume(tmp_path / "run")
    (tmp_path / "run" / "plan.yml").write_text(plan)
    corpus = Path(base["corpus"])
    text = corpus.read_text()
    try:
        corpus.write_text(text.replace("Hello", "Hullo"))
        with pytest.raises(PrivacyRefused, match="another plan, corpus or run"):
            session.resume(tmp_path / "run")
    finally:
        corpus.write_text(text)
    assert session.resume(tmp_path / "run").stopped is None


def _other_mentions(folder: Path, run: dict[str, Any]) -> None:
    path = Path(run["mentions"])
    path.write_text("".join(path.read_text().splitlines(keepends=True)[::2]))


def _without_ledger(folder: Path, run: dict[str, Any]) -> None:
    (folder / "ledger.jsonl").unlink()


def _shorter_ledger(folder: Path, run: dict[str, Any]) -> None:
    path = folder / "ledger.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))


def _another_base(folder: Path, run: dict[str, Any]) -> None:
    weights = Path(run["model"]["folder"]) / "model.safetensors"
    save_file({n: t + 0.01 for n, t in load_file(weights).items()}, weights, {"format": "pt"})


@pytest.mark.parametrize(
    "change", [_other_mentions, _without_ledger, _shorter_ledger, _another_base]
)
def test_resuming_is_refused_when_what_it_stands_on_changed(tmp_path: Path, change: Any) -> None:
    run = dialogs(tmp_path, customers=60)
    if change is _another_base:
        tokenizer = byte_level_bpe(None, 300)
        made = scratch_model({"kind": "gpt2"} | TINY, "next-word", tokenizer=tokenizer)
        save_model(made, tokenizer, tmp_path / "base")
        run["model"] = {"kind": "folder", "folder": str(tmp_path / "base"), "lora_rank": 1}
        run["tokenizer"] = {"kind": "folder"}
    with pytest.raises(Kill):
        session.train(Run(**run, plan=BOTH), tmp_path / "run", on_progress=_kill_at(2))
    change(tmp_path / "run", run)
    with pytest.raises(PrivacyRefused, match=r"another plan, corpus or run|not the ledger"):
        session.resume(tmp_path / "run")


def test_a_run_that_was_killed_before_it_could_be_resumed_is_begun_anew(
    tmp_path: Path, base: dict[str, Any]
) -> None:
    run = Run(**base, plan=USERS)
    (tmp_path / "run" / ".run.yml.draft").mkdir(parents=True)
    session.train(run, tmp_path / "run")
    # Killed after its settings were written, and before anything else was.
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.yml").write_text(run_yaml(run))
    session.resume(tmp_path / "other")
    for folder in ("run", "other"):
        assert [c.what for c in verify(tmp_path / folder) if not c.ok] == []
    # What somebody else has put there is neither used nor taken away.
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "plan.yml").write_text("my own")
    with pytest.raises(UsageError, match="not empty"):
        session.train(run, tmp_path / "mine")
    assert (tmp_path / "mine" / "plan.yml").read_text() == "my own"


def test_a_tokenizer_that_cannot_be_written_loses_nothing(
    tmp_path: Path, base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise Exception("File too large (os error 27)")

    with monkeypatch.context() as broken:
        broken.setattr("transformers.PreTrainedTokenizerFast.save_pretrained", full)
        with pytest.raises(DataError, match="is the disk full"):
            session.train(Run(**base, plan=USERS), tmp_path / "run")
    session.resume(tmp_path / "run")
    assert [c.what for c in verify(tmp_path / "run") if not c.ok] == []


@pytest.mark.parametrize("task", ["classification", "tagging"])
def test_long_texts_are_answered_as_far_as_the_model_reads(
    tmp_path: Path, base: dict[str, Any], task: str
) -> None:
    model = {"kind": "bert", "config": ENCODER}
    run = base | {"task": task, "model": model, "context": 16, "method": "plain", "steps": 1}
    if task == "tagging":
        rows = [json.loads(line) for line in Path(base["corpus"]).read_text().splitlines()]
        for row in rows:
            row["tokens"] = row["text"].split()
            row["pos"] = ["X" if len(word) > 4 else "Y" for word in row["tokens"]]
            row["text"] = " ".join(row["tokens"])
        run["corpus"] = str(tmp_path / "tagged.jsonl")
        kept = ("id", "user", "text", "split", "tokens", "pos")
        lines = [json.dumps({k: r[k] for k in kept if k in r}) for r in rows]
        Path(run["corpus"]).write_text("\n".join(lines) + "\n")
        del run["mentions"]
    session.train(Run(**run), tmp_path / "run")
    found = scoring.predict(tmp_path / "run", "where is my order " * 12)
    if task == "tagging":
        assert len(found["tags"]) == 48
        assert found["tags"][0][1] is not None
        assert found["tags"][-1][1] is None
    else:
        assert found["class"] in dict(found["probabilities"])
    assert scoring.evaluate(tmp_path / "run", "test")["accuracy"] >= 0


def test_a_regression_keeps_to_the_range_of_its_labels(
    tmp_path: Path, base: dict[str, Any]
) -> None:
    rows = [json.loads(line) for line in Path(base["corpus"]).read_text().splitlines()]
    for number, row in enumerate(rows):
        row["label"] = str(100 + 10 * (number % 11))
    (tmp_path / "c.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    run = base | {"corpus": str(tmp_path / "c.jsonl"), "task": "regression", "context": 16}
    run |= {"model": {"kind": "bert", "config": ENCODER}, "label_range": (100, 200)}
    done = session.train(Run(**run, plan=USERS), tmp_path / "run")
    assert done.metrics["training"]["labels_out_of_bounds"] == 0
    # Untrained, it says about the lower end, on the scale of the labels.
    assert 40 < scoring.predict(tmp_path / "run", "where is it")["value"] < 260
    assert scoring.evaluate(tmp_path / "run", "test")["squared_error"] < 200**2


def test_evaluate_and_predict(tmp_path: Path, base: dict[str, Any]) -> None:
    session.train(Run(**base, plan=USERS), tmp_path / "run")
    scores = scoring.evaluate(tmp_path / "run", "test")
    assert scores["trigram_perplexity"] < scores["unigram_perplexity"]
    assert scores["perplexity"] > 1
    assert scores["uniform_perplexity"] == 400
    assert verdict(scores).grade in ("warn", "bad")
    assert 1 < scores["bits_per_character"] < scores["uniform_bits_per_character"] * 1.1
    other = tmp_path / "other.jsonl"
    write(Corpus.from_records([{"id": "1", "user": "new", "text": "my order is late"}]), other)
    own = scoring.evaluate(tmp_path / "run", "test", test=other)
    assert own["tokens"] < scores["tokens"]
    assert own["trigram_perplexity"] > 1  # counted on what the run was trained on
    found = scoring.predict(tmp_path / "run", "my order number is", words=3)
    assert len(found["next"]) == 5
    assert found["completion"].startswith("my order number is")


def test_a_public_start_is_recorded_and_free(tmp_path: Path, base: dict[str, Any]) -> None:
    public = tmp_path / "public.jsonl"
    lines = [{"id": str(i), "text": f"wave {i} of the wide sea rolls on"} for i in range(40)]
    write(Corpus.from_records(lines), public)
    start = {"corpus": str(public), "steps": 4, "batch": 8}
    done = session.train(Run(**base, plan=USERS, pretrain=start), tmp_path / "run")
    assert done.certificate.phases == {"pretrain": 1, "train": 3}
    assert any("public corpus public.jsonl" in line for line in done.certificate.assumptions)
    assert [c.what for c in verify(tmp_path / "run") if not c.ok] == []
    assert done.metrics["valid"]["public_only_perplexity"] > 1
    card = (tmp_path / "run" / "README.md").read_text()
    assert "No score stands here" in card
    assert not any(word in card for word in ("than step 1", "guessing"))


def test_a_start_on_several_texts_by_sentence_is_recorded(
    tmp_path: Path, base: dict[str, Any]
) -> None:
    for name in ("one", "two"):
        lines = (f"Wave {i} of sea {name} rolls on. It ends at rock {i}." for i in range(30))
        (tmp_path / f"{name}.txt").write_text("\n".join(lines))
    given = [str(tmp_path / "one.txt"), str(tmp_path / "two.txt")]
    start = {"corpus": given, "unit": "sentence", "style": "treebank", "steps": 2, "batch": 8}
    run = Run(**base, plan=USERS, pretrain=start)
    assert run.shareable()["pretrain"]["corpus"] == ["one.txt", "two.txt"]
    assert run.digest() != Run(**base, plan=USERS, pretrain=start | {"unit": "record"}).digest()
    done = session.train(run, tmp_path / "run")
    assert done.certificate.phases == {"pretrain": 2, "train": 3}
    how = "cut into sentences, written as treebanks are"
    said = [line for line in done.certificate.assumptions if how in line]
    assert all(any(f"public corpus {n}.txt" in line for line in said) for n in ("one", "two"))
    names = [one.name for one in done.certificate.public if "public start" in one.what]
    assert names == ["one.txt", "two.txt"]
    assert read_run(tmp_path / "run" / "run.yml").pretrain == run.pretrain
    assert [c.what for c in verify(tmp_path / "run") if not c.ok] == []


def test_public_texts_are_joined_and_cut(tmp_path: Path) -> None:
    write(Corpus.from_records([{"id": "1", "text": "So it is. Yes.", "label": "a"}]),
          tmp_path / "a.jsonl")  # fmt: skip
    write(Corpus.from_records([{"id": "1", "text": "No.\nMaybe."}]), tmp_path / "b.jsonl")
    given = (str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"))
    joined = public_corpus(given, None)
    assert set(joined.columns) == {"id", "text"}
    assert joined.column("text").to_pylist() == ["So it is. Yes.", "No.\nMaybe."]
    assert public_corpus(given[0], None).column("label").to_pylist() == ["a"]
    cut = public_corpus(given, None, "sentence").column("text").to_pylist()
    assert cut == ["So it is.", "Yes.", "No.", "Maybe."]


def test_public_text_is_written_as_treebanks_are(tmp_path: Path) -> None:
    texts = ["She #39;s &lt;b&gt;here&lt;/b&gt;. It isn't <unk> .", "= = One 1 @,@ 200 = =", "\\\\"]
    write(Corpus.from_records({"id": str(n), "text": t} for n, t in enumerate(texts)),
          tmp_path / "a.jsonl")  # fmt: skip
    made = public_corpus(str(tmp_path / "a.jsonl"), None, "record", "treebank")
    assert made.column("text").to_pylist() == ["She 's here . It is n't <unk> .", "One 1,200"]
    assert made.column("id").to_pylist() == ["0", "1"]
    cut = public_corpus(str(tmp_path / "a.jsonl"), None, "sentence", "treebank")
    assert cut.column("text").to_pylist() == ["She 's here .", "It is n't <unk> .", "One 1,200"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"plan": {"protect": "users"}}, "needs epsilon"),
        ({"plan": USERS | {"users": None}}, "public denominator"),
        ({"plan": BOTH, "mentions": None}, "needs mentions"),
        ({"method": "plain"}, "needs steps"),
        ({"method": "plain", "steps": 3, "plan": USERS}, "takes no plan"),
        ({"plan": USERS, "modle": 1}, "Did you mean 'model'"),
        ({"plan": USERS, "model": {"kind": "folder"}}, "needs model.folder"),
        (
            {"plan": USERS, "model": {"kind": "folder", "folder": "x", "embeddings": "glove"}},
            "for new models",
        ),
        (
            {
                "plan": USERS,
                "task": "classification",
                "pretrain": {"corpus": "generated", "unit": "sentence"},
            },
            "without labels",
        ),
        ({"plan": USERS, "pretrain": {"corpus": []}}, "pretrain.corpus"),
        ({"plan": USERS, "model": {"kind": "folder", "folder": "/nowhere"}}, "nowhere"),
        ({"plan": BOTH | {"entity_rate": 0.5}}, "entity_rate"),
    ],
)
def test_what_cannot_be_trained_is_refused_first(
    tmp_path: Path, base: dict[str, Any], changes: dict[str, Any], expected: str
) -> None:
    fields = {k: v for k, v in (base | changes).items() if v is not None}
    if isinstance(fields.get("plan"), dict):
        fields["plan"] = {k: v for k, v in fields["plan"].items() if v is not None}
    with pytest.raises(TacitError, match=expected):
        session.train(Run(**fields), tmp_path / "run")


def test_settings_survive_a_file(tmp_path: Path, base: dict[str, Any]) -> None:
    run = Run(**base, plan=USERS)
    (tmp_path / "run.yml").write_text(run_yaml(run))
    assert read_run(tmp_path / "run.yml") == run
    changed = read_run(tmp_path / "run.yml", {"plan.epsilon": 2, "optimizer.learning_rate": 0.5})
    assert changed.plan["epsilon"] == 2
    assert json.loads(changed.model_dump_json())["optimizer"]["learning_rate"] == 0.5
