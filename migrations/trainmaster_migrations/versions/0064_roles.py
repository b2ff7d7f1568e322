"""Roles of API keys beyond admin, user, owner and agent.

The previous release takes such keys for those of users without queues, which may do nothing. It cannot read role bindings with the
new roles: they are declared once all processes are of this release.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0064"
down_revision = "0063"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE api_keys ADD COLUMN IF NOT EXISTS granted_role text")
    op.execute("ALTER TABLE api_keys ADD COLUMN IF NOT EXISTS granted_queues text[]")
    op.execute(
        "COMMENT ON COLUMN api_keys.granted_role IS 'A role that the type key_role does not have; NULL: role says it.'"
    )
    op.execute(
        "COMMENT ON COLUMN api_keys.granted_queues IS 'Queues of the granted role; empty: the whole installation.'"
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
