"""CoNLL-2003 English: a document is a user, a sentence is a record."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tacit.corpora import NamedCorpus
from tacit.corpora.sources import bad_line, need, read_lines, require_rows, to_table

FILES = {
    "train": ("train.txt", "eng.train"),
    "valid": ("valid.txt", "eng.testa"),
    "test": ("test.txt", "eng.testb"),
}
_DOCUMENT = "-DOCSTART-"


def read_conll2003(folder: Path, seed: int) -> pa.Table:
    """Every split; tokens, part-of-speech tags and BIO entity tags are kept."""
    paths = {split: need(folder, "conll2003", *names) for split, names in FILES.items()}
    return pa.concat_tables([_read_split(path, split) for split, path in paths.items()])


def _read_split(path: Path, split: str) -> pa.Table:
    columns: dict[str, list[Any]] = {
        name: [] for name in ("id", "user", "text", "tokens", "tags", "pos", "split")
    }
    document = 0
    words: list[tuple[str, str, str]] = []

    def close_sentence() -> None:
        if not words:
            return
        tokens, pos, tags = (list(column) for column in zip(*words, strict=True))
        columns["id"].append(f"{split}-{len(columns['id']) + 1:05d}")
        columns["user"].append(f"{split}-doc-{document:04d}")
        columns["text"].append(" ".join(tokens))
        columns["tokens"].append(tokens)
        columns["tags"].append(bio(tags))
        columns["pos"].append(pos)
        columns["split"].append(split)
        words.clear()

    for number, line in enumerate(read_lines(path), 1):
        fields = line.split()
        if not fields:
            close_sentence()
        elif fields[0] == _DOCUMENT:
            close_sentence()
            document += 1
        elif len(fields) != 4:
            raise bad_line(path, number, "it does not have the 4 columns word, POS, chunk, entity")
        elif not document:
            raise bad_line(
                path, number, f"no {_DOCUMENT} line comes before it; documents are users"
            )
        elif fields[3] != "O" and fields[3][:2] not in ("B-", "I-"):
            raise bad_line(path, number, "its entity tag is not O, B-kind or I-kind")
        else:
            words.append((fields[0], fields[1], fields[3]))
    close_sentence()
    require_rows(path, columns["id"], "one token per line in 4 columns, and blank lines")
    return to_table(columns, path)


def bio(tags: Sequence[str]) -> list[str]:
    """Tags in which every entity starts with B-; the original release opens most with I-.

    >>> bio(["I-PER", "I-PER", "O", "I-ORG", "B-ORG"])
    ['B-PER', 'I-PER', 'O', 'B-ORG', 'B-ORG']
    """
    strict, before = [], "O"
    for tag in tags:
        opens = tag[:2] == "I-" and before[2:] != tag[2:]
        strict.append("B-" + tag[2:] if opens else tag)
        before = tag
    return strict


CONLL2003 = NamedCorpus(
    "news with entity and part-of-speech tags; a document is a user",
    read_conll2003,
)
