"""A federated run, as its server sees it: the one loop, with sums that come from clients.

The server throws a coin for every user in every round, asks the clients of those that were drawn,
checks each update and adds it up. What follows is central training's own code: the ledger has the
release, noise is added once, the sum is divided by a public constant.

*When a round completes*: always, once its deadline has passed or everybody has answered, with
whatever came and all of the noise. It does not depend on who was drawn, or on who answered, so
neither shows. A missing update is a zero, which is within the bound of its user.
*When it is abandoned*: only before it begins, if too few clients are connected. Nothing has then
been drawn or charged, and the run can be resumed.
"""

import json
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from flwr.app import RecordDict
from flwr.serverapp import Grid
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tacit.errors import DataError, TacitError, UsageError
from tacit.federated.asking import Asking, Clock, Faults, Question
from tacit.federated.client import PERSONAL, frozen_digest, is_personal
from tacit.federated.protocol import JOIN, TRAIN, Kit, Present, Round, packed
from tacit.federated.receiving import Received, Refused
from tacit.federated.roster import Roster, Whereabouts, make_roster
from tacit.federated.settings import (
    FOLDER,
    NAME,
    Federation,
    federation_yaml,
    need_federated,
    read_federation,
)
from tacit.files import whole_file
from tacit.plan import Plan, calibrated, plan_yaml, read_plan
from tacit.privacy.certificate import commitment, own_salt
from tacit.privacy.events import NotPrivate
from tacit.privacy.ledger import Ledger
from tacit.training import weights
from tacit.training.checkpoints import kept_folder, kept_steps, read_place, trainable
from tacit.training.fingerprint import code_digest
from tacit.training.going_on import earlier_books, need_same_owners
from tacit.training.gradients import BoundedSum
from tacit.training.loop import Loop, Progress, make_optimizer
from tacit.training.methods import Method, NoisySums, Seen
from tacit.training.methods.noisy import Watched
from tacit.training.methods.private import denominator, poisson
from tacit.training.opening import Opened, open_run
from tacit.training.public_start import start_on_public_text
from tacit.training.randomness import Chance
from tacit.training.runs import Trained, finish
from tacit.training.sampling import Drawn, PoissonUsers
from tacit.training.settings import PLANNED, Run, read_run, run_yaml
from tacit.training.spent import Spent


@dataclass(frozen=True)
class Told:
    """What is said after a round; everything but `spent` is exact and must stay inside."""

    round: int
    rounds: int
    spent: str
    drawn: int
    answered: int
    faults: Mapping[str, int]


Tell = Callable[[Told], None]


# --- the folder -------------------------------------------------------------------------------


def begin(
    run: Run, federation: Federation, folder: Path, *, dealt: Mapping[str, Any] | None = None
) -> Path:
    """Write a new run's folder: settings, and the plan with its noise.

    `dealt` says which corpus is dealt to the clients of a simulation, who have none of their own.
    """
    need_federated(run, federation)
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty; give a new folder, or --resume {folder}.")
    plan, earlier = run.made_plan(), earlier_books(run)
    if plan is not None:
        need_same_owners(run, plan)
        plan = calibrated(plan, also=earlier.releases() if earlier is not None else None)
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    _write(folder / "run.yml", run_yaml(run))
    _write(folder / NAME, federation_yaml(federation))
    if plan is not None:
        _write(folder / "plan.yml", plan_yaml(plan))
    _write(folder / FOLDER / "id", secrets.token_hex(16))
    if dealt is not None:
        _write(folder / FOLDER / "dealt.json", json.dumps(dict(dealt)))
    return folder


def _write(path: Path, text: str) -> None:
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8")


# --- what clients are given -------------------------------------------------------------------


_OWN = {"corpus", "data", "mentions", "tokenizer", "pretrain"}
"""Settings of a run that are about the server's own files."""


