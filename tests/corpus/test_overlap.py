"""Public text that is private text: found however it was written down, and never quoted."""

import gzip
import random
import re
import shutil
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit import corpora
from tacit.corpus import Corpus, overlap
from tacit.corpus.overlap import (
    read_pieces,
    require_independent,
    require_other_file,
    require_other_words,
    shares,
)
from tacit.errors import DataError, PrivacyRefused, UsageError

WORDS = [a + b for a in "bdfgklmnprst" for b in ("ada", "eno", "iro", "olu", "umi", "yra", "anda")]
SECRET = "badaxyz"


def sentences(seed: int, count: int, least: int = 6, most: int = 20) -> list[str]:
    rng = random.Random(seed)
    return [
        " ".join(rng.choices(WORDS, k=rng.randint(least, most))).capitalize() + "."
        for _ in range(count)
    ]


PRIVATE = sentences(1, 400)
OTHER = sentences(2, 400)


def refused(private: object, public: object, says: str = "private text") -> str:
    with pytest.raises(PrivacyRefused, match=says) as found:
        require_independent(private, public, what="--some-text a.txt")  # type: ignore[arg-type]
    assert str(found.value).startswith("--some-text a.txt ")
    return str(found.value)


def test_other_text_goes_through_and_is_named_by_a_digest() -> None:
    found = require_independent(PRIVATE, OTHER, what="the text a.txt")
    assert set(found.shares.values()) == {0.0}
    assert found.texts == 400
    assert "no more than 1 % of the records" in found.checked
    # It names the public text alone, exactly as it stands.
    assert require_independent(OTHER[:3], iter(OTHER[3:]), what="x").digest != found.digest
    assert require_independent(PRIVATE[:9], OTHER, what="x").digest == found.digest
    assert require_independent(PRIVATE, [t + " " for t in OTHER], what="x").digest != found.digest
    moved = [OTHER[0] + OTHER[1][:3], OTHER[1][3:], *OTHER[2:]]
    assert require_independent(PRIVATE, moved, what="x").digest != found.digest


def shuffled(texts: list[str]) -> list[str]:
    return random.Random(3).sample(texts, len(texts))


def bare(texts: list[str]) -> list[str]:
    return [text.rstrip(".") for text in texts]


REWRITTEN = {
    "as it stands": PRIVATE,
    "in another order": shuffled(PRIVATE),
    "in capitals": [t.upper() for t in PRIVATE],
    "in wide letters": [
        "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in t) for t in PRIVATE
    ],
    "with invisible characters": [re.sub(r"\B", "\u200b", t) for t in PRIVATE],
    "spaced out": [t.replace(" ", " \t\u00a0") for t in PRIVATE],
    "without punctuation": bare(PRIVATE),
    "in quotes": [f"« {t} »" for t in PRIVATE],
    "one document of lines": ["\n".join(shuffled(PRIVATE))],
    "one document of sentences": [" ".join(shuffled(PRIVATE))],
    "one document without any marks": [" ".join(bare(PRIVATE))],
    "a part of it": PRIVATE[:40],
    "one record of it": PRIVATE[7:8],
    "cut in the middle of records": " ".join(PRIVATE).replace(" ", "\n", 1).split("di"),
    "lines of eighty characters": [
        " ".join(PRIVATE)[n : n + 80] for n in range(0, len(" ".join(PRIVATE)), 80)
    ],
    "among much other text": [*sentences(4, 4000), *PRIVATE],
    "a fiftieth of it, among as much other text": [*OTHER, *PRIVATE[::50]],
}


@pytest.mark.parametrize("how", REWRITTEN)
def test_private_text_is_found(how: str) -> None:
    refused(PRIVATE, REWRITTEN[how])
    # However the private text is cut itself.
    refused([" ".join(PRIVATE)], REWRITTEN[how])


SHORT = sentences(10, 300, 5, 8)


