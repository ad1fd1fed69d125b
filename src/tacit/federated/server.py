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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from flwr.serverapp import Grid
from safetensors.torch import load_file, save_file
from torch import nn

from tacit.detection import open_detectors, wanted_kinds
from tacit.detection.provenance import Provenance, Used, provenance_of
from tacit.errors import DataError, TacitError, UsageError
from tacit.federated.client import PERSONAL, frozen_digest, is_personal
from tacit.federated.clients import Clients
from tacit.federated.cohort import Cohort
from tacit.federated.messaging import Clock, Messenger
from tacit.federated.protocol import Kit
from tacit.federated.rounds import RoundCounts, federated_step
from tacit.federated.settings import (
    FOLDER,
    NAME,
    Federation,
    federation_yaml,
    read_federation,
    require_federated,
)
from tacit.files import whole_file, write_text
from tacit.planning.plan import Plan, calibrated, plan_yaml
from tacit.privacy.certificates.certificate import commitment, own_salt
from tacit.training.data.account import write_names
from tacit.training.data.public_inputs import base_weights
from tacit.training.models.weights import trainable
from tacit.training.phases.checkpoints import read_place
from tacit.training.phases.continuing import continued
from tacit.training.phases.loop import Progress
from tacit.training.phases.run_context import RunContext, open_run
from tacit.training.phases.session import Session, Trained, saved_plan
from tacit.training.settings import Run, read_run, run_yaml


@dataclass(frozen=True)
class RoundDone:
    """What is said after a round; everything but `spent` is exact and must stay inside."""

    round: int
    rounds: int
    spent: str
    drawn: int
    answered: int
    faults: Mapping[str, int]


OnProgress = Callable[[RoundDone], None]


# --- the folder -------------------------------------------------------------------------------


def begin(
    run: Run, federation: Federation, folder: Path, *, dealt: Mapping[str, Any] | None = None
) -> Path:
    """Write a new run's folder: settings, and the plan with its noise.

    `dealt` says which corpus is dealt to the clients of a simulation, who have none of their own.
    """
    require_federated(run, federation)
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty; give a new folder, or --resume {folder}.")
    tuple(base_weights(run))  # refused now if a run of ours made them, not when all have joined
    plan, earlier = run.made_plan(), continued(run)
    if plan is not None:
        plan = calibrated(plan, also=earlier.releases if earlier is not None else None)
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    write_text(folder / "run.yml", run_yaml(run))
    write_text(folder / NAME, federation_yaml(federation))
    if plan is not None:
        write_text(folder / "plan.yml", plan_yaml(plan))
    write_text(folder / FOLDER / "id", secrets.token_hex(16))
    if dealt is not None:
        write_text(folder / FOLDER / "dealt.json", json.dumps(dict(dealt), allow_nan=False))
    return folder


# --- what clients are given -------------------------------------------------------------------


_OWN = {"corpus", "data", "mentions", "tokenizer", "pretrain"}
"""Settings of a run that are about the server's own files."""


def make_kit(
    ctx: RunContext,
    plan: Plan | None,
    federation: Federation,
    folder: Path,
    shared: Mapping[str, Any],
) -> Kit:
    """Everything a client needs but the weights, which come with every round."""
    settings: dict[str, Any] = {
        "id": (folder / FOLDER / "id").read_text(encoding="utf-8"),
        "run": ctx.run.model_dump(mode="json", exclude=_OWN) | {"corpus": "the client's own"},
        "plan": plan.model_dump(mode="json") if plan else None,
        "federation": federation.model_dump(mode="json"),
        "labels": list(getattr(ctx.task, "labels", None) or ()) or None,
        "shared": list(shared),
    }
    dealt = folder / FOLDER / "dealt.json"
    if dealt.exists():
        settings["dealt"] = json.loads(dealt.read_text(encoding="utf-8"))
    marks = plan is not None and ("entities" in plan.protect or plan.about_names)
    if settings["run"].get("detect") is None and marks:
        # Which file of mentions a client has is its own affair; that it needs one is not.
        settings["run"]["mentions"] = "the client's own"
    draft = Path(mkdtemp(prefix="tacit-kit-"))
    try:
        ctx.tokenizer.save_pretrained(str(draft))
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


# --- the run ----------------------------------------------------------------------------------


