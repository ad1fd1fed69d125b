"""The first schema that databases are kept for; later changes stand in revisions after it.

Revision ID: 0003
"""

import sqlalchemy as sa
from alembic import op

from tacit.server.storage import Number, UtcDateTime

revision = "0003"
down_revision = None


def upgrade() -> None:
    """Make all tables, as they were then."""
    for make in (
        _accounts,
        _audit_entries,
        _deleted_records,
        _facts,
        _datasets,
        _entity_lists,
        _jobs,
        _records,
        _tokens,
        _charges,
        _page_sessions,
    ):
        make()


def _accounts() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("password", sa.String(length=200), nullable=True),
        sa.Column("disabled", sa.Boolean(), nullable=False),
        sa.Column("created", UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )


def _audit_entries() -> None:
    op.create_table(
        "audit_entries",
        sa.Column("number", Number, autoincrement=True, nullable=False),
        sa.Column("at", UtcDateTime(timezone=True), nullable=False),
        sa.Column("account", sa.String(length=100), nullable=False),
        sa.Column("token_id", sa.String(length=40), nullable=True),
        sa.Column("what", sa.String(length=60), nullable=False),
        sa.Column("target", sa.String(length=200), nullable=False),
        sa.Column("outcome", sa.String(length=200), nullable=False),
        sa.PrimaryKeyConstraint("number"),
    )
    op.create_index(op.f("ix_audit_entries_at"), "audit_entries", ["at"], unique=False)


def _deleted_records() -> None:
    op.create_table(
        "deleted_records",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )


def _facts() -> None:
    op.create_table(
        "facts",
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )


def _datasets() -> None:
    op.create_table(
        "datasets",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("public", sa.Boolean(), nullable=False),
        sa.Column("limits", sa.JSON(), nullable=True),
        sa.Column("delta", sa.Float(), nullable=False),
        sa.Column("unproved_allowed", sa.Boolean(), nullable=False),
        sa.Column("charges_made", sa.Integer(), nullable=False),
        sa.Column("created_by", sa.String(length=40), nullable=False),
        sa.Column("created", UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["created_by"],
            ["accounts.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )


def _entity_lists() -> None:
    op.create_table(
        "entity_lists",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("dataset_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("names", sa.JSON(), nullable=False),
        sa.Column("created_by", sa.String(length=40), nullable=False),
        sa.Column("created", UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["created_by"],
            ["accounts.id"],
        ),
        sa.ForeignKeyConstraint(
            ["dataset_id"],
            ["datasets.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        op.f("ix_entity_lists_dataset_id"), "entity_lists", ["dataset_id"], unique=False
    )


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("dataset_id", sa.String(length=40), nullable=False),
        sa.Column("target_id", sa.String(length=40), nullable=True),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("unproved", sa.Boolean(), nullable=False),
        sa.Column("cancelling", sa.Boolean(), nullable=False),
        sa.Column("resuming", sa.Boolean(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("process", sa.Integer(), nullable=True),
        sa.Column("released", sa.Integer(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("created_by", sa.String(length=40), nullable=False),
        sa.Column("created", UtcDateTime(timezone=True), nullable=False),
        sa.Column("started", UtcDateTime(timezone=True), nullable=True),
        sa.Column("ended", UtcDateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["created_by"],
            ["accounts.id"],
        ),
        sa.ForeignKeyConstraint(
            ["dataset_id"],
            ["datasets.id"],
        ),
        sa.ForeignKeyConstraint(
            ["target_id"],
            ["jobs.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_jobs_dataset_id"), "jobs", ["dataset_id"], unique=False)
    op.create_index(op.f("ix_jobs_state"), "jobs", ["state"], unique=False)
    op.create_index(op.f("ix_jobs_target_id"), "jobs", ["target_id"], unique=False)


def _records() -> None:
    op.create_table(
        "records",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("dataset_id", sa.String(length=40), nullable=False),
        sa.Column("owner_id", sa.String(length=40), nullable=False),
        sa.Column("user_name", sa.String(length=200), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("label", sa.String(length=200), nullable=True),
        sa.Column("split", sa.String(length=20), nullable=True),
        sa.Column("extra", sa.JSON(), nullable=True),
        sa.Column("created", UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["dataset_id"],
            ["datasets.id"],
        ),
        sa.ForeignKeyConstraint(
            ["owner_id"],
            ["accounts.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("records_of_owner", "records", ["dataset_id", "owner_id"], unique=False)
    op.create_index("records_of_user", "records", ["dataset_id", "user_name"], unique=False)


def _tokens() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("account_id", sa.String(length=40), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("label", sa.String(length=100), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=True),
        sa.Column("dataset_id", sa.String(length=40), nullable=True),
        sa.Column("created", UtcDateTime(timezone=True), nullable=False),
        sa.Column("expires", UtcDateTime(timezone=True), nullable=True),
        sa.Column("revoked", UtcDateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["account_id"],
            ["accounts.id"],
        ),
        sa.ForeignKeyConstraint(
            ["dataset_id"],
            ["datasets.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
    )
    op.create_index(op.f("ix_tokens_account_id"), "tokens", ["account_id"], unique=False)


def _charges() -> None:
    op.create_table(
        "charges",
        sa.Column("number", Number, autoincrement=True, nullable=False),
        sa.Column("dataset_id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("what", sa.String(length=20), nullable=False),
        sa.Column("releases", sa.JSON(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("at", UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["dataset_id"],
            ["datasets.id"],
        ),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
        ),
        sa.PrimaryKeyConstraint("number"),
    )
    op.create_index(op.f("ix_charges_dataset_id"), "charges", ["dataset_id"], unique=False)
    op.create_index(op.f("ix_charges_job_id"), "charges", ["job_id"], unique=False)


def _page_sessions() -> None:
    op.create_table(
        "page_sessions",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("account_id", sa.String(length=40), nullable=False),
        sa.Column("token_id", sa.String(length=40), nullable=True),
        sa.Column("created", UtcDateTime(timezone=True), nullable=False),
        sa.Column("expires", UtcDateTime(timezone=True), nullable=False),
        sa.Column("ended", UtcDateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["account_id"],
            ["accounts.id"],
        ),
        sa.ForeignKeyConstraint(
            ["token_id"],
            ["tokens.id"],
        ),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_index(
        op.f("ix_page_sessions_account_id"), "page_sessions", ["account_id"], unique=False
    )
