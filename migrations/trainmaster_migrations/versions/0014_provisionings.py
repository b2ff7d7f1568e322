"""How long pools of nodes took to grow, and of runs for which pools of their cluster they wait.

The previous release sends no run to nodes that are still to come.

Rules: see script.py.mako.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "provisionings",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("cluster_id", sa.Integer(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("seconds", sa.Double()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_provisionings")),
        comment="How long members waited for nodes that a pool had to add; NULL: they never came. Insert-only.",
    )
    op.create_index("ix_provisionings_pool", "provisionings", ["cluster_id", "pool", "at"])
    op.add_column("runs", sa.Column("pools", postgresql.ARRAY(sa.Text())))
    op.create_table_comment(
        "runs",
        "holding: the sizes before a shrink, until its agent says that the members have gone. placed_at: since when members have"
        " nodes. counted: whether what it used is in usage. policy_id, bounds, cost: of a run by a burst policy, how long it may"
        " last and at what price, and once it is counted what it cost. pools: that have to grow for it, until it is known what came"
        " of that.",
        existing_comment="holding: the sizes before a shrink, until its agent says that the members have gone. placed_at: since"
        " when members have nodes. counted: whether what it used is in usage. policy_id, bounds, cost: of a run by a burst policy,"
        " how long it may last and at what price, and once it is counted what it cost.",
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
