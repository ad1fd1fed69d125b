"""Every sentence of a sanitized corpus's certificate, against what the sanitizer really does.

For each way of replacing words and of treating unknown ones: what would make the sentence false?
"""

import itertools
import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.corpus import Corpus
from tacit.errors import DataError, PrivacyRefused
from tacit.privacy.certificates.certificate import LEAKS
from tacit.privacy.certificates.local_privacy import LocalCertificate, issue_local, pages
from tacit.privacy.certificates.local_wording import KEPT_WORDS, NOT_FOR_RELEASE, VOCABULARY_LEAK
from tacit.privacy.certificates.scope import PublicInput
from tacit.privacy.events import NotPrivate, Public, SanitizedText
from tacit.privacy.ledger import Ledger, LedgerContents, read_ledger
from tacit.sanitization import Recipe, Sanitizer, choose_sensitive, open_embeddings, sanitize_file
from tacit.sanitization.embeddings import Embedding
from tacit.sanitization.kernel import Space

WORDS = ("the", ",", "a", "good", "bad", "film", "day", "anna", "'s", "rome", "10", "don't")
PLAIN, SENSITIVE = WORDS[:6], WORDS[6:]
STRANGE = ("zebra", "quux", "4711")


def little(count: int = len(WORDS)) -> Embedding:
    rng = np.random.default_rng(0)
    names = (*WORDS, *(f"w{n}" for n in range(count - len(WORDS))))
    return Embedding("little", names, rng.standard_normal((count, 4)).astype(np.float32))


def made(
    method: str, unknown: str = "random", epsilon: float | None = 2.0, rate: float | None = None,
    *, seed: int | None = None, embedding: Embedding | None = None,
) -> Sanitizer:  # fmt: skip
    embedding = embedding or little()
    sensitive = choose_sensitive(embedding, share=0.5) if method == "santext+" else None
    recipe = Recipe(method, None if method == "random" else epsilon, rate, unknown)  # type: ignore[arg-type]
    return Sanitizer(embedding, recipe, sensitive, seed=seed)


RECORDS = [
    {"id": "1", "user": "u", "label": "x", "text": "The good film , zebra anna"},
    {"id": "2", "user": "v", "label": "y", "text": "a bad day quux 4711 rome"},
]


def certified(
    folder: Path, work: Sanitizer, records: list[dict[str, str]] | None = None,
    name: str = "o.jsonl", **more: object,
) -> LocalCertificate:  # fmt: skip
    batches = Corpus.from_records(records or RECORDS).table.to_batches()
    folder.mkdir(exist_ok=True)
    return sanitize_file(batches, folder / name, work, **more).certificate  # type: ignore[arg-type]


COMBINATIONS = [
    *itertools.product(("santext", "fbdd", "random"), ("random", "drop", "keep"), (2.0,), (None,)),
    *itertools.product(("santext",), ("random", "drop", "keep"), (0.0,), (None,)),
    *itertools.product(("santext+",), ("random", "drop", "keep"), (2.0, 0.0), (0.0, 0.3, 1.0)),
]


@pytest.mark.parametrize(("method", "unknown", "epsilon", "rate"), COMBINATIONS)
def test_whatever_stands_as_it_was_is_excluded_from_the_headline(
    tmp_path: Path, method: str, unknown: str, epsilon: float, rate: float | None
) -> None:
    """Words that occur in no vocabulary can only come out if they were kept."""
    work = made(method, unknown, epsilon, rate)
    found = certified(tmp_path, work)
    released = (tmp_path / "o.jsonl").read_text()
    verbatim = [word for word in STRANGE if word in released]
    if verbatim:
        assert verbatim == list(STRANGE)
        assert found.standing == "heuristic"
        assert found.sentence.startswith(f"{LEAKS} Of the words that were drawn alone: ")
        assert found.not_covered[0] == KEPT_WORDS
        assert found.epsilon_per_distance == found.epsilon_0 == "infinity"
        assert found.reach == {}
    else:
        assert unknown != "keep"
        assert found.standing == "proved"
        assert "Nothing is promised" not in found.sentence
        assert KEPT_WORDS not in found.not_covered
        assert found.epsilon_per_distance == (0 if method == "random" else epsilon)
    # What people read says the same as what programs read.
    for page in pages(found).values():
        assert ("Nothing is promised" in page) == bool(verbatim)


