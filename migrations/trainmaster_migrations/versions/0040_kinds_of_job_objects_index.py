"""The index of jobs that were submitted as manifests of other APIs, by kind. Other jobs are not in it.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.get_context().autocommit_block():
        # One that an interrupted migration has left may be unfinished.
        op.execute("DROP INDEX IF EXISTS ix_job_objects_kind")
        op.execute(
            "CREATE INDEX CONCURRENTLY ix_job_objects_kind ON job_objects (kind, queue_id, job_id) WHERE kind IS NOT NULL"
        )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