def make_kit(
    opened: Opened,
    plan: Plan | None,
    federation: Federation,
    folder: Path,
    shared: Mapping[str, Any],
) -> Kit:
    """Everything a client needs but the weights, which come with every round."""
    settings: dict[str, Any] = {
        "id": (folder / FOLDER / "id").read_text(encoding="utf-8"),
        "run": opened.run.model_dump(mode="json", exclude=_OWN) | {"corpus": "the client's own"},
        "plan": plan.model_dump(mode="json") if plan else None,
        "federation": federation.model_dump(mode="json"),
        "labels": list(getattr(opened.task, "labels", None) or ()) or None,
        "shared": list(shared),
    }
    dealt = folder / FOLDER / "dealt.json"
    if dealt.exists():
        settings["dealt"] = json.loads(dealt.read_text(encoding="utf-8"))
    if settings["run"].get("detect") is None and plan is not None and "entities" in plan.protect:
        # Which file of mentions a client has is its own affair; that it needs one is not.
        settings["run"]["mentions"] = "the client's own"
    draft = Path(mkdtemp(prefix="tacit-kit-"))
    try:
        opened.tokenizer.save_pretrained(str(draft))
        files = {file.name: file.read_bytes() for file in sorted(draft.iterdir())}
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    personal = folder / FOLDER / PERSONAL
    if personal.exists():
        files[PERSONAL] = personal.read_bytes()
    return Kit(settings, files)


def keep_personal(model: nn.Module, federation: Federation, folder: Path) -> None:
    """Take personal parameters out of what is learnt here; clients begin with them as they are."""
    if not federation.personal:
        return
    own = {n: p for n, p in model.named_parameters() if is_personal(n, federation.personal)}
    for pattern in federation.personal:
        if not any(is_personal(name, (pattern,)) for name in own):
            names = sorted({name.split(".")[0] for name, _ in model.named_parameters()})
            raise UsageError(
                f"federation.personal has {pattern}, and no parameter begins so; names begin with "
                f"{', '.join(names)}."
            )
    kept = folder / FOLDER / PERSONAL
    if kept.exists():
        for name, tensor in load_file(kept).items():
            own[name].data.copy_(tensor)
    else:
        with whole_file(kept) as draft:
            save_file({n: p.detach().clone() for n, p in own.items()}, draft)
    for parameter in own.values():
        parameter.requires_grad_(False)
    if not trainable(model):
        raise UsageError("federation.personal names every parameter; nothing is left to share.")


# --- clients ----------------------------------------------------------------------------------


