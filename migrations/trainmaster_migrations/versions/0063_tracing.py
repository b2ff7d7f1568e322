"""Traces of jobs: the position in a trace that a job's submission has.

Null for all but jobs of sampled traces, and then no more than a bit of a row. The previous release leaves it null, and makes no spans.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0063"
down_revision = "0062"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE jobs ADD COLUMN trace bytea")
    op.execute(
        "COMMENT ON COLUMN jobs.trace IS 'Trace and span of its submission, 24 bytes; NULL: it belongs to no trace that is sampled.'"
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
