"""Groups of jobs: which jobs belong together, their numbers by outcome, and what is to happen when all have ended.

The previous release refuses ``group`` and does not count the ends of such jobs: the scheduler of this release counts a group again
that has no unfinished jobs by the jobs' own rows. Its workers give up messages of groups: they can be sent again as dead letters.

The indexes are in the same migration as their column: each step can be repeated after an interruption.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0056"
down_revision = "0055"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE jobs ADD COLUMN IF NOT EXISTS group_id bigint")
    op.execute("COMMENT ON COLUMN jobs.group_id IS 'The group that it belongs to; NULL: none.'")
    op.execute(
        """
        CREATE TABLE IF NOT EXISTS job_groups (
            id bigint GENERATED ALWAYS AS IDENTITY, queue_id int NOT NULL, name text NOT NULL, api_key_id int NOT NULL,
            state text NOT NULL DEFAULT 'open', created_at timestamptz NOT NULL DEFAULT now(),
            changed_at timestamptz NOT NULL DEFAULT now(), closed_at timestamptz, ended_at timestamptz, notified_at timestamptz,
            total bigint NOT NULL DEFAULT 0, succeeded bigint NOT NULL DEFAULT 0, failed bigint NOT NULL DEFAULT 0,
            cancelled bigint NOT NULL DEFAULT 0,
            CONSTRAINT pk_job_groups PRIMARY KEY (id),
            CONSTRAINT uq_job_groups_queue_id_name UNIQUE (queue_id, name)
        )
        """
    )
    op.execute("CREATE INDEX IF NOT EXISTS ix_job_groups_name ON job_groups (name)")
    op.execute("CREATE INDEX IF NOT EXISTS ix_job_groups_queue ON job_groups (queue_id, id)")
    op.execute("CREATE INDEX IF NOT EXISTS ix_job_groups_closed ON job_groups (id) WHERE state = 'closed'")
    op.execute(
        "COMMENT ON TABLE job_groups IS 'Jobs that belong together. api_key_id: who began it. total and numbers of ended jobs: without"
        " what is still in group_changes, with jobs that were removed. changed_at: when these numbers changed last. notified_at: when"
        " it had ended for the first time.'"
    )
    op.execute(
        """
        CREATE TABLE IF NOT EXISTS group_changes (
            id bigint GENERATED ALWAYS AS IDENTITY, group_id bigint NOT NULL, total int NOT NULL DEFAULT 0,
            succeeded int NOT NULL DEFAULT 0, failed int NOT NULL DEFAULT 0, cancelled int NOT NULL DEFAULT 0,
            CONSTRAINT pk_group_changes PRIMARY KEY (id)
        )
        """
    )
    op.execute("CREATE INDEX IF NOT EXISTS ix_group_changes_group_id ON group_changes (group_id)")
    op.execute(
        "COMMENT ON TABLE group_changes IS 'Changes of the numbers of groups that are not in their rows yet. Rows are inserted and"
        " deleted, never updated, so that those who submit and end jobs do not wait for each other.'"
    )
    op.execute(
        """
        CREATE TABLE IF NOT EXISTS group_hooks (
            group_id bigint NOT NULL, url text NOT NULL, CONSTRAINT pk_group_hooks PRIMARY KEY (group_id, url)
        )
        """
    )
    op.execute("COMMENT ON TABLE group_hooks IS 'Webhooks that get a message when a group has ended.'")
    op.execute(
        """
        CREATE TABLE IF NOT EXISTS group_dependencies (
            job_id bigint NOT NULL, group_id bigint NOT NULL, condition text NOT NULL, verdict text NOT NULL,
            CONSTRAINT pk_group_dependencies PRIMARY KEY (job_id, group_id, condition)
        )
        """
    )
    op.execute("CREATE INDEX IF NOT EXISTS ix_group_dependencies_group_id ON group_dependencies (group_id)")
    op.execute(
        "COMMENT ON TABLE group_dependencies IS 'Conditions of jobs on groups. verdict: waiting, met or never; never: unless a job of"
        " the group is tried again.'"
    )
    op.execute("ALTER TABLE outbox ALTER COLUMN job_id DROP NOT NULL")
    op.execute("ALTER TABLE outbox ADD COLUMN IF NOT EXISTS group_id bigint, ADD COLUMN IF NOT EXISTS url text")
    op.execute(
        "COMMENT ON COLUMN outbox.group_id IS 'The group of which a message is that is about no job; NULL: job_id has the job.'"
    )
    op.execute(
        "COMMENT ON COLUMN outbox.url IS 'Address of a message of a group; NULL: the job''s specification has it.'"
    )
    with op.get_context().autocommit_block():
        # Indexes that an interrupted migration has left may be unfinished.
        op.execute("DROP INDEX IF EXISTS ix_outbox_group_id")
        op.execute("CREATE INDEX CONCURRENTLY ix_outbox_group_id ON outbox (group_id) WHERE group_id IS NOT NULL")
        op.execute("DROP INDEX IF EXISTS ix_jobs_group")
        op.execute("CREATE INDEX CONCURRENTLY ix_jobs_group ON jobs (group_id, id) WHERE group_id IS NOT NULL")
        op.execute("DROP INDEX IF EXISTS ix_jobs_group_live")
        op.execute(
            "CREATE INDEX CONCURRENTLY ix_jobs_group_live ON jobs (group_id, id) WHERE group_id IS NOT NULL AND ended_at IS NULL"
        )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
