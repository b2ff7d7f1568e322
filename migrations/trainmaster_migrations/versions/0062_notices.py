"""Notices by e-mail and to chats, and what users want to be notified of.

The previous release refuses such entries of ``notify`` and writes no events for users. Its workers take the addresses of such messages
for those of webhooks and fail, which are attempts; once the workers are of this release, the next attempt succeeds, and what was given
up can be sent again.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0062"
down_revision = "0061"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE api_keys ADD COLUMN IF NOT EXISTS email text")
    op.execute(
        "COMMENT ON COLUMN api_keys.email IS 'The user''s own address, by the issuer''s token or set by an admin; NULL: unknown.'"
    )
    op.execute("ALTER TABLE outbox ADD COLUMN IF NOT EXISTS api_key_id int")
    op.execute(
        "COMMENT ON COLUMN outbox.api_key_id IS 'Whose preferences a message is of that is in no specification; NULL: it is in one.'"
    )
    op.execute(
        "COMMENT ON COLUMN outbox.url IS 'Address of a message; NULL: the specification of the job or workflow has it.'"
    )
    op.execute(
        """
        CREATE TABLE IF NOT EXISTS notice_preferences (
            api_key_id int NOT NULL, spec jsonb NOT NULL, least_seconds double precision NOT NULL, window_ends_at timestamptz,
            reported int NOT NULL DEFAULT 0,
            CONSTRAINT pk_notice_preferences PRIMARY KEY (api_key_id),
            CONSTRAINT fk_notice_preferences_api_key_id_api_keys FOREIGN KEY (api_key_id) REFERENCES api_keys (id) ON DELETE CASCADE
        )
        """
    )
    op.execute(
        "COMMENT ON TABLE notice_preferences IS 'What users want to be notified of. least_seconds: minDuration of spec."
        " window_ends_at: until when further events are gathered; NULL: they are not. reported: events that were reported one by one"
        " in this window.'"
    )
    op.execute(
        """
        CREATE TABLE IF NOT EXISTS notice_events (
            id bigint GENERATED ALWAYS AS IDENTITY, api_key_id int NOT NULL, body jsonb NOT NULL,
            created_at timestamptz NOT NULL DEFAULT now(),
            CONSTRAINT pk_notice_events PRIMARY KEY (id)
        )
        """
    )
    op.execute("CREATE INDEX IF NOT EXISTS ix_notice_events_api_key_id ON notice_events (api_key_id, id)")
    op.execute(
        "COMMENT ON TABLE notice_events IS 'Events that users want to be notified of, written with their cause; deleted when their"
        " message is in the outbox.'"
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
