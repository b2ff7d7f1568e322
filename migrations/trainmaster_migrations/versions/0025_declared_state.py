"""Who owns the fields of declared objects, and the revisions that these objects have had.

The previous release reads and writes neither table. Objects that it changes are recorded as they are at the next change by this one.

Rules: see script.py.mako.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "field_owners",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("applier", sa.Text(), nullable=False),
        sa.Column("fields", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("created", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("applied_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("kind", "name", "applier", name=op.f("pk_field_owners")),
        comment="Fields of declared objects by who has set them. applied_at: NULL for who has changed the object by itself.",
    )
    op.create_index(op.f("ix_field_owners_applier"), "field_owners", ["applier"])
    op.create_table(
        "declared_revisions",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("applier", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("spec", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_declared_revisions")),
        sa.UniqueConstraint("kind", "name", "revision", name=op.f("uq_declared_revisions_kind_name_revision")),
        comment="What declared objects were after each change; spec NULL: the object was removed. Insert-only.",
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
