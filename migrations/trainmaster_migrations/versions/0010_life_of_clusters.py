"""Clusters that are drained, and clusters that were removed after jobs had run on them.

The previous release does not read the new columns: it shows a removed cluster as one that never connected, and a drained one as
cordoned.

Rules: see script.py.mako.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("clusters", sa.Column("draining", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column("clusters", sa.Column("removed_at", sa.DateTime(timezone=True)))
    op.create_table_comment(
        "clusters",
        "removed_at: its runs are kept, so its row is; for everybody else it is not there.",
        existing_comment=None,
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
