"""Every method as a whole run: its promise on paper, killed and resumed, its entities chosen."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from support.small import dialogs
from tacit.audits.audit import audit_run
from tacit.corpus import Corpus
from tacit.corpus.reading import read
from tacit.detection.policies import mark, open_policy
from tacit.errors import DataError, PrivacyRefused, UsageError
from tacit.privacy.events import SampledGaussian, SelectivePart, UserClip, whole_passes
from tacit.privacy.ledger import read_ledger
from tacit.replication.published import uedp as published
from tacit.training.data.deidentification import deidentified
from tacit.training.evaluation import baselines, scoring
from tacit.training.methods import METHODS
from tacit.training.models import tokens
from tacit.training.phases import run_context, session
from tacit.training.phases.loop import Progress
from tacit.training.phases.redacted_start import redacted
from tacit.training.settings import Run, read_run, run_yaml
from tacit.verification.runs import verify

# The targets leave room for six steps and little more: nothing has to be searched for.
GIVEN = {"noise_multiplier": 2.0, "steps": 4}
USERS = {"protect": "users", "user_rate": 0.3, "users": 50, "epsilon": 2, **GIVEN}
BOTH = {"protect": "users+entities", "user_rate": 0.3, "clip_norm": 0.5, "epsilon": 5.4, **GIVEN}
FLAT = {
    "protect": "users+entities", "mechanism": "flat", "record_rate": 0.2, "records_per_user": 2,
    "records_per_entity": 2, "epsilon": 6.5, **GIVEN,
}  # fmt: skip
EVERY: dict[str, dict[str, Any]] = {
    "plain": {"method": "plain", "steps": 4},
    "deidentify": {"method": "deidentify", "steps": 4},
    "records": {
        "plan": {"protect": "records", "record_rate": 0.1, "records": 120, "epsilon": 0.7, **GIVEN}
    },
    "users": {"plan": USERS | {"records_per_step": 2}},
    "flat": {"plan": FLAT},
    "dp-fedavg": {
        "method": "dp-fedavg",
        "plan": USERS,
        "dp-fedavg": {"local_steps": 2, "local_batch": 2},
    },
    "ngrams": {
        "method": "ngrams",
        "plan": USERS | {"user_rate": 1.0, "epsilon": 7},
        "ngrams": {"orders": [1, 2, 2, 3], "steps": 3, "batch": 4},
    },
    "uedp": {"method": "uedp", "steps": 4, "uedp": {"user_rate": 0.3}},
    "selective": {
        "method": "selective",
        "policy": "gold",
        "plan": {"record_rate": 0.1, "epsilon": 90, "clip_norm": 0.01, **GIVEN},
        "selective": {"state_clip": 1.0},
    },
    "redacted": {
        "method": "redact-then-private",
        "policy": "gold",
        "plan": {"record_rate": 0.1, "epsilon": 1.2, "clip_norm": 0.1, **GIVEN},
        "redact-then-private": {"steps": 2},
    },
    "residual": {
        "method": "residual-tokens",
        "policy": "gold",
        "plan": {"record_rate": 0.1, "epsilon": 1.2, "clip_norm": 0.1, **GIVEN},
        "residual-tokens": {"steps": 2},
    },
    "adversarial": {
        "method": "adversarial",
        "steps": 4,
        "adversarial": {"privacy_weight": 2.0, "hidden_size": 20, "learning_rate": 0.01},
    },
    "triplet": {"method": "triplet", "steps": 4, "triplet": {"batches": "grouped"}},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return dialogs(tmp_path_factory.mktemp("data"))


class Kill(Exception):
    pass


def stop_after(step: int) -> Any:
    def on_progress(at: Progress) -> None:
        if at.step == step:
            raise Kill

    return on_progress


SLOWER = ("deidentify", "records", "flat")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOWER else []) for n in EVERY]
)
def test_stopped_and_resumed_equals_uninterrupted(
    tmp_path: Path, base: dict[str, Any], name: str
) -> None:
    run = Run(**base, **EVERY[name], checkpoint_every=2)
    whole = session.train(run, tmp_path / "whole")
    with pytest.raises(Kill):
        session.train(
            run, tmp_path / "cut", on_progress=stop_after(3)
        )  # step 3 has no checkpoint yet
    cut = session.resume(tmp_path / "cut")
    one, other = (load_file(t.folder / "model.safetensors") for t in (whole, cut))
    assert one.keys() == other.keys()
    assert all(bool((one[key] == other[key]).all()) for key in one)
    assert [c.what for c in verify(tmp_path / "cut") if not c.ok] == []
    entries = len(read_ledger(tmp_path / "cut" / "ledger.jsonl").entries)
    # What was charged before the stop stays charged; a run without protection says so once.
    if name == "selective":
        held = whole_passes(read_ledger(tmp_path / "cut" / "ledger.jsonl").releases())
        assert list(held.values()) == [5]
        assert entries > 5
        return
    if name in ("redacted", "residual"):
        entries -= 1  # the phase without noise
    assert entries == (1 if run.spec.standing == "heuristic" else 5)


def test_fedavg_promises_users_and_charges_what_it_does(
    tmp_path: Path, base: dict[str, Any]
) -> None:
    run = Run(**base | {"seed": None}, **EVERY["dp-fedavg"])
    assert (run.optimizer.learning_rate, run.optimizer.momentum) == (1.0, 0.0)
    done = session.train(run, tmp_path / "run")
    assert done.certificate.standing == "proved"
    event = SampledGaussian(unit="users", rate=0.3, noise_multiplier=2.0)
    assert read_ledger(tmp_path / "run" / "ledger.jsonl").releases() == {event: 4}
    assert [c.what for c in verify(tmp_path / "run") if not c.ok] == []


def test_selective_proves_a_price_and_shows_the_published_one(
    tmp_path: Path, base: dict[str, Any]
) -> None:
    # Long enough records that some have several sensitive segments.
    run = Run(**base | {"seed": None, "context": 80}, **EVERY["selective"])
    done = session.train(run, tmp_path / "run")
    certificate = done.certificate
    assert certificate.standing == "proved"
    assert certificate.costs.keys() == {"tokens"}
    assert certificate.published is not None
    releases = read_ledger(tmp_path / "run" / "ledger.jsonl").releases()
    parts = {e: n for e, n in releases.items() if isinstance(e, SelectivePart)}
    gradients = sum(n for e, n in parts.items() if e.state == 0)
    states = sum(n for e, n in parts.items() if e.state > 0)
    assert gradients > 4
    assert states > 0
    assert certificate.published["inputs"]["gradient_releases"] == gradients
    assert certificate.published["inputs"]["state_releases"] == states
    assert certificate.published["epsilon"]["tokens"] < certificate.epsilon
    assert "not a bound" in (tmp_path / "run" / "certificate.md").read_text()
    assert [c.what for c in verify(tmp_path / "run") if not c.ok] == []
    valid = done.metrics["valid"]
    assert {"perplexity", "perplexity_plain", "perplexity_sensitive"} <= valid.keys()
    # A figure that somebody improved, or an entry taken away, is seen.
    path = tmp_path / "run" / "certificate.json"
    fields = json.loads(path.read_text())
    fields["published"]["inputs"]["state_releases"] = 0
    path.write_text(json.dumps(fields))
    assert "published figure" in [c.what for c in verify(tmp_path / "run") if not c.ok]


def test_beside_a_deidentified_text_stand_counts_of_such_a_text(
    tmp_path: Path, base: dict[str, Any]
) -> None:
    """Counts of the text as it was written would make names of kinds look hard to predict."""
    done = session.train(Run(**base, **EVERY["deidentify"]), tmp_path / "run")
    found = scoring.evaluate(done.folder, "test")
    ctx = run_context.load_run(done.folder)
    train, test = (
        run_context.encode(ctx, deidentified(ctx.corpus.only(split), ctx.mentions))
        for split in ("train", "test")
    )
    right = baselines.baseline_perplexities(
        train, test, len(ctx.tokenizer), rng=np.random.default_rng(0)
    )
    assert {name: found[f"{name}_perplexity"] for name in right} == pytest.approx(right)


def test_masked_text_first_then_the_whole_text_with_noise(
    tmp_path: Path, base: dict[str, Any]
) -> None:
    phases: list[str] = []
    run = Run(**base | {"seed": None}, **EVERY["redacted"])
    done = session.train(run, tmp_path / "run", on_progress=lambda at: phases.append(at.phase))
    assert phases == ["redacted"] * 2 + ["train"] * 4
    assert done.certificate.standing == "proved"
    assert done.certificate.costs.keys() == {"tokens"}
    assert done.certificate.phases == {"redacted": 1, "train": 4}
    assert any("masked" in line for line in done.certificate.not_covered)
    assert [c.what for c in verify(tmp_path / "run") if not c.ok] == []
    with pytest.raises(Kill):  # stopped within the first phase, too
        session.train(
            Run(**base, **EVERY["redacted"]), tmp_path / "cut",
            on_progress=stop_after(1),
        )  # fmt: skip
    session.resume(tmp_path / "cut")
    whole = session.train(Run(**base, **EVERY["redacted"]), tmp_path / "whole")
    for file in ("model.safetensors", "redacted-start.safetensors"):
        one, other = (load_file(f / file) for f in (whole.folder, tmp_path / "cut"))
        assert all(bool((one[key] == other[key]).all()) for key in one)
    found = scoring.evaluate(whole.folder, "test")
    assert found["redacted_only_perplexity"] != found["perplexity"]


TRANSFORMERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "whole": ("redacted", {}, "train: on the whole text, records clipped, summed and noised"),
    "adapters": ("redacted", {"lora_rank": 2}, "train: on the whole text"),
    "residuals": ("residual", {}, "train: on batches of the same masked text as they are"),
}


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_transformer_learns_in_both_phases_and_the_certificate_explains_them(
    tmp_path: Path, base: dict[str, Any], name: str
) -> None:
    method, more, explained = TRANSFORMERS[name]
    tiny = {"kind": "gpt2", "config": {"n_layer": 1, "n_embd": 16, "n_head": 2}}
    model = {"model": tiny | more}
    run = Run(**base | {"seed": None, "context": 48} | model, **EVERY[method])
    phases: list[str] = []
    done = session.train(run, tmp_path / "run", on_progress=lambda at: phases.append(at.phase))
    assert phases == ["redacted"] * 2 + ["train"] * 4
    certificate = done.certificate
    assert (certificate.standing, list(certificate.costs)) == ("proved", ["tokens"])
    assert certificate.phases == {"redacted": 1, "train": 4}
    said = certificate.context["phases"]
    assert "redacted: without noise on text whose sensitive tokens are masked" in said
    assert explained in said
    assert said in (tmp_path / "run" / "certificate.md").read_text()
    assert any("masked" in line for line in certificate.not_covered)
    assert [c.what for c in verify(tmp_path / "run") if not c.ok] == []
    # Every weight that may move did: all of them, or every factor of the adapters.
    assert done.metrics["parameters"]["moved"] > 0
    if not more:
        assert done.metrics["parameters"]["unmoved"] == 0
    assert done.metrics["valid"]["perplexity_sensitive"] > 0
    assert audit_run(tmp_path / "run", canaries=128)[0].verdict != "contradicted"


@pytest.mark.parametrize("method", ["redacted", "residual"])
def test_an_encoder_learns_labels_in_both_phases(
    tmp_path: Path, base: dict[str, Any], method: str
) -> None:
    tiny = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "intermediate_size": 32}  # fmt: skip
    fields = base | {"seed": None, "task": "classification", "model": {"kind": "bert"}}
    fields["labels"] = sorted(set(read(Path(base["corpus"])).column("label").to_pylist()))
    fields["model"]["config"] = tiny
    done = session.train(Run(**fields, **EVERY[method]), tmp_path / "run")
    assert (done.certificate.standing, list(done.certificate.costs)) == ("proved", ["tokens"])
    assert done.certificate.phases == {"redacted": 1, "train": 4}
    assert [c.what for c in verify(tmp_path / "run") if not c.ok] == []
    assert 0 <= done.metrics["valid"]["error_rate"] <= 1
    corpus = read(Path(base["corpus"]))
    pairs = corpus.table.append_column("pair", corpus.column("text"))
    with pytest.raises(PrivacyRefused, match="second text"):
        redacted(Corpus(pairs), tokens.byte_level_bpe(size=300), {})


def test_a_policy_that_overlooks_on_purpose_is_certified_as_such(
    tmp_path: Path, base: dict[str, Any]
) -> None:
    imperfect = EVERY["selective"] | {"policy": "missing(0.5, gold)"}
    fresh = base | {"seed": None}
    certificate = session.train(Run(**fresh, **imperfect), tmp_path / "run").certificate
    assert certificate.standing == "heuristic"
    assert "overlooks 50 % of what gold marks" in certificate.not_covered[0]
    assert "Do not release" in (tmp_path / "run" / "certificate.md").read_text()
    perfect = session.train(Run(**fresh, **EVERY["selective"]), tmp_path / "perfect").certificate
    assert perfect.standing == "proved"


def test_masked_text_is_the_same_whatever_was_masked() -> None:
    words = tokens.byte_level_bpe(None, 400)
    texts = ["my code is 4711, thanks", "my code is 98, thanks"]
    made = []
    for text in texts:
        corpus = Corpus.from_records([{"id": "1", "text": text}])
        masked = redacted(corpus, words, dict(mark(corpus, open_policy("digits"))))
        made += masked.column("text").to_pylist()
    assert made[0] == made[1]
    assert "4711" not in made[0]
    assert "thanks" in made[0]


def test_a_token_of_which_a_part_is_sensitive_is_masked_whole() -> None:
    """Neighbours differ in whole tokens, so what stands beside the marked letters goes, too."""
    texts = {"a stay at northgate today": "gate", "a stay at westhouse today": "house"}
    both = Corpus.from_records({"id": text, "text": text} for text in texts)
    words, _ = tokens.word_vocabulary(both, size=20)
    spans = {
        text: [(text.index(part), text.index(part) + len(part))] for text, part in texts.items()
    }
    made = redacted(both, words, spans).column("text").to_pylist()
    assert made == ["a stay at [MASK] today"] * 2
    # Nor does anything that repeats the text go with it.
    told = [{"id": "1", "text": "a b", "tokens": ["a", "b"], "tags": ["O", "B-X"], "label": "x"}]
    assert set(redacted(Corpus.from_records(told), words, {}).columns) == {"id", "text", "label"}


def test_the_published_method_certifies_a_claim_and_a_price(
    tmp_path: Path, base: dict[str, Any]
) -> None:
    """Standing published; beside the paper's figure, what is proved of the same releases."""
    seen: list[Progress] = []
    run = Run(**base | {"seed": None}, **EVERY["uedp"])
    done = session.train(run, tmp_path / "run", on_progress=seen.append)
    certificate = done.certificate
    assert certificate.standing == "published"
    assert certificate.published is not None
    claim = certificate.published
    users, sensitive, records = (claim["inputs"][n] for n in ("users", "sensitive", "records"))
    figure = published(
        users=users, users_per_step=0.3 * users, entity_rate=0.5, noise_multiplier=2.0, steps=4,
        sensitive=sensitive, records=records,
    )  # fmt: skip
    assert claim["epsilon"]["users+entities"] == figure.epsilon["users+entities"]
    (event,) = read_ledger(tmp_path / "run" / "ledger.jsonl").releases()
    assert isinstance(event, UserClip)
    assert event.noise_multiplier == 2.0 * (0.3 * users + 1)
    assert (event.entity_share, event.entity_rate) == (2.0, 1.0)  # turned around; rule `any`
    assert set(certificate.costs) == {"users", "entities", "users+entities"}
    assert "not a bound" in certificate.sentence
    assert "Proved, for exactly what was released" in certificate.sentence
    assert "not a bound" in (tmp_path / "run" / "certificate.md").read_text()
    assert "published:" in seen[-1].spent
    assert [c.what for c in verify(tmp_path / "run") if not c.ok] == []


