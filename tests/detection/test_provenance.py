"""Who marked what: detectors, versions and rules are recorded with what they found."""

from pathlib import Path

import pytest

from tacit.corpus import Corpus
from tacit.detection import detect
from tacit.detection.mentions import Aliases
from tacit.detection.provenance import read_provenance
from tacit.errors import DataError

CORPUS = Corpus.from_records([{"id": "1", "text": "write to ann@example.org in Rome"}])


def test_detectors_are_named_with_version_and_kinds() -> None:
    found = detect(CORPUS, "patterns,lists").provenance
    assert [one.name for one in found.detectors] == ["patterns", "lists"]
    assert all(one.version.startswith("tacit ") and "rules" in one.version
               for one in found.detectors)  # fmt: skip
    assert found.sought is not None
    assert {"PII/EMAIL", "GPE"} <= set(found.sought)
    assert found.unsought is not None
    assert "PERSON" in found.unsought
    assert "PII" not in found.unsought


def test_what_was_merged_or_left_out_is_recorded() -> None:
    aliases = Aliases({"any": {"rome": ["roma"]}})
    found = detect(CORPUS, "patterns", kinds=["PII"], minimum_score=0.5, aliases=aliases).provenance
    assert found.rules == (
        "only the kinds PII; findings scored 0.5 or more; names merged by an alias file"
    )
    assert all(kind.startswith("PII") for kind in found.sought or ())
    assert read_provenance(found.as_json()) == found


def test_a_list_of_ones_own_changes_the_provenance(tmp_path: Path) -> None:
    terms = tmp_path / "terms.txt"
    terms.write_text("Rome\n")
    one = detect(CORPUS, f"lists={terms}").provenance.detectors[0]
    terms.write_text("Paris\n")
    other = detect(CORPUS, f"lists={terms}").provenance.detectors[0]
    assert one.files
    assert one.files != other.files


def test_a_summary_of_another_form_is_refused() -> None:
    with pytest.raises(DataError, match="detect"):
        read_provenance({"detectors": [{"nom": "x"}]})
