"""Make src/tacit/sanitizing/own_vectors.npz: word vectors from text that the project generates.

    python tools/own_vectors.py            # writes the file
    python tools/own_vectors.py --check    # exit 1 if its words are not what would be made

The text is made of CustomerSim dialogs of a fixed seed, the project's own short text, and one line
for each term of the detectors' lists. Vectors are those of a truncated singular value decomposition
of shifted positive pointwise mutual information (Levy and Goldberg 2014) in windows of five words,
scaled so that distances are of the size that GloVe's are: the same epsilon means about the same.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import svds

from tacit.corpora import customersim
from tacit.sanitization.words import bare_words

OUT = Path(__file__).resolve().parent.parent / "src/tacit/sanitizing/own_vectors.npz"
DIALOGS, SEED = 12_000, 20_210_802
WINDOW, DIMS, MIN_COUNT = 5, 50, 2
MEDIAN_DISTANCE = 7.0
"""What the median distance of two words is made; about that of GloVe's 100-d vectors."""


def texts() -> Iterator[str]:
    """All of it made by the project."""
    own = resources.files("tacit.training").joinpath("public.txt").read_text(encoding="utf-8")
    yield from own.splitlines()
    for record in customersim.stream(DIALOGS, SEED):
        yield record.text
    for file in sorted((resources.files("tacit.detection") / "terms").iterdir(), key=str):
        kind = Path(file.name).stem.replace("_", " ")
        for line in file.read_text(encoding="utf-8").splitlines():
            if line.strip() and not line.startswith("#"):
                # Twice, so that a term is kept, beside the kind of thing that it is.
                yield f"{kind} : {line.strip()}"
                yield f"{line.strip()} , {kind}"


def sentences() -> Iterator[list[str]]:
    for text in texts():
        yield [word.lower() for word in bare_words(text)]


def vocabulary() -> list[str]:
    """Words without digits that come often enough, most frequent first; single digits too."""
    counts = Counter(word for words in sentences() for word in words)
    kept = [
        (word, count)
        for word, count in counts.items()
        if count >= MIN_COUNT and (len(word) == 1 or not any(c.isdigit() for c in word))
    ]
    return [word for word, _ in sorted(kept, key=lambda item: (-item[1], item[0]))]


def vectors(words: list[str]) -> np.ndarray:
    place = {word: number for number, word in enumerate(words)}
    pairs: Counter[tuple[int, int]] = Counter()
    for sentence in sentences():
        ids = [place[word] for word in sentence if word in place]
        for at, word in enumerate(ids):
            for other in ids[at + 1 : at + 1 + WINDOW]:
                pairs[word, other] += 1
                pairs[other, word] += 1
    rows, columns = (np.array([p[i] for p in pairs]) for i in (0, 1))
    counts = np.array(list(pairs.values()), dtype=float)
    total = counts.sum()
    sums = np.bincount(rows, counts, minlength=len(words))
    # Smoothed contexts: rare ones would otherwise weigh too much.
    context = sums**0.75 / (sums**0.75).sum()
    strength = np.log(counts / total) - np.log(sums[rows] / total) - np.log(context[columns])
    table = csr_matrix((np.maximum(strength, 0), (rows, columns)), shape=(len(words),) * 2)
    left, values, _ = svds(table, k=DIMS, v0=np.ones(len(words)), which="LM")
    found = left * np.sqrt(values)
    # The sign of a singular vector is arbitrary: its largest entry is made positive.
    found *= np.sign(found[np.abs(found).argmax(0), np.arange(DIMS)])
    # Words of like use may share a row; a trace of each word's own keeps points apart.
    found += 1e-3 * np.random.default_rng(SEED).standard_normal(found.shape)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    probe = found[np.random.default_rng(1).choice(len(found), min(1000, len(found)), False)]
    apart = np.sqrt(np.maximum(2 - 2 * probe @ probe.T, 0))
    scale = MEDIAN_DISTANCE / np.median(apart[np.triu_indices(len(probe), 1)])
    return (found * scale).astype(np.float16)


def main() -> None:
    words = vocabulary()
    if "--check" in sys.argv:
        with np.load(OUT) as arrays:
            sys.exit(0 if arrays["words"].tolist() == words else 1)
    np.savez_compressed(OUT, words=np.array(words), vectors=vectors(words))
    print(f"{len(words):,} words, {OUT.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
