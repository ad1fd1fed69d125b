"""From settings to a corpus that may be shared, with its ledger and its certificate.

Everything before `_Session.begin` reads public things and the plan; what is refused there has cost
nothing. After it the ledger is on disk before any release is made, and what a release said is kept
beside it, so that a stop loses nothing and spends nothing twice.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from tacit.corpora import open_corpus
from tacit.corpus import Corpus
from tacit.corpus.overlap import Pieces, read_pieces
from tacit.corpus.reading import read
from tacit.corpus.splitting import training_part
from tacit.corpus.writing import write
from tacit.errors import DataError, OverBudget, PrivacyRefused, TacitError, UsageError
from tacit.files import beside, refuse_overwrite, whole_file, write_text
from tacit.owners import Owners
from tacit.planning.plan import Plan, calibrated
from tacit.privacy.certificates.certificate import (
    Certificate,
    certify,
    commitment,
    own_salt,
    publish,
)
from tacit.privacy.certificates.manifest import file_digest
from tacit.privacy.certificates.scope import PublicInput, Scope
from tacit.privacy.certificates.wording import TEXT
from tacit.privacy.ledger import Ledger, read_ledger
from tacit.sanitization import certificate_folder
from tacit.synthesis import choosing
from tacit.synthesis.candidates import Candidate, pool
from tacit.synthesis.generators import AnyGenerator, open_generator
from tacit.synthesis.quality import Figure, Texts, card
from tacit.synthesis.settings import Synthesis, read_settings, require_enough_users
from tacit.synthesis.space import Progress, Space
from tacit.synthesis.votes import Ballots, Columns, Voters, ballots, bounded, counted, heard
from tacit.training.data.account import write_account
from tacit.training.data.fingerprint import code_digest
from tacit.training.data.known_names import require_marks_of_others
from tacit.training.data.protected_entities import ProtectedEntities, list_digest, select_entities
from tacit.training.data.scope import USERS, entity_scope, scope_of_kinds
from tacit.training.data.substitution import marked
from tacit.training.data.training_data import Found, bounded_rows, found_in, rows_by_user
from tacit.training.dp.noise import release
from tacit.training.dp.random_source import RandomSource
from tacit.training.phases.continuing import Continued, require_same_protection
from tacit.training.phases.promising import allowed, promise_of
from tacit.training.tasks.encoding import label_codes, user_codes

_COMPARED = 20_000
"""Of larger corpora so many records are compared on the card."""
WORK = ".work"
"""Inside the certificate's folder: settings, candidates and what was released, until the end."""
_SETTINGS, _RELEASED, _TEXTS = "settings.yml", "released.json", "candidates-{}.jsonl"


@dataclass(frozen=True)
class Prepared:
    """What is known before anything is read: the plan with its noise, and the generator."""

    settings: Synthesis
    plan: Plan
    generator: AnyGenerator
    corpus: Corpus
    data: str

    @property
    def earlier(self) -> Continued | None:
        """The run that made the generator."""
        return self.generator.earlier


@dataclass(frozen=True)
class Synthesized:
    """A synthetic corpus, and the folder of its certificate beside it.

    `unselected` are candidates as the generator wrote them, which nobody voted for.
    """

    file: Path
    folder: Path
    certificate: Certificate
    settings: Synthesis
    unselected: Corpus

    @property
    def corpus(self) -> Corpus:
        """The texts."""
        return read(self.file)

    def quality(self, beside: Mapping[str, Corpus] | None = None) -> list[Figure]:
        """The figures of the text beside its private text; most of them are private themselves."""
        whole = open_corpus(self.settings.corpus, self.settings.data)
        space = Space(self.settings.space, self.settings.read)

        def placed(corpus: Corpus) -> Texts:
            return Texts.of(corpus, space, _COMPARED)

        test = placed(whole.only("test")) if "test" in whole.splits() else None
        others = {"unselected": self.unselected, **(beside or {})}
        return card(
            placed(self.corpus), placed(training_part(whole)), test,
            {name: placed(corpus) for name, corpus in others.items()},
        )  # fmt: skip


def prepared(settings: Synthesis) -> Prepared:
    """The plan with noise that meets its targets, the generator's run included.

    Only the generator is looked at, and the corpus's own digest, by which that run is known to be
    one on this text.
    """
    plan = settings.made_plan()
    corpus = open_corpus(settings.corpus, settings.data)
    data = commitment(corpus.digest(), own_salt())
    generator = open_generator(settings.generator, settings.tokens, of_corpus=data)
    if settings.rounds > 1 and not generator.varies:
        raise UsageError("Given texts are not varied, so there is one round; leave rounds out.")
    earlier = generator.earlier
    plan = calibrated(plan, also=earlier.releases if earlier else None)
    require_enough_users(settings, plan)
    if plan.entity_list is not None:
        committed = commitment(list_digest(Path(plan.entity_list)), own_salt())
        plan = plan.model_copy(update={"entity_list": committed})
    return Prepared(settings, plan, generator, corpus, data)


