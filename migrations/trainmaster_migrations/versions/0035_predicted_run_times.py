"""How long a run was predicted to take when it was sent.

The previous release leaves the column empty; runs without a value are planned with their time limits.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE runs ADD COLUMN predicted_seconds double precision")


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