class Clients:
    """The clients of a run: who joined, and the answers to a round."""

    def __init__(
        self, asking: Asking, kit: Kit, federation: Federation, plan: Plan | None, frozen: str
    ) -> None:
        self._asking, self._kit, self._federation, self._plan = asking, kit, federation, plan
        self._frozen = frozen
        self._roster: Roster | None = None
        self._where: Whereabouts | None = None
        self._refused: set[int] = set()
        self.faults = Faults()

    @property
    def roster(self) -> Roster:
        """Who takes part."""
        assert self._roster is not None, "nobody has joined"
        return self._roster

    def gather(self, known: Roster | None) -> Roster:
        """Wait for clients to join; with a `known` roster, for those that it names."""
        joined: dict[int, Present] = {}
        patience = self._federation.join_seconds
        self._until(
            lambda: len(joined) >= self._federation.clients,
            lambda: joined.update(self._join(set(joined) | self._refused, patience)),
            lambda: f"{len(joined)} of {self._federation.clients} clients joined",
        )
        self._roster = known or make_roster(self._plan, joined.values())
        self._where = Whereabouts(self._roster)
        here = self._asking.connected()
        for node, one in joined.items():
            self._where.put(node, one, here)
        return self._roster

    def _until(
        self, done: Callable[[], bool], again: Callable[[], None], state: Callable[[], str]
    ) -> None:
        """Try again until it is done, or patience ends."""
        clock, begun = self._asking.clock, self._asking.clock.now()
        again()
        while not done():
            if clock.now() - begun >= self._federation.join_seconds:
                noted = ", ".join(f"{what}: {n}" for what, n in self.faults.counts.items())
                patience = f"join_seconds={self._federation.join_seconds:g}"
                raise DataError(
                    f"{state()} within {patience}{f' ({noted})' if noted else ''}; nothing was "
                    "drawn or charged since the last round. Start more clients, and resume."
                )
            clock.wait(1.0)
            again()

    def _join(self, known: set[int], seconds: float) -> dict[int, Present]:
        """Give the kit to nodes that do not have it yet; who does not answer is not asked again."""
        asked, content = set(known), self._kit.record()
        found: dict[int, Present] = {}

        def new(connected: set[int]) -> list[Question]:
            coming = sorted(connected - asked)
            asked.update(coming)
            return [(node, content) for node in coming]

        for node, answer in self._asking.ask(
            new(self._asking.connected()), kind=JOIN, group="join", seconds=seconds,
            faults=self.faults, newcomers=new,
        ):  # fmt: skip
            try:
                one = Present.read(answer)
            except DataError:
                self.faults.note("could not join")
                continue
            if one.version != version("tacit") or one.frozen != self._frozen:
                self.faults.note("other version or model")
                continue
            found[node] = one
        self._refused |= asked - known - set(found)
        return found

    def ready(self) -> None:
        """Let newcomers join; wait until enough clients are connected for a round to begin."""
        assert self._where is not None
        self.faults = Faults()
        where, here = self._where, set[int]()
        # Somebody new must not hold up a round for long.
        patience = min(self._federation.join_seconds, self._federation.round_seconds)

        def look() -> None:
            here.clear()
            here.update(self._asking.connected())
            for node in where.nodes - here:
                where.forget(node)
            for node, one in self._join(where.nodes | self._refused, patience).items():
                where.put(node, one, here)

        self._until(
            lambda: len(where.nodes & here) >= self._federation.least_clients,
            look,
            lambda: (
                f"{len(where.nodes & here)} of {self._federation.least_clients} clients are "
                "connected, and a round needs so many"
            ),
        )

    def answers(
        self, step: int, drawn: Drawn, shared: Mapping[str, Tensor]
    ) -> Iterator[tuple[int, RecordDict, int]]:
        """The updates of the drawn users as they come: number, content, place in the answer."""
        assert self._where is not None
        by_node = self._where.drawn(drawn.tolist())
        asked_of_all = sum(len(numbers) for numbers in by_node.values())
        self.faults.note("with no client", len(drawn) - asked_of_all)
        attempt, sent = secrets.token_hex(8), packed(shared)
        for node, content in self._asking.ask(
            ((node, self._question(step, attempt, numbers).record(sent))
             for node, numbers in by_node.items()),
            kind=TRAIN, group=str(step), seconds=self._federation.round_seconds, faults=self.faults,
        ):  # fmt: skip
            yield from self._of_one(node, content, step, attempt, by_node[node])

    def _question(self, step: int, attempt: str, numbers: list[int]) -> Round:
        names = tuple(self.roster.users[n] for n in numbers)
        permits = self.roster.permits
        return Round(
            self._kit.digest,
            step,
            attempt,
            len(self.roster.users),
            tuple(numbers),
            names,
            tuple(permits[name] for name in names) if permits is not None else None,
        )

    def _of_one(
        self, node: int, content: RecordDict, step: int, attempt: str, numbers: list[int]
    ) -> Iterator[tuple[int, RecordDict, int]]:
        """What is usable of one client's answer."""
        if "refused" in content:
            self.faults.note("could not take part")
            if self._where is not None:
                self._where.forget(node)  # it gets the kit again before the next round
            return
        try:
            told: Any = content.config_records["answer"]
            if (told["step"], told["attempt"]) != (step, attempt):
                raise ValueError
            users = [int(user) for user in told["users"]]
        except (KeyError, TypeError, ValueError, AttributeError):
            self.faults.note("unreadable")
            return
        self.faults.note("not computed", len(set(numbers) - set(users)))
        for place, user in enumerate(users):
            if user not in numbers:
                self.faults.note("not asked for")
            else:
                yield user, content, place


# --- methods ----------------------------------------------------------------------------------


def federated(
    model: nn.Module,
    clients: Clients,
    chance: Chance,
    ledger: Ledger,
    plan: Plan,
    losses: Any,
    told: "Counted",
) -> NoisySums[Drawn]:
    """A private method whose bounded sums come from clients; all else is central training's.

    *Guarantee*: the plan's, if the server draws and adds noise as this does, and, for entities
    with a share below 2, if clients clip each record and use only those that were permitted.
    """
    stuff, shared = clients.roster.material(), trainable(model)

    def total(step: int, drawn: Drawn) -> BoundedSum:
        clients.ready()
        received = Received(shared, plan.clip_norm, plan.record_clip)
        for user, content, _ in clients.answers(step, drawn, shared):
            _add(received, user, content, clients.faults)
        told.count(len(drawn), len(received), clients.faults)
        return received.bounded(len(drawn))

    return NoisySums(
        poisson(plan, stuff),
        plan.event(),
        total,
        denominator(plan, stuff),
        Watched(model, losses),
        ledger,
        chance,
    )


