"""`tacit price`: every method has a price, and no option is silently left aside."""

from pathlib import Path

import pytest

from support.driving import Tacit

RELEASES = "--noise-multiplier 4 --steps 20"
BOTH = f"--protect users+entities --user-rate 0.05 {RELEASES}"
UEDP = "--published uedp --users 946 --users-per-step 50 --entity-rate 0.5"


@pytest.mark.parametrize(
    ("options", "units"),
    [
        ("--protect records --record-rate 0.01", {"records"}),
        ("--protect records --record-rate 0.01 --replace", {"records"}),
        ("--protect users --user-rate 0.01", {"users"}),
        ("--protect users --user-rate 0.01 --replace", {"users"}),
        ("--protect entities --user-rate 0.01", {"users", "entities", "users+entities"}),
        (
            "--protect users --flat --record-rate 0.01 --records-per-user 3 --records-per-entity 1",
            {"users", "entities", "users+entities"},
        ),
        ("--protect tokens --record-rate 0.01", {"tokens"}),
        ("--protect tokens --selective --segments 2 --states 0", {"tokens"}),
    ],
)
def test_every_method(tacit: Tacit, options: str, units: set[str]) -> None:
    found = tacit("price", *options.split(), *RELEASES.split(), "--json")
    assert found.code == 0
    assert set(found.json["epsilon"]) == units
    for unit, epsilon in found.json["epsilon"].items():
        assert 0 < found.json["at_least"][unit] <= epsilon
        assert [gain["fpr"] for gain in found.json["adversary"][unit]] == [0.01, 0.001]
    assert found.json["standing"] == "proved"


def test_replacing_costs_more_than_removing(tacit: Tacit) -> None:
    options = ["price", "--protect", "users", "--user-rate", "0.1", *RELEASES.split(), "--json"]
    removed, replaced = tacit(*options).json, tacit(*options, "--replace").json
    assert replaced["epsilon"]["users"] > removed["epsilon"]["users"]


def test_what_people_see(tacit: Tacit) -> None:
    shown = tacit("price", *BOTH.split(), "--degrees", "1,2")
    assert shown.code == 0
    for words in ("standing: proved", "TPR at FPR 1 %", "Second opinion", "over steps", "share",
                  "Protection: ", "times in a hundred"):  # fmt: skip
        assert words in shown.out


def test_no_noise_promises_nothing(tacit: Tacit) -> None:
    options = "price --protect users --user-rate 0.1 --noise-multiplier 0 --steps 5"
    assert tacit(options, "--json").json["epsilon"] == {"users": "infinity"}
    shown = tacit(options, "--no-curves").out
    assert "infinity" in shown
    assert "Protection" not in shown


@pytest.mark.parametrize("ending", ["png", "svg", "html"])
def test_pictures(tacit: Tacit, tmp_path: Path, ending: str) -> None:
    picture = tmp_path / f"price.{ending}"
    found = tacit("price", *BOTH.split(), "--degrees", "1,2", "--plot", picture, "--json")
    assert found.code == 0
    assert len(found.json["over_steps"]) > 3
    assert [point["degree"] for point in found.json["over_degree"]] == [1, 2]
    assert picture.stat().st_size > 1000


@pytest.mark.parametrize(
    "options",
    [
        "user --users 946 --users-per-step 50 --noise-multiplier 2 --steps 500",
        "selective --noise-multiplier 1 --record-rate 0.01 --gradient-releases 100",
        "gdp --noise-multiplier 1 --steps 10 --record-rate 0.1",
        "dpnr --epsilon 1 --dimensions 3 --word-dropout 0.1",
        "binary --epsilon 1 --dimensions 3 --integer-bits 4 --fraction-bits 2",
    ],
)
def test_published(tacit: Tacit, options: str) -> None:
    found = tacit("price", "--published", *options.split(), "--json")
    assert found.code == 0, found.err
    assert found.json["standing"] == "published"
    shown = tacit("price", "--published", *options.split())
    assert "This is" in shown.out
    assert ".." not in shown.out


def test_the_published_figure_carries_its_contradiction(tacit: Tacit) -> None:
    options = ["--estimator", "f_E", "--noise-multiplier", "2", "--steps", "100"]
    shown = " ".join(tacit("price", *UEDP.split(), *options).out.split())
    assert "not a bound" in shown
    assert "epsilon of at least" in shown


def test_a_picture_of_what_a_paper_claims(tacit: Tacit, tmp_path: Path) -> None:
    """Both estimators, users alone, and what is certainly lost, as far as the steps go."""
    options = [*UEDP.split(), "--noise-multiplier", "2", "--steps", "24"]
    records = ["--sensitive", "5187", "--records", "14040"]
    done = tacit("price", *options, *records, "--plot", tmp_path / "claimed.svg")
    assert done.code == 0, done.err
    drawn = (tmp_path / "claimed.svg").read_text(encoding="utf-8")
    for line in ("f_E", "f_E+", "users alone", "certainly lost"):
        assert line in drawn


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("", "--protect"),
        (f"--protect people --user-rate 0.1 {RELEASES}", "protect='people'"),
        (f"--protect users {RELEASES}", "--user-rate"),
        (f"--protect users --user-rate 1.5 {RELEASES}", "rate=1.5"),
        ("--protect users --user-rate 0.1 --noise-multiplier nan --steps 5", "noise_multiplier"),
        ("--protect users --user-rate 0.1 --noise-multiplier -1 --steps 5", "noise_multiplier"),
        ("--protect users --user-rate 0.1 --noise-multiplier 1 --steps -5", "--steps"),
        (f"--protect users --user-rate 0.1 --delta 2 {RELEASES}", "delta"),
        (f"{BOTH} --entity-share 3", "entity_share"),
        (f"{BOTH} --degrees 1,x", "--degrees"),
        (f"{BOTH} --plot p.gif", ".png"),
        ("--published nobody", "published='nobody'"),
        ("--published uedp", "--users-per-step"),
        (f"{UEDP} --estimator q --noise-multiplier 2 --steps 5", "estimator"),
        # An option that would change nothing is refused: somebody would think that it did.
        (f"{BOTH} --replace", "--replace"),
        (f"{BOTH} --selective", "--selective"),
        (f"{BOTH} --record-rate 0", "--record-rate"),
        (f"{BOTH} --users 5", "--users "),
        (f"{BOTH} --segments 4", "--segments"),
        (f"--protect records --record-rate 0.1 --flat {RELEASES}", "--flat"),
        (f"--protect tokens --record-rate 0.1 --states 2 {RELEASES}", "--states"),
        (f"{UEDP} --noise-multiplier 2 --steps 5 --protect users", "--protect"),
        ("--published dpnr --epsilon 1 --dimensions 3 --plot p.png", "does not go by steps"),
        ("--counterexample --steps 5", "--steps"),
    ],
)
def test_refusals(tacit: Tacit, options: str, words: str) -> None:
    found = tacit("price", *options.split())
    assert (found.code, found.out) == (2, "")
    assert words in found.err
