"""Deadlines of jobs: the moment by which each should have ended, and which of its events about that were written.

The previous release refuses ``deadline``, and cannot read a queue with ``orderBy: deadline``, in which nothing starts then. It does
not note missed deadlines.

The index is in the same migration as its columns: each step can be repeated after an interruption.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0051"
down_revision = "0050"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE jobs ADD COLUMN IF NOT EXISTS deadline timestamptz,"
        " ADD COLUMN IF NOT EXISTS deadline_noted smallint NOT NULL DEFAULT 0"
    )
    op.execute("COMMENT ON COLUMN jobs.deadline IS 'It should have ended by then; NULL: it has none.'")
    op.execute(
        "COMMENT ON COLUMN jobs.deadline_noted IS 'Its last event about its deadline: 0 none, 1 at risk, 2 missed.'"
    )
    with op.get_context().autocommit_block():
        # One that an interrupted migration has left may be unfinished.
        op.execute("DROP INDEX IF EXISTS ix_jobs_deadline")
        op.execute(
            "CREATE INDEX CONCURRENTLY ix_jobs_deadline ON jobs (deadline)"
            " WHERE deadline IS NOT NULL AND deadline_noted < 2 AND ended_at IS NULL"
        )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
