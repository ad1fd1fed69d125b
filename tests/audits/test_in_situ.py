"""Audits of a run in its own place: honest runs pass them, and planted bugs do not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.small import dialogs
from tacit.audits.audit import audit_run
from tacit.audits.auditing import Auditing
from tacit.audits.canary_guesses import Reach, declared, evidence_of, log_ratio, reach_of
from tacit.audits.epsilon_bounds import read_audit
from tacit.audits.in_situ import CopyWithGuests, Found, Places, audit_in_situ
from tacit.audits.worst_cases import Draw
from tacit.errors import UsageError
from tacit.planning.plan import read_plan
from tacit.privacy.accounting.pricing import price
from tacit.privacy.certificates.certificate import publish, read_certificate
from tacit.privacy.events import SampledGaussian
from tacit.privacy.ledger import Ledger
from tacit.training.dp import gradients, noise
from tacit.training.dp.random_source import Normals, RandomSource
from tacit.training.dp.sampling import PoissonUsers
from tacit.training.models import tokens
from tacit.training.models.recurrent import LSTMBody
from tacit.training.phases import session
from tacit.training.phases.loop import Loop
from tacit.training.settings import Run, read_run
from tacit.verification.runs import verify

STEPS = 8
USERS = {"protect": "users", "epsilon": 8, "steps": STEPS, "user_rate": 0.5, "users": 40,
         "clip_norm": 0.1, "noise_multiplier": 1.2}  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("text")
    tokens.byte_level_bpe(None, 400).save_pretrained(folder / "tokenizer")
    given = {"kind": "folder", "folder": str(folder / "tokenizer")}  # learnt once for all runs
    return dialogs(folder, 40) | {"seed": None, "tokenizer": given}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, base: dict[str, Any]) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    by = {"name": "dp-adam", "learning_rate": 0.01}  # it has to be told the noise in the copy, too
    session.train(Run(**base, plan=USERS, optimizer=by), folder)
    return folder


def audited(folder: Path, canaries: int = 512, **options: Any) -> Found:
    run, plan = read_run(folder / "run.yml"), read_plan(folder / "plan.yml")
    auditing = Auditing(run, plan, canaries, **options)
    return audit_in_situ(auditing, {"users": 8.0}, folder, CopyWithGuests)


def failed(found: Found) -> list[str]:
    return [check.name for check in found.checks if not check.passed]


def test_an_honest_run_passes_and_its_folder_is_left_alone(trained: Path) -> None:
    before = {path.name: path.read_bytes() for path in trained.iterdir() if path.is_file()}
    told: list[str] = []
    (audit,) = audit_run(trained, canaries=1024, on_progress=told.append)
    assert audit.failed == ()
    assert 1 < audit.lower <= audit.upper <= 8
    assert audit.verdict in ("consistent", "inconclusive")
    assert {check.name for check in audit.checks} >= set(FAILS.values())
    assert "canaries for users can show epsilon" in told[0]
    assert audit.evidence.details["at_best"] > audit.evidence.details["expected"] > 1
    assert read_audit(trained / "audit.json") == [audit]
    (trained / "audit.json").unlink()
    after = {path.name: path.read_bytes() for path in trained.iterdir() if path.is_file()}
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"certificate.json", "certificate.md", "certificate.html", "ledger.jsonl"}
    assert read_certificate(trained / "certificate.json").findings[0].outcome == audit.sentence
    assert [c for c in verify(trained) if not c.ok] == []


def test_a_run_of_some_rows_is_audited_in_those(tmp_path: Path, base: dict[str, Any]) -> None:
    few = {"model": base["model"] | {"trained_rows": 50}, "tokenizer": {"size": 400}}
    session.train(Run(**base | few, plan=USERS | {"steps": 3}), tmp_path / "run")
    assert failed(audited(tmp_path / "run", 256)) == []


def test_fewer_steps_are_judged_by_the_price_of_those(trained: Path) -> None:
    (audit,) = audit_run(trained, canaries=512, steps=2)
    event = read_plan(trained / "plan.yml").event()
    assert audit.part == pytest.approx(float(price({event: 2}, "users", 1e-5).epsilon))
    assert audit.part < audit.upper
    assert "the whole certificate says" in audit.sentence
    assert audit.lower <= audit.part
    assert audit.failed == ()
    (trained / "audit.json").unlink()


def test_no_more_steps_are_audited_than_the_run_took(tmp_path: Path, trained: Path) -> None:
    """Where the budget ended a run, further steps would show more than is certified."""
    for name in ("run.yml", "plan.yml", "certificate.json"):
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    lines = (trained / "ledger.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "ledger.jsonl").write_text("".join(lines[:4]))  # what it is about, three entries
    publish(read_certificate(tmp_path / "certificate.json"), tmp_path)
    (audit,) = audit_run(tmp_path, canaries=256)
    assert (audit.failed, audit.part, audit.evidence.details["steps"]) == ((), None, 3)
    (tmp_path / "ledger.jsonl").write_text(lines[0])
    with pytest.raises(UsageError, match="no step"):
        audit_run(tmp_path)


def test_a_federated_run_has_no_copy_here(tmp_path: Path, trained: Path) -> None:
    for name in ("run.yml", "plan.yml", "certificate.json", "ledger.jsonl"):
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    (tmp_path / "federation.yml").write_text("clients: 3\n")
    with pytest.raises(UsageError, match="--using white-box"):
        audit_run(tmp_path)
    assert audit_run(tmp_path, using=["white-box"], canaries=128)[0].lower <= 8


METHODS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "users and entities": (
        {"plan": {"protect": "users+entities", "epsilon": 30, "steps": 3, "user_rate": 0.5,
                  "users_per_entity": 2, "noise_multiplier": 1.5}},
        {"users", "entities", "users+entities"},
    ),
    "records": (
        {"plan": {"protect": "records", "epsilon": 8, "steps": 3, "record_rate": 0.5,
                  "records": 40, "noise_multiplier": 1.5}},
        {"records"},
    ),
    "dp-fedavg": ({"method": "dp-fedavg", "plan": USERS | {"steps": 3}}, {"users"}),
    "redacted": (
        {"method": "redact-then-private", "redact-then-private": {"steps": 2},
         "plan": {"epsilon": 90, "steps": 3, "record_rate": 0.5, "noise_multiplier": 2.0}},
        {"tokens"},
    ),
    "residual": (
        {"method": "residual-tokens", "residual-tokens": {"steps": 2},
         "plan": {"epsilon": 90, "steps": 3, "record_rate": 0.5, "noise_multiplier": 2.0}},
        {"tokens"},
    ),
    "selective": (
        {"method": "selective",
         "plan": {"epsilon": 90, "steps": 3, "record_rate": 0.5, "noise_multiplier": 2.0}},
        {"tokens"},
    ),
    "uedp": (
        {"method": "uedp", "steps": 2, "uedp": {"user_rate": 0.5}},
        {"entities", "users+entities"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_audited_for_every_unit(
    tmp_path: Path, base: dict[str, Any], name: str
) -> None:
    fields, units = METHODS[name]
    session.train(Run(**base, **fields), tmp_path / "run")
    found = audit_run(tmp_path / "run", canaries=256)
    assert {audit.unit for audit in found} == units
    for audit in found:
        assert audit.failed == ()
        assert len(audit.checks) >= 9
        assert audit.verdict in ("consistent", "inconclusive")


# --- planted bugs -----------------------------------------------------------------------------

FAILS = {
    "one key": "noise of different steps is independent",
    "one stream": "noise of different parts is independent",
    "half the noise": "noise has the standard deviation that was charged",
    "another shape": "noise is Gaussian",
    "too many": "users are drawn at the rate that was charged",
    "draws once": "draws of two steps are independent (users)",
    "fixed size": "each of the users is drawn by itself (Poisson sampling)",
    "no entry": "the ledger holds every release as it was made",
    "cheaper entry": "the ledger holds every release as it was made",
    "leak": "the weights are made of what was released and of nothing else",
    "no clipping": "nobody adds more than the clip norm",
    "coupled": "what somebody adds is the same whoever else takes part",
}


def plant(name: str, patch: pytest.MonkeyPatch) -> None:
    """One bug in the build that is audited."""
    draw, charge, update = PoissonUsers.draw, Ledger.charge, Loop._update
    once: dict[str, Any] = {}

    def leaking(self: Loop, gradient: Any, step: int) -> None:
        update(self, gradient, step)
        with torch.no_grad():
            next(iter(self.model.parameters())).add_(0.01)

    def forgetful(self: Ledger, event: Any, **named: Any) -> Any:
        once["n"] = once.get("n", 0) + 1
        return None if once["n"] == 3 else charge(self, event, **named)

    def cheap(self: Ledger, event: SampledGaussian, **named: Any) -> Any:
        return charge(self, event.model_copy(update={"rate": 0.1}), **named)

    def coupled(self: LSTMBody, *given: Any) -> Any:
        x, state = own(self, *given)
        return x - x.mean(0, keepdim=True), state

    own, std, normals = LSTMBody.forward, noise.noise_std_of, Normals.draw
    bugs: dict[str, tuple[Any, str, Callable[..., Any]]] = {
        "one key": (RandomSource, "key", lambda self, step, part=0: bytes(32)),
        "one stream": (Normals, "draw", lambda self, stream, count: normals(self, 0, count)),
        "half the noise": (noise, "noise_std_of", lambda *given: std(*given) / 2),
        "another shape": (
            Normals, "draw",
            lambda self, stream, count: np.sign(normals(self, stream, count)).astype(np.float32),
        ),
        "too many": (PoissonUsers, "draw", lambda self, rng: np.arange(self.users)),
        "draws once": (
            PoissonUsers, "draw", lambda self, rng: once.setdefault("drawn", draw(self, rng)),
        ),
        "fixed size": (
            PoissonUsers, "draw",
            lambda self, rng: rng.choice(self.users, round(self.users * self.rate), replace=False),
        ),
        "no entry": (Ledger, "charge", forgetful),
        "cheaper entry": (Ledger, "charge", cheap),
        "leak": (Loop, "_update", leaking),
        "no clipping": (gradients._Step, "_factor", lambda self, unit, square: 1.0),
        "coupled": (LSTMBody, "forward", coupled),
    }  # fmt: skip
    where, what, bug = bugs[name]
    patch.setattr(where, what, bug)


@pytest.mark.parametrize("name", FAILS)
def test_a_planted_bug_fails_its_check(
    trained: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    plant(name, monkeypatch)
    # Or the training itself notices, and refuses to take a step.
    refused = "training refuses nothing of what the run does"
    assert {FAILS[name], refused} & set(failed(audited(trained)))


@pytest.mark.parametrize("name", ["one key", "draws once"])
def test_what_no_output_shows_breaks_the_certificate(
    tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for path in trained.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    assert read_certificate(folder / "certificate.json").standing == "proved"
    plant(name, monkeypatch)
    (audit,) = audit_run(folder, canaries=512)
    assert audit.verdict == "broken"
    assert audit.sentence.startswith("Broken: ")
    assert read_certificate(folder / "certificate.json").standing == "broken"
    assert read_audit(folder / "audit.json")[0].failed == audit.failed
    assert json.loads((folder / "audit.json").read_text())["audits"][0]["verdict"] == "broken"


# --- bounds -----------------------------------------------------------------------------------

GAUSSIANS = [(1.0, 1), (0.25, 8)]


@pytest.mark.parametrize(("rate", "steps"), GAUSSIANS)
def test_a_gaussian_mechanism_is_never_said_to_leak_more_than_it_does(
    rate: float, steps: int
) -> None:
    """At a noise for which much can be shown: what is found stays below the exact epsilon."""
    sigma, count, delta = 0.9, 4096, 1e-5
    draw = Draw(np.array([1 - rate, rate]), np.array([0.0, 1.0]), np.zeros(2))
    event = SampledGaussian(unit="users", rate=rate, noise_multiplier=sigma)
    exact = float(price({event: steps}, "users", delta).epsilon)
    reach = reach_of(declared(draw, sigma, steps), delta, 0.95, exact, canaries=count)
    found = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        inside = rng.random(count) < 0.5
        scores = np.zeros(count)
        for _ in range(steps):
            came = rng.random(count) < rate
            heard = inside * came + sigma * rng.standard_normal(count)
            scores += log_ratio(heard, draw, sigma)
        found.append(evidence_of("", scores, inside, reach, delta, 0.95, steps).lower)
    assert max(found) <= exact
    assert 0.95 * reach.expected <= np.mean(found) <= 1.5 * reach.expected
    assert np.mean(found) > 0.3 * exact


def test_what_can_be_shown_is_known_before() -> None:
    draw = Draw(np.array([0.9, 0.1]), np.array([0.0, 1.0]), np.zeros(2))

    def reach(epsilon: float, noise: float, **options: int) -> Reach:
        return reach_of(declared(draw, noise, 10), 1e-5, 0.95, epsilon, **options)

    few, many = reach(8.0, 0.6, canaries=64), reach(8.0, 0.6, canaries=4096)
    assert few.at_best < many.at_best
    assert few.enough
    assert "can show epsilon" in few.sentence("users")
    assert not reach(12.0, 0.6, canaries=64).enough
    assert "too few to show a third" in reach(12.0, 0.6, canaries=64).sentence("users")
    # The fewest that are expected to show a third; where none are, those that show most.
    low, high = reach(1.0, 0.6, most=8192), reach(7.0, 0.6, most=8192)
    assert low.canaries < high.canaries <= 8192
    assert low.expected >= 1 / 3


def test_a_guest_s_direction_goes_through_the_run_s_own_weights(trained: Path) -> None:
    rng = np.random.default_rng(0)
    like = {"a": torch.zeros(5, 7), "b": torch.zeros(3)}
    places = Places(like, 30, rng)
    values = torch.arange(30.0).double()
    places.add(like, values)
    assert torch.equal(places.read(like), values)
    assert sorted(float(v) for t in like.values() for v in t.reshape(-1) if v) == list(range(1, 30))
    with pytest.raises(UsageError, match="--canaries"):
        audited(trained, canaries=1_000_000)


SMALL = {
    "lstm": {"kind": "lstm", "config": {"embedding_size": 64, "hidden_size": 64}},
    "gpt": {
        "kind": "gpt2",
        "config": {
            "hidden_size": 64,
            "layers": 2,
            "heads": 2,
            "dropout": 0,
            "attention_dropout": 0,
        },
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("protect", ["users", "users+entities"])
@pytest.mark.parametrize("model", SMALL)
def test_at_epsilon_8_a_third_and_more_is_shown(tmp_path: Path, model: str, protect: str) -> None:
    """The gate of this audit: 35 % of the certificate, with as many canaries as it chooses."""
    given = dialogs(tmp_path, 400) | {"seed": None, "tokenizer": {"size": 2000}}
    plan = {"protect": protect, "epsilon": 8, "steps": 60, "user_rate": 0.2}
    if protect == "users":
        plan["users"] = 300
    session.train(Run(**given | {"model": SMALL[model]}, plan=plan), tmp_path / "run")
    audit = audit_run(tmp_path / "run", unit=protect)[0]
    assert audit.failed == ()
    assert audit.verdict == "consistent"
    assert 0.35 * 8 <= audit.lower <= audit.upper <= 8
