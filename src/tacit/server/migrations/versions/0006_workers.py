"""Which worker on another machine has a job, and when it was last heard of.

Revision ID: 0006
"""

import sqlalchemy as sa
from alembic import op

from tacit.server.storage import UtcDateTime

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Nobody has a job of before."""
    op.add_column("jobs", sa.Column("worker", sa.String(length=100), nullable=True))
    op.add_column("jobs", sa.Column("claim", sa.String(length=64), nullable=True))
    op.add_column("jobs", sa.Column("heard", UtcDateTime(timezone=True), nullable=True))
