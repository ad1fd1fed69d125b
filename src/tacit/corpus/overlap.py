"""Is what is called public really another text? Refuse private text that comes in as public.

A vocabulary, starting weights, word vectors or a list of sensitive words may be made from *public*
text, which a guarantee then takes as given. If that text is the private corpus, or a part of it,
the guarantee is false. Both texts are cut into pieces, and the share of each one's pieces that
stand in the other is counted, so that neither a few private records in a large public text nor a
public text that is a small part of the private one goes through:

    records     whole, from five words
    sentences   up to a full stop or the end of a line, from five words: finds records that were
                joined into one document, and documents that were cut into lines
    runs        any thirteen words in a row, across the ends of records too: finds text that was cut
                or joined elsewhere
    copies      whole records of any length; "thank you" stands in any two corpora, so that only
                half of all of them being the same counts

Words are compared after Unicode NFKC and case folding, without punctuation, spacing and invisible
characters, as 64-bit hashes, and each piece is counted once. At most four million hashes of a kind
are kept; beyond that, the same random part of both texts is compared.

What this cannot find: a translation or a paraphrase; words exchanged so often that no five between
two full stops and no thirteen in a row are left; short records that were put in another order and
joined without full stops and line breaks; records of fewer than five words, unless they are half of
a text; what was compressed, encoded or counted; less than the stated share, which may be all that
one person wrote. Nor does passing prove independence: that stays an assumption, and is stated as
one. Text that this package generates needs no comparison: it is made without looking at any other.
"""

import filecmp
import hashlib
import re
import unicodedata
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from tacit.corpus import Corpus
from tacit.corpus.description import mix
from tacit.errors import DataError, PrivacyRefused
from tacit.privacy.arguments import check_probability

Texts: TypeAlias = Corpus | Iterable[str]
Piece = Literal["records", "sentences", "runs", "copies", "words"]
COMPARED: tuple[Piece, ...] = ("records", "sentences", "runs", "copies")

LIMIT = 0.01
"""The share of pieces that two texts may have in common and still be called independent.

Measured on eight public corpora, two by two: at most 0.0003 where origins differ. Parts of one
collection (training and test text) have 0.0001 to 0.4.
"""
SAME = 0.5
"""The same for `copies`."""
SAME_WORDS = 0.9
"""The same for lists of words, as a share of what either has."""
RUN = 13
"""Words of a run; contamination of test sets is searched with the same length."""
SHORTEST = 5
"""Words of the shortest record or sentence that can be somebody's in particular."""

KEPT = 1 << 22
"""How many hashes of a kind of piece are kept of a text: 32 MB."""
_WORDS_AT_ONCE = 1 << 16
_CHARACTERS_AT_ONCE = 1 << 20
_REMEMBERED = 1 << 20

