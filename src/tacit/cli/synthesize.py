"""`tacit synthesize`: a corpus that may be shared, chosen by private votes, and certified."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.common import err, new_corpus_file, out, print_json, say, simple_table
from tacit.cli.options import AsJson, Overwrite
from tacit.errors import UsageError
from tacit.privacy.rounding import up

if TYPE_CHECKING:
    from tacit.corpus import Corpus
    from tacit.synthesis.session import Prepared, Synthesized

_Corpus = Annotated[
    Path | None,
    typer.Argument(help="The private corpus, or a YAML file of settings that names it."),
]
_Like = Annotated[
    str | None,
    typer.Option(
        help="The generator: a run on this corpus, a public model, or a file of public texts."
    ),
]
_Texts = Annotated[int | None, typer.Option("-n", "--texts", help="How many texts.")]
_Protect = Annotated[
    str | None, typer.Option(help="users, users+names, users+entities, names or entities.")
]
_Epsilon = Annotated[float | None, typer.Option(help="Target for what is protected.")]
_Users = Annotated[int | None, typer.Option(help="How many users there are, known in advance.")]
_Labels = Annotated[str | None, typer.Option(help="Labels, declared as public, with commas.")]
_Mentions = Annotated[Path | None, typer.Option(help="Mentions that `tacit detect` wrote.")]
_Changes = Annotated[
    list[str] | None, typer.Option("--set", help="Any setting as NAME=VALUE, plan.NAME=VALUE too.")
]
_To = Annotated[
    Path | None, typer.Option("-o", "--out", help="File to write: .jsonl, .csv, .tsv, .parquet.")
]
_Resume = Annotated[Path | None, typer.Option(help="Go on with the corpus that was to be written.")]
_Beside = Annotated[
    list[str] | None,
    typer.Option("--beside", help="For the card: other text to learn from, as NAME=FILE."),
]
_Card = Annotated[
    bool, typer.Option("--card/--no-card", help="Say how good it is, beside it; keep it inside.")
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what it costs, and stop.")]


def synthesize(
    corpus: _Corpus = None,
    like: _Like = None,
    texts: _Texts = None,
    protect: _Protect = None,
    epsilon: _Epsilon = None,
    users: _Users = None,
    labels: _Labels = None,
    mentions: _Mentions = None,
    changes: _Changes = None,
    to: _To = None,
    resume: _Resume = None,
    dry_run: _DryRun = False,
    card: _Card = True,
    beside: _Beside = None,
    as_json: AsJson = False,
    overwrite: Overwrite = False,
) -> None:
    """Make a synthetic corpus that may be shared, and certify its text.

    Candidates come from a generator that never sees the corpus. Private records vote for the
    nearest ones; each user's votes are clipped, noise is added, and the ledger is written first.
    What it costs is shown before anything is spent.

    Examples: `tacit synthesize mail.jsonl --like RUN -n 1000 --epsilon 8 --users 500
    -o synthetic.jsonl` · `tacit synthesize mail.jsonl --protect users+names --mentions
    mentions.jsonl --epsilon 4 --users 500 --dry-run` · `tacit synthesize --resume synthetic.jsonl`
    """
    from tacit.synthesis.session import prepared, resume_file, synthesize_file
    from tacit.training.settings import changed

    others = _beside(beside)
    if resume is not None:
        with _Bars() as bars:
            done = resume_file(resume, progress=bars)
        _print_done(done, as_json)
        _write_card(done, card, others)
        return
    if corpus is None:
        raise UsageError("Give the private corpus, or --resume FILE to go on with one.")
    if to is None and not dry_run:
        raise UsageError("Give -o FILE to write, or --dry-run to see what it costs.")
    if to is not None:
        new_corpus_file(to, overwrite=overwrite)
    given: dict[str, Any] = {
        "generator": like, "texts": texts, "labels": tuple(labels.split(",")) if labels else None,
        "mentions": str(mentions) if mentions else None,
    }  # fmt: skip
    plan = {"protect": protect, "epsilon": epsilon, "users": users}
    flat = given | {f"plan.{name}": value for name, value in plan.items()}
    fields = changed(_fields(corpus), {k: v for k, v in flat.items() if v is not None})
    ready = prepared(_settings(changed(fields, _parsed(changes))))
    if not as_json:
        _print_price(ready)
    if dry_run or to is None:
        if as_json:
            print_json(_price(ready))
        return
    with _Bars() as bars:
        done = synthesize_file(ready, to, overwrite=overwrite, progress=bars)
    _print_done(done, as_json)
    _write_card(done, card, others)


def _beside(named: list[str] | None) -> "dict[str, Corpus]":
    """Other texts for the card, by their names."""
    from tacit.corpus.reading import read

    found = {}
    for pair in named or []:
        name, sign, file = pair.partition("=")
        if not sign:
            raise UsageError(f"--beside {pair}: write it as NAME=FILE.")
        found[name] = read(Path(file))
    return found


def _write_card(done: "Synthesized", wanted: bool, others: "dict[str, Corpus]") -> None:
    if not wanted:
        return
    from tacit.synthesis.quality import write_card

    _, page = write_card(done.quality(others), done.file)
    say(f"quality: {page} (exact: keep inside)")


def _fields(corpus: Path) -> dict[str, Any]:
    from tacit.synthesis.settings import read_fields

    if corpus.suffix in (".yml", ".yaml"):
        return read_fields(corpus)
    return {"corpus": str(corpus)}


def _parsed(changes: list[str] | None) -> dict[str, Any]:
    from tacit.planning.plan import parse_overrides

    return parse_overrides(changes or [])


def _settings(fields: dict[str, Any]) -> Any:
    from tacit.synthesis.settings import Synthesis

    return Synthesis(**fields)


class _Bars:
    """A bar for each thing that takes time, on standard error."""

    def __enter__(self) -> "_Bars":
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TimeRemainingColumn(),
        )  # fmt: skip
        self._bars = Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
        self._bars.start()
        self._tasks: dict[str, Any] = {}
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def __call__(self, what: str, done: int, of: int) -> None:
        """So much of it is done."""
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=of)
        self._bars.update(self._tasks[what], completed=done, total=of)


def _price(ready: "Prepared") -> dict[str, Any]:
    from tacit.privacy.accounting.pricing import price_all
    from tacit.synthesis.settings import users_needed

    plan, earlier = ready.plan, ready.earlier
    also = earlier.releases if earlier else {}
    together = dict(also)
    for event, count in plan.releases().items():
        together[event] = together.get(event, 0) + count
    costs = {u: c.epsilon for u, c in price_all(together, plan.delta).items() if u in plan.units}
    return {
        "protect": plan.protect, "delta": plan.delta, "epsilon": costs,
        "releases": plan.steps, "earlier_releases": sum(also.values()),
        "noise_multiplier": plan.noise_multiplier, "users": plan.users,
        "users_needed": users_needed(ready.settings, plan),
    }  # fmt: skip


def _print_price(ready: "Prepared") -> None:
    found, settings = _price(ready), ready.settings
    shown = ", ".join(f"{up(e)} for {unit}" for unit, e in found["epsilon"].items())
    out.print(f"Price: epsilon {shown}, at delta {up(found['delta'])}.")
    table = simple_table("what is released", "times", "noise")
    if found["earlier_releases"]:
        table.add_row("by the generator's run, carried", f"{found['earlier_releases']:,}", "")
    noise = f"{found['noise_multiplier']:.3g}"
    if settings.histogram:
        table.add_row("a histogram of labels and lengths", "1", noise)
    table.add_row("votes for candidates", f"{settings.rounds:,}", noise)
    out.print(table)
    out.print(
        f"{found['users']:,} users vote for {settings.texts * settings.candidates:,} candidates, "
        f"of which {settings.texts:,} are kept; {found['users_needed']:,} users are needed.",
        soft_wrap=True,
    )


def _print_done(done: "Synthesized", as_json: bool) -> None:
    certificate = done.certificate
    if as_json:
        files = {"file": str(done.file), "certificate": str(done.folder)}
        print_json(files | {"standing": certificate.standing, "epsilon": certificate.epsilon,
                            "delta": certificate.delta, "sentence": certificate.sentence,
                            "texts": certificate.context["texts"]})  # fmt: skip
        return
    out.print()
    out.print(certificate.sentence, markup=False, soft_wrap=True)
    if certificate.provenance.randomness == "fixed seed":
        say("Not for release: the randomness came from a fixed seed.", style="bold")
    say(f"corpus: {done.file}")
    say(f"certificate: {done.folder} (check it with: tacit verify {done.folder})")