def _add(
    received: Received, user: int, content: RecordDict, faults: Faults, weight: float = 1.0
) -> bool:
    try:
        record = content.array_records.get(f"user-{user}")
        if record is None:
            raise Refused("unreadable")
        received.add(user, record, weight=weight)
    except Refused as problem:
        faults.note(str(problem))
        return False
    return True


class Averaged:
    """Federated averaging without protection; the ledger says so once, before the first round.

    Source: McMahan et al. 2017, the mean of the updates, weighted by numbers of records.
    """

    def __init__(
        self,
        model: nn.Module,
        clients: Clients,
        chance: Chance,
        ledger: Ledger,
        rate: float,
        told: "Counted",
    ) -> None:
        self._model, self._clients, self._chance, self._told = model, clients, chance, told
        self._sampler = PoissonUsers(len(clients.roster.users), rate)
        event = NotPrivate(what="federated averaging without protection")
        if event not in ledger.releases:
            ledger.charge(event)

    def gradient(self, step: int) -> tuple[dict[str, Tensor], Seen]:
        """The weighted mean of the updates that came."""
        self._clients.ready()
        drawn = self._sampler.draw(self._chance.stream("coins", step))
        shared, weight = trainable(self._model), 0.0
        received = Received(shared, float("inf"))
        for user, content, place in self._clients.answers(step, drawn, shared):
            records = _records(content, place)
            if _add(received, user, content, self._clients.faults, records):
                weight += records
        total = received.tensors()
        for tensor in total.values():
            tensor.div_(max(weight, 1.0))
        self._told.count(len(drawn), len(received), self._clients.faults)
        return total, Seen(len(drawn), 0, len(drawn) - len(received), 0.0)


def _records(content: RecordDict, place: int) -> float:
    told: Any = content.config_records["answer"]
    try:
        return float(min(max(int(told["records"][place]), 0), 10**6))
    except (KeyError, TypeError, ValueError, IndexError):
        return 0.0


@dataclass
class Counted:
    """What the last round saw."""

    drawn: int = 0
    answered: int = 0
    faults: dict[str, int] = field(default_factory=dict)

    def count(self, drawn: int, answered: int, faults: Faults) -> None:
        """One round."""
        self.drawn, self.answered, self.faults = drawn, answered, dict(faults.counts)


# --- the run ----------------------------------------------------------------------------------


def serve(
    grid: Grid, folder: Path, *, tell: Tell | None = None, clock: Clock | None = None
) -> Trained:
    """Carry out the run of a folder that `begin` wrote, or go on with it."""
    run, federation = read_run(folder / "run.yml"), read_federation(folder / NAME)
    need_federated(run, federation)
    plan = read_plan(folder / "plan.yml") if run.method in PLANNED else None
    opened = _open(run)
    if (known := Roster.load(folder)) is None and read_place(folder) is not None:
        raise DataError(f"{folder} holds a checkpoint and no roster; begin in a new folder.")
    before = weights.snapshot(opened.model)
    model, counted = opened.model, Counted()
    keep_personal(model, federation, folder)
    shared = trainable(model)
    asking = Asking(grid, at_once=federation.at_once, clock=clock)
    frozen = frozen_digest(model, shared, federation.personal)
    kit = make_kit(opened, plan, federation, folder, shared)
    clients = Clients(asking, kit, federation, plan, frozen)
    roster = clients.gather(known)
    if known is None:
        roster.save(folder)
    data = commitment(roster.digest(), own_salt())
    about = {
        "plan": plan.digest() if plan else None,
        "config": run.digest(),
        "data": data,
        "randomness": opened.chance.name,
        "code": code_digest("federated"),
        "federation": federation.digest(),
    }
    earlier = earlier_books(run)
    if earlier is not None:
        about["earlier"] = earlier.digest
    with Ledger(
        folder / "ledger.jsonl", about, allows=plan.budget.allows if plan else None
    ) as ledger:
        if earlier is not None:
            ledger.carry(earlier)
        start_on_public_text(opened, folder, ledger, None)
        method: Method
        if plan is None:
            method = Averaged(model, clients, opened.chance, ledger, federation.user_rate, counted)
        else:
            method = federated(
                model, clients, opened.chance, ledger, plan, opened.task.losses, counted
            )
        spent = Spent.of(plan) if plan is not None else None
        loop = Loop(
            model,
            method,
            make_optimizer(model, run.optimizer),
            run.optimizer,
            run.total_steps,
            opened.chance,
            folder=folder,
            ledger=ledger,
            keep=lambda step: _keep(opened, folder, step),
            kept=kept_steps(run.total_steps, run.keep_checkpoints),
        )
        loop.resume()

        def told(at: Progress) -> None:
            line = spent.line(ledger.releases) if spent else ""
            said = Told(at.step, at.steps, line, counted.drawn, counted.answered, counted.faults)
            _note(folder, said)
            if tell:
                tell(said)

        stopped = loop.run(told)
        loop.finish()
    notes = {"records": "with the clients", "users": len(roster.users), "clients": roster.clients}
    if roster.bounded is not None:
        notes["records"] = roster.bounded.records_kept
    return finish(
        opened,
        folder,
        plan,
        roster.material(),
        before,
        stopped,
        {"train": loop.timed},
        data=data,
        notes=notes,
        facts=facts(plan, federation, roster),
    )


