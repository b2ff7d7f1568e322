"""Dependencies between jobs: conditions on predecessors, and of each job how many are open.

The previous release refuses ``after``. It does not release jobs that wait for others, and does not notice the ends of their
predecessors: after a downgrade, ``resume`` queues such jobs.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0048"
down_revision = "0047"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE jobs ADD COLUMN awaits_jobs boolean NOT NULL DEFAULT false")
    op.execute("COMMENT ON COLUMN jobs.awaits_jobs IS 'It has conditions on other jobs that are not all met.'")
    op.execute(
        """
        CREATE TABLE job_dependencies (
            job_id bigint NOT NULL, on_job_id bigint NOT NULL, condition text NOT NULL, verdict text NOT NULL,
            CONSTRAINT pk_job_dependencies PRIMARY KEY (job_id, on_job_id, condition)
        )
        """
    )
    op.execute("CREATE INDEX ix_job_dependencies_on_job_id ON job_dependencies (on_job_id)")
    op.execute(
        "COMMENT ON TABLE job_dependencies IS 'Conditions of jobs on others. verdict: waiting, met or never; never: unless the other"
        " job is tried again.'"
    )
    op.execute(
        """
        CREATE TABLE job_waits (
            job_id bigint NOT NULL, waiting int NOT NULL, never int NOT NULL DEFAULT 0, on_failure text NOT NULL,
            settled boolean NOT NULL DEFAULT false,
            CONSTRAINT pk_job_waits PRIMARY KEY (job_id)
        )
        """
    )
    op.execute(
        "CREATE INDEX ix_job_waits_decided ON job_waits (job_id) WHERE NOT settled AND (waiting = 0 OR never > 0)"
    )
    op.execute(
        "COMMENT ON TABLE job_waits IS 'Jobs with conditions on others: how many are open, and how many can no longer be met. settled:"
        " the scheduler has dealt with these counts.'"
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
