"""A corpus from settings to its certificate: ledger first, nothing twice, nothing for nothing."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.corpus import Corpus
from tacit.corpus.reading import read
from tacit.corpus.writing import write
from tacit.errors import DataError, PrivacyRefused, TacitError, UsageError
from tacit.privacy.certificates.certificate import read_certificate
from tacit.privacy.ledger import read_ledger
from tacit.reports.texts import text_section
from tacit.synthesis import session as sessions
from tacit.synthesis.session import (
    Synthesized,
    _Session,
    prepared,
    resume_file,
    synthesize_file,
)
from tacit.synthesis.settings import Synthesis
from tacit.training.dp import noise
from tacit.training.phases import session as training
from tacit.training.settings import Run
from tacit.verification.runs import verify

NAMES = {"protect": "users+names", "epsilon": 8, "users": 40}


RELEASE = noise.release


def made(fields: dict[str, Any], to: Path) -> Synthesized:
    return synthesize_file(prepared(Synthesis(**fields)), to)


def wrong(folder: Path) -> list[str]:
    return [check.what for check in verify(folder) if not check.ok]


# --- what comes out -----------------------------------------------------------------------------


def test_a_corpus_with_its_certificate(given: dict[str, Any], tmp_path: Path) -> None:
    done = made(given | {"seed": None}, tmp_path / "out.jsonl")
    found = done.corpus
    assert 5 <= len(found) <= 10
    assert set(found.columns) == {"id", "text", "label"}
    assert set(found.column("label").to_pylist()) <= {"late", "broken"}
    own = set(read(Path(given["generator"])).column("text").to_pylist())
    assert set(found.column("text").to_pylist()) <= own
    assert wrong(done.folder) == []
    certificate = done.certificate
    assert certificate.standing == "proved"
    assert certificate.sentence.startswith("The released text is (")
    assert "private text" in certificate.sentence
    assert "model" not in certificate.sentence
    assert certificate.phases == {"histogram": 1, "votes 1": 1}
    assert not list(done.folder.glob(".*"))
    text = (done.folder / "certificate.md").read_text("utf-8")
    assert "training text" not in text
    assert "u001" not in text


def test_votes_choose_what_is_like_the_private_text(given: dict[str, Any], tmp_path: Path) -> None:
    plan = given["plan"] | {"epsilon": 1000}
    done = made(given | {"plan": plan, "texts": 2}, tmp_path / "out.jsonl")
    rows = zip(*(done.corpus.column(c).to_pylist() for c in ("text", "label")), strict=True)
    for text, label in rows:
        assert ("parcel" if label == "late" else "lamp") in text


@pytest.mark.parametrize("change", ["file", "entry", "certificate"])
def test_a_change_is_noticed(given: dict[str, Any], tmp_path: Path, change: str) -> None:
    done = made(given | {"seed": None}, tmp_path / "out.jsonl")
    if change == "file":
        content = bytearray(done.file.read_bytes())
        content[30] ^= 1
        done.file.write_bytes(content)
        assert wrong(done.folder) == ["file out.jsonl"]
    elif change == "entry":
        path = done.folder / "ledger.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:1] + lines[2:]))
        assert "ledger chain" in wrong(done.folder)
    else:
        path = done.folder / "certificate.json"
        fields = json.loads(path.read_text())
        path.write_text(json.dumps(fields | {"format": 2}))
        assert {"format", "ledger's last line"} <= set(wrong(done.folder))


# --- promises -----------------------------------------------------------------------------------


def gold(corpus: Path, names: tuple[str, ...]) -> Path:
    """A copy in which these names are marked, and nothing else."""
    records = []
    for record in read(corpus).records():
        spans = [
            {"start": at, "end": at + len(name), "kind": "PERSON"}
            for name in names
            if (at := record.text.find(name)) >= 0
        ]
        records.append(record.row() | {"spans": spans})
    to = corpus.with_name(corpus.stem + ".gold.jsonl")
    write(Corpus.from_records(records), to)
    return to


def renamed(corpus: Path, old: str, new: str) -> Path:
    records = [r.row() | {"text": r.text.replace(old, new)} for r in read(corpus).records()]
    to = corpus.with_name("renamed.jsonl")
    write(Corpus.from_records(records), to)
    return to


def test_another_name_gives_the_same_text_bit_by_bit(given: dict[str, Any], tmp_path: Path) -> None:
    """With a fixed seed: for names the computation is the same, whatever name stood there."""
    fields = given | {"plan": NAMES, "detect": "gold"}
    one = Path(given["corpus"])
    other = renamed(one, "Ann Bell", "Zacharias Quiñones-Oyelaran")
    found = []
    for path, names in ((one, ("Ann Bell", "Bo Cole")),
                        (other, ("Zacharias Quiñones-Oyelaran", "Bo Cole"))):  # fmt: skip
        own = fields | {"corpus": str(gold(path, names))}
        session = _Session(prepared(Synthesis(**own)), tmp_path / "x.jsonl", None)
        points = session.voters.points
        done = made(own, tmp_path / f"{path.stem}.out.jsonl")
        found.append((points.tobytes(), session.voters.words.tobytes(), done.file.read_bytes()))
        assert done.certificate.costs["names"].epsilon == 0
        assert "by exactly the same computation" not in done.certificate.sentence  # users, too
    assert found[0] == found[1]


def test_entities_vote_under_their_caps(given: dict[str, Any], tmp_path: Path) -> None:
    plan = {"protect": "users+entities", "epsilon": 8, "users": 40, "users_per_entity": 3,
            "entity_share": 0.5}  # fmt: skip
    own = given | {"plan": plan, "detect": "gold", "texts": 4, "seed": None}
    own["corpus"] = str(gold(Path(given["corpus"]), ("Ann Bell",)))
    done = made(own, tmp_path / "out.jsonl")
    assert wrong(done.folder) == []
    assert "round of votes" in done.certificate.sentence
    session = _Session(prepared(Synthesis(**own)), tmp_path / "x.jsonl", None)
    assert len(session.voters.rows) == 40 + 3  # every unmarked record, and three that name her


def test_a_private_run_writes_candidates_and_its_ledger_is_carried(
    dialogs: Path, tmp_path: Path
) -> None:
    plan = {"protect": "users", "epsilon": 4, "steps": 2, "user_rate": 0.5, "users": 50}
    model = {"kind": "lstm", "config": {"hidden_size": 16, "embedding_size": 16}}
    run = Run(corpus=str(dialogs), plan=plan, model=model, tokenizer={"size": 400})
    training.train(run, tmp_path / "run")
    own = {
        "corpus": str(dialogs), "generator": str(tmp_path / "run"), "texts": 4, "tokens": 12,
        "rounds": 2, "candidates": 3, "plan": {"epsilon": 8, "users": 50},
    }  # fmt: skip
    done = made(own, tmp_path / "out.jsonl")
    assert wrong(done.folder) == []
    certificate = done.certificate
    assert certificate.earlier is not None
    assert certificate.phases == {
        "earlier/train": 2, "histogram": 1, "votes 1": 1, "votes 2": 1
    }  # fmt: skip
    assert 4 < certificate.epsilon <= 8
    other = tmp_path / "other.jsonl"
    write(read(dialogs).take(range(50)), other)
    with pytest.raises(PrivacyRefused, match="a run on other text than this corpus"):
        prepared(Synthesis(**own | {"corpus": str(other)}))
    with pytest.raises(TacitError, match="50 users are too few"):
        prepared(Synthesis(**own | {"plan": {"epsilon": 4, "users": 50}}))
    (tmp_path / "run" / "ledger.jsonl").unlink()
    with pytest.raises(PrivacyRefused, match="whose ledger does not exist"):
        made(own, tmp_path / "again.jsonl")
    assert not (tmp_path / "again.certificate").exists()


# --- stops --------------------------------------------------------------------------------------


class Stopped(Exception):
    """The process dies."""


def test_the_ledger_is_on_disk_before_anything_is_heard(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def watched(total: Any, event: Any, ledger: Any, *rest: Any, **how: Any) -> Any:
        before = len(read_ledger(ledger.path).entries)
        noisy = RELEASE(total, event, ledger, *rest, **how)
        seen.append((before, len(read_ledger(ledger.path).entries)))
        return noisy

    monkeypatch.setattr(sessions, "release", watched)
    made(given, tmp_path / "out.jsonl")
    assert seen == [(0, 1), (1, 2)]


def test_what_leaves_is_noisy(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As much as the event says, in every column that was released."""
    found = []

    def watched(total: Any, event: Any, *rest: Any, **how: Any) -> Any:
        noisy = RELEASE(total, event, *rest, **how)
        found.append(total.tensors["weight"].numpy().ravel())
        return noisy

    monkeypatch.setattr(sessions, "release", watched)
    with monkeypatch.context() as patch:
        patch.setattr(_Session, "_finish", lambda *_: None)
        made(given, tmp_path / "out.jsonl")
    kept = json.loads((tmp_path / "out.certificate" / ".work" / "released.json").read_text())
    apart = np.concatenate([np.array(kept[p]) - f for p, f in zip(kept, found, strict=True)])
    noise_std = float(prepared(Synthesis(**given)).plan.noise_multiplier or 0)
    assert len(apart) == 90
    assert 0.7 < apart.std() / noise_std < 1.3


