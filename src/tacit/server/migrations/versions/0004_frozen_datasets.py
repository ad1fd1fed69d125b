"""Datasets that wait for an admin to look.

Revision ID: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Why a dataset is frozen; nothing for one that is not."""
    column = sa.Column("frozen", sa.Text(), nullable=False, server_default="")
    op.add_column("datasets", column)
