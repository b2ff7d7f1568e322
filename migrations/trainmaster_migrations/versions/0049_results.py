"""Results of runs.

The previous release neither stores nor shows them.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0049"
down_revision = "0048"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE runs ADD COLUMN results jsonb, ADD COLUMN results_error text")
    op.execute(
        "COMMENT ON COLUMN runs.results IS 'Results that its first member has left, once it has succeeded or failed.'"
    )
    op.execute("COMMENT ON COLUMN runs.results_error IS 'Why what that member has left cannot be read.'")


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
