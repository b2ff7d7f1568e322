"""Keys that may submit jobs on behalf of users, and the rows that stand for users whose jobs came through such a key.

A row of the second kind can authenticate nobody: its hash is of no secret, and it counts as revoked. Queries of usage, users and
rights find a job's user by the name of its key, as before. The previous release shows these rows among the revoked keys.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE api_keys ADD COLUMN on_behalf_of text[] NOT NULL DEFAULT '{}'")
    op.execute("ALTER TABLE api_keys ADD COLUMN through_id integer")
    op.execute(
        "COMMENT ON COLUMN api_keys.on_behalf_of IS"
        " 'Users for whom the key may submit; * at the end of one stands for any text.'"
    )
    op.execute(
        "COMMENT ON COLUMN api_keys.through_id IS"
        " 'Not null: no key but a user whose jobs come through that key; it authenticates nobody.'"
    )
    op.execute(
        "CREATE UNIQUE INDEX uq_api_keys_through_id_name ON api_keys (through_id, name) WHERE through_id IS NOT NULL"
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
