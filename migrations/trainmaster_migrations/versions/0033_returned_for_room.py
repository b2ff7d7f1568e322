"""Whether a cluster is left out for a job because it had no room for it, so that the job is tried again and not held.

The previous release leaves the column at its default.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE cool_downs ADD COLUMN lacks_room boolean NOT NULL DEFAULT false")


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
