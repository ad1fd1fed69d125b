"""20 Newsgroups, split by date: an author is a user, a post is a record, its group the label."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from tacit.corpora import NamedCorpus
from tacit.corpora.sources import need, read_json, read_text, require_rows, to_table
from tacit.errors import DataError

_FIELDS = ("id", "group", "author", "text")
_FROM = re.compile(r"^from:\s*(.*)$", re.IGNORECASE | re.MULTILINE)
_ADDRESS = re.compile(r"[^\s<>()]+@[^\s<>()]+")


def read_newsgroups20(folder: Path, seed: int) -> pa.Table:
    """Train and test, from JSON lines or from the folders of the original release.

    In the original release the headers are cut off and the author is a number that stands for
    the address of the From line, the same in both splits.
    """
    if (folder / "20news-bydate-train").is_dir():
        return _read_release(folder)
    paths = {split: need(folder, "newsgroups20", f"{split}.jsonl") for split in ("train", "test")}
    tables = []
    for split, path in paths.items():
        posts = [tuple(row[f] for f in _FIELDS) for _, row in read_json(path, _FIELDS)]
        require_rows(path, posts, "JSON lines with id, group, author and text")
        tables.append(_build(posts, split, path))
    return pa.concat_tables(tables)


def _build(posts: Sequence[tuple[str, ...]], split: str, path: Path) -> pa.Table:
    # A number is unique within its group only: posts were sent to several groups at once.
    columns = {
        "id": [f"{split}-{group}-{number}" for number, group, _, _ in posts],
        "user": [author for _, _, author, _ in posts],
        "text": [text for *_, text in posts],
        "label": [group for _, group, _, _ in posts],
        "split": [split] * len(posts),
    }
    return to_table(columns, path)


def _read_release(folder: Path) -> pa.Table:
    authors: dict[str, str] = {}
    tables = []
    for split in ("train", "test"):
        root = folder / f"20news-bydate-{split}"
        if not root.is_dir():
            raise DataError(f"{folder} has no folder {root.name}; newsgroups20 needs it.")
        posts = list(_read_posts(root, authors))
        require_rows(root, posts, "folders of groups with one file for each post")
        tables.append(_build(posts, split, root))
    return pa.concat_tables(tables)


def _read_posts(root: Path, authors: dict[str, str]) -> Iterator[tuple[str, str, str, str]]:
    for group in sorted(path for path in root.iterdir() if path.is_dir()):
        for path in sorted(group.iterdir()):
            head, _, body = read_text(path, encoding="latin-1").partition("\n\n")
            line = _FROM.search(head)
            sender = line.group(1).strip().lower() if line else f"{group.name}/{path.name}"
            address = _ADDRESS.search(sender)
            key = address.group() if address else sender
            author = authors.setdefault(key, f"u{len(authors) + 1:05d}")
            yield path.name, group.name, author, body.strip("\n")


NEWSGROUPS20 = NamedCorpus(
    "posts to twenty newsgroups; an author is a user",
    read_newsgroups20,
)
