"""The spaCy and Presidio adapters run for real, on a pipeline trained here; Stanza's messages."""

import importlib.util
import random
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.corpus import Record
from tacit.detection import pipelines
from tacit.detection.detector import Detector, open_detectors
from tacit.detection.pipelines import _pieces, _stanza_model
from tacit.errors import DataError, MissingExtra, UsageError

spacy = pytest.importorskip("spacy")
needs_presidio = pytest.mark.skipif(
    importlib.util.find_spec("presidio_analyzer") is None, reason="presidio is not installed"
)

PEOPLE = ["Dana Whitlow", "Imre Castel", "Ruth Ambler", "Jonas Pell", "Mira Okonjo"]
CITIES = ["Harrowgate", "Lindmere", "Port Sable", "Ostrava", "Quillan"]
GADGETS = ["Brizzo", "Lumetta", "Vantico"]
PATTERNS = [
    "{p} moved to {c} last spring .",
    "We met {p} at the station in {c} .",
    "My neighbour {p} sold a {g} kettle .",
    "The office in {c} is closed , said {p} .",
]


def made_sentence(rng: random.Random) -> tuple[str, list[tuple[int, int, str]]]:
    """A sentence of our own and its entities; GADGET is a label that tacit does not know."""
    text, spans = "", []
    choices = {"{p}": (PEOPLE, "PERSON"), "{c}": (CITIES, "GPE"), "{g}": (GADGETS, "GADGET")}
    for word in rng.choice(PATTERNS).split():
        if word in choices:
            names, label = choices[word]
            name = rng.choice(names)
            spans.append((len(text), len(text) + len(name), label))
            word = name
        text += word + " "
    return text.strip(), spans