@pytest.mark.parametrize("at", ["votes 1", "_finish", "ballots"])
def test_who_goes_on_after_a_stop_spends_nothing_twice(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    whole = made(given, tmp_path / "whole.jsonl").file.read_bytes()
    to = tmp_path / "out.jsonl"

    def dies(*_: Any, **__: Any) -> Any:
        raise Stopped

    with monkeypatch.context() as patch:
        if at == "_finish":
            patch.setattr(_Session, at, dies)
        elif at == "ballots":
            patch.setattr(sessions, at, dies)
        else:
            heard = _Session._heard
            patch.setattr(
                _Session, "_heard",
                lambda self, phase, *rest: dies() if phase == at else heard(self, phase, *rest),
            )  # fmt: skip
        with pytest.raises(Stopped):
            made(given, to)
    assert not to.exists()
    done = resume_file(to)
    assert len(read_ledger(done.folder / "ledger.jsonl").entries) == 2
    assert to.read_bytes() == whole
    with pytest.raises(DataError, match="nothing to go on with"):
        resume_file(to)


def test_what_was_charged_and_lost_is_not_asked_again(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = tmp_path / "out.jsonl"

    def dies(*rest: Any, **how: Any) -> Any:
        RELEASE(*rest, **how)
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(sessions, "release", dies)
        with pytest.raises(Stopped):
            made(given, to)
    with pytest.raises(PrivacyRefused, match="lost in a crash"):
        # The one that is lost may be made up for by the room of the last, which then is refused.
        resume_file(to)
    assert len(read_ledger(to.with_suffix(".certificate") / "ledger.jsonl").entries) == 2
    assert not to.exists()


def test_other_text_is_no_going_on(given: dict[str, Any], tmp_path: Path) -> None:
    to = tmp_path / "out.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Session, "_finish", lambda *_: (_ for _ in ()).throw(Stopped))
        with pytest.raises(Stopped):
            made(given, to)
    write(read(Path(given["corpus"])).take(range(40)), tmp_path / "less.jsonl")
    shutil.copy(tmp_path / "less.jsonl", given["corpus"])
    with pytest.raises(PrivacyRefused, match="begun for another plan, corpus or run"):
        resume_file(to)


# --- bad input ----------------------------------------------------------------------------------

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "too few users": (
        {"texts": 5000, "candidates": 1}, r"40 users are too few .* it takes [\d,]+"
    ),
    "no epsilon": ({"plan": {"users": 40}}, "The plan needs epsilon"),
    "no users": ({"plan": {"epsilon": 8}}, "plan.users is missing"),
    "records": ({"plan": {"protect": "records", "record_rate": 1, "epsilon": 8, "user_rate": None}},
                "single records"),
    "shown names": ({"plan": NAMES | {"name_share": 0.1}}, "name_share above 0 shows names"),
    "a sample": ({"plan": {"epsilon": 8, "users": 40, "user_rate": 0.5}}, "Everybody votes"),
    "a label twice": ({"labels": ("late", "late")}, "names one label twice"),
    "labels that were not declared": ({"labels": ("late",)}, "none of the 1 declared"),
    "prompts of other labels": (
        {"prompts": {"late": ["x"], "lost": ["y"]}}, "do not agree on 'broken'"
    ),
    "no marks": ({"plan": NAMES}, "needs to know what is marked"),
    "given texts in rounds": ({"rounds": 2}, "Given texts are not varied"),
    "no such generator": ({"generator": "nowhere"}, "nowhere does not exist"),
    "the corpus itself": ({"generator": "CORPUS"}, "holds private text"),
    "no such setting": ({"round": 2}, "'round' is not a setting"),
    "lengths that fall": ({"lengths": (9, 3)}, "numbers of words that rise"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_one_sentence_and_spends_nothing(
    given: dict[str, Any], tmp_path: Path, name: str
) -> None:
    fields, said = BAD[name]
    if fields.get("generator") == "CORPUS":
        shutil.copy(given["corpus"], tmp_path / "copy.jsonl")
        fields = {"generator": str(tmp_path / "copy.jsonl")}
    with pytest.raises(TacitError, match=said) as refused:
        made(given | fields, tmp_path / "out.jsonl")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out.certificate").exists()
    assert not (tmp_path / "out.jsonl").exists()


def test_a_full_disk_loses_nothing(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = tmp_path / "out.jsonl"

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(sessions, "write", full)
        with pytest.raises(DataError, match="No space left on device"):
            made(given, to)
    assert wrong(resume_file(to).folder) == []


def test_nothing_is_replaced_unasked(given: dict[str, Any], tmp_path: Path) -> None:
    made(given, tmp_path / "out.jsonl")
    before = read_certificate(tmp_path / "out.certificate" / "certificate.json")
    for name in ("out.jsonl", "out.csv"):
        with pytest.raises(UsageError, match="exists"):
            made(given, tmp_path / name)
    assert read_certificate(tmp_path / "out.certificate" / "certificate.json") == before


# --- in a report --------------------------------------------------------------------------------


def test_a_report_shows_the_text_with_its_certificate(
    given: dict[str, Any], tmp_path: Path
) -> None:
    done = made(given | {"seed": None}, tmp_path / "out.jsonl")
    section = text_section(done.file)
    assert done.certificate.sentence in section.prose
    assert [row[1] for row in section.rows] == done.corpus.column("text").to_pylist()[:10]
    done.file.write_text(done.file.read_text() + "\n")
    with pytest.raises(DataError, match="cannot be shown as certified: file"):
        text_section(done.file)
