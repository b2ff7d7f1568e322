"""The day on which a shape was last submitted, so that retention can remove those that nobody uses any more.

Rules: see script.py.mako.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("shapes", sa.Column("used_on", sa.Date(), server_default=sa.text("CURRENT_DATE"), nullable=False))
    op.create_table_comment("shapes", "used_on: the day of the last submission. Retention goes by it.")


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
