"""The detector `names`: the file it comes with, what it finds, and what it depends on."""

import hashlib
import socket
from importlib.resources import files

import numpy as np
import pytest

from tacit.corpus import Corpus, Record
from tacit.detection import detect, open_detectors
from tacit.detection.detector import Finding
from tacit.detection.mentions import resolve
from tacit.detection.names import detector, mail, network
from tacit.detection.names.tokens import TOKEN, plain, shape
from tacit.detection.provenance import provenance_of
from tacit.errors import DataError, UsageError


def found(text: str) -> dict[str, str]:
    """What is found in a text, and of which kind."""
    (names,) = open_detectors("names")
    (findings,) = [resolve(list(f), text) for f in names.find([Record("1", text)])]
    return {text[f.start : f.end]: f.kind for f in findings}


def test_the_file_is_the_one_that_was_measured() -> None:
    raw = (files("tacit.detection.names") / network.MODEL).read_bytes()
    assert hashlib.sha256(raw).hexdigest() == network.SHA256
    assert len(raw) < 8_000_000


def test_a_changed_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "SHA256", "0" * 64)
    network.load.cache_clear()
    try:
        with pytest.raises(DataError, match="damaged"):
            network.load()
    finally:
        network.load.cache_clear()


def test_opens_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the detector went to the network")

    monkeypatch.setattr(socket, "socket", refuse)
    network.load.cache_clear()
    assert found("Angela Merkel flew to Paris.")


@pytest.mark.parametrize(
    ("text", "name", "kind"),
    [
        ("Yesterday Maria Gonzalez met the board of directors.", "Maria Gonzalez", "PERSON"),
        ("The talks in Geneva were opened by Kofi Annan.", "Geneva", "LOC"),
        ("The talks in Geneva were opened by Kofi Annan.", "Kofi Annan", "PERSON"),
        ("Shares of Siemens rose after the company named a new chief.", "Siemens", "ORG"),
        ("He studied at the University of Ohio before the war.", "University of Ohio", "ORG"),
        ("Police in Nairobi arrested two men on Friday.", "Nairobi", "LOC"),
        ("I asked Susan whether the invoice had been paid.", "Susan", "PERSON"),
        ("Nigeria and Brazil signed the accord.", "Brazil", "LOC"),
    ],
)  # fmt: skip
def test_prose(text: str, name: str, kind: str) -> None:
    assert found(text).get(name) == kind


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("In article <1993@x.edu> tom@cs.edu (Thomas Brekke) writes:\n> no", "Thomas Brekke"),
        ("On Mon, 3 May 2021, Ingrid Vlk <iv@example.org> wrote:\n> yes", "Ingrid Vlk"),
        ("Wanda Orlowski wrote:\n\n> that is so", "Wanda Orlowski"),
        ("-----Original Message-----\nFrom: Okafor, Chidi\nSent: Monday", "Okafor, Chidi"),
        ("From: chidi@example.org (Chidi Okafor)\nSubject: x", "Chidi Okafor"),
        ("To: Ann Zwick; Oleg Prus; Li Chen\nSubject: lunch", "Oleg Prus"),
        ("Forwarded by Tana Brook/HOU/ECT on 03/01/2000", "Tana Brook"),
        ("Dear Prudence,\n\nthe parcel has arrived.", "Prudence"),
        ("I will look at it.\n\nBest regards,\nHolger Quist", "Holger Quist"),
        ("see below.\n\nCheers,\nMiro", "Miro"),
        (
            "That is all.\n-- \nHarriet Blum   hblum@example.edu\nAny opinion is mine",
            "Harriet Blum",
        ),
    ],
)
def test_mail(text: str, name: str) -> None:
    assert found(text).get(name) == "PERSON"


@pytest.mark.parametrize(
    "text",
    [
        "He said: nothing happened.",
        "I wrote:\n> nothing",
        "the doctor said: rest",
        "USR: okay\nSYS: Fine, thanks.\nUSR: Okay, sure. Will I get it?",
        "the parcel arrived on time and the invoice was paid",
        "12 34 56",
        "From: the beginning it was clear that nothing would come of it in the end, nothing at all",
    ],
)
def test_nobody_is_named(text: str) -> None:
    assert found(text) == {}


def test_a_name_is_found_again() -> None:
    text = "From: Joan Trelawney <jt@x.org>\n\n> as Trelawney said\n"
    places = mail.repeated(text, [Finding(6, 20, "PERSON", 0.9, "names: x")], lambda _: 0)
    assert [(text[f.start : f.end], f.score) for f in places] == [("Trelawney", 0.7)]


def test_sums_are_exact() -> None:
    """The largest sums that the layers can make are whole numbers that float32 has."""
    a = network.load()._a
    for i in range(len(network.GAPS)):
        assert 127 * np.abs(a[f"layer{i}"].astype(np.int64)).sum(axis=1).max() < 2**24
    assert 127 * np.abs(a["out"].astype(np.int64)).sum(axis=1).max() < 2**24


def test_neither_batch_nor_pieces_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    words = TOKEN.findall("Anna Schmidt of Hamburg wrote to Siemens AG. " * 40)
    net = network.load()
    whole = net.scores([words])[0]
    many = net.scores([["x"], words, words[:7], []])
    np.testing.assert_array_equal(many[1], whole)
    assert many[3].shape == (0, len(network.TAGS))
    monkeypatch.setattr(network, "_CHUNK", 50)
    np.testing.assert_array_equal(net.scores([words])[0], whole)


