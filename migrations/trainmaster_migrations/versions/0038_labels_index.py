"""The index of jobs' labels, for lists of jobs with rare ones. Jobs without labels are not in it.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.get_context().autocommit_block():
        # One that an interrupted migration has left may be unfinished.
        op.execute("DROP INDEX IF EXISTS ix_jobs_labels")
        op.execute("CREATE INDEX CONCURRENTLY ix_jobs_labels ON jobs USING gin (labels) WHERE labels IS NOT NULL")


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
