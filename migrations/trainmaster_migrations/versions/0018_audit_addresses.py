"""Where the call of a line of the audit came from.

The previous release does not write the column: its lines have no address.

Rules: see script.py.mako.
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("audit", sa.Column("address", sa.Text(), server_default=sa.text("''"), nullable=False))


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
