"""Versions of the secrets that sign webhook messages of each queue.

The previous release signs with the installation's secret, whatever is written here.

Rules: see script.py.mako.
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "webhook_secrets",
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("previous_until", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("path", name=op.f("pk_webhook_secrets")),
        comment="Of queues whose secret was changed; kept when the queue is removed, so that another one of its path gets another.",
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
