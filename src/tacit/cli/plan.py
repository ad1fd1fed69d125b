"""`tacit plan`: the dry run of a promise; `tacit verify`: the check of one that was made."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markdown import Markdown
from rich.markup import escape

from tacit.cli import recipes as few
from tacit.cli.common import out, print_json, progress, say, simple_table
from tacit.cli.options import AsJson, Overwrite
from tacit.errors import DataError, UsageError
from tacit.files import refuse_overwrite, whole_file
from tacit.privacy.rounding import up

if TYPE_CHECKING:
    from tacit.planning.dry_run import Candidate
    from tacit.planning.forecasts import Forecast
    from tacit.planning.plan import Plan
    from tacit.verification.runs import Check


_File = Annotated[
    Path | None,
    typer.Argument(metavar="PLAN", help="YAML file of the plan or of a run; or a corpus."),
]
_Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="Replace a field: --set epsilon=2 --set user_rate=0.1"),
]
_Owners = Annotated[Path | None, typer.Option(help="Owner graph that `tacit owners -o` wrote.")]
_Search = Annotated[
    bool, typer.Option("--search", help="Try caps and shares on the owner graph, take the best.")
]
_Rates = Annotated[str, typer.Option(help="User rates to try too, comma-separated.")]
_Speed = Annotated[float | None, typer.Option(help="Measured training speed, for a time estimate.")]
_To = Annotated[
    Path | None, typer.Option("-o", "--out", help="Write the calibrated plan here (YAML).")
]
_Schema = Annotated[bool, typer.Option("--schema", help="Print the JSON schema and stop.")]


@few.asks_in_few_words
def plan(
    file: _File = None,
    changes: _Changes = None,
    *,
    asked: dict[str, Any],
    owners: _Owners = None,
    search: _Search = False,
    rates: _Rates = "",
    records_per_second: _Speed = None,
    to: _To = None,
    schema: _Schema = False,
    as_json: AsJson = False,
    overwrite: Overwrite = False,
) -> None:
    """Dry run: find the noise that meets the targets, and say what is promised.

    A plan is public: it is made before looking at the data. Only the owner graph may be read, and
    only under fixed-graph adjacency, which says so.

    What it writes is for `tacit train --plan`, which uses it as it is.

    With the settings of a run, or a corpus and the options of `tacit train`, it says what a recipe
    chooses and what to expect of it, for epsilon 1, 2, 4 and 8. The corpus is not opened.

    Examples: `tacit plan mail.parquet --task classification --labels work,home --protect users
    --users 500 --epsilon 4` · `tacit plan --set protect=users --set epsilon=3 --set steps=200
    --set user_rate=0.1 --set users=1000` ·
    `tacit plan plan.yml --owners owners.json --search -o calibrated.yml`
    """
    from tacit.owners import Owners
    from tacit.planning import dry_run, pipeline
    from tacit.planning import plan as plans

    if schema:
        print_json(plans.Plan.model_json_schema())
        return
    if rates and not search:
        raise UsageError("--rates goes with --search.")
    if search and owners is None:
        raise UsageError("--search tries caps on the owner graph; give it with --owners FILE.")
    if to:
        refuse_overwrite(to, overwrite=overwrite)
    wanted, expected = _asked_plan(file, plans.parse_overrides(changes or []), asked)
    whole = Owners.load(owners) if owners else None
    tries = _rates(rates)
    with progress("Planning", 9 * max(1, len(tries)) if search else None) as advance:
        made = dry_run.dry_run(wanted, whole, search=search, rates=tries, progress=advance)
    if to:
        with whole_file(to) as draft:
            draft.write_text(pipeline.plan_file(made.plan, whole), encoding="utf-8")
    if as_json:
        print_json(made.as_json() | ({"forecast": expected.as_json()} if expected else {}))
    else:
        _print_tried(made.tried)
        if expected is not None:
            few.print_forecast(expected)
        out.print(Markdown(made.explain(records_per_second)))
    if to:
        say(f"calibrated plan: {to} (train with: tacit train RUN.yml --plan {to} -o RUN)")


def _asked_plan(
    file: Path | None, fields: dict[str, Any], asked: dict[str, Any]
) -> "tuple[Plan, Forecast | None]":
    """The plan that a file, fields or a few words ask for; of a run also what to expect of it."""
    from tacit.planning import plan as plans

    if file is None and not fields and not asked:
        raise UsageError(
            "Give a plan file, or fields with --set; `tacit plan --help` has examples."
        )
    if asked or (file is not None and few.names_run_or_corpus(file)):
        return _asked_run(file, asked | fields)
    return plans.read_plan(file, fields) if file else plans.Plan(**fields), None


def _asked_run(file: Path | None, changes: dict[str, Any]) -> "tuple[Plan, Forecast | None]":
    """The plan of a run, with what its recipe chose, and what to expect of it."""
    from tacit.planning import forecasts, recipes
    from tacit.python.asking import asked_fields
    from tacit.training.settings import Run

    chosen = recipes.resolve(asked_fields(file, changes))
    made = Run(**chosen.fields).made_plan()
    if made is None:
        raise UsageError("This run keeps no promise, so there is nothing to plan.")
    few.print_choices(chosen)
    return made, forecasts.forecast(chosen.fields)


def _rates(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part]
    except ValueError:
        raise UsageError(f"--rates {text}: give numbers with commas between.") from None


def _print_tried(tried: "Sequence[Candidate]") -> None:
    if not tried:
        return
    table = simple_table(
        "k", "tau", "records of one entity", "rate", "noise", "kept", "noise/signal"
    )
    for c in tried[:8]:
        p = c.plan
        cells = [p.entity_share, p.records_per_user_entity, p.user_rate]
        table.add_row(
            str(p.users_per_entity), *(f"{cell:g}" for cell in cells), f"{p.noise_multiplier:.3g}",
            f"{c.kept:,}", f"{c.noise_to_signal:.3g}",
        )  # fmt: skip
    out.print("[bold]Settings tried, least noise to signal first (the first is taken)[/bold]")
    out.print(table)


def verify(
    run: Annotated[Path, typer.Argument(help="Folder with certificate.json and ledger.jsonl.")],
    signed_by: Annotated[
        Path | None,
        typer.Option(help="Public key of whoever should vouch for it (K.pub of `tacit sign`)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Recompute a certificate from the ledger and the plan; exit 4 if anything does not match.

    Needs neither the data nor the model's code. It shows that the figures follow from the ledger
    and that every file is the certified one; that the ledger is the whole truth is what the person
    who signs it vouches for.

    Examples: `tacit verify RUN` · `tacit verify RUN --signed-by alice.pub`
    """
    from tacit.verification.runs import verify as check

    if not run.is_dir():
        raise DataError(
            f"{run} is not a folder; give the one that holds certificate.json and ledger.jsonl."
        )
    checks = check(run)
    if signed_by is not None:
        from tacit.verification.signing import signature_check

        checks.append(signature_check(run, signed_by))
    bad = [c for c in checks if not c.ok]
    if as_json:
        print_json({"ok": not bad, "signed_by": str(signed_by) if signed_by else None,
                    "checks": [asdict(c) for c in checks]})  # fmt: skip
    else:
        _print_checks(checks)
        _print_verdict(run, checks, signed_by)
    if bad:
        raise typer.Exit(4)


