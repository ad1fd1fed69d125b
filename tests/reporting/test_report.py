"""The report: what it shows, what it leaves out, and that it asks nothing of any other host."""

import json
import re
from pathlib import Path

import pytest

from runs import make_run
from tacit.attacking import Scores, write_scores
from tacit.auditing import Evidence, judge, write_audit
from tacit.errors import DataError
from tacit.privacy.certificate import read_certificate
from tacit.reporting.report import read_all, read_facts, up, write_report

EXPOSURE = Scores(
    "exposure", {"most_possible_bits": 19.93, "mean_bits": 12.5}, {}, [
        {"repetitions": 0, "canaries": 9, "mean_bits": 1.4, "low": 1.0, "high": 2.0,
         "largest_bits": 3.3},
        {"repetitions": 20, "canaries": 5, "mean_bits": 18.75, "low": 17.0, "high": 19.9,
         "largest_bits": 19.9},
    ], {}, ["exact: all secrets were ranked"], 31.25,
)  # fmt: skip
MEMBERSHIP = Scores(
    "membership", {"users_auc": 0.8125}, {"users_auc": (0.7, 0.9)}, [
        {"of": "users", "by": "loss", "members": 40, "others": 40, "auc": 0.8125, "auc_low": 0.7,
         "auc_high": 0.9, "tpr_at_0.01": 0.2, "tpr_at_0.001": 0.1},
    ], {"users by loss": [(0.0, 0.0), (0.01, 0.2), (1.0, 1.0)]}, [], 31.25,
)  # fmt: skip
TAB = Scores("tab", {"canaries_reproduced": 0.4375}, {"canaries_reproduced": (0.2, 0.7)})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with attacks and an audit."""
    folder = make_run(tmp_path_factory.mktemp("reported") / "run")
    (folder / "metrics.json").write_text(
        json.dumps({"valid": {"perplexity": 31.25}, "training": {"records": 4711}})
    )
    write_scores(folder / "attacks.json", [EXPOSURE, MEMBERSHIP, TAB])
    certificate = read_certificate(folder / "certificate.json")
    found = Evidence("a test", 1.357, 0.95, 100, 50, 45)
    write_audit(folder, [judge(certificate, "users", found)])
    return folder


PRIVATE = ("18.75", "0.812", "31.25", "0.4375", "4711")
PUBLIC = ("1.35", "consistent", "proved", "tacit verify")


def test_everything_is_shown_with_its_label(run: Path, tmp_path: Path) -> None:
    page, text, data = write_report(tmp_path / "r.html", read_all([run]), title="Title <b>")
    for written in (page, text):
        for figure in (*PRIVATE, *PUBLIC):
            assert figure in written.read_text(), figure
    html = page.read_text()
    assert "Title &lt;b&gt;" in html
    assert html.count("<svg") == 5
    assert "(not private)" in html
    assert "(public)" in html
    assert json.loads(data.read_text())["runs"][0]["not private"]["metrics"]


def test_what_is_shared_holds_no_private_figure(run: Path, tmp_path: Path) -> None:
    for written in write_report(tmp_path / "r.html", read_all([run]), title="T", shareable=True):
        content = re.sub(r"<svg.*?</svg>", "", written.read_text(), flags=re.DOTALL)
        for figure in PRIVATE:
            assert figure not in content, (written, figure)


def test_the_page_stands_alone(run: Path, tmp_path: Path) -> None:
    html = write_report(tmp_path / "r.html", read_all([run]), title="T")[0].read_text()
    without_names = re.sub(r'xmlns(:\w+)?="[^"]*"|<!DOCTYPE[^>]*>', "", html)
    assert not re.findall(r'(?:src|href)="(?!#)[^"]*//', without_names)
    assert "<script" not in html


def test_runs_of_one_name_are_told_apart(run: Path, tmp_path: Path) -> None:
    facts = read_all([run, run])
    assert facts[0].name == str(run)


def test_a_folder_without_a_certificate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="finished run"):
        read_facts(tmp_path)


def test_epsilon_is_never_rounded_down() -> None:
    assert up(3.001) == "3.01"
    assert up(3.0) == "3.00"
    assert up(float("inf")) == "none"
