"""Alembic comes here with a connection that the storage has opened."""

from alembic import context

from tacit.server.storage import Table

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=Table.metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