@pytest.mark.parametrize(("method", "unknown", "epsilon", "rate"), COMBINATIONS)
def test_a_promise_of_nothing_left_means_that_nothing_is_left(
    tmp_path: Path, method: str, unknown: str, epsilon: float, rate: float | None
) -> None:
    """With the same draws, texts of which nothing is left but a number must come out the same.

    The texts have equally many words and differ in all of them; one has unknown words.
    """
    found = certified(tmp_path, made(method, unknown, epsilon, rate))
    work = made(method, unknown, epsilon, rate, seed=4)
    texts = ["the good film , a bad day anna", "rome 10 don't anna rome 's day film"]
    strange = "zebra quux film , a bad day 4711"
    one, other, third = (work(["r"], [text])[0][0] for text in (*texts, strange))
    promised = "only through how many words it has" in found.sentence
    known_only = "only through how many of its words the vocabulary has" in found.sentence
    assert one == other or not (promised or known_only)
    assert one == third or not promised
    if found.epsilon_per_distance == 0 and found.notion == "metric-LDP":
        assert promised or known_only
    if known_only:
        assert len(third.split()) == 5
    assert (promised or known_only) == (
        unknown != "keep" and (method == "random" or (method == "santext" and epsilon == 0))
    )


def test_neighbours_of_the_sentence_have_unknown_words_where_they_must_be(tmp_path: Path) -> None:
    said = {
        unknown: certified(tmp_path / unknown, made("santext", unknown)).sentence
        for unknown in ("random", "drop", "keep")
    }
    assert "equally many words, with unknown ones in the same places" in said["random"]
    assert "equally many words of the vocabulary" in said["drop"]
    assert "with the same unknown ones in the same places" in said["keep"]
    for sentence in said.values():
        assert "any two words of the vocabulary at distance d" in sentence


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_plain_words_are_named_where_they_stay(tmp_path: Path, rate: float) -> None:
    text = " ".join(PLAIN * 200)
    work = made("santext+", rate=rate)
    found = certified(tmp_path, work, [{"id": "1", "text": text}])
    out = json.loads((tmp_path / "o.jsonl").read_text())["text"].split()
    stayed = sum(a == b for a, b in zip(out, text.split(), strict=True))
    assert (stayed > 0) == ("Plain words are not protected" in found.sentence) == (rate < 1)
    assert any(line.startswith("Plain words:") for line in found.not_covered) == (rate < 1)
    assert ("nothing bounds it" in found.sentence) == (rate == 0)
    assert found.epsilon_0 == {0.0: "infinity", 0.3: pytest.approx(1.2039728), 1.0: 0.0}[rate]


def test_a_vocabulary_from_the_text_takes_every_promise(tmp_path: Path) -> None:
    part = little().only([*WORDS[:5], "anna", "rome"], "the corpus", counted=True)
    work = Sanitizer(part, Recipe("santext", 2.0))
    found = certified(tmp_path, work, leaks=[VOCABULARY_LEAK])
    assert found.standing == "heuristic"
    assert found.sentence.startswith(f"{LEAKS} Were the vocabulary public: For any two words")
    assert found.not_covered[0] == VOCABULARY_LEAK
    assert found.epsilon_per_distance == "infinity"
    # Neither its size nor a digest of it is told: the vectors are named as they were given.
    assert found.public[0].sha256 == little().digest
    assert part.digest not in found.to_json()
    assert read_ledger(tmp_path / "o.certificate" / "ledger.jsonl").about["distances"] == {}
    assert found.context["vocabulary"] == "those words that occur in the private text"
    both = certified(
        tmp_path / "both", Sanitizer(part, Recipe("santext", 2.0, unknown="keep"), seed=1),
        leaks=[VOCABULARY_LEAK],
    )  # fmt: skip
    assert both.sentence.startswith(
        f"{NOT_FOR_RELEASE} With unpredictable randomness it would be: {LEAKS} Of the words that "
        "were drawn alone, were the vocabulary public: "
    )
    assert both.not_covered[:2] == (KEPT_WORDS, VOCABULARY_LEAK)


