"""How good a synthetic corpus is: every figure says whether it is private.

What is computed of the synthetic text alone is public. Whatever compares it with private records,
those of other splits included, is exact and stays inside; that nobody learns from a card what the
certificate does not allow rests on nobody being shown those figures.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.vq import kmeans2

from tacit.corpus import Corpus
from tacit.files import write_text
from tacit.saved_json import write_fields
from tacit.synthesis.space import SCALE, Points, Space, likeness

FORMAT, VERSION = "tacit-quality", 1
RUN = 13
"""Words in a row that are somebody's in particular, as in `corpus/overlap.py`."""
_SHARPNESS, _MIXTURES = 5.0, 25
_RIDGE = 1e-3
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Figure:
    """One number of the card; `private` ones compare with private text and stay inside."""

    name: str
    value: float
    private: bool
    says: str


@dataclass(frozen=True)
class Texts:
    """Texts with their points and labels, as the card compares them."""

    texts: list[str]
    points: Points
    labels: list[str | None]

    @classmethod
    def of(cls, corpus: Corpus, space: Space, most: int | None = None) -> "Texts":
        """A corpus, or so many of its records, taken evenly."""
        if most is not None and len(corpus) > most:
            corpus = corpus.take(np.linspace(0, len(corpus) - 1, most).astype(int).tolist())
        texts = corpus.column("text").to_pylist()
        own = "label" in corpus.columns
        labels = corpus.column("label").to_pylist() if own else [None] * len(texts)
        return cls(texts, space.points(texts, "points for the card"), labels)

    def __len__(self) -> int:
        return len(self.texts)


def card(
    made: Texts,
    private: Texts,
    test: Texts | None,
    beside: Mapping[str, Texts] | None = None,
) -> list[Figure]:
    """All figures; `test` are records of users whom nobody learnt from, `beside` other texts."""
    figures = [*_alone(made), *_near(made, private, test), *_alike(made, private, test)]
    figures += _copies(made, private, test)
    if test is not None and any(label is not None for label in test.labels):
        figures += _learning(made, private, test, beside or {})
    return figures


def _alone(made: Texts) -> list[Figure]:
    words = [len(text.split()) for text in made.texts]
    distinct = len({text.casefold() for text in made.texts}) / len(made)
    shares = Counter(label for label in made.labels if label is not None)
    figures = [
        Figure("texts", len(made), False, "how many there are"),
        Figure("distinct", distinct, False, "share of texts that differ from all others"),
        Figure("words", float(np.median(words)), False, "words of a text, the median"),
    ]
    if shares:
        least = min(shares.values()) / len(made)
        figures.append(Figure("rarest label", least, False, "share of the rarest label"))
    return figures


def _near(made: Texts, private: Texts, test: Texts | None) -> list[Figure]:
    """How near the nearest private record is, and how near it is to unseen text."""
    found = [
        Figure("to private", _median(made, private), True,
               "distance of a synthetic text to the nearest private record (0 to 2), the median"),
        Figure("to synthetic", _median(private, made), True,
               "distance of a private record to the nearest synthetic text, the median"),
    ]  # fmt: skip
    if test is not None:
        says = "the same distance of text that nobody learnt from: less is too near"
        found.insert(1, Figure("unseen to private", _median(test, private), True, says))
    return found


def _median(some: Texts, others: Texts) -> float:
    nearest = np.concatenate([p.max(1) for _, p in likeness(some.points, others.points)])
    return float(np.median(1 - nearest / SCALE**2))


