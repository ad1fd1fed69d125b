"""The command line: one short function per verb, one module per noun.

Results go to standard output, everything else to standard error, so that `--json` can be piped.
"""

import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click
import typer
from typer.core import TyperGroup

from tacit.cli import (
    attack,
    compare,
    corpus,
    detect,
    federate,
    masked,
    owners,
    plan,
    policy,
    price,
    report,
    sanitize,
    serve,
    train,
)
from tacit.errors import TacitError

INTERRUPTED = 130
"""What typer makes of Ctrl-C, as shells do."""


class InOrder(TyperGroup):
    """Commands listed in the order in which one uses them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The path first, then the rest."""
        path = ["corpus", "detect", "policy", "owners", "price", "plan", "methods", "train"]
        path += [
            "evaluate",
            "predict",
            "sanitize",
            "pretrain",
            "guess",
            "canaries",
            "attack",
            "audit",
            "report",
        ]
        path += ["compare", "verify", "sign", "spent", "federate", "serve", "contribute", "pull"]
        return [*path, *(name for name in self.commands if name not in path)]


app = typer.Typer(
    name="tacit",
    cls=InOrder,
    help="Language models that learn from people's text and keep its secrets.\n\n"
    "The commands follow one another: read a corpus, detect what is sensitive, see who shares it, "
    "price a promise, plan it, verify it.\n\n"
    "Example: `tacit corpus generate customersim --dialogs 300 -o c.jsonl`",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    # A traceback with local variables would print people's text.
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(corpus.app, name="corpus")
app.add_typer(detect.app, name="detect")
app.add_typer(policy.app, name="policy")
app.command("owners")(owners.owners)
app.command("price")(price.price)
app.command("plan")(plan.plan)
app.command("methods")(train.methods)
app.command("train")(train.train)
app.command("evaluate")(train.evaluate)
app.command("predict")(train.predict)
app.command("sanitize")(sanitize.sanitize)
app.command("pretrain")(masked.pretrain)
app.command("guess")(masked.guess)
app.add_typer(attack.canaries, name="canaries")
app.command("attack")(attack.attack)
app.command("audit")(attack.audit)
app.command("report")(report.report)
app.command("compare")(compare.compare)
app.command("verify")(plan.verify)
app.command("sign")(plan.sign)
app.command("spent")(plan.spent)
app.add_typer(federate.app, name="federate")
app.command("serve")(serve.serve)
app.command("contribute")(serve.contribute)
app.command("pull")(serve.pull)


@app.callback(invoke_without_command=True)
def _root(
    version: bool = typer.Option(False, "--version", help="Print the version and stop."),
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(installed("tacit"))
        raise typer.Exit


def main() -> None:
    """Run the command line; every foreseen failure is one sentence and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that lacks a letter shows a question mark, rather than nothing at all.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and give its exit code."""
    with _noticing_interrupts() as interrupted:
        code = _run(arguments)
    # A library may make an error of its own of an interrupt; the person knows better.
    return _stopped() if interrupted and code not in (0, INTERRUPTED) else code


@contextmanager
def _noticing_interrupts() -> Iterator[list[int]]:
    """A list that is empty until Ctrl-C comes, which then has its usual effect."""
    noticed: list[int] = []

    def notice(number: int, frame: FrameType | None) -> None:
        noticed.append(number)
        signal.default_int_handler(number, frame)

    # Somebody else's handler is left alone; threads other than the first have none.
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, notice)
    try:
        yield noticed
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _run(arguments: list[str]) -> int:
    try:
        result = app(args=arguments, prog_name="tacit", standalone_mode=False)
        # Now, while a failure can still be told.
        sys.stdout.flush()
        if result == INTERRUPTED:
            return _stopped()
        return result if isinstance(result, int) else 0
    except TacitError as error:
        _say(f"Error: {error}")
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _stopped()
    except (BrokenPipeError, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code == signal.SIGTERM:
            # Ray takes the signal, and says so in this way.
            _say("Stopped; nothing was half-written.")
            return 128 + signal.SIGTERM
        # Whoever read our output (head, less) has seen enough; click and rich then stop with
        # SystemExit(1).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        _say(f"Error: {error.filename or 'a file'}: {error.strerror or 'cannot be used'}.")
        return 3
    except Exception as error:
        # Its message may quote text, so only where it happened is shown.
        if os.environ.get("TACIT_DEBUG"):
            raise
        _say(
            f"Internal error ({type(error).__name__} at {_place(error)}). Set TACIT_DEBUG=1 for "
            "the whole traceback; it may quote your text, so read it before you share it."
        )
        return 1


def _stopped() -> int:
    _say("Stopped; nothing was half-written.")
    return INTERRUPTED


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr)


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    place = "an unknown place"
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "?")
        if module.startswith("tacit"):
            place = f"{module}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return place
