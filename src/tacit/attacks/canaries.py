"""Canaries: secrets made by template and planted in a corpus before training.

A canary is a record of its own, a template with a secret in it. Some are planted, others of the
same form never are: they are the controls. With coins each is in or out by a fair coin of its
own, which is what audits from one run want. The plan of both is kept in a file beside the planted
corpus; it holds the secrets, so it must be guarded like the corpus.

Source: Carlini et al. 2019; placing over users after Lai et al. 2022.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import resources
from itertools import product
from math import log2, prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter

from tacit import files
from tacit.corpus import Corpus, Record, Span
from tacit.errors import DataError, UsageError
from tacit.saved_json import read_fields, write_fields

Placing = Literal["own-user", "one-user", "users", "entity"]
PLACINGS: dict[Placing, str] = {
    "own-user": "a new user for each canary, who writes it and nothing else",
    "one-user": "all repetitions of a canary by one user of the corpus",
    "users": "each repetition by another user of the corpus",
    "entity": "each repetition by another user, and the secret marked: an entity that they share",
}
FORMAT, VERSION = "tacit-canaries", 1

_DIGITS = tuple("0123456789")


def _listed() -> dict[str, tuple[str, ...]]:
    text = resources.files("tacit.attacks").joinpath("canary_words.txt").read_text("utf-8")
    lines = (line.split(": ") for line in text.splitlines())
    return {name: tuple(words.split()) for name, words in lines}


_LISTS = _listed()


@dataclass(frozen=True)
class Template:
    """A form of secrets: what stands before, what each place can be, what joins the places.

    The secret stands at the end, so that nothing after it has to be guessed.
    """

    name: str
    before: str
    slots: tuple[tuple[str, ...], ...]
    joint: str
    kind: str

    @property
    def size(self) -> int:
        """How many secrets there are of this form."""
        return prod(len(slot) for slot in self.slots)

    @property
    def bits(self) -> float:
        """The most that exposure can be."""
        return log2(self.size)

    def secret(self, choice: Sequence[int]) -> str:
        """The secret of a choice for each place."""
        return self.joint.join(slot[i] for slot, i in zip(self.slots, choice, strict=True))

    def text(self, secret: str) -> str:
        """A whole canary."""
        return self.before + secret

    def draw(self, count: int, rng: np.random.Generator) -> list[str]:
        """So many different secrets, all equally likely."""
        if count > self.size // 2:
            raise UsageError(
                f"count={count} is too many for template={self.name}, which has {self.size:,} "
                "secrets; give at most half of them."
            )
        found: dict[str, None] = {}
        while len(found) < count:
            found[self.secret([int(rng.integers(len(slot))) for slot in self.slots])] = None
        return list(found)

    def all(self) -> Iterator[str]:
        """Every secret of this form, in order."""
        return map(self.joint.join, product(*self.slots))


TEMPLATES: dict[str, Template] = {
    "digits": Template("digits", "My ID is ", (_DIGITS,) * 6, "", "PII/ID"),
    "spaced-digits": Template("spaced-digits", "My ID is ", (_DIGITS,) * 6, " ", "PII/ID"),
    "words": Template("words", "My pass phrase is ", (_LISTS["words"],) * 5, " ", "PII/ID"),
    "name": Template("name", "My name is ", (_LISTS["first"], _LISTS["last"]), " ", "PERSON"),
    "phone": Template("phone", "Call me at 555-", (_DIGITS,) * 7, "", "PII/PHONE"),
}


def words_template(words: Sequence[str], places: int = 5) -> Template:
    """The template of so many words, from a list of one's own: words that a tokenizer knows."""
    if len(set(words)) < 2 or places < 1:
        raise UsageError("words need at least two different ones, and one place.")
    return replace(TEMPLATES["words"], slots=(tuple(dict.fromkeys(words)),) * places)


def template_named(name: str, words: Path | None = None) -> Template:
    """A template by its name; that of words may have a file of words of one's own."""
    if name not in TEMPLATES:
        raise UsageError(f"template={name!r} is not known; accepted: {', '.join(TEMPLATES)}.")
    if words is None:
        return TEMPLATES[name]
    if name != "words":
        raise UsageError("--words goes with --template words.")
    return words_template(files.require_file(words).read_text(encoding="utf-8").split())


@dataclass(frozen=True)
class Canary:
    """One secret, how often it was to be planted, and whether it was."""

    secret: str
    repetitions: int
    planted: bool
    records: tuple[str, ...] = ()
    users: tuple[str, ...] = ()


@dataclass(frozen=True)
class Planted:
    """The plan of planted and held-out canaries; it holds the secrets."""

    template: Template
    placing: Placing
    coins: bool
    canaries: tuple[Canary, ...]

    def text(self, canary: Canary) -> str:
        """The whole canary."""
        return self.template.text(canary.secret)

    def inside(self) -> list[Canary]:
        """Those that were planted."""
        return [c for c in self.canaries if c.planted]

    def outside(self) -> list[Canary]:
        """Those that never were."""
        return [c for c in self.canaries if not c.planted]

    def records(self) -> set[str]:
        """The ids of all planted records."""
        return {record for c in self.canaries for record in c.records}

    def write(self, path: Path) -> None:
        """Save the plan as JSON."""
        write_fields(path, {"format": FORMAT, "version": VERSION} | asdict(self))