@pytest.mark.parametrize(
    ("change", "caught"),
    [
        (lambda c: c.update(standing="proved"), "standing"),
        (lambda c: c.update(published=None), "no plan, no promise"),
        (lambda c: c["published"]["epsilon"].update({"users+entities": 0.01}), "published figure"),
        (lambda c: c["published"]["inputs"].update(steps=2), "published claim"),
        (lambda c: c["published"]["details"].update(holders=1), "published claim"),
        (lambda c: c["published"]["inputs"].update(noise_multiplier=9.0), "published claim"),
        (lambda c: c["costs"]["users+entities"].update(epsilon=0.01), "epsilon for users+entities"),
    ],
)
def test_a_published_certificate_cannot_be_dressed_up(
    certified: Path, tmp_path: Path, change: Any, caught: str
) -> None:
    for file in certified.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    fields = json.loads((tmp_path / "certificate.json").read_text())
    change(fields)
    (tmp_path / "certificate.json").write_text(json.dumps(fields))
    assert caught in [c.what for c in verify(tmp_path) if not c.ok]


@pytest.fixture(scope="module")
def certified(base: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published") / "run"
    session.train(Run(**base, **EVERY["uedp"]), folder)
    return folder


def test_only_the_entities_on_a_list_are_owners(tmp_path: Path, base: dict[str, Any]) -> None:
    """By name or by id; the plan that is shown holds a keyed digest, never a name."""
    names = Path(base["mentions"].replace(".jsonl", ".entities.jsonl"))
    table = [json.loads(line) for line in names.read_text().splitlines()]
    listed = tmp_path / "list.txt"
    name, other = table[0]["name"], table[1]["id"]
    listed.write_text(f"# the two that matter\n{name.upper()}\n\n{other}\nNobody Of That Name\n")
    plan = BOTH | {"entity_list": str(listed), "steps": 1}
    done = session.train(Run(**base, plan=plan), tmp_path / "run")
    saved = "".join(
        (tmp_path / "run" / n).read_text() for n in ("plan.yml", "certificate.json", "ledger.jsonl")
    )
    assert "hmac-sha256:" in done.certificate.plan["entity_list"]
    assert name not in saved
    assert "list.txt" not in saved
    assert [c.what for c in verify(tmp_path / "run") if not c.ok] == []
    ctx = run_context.open_run(read_run(tmp_path / "run" / "run.yml"))
    assert ctx.protected is not None
    assert set(ctx.protected.owners(ctx.part, ctx.mentions).entities) <= {
        table[0]["id"],
        other,
    }
    listed.write_text(f"{name}\n")
    with pytest.raises(PrivacyRefused, match="not the list"):
        session.resume(tmp_path / "run")


def test_a_kind_that_was_not_found_is_not_promised(tmp_path: Path, base: dict[str, Any]) -> None:
    with pytest.raises(PrivacyRefused, match="kinds has LAW, but nothing of that kind"):
        session.train(Run(**base, plan=BOTH | {"kinds": ["LAW"]}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "names no entity"), ("# nothing\n", "names no entity"), ("Nobody\n", "is mentioned")],
)
def test_a_list_that_names_nobody_is_refused(
    tmp_path: Path, base: dict[str, Any], text: str, said: str
) -> None:
    (tmp_path / "list.txt").write_text(text)
    run = Run(**base, plan=BOTH | {"entity_list": str(tmp_path / "list.txt")})
    with pytest.raises(DataError, match=said):
        session.train(run, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "dp-fedavg"}, "needs a plan"),
        ({"method": "dp-fedavg", "plan": BOTH}, "entity_share=2"),
        ({"method": "dp-fedavg", "plan": EVERY["records"]["plan"]}, "it protects users"),
        ({"method": "uedp"}, "needs steps"),
        ({"method": "uedp", "steps": 3, "plan": USERS}, "takes no plan"),
        ({"method": "uedp", "steps": 3, "mentions": None}, "needs mentions"),
        ({"method": "uedp", "steps": 3, "uedp": {"user_rate": 2}}, "uedp.user_rate"),
        ({"method": "dp-sgd", "plan": USERS, "uedp": {}}, "leave them out"),
        ({"method": "dp-fedavg", "plan": USERS, "dp-fedavg": {"local_step": 1}}, "local_steps"),
        ({"plan": USERS | {"entity_list": "x"}}, "about entities"),
    ],
)
def test_settings_of_another_method_are_refused(
    base: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        Run(**base | changes)


@pytest.mark.parametrize("name", EVERY)
def test_settings_survive_a_file(tmp_path: Path, base: dict[str, Any], name: str) -> None:
    for more in (
        {},
        {"optimizer": {"learning_rate": 1.0, "momentum": 0.9}},
        {"optimizer": {"name": "adam"}},
    ):
        run = Run(**base, **EVERY[name], **more)
        (tmp_path / "run.yml").write_text(run_yaml(run))
        assert read_run(tmp_path / "run.yml") == run


def test_the_examples_of_the_docs_are_runs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "methods.md").read_text(
        encoding="utf-8"
    )
    blocks = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    found = set()
    for block in blocks:
        (tmp_path / "run.yml").write_text(block)
        found.add(read_run(tmp_path / "run.yml").method)
    assert found == set(METHODS) - {"plain"}
    assert all(f"`{name}`" in page for name in METHODS)


def test_every_method_has_its_standing_and_is_carried_out_above() -> None:
    tested = {fields.get("method", "dp-sgd") for fields in EVERY.values()}
    assert tested | {"statistics"} == set(METHODS)  # its runs are in test_statistics.py
    assert {spec.name: spec.standing for spec in METHODS.values()} == {
        "plain": "heuristic", "deidentify": "heuristic", "dp-sgd": "proved", "dp-fedavg": "proved",
        "statistics": "proved", "uedp": "published", "selective": "proved",
        "redact-then-private": "proved", "residual-tokens": "proved", "adversarial": "heuristic",
        "triplet": "heuristic", "ngrams": "proved",
    }  # fmt: skip
