"""Files that are said to be public, each compared with the private text before it is used."""

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

from tacit.corpus.overlap import (
    Pieces,
    read_pieces,
    require_independent,
    require_other_file,
    require_other_words,
)
from tacit.corpus.reading import Layout, stream
from tacit.privacy.certificates.manifest import file_digest
from tacit.privacy.certificates.scope import PublicInput
from tacit.sanitization.certification import vectors_input
from tacit.sanitization.embeddings import Embedding
from tacit.sanitization.sensitive import has_format
from tacit.sanitization.words import read_word_list

_SAID = {
    "vocabulary": "the list of words that are used",
    "frequencies": "the list of frequencies",
    "sensitive_words": "the list of sensitive words",
    "sensitive_in": "the text in which sensitive words were detected",
}


class PublicInputs:
    """Compares files with one private text, which is read once, and only if there is a file."""

    def __init__(self, private: Callable[[], Iterator[str]], source: Path) -> None:
        self._private, self._source = private, source

    @cached_property
    def _pieces(self) -> Pieces:
        return read_pieces(self._private())

    def file(self, name: str, path: Path) -> PublicInput:
        """A list of words, or a text: refused where it is private text, else named by a digest."""
        what = f"--{name.replace('_', '-')} {path}"
        require_other_file(self._source, path, what=what)
        if name == "sensitive_in":
            checked = require_independent(self._pieces, public_texts(path), what=what).checked
        else:
            words = read_word_list(path)
            checked = require_other_words(self._pieces, words, what=what)
        return PublicInput(
            what=_SAID[name], name=path.name, sha256=file_digest(path), checked=checked
        )

    def vectors(self, where: str, embedding: Embedding) -> PublicInput:
        """Word vectors; those of this package, or of a model, are not compared."""
        if not Path(where).is_file():
            return vectors_input(embedding)
        checked = require_other_words(self._pieces, embedding.words, what=f"--embeddings {where}")
        return vectors_input(embedding, checked)


def public_texts(path: Path) -> Iterator[str]:
    """The texts of a public file, in any format that a corpus can have."""
    for batch in stream(path, Layout(format=None if has_format(path) else "text")):
        for column in sorted({"text", "pair"} & set(batch.schema.names)):
            yield from (text for text in batch.column(column).to_pylist() if text)
