"""History of what members use, and their restarts and ends for lack of memory.

The previous release leaves the new columns empty, and rows of the history of jobs that it removes; retention of this one removes them.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0066"
down_revision = "0065"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE run_use ADD COLUMN peak_cpu bigint, ADD COLUMN restarts bigint, ADD COLUMN oom_kills bigint,"
        " ADD COLUMN near_misses bigint"
    )
    op.execute(
        "ALTER TABLE member_use ADD COLUMN restarts int[] NOT NULL DEFAULT '{}',"
        " ADD COLUMN oom_kills int[] NOT NULL DEFAULT '{}', ADD COLUMN near_misses int[] NOT NULL DEFAULT '{}'"
    )
    op.execute(
        """
        CREATE TABLE use_history (
            job_id bigint NOT NULL, attempt int NOT NULL, step smallint NOT NULL, started_at timestamptz NOT NULL,
            places jsonb NOT NULL, data bytea NOT NULL,
            CONSTRAINT pk_use_history PRIMARY KEY (job_id, attempt, step, started_at)
        )
        """
    )
    op.execute("CREATE INDEX ix_use_history_step_started_at ON use_history (step, started_at)")
    # The last row of each live run is written again with each sample: no index has to follow it, and the page has a free part.
    op.execute("ALTER TABLE use_history SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05)")
    op.execute(
        "COMMENT ON TABLE use_history IS 'Samples of what members use, packed by domain/use_history.py. step: 0 for samples as agents"
        " sent them, else seconds of each. places: [role, first index, number] in the order of the values.'"
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
