"""The kind of manifest as which a job was submitted, for lists of such objects by the Kubernetes API.

The previous release neither reads nor writes it: jobs that it submits from manifests are in no such list.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE job_objects ADD COLUMN kind text")
    op.execute(
        "COMMENT ON COLUMN job_objects.kind IS 'Kind of the manifest as which it was submitted, such as batch/v1 Job, whose"
        " specification spec then is; NULL: a Job of this system.'"
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
