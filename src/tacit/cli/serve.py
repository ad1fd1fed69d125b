"""`tacit serve`, `tacit contribute`, `tacit pull`: the server, and the two ends of its work."""

import hashlib
import os
import sys
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from tacit.cli.common import OrDefault, named_corpus, names_corpus, out, print_json, progress, say
from tacit.cli.options import SENSITIVE_WORDS, AsJson, Sanitizing, sanitizes
from tacit.errors import MissingExtra, UsageError
from tacit.files import whole_file
from tacit.privacy.rounding import up

if TYPE_CHECKING:
    from tacit.corpus import Corpus
    from tacit.server.client import Client

Server = Annotated[
    str, typer.Option("--server", help="Address of the server.", envvar="TACIT_SERVER")
]
TokenOption = Annotated[
    str | None,
    typer.Option("--token", help="Your token; better in TACIT_TOKEN.", envvar="TACIT_TOKEN"),
]
HERE = "http://127.0.0.1:8321"
_THIS_MACHINE = ("127.0.0.1", "::1", "localhost")


_Folder = Annotated[Path, typer.Option(help="Where the database, runs and models are kept.")]
_Database = Annotated[
    str | None,
    typer.Option(
        help="postgresql://USER@HOST/NAME; a SQLite file in the folder if not given.",
        envvar="TACIT_DATABASE",
    ),
]
_Port = Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for any.")]
_Certificate = Annotated[
    Path | None, typer.Option("--tls-certificate", help="PEM file, to serve https.")
]
_Key = Annotated[Path | None, typer.Option("--tls-key", help="PEM file of its key.")]
_Proxies = Annotated[
    str,
    typer.Option(
        "--trusted-proxies",
        help="Addresses and networks of proxies that speak https, with commas: 10.0.0.0/8.",
    ),
]
_Pages = Annotated[
    bool, typer.Option("--pages/--no-pages", help="With web pages, or the API alone.")
]

_Welcome = Annotated[
    bool, typer.Option("--welcome/--no-welcome", help="With a front page for strangers.")
]


app = typer.Typer(
    help="Start a server: people send text, somebody chooses the protection, it trains.\n\n"
    "`tacit serve ...` is short for `tacit serve start ...`; `tacit serve start --help` has its "
    "options.\n\n"
    "Examples: `tacit serve` · `tacit serve backup monday.zip` · "
    "`tacit serve restore monday.zip --folder new`",
    cls=OrDefault.to("start"),
    invoke_without_command=True,  # the default
    suggest_commands=False,
)


@app.command("start")
def start(
    folder: _Folder = Path("tacit-server"),
    database: _Database = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: _Port = 8321,
    jobs: Annotated[int, typer.Option(min=0, help="Runs at once; 0 to leave all to workers.")] = 1,
    queue: Annotated[int, typer.Option(min=1, help="Runs that may wait.")] = 20,
    certificate: _Certificate = None,
    key: _Key = None,
    trusted_proxies: _Proxies = "",
    pages: _Pages = True,
    welcome: _Welcome = True,
) -> None:
    """Start a server: people send text, somebody chooses the protection, it trains.

    At the first start an admin's token is printed, once, and a link that signs in once; where the
    output is no terminal, they go into a file in the folder instead. Runs are processes of their
    own: they go on when the server stops, and the next start finds them.

    Examples: `tacit serve` · `tacit serve --folder /srv/tacit --database postgresql://tacit@db/tacit`
    """
    serve_forever = _server_part("serving").serve_forever
    from tacit.server.settings import ServerSettings

    if (certificate is None) != (key is None):
        raise UsageError("--tls-certificate and --tls-key go together.")
    if certificate is None and not trusted_proxies and host not in _THIS_MACHINE:
        say("Warning: without TLS, tokens and text travel in the clear; put a proxy before it, or "
            "give --tls-certificate and --tls-key.")  # fmt: skip
    if pages and find_spec("nicegui") is None:
        raise MissingExtra.of("The pages need nicegui (or give --no-pages)", "server")
    settings = ServerSettings(folder=folder, database=database, jobs=jobs, queue=queue,
                              welcome=welcome, trusted_proxies=trusted_proxies)  # fmt: skip
    tls = (certificate, key) if certificate else None
    ready = partial(_say_ready, "Pages" if pages else "Serving", folder)
    serve_forever(settings, host, port, ready, tls=tls, pages=pages)


