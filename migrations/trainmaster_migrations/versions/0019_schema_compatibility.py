"""The oldest release that may run on this schema, so that one can go back to the release before, and forth again.

A migration that drops or renames what older releases read raises ``oldest_release`` to the first revision whose release does
not read it. The previous release does not look at it.

Rules: see script.py.mako.
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "schema_compatibility",
        sa.Column("one", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("oldest_release", sa.Text(), nullable=False),
        sa.CheckConstraint("one", name=op.f("ck_schema_compatibility_one")),
        sa.PrimaryKeyConstraint("one", name=op.f("pk_schema_compatibility")),
        comment="One row. oldest_release: the newest revision that the oldest release knows which may run on this schema.",
    )
    op.execute("INSERT INTO schema_compatibility (oldest_release) VALUES ('0019')")


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