@pytest.mark.parametrize(
    ("private", "public"),
    [
        ([". ".join(PRIVATE)], [*OTHER, *PRIVATE[:40]]),
        # A small private text in a large public one, and the other way round.
        (PRIVATE[:20], [*sentences(4, 4000), *PRIVATE[:20]]),
        ([*sentences(4, 4000), *PRIVATE[:20]], PRIVATE[:20]),
        # Too short for runs: found as sentences.
        (SHORT, ["\n".join(shuffled(SHORT))]),
        (["\n".join(shuffled(SHORT))], SHORT),
        (["Yes.", "No.", "Thank you", "Good bye"], ["yes", "good bye", "no"]),
        (["猫が窓の外を静かに見ていた。犬は庭で眠っていた。"], ["犬は庭で眠っていた"]),
    ],
)
def test_private_text_of_other_shapes_is_found(private: list[str], public: list[str]) -> None:
    refused(private, public)


def test_second_texts_of_pairs_are_looked_at_on_both_sides() -> None:
    rows = [
        {"id": str(n), "text": one, "pair": two}
        for n, (one, two) in enumerate(zip(PRIVATE, OTHER, strict=True))
    ]
    corpus = Corpus.from_records(rows)
    refused(corpus, OTHER)
    refused(OTHER, corpus)
    require_independent(corpus, sentences(5, 50), what="x")


def test_the_limit_is_what_it_says() -> None:
    """400 records of one sentence each: four of them are 1 %, and five are more."""
    private, public = sentences(6, 400, 5, 12), sentences(7, 400, 5, 12)
    allowed = [*private[:4], *public[:-4]]
    found = require_independent(private, allowed, what="x")
    for piece in ("records", "sentences", "copies"):
        assert found.shares[f"{piece} of the private"] == 4 / 400
        assert found.shares[f"{piece} of the public"] == 4 / 400
    said = refused(private, [*private[:5], *public[:-5]])
    assert "1.25 % of the records of the private text" in said
    assert "at most 1 % may" in said
    require_independent(private, [*private[:5], *public[:-5]], what="x", limit=0.0125)
    with pytest.raises(PrivacyRefused, match="overlaps"):
        require_independent(private, [private[0], *public], what="x", limit=0)
    with pytest.raises(UsageError, match="limit=2"):
        require_independent(private, public, what="x", limit=2)


def test_short_phrases_that_everybody_says_do_not_count() -> None:
    polite = ["Yes.", "Thank you!", "ok", "Good morning to you"]
    found = require_independent([*PRIVATE, *polite], [*OTHER, *polite], what="x")
    assert found.shares["records of the private"] == 0
    assert found.shares["copies of the private"] == 4 / 404
    # Said a thousand times, they are still the same four.
    require_independent([*PRIVATE, *polite * 1000], [*OTHER, *polite * 1000], what="x")


def test_shares_are_the_shares_of_distinct_pieces() -> None:
    one = ["a b c d e f", "a b c d e f", "g h i j k"]
    two = ["g h i j k", *[f"{n} {n} {n} {n} {n}" for n in range(3)]]
    found = shares(read_pieces(one), read_pieces(two))
    assert found["records of the private"] == 1 / 2
    assert found["records of the public"] == 1 / 4
    # 17 words have five runs of 13 across records, 20 words eight; none is the same.
    assert found["runs of the private"] == found["runs of the public"] == 0


def test_runs_go_on_over_records_and_over_what_is_read_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = [f"w{n}" for n in range(500)]
    whole = read_pieces([" ".join(words)])
    expected = set(whole["runs"].hashes(64).tolist())
    assert len(expected) == 488
    monkeypatch.setattr(overlap, "_WORDS_AT_ONCE", 7)
    monkeypatch.setattr(overlap, "_CHARACTERS_AT_ONCE", 30)
    for size in (1, 4, 20, 499):
        parts = [" ".join(words[n : n + size]) for n in range(0, 500, size)]
        assert set(read_pieces(parts)["runs"].hashes(64).tolist()) == expected


