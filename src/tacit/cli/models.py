"""`tacit models`: what can be trained here without a network."""

from rich.markup import escape

from tacit.cli.common import out, print_json, say, simple_table
from tacit.cli.options import AsJson


def models(as_json: AsJson = False) -> None:
    """List the models that runs can begin from, and which of them suit this machine.

    Installed packages, public starts, what the Hugging Face cache holds, and packages that an index
    can install. Nothing is fetched.

    Example: `tacit models`
    """
    from tacit.python.models import HEADINGS
    from tacit.python.models import models as known_models

    found = known_models()
    if as_json:
        print_json(found.as_json())
        return
    table = simple_table(*HEADINGS)
    for column in table.columns:
        column.justify = "left"
    for one in found.known:
        table.add_row(*(escape(value) for value in one.row()))
    out.print(table)
    for sentence in found.recommended:
        say(sentence)
