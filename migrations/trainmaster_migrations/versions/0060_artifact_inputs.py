"""Inputs of jobs that are artifacts of other jobs.

The previous release stores no such job: it refuses the fields. It leaves rows of this table behind when it removes a job, which keep
nothing; and it may remove a job whose artifact another one waits for, whose run then fails and says so. Its scheduler starts none: the
shape asks for `artifactInputs`, which only agents of this release offer.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0060"
down_revision = "0059"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE artifact_inputs (
            job_id bigint NOT NULL, input smallint NOT NULL, on_job_id bigint NOT NULL, name text NOT NULL,
            CONSTRAINT pk_artifact_inputs PRIMARY KEY (job_id, input)
        )
        """
    )
    op.execute("CREATE INDEX ix_artifact_inputs_on_job_id ON artifact_inputs (on_job_id)")
    op.execute(
        "COMMENT ON TABLE artifact_inputs IS 'Inputs of jobs that are artifacts of others. input: its place in the specification.'"
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
