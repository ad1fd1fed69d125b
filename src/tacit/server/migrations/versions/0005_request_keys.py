"""Which call a job came from, so that the same call made again starts nothing twice.

Revision ID: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Keys of requests, and what was asked for under them."""
    for name in ("request_key", "request_digest"):
        op.add_column("jobs", sa.Column(name, sa.String(length=64), nullable=True))
    op.create_index(op.f("ix_jobs_request_key"), "jobs", ["request_key"], unique=True)
