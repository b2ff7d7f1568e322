"""Members' output is stored in pieces: their index, and the pieces themselves where the embedded log store holds them.

The previous release neither reads nor writes these tables. It shows the last output of members, which stays in ``run_tails``.

Rules: see script.py.mako.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def _member() -> tuple[sa.Column[Any], ...]:
    return (
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
    )


def upgrade() -> None:
    op.create_table(
        "member_outputs",
        *_member(),
        sa.Column("next", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("bytes", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("lives", postgresql.ARRAY(sa.BigInteger()), nullable=False, server_default=sa.text("'{}'")),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.PrimaryKeyConstraint("job_id", "attempt", "role", "index"),
        comment="Output of members that is stored: its end, its bytes before compression, and where the output of restarts begins.",
    )
    op.create_index("ix_member_outputs_changed_at", "member_outputs", ["changed_at"])
    op.create_table(
        "output_pieces",
        *_member(),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("next", sa.BigInteger(), nullable=False),
        sa.Column("lines", sa.Integer(), nullable=False),
        sa.Column("marks", postgresql.JSONB(astext_type=sa.Text()), nullable=False, server_default=sa.text("'[]'")),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "attempt", "role", "index", "start"),
        comment="Pieces of output: offsets, line ends, times as [offset, seconds since the epoch], and bytes as they are stored.",
    )
    op.create_table(
        "output_data",
        sa.Column("key", sa.Text(), primary_key=True),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        comment="The embedded log store: compressed pieces of output.",
    )
    for column in (
        sa.Column("marks", postgresql.JSONB(astext_type=sa.Text()), nullable=False, server_default=sa.text("'[]'")),
        sa.Column("lives", postgresql.ARRAY(sa.BigInteger()), nullable=False, server_default=sa.text("'{}'")),
    ):
        op.add_column("run_tails", column)
    # Compressed already.
    op.execute("ALTER TABLE output_data ALTER COLUMN data SET STORAGE EXTERNAL")


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
