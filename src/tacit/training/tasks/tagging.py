"""Part-of-speech and entity tags: one for each word."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from tacit.corpus import Corpus
from tacit.errors import DataError, UsageError
from tacit.training.models.devices import placed
from tacit.training.tasks.encoding import (
    ExampleBuilder,
    check_labels,
    check_lengths,
    labels_in,
    last_piece,
    pad_of,
    pieces_of,
    special_around,
    windows,
)
from tacit.training.tasks.examples import (
    IGNORED,
    UNKNOWN_LABEL,
    Examples,
    Long,
    Places,
)
from tacit.training.tasks.measuring import (
    Batch,
    evaluating,
    forward,
    judged,
    mean_of_row,
    tally_tokens,
    token_losses,
)
from tacit.training.tasks.tasks import Batches, Task

_WORDS = re.compile(r"\w+(?:[^\w\s]+\w+)*|[^\w\s]")


@dataclass(frozen=True)
class Tagging(Task):
    """Give each word a tag: its part of speech (`column="pos"`) or entity tag (`"tags"`).

    A word that is several tokens is tagged at the last of them, which in a model that reads from
    left to right has seen all of it. In training every record needs tags. What exceeds the context
    is cut off, or split into windows of the same user that share nothing.
    """

    labels: tuple[str, ...]
    column: str = "pos"
    long: Long = "truncate"
    name = "tagging"

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", check_labels(self.labels))
        if self.column not in ("pos", "tags"):
            raise UsageError(f"column={self.column} holds no tags; give pos or tags.")

    @classmethod
    def of(cls, corpus: Corpus, column: str = "pos", long: Long = "truncate") -> "Tagging":
        """The tags that a corpus has, in alphabetical order: which ones these are is public."""
        rows = corpus.column(column).to_pylist()
        return cls(labels_in(tag for row in rows for tag in row or ()), column, long)

    def _encode(self, builder: ExampleBuilder) -> Examples:
        first, last = frame = special_around(builder.tokenizer)
        room = builder.context - len(first) - len(last)
        check_lengths(builder.context, self.long, 1 + len(first) + len(last))
        notes = {"labels_unknown": 0, "labels_missing": 0, "words_lost": 0}
        labels: list[Places] = []
        none = [IGNORED] * len(first), [IGNORED] * len(last)
        tagged = self._words(builder.corpus, builder.training, notes)
        for row, (pieces, words) in enumerate(zip(builder.pieces(), tagged, strict=True)):
            marks = builder.marks(row, pieces)
            tags = np.full(len(pieces.ids), IGNORED, dtype=np.int64)
            for start, end, tag in words:
                at = last_piece(pieces, start, end)
                if at is None or tags[at] != IGNORED:
                    notes["words_lost"] += 1
                else:
                    tags[at] = tag
            for start, stop in windows(len(pieces.ids), room, self.long):
                builder.add(row, pieces.ids[start:stop], marks[start:stop], frame)
                labels.append(np.concatenate([none[0], tags[start:stop], none[1]]).astype(np.int64))
            if self.long == "truncate":
                notes["words_lost"] += int((tags[room:] != IGNORED).sum())
            builder.note_cut(len(pieces.ids) > room)
        return builder.examples(labels, notes)

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean over a record's words of the negative log-probability of their tags."""
        batch = placed(model, batch)
        targets = batch["labels"]
        return mean_of_row(token_losses(forward(model, batch), targets), targets >= 0)

    def _score(self, model: nn.Module, examples: Examples, batches: Batches) -> dict[str, float]:
        """Share of words with the right tag: all, sensitive and plain ones."""
        tally = tally_tokens(
            lambda model, batch: judged(forward(model, batch), batch["labels"]),
            model, examples, batches,
        )  # fmt: skip
        made: dict[str, float] = {"loss": tally[""].mean}
        for name, one in tally.items():
            made |= {f"accuracy{name}": one.share, f"words{name}": one.count}
        return made | {n: examples.notes.get(n, 0) for n in ("words_lost", "labels_unknown")}

    def predict(self, model: nn.Module, examples: Examples) -> list[Places]:
        """The number of the tag for every token of each example."""
        found: list[Places] = [np.zeros(0, dtype=np.int64)] * len(examples)
        for rows, batch in evaluating(model, examples):
            best = forward(model, batch).argmax(-1).cpu().numpy()
            for line, row in enumerate(rows):
                found[row] = best[line, : len(examples.ids[row])]
        return found

    def tag(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        text: str,
        *,
        context: int = 128,
    ) -> list[tuple[str, str | None]]:
        """The words of a text with their tags; None where a word is lost or past the context."""
        found = list(_WORDS.finditer(text))
        first, last = special_around(tokenizer)
        room = context - len(first) - len(last)
        pieces = next(pieces_of([text], tokenizer))
        ids = np.asarray([*first, *pieces.ids[:room], *last], dtype=np.int32)
        one = np.zeros(1, dtype=np.int32)
        examples = Examples([ids], one, one, pad_of(tokenizer), [np.full(len(ids), IGNORED)])
        tags = self.predict(model, examples)[0][len(first) :]
        made: list[tuple[str, str | None]] = []
        for word in found:
            at = last_piece(pieces, word.start(), word.end())
            known = at is not None and at < room
            made.append((word.group(), self.labels[tags[at]] if known else None))
        return made

    def _words(
        self, corpus: Corpus, training: bool, notes: dict[str, int]
    ) -> Iterator[list[tuple[int, int, int]]]:
        """Each record's words as start, end and number of the tag."""
        code = {tag: number for number, tag in enumerate(self.labels)}
        given = {"tokens", self.column} <= set(corpus.columns)
        if training and not given:
            corpus.column("tokens"), corpus.column(self.column)
        for row, record in enumerate(corpus.records()):
            tags = getattr(record, self.column)
            where = f"{corpus.name}, record {row + 1},"
            if tags is None or record.tokens is None:
                if training:
                    raise DataError(f"{where} has no {self.column} with tokens; leave it out.")
                notes["labels_missing"] += 1
                yield []
                continue
            words, at = [], 0
            for number, (token, tag) in enumerate(zip(record.tokens, tags, strict=True), 1):
                start = record.text.find(token, at)
                if start < 0:
                    raise DataError(f"{where} has a text that lacks its token {number}.")
                at = start + len(token)
                if tag not in code:
                    if training:
                        raise DataError(f"{where} has at token {number} a tag that is not known.")
                    notes["labels_unknown"] += 1
                words.append((start, at, code.get(tag, UNKNOWN_LABEL)))
            yield words
