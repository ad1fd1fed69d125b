"""A linear head above a frozen encoder: what is cached is what the encoder gives."""

import json
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from support.topics import TOKENIZER, posts, tiny_encoder
from tacit.corpus import Corpus
from tacit.corpus.writing import write
from tacit.errors import DataError, MissingExtra, UsageError
from tacit.packaged_models import find_packaged
from tacit.training.evaluation.scoring import evaluate, predict
from tacit.training.models import networks, weights
from tacit.training.models.features import FeaturesForTokenClassification, with_features
from tacit.training.models.registries import TaskName
from tacit.training.phases.run_context import RunContext, encode, open_run
from tacit.training.phases.session import train
from tacit.training.settings import ModelSettings, Run
from tacit.training.tasks.measuring import forward
from tacit.training.tasks.tagging import Tagging
from tacit.verification.runs import verify

PLAN = {"protect": "users", "epsilon": 8, "steps": 4, "user_rate": 1.0, "users": 8}


def made(folder: Path, task: TaskName, labels: list[str] | None = None) -> Any:
    settings = ModelSettings(kind="features", folder=tiny_encoder(folder))
    return networks.make_model(
        settings, task, tokenizer=TOKENIZER, labels=labels, context=12, seed=0
    )


@pytest.fixture
def fields(tmp_path: Path) -> dict[str, Any]:
    encoder = {"kind": "features", "folder": tiny_encoder(tmp_path / "encoder")}
    return posts(tmp_path) | {"model": encoder}


def test_only_the_head_is_trained_and_begins_at_zero(tmp_path: Path) -> None:
    model = made(tmp_path / "e", "classification", ["a", "b", "c"])
    learns = weights.trainable(model)
    assert list(learns) == ["classifier.weight"]
    assert not any(bool(tensor.any()) for tensor in learns.values())
    assert learns["classifier.weight"].shape == (3, 8 + 1)


def test_cached_features_are_unit_vectors_that_give_the_same_logits(fields: dict[str, Any]) -> None:
    ctx = open_run(Run(**fields, method="plain", steps=1))
    torch.nn.init.normal_(weights.trainable(ctx.model)["classifier.weight"])
    cached = encode(ctx, ctx.part)
    assert cached.features is not None
    np.testing.assert_allclose(np.linalg.norm(cached.features.values, axis=1), 1, rtol=1e-5)
    rows = np.array([3, 0, 7])
    ctx.model.train()  # dropout of the encoder stays off
    text = replace(cached, features=None).batch(rows)
    assert "input_ids" not in cached.batch(rows)
    from_text, from_features = forward(ctx.model, text), forward(ctx.model, cached.batch(rows))
    torch.testing.assert_close(from_text, from_features, rtol=1e-4, atol=1e-5)
    assert cached.lengths.tolist() == [1] * len(cached)


