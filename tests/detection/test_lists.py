"""Lists of terms: reading them, matching them, and the ones that come with the package."""

import gzip
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.detection.kinds import known_kinds
from tacit.detection.lists import Lists, Term, embedded, read_embedded, read_list
from tacit.errors import DataError, UsageError


def found(detector: Lists, text: str) -> list[str]:
    return [text[f.start : f.end] for f in detector.find_in(text)]


def of(*terms: str, case: str = "any") -> Lists:
    return Lists(Term(t, "PII", "mine", case) for t in terms)


@pytest.mark.parametrize(
    ("terms", "text", "expected"),
    [
        (["gout"], "Gout, GOUT and gout.", ["Gout", "GOUT", "gout"]),
        (["gout"], "ragout gouty gout_ 1gout gout1", []),
        (["gout"], "gout's anti-gout (gout)", ["gout", "gout", "gout"]),
        (
            ["York", "New York", "New York City"],
            "in New York City, York",
            ["New York City", "York"],
        ),
        (["New York", "York Minster"], "New York Minster", ["York Minster"]),
        (["a b", "b c d"], "a b c d", ["b c d"]),
        (["C++"], "C++ and C++17 and xC++", ["C++", "C++"]),
        ([".NET"], "use .NET now, a.NET", [".NET", ".NET"]),
        (
            ["heart attack"],
            "heart  attack, heart\n\tattack, heartattack",
            ["heart  attack", "heart\n\tattack"],
        ),
        (["Crohn's disease"], "Crohn’s disease", ["Crohn’s disease"]),
        (["COVID-19"], "covid‑19", ["covid‑19"]),
        (["İzmir"], "İzmir İZMİR", ["İzmir", "İZMİR"]),
        (["x"], "İİİ x İ x", ["x", "x"]),
        (["ΟΔΟΣ"], "οδος ΟΔΟΣ", ["οδος", "ΟΔΟΣ"]),
        (["São Paulo"], "Sa\u0303o Paulo and São Paulo", ["Sa\u0303o Paulo", "São Paulo"]),
        (["Peru"], "Peru\u0301 Peru", ["Peru"]),
        (["東京"], "東京 に", ["東京"]),
        (["gout"], "", []),
    ],
)
def test_matching(terms: list[str], text: str, expected: list[str]) -> None:
    assert found(of(*terms), text) == expected


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("any", ["Turkey", "TURKEY", "turkey", "TurKey"]),
        ("proper", ["Turkey", "TURKEY"]),
        ("exact", ["Turkey"]),
    ],
)
def test_case(case: str, expected: list[str]) -> None:
    assert found(of("Turkey", case=case), "Turkey TURKEY turkey TurKey") == expected


def test_same_letters_in_two_lists_take_the_first_that_fits() -> None:
    lists = Lists([Term("AIDS", "PII/DIAGNOSIS", "a", "exact"), Term("aids", "MISC", "b", "exact")])
    assert [f.kind for f in lists.find_in("AIDS aids Aids")] == ["PII/DIAGNOSIS", "MISC"]