def _alike(made: Texts, private: Texts, test: Texts | None) -> list[Figure]:
    """Divergences of words, lengths, labels and clusters of points."""
    figures = [
        Figure("clusters", frontier(made.points, private.points), True,
               "area under the divergence frontier of clusters (as MAUVE; 1 is the same)"),
        Figure("words apart", apart(_words(made), _words(private)), True,
               "Jensen-Shannon divergence of words, in bits (0 is the same, 1 nothing in common)"),
        Figure("lengths apart", _variation(_lengths(made), _lengths(private)), True,
               "total variation of lengths in words, by powers of two"),
    ]  # fmt: skip
    if test is not None:
        unseen = frontier(test.points, private.points)
        says = "the same area of text that nobody learnt from: the most to be had"
        figures.insert(1, Figure("unseen clusters", unseen, True, says))
    own, theirs = (Counter(one for one in t.labels if one is not None) for t in (made, private))
    if own and theirs:
        says = "total variation of labels"
        figures.append(Figure("labels apart", _variation(own, theirs), True, says))
    return figures


def _words(texts: Texts) -> Counter[str]:
    return Counter(word for text in texts.texts for word in text.casefold().split())


def _lengths(texts: Texts) -> Counter[int]:
    return Counter(len(text.split()).bit_length() for text in texts.texts)


def _variation(some: Counter[Any], others: Counter[Any]) -> float:
    own, theirs = some.total(), others.total()
    return sum(abs(some[k] / own - others[k] / theirs) for k in some | others) / 2


def apart(some: Counter[str], others: Counter[str]) -> float:
    """The Jensen-Shannon divergence of two counts, in bits.

    >>> apart(Counter("aab"), Counter("aab")), apart(Counter("a"), Counter("b"))
    (0.0, 1.0)
    """
    own, theirs, total = some.total(), others.total(), 0.0
    for key in some | others:
        p, q = some[key] / own, others[key] / theirs
        middle = (p + q) / 2
        total += sum(x * math.log2(x / middle) for x in (p, q) if x) / 2
    return total


