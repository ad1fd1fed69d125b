"""Both sides of a federated run as Flower's apps: the same in a simulation and between machines."""

import os
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from tacit.errors import TacitError
from tacit.federated import client, server

FOLDER_VARIABLE = "TACIT_FEDERATION"
"""Names the run's folder where Flower hands no settings to the server."""

server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Carry out, or go on with, the run of a folder."""
    folder = Path(str(context.run_config.get("folder") or os.environ[FOLDER_VARIABLE]))
    try:
        server.serve(grid, folder)
    except TacitError as error:
        server.note_refusal(folder, error)
        raise


@client_app.query()
def join(message: Message, context: Context) -> Message:
    """Take the kit, say who is here."""
    return Message(client.join(message.content, context.node_config), reply_to=message)


@client_app.train()
def update(message: Message, context: Context) -> Message:
    """Answer a round."""
    return Message(client.update(message.content, context.node_config), reply_to=message)
