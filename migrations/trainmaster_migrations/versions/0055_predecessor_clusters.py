"""Jobs that start after others: where these ran.

The previous release does not read it: its jobs are sent to clusters without this preference, and those that it releases have none.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0055"
down_revision = "0054"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE jobs ADD COLUMN predecessor_clusters jsonb")
    op.execute(
        "COMMENT ON COLUMN jobs.predecessor_clusters IS 'By cluster, the part of the jobs that it started after whose last run was"
        " there; NULL: of none that ran.'"
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
