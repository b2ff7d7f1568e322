"""The ID token of a browser's session, by which its issuer ends its own session at a sign-out.

The previous release writes none; a sign-out of its sessions names the client alone.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0069"
down_revision = "0068"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE browser_sessions ADD COLUMN IF NOT EXISTS id_token bytea")


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
