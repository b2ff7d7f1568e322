"""The use of running members: the last sample of each run, and what it has used since its start.

The previous release reads none of it, and leaves rows of jobs that it removes; retention of this one removes them.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE run_use (
            job_id bigint NOT NULL, attempt int NOT NULL, sampled_at timestamptz NOT NULL, seconds int NOT NULL,
            members int NOT NULL, cpu bigint, memory bigint, gpu bigint, gpu_memory bigint,
            requested_cpu bigint, requested_memory bigint, requested_gpu bigint, peak_memory bigint,
            cpu_measured double precision NOT NULL, cpu_seconds double precision NOT NULL,
            cpu_requested double precision NOT NULL, gpu_measured double precision NOT NULL,
            gpu_seconds double precision NOT NULL, gpu_requested double precision NOT NULL,
            CONSTRAINT pk_run_use PRIMARY KEY (job_id, attempt)
        )
        """
    )
    # Each row is updated again and again: half of a page is free for new versions, and no index has to follow them.
    op.execute("ALTER TABLE run_use SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05)")
    op.execute(
        "COMMENT ON TABLE run_use IS 'Use of runs: sums of the last sample, and over the measured seconds. cpu in thousandths of"
        " a core, gpu in thousandths of a GPU at work; requested_...: for the members of which that is known. NULL: unknown.'"
    )
    op.execute(
        """
        CREATE UNLOGGED TABLE member_use (
            job_id bigint NOT NULL, attempt int NOT NULL, places jsonb NOT NULL, cpu int[] NOT NULL, memory bigint[] NOT NULL,
            peak_memory bigint[] NOT NULL, gpu int[] NOT NULL, gpu_memory bigint[] NOT NULL,
            CONSTRAINT pk_member_use PRIMARY KEY (job_id, attempt)
        )
        """
    )
    op.execute("ALTER TABLE member_use SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05)")
    op.execute(
        "COMMENT ON TABLE member_use IS 'The last sample of each run by member. places: [role, first index, number] in the order of"
        " the values; -1: unknown. Unlogged: after a crash of the database it is empty until the next samples.'"
    )
    op.execute(
        """
        CREATE TABLE cluster_use (
            cluster_id int NOT NULL, reported_at timestamptz NOT NULL, missing text NOT NULL,
            CONSTRAINT pk_cluster_use PRIMARY KEY (cluster_id),
            CONSTRAINT fk_cluster_use_cluster_id FOREIGN KEY (cluster_id) REFERENCES clusters (id) ON DELETE CASCADE
        )
        """
    )
    op.execute(
        "COMMENT ON TABLE cluster_use IS 'Last report of use of each agent, and why some of the use is not known.'"
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
