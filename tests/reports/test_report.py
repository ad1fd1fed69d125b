"""The report: what it shows, what it leaves out, and that it asks nothing of any other host."""

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from support.runs import make_run
from tacit.attacks import Scores, write_scores
from tacit.attacks.attack import Series, Verdict, read_scores, read_series, write_series
from tacit.attacks.exposure import ATTACK as EXPOSING
from tacit.attacks.linkage import ATTACK as LINKAGE
from tacit.attacks.membership import ATTACK as MEMBERS
from tacit.attacks.rates import Measured
from tacit.attacks.tab import _WAYS, _put
from tacit.attacks.tab import ATTACK as TABBING
from tacit.audits.epsilon_bounds import Evidence, judge, write_audit
from tacit.errors import DataError
from tacit.privacy.certificates.certificate import read_certificate
from tacit.reports.comparison import COSTS, UTILITY, matched, seconds_per_record
from tacit.reports.facts import Model, model_of, promised, read_all, read_facts
from tacit.reports.report import sections, write_report
from tacit.training.evaluation.groups import FEWEST, MOST, Group, Groups

EXPOSURE = Scores(
    "exposure",
    {"most_possible_bits": 19.93, "mean_bits": 12.5, "most_repeated_bits": 18.75}, {}, [
        {"repetitions": 0, "canaries": 9, "mean_bits": 1.4, "low": 1.0, "high": 2.0,
         "largest_bits": 3.3},
        {"repetitions": 1, "canaries": 5, "mean_bits": 2.5, "low": 1.0, "high": 4.0,
         "largest_bits": 4.5},
        {"repetitions": 20, "canaries": 5, "mean_bits": 18.75, "low": 17.0, "high": 19.9,
         "largest_bits": 19.9},
    ], {}, ["exact: all secrets were ranked"], 31.25, presentation=EXPOSING.presentation,
)  # fmt: skip
MEMBERSHIP = Scores(
    "membership", {"users_auc": 0.8125}, {"users_auc": (0.7, 0.9)}, [
        {"of": "users", "by": "loss", "members": 40, "others": 40, "auc": 0.8125, "auc_low": 0.7,
         "auc_high": 0.9, "tpr_at_0.01": 0.2, "tpr_at_0.001": 0.1},
    ], {"users by loss": [(0.0, 0.0), (0.01, 0.2), (1.0, 1.0)]}, [], 31.25,
    presentation=MEMBERS.presentation,
)  # fmt: skip
TAB = Scores(
    "tab", {"canaries_reproduced": 0.4375, "canaries_beyond_controls": 0.4375},
    {"canaries_reproduced": (0.2, 0.7)}, presentation=TABBING.presentation,
)  # fmt: skip

