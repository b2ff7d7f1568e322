"""Runs that are resized while they go on.

The previous release does not read the new columns. While it leads, sizes stay as they are; its agents ignore a resize.

Rules: see script.py.mako.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("holding", postgresql.JSONB(astext_type=sa.Text())))
    op.add_column("runs", sa.Column("resized_at", sa.DateTime(timezone=True)))
    op.create_table_comment(
        "runs",
        "holding: the sizes before a shrink, until its agent says that the members have gone.",
        existing_comment=None,
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
