"""`tacit audit`: a lower bound on epsilon, and whether a run does what it promises."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.common import out, print_json, progress, say, simple_table
from tacit.cli.options import AsJson, RunFolder
from tacit.errors import UsageError

if TYPE_CHECKING:
    from tacit.audits.audit import Way
    from tacit.audits.epsilon_bounds import Audit

_Ways = Annotated[
    str | None,
    typer.Option(
        help="How, with commas between: in-situ (a copy of the run trained again), white-box (its "
        "step on canaries alone, without its text), black-box (the trained model asked about "
        "canaries planted by coins). In situ if not given, and black-box where it can be."
    ),
]
_Unit = Annotated[
    str | None,
    typer.Option(help="For whom: users, entities, ...; all of the certificate if not given."),
]
_Count = Annotated[
    int | None, typer.Option(min=64, help="Canaries; by the certified epsilon if not given.")
]
_Steps = Annotated[
    int | None,
    typer.Option(min=1, help="Audit only so many of the run's steps, against the price of these."),
]


def audit(
    run: RunFolder,
    using: _Ways = None,
    unit: _Unit = None,
    canaries: _Count = None,
    steps: _Steps = None,
    confidence: Annotated[float, typer.Option(help="Confidence of the lower bound.")] = 0.95,
    as_json: AsJson = False,
) -> None:
    """Look for a lower bound on epsilon, and check that a run does what it promises.

    A copy of the run is trained once more, with its own model, text, sampler, optimizer and noise;
    hypothetical users and entities take part, each in or out by a fair coin, and an adversary who
    sees every step guesses which. Noise, sampling and ledger are checked directly. A contradiction,
    or a check that fails, makes the certificate's standing `broken`, and the exit code is 4.

    Examples: `tacit audit RUN` · `tacit audit RUN --unit users --steps 20` ·
    `tacit audit RUN --using white-box`
    """
    from tacit.audits.audit import audit_run
    from tacit.audits.epsilon_bounds import BREAKING
    from tacit.errors import PrivacyRefused

    found = audit_run(
        run, using=_ways(using), unit=unit, canaries=canaries, steps=steps,
        confidence=confidence, watch=progress, on_progress=say,
    )  # fmt: skip
    if as_json:
        print_json({"audits": [one.as_dict() for one in found]})
    else:
        _show_audits(found)
        say(f"audit: {run / 'audit.json'}")
    if any(one.verdict in BREAKING for one in found):
        raise PrivacyRefused(
            f"The certificate of {run} does not hold; its standing is now broken. Do not release "
            "this model."
        )


def _ways(using: str | None) -> "list[Way]":
    from tacit.audits.audit import WAYS

    named = [part.strip() for part in (using or "").split(",") if part.strip()]
    known = {str(way): way for way in WAYS}
    for name in named:
        if name not in known:
            raise UsageError(f"--using {name} is not known; accepted: {', '.join(known)}.")
    return [known[name] for name in named]


def _show_audits(found: "list[Audit]") -> None:
    shown: set[Any] = set()
    for one in found:
        out.print(one.sentence)
        say(
            f"  {one.evidence.how}; {one.evidence.correct:,} of {one.evidence.guesses:,} "
            f"guesses right, {one.evidence.canaries:,} canaries"
        )
        if one.checks and one.checks not in shown:
            shown.add(one.checks)
            table = simple_table("checked", "", "found")
            table.columns[2].justify = "left"
            for check in one.checks:
                table.add_row(check.name, "yes" if check.passed else "NO", check.detail)
            out.print(table)