def _print_checks(checks: "Sequence[Check]") -> None:
    table = simple_table("", "checked", "")
    for column in table.columns:
        column.justify = "left"
    for c in checks:
        mark = "[green]✓[/green]" if c.ok else "[red]✗[/red]"
        table.add_row(mark, escape(c.what), escape(c.detail))
    out.print(table)


def _print_verdict(run: Path, checks: "Sequence[Check]", signed_by: Path | None) -> None:
    """What was recomputed, and apart from that what somebody vouches for."""
    from tacit.privacy.ledger import read_ledger

    bad = [c for c in checks if not c.ok and c.what != "signature"]
    broken = next((c.detail for c in reversed(bad) if c.detail.startswith("broken")), None)
    if broken is not None:
        out.print(f"[bold red]The certificate is {escape(broken)}.[/bold red]")
    elif bad:
        out.print("[bold red]Recomputed: the certificate does not hold.[/bold red]")
    else:
        out.print(
            "[bold]Recomputed: everything matches[/bold] (figures from the ledger, sentences from "
            "the figures, files from their digests).", soft_wrap=True,
        )  # fmt: skip
        if read_ledger(run / "ledger.jsonl").about["randomness"] == "fixed seed":
            out.print("[bold]Not for release[/bold]: the randomness came from a fixed seed.")
    if signed_by is None:
        said = "Vouched for: by nobody. That the ledger is whole and the assumptions are true is "
        said += "for a signer to say (tacit sign, then --signed-by KEY.pub)."
    elif any(c.what == "signature" and c.ok for c in checks):
        said = f"[bold]Vouched for by {escape(signed_by.name)}[/bold]: that the ledger is whole, "
        said += "and what the certificate states and assumes."
    else:
        said = f"[bold red]Not vouched for by {escape(signed_by.name)}.[/bold red]"
    out.print(said, soft_wrap=True)


