"""AG News: four topics; the release knows no user, so records are dealt to users."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from tacit.corpora import NamedCorpus
from tacit.corpora.dealing import dealt
from tacit.corpora.sources import bad_line, need, read_csv, require_rows

FILES = {"train": ("train.csv", "train_subset.csv"), "test": ("test.csv",)}
CLASSES = {"1": "World", "2": "Sports", "3": "Business", "4": "Sci-Tech"}
_LABEL_NAMES = ("label", "class index", "class")
_TEXT_NAMES = ("title", "description", "text")


def read_ag_news(folder: Path, seed: int) -> pa.Table:
    """Train and test; text is title and description, users hold N(15, 2²) records each."""
    paths = {split: need(folder, "ag_news", *names) for split, names in FILES.items()}
    return pa.concat_tables([_read_split(path, split, seed) for split, path in paths.items()])


def _read_split(path: Path, split: str, seed: int) -> pa.Table:
    rows = read_csv(path)
    text_at: tuple[int, ...]
    width, label_at, text_at = 3, 0, (1, 2)
    if rows and not rows[0][1][0].strip().isdigit():
        number, header = rows.pop(0)
        width, label_at, text_at = _read_header(path, number, header)
    require_rows(path, rows, "rows of label, title, description")
    labels, texts = [], []
    for number, row in rows:
        if len(row) != width:
            raise bad_line(path, number, f"it has {len(row)} columns where {width} are expected")
        label = CLASSES.get(row[label_at].strip())
        if label is None:
            raise bad_line(path, number, "its label is not 1, 2, 3 or 4")
        labels.append(label)
        texts.append(" ".join(filter(None, (row[at].strip() for at in text_at))))
    return dealt(path, split, seed, texts, labels)


def _read_header(
    path: Path, number: int, header: Sequence[str]
) -> tuple[int, int, tuple[int, ...]]:
    names = [name.strip().lower() for name in header]
    label_at = next((names.index(name) for name in _LABEL_NAMES if name in names), None)
    text_at = tuple(names.index(name) for name in _TEXT_NAMES if name in names)
    if label_at is None or not text_at:
        raise bad_line(
            path, number, "a header names label and text, or label, title and description"
        )
    return len(names), label_at, text_at


AG_NEWS = NamedCorpus(
    "news of four topics; records dealt to users with N(15, 2²) each",
    read_ag_news,
)
