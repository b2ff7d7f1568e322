"""Interactive sessions: when each was last used and is looked at next, and the links by which browsers open their ports.

The previous release ends no session by itself, and leaves their jobs alone.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0052"
down_revision = "0051"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE session_activity (
            job_id bigint NOT NULL, idle_seconds float8 NOT NULL, life_seconds float8 NOT NULL, began_at timestamptz,
            active_at timestamptz, warned_at timestamptz, life_warned_at timestamptz, next_look timestamptz DEFAULT now(),
            CONSTRAINT pk_session_activity PRIMARY KEY (job_id)
        )
        """
    )
    op.execute("CREATE INDEX ix_session_activity_next_look ON session_activity (next_look) WHERE next_look IS NOT NULL")
    op.execute(
        "COMMENT ON TABLE session_activity IS 'Jobs that are interactive sessions. began_at: their first start. next_look: when one"
        " may have to be warned or ended; NULL once it has ended.'"
    )
    op.execute(
        """
        CREATE TABLE session_links (
            hash bytea NOT NULL, job_id bigint NOT NULL, port text NOT NULL, api_key_id int NOT NULL, is_cookie boolean NOT NULL,
            expires_at timestamptz NOT NULL,
            CONSTRAINT pk_session_links PRIMARY KEY (hash)
        )
        """
    )
    op.execute("CREATE INDEX ix_session_links_expires_at ON session_links (expires_at)")
    op.execute("CREATE INDEX ix_session_links_job_id ON session_links (job_id)")
    op.execute(
        "COMMENT ON TABLE session_links IS 'Tickets, which are used once, and cookies of browsers, by the hash of their secret. port:"
        " its number or name in the host.'"
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
