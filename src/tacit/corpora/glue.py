"""SST-2, QNLI and STS-B: sentence tasks without users, so records are dealt to users."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from tacit.corpora import NamedCorpus
from tacit.corpora.dealing import dealt
from tacit.corpora.sources import bad_line, find, need, read_lines, require_rows

SENTIMENTS = {"0": "negative", "1": "positive"}
ENTAILMENTS = {"entailment": "entailment", "not_entailment": "not_entailment"}
_STS_COLUMNS = ("genre", "file", "year", "id", "score", "sentence1", "sentence2")


@dataclass
class Rows:
    """The labelled rows of one split, before they have users."""

    texts: list[str] = field(default_factory=list)
    pairs: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)

    def take(self, rows: Sequence[int]) -> "Rows":
        """The rows of these numbers."""
        pairs = [self.pairs[r] for r in rows] if self.pairs else []
        return Rows([self.texts[r] for r in rows], pairs, [self.labels[r] for r in rows])


def read_sst2(folder: Path, seed: int) -> pa.Table:
    """Train, and dev as valid; labels are negative and positive."""
    paths = {
        "train": need(folder, "sst2", "train.tsv"),
        "valid": need(folder, "sst2", "dev.tsv"),
    }
    if test := _labelled(folder, "test.tsv"):
        paths["test"] = test
    return _build(
        {s: (_read_named(p, "sentence", None, SENTIMENTS), p) for s, p in paths.items()}, seed
    )


def read_qnli(folder: Path, seed: int) -> pa.Table:
    """The question is `text`, the sentence `pair`; without a train file dev is split in two.

    A fifth of dev is then test, drawn by the seed. Rows without a label are left out: the
    public test file has none.
    """
    columns = ("question", "sentence", ENTAILMENTS)
    dev = need(folder, "qnli", "dev.tsv")
    train = find(folder, "train.tsv")
    dev_rows = _read_named(dev, *columns)
    if train is None:
        order = np.random.default_rng([seed, 3]).permutation(len(dev_rows.texts))
        cut = len(order) - len(order) // 5
        return _build(
            {
                "train": (dev_rows.take(np.sort(order[:cut]).tolist()), dev),
                "test": (dev_rows.take(np.sort(order[cut:]).tolist()), dev),
            },
            seed,
        )
    parts = {"train": (_read_named(train, *columns), train), "valid": (dev_rows, dev)}
    if test := _labelled(folder, "test.tsv"):
        parts["test"] = (_read_named(test, *columns), test)
    return _build(parts, seed)


def read_stsb(folder: Path, seed: int) -> pa.Table:
    """Two sentences and how alike they are, 0 to 5; the score's own digits are the label."""
    if find(folder, "sts-train.csv") is None and find(folder, "train.tsv") is not None:
        paths = {
            "train": need(folder, "stsb", "train.tsv"),
            "valid": need(folder, "stsb", "dev.tsv"),
        }
    else:
        names = {"train": "sts-train.csv", "valid": "sts-dev.csv", "test": "sts-test.csv"}
        paths = {split: need(folder, "stsb", name) for split, name in names.items()}
    return _build({split: (_read_scored(path), path) for split, path in paths.items()}, seed)


def _build(parts: dict[str, tuple[Rows, Path]], seed: int) -> pa.Table:
    # A split may end up with no row; a file may not.
    return pa.concat_tables(
        dealt(path, split, seed, rows.texts, rows.labels, rows.pairs)
        for split, (rows, path) in parts.items()
        if rows.texts
    )


def _labelled(folder: Path, name: str) -> Path | None:
    """A file that may be there, if it is and has labels."""
    path = find(folder, name)
    return path if path is not None and "label" in _lines(path)[0].split("\t") else None


def _lines(path: Path) -> list[str]:
    lines = read_lines(path)
    require_rows(path, lines, "a header and rows, separated by tabs")
    return lines


def _read_named(path: Path, text: str, pair: str | None, labels: dict[str, str]) -> Rows:
    """The rows of a tab-separated file whose header names the columns; quotes are text."""
    lines = _lines(path)
    require_rows(path, lines[1:], "a header and rows, separated by tabs")
    header = lines[0].split("\t")
    wanted = [text, "label", *([pair] if pair else [])]
    if any(name not in header for name in wanted):
        raise bad_line(path, 1, f"the header does not name {', '.join(wanted)} (tab-separated)")
    text_at, label_at = header.index(text), header.index("label")
    pair_at = header.index(pair) if pair else None
    rows = Rows()
    for number, line in enumerate(lines[1:], 2):
        cells = line.split("\t")
        if len(cells) != len(header):
            raise bad_line(
                path, number, f"it has {len(cells)} columns where {len(header)} are expected"
            )
        label = labels.get(cells[label_at].strip())
        if label is None:
            raise bad_line(path, number, f"its label is not {' or '.join(labels)}")
        rows.texts.append(cells[text_at].strip())
        rows.labels.append(label)
        if pair_at is not None:
            rows.pairs.append(cells[pair_at].strip())
    return rows


def _read_scored(path: Path) -> Rows:
    """The rows of an STS file: no quoting, sources may follow as further columns."""
    lines = read_lines(path)
    require_rows(path, lines, f"tab-separated columns {', '.join(_STS_COLUMNS)}")
    header, first = list(_STS_COLUMNS), 1
    if "sentence1" in lines[0].split("\t"):
        header, first = lines[0].split("\t"), 2
        if "sentence2" not in header or "score" not in header:
            raise bad_line(path, 1, "the header does not name sentence1, sentence2 and score")
        require_rows(path, lines[1:], "a header and rows, separated by tabs")
    places = [header.index(name) for name in ("sentence1", "sentence2", "score")]
    rows = Rows()
    for number, line in enumerate(lines[first - 1 :], first):
        cells = line.split("\t")
        if len(cells) < len(header):
            raise bad_line(
                path,
                number,
                f"it has {len(cells)} columns where at least {len(header)} are expected",
            )
        text, pair, score = (cells[at].strip() for at in places)
        try:
            fits = 0 <= float(score) <= 5
        except ValueError:
            fits = False
        if not fits:
            raise bad_line(path, number, "its score is not a number from 0 to 5")
        rows.texts.append(text)
        rows.pairs.append(pair)
        rows.labels.append(score)
    return rows


SST2 = NamedCorpus(
    "film review sentences, negative or positive; records dealt to users",
    read_sst2,
)
QNLI = NamedCorpus(
    "questions and sentences, entailment or not; records dealt to users; "
    "without a train file, dev is split into train and test",
    read_qnli,
)
STSB = NamedCorpus(
    "sentence pairs scored for likeness from 0 to 5; records dealt to users",
    read_stsb,
)
