"""Tags of texts in which names were replaced: they know the place and not the name."""

import random

import pytest

from tacit.errors import DataError
from tacit.training.data.tagged_words import Replaced, TaggedWords, filled, retagged


def tagged(*pairs: str) -> TaggedWords:
    words, tags = zip(*(pair.split("/") for pair in pairs), strict=True)
    return TaggedWords(words, tags)


@pytest.mark.parametrize(
    ("own", "text", "replaced", "made"),
    [
        (("ask/VB", "Bo/NNP", "Li/FW"), "ask Bo Li", [(4, 9, "Ann Lee Roe")],
         ("ask/VB", "Ann/NNP", "Lee/NNP", "Roe/NNP")),
        (("Bo/B-PER", "Li/I-PER", "'s/O"), "Bo Li's", [(0, 5, "Ann Roe")],
         ("Ann/B-PER", "Roe/I-PER", "'s/O")),
        (("Bo's/NNP", "cat/NN"), "Bo's cat", [(0, 2, "Ann Roe")],
         ("Ann/NNP", "Roe's/NNP", "cat/NN")),
        (("x-Bo/NNP", "Li-y/FW"), "x-Bo Li-y", [(2, 7, "Ann")], ("x-Ann-y/NNP",)),
        (("Bo/NNP", "Li/NN"), "Bo Li", [(0, 2, "Ann"), (3, 5, "Eve")], ("Ann/NNP", "Eve/NN")),
        (("Bo-Li/NNP", "ran/VB"), "Bo-Li ran", [(0, 2, "Ann"), (3, 5, "Eve Roe")],
         ("Ann-Eve/NNP", "Roe/NNP", "ran/VB")),
    ],
)  # fmt: skip
def test_a_place_has_the_tag_of_its_first_word(
    own: tuple[str, ...], text: str, replaced: list[tuple[int, int, str]], made: tuple[str, ...]
) -> None:
    given = [Replaced(*one, kept=False) for one in replaced]
    found = retagged(text, tagged(*own), given)
    assert found == tagged(*made)
    assert found.spans(filled(text, given))  # they are all of the new text


def test_a_shown_name_keeps_the_tags_of_its_own_words() -> None:
    own = tagged("Bank/NNP", "of/IN", "Bo/NNP", "fell/VB")
    assert retagged("Bank of Bo fell", own, [Replaced(0, 10, "Bank of Bo", True)]) == own


def test_tags_know_nothing_of_the_name() -> None:
    """Whatever name stood there, of however many words with whatever tags: the same words."""
    rng = random.Random(3)
    for _ in range(300):
        plain = [("a", "b,", "(c", "d.")[rng.randrange(4)] for _ in range(5)]
        at = rng.randrange(5)
        made = []
        for words in (1, 3):
            name = [f"N{rng.randrange(9)}" for _ in range(words)]
            before = " ".join(plain[:at])
            text = " ".join([*plain[:at], *name, *plain[at:]])
            start = len(before) + (1 if before else 0)
            tags = ["O"] * at + ["T"] + ["X"] * (words - 1) + ["O"] * (5 - at)
            own = TaggedWords((*plain[:at], *name, *plain[at:]), tuple(tags))
            end = start + len(" ".join(name))
            made.append(retagged(text, own, [Replaced(start, end, "Ann Roe", False)]))
        assert made[0] == made[1]


@pytest.mark.parametrize("text", ["ask Bo Li", "tell Bo", "ask  Bo, now"])
def test_words_that_are_not_the_text_are_refused_without_quoting_it(text: str) -> None:
    with pytest.raises(DataError, match="cover the text") as told:
        retagged(text, tagged("ask/VB", "Bo/NNP"), [])
    assert "Bo" not in str(told.value)
