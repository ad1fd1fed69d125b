"""A client: the records of one user, or of some, which never leave it.

What leaves is one update for each drawn user, clipped by the code that trains centrally. A user
whose records cannot be used contributes nothing and leaves the other users of the client as they
are: else one user's text could decide whether the others' count.
"""

import hashlib
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, RecordDict
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from tacit.corpora import open_corpus
from tacit.corpus import Corpus
from tacit.corpus.splitting import training_part
from tacit.errors import DataError, TacitError, UsageError
from tacit.federated.keyed_names import entity_name, read_key, user_name
from tacit.federated.protocol import Answer, Kit, Present, Round, Update, unpacked
from tacit.federated.settings import CANNOT, Federation
from tacit.files import whole_file
from tacit.planning.plan import Plan
from tacit.training.data.known_names import require_marks_of_others
from tacit.training.data.protected_entities import ProtectedEntities
from tacit.training.data.substitution import marked
from tacit.training.data.training_data import (
    Found,
    Rows,
    TrainingData,
    find_mentions,
)
from tacit.training.dp import dropout
from tacit.training.dp.random_source import RandomSource
from tacit.training.dp.updates import ClippedUpdates
from tacit.training.methods.dp_fedavg import LocalSettings, train_locally
from tacit.training.methods.method import MethodInputs
from tacit.training.methods.noisy_sums import LossMeter, NoisySumMethod
from tacit.training.models import weights
from tacit.training.models.memory import keep_freed_memory
from tacit.training.models.tokens import load_tokenizer
from tacit.training.phases.run_context import encode_names, make_model
from tacit.training.settings import Run
from tacit.training.tasks.examples import Examples, Spans
from tacit.training.tasks.tasks import Classification, NextWord, Regression, Task

log = logging.getLogger("tacit.federated")

PERSONAL = "personal.safetensors"
Node = Mapping[str, Any]
"""What whoever runs a client says of it: corpus, mentions, key, home, model; or which part."""


def join(content: RecordDict, node: Node) -> RecordDict:
    """Take the kit, and say who is here, under keyed names."""
    try:
        kit = Kit.read(content)
        place = _Place.of(kit, node)
        place.keep_kit(kit)
        local = _Local.open(kit, place)
        local.require_same_corpus(begin=True)
        local.require_independent_users()
        return local.present().record()
    except Exception as error:
        # The server learns that it failed and not why: a message might name files of ours.
        log.error("%s: %s", CANNOT, _said(error))
        return RecordDict({"refused": ConfigRecord({"because": type(error).__name__})})


def update(content: RecordDict, node: Node) -> RecordDict:
    """One clipped update for each of our users that was drawn for this round."""
    asked = Round.read(content)
    try:
        kit, place = _kept_kit(asked.kit, node)
    except TacitError as error:
        log.error("%s", error)
        return RecordDict({"refused": ConfigRecord({"because": "no kit"})})
    try:
        local = _Local.open(kit, place)
        local.require_same_corpus()
        local.take(dict(unpacked(content.array_records["weights"])))
        local.require_independent_users(asked.step)
    except Exception as error:
        log.error("%s in round %d: %s", CANNOT, asked.step, _said(error))
        return RecordDict({"refused": ConfigRecord({"because": type(error).__name__})})
    updates, records = {}, {}
    for place_in_round, number in enumerate(asked.numbers):
        try:
            updates[number], count = local.update(asked, place_in_round)
            if local.plan is None:
                records[number] = count
        except Exception as error:  # whatever it is, it must stay with this user
            log.error("A user's update could not be computed: %s", type(error).__name__)
    return Answer(asked.step, asked.attempt, updates, records).record()


def _said(error: Exception) -> str:
    """Our own words; those of others may quote text, so of them only the kind is told."""
    return str(error) if isinstance(error, TacitError) else type(error).__name__


