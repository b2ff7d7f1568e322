"""Running jobs whose GPUs do nothing: since when, and when their users were warned.

The previous release writes neither.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0068"
down_revision = "0067"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE run_use ADD COLUMN IF NOT EXISTS gpus_idle_since timestamptz")
    op.execute("ALTER TABLE run_use ADD COLUMN IF NOT EXISTS gpus_warned_at timestamptz")


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