def test_an_encoder_that_was_moved_needs_no_features_again(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = encode(*_opened(fields)).features
    (tmp_path / "encoder").rename(tmp_path / "moved")
    fields["model"] = fields["model"] | {"folder": str(tmp_path / "moved")}
    ctx, part = _opened(fields)
    monkeypatch.setattr(type(ctx.model), "features", None)  # nobody asks the encoder
    again = encode(ctx, part).features
    assert first is not None
    assert again is not None
    np.testing.assert_array_equal(first.values, again.values)


def _opened(fields: dict[str, Any]) -> tuple[RunContext, Corpus]:
    ctx = open_run(Run(**fields, method="plain", steps=1))
    return ctx, ctx.part


def test_the_mean_is_over_the_texts_own_tokens(tmp_path: Path) -> None:
    model = made(tmp_path / "e", "classification", ["a", "b"])
    ids = torch.tensor([[5, 6, 7, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 0, 0]])
    alone, padded = model.features(ids[:, :3]), model.features(ids, mask)
    torch.testing.assert_close(alone, padded, rtol=1e-4, atol=1e-5)
    states = model.encoder(input_ids=ids[:, :3])[0].mean(1)
    torch.testing.assert_close(alone, states / states.norm(), rtol=1e-4, atol=1e-5)


def test_tagging_reads_the_state_of_each_token(tmp_path: Path) -> None:
    model = made(tmp_path / "e", "tagging", ["N", "V"])
    assert isinstance(model, FeaturesForTokenClassification)
    assert not model.pooled
    torch.nn.init.normal_(model.classifier.weight)
    tagged = [("He sails", ["N", "V"]), ("Boats", ["N"]), ("He climbs rocks", ["N", "V", "N"])]
    corpus = Corpus.from_records(
        {"id": str(n), "text": text, "tokens": text.split(), "pos": tags}
        for n, (text, tags) in enumerate(tagged)
    )
    task = Tagging(("N", "V"))
    plain = task.encode(corpus, TOKENIZER, context=12)
    cached = with_features(model, plain)
    assert cached.lengths.tolist() == plain.lengths.tolist()
    rows = np.array([2, 1])
    torch.testing.assert_close(
        task.losses(model, plain.batch(rows)), task.losses(model, cached.batch(rows)),
        rtol=1e-4, atol=1e-5,
    )  # fmt: skip
    assert task.score(model, cached) == pytest.approx(task.score(model, plain), rel=1e-4)


def test_an_encoder_that_is_trained_is_asked_every_time(fields: dict[str, Any]) -> None:
    ctx = open_run(Run(**fields, method="plain", steps=1))
    ctx.model.encoder.requires_grad_(True)
    assert encode(ctx, ctx.part).features is None


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_private_run_folder_stands_alone(
    tmp_path: Path, fields: dict[str, Any], task: TaskName
) -> None:
    if task == "regression":
        text = (tmp_path / "posts.jsonl").read_text()
        (tmp_path / "posts.jsonl").write_text(text.replace('"sea"', '"1"').replace('"hill"', '"0"'))
        fields = {k: v for k, v in fields.items() if k != "labels"} | {"label_range": (0, 1)}
    run = Run(**fields | {"task": task, "seed": None}, method="dp-sgd", plan=PLAN)
    done = train(run, tmp_path / "run")
    assert done.certificate.standing == "proved"
    assert done.certificate.epsilon <= 8
    (tmp_path / "encoder").rename(tmp_path / "gone")
    assert all(check.ok for check in verify(tmp_path / "run"))
    again = networks.load_model(tmp_path / "run", task, labels=run.labels)
    assert list(weights.trainable(again)) == ["classifier.weight"]
    assert bool(again.classifier.weight.any())
    assert evaluate(tmp_path / "run", "test")
    assert predict(tmp_path / "run", "wave and tide")
    assert again.config.max_position_embeddings == 16


def test_features_of_one_encoder_are_never_anothers(fields: dict[str, Any]) -> None:
    ctx = open_run(Run(**fields, method="plain", steps=1))
    first = encode(ctx, ctx.part).features
    with torch.no_grad():
        for parameter in ctx.model.encoder.parameters():
            parameter.add_(0.1)
    second = encode(ctx, ctx.part).features
    assert first is not None
    assert second is not None
    assert not np.allclose(first.values, second.values)


def test_features_take_no_adapters_and_have_a_light_default(tmp_path: Path) -> None:
    assert ModelSettings(kind="features").folder == "wordllama"
    with pytest.raises(UsageError, match="trains its head and nothing else"):
        Run(
            corpus="c.jsonl", method="plain", steps=1, task="classification",
            model={"kind": "features", "lora_rank": 2},
        )  # fmt: skip
    with pytest.raises(UsageError, match="features does not serve task=next-word"):
        made(tmp_path, "next-word")


def test_a_missing_package_is_refused_with_the_line_that_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", missing)
    with pytest.raises(MissingExtra, match="pip install wordllama"):
        find_packaged("wordllama")


def test_static_vectors_need_no_transformer(tmp_path: Path) -> None:
    pytest.importorskip("wordllama")
    run = Run(
        **posts(tmp_path), model={"kind": "features"}, method="dp-sgd",
        plan=PLAN | {"steps": 8, "epsilon": 2000}, optimizer={"learning_rate": 8.0},
    )  # fmt: skip
    done = train(run, tmp_path / "run")
    [table] = [p for p in done.certificate.public if p.what == "the base weights"]
    assert table.name.startswith("package wordllama")
    assert table.sha256
    [tokenizer] = [p for p in done.certificate.public if p.what == "the tokenizer"]
    assert tokenizer.sha256
    assert evaluate(tmp_path / "run", "test")["error_rate"] <= 0.2
    assert predict(tmp_path / "run", "a boat on the tide")["class"] == "sea"


def test_an_encoder_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    """What it lacks would be drawn at random; only a pooler, which nobody reads, may be."""
    first, again = (made(tmp_path / "e", "classification", ["a", "b"]) for _ in range(2))
    assert weights.snapshot(first) == weights.snapshot(again)
    file = tmp_path / "e" / "model.safetensors"
    kept = {n: t for n, t in load_file(file).items() if "attention.self.query" not in n}
    save_file(kept, file)
    settings = ModelSettings(kind="features", folder=str(tmp_path / "e"))
    with pytest.raises(DataError, match=r"lacks 2 weight\(s\)"):
        networks.make_model(
            settings, "classification", tokenizer=TOKENIZER, labels=["a", "b"], context=12, seed=0
        )


@pytest.mark.parametrize("task", ["tagging", "regression"])
def test_users_and_entities_are_bound_through_the_same_sums(tmp_path: Path, task: TaskName) -> None:
    """A tagger reads the state of each token, a regressor their mean; records are clipped first."""
    words = ["He sails", "Boats", "He climbs rocks", "Ann ann@mail.org", "Bob bob@mail.org"]
    records: list[dict[str, Any]] = [
        {"id": f"{user}-{n}", "user": f"u{user}", "text": text, "tokens": text.split(),
         "pos": ["N", "V", "N"][: len(text.split())], "label": str(n % 2), "split": split}
        for user in range(9)
        for split in ["test" if user % 3 == 0 else "train"]
        for n, text in enumerate(words)
    ]  # fmt: skip
    write(Corpus.from_records(records), tmp_path / "tagged.jsonl")
    said = {"labels": ["N", "V"]} if task == "tagging" else {"label_range": (0, 1)}
    plan = {"protect": "users+entities", "epsilon": 8, "steps": 2, "user_rate": 1.0,
            "entity_share": 0.5}  # fmt: skip
    run = Run(
        corpus=str(tmp_path / "tagged.jsonl"), task=task, context=16, detect="patterns", plan=plan,
        model={"kind": "features", "folder": tiny_encoder(tmp_path / "encoder")}, **said,
    )  # fmt: skip
    done = train(run, tmp_path / "run")
    assert done.certificate.standing == "proved"
    assert {"users", "entities", "users+entities"} <= done.certificate.costs.keys()
    account = json.loads((tmp_path / "run" / "account.json").read_text())
    assert "ann@mail.org" not in json.dumps(account)
    [head] = weights.trainable(networks.load_model(tmp_path / "run", task, labels=run.labels))
    assert head == "classifier.weight"
    scores = evaluate(tmp_path / "run", "test")
    assert ("pearson" if task == "regression" else "accuracy") in scores
