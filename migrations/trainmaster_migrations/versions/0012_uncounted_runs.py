"""Which runs are not in the usage yet: found by an index of their own.

The previous release does not know of it.

Rules: see script.py.mako.
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.get_context().autocommit_block():
        op.create_index(
            "ix_runs_uncounted",
            "runs",
            ["job_id", "attempt"],
            postgresql_where=sa.text("NOT counted"),
            postgresql_concurrently=True,
            if_not_exists=True,
        )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