# --- where things lie -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """Where a client's corpus, mentions, key, models and own files are."""

    corpus: str
    data: str | None
    mentions: str | None
    key: Path
    home: Path
    model: str | None
    part: int | None
    parts: int

    @classmethod
    def of(cls, kit: Kit, node: Node) -> "_Place":
        dealt = kit.settings.get("dealt") or {}
        own = node.get("corpus")
        if own is None and not (dealt and "partition-id" in node):
            raise UsageError("This client has no corpus; start it with `tacit federate join`.")
        home = _home(node)
        return cls(
            corpus=str(own or dealt["corpus"]),
            data=_text(node.get("data") or (dealt.get("data") if own is None else None)),
            mentions=_text(
                node.get("mentions") or (dealt.get("mentions") if own is None else None)
            ),
            key=Path(str(node.get("key") or home / "key")),
            home=home,
            model=_text(node.get("model")),
            part=int(node["partition-id"]) if own is None else None,
            parts=int(node["num-partitions"]) if own is None else 1,
        )

    def keep_kit(self, kit: Kit) -> None:
        """Write the kit where the next question finds it: Flower may ask another process."""
        folder = self.home / "kits" / kit.digest
        if folder.exists():
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(mkdtemp(prefix=".kit.", dir=folder.parent))
        try:
            (draft / "files").mkdir()
            for name, content in kit.files.items():
                if Path(name).name != name:
                    raise DataError("The kit names a file outside its folder.")
                (draft / "files" / name).write_bytes(content)
            settings = json.dumps(kit.settings, allow_nan=False)
            (draft / "settings.json").write_text(settings, encoding="utf-8")
            if not folder.exists():
                os.replace(draft, folder)
        except OSError:
            if not folder.exists():  # somebody else was faster, which is as well
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _home(node: Node) -> Path:
    given = node.get("home") or os.environ.get("TACIT_CLIENT_HOME")
    if given is None:
        raise UsageError("This client has no folder of its own; start it with --home FOLDER.")
    return Path(str(given))


def _kept_kit(digest: str, node: Node) -> tuple[Kit, _Place]:
    """The kit that this client took before."""
    home = _home(node)
    folder = home / "kits" / Path(digest).name
    try:
        settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
        files = {f.name: f.read_bytes() for f in (folder / "files").iterdir()}
    except (OSError, ValueError):
        raise DataError(f"{folder} does not hold the kit of this federation.") from None
    kit = Kit(settings, files)
    if kit.digest != digest:
        raise DataError(f"{folder} was changed; remove it, and it is sent again.")
    return kit, _Place.of(kit, node)


# --- what is computed -------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _whole_corpus(name: str, data: str | None, _changed: float) -> tuple[Corpus, dict[str, int]]:
    """A corpus, and the number of each of its users; a simulation asks for it again and again."""
    part = training_part(open_corpus(name, data))
    return part, {user: number for number, user in enumerate(part.users())}


def _own_corpus(place: _Place) -> Corpus:
    path = Path(place.corpus)
    changed = path.stat().st_mtime if path.exists() else 0.0
    corpus, number = _whole_corpus(place.corpus, place.data, changed)
    if place.part is None:
        return corpus
    users = corpus.require_users().to_pylist()
    mine = [row for row, user in enumerate(users) if number[user] % place.parts == place.part]
    if not mine:
        raise DataError(f"Part {place.part} of {place.parts} has no user; make fewer parts.")
    return corpus.take(mine)


def _found(run: Run, place: _Place, corpus: Corpus) -> Found:
    """What is marked in a client's records: by its own file, else by the run's detectors."""
    if place.mentions is None:
        return find_mentions(run.model_copy(update={"mentions": None}), corpus)
    searched = corpus
    if place.part is not None:  # the file is about the whole corpus, of which this has a part
        changed = Path(place.corpus).stat().st_mtime
        searched = _whole_corpus(place.corpus, place.data, changed)[0]
    own = run.model_copy(update={"mentions": place.mentions, "detect": None})
    return find_mentions(own, searched)