def synthesize_file(
    ready: Prepared, to: Path, *, overwrite: bool = False, progress: Progress | None = None
) -> Synthesized:
    """Make the corpus; its certificate, ledger and, until it is done, its work lie beside it."""
    folder = certificate_folder(to)
    refuse_overwrite(to, overwrite=overwrite)
    if folder.exists() and not overwrite:
        raise UsageError(f"{folder} exists; choose another name, --resume, or --overwrite.")
    session = _Session(ready, to, progress)
    session.require_material()
    if folder.exists():
        shutil.rmtree(folder)
    return session.run()


def resume_file(to: Path, *, progress: Progress | None = None) -> Synthesized:
    """Go on with a corpus that was stopped; refused if its text, settings or our code changed."""
    place = certificate_folder(to) / WORK / _SETTINGS
    if not place.exists():
        raise DataError(f"{to} was not begun, or is finished; there is nothing to go on with.")
    session = _Session(prepared(read_settings(place)), to, progress)
    session.require_material()
    return session.run()


class _Session:
    """One corpus under way."""

    def __init__(self, ready: Prepared, to: Path, progress: Progress | None) -> None:
        self.ready, self.to, self.folder = ready, to, certificate_folder(to)
        self.settings, self.plan = ready.settings, ready.plan
        self.progress = progress
        self.randomness = RandomSource(self.settings.seed)
        self.kinds = len(self.settings.labels or ("",))

    # --- what it works on -----------------------------------------------------------------------

    @cached_property
    def part(self) -> Corpus:
        """The private records, as they were written."""
        return training_part(self.ready.corpus)

    @cached_property
    def found(self) -> Found:
        """What is sensitive in them."""
        return found_in(self.ready.corpus, self.settings.detect, self.settings.mentions)

    @cached_property
    def read(self) -> Corpus:
        """The private records as they are compared: with invented names where names are protected.

        *Guarantee*: with names protected, nothing that is compared depends on one.
        """
        if not self.plan.about_names:
            return self.part
        require_marks_of_others(self.found.provenance)
        own = marked(
            self.plan, self.part, self.found.mentions, self.found.entities,
            provenance=self.found.provenance,
        )  # fmt: skip
        return own.base_corpus(self.part)

    @cached_property
    def graph(self) -> Owners | None:
        """Who names whom, where entities are protected."""
        if "entities" not in self.plan.protect:
            return None
        listed = self.settings.plan.get("entity_list")
        chosen = select_entities(
            self.plan.kinds, Path(listed) if listed else None, self.found.mentions,
            self.found.entities,
        )  # fmt: skip
        focus = chosen or ProtectedEntities(self.plan.kinds)
        return focus.owners(self.part, self.found.mentions)

    @cached_property
    def space(self) -> Space:
        """Where texts are compared."""
        return Space(self.settings.space, self.settings.read)

    def require_material(self) -> None:
        """Refuse what could not be carried out, before anything is written or spent."""
        self.part.require_users()
        about = "entities" in self.plan.protect or self.plan.about_names
        if about and self.settings.mentions is None and self.settings.detect is None:
            raise UsageError(
                f"protect={self.plan.protect} needs to know what is marked; give mentions, or "
                "detect (patterns,lists,names)."
            )
        self.ready.generator.require()
        self._labels()
        self.space  # noqa: B018
        self.public  # noqa: B018

    @cached_property
    def public(self) -> tuple[PublicInput, ...]:
        """What is said to be public, compared with the private text where it can be."""

        @cache
        def pieces() -> Pieces:
            return read_pieces(self.ready.corpus)

        own = self.ready.generator.input(pieces)
        return (*([own] if own else []), self.space.input())

    def _labels(self) -> NDArray[np.int64]:
        if self.settings.labels is None:
            return np.zeros(len(self.part), dtype=np.int64)
        return label_codes(self.part, self.settings.labels, training=True)[0]

    @cached_property
    def voters(self) -> Voters:
        """The private records as they vote."""
        texts = self.read.column("text").to_pylist()
        points = self.space.points(texts, "private records", self.progress)
        owned = _Owned(user_codes(self.part))
        rows = np.arange(len(self.part))
        if self.graph is not None:
            rows = bounded_rows(self.plan, self.graph, owned)[1]
        words = np.array([len(text.split()) for text in texts], dtype=np.int64)
        return Voters(points, self._labels(), words, rows, rows_by_user(owned, rows))

    # --- releases -------------------------------------------------------------------------------

    def run(self) -> Synthesized:
        """All releases that are left, then the file and its certificate."""
        work = self.folder / WORK
        work.mkdir(parents=True, exist_ok=True)
        planted = beside(Path(self.settings.corpus), "canaries")
        if planted.is_file():  # the one beside the corpus may be replaced
            with whole_file(self.folder / "canaries.json") as draft:
                shutil.copyfile(planted, draft)
        if not (work / _SETTINGS).exists():
            fields = self.settings.model_dump(mode="json")
            write_text(work / _SETTINGS, yaml.safe_dump(fields, sort_keys=False))
        try:
            with Ledger(
                self.folder / "ledger.jsonl", self._first_line(), allows=allowed(self.plan)
            ) as ledger:
                if self.ready.earlier is not None:
                    ledger.carry(self.ready.earlier.books)
                kept = self._chosen(ledger)
        except TacitError:
            self._clear_unless_spent()
            raise
        return self._finish(kept)

    def _clear_unless_spent(self) -> None:
        """Take away what was begun where nothing was released and no candidate is lost."""
        path = self.folder / "ledger.jsonl"
        begun = path.exists() and read_ledger(path).own_releases()
        if not begun and not any((self.folder / WORK).glob("candidates-*")):
            shutil.rmtree(self.folder)

    def _chosen(self, ledger: Ledger) -> list[tuple[Candidate, int]]:
        """The texts that are kept, with their labels."""
        settings = self.settings
        shares = choosing.even(self.kinds)
        if settings.histogram:
            said = counted(self.voters, self.kinds, settings.lengths)
            counts = self._heard("histogram", 0, said, ledger)
            shares = choosing.shares_of(counts, self.kinds)
        kept: list[tuple[Candidate, int]] = []
        for round_ in range(1, settings.rounds + 1):
            candidates = self._candidates(round_, shares, [one for one, _ in kept])
            if round_ == 1:
                self.unselected = self._unselected(candidates)
            kept = self._voted(round_, candidates, shares, ledger)
        return kept

    def _unselected(self, candidates: list[Candidate]) -> Corpus:
        """As many candidates as are wanted, evenly, with the labels of their prompts."""
        most, labels = self.settings.texts, self.settings.labels
        rows = np.linspace(0, len(candidates) - 1, min(most, len(candidates))).astype(int)
        some = [candidates[row] for row in rows.tolist()]
        return Corpus.from_records(
            {"id": str(number), "text": one.text}
            | ({"label": labels[one.label]} if labels and one.label is not None else {})
            for number, one in enumerate(some)
        )

    def _candidates(
        self, round_: int, shares: choosing.Shares, parents: list[Candidate]
    ) -> list[Candidate]:
        """The best of the round before with their variations; at first, new ones."""
        settings = self.settings
        count = settings.texts * settings.candidates - len(parents)
        of_labels = shares.sum(1) if settings.labelled else np.ones(1)
        made = pool(
            settings, self.ready.generator, choosing.quotas(of_labels, count).tolist(),
            self.folder / WORK / _TEXTS.format(round_), parents=parents, round_=round_,
            progress=self.progress,
        )  # fmt: skip
        return [*parents, *made]

    def _voted(
        self, round_: int, candidates: list[Candidate], shares: choosing.Shares, ledger: Ledger
    ) -> list[tuple[Candidate, int]]:
        """One round of votes, and what is kept by them."""
        settings = self.settings
        columns = Columns.of([one.label for one in candidates], self.kinds)
        if len(columns.of_label) < self.kinds:
            raise DataError(
                "A label has no candidate to vote for; give prompts that yield some, or more "
                "candidates."
            )
        texts = [one.text for one in candidates]
        points = self.space.points(texts, f"points of candidates, round {round_}", self.progress)
        said = ballots(self.voters, points, columns, settings.neighbours)
        votes = self._heard(f"votes {round_}", round_, said, ledger)
        votes = choosing.smoothed(points, columns, votes, settings.smooth)
        best = choosing.labelled(columns, votes)
        label = columns.label[best]
        length = choosing.cells([one.words for one in candidates], settings.lengths)
        wanted = choosing.quotas(shares, min(settings.texts, len(candidates)))
        noise = float(self.plan.noise_multiplier or 0) * self.plan.clip_norm
        kept = choosing.keep(votes[best], label, length, wanted, noise)
        return [(candidates[at], int(label[at])) for at in kept]

    def _heard(self, phase: str, step: int, said: Ballots, ledger: Ledger) -> NDArray[np.float64]:
        """A sum with noise, released once: what was heard before is not asked again."""
        place = self.folder / WORK / _RELEASED
        kept: dict[str, Any] = json.loads(place.read_text("utf-8")) if place.exists() else {}
        if phase not in kept:
            if self.progress is not None:
                self.progress(phase, 0, 1)
            total = bounded(self.plan, self.voters, said)
            try:
                noisy = release(
                    total, self.plan.event(), ledger, self.randomness, phase=phase, step=step
                )
            except OverBudget:
                raise PrivacyRefused(
                    f"The release of {phase} was charged before and lost in a crash, and the "
                    "budget has no room for another; begin anew under another name, which is a "
                    "price of its own."
                ) from None
            kept[phase] = heard(noisy).tolist()
            write_text(place, json.dumps(kept, allow_nan=False))
        return np.array(kept[phase])

    # --- words and files ------------------------------------------------------------------------

    def _first_line(self) -> dict[str, Any]:
        """What is to be released, about whom, from what, by which code."""
        salt, earlier = own_salt(), self.ready.earlier
        scope = self._scope(salt)
        require_same_protection(earlier, scope, self.plan)
        about: dict[str, Any] = {
            "released": TEXT,
            "plan": self.plan.digest(),
            "config": self.settings.digest(),
            "data": self.ready.data,
            "randomness": self.randomness.name,
            "code": code_digest("synthesis"),
            "scope": scope.model_dump(mode="json"),
            "public": [one.model_dump(mode="json") for one in self.public],
        }
        if earlier is not None:
            about["earlier"] = earlier.inherited().model_dump(mode="json")
        return about

    def _scope(self, salt: bytes) -> Scope:
        if self.graph is None and not self.plan.about_names:
            return Scope(users=USERS)
        origin, plan = self.found.provenance, self.plan
        found = entity_scope(origin, plan.kinds, plan.entity_list, salt)
        if self.graph is not None:
            own = set(self.part.column("id").to_pylist())
            seen = {m.kind for m in self.found.mentions if m.record in own}
            return Scope(users=USERS, entities=scope_of_kinds(found, origin, seen))
        shown = {"public": plan.public_entities, "shown_kinds": plan.shown_kinds}
        return Scope(users=USERS, entities=found.model_copy(update=shown))

    def _finish(self, kept: list[tuple[Candidate, int]]) -> Synthesized:
        """Write the texts in an order of their own, certify them, and take the work away."""
        order = self.randomness.stream("subset", 1).permutation(len(kept))
        labels = self.settings.labels
        records = [
            {"id": str(number + 1), "text": kept[at][0].text}
            | ({"label": labels[kept[at][1]]} if labels else {})
            for number, at in enumerate(order.tolist())
        ]
        try:
            with whole_file(self.to) as draft:
                write(Corpus.from_records(records, name=self.to.name), draft)
                files = {self.to.name: file_digest(draft)}
        except OSError as problem:
            raise DataError(
                f"{self.to} could not be written ({problem.strerror}); nothing is lost: make room, "
                "then --resume."
            ) from None
        write_account(self.folder, self.part, own_salt())
        books = read_ledger(self.folder / "ledger.jsonl")
        made = certify(
            books, promise_of(self.plan, None), context=self._context(len(kept)), files=files
        )
        certificate = publish(made, self.folder)
        shutil.rmtree(self.folder / WORK)
        (self.folder / "ledger.jsonl.lock").unlink(missing_ok=True)
        return Synthesized(self.to, self.folder, certificate, self.settings, self.unselected)

    def _context(self, kept: int) -> Mapping[str, Any]:
        shown = self.settings.shareable()
        names = ("generator", "rounds", "candidates", "neighbours", "space", "histogram")
        return {"method": "private selection of candidates", "texts": kept} | {
            name: shown[name] for name in names
        }


@dataclass(frozen=True, eq=False)
class _Owned:
    """Records of users, as far as caps need them: one vote each."""

    user: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.user)

    @property
    def record(self) -> NDArray[np.int32]:
        return np.arange(len(self), dtype=np.int32)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.ones(len(self), dtype=np.int64)

    def batch(self, rows: NDArray[Any]) -> dict[str, Any]:
        raise NotImplementedError("Votes are laid out by their ballots.")
