"""Where the leading scheduler answers questions about its view, and the secret that it takes them with.

Null in rows that the previous release wrote: then nobody is asked. A leader of that release leaves the column as it is; whom it names
refuses, since it leads no more.

Rules: see script.py.mako.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("leadership", sa.Column("reads", postgresql.JSONB(astext_type=sa.Text()), nullable=True))
    op.create_table_comment(
        "leadership", "reads: where the holder answers questions about its view, and with which secret."
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
