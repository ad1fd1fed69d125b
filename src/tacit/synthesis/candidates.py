"""Candidates: sampled from a generator, each once, on disk as they come.

A batch is one line of the file, so that what was being written when a process died is made again,
and everything else is kept.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tacit.errors import DataError
from tacit.synthesis.generators import AnyGenerator, Generator, GivenTexts
from tacit.synthesis.settings import Synthesis
from tacit.synthesis.space import Progress
from tacit.training.dp.random_source import RandomSource
from tacit.training.evaluation.generation import Sampling

_BATCH = 64
_TRIES = 4
"""So many times the wanted number is sampled before fewer will do."""
FEWEST_WORDS = 3


@dataclass(frozen=True)
class Candidate:
    """A text with the prompt that it goes on from; `label` is a number, None if votes tell it."""

    text: str
    prompt: str = ""
    label: int | None = None

    @property
    def words(self) -> int:
        """How many words it has."""
        return len(self.text.split())


def folded(text: str) -> str:
    """What two texts have in common that are the same but for case and spacing."""
    return " ".join(text.casefold().split())


def printable(text: str) -> str:
    """A text without control characters, of which a model writes one now and then.

    >>> printable("a\\0b\\nc")
    'ab\\nc'
    """
    return "".join(char for char in text if char.isprintable() or char in "\n\t")


def pool(
    settings: Synthesis,
    generator: AnyGenerator,
    wanted: Sequence[int],
    file: Path,
    *,
    parents: Sequence[Candidate] = (),
    round_: int = 1,
    progress: Progress | None = None,
) -> list[Candidate]:
    """So many new candidates of each label, or of none, beside their parents."""
    if isinstance(generator, GivenTexts):
        return _given(settings, generator)
    seen = {folded(one.text) for one in parents}
    found: list[Candidate] = []
    most, sampled = sum(wanted), 0
    number = 0
    for batch in _kept(file):
        found += _new(batch, seen)
        number, sampled = number + 1, sampled + _BATCH
    counts = _counts(found, len(wanted))
    while sampled < _TRIES * most + _BATCH and (short := np.asarray(wanted) - counts).max() > 0:
        batch = _sampled(settings, generator, short, parents, round_, number)
        _append(file, batch)
        found += _new(batch, seen)
        counts, number, sampled = _counts(found, len(wanted)), number + 1, sampled + _BATCH
        if progress is not None:
            progress(f"candidates, round {round_}", min(most, len(found)), most)
    if not found:
        raise DataError(
            f"The generator wrote no text of {FEWEST_WORDS} words; give other prompts or stop "
            "words, or more tokens."
        )
    return found


def _given(settings: Synthesis, generator: GivenTexts) -> list[Candidate]:
    """The texts of a file, with those labels that were declared."""
    corpus = generator.corpus
    known = {label: number for number, label in enumerate(settings.labels or ())}
    labels: list[str | None] = [None] * len(corpus)
    if known and "label" in corpus.columns:
        labels = corpus.column("label").to_pylist()
    own = None if settings.labels else 0
    rows = zip(corpus.column("text").to_pylist(), labels, strict=True)
    every = [Candidate(text, "", known.get(str(label), own)) for text, label in rows]
    return _new(every, set())


def _new(batch: Sequence[Candidate], seen: set[str]) -> list[Candidate]:
    """Those that are long enough and were not there before."""
    made = []
    for one in batch:
        key = folded(one.text)
        if one.words >= FEWEST_WORDS and key not in seen:
            seen.add(key)
            made.append(one)
    return made


def _counts(found: Sequence[Candidate], kinds: int) -> np.ndarray:
    return np.bincount([one.label or 0 for one in found], minlength=kinds)


def _sampled(
    settings: Synthesis,
    generator: Generator,
    short: np.ndarray,
    parents: Sequence[Candidate],
    round_: int,
    number: int,
) -> list[Candidate]:
    """A batch for the labels that lack most; from the first words of parents where there are."""
    rng = RandomSource(settings.seed).stream("order", 1000 * round_ + number)
    lacks = np.clip(short, 0, None) / np.clip(short, 0, None).sum()
    kinds = rng.choice(len(short), _BATCH, p=lacks)
    starts = [_start(settings, int(kind), parents, rng) for kind in kinds]
    how = Sampling(
        settings.temperature, settings.top_p, int(rng.integers(2**62)), stop=settings.stop
    )
    added = generator.texts([prompt + before for prompt, before, _ in starts], how)
    return [
        Candidate(printable(before + more).strip(), prompt, label)
        for (prompt, before, label), more in zip(starts, added, strict=True)
    ]


def _start(
    settings: Synthesis, kind: int, parents: Sequence[Candidate], rng: np.random.Generator
) -> tuple[str, str, int | None]:
    """A prompt, the words that are kept of a parent, and the label."""
    label = kind if settings.labelled or not settings.labels else None
    own = [one for one in parents if one.label in (None, kind)]
    if own:
        parent = own[int(rng.integers(len(own)))]
        words = parent.text.split(" ")
        return parent.prompt, " ".join(words[: int(settings.vary * len(words))]), parent.label
    prompts = settings.of_label(settings.labels[kind] if settings.labels else None)
    return prompts[int(rng.integers(len(prompts)))], "", label


def _append(file: Path, batch: Sequence[Candidate]) -> None:
    line = json.dumps([asdict(one) for one in batch], allow_nan=False) + "\n"
    try:
        with file.open("a", encoding="utf-8") as out:
            out.write(line)
    except OSError as problem:
        raise DataError(
            f"{file} could not be written ({problem.strerror}); is the disk full? What was made is "
            "kept: make room, then --resume."
        ) from None


def _kept(file: Path) -> Iterator[list[Candidate]]:
    """The batches that are there; a torn last line is taken away, and made again."""
    if not file.exists():
        return
    whole, _, torn = file.read_text(encoding="utf-8").rpartition("\n")
    if torn:
        file.write_text(whole + "\n" if whole else "", encoding="utf-8")
    for line in whole.splitlines() if whole else ():
        yield [Candidate(**fields) for fields in json.loads(line)]
