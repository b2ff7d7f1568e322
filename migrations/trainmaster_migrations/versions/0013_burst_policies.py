"""Burst policies, what was spent by them, and of runs the policy that they are at a public cluster by.

The previous release neither makes such runs nor ends them otherwise; it counts what they used without counting it for their policy.

Rules: see script.py.mako.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "burst_policies",
        sa.Column("id", sa.Integer(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("spec", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("revision", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("removed_at", sa.DateTime(timezone=True)),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_burst_policies")),
        sa.UniqueConstraint("name", name=op.f("uq_burst_policies_name")),
        comment="revision: rises with each change. One that was removed keeps its key: made again, it goes on with what was spent.",
    )
    op.create_table(
        "policy_spend",
        sa.Column("policy_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        sa.Column("cost", sa.Numeric(), nullable=False),
        sa.PrimaryKeyConstraint("policy_id", "hour", name=op.f("pk_policy_spend")),
        comment="What counted runs by a burst policy have cost, in billionths of the currency.",
    )
    op.create_table(
        "budget_warnings",
        sa.Column("policy_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("span", sa.Text(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("part", sa.Double(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("policy_id", "span", "since", "part", name=op.f("pk_budget_warnings")),
        comment="Which parts of a budget were used up, so that each is told once; since: the begin of its hour, day or month.",
    )
    op.add_column("runs", sa.Column("policy_id", sa.Integer()))
    op.add_column("runs", sa.Column("bounds", postgresql.JSONB(astext_type=sa.Text())))
    op.add_column("runs", sa.Column("cost", sa.Numeric()))
    op.create_table_comment(
        "runs",
        "holding: the sizes before a shrink, until its agent says that the members have gone. placed_at: since when members have"
        " nodes. counted: whether what it used is in usage. policy_id, bounds, cost: of a run by a burst policy, how long it may"
        " last and at what price, and once it is counted what it cost.",
        existing_comment="holding: the sizes before a shrink, until its agent says that the members have gone. placed_at: since"
        " when members have nodes. counted: whether what it used is in usage.",
    )
    with op.get_context().autocommit_block():
        op.create_index(
            "ix_runs_policy",
            "runs",
            ["policy_id", "leased_at"],
            postgresql_where=sa.text("policy_id IS NOT NULL"),
            postgresql_concurrently=True,
            if_not_exists=True,
        )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
