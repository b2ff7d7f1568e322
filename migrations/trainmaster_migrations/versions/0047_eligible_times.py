"""Start times of jobs: the moment since when each is eligible.

The previous release refuses ``startAfter``, and releases jobs that are held for their start time.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0047"
down_revision = "0046"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE jobs ADD COLUMN eligible_at timestamptz")
    op.execute(
        "COMMENT ON COLUMN jobs.eligible_at IS 'Since then it waits for its turn, or will; NULL: since its submission.'"
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