@pytest.mark.parametrize(("method", "unknown", "epsilon", "rate"), COMBINATIONS)
def test_a_certificate_tells_nothing_about_the_text(
    tmp_path: Path, method: str, unknown: str, epsilon: float, rate: float | None
) -> None:
    """Corpora of other sizes, with other numbers of unknown words: the same certificate."""
    texts = {"few": ["good film"], "many": ["zebra day"] * 50 + ["quux " * 30, "anna"]}
    found = []
    for name, given in texts.items():
        records = [{"id": str(n), "text": text} for n, text in enumerate(given)]
        one = certified(tmp_path / name, made(method, unknown, epsilon, rate), records)
        fields = json.loads(one.to_json())
        for own in ("data", "files", "ledger_digest"):
            del fields[own]
        found.append(fields)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("name", "drop", "copied"),
    [
        ("o.jsonl", (), "columns id, user, label"),
        ("o.csv", ("user",), "columns id, label"),
        ("o.parquet", ("user", "label"), "column id"),
        ("o.txt", (), None),
        ("o.jsonl", ("id", "user", "label"), None),
    ],
)
def test_columns_that_are_passed_on_are_named(
    tmp_path: Path, name: str, drop: tuple[str, ...], copied: str | None
) -> None:
    found = certified(tmp_path, made("santext"), name=name, drop=drop)
    lines = [line for line in found.not_covered if "passed on" in line]
    expected = [] if copied is None else [
        f"The {copied}: passed on unchanged, and nothing hides what is in them."
    ]  # fmt: skip
    assert lines == expected
    assert (f"The {copied}" in pages(found)["certificate.md"]) == bool(expected)


def test_second_texts_are_sanitized_and_that_they_exist_is_named(tmp_path: Path) -> None:
    rows = [{"id": "1", "text": "good film", "pair": "zebra"}, {"id": "2", "text": "bad day"}]
    found = certified(tmp_path, made("random"), rows)
    assert any("which records have a second text" in line for line in found.not_covered)
    assert not any("pair" in line for line in found.not_covered)
    assert "zebra" not in (tmp_path / "o.jsonl").read_text()
    alone = certified(tmp_path / "alone", made("random"))
    assert not any("second text" in line for line in alone.not_covered)


