"""Users inside queues: their past usage, and reasons that hold for the jobs of one user only.

The previous release neither reads nor writes these tables.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
        CREATE TABLE user_usage (
            queue_id integer NOT NULL REFERENCES queues (id) ON DELETE CASCADE,
            submitter text NOT NULL,
            level double precision NOT NULL,
            at double precision NOT NULL,
            PRIMARY KEY (queue_id, submitter)
        )
    """)
    op.execute(
        "COMMENT ON TABLE user_usage IS 'What users have used in queues before, as the leader last counted it;"
        " at: seconds since the epoch, alike in all rows.'"
    )
    op.execute("""
        CREATE TABLE user_reasons (
            queue_id integer NOT NULL REFERENCES queues (id) ON DELETE CASCADE,
            class_id smallint NOT NULL REFERENCES priority_classes (id) ON DELETE CASCADE,
            shape_id integer NOT NULL,
            avoided integer[] NOT NULL DEFAULT '{}',
            submitter text NOT NULL,
            reason jsonb NOT NULL,
            cycle bigint NOT NULL,
            at timestamp with time zone NOT NULL DEFAULT now(),
            PRIMARY KEY (queue_id, class_id, shape_id, avoided, submitter)
        )
    """)


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
