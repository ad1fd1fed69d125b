"""WikiText-2: an article is a user, a line that is not blank is a record."""

import re
from pathlib import Path

import pyarrow as pa

from tacit.corpora import NamedCorpus
from tacit.corpora.sources import bad_line, find, need, read_lines, require_rows, to_table

FILES = {
    "train": ("train.txt", "wiki.train.tokens"),
    "valid": ("valid.txt", "wiki.valid.tokens"),
    "test": ("test.txt", "wiki.test.tokens"),
}
_TITLE = re.compile(r"= (?!= ).*[^=] =")


def read_wikitext2(folder: Path, seed: int) -> pa.Table:
    """Every split; where the train file is missing, the valid file is the train split."""
    paths = {s: need(folder, "wikitext2", *FILES[s]) for s in ("valid", "test")}
    train = find(folder, *FILES["train"])
    if train is not None:
        paths = {"train": train, **paths}
    else:
        paths = {"train": paths["valid"], "test": paths["test"]}
    return pa.concat_tables([_read_split(path, split) for split, path in paths.items()])


def _read_split(path: Path, split: str) -> pa.Table:
    lines = [line.strip(" ") for line in read_lines(path)]
    texts, users = [], []
    article = 0
    for at, line in enumerate(lines):
        if not line:
            continue
        if is_title(lines, at):
            article += 1
        elif not article:
            raise bad_line(path, at + 1, "no article title (= Title =) comes before it")
        texts.append(line)
        users.append(f"{split}-article-{article:04d}")
    require_rows(path, texts, "articles that open with = Title =")
    columns = {
        "id": [f"{split}-{n + 1:05d}" for n in range(len(texts))],
        "user": users,
        "text": texts,
        "split": [split] * len(texts),
    }
    return to_table(columns, path)


def is_title(lines: list[str], at: int) -> bool:
    """Whether a line opens an article: one `=` on each side, and blank lines around it.

    The blank lines matter: a formula inside an article can look like a title.
    """
    return (
        _TITLE.fullmatch(lines[at]) is not None
        and (at == 0 or not lines[at - 1])
        and (at + 1 == len(lines) or not lines[at + 1])
    )


WIKITEXT2 = NamedCorpus(
    "encyclopedia text; an article is a user; without a train file, valid is train",
    read_wikitext2,
)