def _open(run: Run) -> Opened:
    """What the server needs: tokenizer, task, model, and a corpus of its own to score on.

    Mentions are the clients' affair, so none are looked for here.
    """
    plain = {name: value for name, value in run.plan.items() if name != "kinds"}
    opened = open_run(run.model_copy(update={"mentions": None, "detect": None, "plan": plain}))
    return replace(opened, run=run, focus=None)


def _keep(opened: Opened, folder: Path, step: int) -> None:
    weights.save_model(opened.model, opened.tokenizer, kept_folder(folder, step))


def _note(folder: Path, said: Told) -> None:
    """A line for whoever watches from another process."""
    with (folder / FOLDER / "progress.jsonl").open("a", encoding="utf-8") as lines:
        private = {"drawn": said.drawn, "answered": said.answered, "faults": dict(said.faults)}
        fields = {"round": said.round, "rounds": said.rounds, "spent": said.spent}
        lines.write(json.dumps(fields | {"not_private": private}) + "\n")


def note_refusal(folder: Path, error: TacitError) -> None:
    """Leave the one sentence that says why a run ended, for whoever started it."""
    fields = {"kind": type(error).__name__, "says": str(error)}
    _write(folder / FOLDER / "ended.json", json.dumps(fields))


def facts(plan: Plan | None, federation: Federation, roster: Roster) -> dict[str, Any]:
    """What a certificate has to say of a federation: who saw what, and who is trusted with what."""
    told: dict[str, Any] = {
        "federated": "records stayed with clients; the server drew users by coins, was sent one "
        "update for each drawn user, checked its norm, summed, and added noise once"
        if plan is not None
        else "records stayed with clients; the server averaged their updates, without noise",
        "server": "sees every drawn user's update in the clear (no secure aggregation, under which "
        "it could not check norms): it is trusted with them, with the coins and with the noise",
        "clients": "know in which rounds their own users were drawn, which the price counts on "
        "being hidden: they are trusted not to tell",
        "missing updates": "late, lost, repeated, refused and malformed ones count as zero; the "
        "denominator is public, and every round that began was released with all its noise",
        "users": "under keyed names whose key the server does not have; one whose records lay with "
        "two clients counts at one of them",
        "clients with several users": "assumed: whether such a client answers at all does not hang "
        "on one user's text",
    }
    if roster.bounded is not None:
        told["entity graph"] = (
            "the server saw, under keyed names, which entities each record of each user names, and "
            "kept the caps on that graph; clients are trusted to use only the records it permitted"
        )
    if plan is not None and plan.record_clip is not None:
        told["record clipping"] = (
            "clients are trusted to clip each record, on which the share of an entity rests; the "
            "server can check users' updates alone"
        )
    if federation.personal:
        told["personal parameters"] = (
            f"{', '.join(federation.personal)}: trained and kept at the clients, user by user; in "
            "this model they are as they were at the beginning"
        )
    return told