def sign(
    run: Annotated[
        Path | None, typer.Argument(help="Folder of a run whose certificate holds.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="Your private key (PEM).")] = None,
    new_key: Annotated[
        Path | None, typer.Option(help="Make a key: KEY, and KEY.pub to give away.")
    ] = None,
) -> None:
    """Vouch for a certificate with your key, offline; writes model.sig into the folder.

    The folder is verified first. The signature covers the certificate, the ledger and the model's
    files, in the format of OpenSSF model signing: `model_signing verify key` checks it, too. What
    changes the certificate later (an audit, an attack) voids it: sign again.

    Examples: `tacit sign --new-key alice` · `tacit sign RUN --key alice`
    """
    from tacit.verification.signing import make_key
    from tacit.verification.signing import sign as put

    if new_key is not None:
        public = make_key(new_key)
        say(f"private key: {new_key} (keep it); public key: {public} (give it away)")
        key = key or new_key
    if run is None:
        if new_key is None:
            raise UsageError("Give the folder of a run, or --new-key KEY to make a key.")
        return
    if key is None:
        raise UsageError("Give your private key with --key, or make one with --new-key KEY.")
    say(f"signature: {put(run, key)} (check it with: tacit verify {run} --signed-by {key}.pub)")


def spent(
    runs: Annotated[list[Path], typer.Argument(help="Ledgers, or folders that hold some.")],
    delta: Annotated[float, typer.Option(help="Delta.")] = 1e-5,
    as_json: AsJson = False,
) -> None:
    """What several runs spent together on the same people, hyper-parameter search included.

    An account is a set of runs that share users. Runs on the same texts under other names of users
    are pointed out, with the price of both together.

    Example: `tacit spent runs/`
    """
    from tacit.planning.spending import total

    found = total(runs, delta)
    if as_json:
        print_json(found)
        return
    for number, account in enumerate(found["accounts"], 1):
        people = f", {account['users']:,} users" if account["users"] is not None else ""
        out.print(f"[bold]Account {number}[/bold]{people}: {escape(', '.join(account['runs']))}")
        out.print(f"{account['releases']:,} releases")
        table = simple_table("one", f"epsilon at delta {up(delta)}")
        for unit, epsilon in account["epsilon"].items():
            table.add_row(unit, up(epsilon))
        out.print(table)
    for pair in found["overlaps"]:
        worst = ", ".join(f"{up(e)} for {u}" for u, e in pair["epsilon"].items())
        out.print(
            f"[bold yellow]The same people under other names?[/bold yellow] "
            f"{escape(', '.join(pair['runs']))} share no user and {pair['texts']:,} texts or more; "
            f"together epsilon would be {worst}.", soft_wrap=True,
        )  # fmt: skip
    if found["unknown"]:
        out.print(
            f"Whose text {escape(', '.join(found['unknown']))} read is not known (no account.json "
            "beside the ledger): such a run counts by itself, or with runs on the same corpus.",
            soft_wrap=True,
        )