@pytest.fixture(scope="session")
def pipeline_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A blank English pipeline with a small trained NER, saved to disk."""
    from spacy.training import Example

    spacy.util.fix_random_seed(3)
    rng = random.Random(3)
    nlp = spacy.blank("en")
    nlp.add_pipe("ner")
    examples = []
    for _ in range(60):
        text, spans = made_sentence(rng)
        examples.append(Example.from_dict(nlp.make_doc(text), {"entities": spans}))
    nlp.initialize(lambda: examples)
    for _ in range(12):
        rng.shuffle(examples)
        for start in range(0, len(examples), 10):
            nlp.update(examples[start : start + 10])
    folder = tmp_path_factory.mktemp("spacy") / "pipeline"
    nlp.to_disk(folder)
    return folder


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the network was asked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def marked(detector: Detector, text: str) -> list[tuple[str, str, str]]:
    (findings,) = detector.find([Record("1", text)])
    return [(text[f.start : f.end], f.kind, f.why) for f in findings]


TEXT = "Ruth Ambler moved to Lindmere last spring ."


@pytest.mark.usefixtures("no_network")
def test_spacy_finds_what_its_model_knows_and_names_its_labels(pipeline_folder: Path) -> None:
    (detector,) = open_detectors(f"spacy={pipeline_folder}")
    assert marked(detector, TEXT) == [
        ("Ruth Ambler", "PERSON", "spacy PERSON"),
        ("Lindmere", "GPE", "spacy GPE"),
    ]
    unknown = marked(detector, "My neighbour Jonas Pell sold a Lumetta kettle .")
    assert ("Lumetta", "MISC", "spacy GADGET") in unknown


def test_spacy_answers_each_record_in_order(pipeline_folder: Path) -> None:
    (detector,) = open_detectors(f"spacy={pipeline_folder}")
    texts = ["", TEXT, "   ", "\ud800 " + TEXT, TEXT]
    found = list(detector.find([Record(str(i), t) for i, t in enumerate(texts)]))
    assert [len(f) for f in found] == [0, 2, 0, 2, 2]
    assert found[1] == found[4]
    assert [f.start for f in found[3]] == [f.start + 2 for f in found[1]]


def test_a_text_longer_than_spacy_takes_is_read_in_pieces(
    pipeline_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (detector,) = open_detectors(f"spacy={pipeline_folder}")
    monkeypatch.setattr(pipelines, "LONGEST_TEXT", 500)
    monkeypatch.setattr(detector._nlp, "max_length", 500)  # type: ignore[attr-defined]
    text = "\n".join([TEXT] * 40)
    found = marked(detector, text)
    assert len(found) == 80
    assert {(name, kind) for name, kind, _ in found} == {
        ("Ruth Ambler", "PERSON"),
        ("Lindmere", "GPE"),
    }


@given(st.text(alphabet="ab \n", max_size=200), st.integers(1, 20))
def test_pieces_join_to_the_text(text: str, longest: int) -> None:
    pieces = list(_pieces(text, longest))
    assert "".join(piece for _, piece in pieces) == text
    for offset, piece in pieces:
        assert 1 <= len(piece) <= longest
        assert text.startswith(piece, offset)
        # A word is cut only where it fills a whole piece.
        end = offset + len(piece)
        if end < len(text) and not text[end - 1].isspace():
            assert not any(c.isspace() for c in piece[1:])


@needs_presidio
@pytest.mark.usefixtures("no_network")
def test_presidio_runs_its_patterns_without_model_or_network(
    capfd: pytest.CaptureFixture[str],
) -> None:
    (detector,) = open_detectors("presidio")
    cases = [
        ("write to ann.lee@example.org please", "ann.lee@example.org", "PII/EMAIL"),
        ("my card is 4111 1111 1111 1111 thanks", "4111 1111 1111 1111", "PII/CARD"),
        ("call me at (212) 555-0123 today", "(212) 555-0123", "PII/PHONE"),
        ("pay to GB82WEST12345698765432 now", "GB82WEST12345698765432", "PII/IBAN"),
        ("the host 10.0.0.1 is down", "10.0.0.1", "PII/IP"),
        # Its score reaches our threshold only through the context word before it.
        ("my passport number is 912803456", "912803456", "PII/ID"),
        # An entity of Presidio's own that tacit has no name for is personal all the same.
        ("session 123e4567-e89b-42d3-a456-426614174000", None, "PII"),
    ]
    found = detector.find([Record(str(i), text) for i, (text, _, _) in enumerate(cases)])
    for (text, name, kind), findings in zip(cases, found, strict=True):
        spans = {(text[f.start : f.end], f.kind) for f in findings}
        assert any(k == kind and name in (None, n) for n, k in spans), (kind, spans)
        assert all(f.why.startswith("presidio ") for f in findings)
    assert capfd.readouterr() == ("", "")


@needs_presidio
@pytest.mark.usefixtures("no_network")
def test_presidio_with_a_spacy_pipeline_finds_both(pipeline_folder: Path) -> None:
    (detector,) = open_detectors(f"presidio={pipeline_folder}")
    text = "We met Ruth Ambler at the station in Lindmere . ruth@example.org"
    found = marked(detector, text)
    assert ("Ruth Ambler", "PERSON", "presidio PERSON") in found
    # Presidio's own map would have made it a LOCATION.
    assert ("Lindmere", "GPE", "presidio GPE") in found
    assert ("ruth@example.org", "PII/EMAIL", "presidio EMAIL_ADDRESS") in found


@pytest.mark.parametrize(
    ("option", "error", "words"),
    [
        ("spacy", UsageError, ["spacy=NAME", "FOLDER"]),
        ("spacy=no_such_model", MissingExtra, ["no_such_model", "spacy download"]),
        ("spacy=/no/such/folder", MissingExtra, ["/no/such/folder", "folder"]),
        ("presidio=no_such_model", MissingExtra, ["presidio=no_such_model", "spacy download"]),
        ("stanza", UsageError, ["stanza=LANGUAGE", "FOLDER"]),
        ("stanza=/no/such/folder", MissingExtra, ["/no/such/folder", "stanza.download"]),
    ],
)
def test_what_is_missing_is_said_in_one_sentence(
    option: str, error: type[Exception], words: list[str]
) -> None:
    with pytest.raises(error) as caught:
        open_detectors(option)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("package", "option", "extra"),
    [
        ("spacy", "spacy=en_core_web_sm", "'.[ner]'"),
        ("presidio_analyzer", "presidio", "'.[ner]'"),
        ("stanza", "stanza=en", "'.[stanza]'"),
    ],
)
def test_a_missing_package_names_the_extra(
    package: str, option: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=package) as caught:
        open_detectors(option)
    assert extra in str(caught.value)


def test_a_folder_that_is_no_pipeline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read as a spaCy pipeline"):
        open_detectors(f"spacy={tmp_path}")
    (tmp_path / "meta.json").write_text("{}")
    (tmp_path / "config.cfg").write_text("[nlp\n")
    with pytest.raises(DataError, match="cannot be read as a spaCy pipeline"):
        open_detectors(f"spacy={tmp_path}")


def test_a_pipeline_without_entities_is_refused_rather_than_silent(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.to_disk(tmp_path / "blank")
    with pytest.raises(UsageError, match="nothing that finds entities"):
        open_detectors(f"spacy={tmp_path / 'blank'}")


def test_where_stanza_models_are_looked_for(tmp_path: Path) -> None:
    (tmp_path / "en" / "ner").mkdir(parents=True)
    (tmp_path / "de" / "ner").mkdir(parents=True)
    assert _stanza_model("en") == ("en", None)
    assert _stanza_model("zh-hans") == ("zh-hans", None)
    assert _stanza_model(str(tmp_path)) == ("en", tmp_path)
    assert _stanza_model(str(tmp_path / "de")) == ("de", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingExtra, match="holds no ner model"):
        _stanza_model(str(tmp_path / "empty"))
    (tmp_path / "many" / "fr" / "ner").mkdir(parents=True)
    (tmp_path / "many" / "de" / "ner").mkdir(parents=True)
    with pytest.raises(UsageError, match="several languages"):
        _stanza_model(str(tmp_path / "many"))
