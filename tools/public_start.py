"""`start:english`, the public start that comes with the package.

    python tools/public_start.py DATA WORK       # about ten minutes of one processor

DATA holds the folders wikitext2, qnli and cuad as `tacit corpus list` knows them. Text is written
to WORK first, as people write it: WikiText-2 has blanks around its marks and `<unk>` for rare
words, so marks are joined and sentences with such a word are left out; of CUAD every tenth
paragraph is taken, so that contracts do not outweigh the rest; of QNLI the unlabelled questions are
read, too. Short texts are put together, and every second of these paragraphs is wrapped as mail is.
"""

import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from tacit.corpora import load
from tacit.packaged_models import SHIPPED
from tacit.training.data.public_inputs import sentences
from tacit.training.phases.loop import Progress
from tacit.training.phases.starts import StartSettings, make

LICENCE = (
    "WikiText-2 (Wikipedia) CC BY-SA 3.0; QNLI (SQuAD, Wikipedia) CC BY-SA 4.0; CUAD (The Atticus "
    "Project) CC BY 4.0; these weights CC BY-SA 4.0"
)
HASHES = 1 << 16
WORDS, COLUMNS = 80, 72
_JOINED = (
    (re.compile(r" @(.)@ "), r"\1"),
    (re.compile(r" ([,.;:!?%)\]])"), r"\1"),
    (re.compile(r"([(\[$]) "), r"\1"),
    (re.compile(r" (n't|'s|'re|'ve|'ll|'d|'m)\b"), r"\1"),
    (re.compile(r'" ([^"]*) "'), r'"\1"'),
)


def as_written(text: str) -> str:
    """Text of WikiText-2 with its marks joined to the words, as people write them."""
    for pattern, joined in _JOINED:
        text = pattern.sub(joined, text)
    return text


def wikitext(data: Path) -> Iterator[str]:
    """Sentences in which every word is known."""
    for text in load("wikitext2", data).column("text").to_pylist():
        for sentence in sentences(text):
            if "<unk>" not in sentence and "=" not in sentence:
                yield as_written(sentence)


def qnli(data: Path) -> Iterator[str]:
    """Questions and sentences, each once."""
    found: dict[str, None] = {}
    for name in ("dev.tsv", "test.tsv"):
        for line in (data / "qnli" / name).read_text(encoding="utf-8").splitlines()[1:]:
            found |= dict.fromkeys(line.split("\t")[1:3])
    yield from found


def cuad(data: Path) -> Iterator[str]:
    """Every tenth paragraph of twenty to two hundred words."""
    texts = load("cuad", data).column("text").to_pylist()
    long = [text for text in texts if 20 <= len(text.split()) <= 200]
    yield from long[::10]


def paragraphs(texts: Iterable[str]) -> Iterator[str]:
    """Texts put together until they have enough words to fill a context."""
    held: list[str] = []
    for text in texts:
        held += text.split()
        if len(held) >= WORDS:
            yield " ".join(held)
            held = []
    if held:
        yield " ".join(held)


def write(path: Path, texts: Iterable[str]) -> str:
    """A file of records, and its name."""
    with path.open("w", encoding="utf-8") as file:
        for number, text in enumerate(paragraphs(texts)):
            text = textwrap.fill(text, COLUMNS) if number % 2 else text
            file.write(json.dumps({"id": str(number), "text": text}) + "\n")
    return str(path)


def main(data: Path, work: Path, steps: int = 600) -> None:
    """Prepare the text, then train."""
    work.mkdir(parents=True, exist_ok=True)
    parts = {"wikitext2": wikitext, "qnli": qnli, "cuad": cuad}
    files = tuple(write(work / f"{name}.jsonl", read(data)) for name, read in parts.items())
    settings = StartSettings(corpus=files, steps=steps, batch=32)
    settings = settings.model_copy(
        update={"model": settings.model.model_copy(update={"embeddings": "wordllama"})}
    )

    def tell(progress: Progress) -> None:
        if progress.step % 20 == 0:
            print(progress.step, round(progress.stats.loss, 3), flush=True)

    start = make(
        SHIPPED / "english", settings, LICENCE, str(data), dtype=torch.float16, hashes=HASHES,
        on_progress=tell,
    )  # fmt: skip
    print(start.model_dump_json(indent=2))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
