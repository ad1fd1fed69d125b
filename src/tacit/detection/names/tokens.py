"""Words as the network reads them: where they stand, and what is seen of each."""

import re
from zlib import crc32

TOKEN = re.compile(
    r"""
      [\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){0,8}     # an e-mail address
    | (?:https?://|www\.)\S+
    | (?:[^\W\d_]\.)+(?![^\W_])                           # an initial, U.S.
    | \b(?:Mrs?|Ms|Dr|Prof|Sen|Rep|Gen|Col|Lt|Sgt|St|Jr|Sr|Inc|Corp|Ltd|Cos?|Bros|Dept|Univ)\.
    | ['’][sS]\b
    | [^\W\d_]+(?:['’](?![sS]\b)[^\W\d_]+)*               # a word, O'Hara
    | \d+(?:[.,:]\d+)*
    | \n[^\S\n]*(?:\n\s*)?                                # the end of a line, or of a paragraph
    | [^\w\s]
    | _+
    """,
    re.VERBOSE,
)

WORDS, PREFIXES, SUFFIXES, SHAPES = 8192, 2048, 4096, 512
"""How many rows the tables have that the letters of a word are hashed into."""

_REPEATS = re.compile(r"(.)\1{2,}", re.DOTALL)
_DIGIT = re.compile(r"\d")


def plain(word: str) -> str:
    """A word as the lists of words have it: lower case, digits alike; a line end is a sign."""
    if word[0] == "\n":
        return "\n\n" if "\n" in word[1:] else "\n"
    if "@" in word and len(word) > 1:
        return "@mail"
    if word.startswith(("http://", "https://", "www.")):
        return "@link"
    return _DIGIT.sub("0", word.lower().replace("’", "'"))


def shape(word: str) -> str:
    """Capitals, small letters and digits, long runs cut to two.

    >>> shape("McDonald"), shape("USA"), shape("1,500")
    ('XxXxx', 'XX', 'd,dd')
    """
    if word[0] == "\n":
        return "\n"
    letters = (
        "X" if c.isupper() else "x" if c.islower() else "d" if c.isdigit() else c for c in word[:24]
    )
    return _REPEATS.sub(r"\1\1", "".join(letters))


def rows(word: str) -> tuple[int, int, int, int]:
    """The rows of a word in the tables of words, prefixes, suffixes and shapes."""
    low = plain(word)
    return (
        _row(low, WORDS),
        _row(low[:3], PREFIXES),
        _row(low[-3:], SUFFIXES),
        _row(shape(word), SHAPES),
    )


def _row(text: str, size: int) -> int:
    # CRC-32, because Python's own hash of a string is another in every process.
    return crc32(text.encode("utf-8", "replace")) % size
