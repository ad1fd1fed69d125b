"""Sessions of the pages.

Revision ID: 0002
"""

import sqlalchemy as sa
from alembic import op

from tacit.server.storage import Moment

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "page_sessions",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("account_id", sa.String(length=40), nullable=False),
        sa.Column("token_id", sa.String(length=40), nullable=True),
        sa.Column("created", Moment(), nullable=False),
        sa.Column("expires", Moment(), nullable=False),
        sa.Column("ended", Moment(), nullable=True),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),
        sa.ForeignKeyConstraint(["token_id"], ["tokens.id"]),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_index(
        op.f("ix_page_sessions_account_id"), "page_sessions", ["account_id"], unique=False
    )


def downgrade() -> None:
    """Take it away."""
    op.drop_index(op.f("ix_page_sessions_account_id"), table_name="page_sessions")
    op.drop_table("page_sessions")