def serve(
    grid: Grid, folder: Path, *, on_progress: OnProgress | None = None, clock: Clock | None = None
) -> Trained:
    """Carry out the run of a folder that `begin` wrote, or go on with it."""
    run, federation = read_run(folder / "run.yml"), read_federation(folder / NAME)
    require_federated(run, federation)
    plan = saved_plan(run, folder)
    ctx = _open(run)
    if (known := Cohort.load(folder)) is None and read_place(folder) is not None:
        raise DataError(f"{folder} holds a checkpoint and no cohort; begin in a new folder.")
    model, counted = ctx.model, RoundCounts()
    keep_personal(model, federation, folder)
    shared = trainable(model)
    messenger = Messenger(grid, at_once=federation.at_once, clock=clock)
    frozen = frozen_digest(model, shared, federation.personal)
    kit = make_kit(ctx, plan, federation, folder, shared)
    clients = Clients(messenger, kit, federation, plan, frozen)
    cohort = clients.gather(known)
    if known is None:
        cohort.save(folder)
    notes = {"records": "with the clients", "users": len(cohort.users), "clients": cohort.clients}
    if cohort.bounded is not None:
        notes["records"] = cohort.bounded.records_kept

    session = Session(
        ctx, folder, plan, continued(run), data=commitment(cohort.digest(), own_salt()),
        training_data=cohort.training_data(), on_progress=_noted(folder, counted, on_progress),
        about={"federation": federation.digest()}, notes=notes,
        facts=facts(plan, federation, cohort), code=("federated",),
        account=lambda place: write_names(place, cohort.users, (), own_salt()),
    )  # fmt: skip
    return session.run(
        lambda ledger: federated_step(session.inputs(ledger), clients, federation, counted)
    )


def _noted(
    folder: Path, counted: RoundCounts, on_progress: OnProgress | None
) -> Callable[[Progress], None]:
    """Write down each round when it is done, and pass it on."""

    def note(at: Progress) -> None:
        if at.phase != "train":
            return
        done = RoundDone(
            at.step, at.steps, at.spent, counted.drawn, counted.answered, counted.faults
        )
        _note(folder, done)
        if on_progress:
            on_progress(done)

    return note


def _open(run: Run) -> RunContext:
    """What the server needs: tokenizer, task, model, and a corpus of its own to score on.

    Mentions are the clients' affair, so none are looked for here.
    """
    plain = {name: value for name, value in run.plan.items() if name != "kinds"}
    # It only adds up what clients send: no GPU is needed here.
    changed = {"mentions": None, "detect": None, "plan": plain, "device": "cpu"}
    ctx = open_run(run.model_copy(update=changed), private_here=False)
    return replace(ctx, run=run, protected=None, provenance=_detectors_of(run))


def _detectors_of(run: Run) -> Provenance:
    """What clients look for entities with; that they do is a matter of trust."""
    if run.detect is None:
        return Provenance((Used("mentions that clients have", "detectors not known here"),), None)
    kinds = wanted_kinds(run.detect, None)
    return provenance_of(open_detectors(run.detect), run.detect, kinds=kinds)


def _note(folder: Path, said: RoundDone) -> None:
    """A line for whoever watches from another process."""
    with (folder / FOLDER / "progress.jsonl").open("a", encoding="utf-8") as lines:
        private = {"drawn": said.drawn, "answered": said.answered, "faults": dict(said.faults)}
        fields = {"round": said.round, "rounds": said.rounds, "spent": said.spent}
        lines.write(json.dumps(fields | {"not_private": private}, allow_nan=False) + "\n")


def note_refusal(folder: Path, error: TacitError) -> None:
    """Leave the one sentence that says why a run ended, for whoever started it."""
    fields = {"kind": type(error).__name__, "says": str(error)}
    write_text(folder / FOLDER / "ended.json", json.dumps(fields, allow_nan=False))


def facts(plan: Plan | None, federation: Federation, cohort: Cohort) -> dict[str, Any]:
    """What a certificate has to say of a federation: who saw what, and who is trusted with what."""
    found: dict[str, Any] = {
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
    if cohort.bounded is not None:
        found["entity graph"] = (
            "the server saw, under keyed names, which entities each record of each user names, and "
            "kept the caps on that graph; clients are trusted to use only the records it permitted"
        )
    if plan is not None and plan.record_clip is not None:
        found["record clipping"] = (
            "clients are trusted to clip each record, on which the share of an entity rests; the "
            "server can check users' updates alone"
        )
    if plan is not None and plan.about_names:
        found["names"] = (
            "clients are trusted to mark names and to replace them by invented ones before they "
            "train; the server sees no text, and cannot check it"
        )
    if federation.personal:
        found["personal parameters"] = (
            f"{', '.join(federation.personal)}: trained and kept at the clients, user by user; in "
            "this model they are as they were at the beginning"
        )
    return found