def frontier(some: Points, others: Points, seed: int = 0) -> float:
    """The area under the divergence frontier of two samples, clustered together.

    Source: Pillutla et al. 2021 (MAUVE), with as many of each and k-means of these points.
    """
    count = min(len(some), len(others))
    if count < 2:
        return 0.0
    rng = np.random.default_rng(seed)
    both = np.concatenate([a[rng.permutation(len(a))[:count]] for a in (some, others)]) / SCALE
    kinds = max(2, min(100, count // 10))
    _, own = kmeans2(both.astype(np.float64), kinds, minit="++", seed=seed, missing="warn")
    p, q = (np.bincount(part, minlength=kinds) / count for part in (own[:count], own[count:]))
    at = [(0.0, 1.0), (1.0, 0.0)]
    for share in np.linspace(1e-6, 1 - 1e-6, _MIXTURES):
        mixed = share * p + (1 - share) * q
        near, far = (math.exp(-_SHARPNESS * _relative(one, mixed)) for one in (q, p))
        at.append((near, far))
    at.sort(key=lambda pair: (pair[0], -pair[1]))
    x, y = np.array(at).T
    return float(np.trapezoid(y, x))


def _relative(p: NDArray[np.float64], q: NDArray[np.float64]) -> float:
    own = p > 0
    return float((p[own] * np.log(p[own] / np.maximum(q[own], 1e-300))).sum())


# --- copies -------------------------------------------------------------------------------------


def _copies(made: Texts, private: Texts, test: Texts | None) -> list[Figure]:
    """A search for private text in the synthetic one; it reads both, so it is not private."""
    exact = {" ".join(text.casefold().split()) for text in private.texts}
    whole = sum(" ".join(text.casefold().split()) in exact for text in made.texts)
    longest = longest_shared(made.texts, private.texts)
    figures = [
        Figure("exact copies", whole, True, "synthetic texts that are a private record"),
        Figure("near-copies", int((longest >= RUN).sum()), True,
               f"synthetic texts that share {RUN} words in a row, or more, with a private record"),
        Figure("longest run", int(longest.max(initial=0)), True,
               "words in a row that a synthetic text shares with a private record, at most"),
    ]  # fmt: skip
    if test is not None:
        unseen = longest_shared(made.texts, test.texts)
        says = "the same with records that nobody learnt from: what anybody writes"
        figures.append(Figure("longest unseen run", int(unseen.max(initial=0)), True, says))
    return figures


def longest_shared(texts: Sequence[str], others: Sequence[str], most: int = 40) -> Rows:
    """For each text, how many words in a row it shares with one of the others, up to a limit.

    >>> longest_shared(["a b c d"], ["x b c y", "c d"]).tolist()
    [2]
    """
    known: dict[int, set[int]] = {}
    words = [text.casefold().split() for text in others]

    def runs(size: int) -> set[int]:
        if size not in known:
            known[size] = {
                hash(tuple(own[at : at + size]))
                for own in words
                for at in range(len(own) - size + 1)
            }
        return known[size]

    found = np.zeros(len(texts), dtype=np.int64)
    for number, text in enumerate(texts):
        own = text.casefold().split()
        size = 0
        while size < min(most, len(own)) and any(
            hash(tuple(own[at : at + size + 1])) in runs(size + 1) for at in range(len(own) - size)
        ):
            size += 1
        found[number] = size
    return found


# --- learning from it ---------------------------------------------------------------------------


def _learning(
    made: Texts, private: Texts, test: Texts, beside: Mapping[str, Texts]
) -> list[Figure]:
    """Train on synthetic text, test on real text; and so with everything that it stands beside."""
    figures = []
    sources: dict[str, Texts] = {"synthetic": made, "real": private, **beside}
    for name, texts in sources.items():
        if any(label is not None for label in texts.labels):
            error = error_rate(texts, test, most=len(made))
            says = f"error on the test split of a classifier trained on as many {name} texts"
            figures.append(Figure(f"error, {name}", error, True, says))
    counts = Counter(test.labels)
    guess = 1 - counts.most_common(1)[0][1] / len(test)
    figures.append(Figure("error, guessing", guess, True, "always the most frequent label"))
    return figures


def error_rate(train: Texts, test: Texts, *, most: int | None = None) -> float:
    """The error of ridge regression on points, trained on so many texts taken evenly."""
    rows = [row for row, label in enumerate(train.labels) if label is not None]
    if most is not None and len(rows) > most:
        rows = [rows[at] for at in np.linspace(0, len(rows) - 1, most).astype(int)]
    kinds = sorted({str(train.labels[row]) for row in rows})
    targets = np.array([[label == kind for kind in kinds] for label in
                        (str(train.labels[row]) for row in rows)], dtype=float)  # fmt: skip
    x = np.c_[train.points[rows] / SCALE, np.ones(len(rows))].astype(np.float64)
    weights = np.linalg.solve(x.T @ x + _RIDGE * len(rows) * np.eye(x.shape[1]), x.T @ targets)
    guessed = (np.c_[test.points / SCALE, np.ones(len(test))] @ weights).argmax(1)
    asked = [row for row, label in enumerate(test.labels) if label is not None]
    return float(np.mean([kinds[guessed[row]] != test.labels[row] for row in asked]))


# --- files --------------------------------------------------------------------------------------


def write_card(figures: Sequence[Figure], file: Path) -> tuple[Path, Path]:
    """The card beside a file: FILE.quality.json, and FILE.quality.md for people."""
    stem = Path(file.name.removesuffix(".gz")).stem
    json_file, page = (file.with_name(f"{stem}.quality.{end}") for end in ("json", "md"))
    note = "figures marked private are exact and compare with private text: keep this inside"
    fields = {"format": FORMAT, "version": VERSION, "note": note}
    write_fields(json_file, fields | {"figures": [asdict(one) for one in figures]})
    write_text(page, card_page(figures, file.name))
    return json_file, page


def card_page(figures: Sequence[Figure], name: str) -> str:
    """The card in Markdown."""
    rows = "".join(
        f"| {one.name} | {one.value:.4g} | {'**private**' if one.private else 'public'} "
        f"| {one.says} |\n"
        for one in figures
    )
    return (
        f"# Quality of {name}\n\nFigures marked **private** are exact and compare with private "
        "text: no noise is in them and no certificate covers them. Keep this card inside.\n\n"
        f"| figure | value | is | says |\n|---|---|---|---|\n{rows}"
    )
