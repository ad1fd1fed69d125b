"""What is marked in one user's records does not depend on who else is in the corpus."""

from collections.abc import Sequence
from pathlib import Path

import pytest

import tacit.detection
from tacit.corpus import Corpus, Record
from tacit.detection import detect
from tacit.detection.detector import Finding
from tacit.detection.mentions import Mention
from tacit.detection.provenance import read_provenance
from tacit.detection.tagger.tagger import train
from tacit.errors import PrivacyRefused
from tacit.training.data.known_names import require_marks_of_others


class Remembers:
    """Marks the first word of a record, if the same user was introduced in the same call."""

    name = "remembers"
    kinds = ("PERSON",)
    reads_users = True

    def find(self, records: Sequence[Record]) -> list[list[Finding]]:
        known = {r.user for r in records if r.text.startswith("I am")}
        return [
            [Finding(0, r.text.index(" "), "PERSON", 1.0, "remembers")] if r.user in known else []
            for r in records
        ]


class Forgets(Remembers):
    """The planted bug: it does not say that it looks at other records."""

    reads_users = False


def corpus(strangers: int) -> Corpus:
    """One user, whose two records are far apart, and others between them."""
    rows = [{"id": "first", "user": "ann", "text": "I am Ann"}]
    rows += [{"id": f"s{n}", "user": f"u{n}", "text": "It rains"} for n in range(strangers)]
    return Corpus.from_records([*rows, {"id": "last", "user": "ann", "text": "Ann left"}])


def own(mentions: Sequence[Mention]) -> list[tuple[str, int, int, str]]:
    return [(m.record, m.start, m.end, m.entity) for m in mentions]


def test_a_stranger_who_leaves_changes_nobodys_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tacit.detection, "_BATCH", 4)
    for strangers in (2, 3, 8):
        found = own(detect(corpus(strangers), [Remembers()]).mentions)
        assert found == [("first", 0, 1, "e1"), ("last", 0, 3, "e2")]
    seen = [len(detect(corpus(strangers), [Forgets()]).mentions) for strangers in (2, 3)]
    assert seen == [2, 1]  # so does one that looks at whoever is in the batch


def test_records_without_a_user_stand_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tacit.detection, "_BATCH", 2)
    texts = ["I am Ann", "Ann left", "I am Bo"]
    rows = [{"id": str(n), "text": text} for n, text in enumerate(texts)]
    assert [m.record for m in detect(Corpus.from_records(rows), [Remembers()]).mentions] == [
        "0", "1", "2",
    ]  # fmt: skip


def test_code_of_ones_own_is_never_called_ours() -> None:
    (used,) = detect(corpus(1), [Remembers()]).provenance.detectors
    assert used.version.startswith(Remembers.__module__)
    assert "tacit" not in used.version
    typed_in = type("Typed", (Remembers,), {"__module__": "nowhere"})
    versions = {detect(corpus(1), [typed_in()]).provenance.detectors[0].version for _ in range(2)}
    assert len(versions) == 2  # nobody can tell whether they are the same


def test_a_tagger_that_learned_from_the_text_is_known_and_refused(tmp_path: Path) -> None:
    rows = [
        {"id": str(n), "user": f"u{n}", "text": f"Mr. Stone {n} left .", "split": split,
         "spans": [{"start": 4, "end": 9, "kind": "PERSON"}]}
        for n, split in enumerate(["train", "train", "test", "test"])
    ]  # fmt: skip
    marked = Corpus.from_records(rows)
    for name, part in (("all", marked), ("split", marked.only("train"))):
        train(part, tmp_path / name, iterations=2)
        found = detect(marked, f"patterns,tagger={tmp_path / name}").provenance
        assert found.learned == ("tagger",)
        assert read_provenance(found.as_json()) == found
        with pytest.raises(PrivacyRefused, match="learned from the text"):
            require_marks_of_others(found)
    other = Corpus.from_records([{"id": "1", "user": "ann", "text": "Mr. Stone left ."}])
    elsewhere = detect(other, f"tagger={tmp_path / 'all'}").provenance
    assert elsewhere.learned == ()
    require_marks_of_others(elsewhere)