@lru_cache(maxsize=1)
def _learnt_text(
    kit: str, folder: Path, place: _Place, _corpus: str
) -> tuple[Corpus, Spans | None]:
    """What is learnt from: the records as they are, or with invented names where the plan says so.

    With these comes where they stand for names that are read and not learnt.

    Names are replaced here, by the function that central training uses, and nothing but base texts
    is ever tokenized; a client whose mentions cannot be had does not take part.
    """
    corpus = _own_corpus(place)
    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    plan = Plan(**settings["plan"]) if settings["plan"] is not None else None
    if plan is None or not plan.about_names:
        return corpus, None
    run = Run(**settings["run"])
    if run.detect is None and place.mentions is None:
        raise DataError(
            f"protect={plan.protect} needs mentions, or the names would be learnt as they stand; "
            "give this client's file (--mentions)."
        )
    found = _found(run, place, corpus)
    require_marks_of_others(found.provenance)
    names = marked(plan, corpus, found.mentions, found.entities, provenance=found.provenance)
    ids = corpus.column("id").to_pylist()
    return names.base_corpus(corpus), {id_: names.unlearnt(row) for row, id_ in enumerate(ids)}


@lru_cache(maxsize=1)
def _tools(
    kit: str, folder: Path, model: str | None
) -> tuple[Run, PreTrainedTokenizerBase, Task, nn.Module]:
    """Tokenizer, task and model of a kit."""
    keep_freed_memory()
    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    run = Run(**settings["run"])
    # The weights come with every round, so whatever would make first ones is left out.
    changed: dict[str, Any] = {"public_frequencies": False, "embeddings": None}
    if model is not None:
        changed["folder"] = model
    run = run.model_copy(
        update={"model": run.model.model_copy(update=changed), "pretrain": None, "corpus": ""}
    )
    tokenizer = load_tokenizer(folder / "files")
    task = _task(run, settings.get("labels"))
    made = make_model(run, task, tokenizer)
    return run, tokenizer, task, made


def _task(run: Run, labels: list[str] | None) -> Task:
    if run.task == "classification":
        return Classification(tuple(labels or ()))
    if run.task == "regression":
        return Regression(*run.label_range)
    return NextWord(long="truncate", weigh=run.weigh)


def is_personal(name: str, personal: tuple[str, ...]) -> bool:
    """Whether a parameter stays with the clients.

    >>> is_personal("head.weight", ("head",)), is_personal("header.weight", ("head",))
    (True, False)
    """
    return any(name == p or name.startswith(p.rstrip(".") + ".") for p in personal)


def frozen_digest(model: nn.Module, sent: Mapping[str, Tensor], personal: tuple[str, ...]) -> str:
    """A digest of the weights that are neither sent nor personal, which all must have alike."""
    others = {
        name: digest
        for name, digest in weights.snapshot(model).items()
        if name not in sent and not is_personal(name, personal)
    }
    return json.dumps(others, sort_keys=True, allow_nan=False) if others else ""


