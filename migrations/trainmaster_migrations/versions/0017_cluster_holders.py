"""Which agent's records each run was leased to.

The previous release writes neither: its runs have no holder, and count as the current holder's if they were leased after the
last contact of the one before.

Rules: see script.py.mako.
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_COMMENT = (
    "holding: the sizes before a shrink, until its agent says that the members have gone. placed_at: since when members have"
    " nodes. counted: whether what it used is in usage. policy_id, bounds, cost: of a run by a burst policy, how long it may"
    " last and at what price, and once it is counted what it cost. pools: that have to grow for it, until it is known what came"
    " of that."
)
_HOLDER = "holder: number of the records of its cluster's agent that it was leased to."


def upgrade() -> None:
    op.create_table(
        "cluster_holders",
        sa.Column("cluster_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("place", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("place_since", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("contact_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["cluster_id"], ["clusters.id"], name=op.f("fk_cluster_holders_cluster_id_clusters"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("cluster_id", "number", name=op.f("pk_cluster_holders")),
        sa.UniqueConstraint("cluster_id", "holder", name=op.f("uq_cluster_holders_cluster_id_holder")),
        comment="Agents' records that this cluster has had. place: where its members live, since place_since."
        " contact_at: its last contact before another holder took over.",
    )
    op.execute(
        "INSERT INTO cluster_holders (cluster_id, number, holder)"
        " SELECT cluster_id, 1, holder FROM cluster_contacts WHERE holder IS NOT NULL"
    )
    op.add_column("runs", sa.Column("holder", sa.Integer(), nullable=True))
    op.create_table_comment("runs", f"{_COMMENT} {_HOLDER}", existing_comment=_COMMENT)


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
