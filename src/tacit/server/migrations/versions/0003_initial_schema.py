"""The first schema that databases are kept for; later changes stand in revisions after it.

Revision ID: 0003
"""

from alembic import op

from tacit.server.storage import Table

revision = "0003"
down_revision = None


def upgrade() -> None:
    """Make all tables; freeze them here when a later revision changes one."""
    Table.metadata.create_all(op.get_bind())
