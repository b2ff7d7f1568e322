"""Nodes that admins keep for a queue in a window of time.

The previous release does not read the table: while it leads, nothing is kept.

Rules: see script.py.mako.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "reservations",
        sa.Column("id", sa.Integer(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("queue_id", sa.Integer(), nullable=False),
        sa.Column("starts_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("spec", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["queue_id"], ["queues.id"], name=op.f("fk_reservations_queue_id_queues")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reservations")),
        sa.UniqueConstraint("name", name=op.f("uq_reservations_name")),
        comment="Nodes that admins keep for a queue in a window of time.",
    )
    op.create_index(op.f("ix_reservations_queue_id"), "reservations", ["queue_id"])


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