def test_pieces_of_words_are_not_called_words(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    from support.word_pieces import model_folder

    embedding = open_embeddings(model_folder(tmp_path / "model"))
    found = certified(
        tmp_path, Sanitizer(embedding, Recipe("santext", 2.0)),
        [{"id": "1", "text": "good films, unseen"}],
    )  # fmt: skip
    assert "any two pieces of the vocabulary" in found.sentence
    assert "texts of equally many pieces" in found.sentence
    assert any(line.startswith("How many pieces each text has") for line in found.not_covered)
    assert "tokenizer, SHA-256 " in found.context["how text is cut"]
    assert "spacing" not in found.context["how text is cut"]


def test_the_rules_of_cutting_are_the_ones_that_are_stated(tmp_path: Path) -> None:
    """Capitals, spacing and the place of punctuation leave no trace but in the number of words."""
    rules = certified(tmp_path, made("santext")).context["how text is cut"]
    assert "put out as the vocabulary writes them" in rules
    assert "spacing is not carried over" in rules
    work = made("santext", epsilon=1e6, seed=1)
    ways = ["Good film, don't", "GOOD\t film ,\n\n  DON'T", "good film , don't"]
    assert {work(["r"], [text])[0][0] for text in ways} == {"good film , don't"}


def test_equal_words_and_texts_are_drawn_by_themselves(tmp_path: Path) -> None:
    found = certified(
        tmp_path, made("santext", epsilon=0.5),
        [{"id": str(n), "text": "anna " * 30} for n in range(3)],
    )  # fmt: skip
    texts = [json.loads(line)["text"] for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert len(set(texts)) == 3
    assert all(len(set(text.split())) > 1 for text in texts)
    assert any("several places" in line and "add up" in line for line in found.not_covered)


def test_public_inputs_are_assumed_with_their_digests(tmp_path: Path) -> None:
    listed = PublicInput(what="the list", name="l.txt", sha256="ab" * 32, checked="looked at")
    found = certified(tmp_path, made("santext+"), public=[listed])
    assert (
        f"The word vectors (little, SHA-256 {little().digest}): public, and independent of the "
        "private text." in found.assumptions
    )
    said = f"The list (l.txt, SHA-256 {'ab' * 32}): public, and independent of the private text"
    assert f"{said} (looked at)." in found.assumptions
    own = certified(tmp_path / "own", Sanitizer(open_embeddings(), Recipe("santext", 1.0)))
    assert "made by this package" in own.assumptions[2]


# --- figures --------------------------------------------------------------------------------------


def test_any_other_word_is_not_the_word_itself(tmp_path: Path) -> None:
    points = little().vectors.astype(np.float64)
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    wanted = np.quantile(apart[~np.eye(len(points), dtype=bool)], [0.1, 0.5, 0.9])
    found = certified(tmp_path, made("santext")).reach["any other word"].distance
    np.testing.assert_allclose(list(found.values()), wanted, rtol=1e-6)


def test_every_printed_figure_is_rounded_up(tmp_path: Path) -> None:
    work = made("santext+", epsilon=1.23456789, rate=0.37)
    found = certified(tmp_path, work)
    assert "exp(1.235 d)" in found.sentence
    assert "exp(1.235 d + 0.9943)" in found.sentence
    page = pages(found)["certificate.md"]
    for reach in found.reach.values():
        for value in (*reach.epsilon.values(), *reach.distance.values(), *reach.texts.values()):
            nearest = min(
                (float(x) for x in re.findall(r"(?<![\w.])\d+\.?\d*(?![\w.])", page)),
                key=lambda x: abs(x - value),
            )
            assert nearest >= value - 1e-9


def test_sums_are_rounded_by_less_than_is_stated(tmp_path: Path) -> None:
    """The total by which rounded sums change a row of probabilities, in exact arithmetic."""
    work = made("santext", embedding=little(3000), epsilon=1.7)
    found = certified(tmp_path, work)
    (stated,) = (a for a in found.assumptions if a.startswith("Draws have 53 bits"))
    total = float(re.search(r"a total of (\S+) for", stated).group(1))
    assert 3000 * 2.0**-51 <= total < 3000 * 2.0**-50
    weights = work.space.weights(np.array([0, 5]), 1.7)
    for row in weights:
        exact = [Fraction(float(w)) for w in row]
        whole = sum(exact)
        sums = [Fraction(0), *(Fraction(float(s)) for s in np.cumsum(row))]
        off = sum(
            abs((after - before) / sums[-1] - w / whole)
            for before, after, w in zip(sums, sums[1:], exact, strict=False)
        )
        # A quarter is for the sums; the rest for the draw's own 53 bits.
        assert 0 < off / 2 <= total / 4


def test_distances_are_rounded_by_less_than_is_stated() -> None:
    rng = np.random.default_rng(3)
    vectors = (rng.standard_normal((120, 300)) * 7 + 40).astype(np.float32)
    vectors[1] = vectors[0]  # twins, whose distance comes out as the root of an error
    vectors[3] = vectors[2] + np.float32(1e-5)
    found = Space(vectors).distances(np.arange(120))
    wide = vectors.astype(np.longdouble)
    exact = np.sqrt(((wide[:, None] - wide[None, :]) ** 2).sum(2)).astype(np.float64)
    # Four distances enter a factor, each with half its weight.
    assert 2 * np.abs(found - exact).max() <= 5e-6 * exact.max()


# --- ledgers that cannot be -----------------------------------------------------------------------


def event(**changed: object) -> SanitizedText:
    fields: dict[str, Any] = dict(
        mechanism="santext", epsilon_per_distance=1.0, vocabulary=9, output_vocabulary=9,
        unknown="random",
    )  # fmt: skip
    return SanitizedText(**{**fields, **changed})


def books(folder: Path, *events: object, **about: object) -> LedgerContents:
    facts = {
        "data": "hmac", "randomness": "system", "context": {}, "public": [], "distances": {},
        "columns": ["text"], "leaks": [], **about,
    }  # fmt: skip
    with Ledger(folder / "ledger.jsonl", {k: v for k, v in facts.items() if v is not None}) as out:
        for one in events:
            out.charge(one)  # type: ignore[arg-type]
    return read_ledger(folder / "ledger.jsonl")


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([event(), event()], "several releases"),
        ([event(), event(unknown="keep")], "several releases"),
        ([event(), NotPrivate(what="the text itself")], "another kind"),
        ([event(), Public(what="the text itself")], "another kind"),
        ([Public(what="the text itself")], "another kind"),
        ([], "another kind"),
    ],
)
def test_a_ledger_is_about_one_release(tmp_path: Path, events: list, says: str) -> None:
    with pytest.raises(PrivacyRefused, match=says):
        issue_local(books(tmp_path, *events), {})


@pytest.mark.parametrize(
    "about",
    [
        {"leaks": None},
        {"leaks": "none"},
        {"columns": None},
        {"public": [{"what": "x"}]},
        {"unheard": 1},
        {"randomness": "dice"},
        {"distances": {"any word": {"median": 1.0}}},
    ],
)
def test_a_first_line_that_says_too_little_or_too_much_is_refused(
    tmp_path: Path, about: dict
) -> None:
    issue_local(books(tmp_path, event()), {})
    (tmp_path / "other").mkdir()
    with pytest.raises(DataError, match="ledger's"):
        issue_local(books(tmp_path / "other", event(), **about), {})