def _server_part(name: str) -> Any:
    """A module of the server, whose libraries come with an extra."""
    try:
        return import_module(f"tacit.server.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "tacit").startswith("tacit"):
            raise
        raise MissingExtra.of(f"The server needs {error.name}", "server") from None


_Backup = Annotated[Path, typer.Argument(help="The file of the backup.")]


@app.command()
def backup(
    file: _Backup,
    folder: _Folder = Path("tacit-server"),
    database: _Database = None,
    as_json: AsJson = False,
) -> None:
    """Write a server into one file: database, runs, models, keys. It may go on meanwhile.

    The file holds everybody's text and the server's signing key: keep it as you keep the server,
    and delete it in time, since text that is deleted on the server stays in its backups.

    Examples: `tacit serve backup monday.zip` ·
    `tacit serve backup monday.zip --folder /srv/tacit --database postgresql://tacit@db/tacit`
    """
    part, settings = _server_part("backup"), _settings(folder, database)
    about = part.back_up(settings, file)
    if as_json:
        print_json(about)
    else:
        out.print(f"{about['rows']['records']:,} records and {about['files']:,} files.")
        say(f"backup: {file}")


@app.command()
def restore(
    file: _Backup,
    folder: _Folder = Path("tacit-server"),
    database: _Database = None,
    nothing_since: Annotated[
        bool,
        typer.Option("--nothing-spent-since", help="Nothing was released after the backup."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a server from a backup, in an empty folder with an empty database.

    What was spent after the backup is not in it: datasets are frozen until an admin has looked at
    them, unless you know that nothing was. Never serve the old one and the restored one both.

    Examples: `tacit serve restore monday.zip --folder new` ·
    `tacit serve restore monday.zip --folder new --database postgresql://tacit@db/new`
    """
    part, settings = _server_part("backup"), _settings(folder, database)
    about = part.restore(settings, file, nothing_since=nothing_since)
    if as_json:
        print_json(about)
    else:
        out.print(f"{about['rows']['records']:,} records and {about['files']:,} files.")
        say(f"server: {folder}")


@app.command()
def showcase(
    folder: _Folder = Path("tacit-server"),
    scale: Annotated[
        float, typer.Option(min=0.05, max=10, help="Of users and steps; more learns more.")
    ] = 0.5,
    as_json: AsJson = False,
) -> None:
    """Train the small models that the front page shows to strangers, and attack them.

    They learn dialogs of invented customers, one of whom repeats a secret, without protection and
    with it. The server shows what came out as soon as it is there; it may run meanwhile.

    Examples: `tacit serve showcase` · `tacit serve showcase --folder /srv/tacit --scale 0.2`
    """
    part, settings = _server_part("showcase"), _settings(folder, None)
    found = part.make_showcase(settings, say=say, scale=scale)
    if as_json:
        print_json(found)
        return
    for model in found["models"]:
        called = "plain" if model["epsilon"] is None else f"epsilon {up(model['epsilon'])}"
        out.print(f"{called}: the secret is guess {model['rank']:,} of {found['possible']:,}.")
    say(f"showcase: {part.path_of(settings)}")


@app.command()
def worker(
    server: Server = HERE,
    token: TokenOption = None,
    folder: Annotated[Path, typer.Option(help="Where jobs lie while they are done.")] = Path(
        "tacit-worker"
    ),
    name: Annotated[str | None, typer.Option(help="Name in the list of runs; the host's.")] = None,
) -> None:
    """Do the jobs of a server on this machine, one after the other.

    It asks the server for a job, trains, and sends what came of it, ledger first. It is sent
    private text, so trust this machine as you trust the server's, and reach the server over https.
    Stopped and started again, it goes on with the job that it had.

    Examples: `tacit serve worker --server https://tacit.example.org` ·
    `tacit serve worker --server http://127.0.0.1:8321 --folder /srv/worker --name gpu-1`
    """
    if not token:
        raise UsageError("A token of a worker is needed: set TACIT_TOKEN.")
    if server.startswith("http://") and urlsplit(server).hostname not in _THIS_MACHINE:
        say("Warning: without TLS, tokens and text travel in the clear; reach the server by https.")
    _server_part("worker").work(server, token, folder, name=name)


def _settings(folder: Path, database: str | None) -> Any:
    from tacit.server.settings import ServerSettings

    return ServerSettings(folder=folder, database=database)


def _say_ready(what: str, folder: Path, address: str, token: str | None, link: str | None) -> None:
    """Say where it is; how to sign in goes to a terminal, or else into a file, never into a log."""
    from tacit.server.settings import FIRST_SIGN_IN

    lines = [f"{what} at {address} (the API: {address}/docs). Ctrl-C stops."]
    ways = [f"Admin token (shown once, keep it): {token}"] if token is not None else []
    if link is not None:
        ways.append(f"Sign in as admin, once, within 15 minutes: {link}")
    if ways and not sys.stdout.isatty():
        path = folder / FIRST_SIGN_IN
        with whole_file(path) as draft:
            draft.touch(0o600)
            draft.write_text("".join(f"{line}\n" for line in ways), encoding="utf-8")
        ways = [f"How to sign in as admin stands in {path}; delete it when you have read it."]
    for line in ways + lines:
        out.print(line, markup=False, soft_wrap=True)


_ContributionKey = Annotated[
    str | None,
    typer.Option(
        "--key", help="Name of this contribution; the same file has the same one by itself."
    ),
]


@names_corpus
@sanitizes(SENSITIVE_WORDS)
def contribute(
    corpus: dict[str, Any],
    dataset: Annotated[str, typer.Option(help="Name or id of the dataset.")],
    server: Server = HERE,
    token: TokenOption = None,
    *,
    sanitizing: Sanitizing,
    key: _ContributionKey = None,
    consent: Annotated[
        bool, typer.Option("--consent", help="Send it although nothing protects it there.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Send records to a server; sent again, the same file is not stored twice.

    With `--sanitize` the words are replaced on this machine, and only what came of it is sent.
    Sanitizing draws anew each time, so give a --key to send such a file again. A dataset without a
    privacy budget protects nothing; text goes there with --consent only.

    Examples: `tacit contribute mine.jsonl --dataset diary --server http://127.0.0.1:8321` ·
    `tacit contribute mine.jsonl --dataset diary --sanitize santext+ --epsilon-per-distance 2
    --sensitive-words names.txt`
    """
    opened = named_corpus(**corpus)
    method = sanitizing.method
    name = key or hashlib.sha256(f"{opened.digest()} {method}".encode()).hexdigest()[:32]
    if method is not None:
        opened = _sanitized(opened, sanitizing)
    with _client(server, token) as client, progress("Sending", None):
        sent = client.add_corpus(client.dataset_named(dataset), opened, key=name, consent=consent)
    if as_json:
        print_json({"records": sent, "key": name})
    else:
        out.print(f"{sent:,} records are stored.")


def _sanitized(corpus: "Corpus", how: Sanitizing) -> "Corpus":
    from tacit.sanitization import Recipe, sanitize

    recipe, vectors = Recipe(str(how.method), how.epsilon), how.embeddings or "own"
    with progress("Sanitizing", len(corpus)) as advance:
        return sanitize(corpus, recipe, vectors, words=how.words, progress=advance)


def pull(
    model: Annotated[str, typer.Argument(help="Name or id of a model on the server.")],
    to: Annotated[Path | None, typer.Option("-o", "--out", help="New folder; its name.")] = None,
    server: Server = HERE,
    token: TokenOption = None,
    as_json: AsJson = False,
) -> None:
    """Take a model along: a folder with weights, certificate and ledger, checked on arrival.

    `tacit predict FOLDER TEXT` then works without the server, and `tacit verify FOLDER` checks the
    promise again. Exit 4 if the certificate does not hold.

    Examples: `tacit pull diary-model --server http://127.0.0.1:8321` ·
    `tacit pull diary-model -o m && tacit predict m "dear diary"`
    """
    from tacit.verification.runs import verify

    with _client(server, token) as client:
        found = client.model_named(model)
        folder = to or Path(model)
        with progress("Downloading", None):
            warning = client.pull(found, folder)
    bad = [check for check in verify(folder) if not check.ok]
    if as_json:
        print_json({"folder": str(folder), "verified": not bad, "warning": warning})
    else:
        out.print("Everything matches." if not bad else "The certificate does not hold.")
        say(f"model: {folder}")
    if warning:
        say(f"Warning: {warning}")
    if bad:
        raise typer.Exit(4)


def _client(server: str, token: str | None) -> "Client":
    from tacit.server.client import Client

    if not token:
        raise UsageError(
            "A token is needed: set TACIT_TOKEN (an admin of the server gives one out)."
        )
    return Client(server, token, patience=float(os.environ.get("TACIT_PATIENCE", "60")))
