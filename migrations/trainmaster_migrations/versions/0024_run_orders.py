"""The orders of a run have a column of their own; until now they were among what explains the decision for it.

The previous release neither reads nor writes the column: it leases runs without it, and reads the keys in ``decision``, which
this release writes as well. This release reads those keys where the column is null.

Rules: see script.py.mako.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    comment = "What it is told to do; null: a release before this column has it in decision."
    op.add_column("runs", sa.Column("orders", postgresql.JSONB(astext_type=sa.Text()), nullable=True, comment=comment))


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
