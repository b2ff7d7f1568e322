"""What Kubernetes has of declared objects and of jobs beside their specifications: labels, annotations, managed fields, names of jobs.

A job without a row is an object whose name is the job's id. The previous release submits such jobs, and shows all others by their
ids; it knows no deletion: a deleted object's job is listed as any ended one. It removes old jobs without their rows here, whose names
can be given again.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE job_objects (
            job_id bigint NOT NULL, queue_id int NOT NULL, name text, spec jsonb, annotations jsonb, managed_fields jsonb,
            deleted_at timestamptz, freed boolean NOT NULL DEFAULT false,
            CONSTRAINT pk_job_objects PRIMARY KEY (job_id)
        )
        """
    )
    op.execute(
        "COMMENT ON TABLE job_objects IS 'What Kubernetes has of jobs beside their rows. name: NULL for the id of the job; spec: as it"
        " was written, NULL for the stored specification. With deleted_at, the object is gone once its job has ended."
        " freed: another object may have the name since then.'"
    )
    op.execute(
        """
        CREATE TABLE declared_metadata (
            kind text NOT NULL, name text NOT NULL, labels jsonb, annotations jsonb, spec jsonb,
            CONSTRAINT pk_declared_metadata PRIMARY KEY (kind, name)
        )
        """
    )
    op.execute(
        "COMMENT ON TABLE declared_metadata IS 'What Kubernetes has of declared objects beside their specifications. spec: as it was"
        " written last by the Kubernetes API.'"
    )
    op.execute("CREATE INDEX ix_job_objects_name ON job_objects (name) WHERE name IS NOT NULL")
    op.execute("CREATE UNIQUE INDEX uq_job_objects_queue_id_name ON job_objects (queue_id, name) WHERE NOT freed")


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