def test_a_large_text_is_compared_by_a_part_that_is_the_same_in_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overlap, "KEPT", 200)
    private, other = sentences(8, 3000), sentences(9, 3000)
    ours = read_pieces(private)
    for piece in ("records", "sentences", "runs", "copies"):
        assert len(ours[piece].hashes(64)) <= 200
        assert ours[piece].bits < 64
    # The small one is kept whole, and compared only as far as the large one was kept.
    found = shares(ours, read_pieces(private[:150]))
    assert found["records of the public"] == 1
    half = shares(ours, read_pieces([*private[:1500], *other[:1500]]))
    assert half["records of the public"] == pytest.approx(0.5, abs=0.15)
    require_independent(private, other, what="x")
    refused(private, [*other, *private[:600]])


def test_no_message_quotes_a_text() -> None:
    private = [f"{SECRET} {text}" for text in PRIVATE]
    for public in (private, [*OTHER, *private[:20]], [" ".join(private)]):
        assert SECRET not in refused(private, public).lower()
    found = require_independent(private, OTHER, what="x")
    assert SECRET not in repr(found) + found.checked


@pytest.mark.parametrize("public", [[], iter(())])
def test_public_text_without_text_is_refused(public: object) -> None:
    with pytest.raises(DataError, match="holds no text"):
        require_independent(PRIVATE, public, what="x")  # type: ignore[arg-type]


def test_the_private_file_under_any_name(tmp_path: Path) -> None:
    private, copy, other = (tmp_path / name for name in ("a.txt", "b.txt", "c.txt"))
    private.write_text("\n".join(PRIVATE))
    shutil.copy(private, copy)
    other.write_text("\n".join(OTHER))
    (tmp_path / "link.txt").symlink_to(private)
    for name in ("a.txt", "b.txt", "link.txt"):
        with pytest.raises(PrivacyRefused, match="--text is the private corpus itself"):
            require_other_file(private, tmp_path / name, what="--text")
    require_other_file(private, other, what="--text")
    require_other_file(private, tmp_path / "none.txt", what="--text")
    with pytest.raises(PrivacyRefused, match="itself"):
        require_independent(PRIVATE, OTHER, what="--text", files=(private, copy))
    require_independent(PRIVATE, OTHER, what="--text", files=(private, other))
    # Packed, it is another file with the same text.
    packed = tmp_path / "d.gz"
    packed.write_bytes(gzip.compress(private.read_bytes()))
    require_other_file(private, packed, what="--text")


def test_a_list_of_the_private_texts_words() -> None:
    private = [f"own{n % 90} words{n % 70} of mine" for n in range(500)]
    counted = sorted({word for text in private for word in text.split()})
    for words in (counted, [w.upper() for w in counted], counted[:-5], [*counted, "one", "two"]):
        with pytest.raises(PrivacyRefused, match="the words of the private text"):
            require_other_words(private, words, what="--vocabulary v.txt")
    with pytest.raises(PrivacyRefused, match="holds private text"):
        require_other_words(PRIVATE, ["one", "two", PRIVATE[3]], what="--vocabulary v.txt")
    # Few of them, or all of them among many others, may be public.
    assert "could not be told" in require_other_words(private, counted[:80], what="x")
    require_other_words(private, [*counted, *(f"x{n}" for n in range(60))], what="x")


def test_private_pieces_can_be_read_once() -> None:
    ours = read_pieces(PRIVATE)
    refused(ours, PRIVATE[:9])
    assert require_independent(ours, OTHER, what="x") == require_independent(
        PRIVATE, OTHER, what="x"
    )


@settings(max_examples=150)
@given(st.text(max_size=80), st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]))
def test_any_text_is_read_and_is_the_same_as_itself(text: str, form: str) -> None:
    one, two = read_pieces([text]), read_pieces([unicodedata.normalize(form, text)])  # type: ignore[arg-type]
    assert one["words"].hashes(64).tolist() == two["words"].hashes(64).tolist()
    assert one["copies"].hashes(64).tolist() == two["copies"].hashes(64).tolist()


def test_real_corpora_of_other_origins(data_dir: Path) -> None:
    wiki, news = (corpora.load(name, data_dir) for name in ("wikitext2", "conll2003"))
    found = require_independent(wiki, news, what="x")
    assert max(v for name, v in found.shares.items() if "copies" not in name) < 0.001
    refused(news, [" ".join(news.column("text").to_pylist()[:2000])])