SERIES: Series = {
    10: {"exposure": replace(EXPOSURE, perplexity=57.5)},
    20: {"exposure": EXPOSURE, "membership": MEMBERSHIP},
}
GROUPS = Groups(
    "records", "test", (Group("1 to 3 records", 9, 20, 200, 40.5, 38.0, 43.25),
                        Group("4 to 8 records", 5, 30, 300, 20.25, 19.0, 22.0)),
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with attacks and an audit."""
    folder = make_run(tmp_path_factory.mktemp("reported") / "run")
    (folder / "metrics.json").write_text(
        json.dumps(
            {
                "valid": {"perplexity": 31.25},
                "training": {"records": 4711},
                "detected": {"mentions": 1234},
                "detected_kinds": {"PERSON": 1234},
                "bounding": {"records_dropped": 77},
                "dropped_by": {"users_per_entity": 77},
            }
        )
    )
    write_series(folder / "attacks-over-steps.json", SERIES)
    GROUPS.write(folder / "groups.json")
    write_scores(folder / "attacks.json", [EXPOSURE, MEMBERSHIP, TAB])
    certificate = read_certificate(folder / "certificate.json")
    found = Evidence("a test", 1.357, 0.95, 100, 50, 45)
    write_audit(folder, [judge(certificate, "users", found)])
    return folder


PRIVATE = ("18.75", "0.812", "31.25", "0.4375", "4,711", "1,234", "57.5", "40.5", "43.25")
PUBLIC = ("1.35", "consistent", "proved", "tacit verify")


def test_everything_is_shown_with_its_label(run: Path, tmp_path: Path) -> None:
    page, text, data = write_report(tmp_path / "r.html", read_all([run]), title="Title <b>")
    for written in (page, text):
        for figure in (*PRIVATE, *PUBLIC):
            assert figure in written.read_text(), figure
    html = page.read_text()
    assert "Title &lt;b&gt;" in html
    assert html.count("<svg") == 8
    assert "(not private)" in html
    assert "(public)" in html
    assert json.loads(data.read_text())["runs"][0]["not private"]["metrics"]


@pytest.mark.parametrize("shareable", [False, True])
def test_every_column_of_numbers_says_who_may_see_it(run: Path, shareable: bool) -> None:
    for part in sections(read_all([run]), shareable=shareable):
        for heading, *cells in zip(part.headings, *part.rows, strict=True):
            if any(re.fullmatch(r"[\d,.%]+( .*)?", cell) for cell in cells):
                assert re.search(r"public|protected|not private", heading) or (
                    heading == "group"  # how a group is called
                ), (part.title, heading)


def test_groups_are_compared_with_the_plain_run(run: Path) -> None:
    protected = read_facts(run)
    better = tuple(replace(g, perplexity=g.perplexity / 3) for g in GROUPS.groups[:1])
    plain = replace(
        protected, name="plain", method="plain",
        groups=replace(GROUPS, groups=(*better, replace(GROUPS.groups[1], perplexity=13.5))),
    )  # fmt: skip
    part = next(p for p in sections([plain, protected]) if p.title == "Who pays: groups")
    assert [row[-1] for row in part.rows] == ["-", "-", "3", "1.5"]
    assert dict(part.figures)["run: largest over smallest (not private)"] == "2.00"


def test_methods_stand_side_by_side(run: Path) -> None:
    """Utility on one text, cost and drops against the plain run; what was not measured is a dash"""
    ends = [
        Groups("ends", "test", (Group(MOST, 5, 20, 200, a), Group(FEWEST, 5, 9, 90, b)))
        for a, b in ((10.0, 20.0), (12.5, 27.0))
    ]
    own = {"perplexity": 40.0, "perplexity_sensitive": 80.0, "accuracy": 0.25}
    base = read_facts(run)
    plain = replace(
        base, name="plain", method="plain", ends=ends[0],
        metrics={"test": own, "time": {"train": {"steps": 9, "records": 90, "cpu_seconds": 9.0}}},
    )  # fmt: skip
    two = {"redacted": {"steps": 9, "records": 90, "cpu_seconds": 9.0},
           "train": {"steps": 9, "records": 30, "cpu_seconds": 9.0}}  # fmt: skip
    text = own | {f"whole_text_{name}": 2 * value for name, value in own.items()}
    other = replace(
        base, name="other", method="deidentify", ends=ends[1], scores={},
        metrics={"test": text, "time": two},
    )  # fmt: skip
    part = next(p for p in sections([plain, other]) if p.title == "Side by side")
    table = {row[0]: dict(zip(part.headings, row, strict=True)) for row in part.rows}
    wanted = {
        UTILITY["perplexity"]: ("40", "80"), UTILITY["sensitive"]: ("80", "160"),
        UTILITY["top_1"]: ("0.25", "0.5"), "exposure, bits": ("18.8", "-"),
        "membership AUC": ("0.812", "-"), "tab accuracy beyond controls": ("0.438", "-"),
        COSTS["cost"]: ("1", "1.5"), COSTS["drop_most"]: ("0", "2.5"),
        COSTS["drop_fewest"]: ("0", "7"),
    }  # fmt: skip
    for label, cells in wanted.items():
        name = f"{label} (not private)"
        assert (table["plain"][name], table["other"][name]) == cells, name
    assert f"{UTILITY['plain']} (not private)" not in part.headings  # measured in neither
    assert part.drawing.startswith("<svg")
    assert not [p for p in sections([plain]) if p.title == "Side by side"]
    untimed = {"train": {"steps": 9, "cpu_seconds": 9.0}}
    users = replace(plain, metrics={"time": untimed})
    assert seconds_per_record(users) is None  # how many records passed is not known
    assert not [p for p in sections([plain, other], shareable=True) if p.title == "Side by side"]


@pytest.mark.parametrize(
    ("scores", "shown", "says"),
    [
        ({"error_rate": 0.125, "accuracy": 0.875}, "0.125", "error rate"),
        ({"pearson": -0.0625, "loss": 1.5}, "-0.0625", "correlation"),
        ({"accuracy": 0.75, "loss": 1.5}, "0.75", "right tags"),
    ],
)
def test_other_tasks_are_shown_by_their_own_measure(
    run: Path, scores: dict[str, float], shown: str, says: str
) -> None:
    facts = replace(read_facts(run), scores={}, metrics={"test": scores | {"public_only_x": 1.0}})
    both = [facts, replace(facts, name="other", metrics={"test": {says: 1.0}})]
    made = {section.title: section for section in sections(both)}
    utility = made["Utility"]
    assert utility.headings == ["run", "epsilon (public)", f"{says} (not private)"]
    assert [row[2] for row in utility.rows] == [shown]
    assert says in utility.drawing
    assert f"{says} (not private)" in made["At a glance"].headings
    side = made["Side by side"]
    assert side.rows[0][side.headings.index(f"{says} (not private)")] == shown
    assert "next word right (not private)" not in side.headings
    assert not any("perplexity" in heading for heading in side.headings)


def test_leakage_is_what_attacks_declare_as_their_headlines() -> None:
    model = model_of(20, SERIES[20])
    assert (model.step, model.perplexity) == (20, 31.25)
    assert {key: one.value for key, one in model.leakage.items()} == {
        "exposure.bits": 18.75,
        "membership.auc": 0.8125,
    }
    assert str(model.leakage["exposure.bits"]) == "18.75 of 19.93"
    assert str(model.leakage["membership.auc"]) == "0.812 (0.70 to 0.90)"
    more = Scores("linkage", {"accuracy_from_model": 0.25}, presentation=LINKAGE.presentation)
    full = model_of(20, SERIES[20] | {"tab": TAB, "linkage": more})
    assert full.value("tab.beyond_controls") == 0.4375
    assert full.value("linkage.accuracy") == 0.25
    assert model_of(10, SERIES[10]).value("membership.auc") is None


@pytest.mark.parametrize(("controls", "beyond"), [(8, 0.0), (3, 0.5), (0, 0.8)])
def test_controls_that_come_out_as_often_are_no_leakage(controls: int, beyond: float) -> None:
    """The figure of tab is what planted canaries have beyond those that were never planted."""
    rows = [dict.fromkeys(_WAYS, hits) | {"tried": 10} for hits in (8, controls)]
    measured = Measured()
    _put(measured, {"canaries": rows[:1], "controls": rows[1:]})
    assert measured.figures["canaries_beyond_controls"] == pytest.approx(beyond)


def test_the_report_says_what_attacks_show(run: Path) -> None:
    said = Verdict("not shown", "12 of 20 controls came out, too.")
    tab = replace(TAB, verdict=said)
    leak = replace(MEMBERSHIP, verdict=Verdict("shown", "users are told."))
    facts = replace(read_facts(run), scores={"tab": tab, "membership": leak})
    made = {part.title: part for part in sections([facts])}
    assert [row[1:] for row in made["What attacks show"].rows] == [
        ["tab", "not shown", said.words],
        ["membership", "shown", "users are told."],
    ]
    assert made["At a glance"].rows[0][-1] == "membership"
    alone = sections([replace(facts, scores={"tab": tab})])
    glance = next(part for part in alone if part.title == "At a glance")
    assert glance.rows[0][-1] == "none of 1 attacks"
    assert "What attacks show" not in {p.title for p in sections([facts], shareable=True)}


@pytest.mark.parametrize("beyond", [math.nan, math.inf])
def test_scores_that_could_not_be_had_are_dashes(run: Path, tmp_path: Path, beyond: float) -> None:
    """A file of before, in which exposure was infinite, ended the report in a TypeError."""
    lost = replace(
        EXPOSURE,
        figures=EXPOSURE.figures | {"mean_bits": beyond},
        rows=[row | {"mean_bits": beyond, "low": beyond, "high": beyond, "largest_bits": beyond}
              for row in EXPOSURE.rows],
    )  # fmt: skip
    gone = replace(
        MEMBERSHIP,
        figures={"users_auc": beyond},
        rows=[row | {"auc": beyond, "auc_low": beyond} for row in MEMBERSHIP.rows],
        curves={"users by loss": [(0.0, 0.0), (beyond, beyond)]},
    )
    write_scores(tmp_path / "attacks.json", [lost, gone, replace(TAB, figures={"x": beyond})])
    write_series(tmp_path / "series.json", {1: {"exposure": lost}, 2: {"exposure": EXPOSURE}})
    scores = {s.attack: s for s in read_scores(tmp_path / "attacks.json")}
    facts = replace(
        read_facts(run), scores=scores, series=read_series(tmp_path / "series.json"),
        metrics={"test": {"perplexity": beyond}},
    )  # fmt: skip
    other = replace(facts, name="other")
    *_, data = write_report(tmp_path / "r.html", [facts, other], title="T")
    assert "Infinity" not in data.read_text()
    assert "NaN" not in data.read_text()
    made = {part.title: part for part in sections([facts, other])}
    assert {row[3] for row in made["Exposure of canaries"].rows} == {"-"}
    assert made["Membership"].rows[0][3] == "-"


def at(perplexity: float | None) -> Model:
    return Model(1, perplexity)


MATCHED = {
    "the worst best": ({"a": [at(90), at(40), at(20)], "b": [at(95), at(42)]}, 42, {"a", "b"}),
    "nothing near": ({"a": [at(90), at(20)], "b": [at(95), at(42)]}, 42, {"b"}),
    "one alone": ({"a": [at(90)]}, None, set()),
    "unknown": ({"a": [at(90)], "b": [at(None)]}, None, set()),
}


@pytest.mark.parametrize("name", MATCHED)
def test_runs_are_matched_at_the_perplexity_that_all_reach(name: str) -> None:
    models, level, near = MATCHED[name]
    found = matched(models)
    assert (found[0] if found else None) == level
    assert set(found[1] if found else {}) == near


def test_what_is_shared_holds_no_private_figure(run: Path, tmp_path: Path) -> None:
    for written in write_report(tmp_path / "r.html", read_all([run]), title="T", shareable=True):
        content = re.sub(r"<svg.*?</svg>", "", written.read_text(), flags=re.DOTALL)
        for figure in (*PRIVATE, str(run.parent)):
            assert figure not in content, (written, figure)


def test_the_page_stands_alone(run: Path, tmp_path: Path) -> None:
    html = write_report(tmp_path / "r.html", read_all([run]), title="T")[0].read_text()
    without_names = re.sub(r'xmlns(:\w+)?="[^"]*"|<!DOCTYPE[^>]*>', "", html)
    assert not re.findall(r'(?:src|href)="(?!#)[^"]*//', without_names)
    assert "<script" not in html


def test_runs_of_one_name_are_told_apart(run: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / run.name)
    names = [one.name for one in read_all([run, other])]
    assert names == [f"{folder.parent.name}/{folder.name}" for folder in (run, other)]


def test_a_folder_without_a_certificate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="finished run"):
        read_facts(tmp_path)


def test_epsilon_is_never_rounded_down() -> None:
    assert promised(3.0001) == "3.001"
    assert promised(3.0) == "3"
    assert promised(float("inf")) == "none"


@pytest.mark.parametrize("seeded", [False, True])
def test_an_attackers_limit_is_shown_only_where_it_is_promised(
    tmp_path: Path, seeded: bool
) -> None:
    facts = read_facts(make_run(tmp_path / "run", seeded=seeded))
    (promise,) = (part for part in sections([facts]) if part.title.startswith("What is promised"))
    assert bool(promise.rows) is not seeded
    assert ("right at most" in promise.prose) is not seeded
    assert ("Nothing limits" in promise.prose) is seeded
    assert ("none" in dict(promise.figures).values()) is seeded
    (glance,) = (part for part in sections([facts]) if part.title == "At a glance")
    assert (glance.rows[0][2] == "none") is seeded


def test_perplexities_of_different_tokens_stand_in_different_tables(tmp_path: Path) -> None:
    runs = []
    for name, tokens in (("one", "a"), ("two", "b"), ("three", "a")):
        facts = read_facts(make_run(tmp_path / name))
        files = {**facts.certificate.files, "tokenizer.json": tokens * 64}
        scored = {"perplexity": 50.0, "bits_per_character": 2.5, "accuracy": 0.25,
                  "public_only_perplexity": 40.0}  # fmt: skip
        runs.append(
            replace(
                facts,
                certificate=facts.certificate.model_copy(update={"files": files}),
                metrics={"test": scored},
            )
        )
    found = {part.title: part for part in sections(runs)}
    assert [row[0] for row in found["Utility, tokenizer 1"].rows[:2]] == ["one", "three"]
    assert "Utility, tokenizer 2" in found
    assert "are not comparable" in found["Utility"].prose
    assert "next word right (not private)" in found["Utility, tokenizer 1"].headings
    assert any("Worse than its public start" in cell for cell in found["At a glance"].rows[0])
    for title in ("At a glance", "Side by side"):  # which have all runs in one table
        assert not any("perplexity" in heading for heading in found[title].headings)
        assert any("bits of a character" in heading for heading in found[title].headings)
    same = {part.title: part for part in sections([runs[0], runs[2]])}
    assert any("perplexity" in heading for heading in same["Side by side"].headings)
    alone = [part.title for part in sections(runs[:1])]
    assert "Utility" in alone
    assert "Utility, tokenizer 1" not in alone
    shared = sections(runs, shareable=True)
    assert not any("orse than" in cell for part in shared for row in part.rows for cell in row)
