"""Sessions of browsers of people who have signed in.

The previous release knows no such session: its apis refuse their calls, which carry a cookie and no key.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0061"
down_revision = "0060"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE browser_sessions (
            hash bytea NOT NULL, person_id int NOT NULL, state_hash bytea NOT NULL, began_at timestamptz NOT NULL,
            used_at timestamptz NOT NULL, ends_at timestamptz NOT NULL, renew_at timestamptz NOT NULL,
            renewing_until timestamptz, refresh_token bytea,
            CONSTRAINT pk_browser_sessions PRIMARY KEY (hash)
        )
        """
    )
    op.execute("CREATE UNIQUE INDEX uq_browser_sessions_state_hash ON browser_sessions (state_hash)")
    op.execute("CREATE INDEX ix_browser_sessions_ends_at ON browser_sessions (ends_at)")
    op.execute("CREATE INDEX ix_browser_sessions_person_id ON browser_sessions (person_id)")
    op.execute(
        "COMMENT ON TABLE browser_sessions IS 'Sessions of browsers, by the hash of the secret in their cookie. state_hash: of the"
        " sign-in that has begun it, which counts once. renew_at: when the issuer is asked again whether the account counts."
        " refresh_token: sealed with the secret of the cookie; NULL: the issuer has given none.'"
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