Hashes = NDArray[np.uint64]
# Scripts that are written without blanks are cut into as many characters as a word has of them.
_HAN, _THAI = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff", "\u0e00-\u0eff\u1780-\u17ff"
_WORD = re.compile(f"[{_HAN}]{{1,2}}|[{_THAI}]{{1,4}}|[^\\W{_HAN}{_THAI}]+")
_END = re.compile("[.!?\u2026](?=\\s|$)|[\r\n\v\f\x1c-\x1e\x85\u2028\u2029\u3002\uff01\uff1f]")
_INVISIBLE = re.compile("[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 1 << 64)


@dataclass(frozen=True)
class Independence:
    """What was compared, and what may be said of it.

    `checked` is for a certificate; `shares` are exact figures about private text and stay inside.
    """

    what: str
    digest: str
    texts: int
    limit: float
    shares: Mapping[str, float] = field(repr=False)

    @property
    def checked(self) -> str:
        """How it was compared, and what came out: true of whatever was not refused."""
        return (
            f"no more than {self.limit * 100:.4g} % of the records, sentences and runs of {RUN} "
            "words of either were found in the other; what was reworded or translated is not found "
            "so"
        )


def require_independent(
    private: "Texts | Pieces",
    public: "Texts | Pieces",
    *,
    what: str,
    limit: float = LIMIT,
    files: tuple[Path, Path] | None = None,
) -> Independence:
    """Refuse public text that is private text, whole or in a share above the limit.

    `what` names the public text in a sentence ("tokenizer.public_text wiki.txt"); `files` are the
    private and the public file, where there are such. Both texts are read once, in order, a part
    in memory at a time; give `read_pieces(private)` to compare several public texts with one
    private. That this refuses is a fact about private text: tell nobody but whoever holds it.
    """
    check_probability("limit", limit)
    if files is not None:
        require_other_file(*files, what=what)
    ours = private if isinstance(private, Pieces) else read_pieces(private)
    theirs = public if isinstance(public, Pieces) else read_pieces(public)
    if not theirs.texts:
        raise DataError(f"{what} holds no text; give at least one line.")
    found = shares(ours, theirs)
    for name, share in found.items():
        most = SAME if name.startswith("copies") else limit
        if share > most:
            _refuse(what, name, share, most)
    return Independence(what, theirs.digest, theirs.texts, limit, found)


def require_other_file(private: Path, public: Path, *, what: str) -> None:
    """Refuse the private file itself, or a copy of it under another name, as public text."""
    if not (private.is_file() and public.is_file()):
        return
    same = private.samefile(public)
    if not same and private.stat().st_size == public.stat().st_size:
        same = filecmp.cmp(private, public, shallow=False)
    if same:
        raise PrivacyRefused(f"{what} is the private corpus itself; {_OTHER}.")


def require_other_words(private: "Texts | Pieces", words: Iterable[str], *, what: str) -> str:
    """Refuse a list of words that is the vocabulary of the private text; say how it was compared.

    A list is refused if nine tenths of all words that either has are in both, or if it holds
    private records as its entries. A list that holds only some words of the private text cannot be
    told from one that was made without it.
    """
    ours = private if isinstance(private, Pieces) else read_pieces(private)
    listed = list(words)
    theirs = read_pieces(listed)
    alike = _common(ours, theirs, "words")
    if alike.both > SAME_WORDS * (alike.ours + alike.theirs - alike.both):
        raise PrivacyRefused(
            f"{what} holds the words of the private text and hardly any other; give a list that "
            "was made without looking at that text."
        )
    long = [entry for entry in listed if len(entry.split()) >= SHORTEST]
    if long:
        require_independent(ours, long, what=what)
    return "it is not the list of all words of that text; a shorter one could not be told"


_OTHER = "give public text that owes nothing to it"


def _refuse(what: str, name: str, share: float, limit: float) -> NoReturn:
    kind, _, whose = name.partition(" of the ")
    other = "public" if whose == "private" else "private"
    if share >= SAME:
        raise PrivacyRefused(
            f"{what} holds private text: {share:.0%} of the {kind} of the {whose} text stand in "
            f"the {other} one; {_OTHER}."
        )
    raise PrivacyRefused(
        f"{what} overlaps with the private text: {share * 100:.4g} % of the {kind} of the {whose} "
        f"text stand in the {other} one, and at most {limit * 100:.4g} % may; take what both have "
        f"out of the public text, or {_OTHER}."
    )


class Pieces:
    """A text as hashes of its pieces, its digest, and how many texts it holds."""

    def __init__(self) -> None:
        self.texts = 0
        self._saved_digest = ""
        self._sha = hashlib.sha256()
        self._kept = {piece: _Sample() for piece in get_args(Piece)}
        self._before = np.zeros(0, dtype=np.uint64)

    @property
    def digest(self) -> str:
        """A SHA-256 over the texts as they came, in their order."""
        return self._saved_digest or self._sha.hexdigest()

    def __getitem__(self, piece: Piece) -> "_Sample":
        return self._kept[piece]

    def note(self, text: str) -> None:
        """Count a text and take it into the digest."""
        raw = text.encode("utf-8", "surrogatepass")
        self._sha.update(f"{len(raw)}:".encode())
        self._sha.update(raw)
        self.texts += 1

    def add(self, words: Hashes, records: Sequence[int], sentences: Sequence[int]) -> None:
        """Add hashed words; `records` and `sentences` say after which word each of them ends."""
        cut: tuple[tuple[Piece, Sequence[int], int], ...] = (
            ("records", records, SHORTEST),
            ("sentences", sentences, SHORTEST),
            ("copies", records, 1),
        )
        for piece, ends, least in cut:
            stops = np.asarray(ends, dtype=np.int64)
            starts = np.r_[0, stops[:-1]] if len(stops) else stops
            long = stops - starts >= least
            self._kept[piece].add(_windows(words, starts[long], stops[long]))
        self._kept["words"].add(words)
        stream = np.concatenate([self._before, words])
        first = np.arange(max(0, len(stream) - RUN + 1))
        self._kept["runs"].add(_windows(stream, first, first + RUN))
        self._before = stream[max(0, len(stream) - RUN + 1) :]

    def save(self, path: Path, most: int | None = None) -> None:
        """Write the hashes, at most so many of a kind, without the text; `load_pieces` reads them.

        Most pieces are of several kinds, so each hash is written once, with a bit for each kind.
        """
        for sample in self._kept.values():
            sample.settle(most)
        kinds = {piece: self._kept[piece] for piece in COMPARED}
        held = {piece: sample.hashes(sample.bits) for piece, sample in kinds.items()}
        every = np.unique(np.concatenate(list(held.values())))
        marks = np.zeros(len(every), dtype=np.uint8)
        for bit, hashes in enumerate(held.values()):
            marks[np.searchsorted(every, hashes)] |= 1 << bit
        bits = np.array([sample.bits for sample in kinds.values()], dtype=np.uint8)
        about = np.array([self.digest, str(self.texts)])
        with path.open("wb") as file:
            np.savez_compressed(file, hashes=every, marks=marks, bits=bits, about=about)

    def settle(self) -> None:
        """Everything was added."""
        for sample in self._kept.values():
            sample.settle()


class _Sample:
    """A set of hashes; when it grows too large, those above a bound are left out.

    The bound depends on nothing but the hashes, so the same part of two sets is left.
    """

    def __init__(self) -> None:
        self._held = np.zeros(0, dtype=np.uint64)
        self._new: list[Hashes] = []
        self._waiting = 0
        self.bits = 64

    def add(self, hashes: Hashes) -> None:
        """Put these into the set."""
        hashes = _below(hashes, self.bits)
        self._new.append(hashes)
        self._waiting += len(hashes)
        if self._waiting > KEPT:
            self.settle()

    @classmethod
    def of(cls, hashes: Hashes, bits: int) -> "_Sample":
        """Hashes that were saved: sorted, each once, of at most so many bits."""
        sample = cls()
        sample._held, sample.bits = hashes, bits
        return sample

    def settle(self, most: int | None = None) -> None:
        """Take in what was added, and leave out what is too much."""
        most = KEPT if most is None else most
        held = np.sort(np.concatenate([self._held, *self._new]))
        held = held[np.r_[True, held[1:] != held[:-1]][: len(held)]]
        while len(held) > most:
            self.bits -= 1
            held = _below(held, self.bits)
        self._held, self._new, self._waiting = held, [], 0

    def hashes(self, bits: int) -> Hashes:
        """Those of at most so many bits, sorted, each once."""
        return _below(self._held, bits)


def _below(hashes: Hashes, bits: int) -> Hashes:
    return hashes if bits == 64 else hashes[hashes < np.uint64(1 << bits)]


def read_pieces(texts: Texts) -> Pieces:
    """Cut texts into pieces, a part in memory at a time."""
    found = Pieces()
    known: dict[str, int] = {}
    words: list[int] = []
    records: list[int] = []
    sentences: list[int] = []
    for text in texts_of(texts):
        found.note(text)
        before = len(words)
        for sentence in _sentences(text):
            first = len(words)
            _hash_words(sentence, known, words)
            if len(words) > first:
                sentences.append(len(words))
        if len(words) > before:
            records.append(len(words))
        if len(words) >= _WORDS_AT_ONCE:
            found.add(np.array(words, dtype=np.uint64), records, sentences)
            words, records, sentences = [], [], []
    found.add(np.array(words, dtype=np.uint64), records, sentences)
    found.settle()
    return found


def load_pieces(path: Path) -> Pieces:
    """The pieces that `Pieces.save` wrote."""
    try:
        with np.load(path, allow_pickle=False) as saved:
            hashes, marks, bits = saved["hashes"], saved["marks"], saved["bits"]
            digest, texts = saved["about"].tolist()
        found = Pieces()
        for bit, piece in enumerate(COMPARED):
            own = hashes[marks & (1 << bit) != 0].astype(np.uint64)
            found._kept[piece] = _Sample.of(own, int(bits[bit]))
        found.texts, found._saved_digest = int(texts), str(digest)
    except (OSError, ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile):
        raise DataError(f"{path} does not hold the hashes of a text; make them again.") from None
    return found


def shares(private: Pieces, public: Pieces) -> dict[str, float]:
    """Of each kind of piece, and of each text, the share that stands in the other text.

    >>> same = [read_pieces(["The night was dark and long."]) for _ in range(2)]
    >>> shares(*same)["sentences of the public"]
    1.0
    """
    found = {}
    for piece in COMPARED:
        common = _common(private, public, piece)
        found[f"{piece} of the private"] = common.both / max(1, common.ours)
        found[f"{piece} of the public"] = common.both / max(1, common.theirs)
    return found


class _Common(NamedTuple):
    """How many pieces two texts have, and how many of these are the same."""

    ours: int
    theirs: int
    both: int


def _common(private: Pieces, public: Pieces, piece: Piece) -> _Common:
    bits = min(private[piece].bits, public[piece].bits)
    ours, theirs = private[piece].hashes(bits), public[piece].hashes(bits)
    return _Common(len(ours), len(theirs), len(np.intersect1d(ours, theirs, assume_unique=True)))


def texts_of(texts: Texts) -> Iterator[str]:
    """Every text; of a corpus, the second text of pairs too."""
    if isinstance(texts, Corpus):
        columns = [name for name in ("text", "pair") if name in texts.columns]
        for batch in texts.table.select(columns).to_batches(max_chunksize=4096):
            for column in columns:
                yield from (text for text in batch.column(column).to_pylist() if text)
    elif isinstance(texts, str):
        yield texts
    else:
        yield from texts


def _sentences(text: str) -> Iterator[str]:
    """Stretches between full stops and line breaks, in one way of writing."""
    for part in _cut(text):
        if not part.isascii():
            part = _INVISIBLE.sub("", unicodedata.normalize("NFKC", part))
        part = part.casefold()
        start = 0
        for end in _END.finditer(part):
            yield part[start : end.start()]
            start = end.end()
        yield part[start:]


def _cut(text: str) -> Iterator[str]:
    """A text in stretches that are easily held in memory, cut at blanks."""
    start = 0
    while start < len(text):
        stop = start + _CHARACTERS_AT_ONCE
        if stop < len(text):
            blank = text.rfind(" ", start, stop)
            stop = blank if blank > start else stop
        yield text[start:stop]
        start = stop


def _hash_words(sentence: str, known: dict[str, int], into: list[int]) -> None:
    for word in _WORD.findall(sentence):
        hashed = known.get(word)
        if hashed is None:
            raw = word.encode("utf-8", "surrogatepass")
            hashed = int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")
            if len(known) >= _REMEMBERED:
                known.clear()
            known[word] = hashed
        into.append(hashed)


def _windows(words: Hashes, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Hashes:
    """A hash of each window of words: a polynomial in an odd base, then mixed.

    Sums of word times base^place are taken once; a window's is the difference of two of them,
    divided by base^start, which an odd number allows modulo 2^64.
    """
    if not len(starts):
        return np.zeros(0, dtype=np.uint64)
    sums = np.zeros(len(words) + 1, dtype=np.uint64)
    np.cumsum(words * _powers(_BASE, len(words)), out=sums[1:])
    found = (sums[stops] - sums[starts]) * _powers(_INVERSE, len(words))[starts]
    found += (stops - starts).astype(np.uint64) * np.uint64(0xD1B54A32D192ED03)
    return mix(found)


def _powers(base: int, count: int) -> Hashes:
    found = np.full(count, base, dtype=np.uint64)
    found[:1] = 1
    return np.cumprod(found, dtype=np.uint64)
