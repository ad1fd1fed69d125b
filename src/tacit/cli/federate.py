"""`tacit federate`: run, join, key, simulate, demo."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.common import err
from tacit.cli.options import Resume, To
from tacit.cli.train import print_promise
from tacit.errors import DataError, UsageError

if TYPE_CHECKING:
    from tacit.federated.settings import Federation
    from tacit.training.settings import Run

app = typer.Typer(
    help="Train where the text stays with its holders, on Flower.\n\n"
    "Clients send one clipped update for each user that was drawn; the server sums them, adds "
    "noise once, and leaves the same kind of folder as `tacit train`.\n\n"
    "Examples: `tacit federate demo` · `tacit federate simulate --users 1000 -o RUN`",
    no_args_is_help=True,
    suggest_commands=False,  # click suggests them itself
)

Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="Replace a setting: --set plan.steps=6 --set federation.clients=5"),
]
Authority = Annotated[
    Path | None,
    typer.Option(help="PEM file of who vouches for the server; needed beyond this machine."),
]


_File = Annotated[Path | None, typer.Argument(metavar="RUN.yml", help="Settings of the run.")]
_Listen = Annotated[str, typer.Option(help="Where clients find the server.", metavar="HOST:PORT")]


@app.command()
def run(
    file: _File = None,
    to: To = None,
    listen: _Listen = "127.0.0.1:9092",
    changes: Changes = None,
    resume: Resume = None,
    certificate: Annotated[Path | None, typer.Option(help="PEM file, to speak TLS.")] = None,
    private_key: Annotated[Path | None, typer.Option(help="PEM file of its key.")] = None,
    authority: Authority = None,
) -> None:
    """Be the server of a federation: wait for clients, train, certify.

    The run's file is that of `tacit train`, with `federation:` beside; its corpus is one that the
    server may see, to score on, and nothing is learnt from it. After a crash, `--resume` goes on:
    a round that was charged and not saved is charged again.

    Examples: `tacit federate run run.yml -o RUN` · `tacit federate run --resume RUN`
    """
    from tacit.federated.settings import require_flower

    require_flower()
    from tacit.federated.processes import parse_address, run_here
    from tacit.federated.server import begin

    at = parse_address(
        listen, certificate=certificate, private_key=private_key, authority=authority
    )
    if resume is not None:
        if file is not None or to is not None or changes:
            raise UsageError("--resume takes its settings from the folder; give nothing else.")
        folder = _need_begun(resume)
    else:
        if file is None or to is None:
            raise UsageError("Give a run file and -o FOLDER, or --resume FOLDER.")
        folder = begin(*_read(file, changes), to)
    run_here(folder, at, on_progress=_tell)
    _show(folder)


@app.command()
def join(
    server: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where the server listens.")],
    corpus: Annotated[Path, typer.Option(help="This client's records; they stay here.")],
    key: Annotated[Path, typer.Option(help="The key that all clients share (federate key).")],
    home: Annotated[Path, typer.Option(help="Folder for what this client keeps.")],
    mentions: Annotated[
        Path | None, typer.Option(help="What is sensitive in it: the file of `tacit detect`.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="This client's copy of the run's model.folder.")
    ] = None,
    authority: Authority = None,
) -> None:
    """Be a client of a federation, for the users of one file, until stopped (Ctrl-C).

    What leaves: keyed names of users and, where entities are capped, of entities, once; then one
    clipped update for each of these users that is drawn.

    Example: `tacit federate join 127.0.0.1:9092 --corpus mine.jsonl --key key --home client`
    """
    from tacit.federated.settings import require_flower

    require_flower()
    from tacit.federated.keyed_names import read_key
    from tacit.federated.processes import node_here, parse_address
    from tacit.files import require_file

    read_key(key)
    given = {"corpus": require_file(corpus), "key": key, "mentions": mentions, "model": model}
    home.mkdir(parents=True, exist_ok=True)
    config = {name: str(path.resolve()) for name, path in given.items() if path is not None}
    at = parse_address(server, authority=authority)
    err.print(f"answering for {corpus}; Ctrl-C ends it")
    node_here(at, config | {"home": str(home.resolve())}, on_progress=_tell)


@app.command()
def key(to: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")]) -> None:
    """Make the key that clients share, under which names of users and entities are hidden.

    Give it to every client, and not to the server.

    Example: `tacit federate key key`
    """
    from tacit.federated.settings import require_flower

    require_flower()
    from tacit.federated.keyed_names import new_key

    new_key(to)
    err.print(f"key: {to} (for clients only)")


_Dealt = Annotated[
    Path | None, typer.Argument(metavar="RUN.yml", help="Settings of the run; its corpus is dealt.")
]
_Users = Annotated[
    int | None, typer.Option(help="Without a file: so many users with made-up dialogs.", min=2)
]
_Clients = Annotated[
    int | None, typer.Option(help="So many clients share the users; one each if not given.")
]


@app.command()
def simulate(
    file: _Dealt = None,
    to: To = None,
    users: _Users = None,
    clients: _Clients = None,
    workers: Annotated[int, typer.Option(help="Clients that compute at the same time.", min=1)] = 2,
    changes: Changes = None,
    resume: Resume = None,
) -> None:
    """Run a federation in Flower's simulation: the same apps, clients that come and go in turn.

    Examples: `tacit federate simulate --users 1000 -o RUN` ·
    `tacit federate simulate run.yml -o RUN --clients 20`
    """
    from tacit.federated.settings import require_flower, require_ray

    require_flower()
    require_ray()
    from tacit.federated.simulation import begin_generated, begin_simulated, go_on

    if resume is not None:
        if file is not None or to is not None or changes or users is not None:
            raise UsageError("--resume takes its settings from the folder; give nothing else.")
        folder = _need_begun(resume)
    elif to is None or (file is None) == (users is None):
        raise UsageError("Give -o FOLDER, and either a run file or --users N; or --resume FOLDER.")
    elif file is not None:
        folder = begin_simulated(*_read(file, changes), to, clients=clients)
    else:
        from tacit.planning.plan import parse_overrides

        folder = begin_generated(
            int(users or 0), to, clients=clients, changes=parse_overrides(changes or [])
        )
    go_on(folder, on_progress=_tell, workers=workers)
    _show(folder)


@app.command()
def demo(to: To = None) -> None:
    """Three clients and a server, each a process of its own; one client is killed on the way.

    Takes two to four minutes, and listens on this machine only.

    Example: `tacit federate demo -o DEMO`
    """
    from tacit.federated.settings import require_flower

    require_flower()
    from tacit.federated.demo import demo as show

    if to is None:
        with TemporaryDirectory(prefix="tacit-federation-") as scratch:
            _show(show(Path(scratch) / "demo", on_progress=_tell), kept=False)
        return
    if to.exists() and any(to.iterdir()):
        raise UsageError(f"{to} is not empty; give a new folder.")
    _show(show(to, on_progress=_tell))


def _read(file: Path, changes: list[str] | None) -> "tuple[Run, Federation]":
    from tacit.federated.settings import read_federated
    from tacit.planning.plan import parse_overrides

    return read_federated(file, parse_overrides(changes or []))


def _need_begun(folder: Path) -> Path:
    if not (folder / "federation.yml").exists():
        raise DataError(f"{folder} holds no federated run; give the folder that -o made.")
    return folder


def _tell(line: str) -> None:
    err.print(line, soft_wrap=True, markup=False)


def _show(folder: Path, *, kept: bool = True) -> None:
    """What the certificate says, and whether it holds."""
    from tacit.privacy.certificates.certificate import read_certificate
    from tacit.verification.runs import verify

    print_promise(read_certificate(folder / "certificate.json"))
    checks: list[Any] = verify(folder)
    bad = [check for check in checks if not check.ok]
    for check in bad:
        err.print(f"{check.what}: {check.detail}", markup=False)
    said = "everything matches" if not bad else "the certificate does not hold"
    err.print(f"verified: {said} ({len(checks)} checks)")
    if kept:
        err.print(f"run: {folder} (check it with: tacit verify {folder})", markup=False)
    if bad:
        raise typer.Exit(4)