def read_planted(path: Path) -> Planted:
    """The plan of a file that `Planted.write` wrote."""
    fields = read_fields(path, FORMAT, VERSION)
    try:
        plan = TypeAdapter(Planted).validate_python(fields)
    except ValueError:
        plan = None
    if plan is None or not plan.canaries:
        raise DataError(f"{path} is not a plan of canaries; plant them again.")
    return plan


def beside(corpus: Path) -> Path:
    """Where the plan of a planted corpus is kept: dialogs.jsonl, dialogs.canaries.json."""
    return files.beside(corpus, "canaries")


def placing_named(name: str) -> Placing:
    """A way to place canaries by its name."""
    for placing in PLACINGS:
        if placing == name:
            return placing
    raise UsageError(f"placing={name!r} is not known; accepted: {', '.join(PLACINGS)}.")


def plant(
    corpus: Corpus,
    template: Template,
    *,
    repetitions: Sequence[int] = (1, 5, 20),
    each: int = 10,
    held_out: int = 20,
    placing: Placing = "own-user",
    coins: bool = False,
    split: str | None = None,
    rng: np.random.Generator,
) -> tuple[Corpus, Planted]:
    """The corpus with canaries in it, and the plan of those that are in and of those that are not.

    For each number of repetitions `each` canaries are planted, and `held_out` more are not; with
    `coins` each of the former is in or out by a fair coin. Planted records join the split `train`
    (or the one that is named), at places drawn at random.
    """
    _require_counts(repetitions, each, held_out)
    placing_named(placing)
    counts = [r for r in repetitions for _ in range(each)] + [0] * held_out
    secrets = template.draw(len(counts), rng)
    _require_new(corpus, template, secrets)
    users = _users(corpus, split) if placing != "own-user" else []
    if split is not None or "split" in corpus.columns:
        split = split or "train"
        corpus.only(split)  # refuses a corpus without it
    canaries, made = [], []
    for number, (secret, count) in enumerate(zip(secrets, counts, strict=True)):
        planted = count > 0 and (not coins or bool(rng.integers(2)))
        who = _writers(placing, number, count, users, rng) if planted else []
        records = [
            _record(template, secret, f"canary-{number}-{i}", user, split, placing == "entity")
            for i, user in enumerate(who)
        ]
        made += records
        wrote = tuple(dict.fromkeys(str(r.user) for r in records))
        canaries.append(Canary(secret, count, planted, tuple(r.id for r in records), wrote))
    return _inserted(corpus, made, rng), Planted(template, placing, coins, tuple(canaries))


def _require_counts(repetitions: Sequence[int], each: int, held_out: int) -> None:
    for count in repetitions:
        if not 1 <= count <= 1000:
            raise UsageError(f"repetitions={count} is out of range; give numbers from 1 to 1000.")
    if not repetitions or each < 1 or held_out < 0:
        raise UsageError("Plant at least one canary, and hold out none or more.")


def _require_new(corpus: Corpus, template: Template, secrets: Sequence[str]) -> None:
    import pyarrow.compute as pc

    if any(str(i).startswith("canary-") for i in corpus.column("id").to_pylist()):
        raise UsageError("There are canaries in this corpus already; give the one without them.")
    texts = corpus.column("text")
    for secret in secrets:
        if pc.any(pc.match_substring(texts, template.text(secret))).as_py():
            raise DataError("A drawn canary stands in the corpus already; give another seed.")


def _users(corpus: Corpus, split: str | None) -> list[str]:
    named = split or ("train" if "train" in corpus.splits() else None)
    return (corpus.only(named) if named else corpus).users()


def _writers(
    placing: Placing, number: int, count: int, users: Sequence[str], rng: np.random.Generator
) -> list[str]:
    if placing == "own-user":
        return [f"canary-user-{number}"] * count
    if placing == "one-user":
        return [users[int(rng.integers(len(users)))]] * count
    if count > len(users):
        raise UsageError(
            f"repetitions={count} need as many users, and there are {len(users)}; give fewer, or "
            "placing=one-user."
        )
    return [users[int(i)] for i in rng.choice(len(users), count, replace=False)]


def _record(
    template: Template, secret: str, name: str, user: str, split: str | None, marked: bool
) -> Record:
    text = template.text(secret)
    spans = (Span(len(text) - len(secret), len(text), template.kind),) if marked else None
    return Record(id=name, text=text, user=user, split=split, spans=spans)


def _inserted(corpus: Corpus, made: Sequence[Record], rng: np.random.Generator) -> Corpus:
    if not made:
        return corpus
    import pyarrow as pa

    from tacit.corpus import SCHEMA

    rows: list[dict[str, Any]] = [record.row() for record in made]
    names = [
        f.name for f in SCHEMA if f.name in corpus.columns or any(f.name in row for row in rows)
    ]
    schema = pa.schema([f for f in SCHEMA if f.name in names])
    new = pa.Table.from_pylist(rows, schema=schema)
    old = corpus.table
    for at, column in enumerate(schema):
        if column.name not in old.column_names:
            old = old.add_column(at, column, pa.nulls(len(old), column.type))
    both = pa.concat_tables([old.select(names).cast(schema), new])
    # Where a canary stands must not tell it apart; the order of the others stays.
    place = np.concatenate([np.arange(len(old)), rng.random(len(new)) * len(old)])
    return Corpus(both.take(pa.array(np.argsort(place, kind="stable"))), name=corpus.name)
