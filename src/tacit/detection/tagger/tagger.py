"""A tagger of the user's own: a linear-chain CRF that learns kinds from a marked corpus.

In reading order: what training gives back, `train`, `Tagger`, and how well it does on what was
held out. The parts stand beside it: `tagger_lines` (tokens, documents, gold marks),
`tagger_lexicon` (word lists learned from the marks), `tagger_features`, and `tagger_folder`.

A saved tagger holds words and names of the corpus it learned from. Guard its folder as you
guard that corpus.

Source: Lafferty et al. 2001 (conditional random fields), trained by CRFsuite (Okazaki 2007);
the document-wide features follow Ratinov and Roth 2009.
"""

import hashlib
import json
import random
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tacit.corpus import Corpus, Record, Span
from tacit.detection.detector import Finding
from tacit.detection.scoring import Tally
from tacit.detection.tagger.features import FEATURES, Types, document_features
from tacit.detection.tagger.folder import (
    ABOUT,
    FORMAT,
    LEXICON,
    MODEL,
    draft_folder,
    move_into_place,
    read_about,
    refuse_folder,
    sha256_of,
    write_json,
)
from tacit.detection.tagger.lexicon import Counts, Lexicon, document_words
from tacit.detection.tagger.lines import (
    Document,
    Gold,
    Line,
    cut_record,
    documents_of,
    mention_runs,
    mentions_by_kind,
)
from tacit.errors import DataError, MissingExtra, UsageError

# Chosen on the validation split of CoNLL-2003; docs/guides/taggers.md has the figures.
_SETTINGS = {"c1": 0.02, "c2": 0.1, "period": 10, "delta": 2e-3}
ITERATIONS = 60

# The shares of names and of other words that a document is learned without.
_HIDDEN_NAMES = 0.15
_HIDDEN_WORDS = 0.05
# The share of documents learned once more in lower case: a tagger that leans on capitals alone
# finds next to nothing in text without them.
_LOWERED = 0.1


@dataclass(frozen=True)
class KindScore:
    """How one kind was found in held-out records: exact spans and kinds only."""

    precision: float
    recall: float
    f1: float
    mentions: int


@dataclass(frozen=True)
class TaggerSummary:
    """What a training saw and made; counts only, no text.

    `unmarked` records had neither tags nor spans and were left out. `widened` spans began or
    ended inside a token and were learned as whole tokens. `held_out_score` is by kind, with
    `all` for the whole, and empty where nothing was held out.
    """

    folder: str
    records: int
    held_out: int
    unmarked: int
    tokens: int
    mentions: dict[str, int]
    widened: int
    iterations: int
    seconds: float
    corpus: str
    held_out_score: dict[str, KindScore]


