"""Files of jobs: what users have uploaded, what runs have left, and uploads under way. The archives themselves are in the file store.

The previous release stores no job with files: it refuses the fields. It leaves rows of these tables behind when it removes a job;
the next turn of this release removes them.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0057"
down_revision = "0056"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE files (
            queue_id integer NOT NULL, sha256 text NOT NULL, size bigint NOT NULL, key text NOT NULL,
            created_at timestamptz NOT NULL DEFAULT now(), used_at timestamptz NOT NULL DEFAULT now(),
            CONSTRAINT pk_files PRIMARY KEY (queue_id, sha256)
        )
        """
    )
    op.execute(
        "COMMENT ON TABLE files IS 'Archives that users have uploaded for jobs of a queue. key: its name in the file store. used_at:"
        " when it was last uploaded, or a job that uses it was last submitted.'"
    )
    op.execute("CREATE INDEX ix_files_used_at ON files (used_at)")
    op.execute(
        """
        CREATE TABLE file_uses (
            spec_id bigint NOT NULL, queue_id integer NOT NULL, sha256 text NOT NULL,
            CONSTRAINT pk_file_uses PRIMARY KEY (spec_id, sha256)
        )
        """
    )
    op.execute("COMMENT ON TABLE file_uses IS 'Specifications of jobs, and the files of their queue that they name.'")
    op.execute("CREATE INDEX ix_file_uses_files ON file_uses (queue_id, sha256)")
    op.execute(
        """
        CREATE TABLE artifacts (
            job_id bigint NOT NULL, attempt integer NOT NULL, name text NOT NULL, queue_id integer NOT NULL,
            sha256 text NOT NULL, size bigint NOT NULL, key text NOT NULL, created_at timestamptz NOT NULL DEFAULT now(),
            CONSTRAINT pk_artifacts PRIMARY KEY (job_id, attempt, name)
        )
        """
    )
    op.execute(
        "COMMENT ON TABLE artifacts IS 'Archives that runs have left, one for each output of a run. key: its name in the file store.'"
    )
    op.execute("CREATE INDEX ix_artifacts_queue_id ON artifacts (queue_id)")
    op.execute(
        """
        CREATE TABLE file_uploads (
            id text NOT NULL, queue_id integer NOT NULL, sha256 text NOT NULL, size bigint NOT NULL,
            job_id bigint, attempt integer, name text, created_at timestamptz NOT NULL DEFAULT now(),
            CONSTRAINT pk_file_uploads PRIMARY KEY (id)
        )
        """
    )
    op.execute(
        "COMMENT ON TABLE file_uploads IS 'Uploads under way: of users, or, with job_id, of an output of a run.'"
    )
    op.execute("CREATE INDEX ix_file_uploads_queue_id ON file_uploads (queue_id)")
    op.execute("CREATE INDEX ix_file_uploads_created_at ON file_uploads (created_at)")
    op.execute(
        """
        CREATE TABLE file_removals (
            key text NOT NULL, created_at timestamptz NOT NULL DEFAULT now(), CONSTRAINT pk_file_removals PRIMARY KEY (key)
        )
        """
    )
    op.execute("COMMENT ON TABLE file_removals IS 'Keys in the file store whose data is to be removed from it.'")
    op.execute(
        """
        CREATE TABLE run_files (
            job_id bigint NOT NULL, attempt integer NOT NULL, token text NOT NULL, required text[] NOT NULL,
            problem text NOT NULL DEFAULT '', CONSTRAINT pk_run_files PRIMARY KEY (job_id, attempt)
        )
        """
    )
    op.execute(
        "COMMENT ON TABLE run_files IS 'Runs whose agents have asked for their files. token: secret of its members. required: outputs"
        " without which it has failed. problem: why files were not fetched or stored.'"
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