def test_file_format(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_bytes(
        b"\xef\xbb\xbffirst\r\n\r\n# a remark\n# kind: diagnosis\ngout\nLake  Powell\tLOC\n"
        b"# case: exact\n#score: 0.5\nTB\n\\#hash\tmisc\n"
    )
    assert read_list(path) == [
        Term("first", "PII", "mine.txt"),
        Term("gout", "PII/DIAGNOSIS", "mine.txt"),
        Term("Lake Powell", "LOC", "mine.txt"),
        Term("TB", "PII/DIAGNOSIS", "mine.txt", "exact", 0.5),
        Term("#hash", "MISC", "mine.txt", "exact", 0.5),
    ]
    packed = tmp_path / "mine.txt.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_list(packed) == read_list(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no term"),
        (b"# only a remark\n", "no term"),
        (b"fine\n\xff\xfe\n", "line 2, is not UTF-8"),
        (b"fine\na\0b\n", "line 2, has a NUL"),
        (b"fine\n...\n", "line 2, is not a term"),
        (b"fine\n\tGPE\n", "line 2, is not a term"),
        (b"fine\n" + b"x" * 2000 + b"\n", "line 2, is not a term"),
        (b"fine\nsecret word\tNOPE\n", "line 2, names an unknown kind"),
        (b"# kind: NOPE\n", "line 1, names an unknown kind"),
        (b"# case: upper\n", "line 1, names an unknown case"),
        (b"# score: 2\n", "line 1: a score"),
        (b"# score: nan\n", "line 1: a score"),
        (b"\x1f\x8bnot gzip", "damaged gzip"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        Lists.open(str(path))
    assert "bad.txt" in str(error.value)
    assert "secret" not in str(error.value).replace(str(path), "")


def test_options(tmp_path: Path) -> None:
    one, two = tmp_path / "one.txt", tmp_path / "a+b.txt"
    one.write_text("gout\n", encoding="utf-8")
    two.write_text("lupus\n", encoding="utf-8")
    text = "gout and lupus in Norway"
    assert found(Lists.open(str(one)), text) == ["gout"]
    assert found(Lists.open(str(two)), text) == ["lupus"]
    assert found(Lists.open(f"{one}+countries"), text) == ["gout", "Norway"]
    assert found(Lists.open("countries+diagnoses"), text) == ["gout", "lupus", "Norway"]
    assert found(Lists.open(None), text) == ["gout", "lupus", "Norway"]
    assert Lists.open(str(one)).find_in(text)[0].why == "lists: one.txt"
    with pytest.raises(UsageError, match="countries"):
        Lists.open("nope")
    with pytest.raises(UsageError, match="names no list"):
        Lists.open("+")
    with pytest.raises(DataError, match="does not exist"):
        Lists.open(str(tmp_path / "missing.txt"))


def test_thousands_of_terms_in_one_pass() -> None:
    lists = of(*(f"term {i}x" for i in range(20_000)))
    assert len(lists) == 20_000
    assert found(lists, "a term 19999x and term 7x, term 20000x") == ["term 19999x", "term 7x"]


def test_many_overlaps() -> None:
    lists = of("a", "a a", "a a a", "a a a a a")
    text = "a " * 100_000
    spans = [(f.start, f.end) for f in lists.find_in(text)]
    assert len(spans) == 20_000
    assert all(e1 <= s2 for (_, e1), (s2, _) in pairwise(spans))


WORDS = st.sampled_from(
    ["ab", "AB", "Ab", "b", "ba", "İ", "ß", "ς", " ", "  ", "\n", "-", "'", "’", "1"]
)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.lists(WORDS, min_size=1, max_size=3).map("".join), min_size=1, max_size=5),
    st.lists(WORDS, max_size=14).map("".join),
)
def test_spans_are_apart_and_spell_a_term(terms: list[str], text: str) -> None:
    terms = [" ".join(t.split()) for t in terms if any(c.isalnum() for c in t)]
    findings = of(*terms).find_in(text) if terms else []

    def folded(t: str) -> str:
        low = "".join(c.lower()[0] for c in t).replace("ς", "σ").replace("’", "'")
        return " ".join(low.split())

    spelled = {folded(t) for t in terms}
    for f in findings:
        assert folded(text[f.start : f.end]) in spelled
    assert all(a.end <= b.start for a, b in pairwise(findings))


def test_embedded_lists_are_good() -> None:
    assert {"countries", "us_states", "cities", "nationalities", "languages", "symptoms"} <= set(
        embedded()
    )
    places: dict[str, str] = {}
    for name in embedded():
        for term in read_embedded(name):
            assert term.kind in known_kinds()
            # One spelling, one list: a term in two would have two kinds.
            assert places.setdefault(term.text.lower(), name) == name, term.text
            assert len(term.text) > 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("She moved from Lagos to New York.", [("Lagos", "GPE"), ("New York", "GPE")]),
        ("a German speaking Swahili", [("German", "NORP"), ("Swahili", "LANGUAGE")]),
        (
            "sore throat and type 2 diabetes",
            [("sore throat", "PII/SYMPTOM"), ("type 2 diabetes", "PII/DIAGNOSIS")],
        ),
        ("UPS or FedEx, not ups", [("UPS", "ORG"), ("FedEx", "ORG")]),
        ("Nice reading about mobile and orange turkey polish", []),
        ("Tell us who may march; he aids them", []),
    ],
)
def test_embedded_lists_on_sentences(text: str, expected: list[tuple[str, str]]) -> None:
    assert [(text[f.start : f.end], f.kind) for f in Lists.open(None).find_in(text)] == expected