def train(
    corpus: Corpus,
    out: Path,
    *,
    iterations: int = ITERATIONS,
    held_out: float = 0.0,
    seed: int = 0,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> TaggerSummary:
    """Train a tagger on a corpus with `tags` or `spans` and save it as the folder `out`.

    `held_out` is the share of users (of records, where there are no users) kept apart to
    score the result. They share firms, places and turns of phrase with the rest, so the score
    flatters. `seed` chooses them, and the words that are hidden in training; equal arguments
    give equal taggers. `progress` is called with the iteration and the most there can be;
    training ends sooner when the loss stays.
    """
    start = time.perf_counter()
    out = Path(out)
    _require_arguments(iterations, held_out)
    refuse_folder(out, overwrite)
    gold = Gold(corpus)
    rng = random.Random(seed)
    learn, kept_apart = _deal(gold.records, held_out, rng)
    documents = documents_of([(i, r.user, gold.lines[i]) for i, r in learn])
    mentions = _require_mentions(documents, corpus, len(learn))
    trainer = _trainer(iterations, progress)
    folder = draft_folder(out)
    try:
        lexicon = _teach(trainer, documents, rng)
        trainer.train(str(folder / MODEL))
        write_json(folder / LEXICON, lexicon.row())
        summary = TaggerSummary(
            folder=str(out),
            records=len(learn),
            held_out=len(kept_apart),
            unmarked=gold.unmarked,
            tokens=sum(len(line.tokens) for d in documents for _, line in d),
            mentions=mentions,
            widened=gold.widened,
            iterations=trainer.done,
            seconds=0.0,
            corpus=corpus.digest(),
            held_out_score={},
        )
        write_json(folder / ABOUT, _about(summary, gold, folder, iterations, seed))
        scores = _score(Tagger.load(folder), kept_apart, gold)
        move_into_place(folder, out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return replace(summary, seconds=time.perf_counter() - start, held_out_score=scores)


def _require_arguments(iterations: int, held_out: float) -> None:
    if iterations < 1:
        raise UsageError(f"iterations={iterations} is too few; give 1 or more.")
    if not 0.0 <= held_out < 1.0:
        raise UsageError(f"held_out={held_out} is not a share; give a number from 0 to below 1.")


def _require_mentions(
    documents: Sequence[Document], corpus: Corpus, records: int
) -> dict[str, int]:
    """How many mentions of each kind there are to learn from."""
    mentions = mentions_by_kind(documents)
    if not mentions:
        raise DataError(
            f"{corpus.name} has no mention to learn from in {records:,} marked record(s); "
            "give a corpus with BIO `tags`, or with gold `spans`."
        )
    return mentions


def _teach(trainer: Any, documents: Sequence[Document], rng: random.Random) -> Lexicon:
    """Give the trainer every document, and give back the word lists of all."""
    words = [document_words(document) for document in documents]
    counts = Counts(words)
    types = Types()
    for document, own in zip(documents, words, strict=True):
        others = counts.without(own)
        copies = [[line for _, line in document]]
        if rng.random() < _LOWERED:
            copies.append([replace(x, tokens=[t.lower() for t in x.tokens]) for x in copies[0]])
        for lines in copies:
            items = document_features(lines, others, types, _hidden(lines, rng))
            for line, features in zip(lines, items, strict=True):
                trainer.append(features, line.tags)
    return counts.lexicon


def _hidden(lines: Sequence[Line], rng: random.Random) -> frozenset[str]:
    """Words whose letters this document shall be learned without.

    A corpus repeats its names, and a tagger that may look at them learns the names and not
    their surroundings. So in each document some names, and fewer of all words, are unknown.
    """
    names = dict.fromkeys(
        tuple(token.lower() for token in line.tokens[first:last])
        for line in lines
        for first, last, _ in mention_runs(line.tags)
    )
    words = dict.fromkeys(token.lower() for line in lines for token in line.tokens)
    return frozenset(
        [
            *(word for name in names if rng.random() < _HIDDEN_NAMES for word in name),
            *(word for word in words if rng.random() < _HIDDEN_WORDS),
        ]
    )


def _about(
    summary: TaggerSummary, gold: Gold, folder: Path, iterations: int, seed: int
) -> dict[str, Any]:
    # The same corpus, options and seed shall give the same file: no times, no folders.
    left_out = ("folder", "seconds", "held_out_score")
    return {
        "format": FORMAT,
        "features": FEATURES,
        "tokenizer": gold.tokenizer,
        "kinds": sorted(summary.mentions),
        "names": dict(sorted(gold.names.items())),
        "settings": {"algorithm": "lbfgs", "iterations": iterations, **_SETTINGS},
        "seed": seed,
        "trained": {k: v for k, v in asdict(summary).items() if k not in left_out},
        "sha256": {name: sha256_of(folder / name) for name in (MODEL, LEXICON)},
    }


def _crfsuite() -> Any:
    try:
        import pycrfsuite
    except ImportError:
        raise MissingExtra.of("The tagger needs the package python-crfsuite", "tagger") from None
    return pycrfsuite


def _trainer(iterations: int, progress: Callable[[int, int], None] | None) -> Any:
    """CRFsuite's L-BFGS trainer, quiet, telling its iterations.

    L-BFGS, and not the quicker perceptron, because it draws nothing at random, so that equal
    corpora give equal taggers, and because its probabilities mean something.
    """

    class Trainer(_crfsuite().Trainer):  # type: ignore[misc]
        done = 0

        def message(self, message: str) -> None:
            """Read CRFsuite's log instead of printing it."""
            if self.logparser.feed(message) == "iteration":
                self.done += 1
                if progress:
                    progress(self.done, iterations)

    return Trainer("lbfgs", {"max_iterations": iterations, **_SETTINGS}, verbose=False)


class Tagger:
    """A trained tagger as a detector.

    What a user wrote in the same call to `find` is one document: a name seen clearly in one
    record helps to find it in another. So `tacit.detect` gives it whole users.
    """

    name = "tagger"
    summary = "a CRF tagger trained by `tacit detect train`"
    option = "DIR"
    reads_users = True

    @classmethod
    def open(cls, option: str | None) -> "Tagger":
        """The tagger of `tagger=DIR`."""
        if option is None:
            raise UsageError(
                "tagger needs a folder; train one with `tacit detect train CORPUS -o DIR`, then "
                "give tagger=DIR."
            )
        return cls.load(Path(option).expanduser())

    def __init__(
        self,
        model: bytes,
        lexicon: Lexicon,
        kinds: Sequence[str],
        tokenizer: str,
        learned_from: str | None = None,
    ) -> None:
        """Meant for `load`, which checks that the parts belong together."""
        self.kinds, self.learned_from = tuple(kinds), learned_from
        self.tokenizer = tokenizer
        self._lexicon = lexicon
        self._types = Types()
        # CRFsuite reads this memory as it tags and keeps no copy, so it must live as long.
        self._model = model
        self._crf = _crfsuite().Tagger()
        self._crf.open_inmemory(model)

    @classmethod
    def load(cls, folder: Path | str) -> "Tagger":
        """The tagger saved in a folder by `train`."""
        folder = Path(folder)
        about = read_about(folder)
        parts = {}
        for name in (MODEL, LEXICON):
            path = folder / name
            if not path.is_file():
                raise DataError(f"{path} does not exist; copy the whole folder, or train again.")
            parts[name] = path.read_bytes()
            # CRFsuite trusts its file, so a damaged one must not reach it.
            if hashlib.sha256(parts[name]).hexdigest() != about["sha256"][name]:
                raise DataError(f"{path} is damaged; copy the whole folder again, or train again.")
        lexicon = Lexicon.from_row(json.loads(parts[LEXICON]))
        learned_from = about.get("trained", {}).get("corpus")
        return cls(parts[MODEL], lexicon, about["kinds"], about["tokenizer"], learned_from)

    def find(self, records: Sequence[Record]) -> list[list[Finding]]:
        """One list of findings for each record, in order; scores are marginal probabilities."""
        cut = [cut_record(r, self.tokenizer) for r in records]
        tags: list[list[str]] = [[] for _ in records]
        sure: list[list[float]] = [[] for _ in records]
        owned = [(i, r.user, lines) for i, (r, lines) in enumerate(zip(records, cut, strict=True))]
        for document in documents_of(owned):
            lines = [line for _, line in document]
            features = document_features(lines, self._lexicon, self._types)
            for (place, _), items in zip(document, features, strict=True):
                said = self._crf.tag(items)
                tags[place] += said
                sure[place] += (
                    self._crf.marginal(tag, i) if tag != "O" else 1.0 for i, tag in enumerate(said)
                )
        return [_findings(*parts) for parts in zip(cut, tags, sure, strict=True)]


def _findings(lines: list[Line], tags: list[str], sure: list[float]) -> list[Finding]:
    """A record's tags as findings, each as sure as its least sure token.

    Tags are read over the ends of lines: a mention that goes on in the next line is one.
    """
    offsets = [offset for line in lines for offset in line.offsets]
    return [
        Finding(
            offsets[first][0],
            offsets[last - 1][1],
            kind,
            round(min(sure[first:last]), 4),
            "tagger",
        )
        for first, last, kind in mention_runs(tags)
    ]


# ---- held-out records


def _deal(
    records: list[tuple[int, Record]], share: float, rng: random.Random
) -> tuple[list[tuple[int, Record]], list[tuple[int, Record]]]:
    """The records to learn from and those held out, whole users at a time."""
    if not share:
        return records, []
    owner = {i: r.user if r.user is not None else f"\0{i}" for i, r in records}
    owners = list(dict.fromkeys(owner.values()))
    apart = set(rng.sample(owners, round(share * len(owners))))
    learn = [(i, r) for i, r in records if owner[i] not in apart]
    if not learn:
        raise UsageError(
            f"held_out={share} leaves nothing to learn from with {len(owners)} user(s); "
            "give a smaller share."
        )
    return learn, [(i, r) for i, r in records if owner[i] in apart]


def _score(tagger: Tagger, held_out: list[tuple[int, Record]], gold: Gold) -> dict[str, KindScore]:
    if not held_out:
        return {}
    tally = Tally()
    for (i, record), findings in zip(held_out, tagger.find([r for _, r in held_out]), strict=True):
        if record.text and gold.lines[i] and gold.lines[i][0].offsets[-1][1] == 0:
            continue  # tokens that do not stand in the text have no places to compare
        tags = [tag for line in gold.lines[i] for tag in line.tags]
        true = _findings(gold.lines[i], tags, [1.0] * len(tags))
        tally.add(*([Span(f.start, f.end, f.kind) for f in some] for some in (true, findings)))
    scores = tally.scores()
    named = {"all": scores.micro, **scores.kinds} if scores.kinds else {}
    return {
        kind: KindScore(round(s.precision, 4), round(s.recall, 4), round(s.f1, 4), s.support)
        for kind, s in named.items()
    }
