"""What queues have used before, for installations where past usage counts.

The previous release does not read the table: while it leads, only what queues use now counts.

Rules: see script.py.mako.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "queue_usage",
        sa.Column("queue_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("level", sa.Double(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("queue_id", name=op.f("pk_queue_usage")),
        comment="What queues have used before, as the leader last counted it; at: seconds since the epoch, alike in all rows.",
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
