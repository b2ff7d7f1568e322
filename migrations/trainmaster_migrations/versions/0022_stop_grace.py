"""The seconds that who stopped a run left to its members, where that is less than its specification says.

The previous release neither reads nor writes the column: the grace of the specification holds.

Rules: see script.py.mako.
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    comment = "Seconds that who stopped it left to its members; null: as specified."
    op.add_column("runs", sa.Column("stop_grace", sa.Double(), nullable=True, comment=comment))


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
