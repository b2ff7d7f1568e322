"""Price books, what clusters have charged since when, and what runs have used.

The previous release reads none of it. What ends while it runs is counted once this one does, from its start: it does not say
since when members have nodes.

Rules: see script.py.mako.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "price_books",
        sa.Column("id", sa.Integer(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("spec", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_price_books")),
        sa.UniqueConstraint("name", name=op.f("uq_price_books_name")),
    )
    op.create_table(
        "tariffs",
        sa.Column("cluster_id", sa.Integer(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("book", postgresql.JSONB(astext_type=sa.Text())),
        sa.Column("correction", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["cluster_id"], ["clusters.id"], name=op.f("fk_tariffs_cluster_id_clusters"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("cluster_id", "since", name=op.f("pk_tariffs")),
        comment="What clusters have charged from a moment on, as their price books were then. Insert-only.",
    )
    op.create_table(
        "usage",
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        sa.Column("queue_id", sa.Integer(), nullable=False),
        sa.Column("api_key_id", sa.Integer(), nullable=False),
        sa.Column("cluster_id", sa.Integer(), nullable=False),
        sa.Column("labels", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("resource", sa.Text(), nullable=False),
        sa.Column("product", sa.Text(), nullable=False),
        sa.Column("spot", sa.Boolean(), nullable=False),
        sa.Column("amount", sa.Numeric(), nullable=False),
        sa.Column("cost", sa.Numeric(), nullable=False),
        sa.PrimaryKeyConstraint(
            "hour",
            "queue_id",
            "api_key_id",
            "cluster_id",
            "labels",
            "resource",
            "product",
            "spot",
            name=op.f("pk_usage"),
        ),
        comment="What ended runs have used: units of the resource times microseconds, and billionths of the currency. An empty"
        " resource counts members.",
    )
    op.add_column("runs", sa.Column("placed_at", sa.DateTime(timezone=True)))
    op.add_column("runs", sa.Column("counted", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.create_table_comment(
        "runs",
        "holding: the sizes before a shrink, until its agent says that the members have gone. placed_at: since when members have"
        " nodes. counted: whether what it used is in usage.",
        existing_comment="holding: the sizes before a shrink, until its agent says that the members have gone.",
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
