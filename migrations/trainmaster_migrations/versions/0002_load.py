"""Rows for load: fewer index entries per transition, submissions in blocks of keys, the outbox.

Rules: see script.py.mako. No release had revision 0001 alone, so its tables are small: indexes are made in place here, and
nothing is back-filled.

* "Live" and "waiting" are ``ended_at IS NULL`` in the partial indexes of jobs and runs. A predicate on ``state`` made each
  transition touch every index of the row; now all but the last one are heap-only updates.
* Jobs and runs lose the foreign keys that were checked for each new row. Who removes a queue, a class, a cluster or a job locks
  it and looks for rows that use it.
* Keys of a submission are one block, so that one row of ``changes`` tells the scheduler of all its jobs, and the first event of
  a job is its own row.
* ``xid`` is null for events that change nothing the scheduler reads.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_JOB_OVER = "'succeeded', 'failed', 'cancelled'"
_RUN_OVER = "'succeeded', 'failed', 'cancelled', 'suspended', 'preempted', 'returned', 'lost'"


def upgrade() -> None:
    op.add_column("changes", sa.Column("many", sa.Integer(), server_default=sa.text("1"), nullable=False))
    op.add_column("job_specs", sa.Column("last_job_id", sa.BigInteger(), nullable=True))
    op.add_column("jobs", sa.Column("parameters", postgresql.JSONB(astext_type=sa.Text()), nullable=True))
    op.add_column("jobs", sa.Column("notifies", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column("jobs", sa.Column("disconnect_seconds", sa.Double(), nullable=True))
    op.add_column("cluster_contacts", sa.Column("checked_count", sa.Integer(), nullable=True))
    op.add_column("cluster_contacts", sa.Column("checked_digest", sa.BigInteger(), nullable=True))
    op.add_column("cluster_contacts", sa.Column("checked_at", sa.DateTime(timezone=True), nullable=True))

    for table, column in (("jobs", "queue_id"), ("jobs", "class_id"), ("runs", "cluster_id"), ("runs", "job_id")):
        op.drop_constraint(f"fk_{table}_{column}", table, type_="foreignkey")
    for index in ("ix_jobs_waiting", "ix_jobs_live"):
        op.drop_index(index, table_name="jobs")
    op.create_index("ix_jobs_live", "jobs", ["queue_id", "id"], postgresql_where=sa.text("ended_at IS NULL"))
    op.drop_index("ix_jobs_release", table_name="jobs")
    op.create_index("ix_jobs_release", "jobs", ["hold_until"], postgresql_where=sa.text("hold_until IS NOT NULL"))
    for index in ("uq_runs_one_live", "ix_runs_desired"):
        op.drop_index(index, table_name="runs")
    op.create_index("uq_runs_one_live", "runs", ["job_id"], unique=True, postgresql_where=sa.text("ended_at IS NULL"))
    op.create_index(
        "ix_runs_desired", "runs", ["cluster_id", "desired_version"], postgresql_where=sa.text("ended_at IS NULL")
    )

    for table, over in (("jobs", _JOB_OVER), ("runs", _RUN_OVER)):
        op.create_check_constraint("ended", table, sa.text(f"(ended_at IS NOT NULL) = (state IN ({over}))"))

    op.drop_constraint("pk_events", "events", type_="primary")
    op.drop_column("events", "id")
    op.drop_index("ix_events_job", table_name="events")
    op.create_primary_key("pk_events", "events", ["job_id", "seq", "at"])
    op.alter_column("events", "xid", nullable=True)
    op.create_index("ix_events_feed", "events", ["xid"], postgresql_where=sa.text("xid IS NOT NULL"))

    op.create_table(
        "outbox",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("hook", sa.SmallInteger(), nullable=False),
        sa.Column("body", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("attempts", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("dead_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
        comment="Webhook messages, written with their cause; deleted when delivered, kept with dead_at when given up.",
    )
    op.create_index("ix_outbox_due", "outbox", ["next_at"], postgresql_where=sa.text("dead_at IS NULL"))
    op.create_index("ix_outbox_order", "outbox", ["job_id", "hook", "id"], postgresql_where=sa.text("dead_at IS NULL"))
    op.create_index("ix_outbox_dead", "outbox", ["id"], postgresql_where=sa.text("dead_at IS NOT NULL"))

    # A block of keys without a gap: the lock is held for these two calls alone, never until the commit.
    op.execute(
        """
        CREATE FUNCTION take_ids(sequence regclass, many bigint) RETURNS bigint LANGUAGE plpgsql AS $$
        DECLARE first bigint;
        BEGIN
          -- An unlock of what is not held is a warning only; a lock that is left behind would hold up everybody.
          BEGIN
            PERFORM pg_advisory_lock(1953653618, sequence::oid::int);
            first := nextval(sequence);
            IF many > 1 THEN
              PERFORM setval(sequence, first + many - 1);
            END IF;
            PERFORM pg_advisory_unlock(1953653618, sequence::oid::int);
          EXCEPTION WHEN OTHERS OR query_canceled THEN
            PERFORM pg_advisory_unlock(1953653618, sequence::oid::int);
            RAISE;
          END;
          RETURN first;
        END $$
        """
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
