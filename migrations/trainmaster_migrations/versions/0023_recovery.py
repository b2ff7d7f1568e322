"""A store that was restored from a backup: runs of agents that it has forgotten, and the agents that have reported.

The previous release reads none of it: while it runs beside this one, it starts jobs during a recovery.

Rules: see script.py.mako.
"""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("installation", sa.Column("recovering_since", sa.DateTime(timezone=True), nullable=True))
    op.add_column("cluster_contacts", sa.Column("recovered_at", sa.DateTime(timezone=True), nullable=True))
    op.create_table(
        "quarantined_runs",
        sa.Column("cluster_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("digest", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("stop", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["cluster_id"], ["clusters.id"], name=op.f("fk_quarantined_runs_cluster_id_clusters"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("cluster_id", "run", name=op.f("pk_quarantined_runs")),
        comment="Live runs that agents hold and that the store has forgotten since it was restored. stop: an admin wants their end.",
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
