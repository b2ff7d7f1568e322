"""Streams to members: commands, attached processes and ports that users have opened and agents are to connect.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE member_streams (
            id text NOT NULL CONSTRAINT pk_member_streams PRIMARY KEY,
            cluster_id integer NOT NULL
                CONSTRAINT fk_member_streams_cluster_id_clusters REFERENCES clusters (id) ON DELETE CASCADE,
            job_id bigint NOT NULL,
            attempt integer NOT NULL,
            role text NOT NULL,
            member_index integer NOT NULL,
            options jsonb NOT NULL,
            api jsonb NOT NULL,
            desired_version bigint NOT NULL,
            expires_at timestamp with time zone NOT NULL
        )
        """
    )
    op.execute(
        "CREATE INDEX ix_member_streams_cluster_id_desired_version ON member_streams (cluster_id, desired_version)"
    )
    op.execute("CREATE INDEX ix_member_streams_expires_at ON member_streams (expires_at)")


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