def test_runs_take_the_kind_of_all_their_tokens() -> None:
    scores = np.full((4, len(network.TAGS)), -9.0)
    scores[0, network.TAGS.index("B-PERSON")] = 9
    scores[1, network.TAGS.index("I-ORG")] = 1
    scores[1, network.TAGS.index("I-PERSON")] = 0.9
    scores[2, 0] = 9
    scores[3, network.TAGS.index("I-LOC")] = 9
    runs = list(detector.runs(scores, [False] * 4, [False] * 4))
    said = [(first, last, network.KINDS[shares.argmax()]) for first, last, shares in runs]
    assert said == [
        (0, 2, "PERSON"),
        (3, 4, "LOC"),
    ]


def test_one_word_and_another_are_two_names() -> None:
    scores = np.full((5, len(network.TAGS)), -9.0)
    scores[0, network.TAGS.index("B-ORG")] = 9
    scores[1:, network.TAGS.index("I-ORG")] = 9
    joins = [False, True, False, False, False]
    never = [False] * 5

    def places(n: int) -> list[tuple[int, int]]:
        return [run[:2] for run in detector.runs(scores[:n], never[:n], joins[:n])]

    assert places(3) == [(0, 1), (2, 3)]
    assert places(2) == [(0, 2)]
    assert places(5) == [(0, 5)]  # "Smith and Sons Limited" is one


def test_words() -> None:
    text = "J. O'Hara's U.S. Corp. paid 1,500.3 to ann@x.org\n \nwww.x.org"
    assert TOKEN.findall(text) == [
        "J.", "O'Hara", "'s", "U.S.", "Corp.", "paid", "1,500.3", "to", "ann@x.org", "\n \n",
        "www.x.org",
    ]  # fmt: skip
    assert [plain(w) for w in ("Ab1", "ann@x.org", "\n \n", "\n")] == ["ab0", "@mail", "\n\n", "\n"]
    assert shape("McDonald") == "XxXxx"


@pytest.mark.parametrize(
    "trouble",
    ["A " * 50_000, "a@" * 50_000, "(" * 100_000, "x/" * 50_000, "Ann, " * 30_000, "> " * 50_000,
     "\n" * 100_000, "A.B." * 30_000, "From: " * 20_000, "a" * 100_000, "Hi " * 40_000,
     "-" * 100_000, "A\n" * 50_000, "wrote: " * 20_000],
)  # fmt: skip
def test_no_text_stalls_the_rules(trouble: str) -> None:
    import time

    start = time.process_time()
    mail.find(trouble, lambda _: 1)
    assert time.process_time() - start < 5


GERMAN = (
    "Sehr geehrte Frau Dr. Lüdenscheid,\ngestern hat Sabine von der Heide den Vertrag mit der "
    "Nordwind Energie GmbH unterschrieben.\nMit freundlichen Grüßen\nUwe Hartmann"
)
SPANISH = (
    "Hola Marta,\nel señor Lorca habló con María del Carmen Ruiz del pago de Viajes Norte S.L."
)
FRENCH = "Bonjour Madame Lefèvre,\nJean-Pierre Dubois est dans la société Boulangerie Roux SARL."


@pytest.mark.parametrize(
    ("language", "text", "people", "firms"),
    [
        ("de", GERMAN, {"Lüdenscheid", "Sabine von der Heide", "Uwe Hartmann"},
         {"Nordwind Energie GmbH"}),
        ("es", SPANISH, {"Marta", "Lorca", "María del Carmen Ruiz"}, {"Viajes Norte S.L."}),
        ("fr", FRENCH, {"Lefèvre", "Jean-Pierre Dubois"}, {"Boulangerie Roux SARL"}),
    ],
)  # fmt: skip
def test_other_languages_by_their_own_rules(
    language: str, text: str, people: set[str], firms: set[str]
) -> None:
    """Also where the language is guessed from the text; small words alone are no names."""
    for option in (language, "auto"):
        (names,) = open_detectors(f"names={option}")
        (marks,) = names.find([Record("1", text)])
        told = {(text[f.start : f.end], f.kind) for f in marks}
        assert told == {(p, "PERSON") for p in people} | {(f, "ORG") for f in firms}
    nobody = {"de": "Der Sommer war heiß, und niemand hat angerufen.",
             "es": "Hizo calor todo el verano y nadie llamó.",
             "fr": "Il a fait chaud tout l'été et personne n'a appelé."}[language]  # fmt: skip
    (names,) = open_detectors(f"names={language}")
    assert list(names.find([Record("1", nobody)])) == [[]]


def test_the_language_stands_in_the_provenance() -> None:
    corpus = Corpus.from_records([{"id": "1", "text": GERMAN}])
    made = detect(corpus, "patterns,lists,names=de")
    assert made.provenance.detectors[2].name == "names=de"
    assert {"PERSON", "ORG"} <= {m.kind for m in made.mentions} <= {"PERSON", "ORG", "PII"}
    assert "LOC" in (provenance_of(open_detectors("names=de"), "names=de").unsought or ())
    with pytest.raises(UsageError, match="not a language it knows"):
        open_detectors("names=nl")
