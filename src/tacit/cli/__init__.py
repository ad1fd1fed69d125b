"""The command line: one short function per verb, one module per noun.

Results go to standard output, everything else to standard error, so that `--json` can be piped.
"""

import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType

import click
import typer
from typer.core import TyperGroup

from tacit.errors import TacitError, missing_package

INTERRUPTED = 130
"""What typer makes of Ctrl-C, as shells do."""

COMMANDS = {
    "corpus": "corpus:app",
    "detect": "detect:app",
    "policy": "policy:app",
    "owners": "owners:owners",
    "price": "price:price",
    "plan": "plan:plan",
    "methods": "train:methods",
    "presets": "presets:app",
    "models": "models:models",
    "start": "start:app",
    "train": "train:train",
    "evaluate": "train:evaluate",
    "predict": "train:predict",
    "export": "export:export",
    "refit": "train:refit",
    "sanitize": "sanitize:sanitize",
    "synthesize": "synthesize:synthesize",
    "pretrain": "masked:pretrain",
    "guess": "masked:guess",
    "canaries": "attack:canaries",
    "attack": "attack:attack",
    "audit": "audit:audit",
    "report": "report:report",
    "compare": "compare:compare",
    "verify": "plan:verify",
    "sign": "plan:sign",
    "spent": "plan:spent",
    "federate": "federate:app",
    "serve": "serve:app",
    "contribute": "serve:contribute",
    "pull": "serve:pull",
}
"""Every command and where it is defined, in the order in which one uses them."""


class InOrder(TyperGroup):
    """Commands listed in the order of the table."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the table."""
        return list(COMMANDS)


app = typer.Typer(
    name="tacit",
    cls=InOrder,
    help="Language models that learn from people's text and keep its secrets.\n\n"
    "The commands follow one another: read a corpus, detect what is sensitive, see who shares it, "
    "price a guarantee, plan it, train, attack, verify.\n\n"
    "Example: `tacit corpus generate customersim --dialogs 300 -o c.jsonl`",
    no_args_is_help=True,
    suggest_commands=False,  # click suggests them itself
    rich_markup_mode="markdown",
    # A traceback with local variables would print people's text.
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _place in COMMANDS.items():
    _module, _, _attribute = _place.partition(":")
    _command = getattr(import_module(f"tacit.cli.{_module}"), _attribute)
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_name)
    else:
        app.command(_name)(_command)


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
        sys.stdout.flush()  # now, while a failure can still be reported
        if result == INTERRUPTED:
            return _stopped()
        return result if isinstance(result, int) else 0
    except (TacitError, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError):
            if (error.name or "tacit").startswith("tacit"):
                return _internal(error)
            error = missing_package(error, "This command")
        _say(f"Error: {error}")
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _stopped()
    except (BrokenPipeError, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code == signal.SIGTERM:
            return _stopped(128 + signal.SIGTERM)  # Ray takes the signal, and says so in this way
        # Whoever read our output (head, less) has seen enough; click and rich then stop with
        # SystemExit(1).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        _say(f"Error: {error.filename or 'a file'}: {error.strerror or 'cannot be used'}.")
        return 3
    except Exception as error:
        return _internal(error)


def _internal(error: Exception) -> int:
    """Report what nobody foresaw: where it happened, not its message, which may quote text."""
    if os.environ.get("TACIT_DEBUG"):
        raise error
    place = "an unknown place"
    for frame, line in traceback.walk_tb(error.__traceback__):
        module = frame.f_globals.get("__name__", "?")
        if module.startswith("tacit"):
            place = f"{module}, line {line}"
    _say(
        f"Internal error ({type(error).__name__} at {place}). Set TACIT_DEBUG=1 for the whole "
        "traceback; it may quote your text, so read it before you share it."
    )
    return 1


def _stopped(code: int = INTERRUPTED) -> int:
    _say("Stopped; nothing was half-written.")
    return code


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr)
