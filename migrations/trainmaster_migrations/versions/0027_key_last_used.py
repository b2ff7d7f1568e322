"""The last use of API keys.

The previous release neither reads nor writes the column.

Rules: see script.py.mako.
"""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    comment = "To the minute; null: not since this was recorded."
    op.add_column("api_keys", sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True, comment=comment))


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