class _Local:
    """A client with everything in memory."""

    def __init__(
        self, kit: Kit, place: _Place, corpus: Corpus, learnt: Corpus, examples: Examples, run: Run,
        task: Task, model: nn.Module,
    ) -> None:  # fmt: skip
        self.run, self.federation = run, Federation(**kit.settings["federation"])
        given = kit.settings["plan"]
        self.plan = Plan(**given) if given is not None else None
        self._id, self._place = str(kit.settings["id"]), place
        self._corpus, self._learnt = corpus, learnt
        self._examples, self._task, self._model = examples, task, model
        self._start = place.home / "kits" / kit.digest / "files" / PERSONAL
        key, users = read_key(place.key), corpus.users()
        self._users = tuple(user_name(key, self._id, user) for user in users)
        self._code = {name: code for code, name in enumerate(self._users)}
        self._key, self._randomness = key, RandomSource(run.seed)
        personal = self.federation.personal
        self._sent = {n: p for n, p in model.named_parameters() if n in set(kit.settings["shared"])}
        self._own = {n: p for n, p in model.named_parameters() if is_personal(n, personal)}
        if self._sent.keys() != set(kit.settings["shared"]):
            raise DataError("This client's model has other parameters than the server's.")

    @classmethod
    def open(cls, kit: Kit, place: _Place) -> "_Local":
        """Read, tokenize, and put the model in memory."""
        folder = place.home / "kits" / kit.digest
        run, tokenizer, task, model = _tools(kit.digest, folder, place.model)
        corpus = _own_corpus(place)
        corpus.require_users()
        learnt, unlearnt = _learnt_text(kit.digest, folder, place, corpus.digest())
        examples = (
            task.encode(learnt, tokenizer, context=run.context)
            if unlearnt is None
            else encode_names(task, learnt, tokenizer, run.context, unlearnt)
        )
        return cls(kit, place, corpus, learnt, examples, run, task, model)

    def require_same_corpus(self, *, begin: bool = False) -> None:
        """Refuse a file that changed since this client joined: the server counts on its records.

        Where names are replaced that is what is learnt instead, for marks are held fixed, too.
        """
        place, learnt = self._place, self._learnt.digest()
        name = hashlib.sha256(f"{place.corpus}\0{place.part}".encode()).hexdigest()[:16]
        pin = self._start.parent.with_name(f"{name}.corpus")
        if begin and not pin.exists():
            pin.write_text(learnt, encoding="ascii")
        if not pin.exists() or pin.read_text(encoding="ascii") != learnt:
            raise DataError(
                f"{place.corpus}, or what is marked in it, is not what it was when this client "
                "joined; put it back, or take part in the next federation."
            )

    def present(self) -> Present:
        """Who is here; with the graph, where the plan caps entities."""
        frozen = frozen_digest(self._model, self._sent, self.federation.personal)
        if self.plan is None or not self.plan.caps:
            return Present(self._users, version("tacit"), frozen)
        found = _found(self.run, self._place, self._corpus)
        graph = ProtectedEntities(self.plan.kinds).owners(self._corpus, found.mentions)
        named = {e.id: e.name for e in found.entities}
        if any(entity not in named for entity in graph.entities):
            raise DataError(
                f"{self._place.mentions} has no table of entities beside it (its name with "
                ".entities.jsonl); without it one entity could have several keyed names, and its "
                "cap would not hold."
            )
        keyed = [
            entity_name(self._key, self._id, named[e], kind)
            for e, kind in zip(graph.entities, graph.kinds, strict=True)
        ]
        code = {user: number for number, user in enumerate(self._corpus.users())}
        return Present(
            self._users,
            version("tacit"),
            frozen,
            tuple(code[graph.users[u]] for u in graph.record_user),
            tuple(tuple(keyed[e] for e in graph.entities_of(r)) for r in range(len(graph))),
        )

    @torch.no_grad()
    def take(self, given: Mapping[str, Tensor]) -> None:
        """Put the server's weights in place."""
        if given.keys() != self._sent.keys():
            raise DataError("The round brings other parameters than the kit said.")
        for name, tensor in given.items():
            self._sent[name].copy_(tensor)
        self._before = {name: p.detach().clone() for name, p in self._sent.items()}

    def require_independent_users(self, step: int | None = None) -> None:
        """Refuse a model in which a user's update depends on other users' records.

        It is looked at when this client joins, and again before some rounds.
        """
        if self.plan is None:
            return
        rows = np.arange(len(self._examples))
        training_data = TrainingData(self._examples, rows, (rows,), None, None)
        check = self.run.spec.unit_check(self._inputs(training_data))
        assert check is not None
        with _only_trainable(self._model, self._sent):
            check.need(first=True) if step is None else check.due(step)

    def update(self, asked: Round, place: int) -> tuple[Update, int]:
        """The clipped update of one user, and how many records it comes from."""
        number, name = asked.numbers[place], asked.names[place]
        rows = self._rows(name, asked.permits[place] if asked.permits is not None else None)
        of_user: list[Rows] = [rows[:0]] * asked.users
        of_user[number] = rows
        training_data = TrainingData(self._examples, rows, tuple(of_user), None, None)
        meter = LossMeter(self._model, self.run.spec.losses(self._task))
        self._model.train()
        seed = self._randomness.torch_seed("dropout", asked.step)
        try:
            # Clients number their records from 0, so coins are keyed by the user as well.
            with dropout.step(seed), dropout.part(number):
                self._learn_personal(name, meter, training_data, asked)
                with _only_trainable(self._model, self._sent):
                    total = self._total(meter, training_data)(asked.step, np.asarray([number]))
        finally:
            with torch.no_grad():
                for own, parameter in self._sent.items():
                    parameter.copy_(self._before[own])
        made = {n: t.detach().cpu().numpy() for n, t in total.tensors.items()}
        return made, len(rows)

    def _rows(self, name: str, permitted: tuple[int, ...] | None) -> Rows:
        """The examples that a user may use."""
        rows = np.flatnonzero(self._examples.user == self._code[name])
        if permitted is None:
            return rows
        allowed = np.isin(self._examples.record[rows], np.asarray(permitted, dtype=np.int64))
        return rows[allowed]

    def _total(self, meter: LossMeter, training_data: TrainingData) -> Callable[[int, Any], Any]:
        """The sum over users, as central training has it; here over one of them."""
        if self.plan is None:
            local = self.federation.local
            return lambda step, drawn: ClippedUpdates(self._model).users(
                lambda _: self._train(meter, training_data, local, step, int(drawn[0])), 1,
                clip_norm=math.inf,
            )  # fmt: skip
        method = self.run.spec
        assert isinstance(method, NoisySumMethod)
        return method.totals(self._inputs(training_data), meter)

    def _inputs(self, training_data: TrainingData) -> MethodInputs:
        return MethodInputs(
            self.run,
            self._model,
            self.run.spec.losses(self._task),
            training_data,
            self._randomness,
            self.plan,
        )

    def _train(
        self,
        meter: LossMeter,
        training_data: TrainingData,
        local: LocalSettings,
        step: int,
        number: int,
    ) -> int:
        rng = self._randomness.of_users("order", step, training_data.users)(number)
        return train_locally(self._model, meter, training_data, training_data.rows, local, rng)

    def _learn_personal(
        self, name: str, meter: LossMeter, training_data: TrainingData, asked: Round
    ) -> None:
        """Train what is this user's own, with what is shared held still; it stays on our disk.

        Source: Pillutla et al. 2022 (alternating updates of personal and shared parameters).
        """
        if not self._own:
            return
        kept = self._place.home / "personal" / self._id / f"{name}.safetensors"
        found = load_file(kept if kept.exists() else self._start)
        with torch.no_grad():
            for own, parameter in self._own.items():
                parameter.copy_(found[own])
        number = asked.numbers[asked.names.index(name)]
        with _only_trainable(self._model, self._own):
            self._train(meter, training_data, self.federation.personal_training, asked.step, number)
        if not all(bool(torch.isfinite(p).all()) for p in self._own.values()):
            raise DataError("A user's personal parameters are not finite.")
        with whole_file(kept) as draft:
            save_file({n: p.detach().clone() for n, p in self._own.items()}, draft)


@contextmanager
def _only_trainable(model: nn.Module, chosen: Mapping[str, Tensor]) -> Iterator[None]:
    """Nothing but these parameters is trained meanwhile."""
    before = {name: p.requires_grad for name, p in model.named_parameters()}
    try:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in chosen)
        yield
    finally:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(before[name])
