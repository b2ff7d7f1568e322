"""Workflows as objects of the Kubernetes API, their events, and their webhook messages.

The previous release writes none of it: workflows that it submits have no events and no objects with names, and watches do not see
what it changes. It does not understand workflows with webhooks, which it leaves alone; messages of theirs that one of its workers
claims are given up, and can be retried by hand.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0058"
down_revision = "0057"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        ALTER TABLE workflows ADD COLUMN seq int NOT NULL DEFAULT 0, ADD COLUMN object_name text, ADD COLUMN annotations jsonb,
            ADD COLUMN managed_fields jsonb, ADD COLUMN deleted_at timestamptz, ADD COLUMN xid xid8, ADD COLUMN created_xid xid8
        """
    )
    op.execute(
        """
        ALTER TABLE workflows ALTER COLUMN xid SET DEFAULT pg_current_xact_id(),
            ALTER COLUMN created_xid SET DEFAULT pg_current_xact_id()
        """
    )
    op.execute(
        "COMMENT ON TABLE workflows IS 'Jobs in steps. api_key_id: whose jobs they are. wish: cancel, or cancel_all with its cleanup"
        " steps; NULL: it runs on. attempt: one more with each resume. next_look: when a step is tried again whose jobs could not be"
        " submitted. seq: number of its events. object_name: its name in the Kubernetes API, NULL for its id, free once it was deleted"
        " there (deleted_at) and has ended. xid, created_xid: the transactions that wrote it last and first, NULL: before watches.'"
    )
    op.execute(
        """
        CREATE UNIQUE INDEX uq_workflows_object_name ON workflows (object_name, queue_id)
        WHERE object_name IS NOT NULL AND (deleted_at IS NULL OR ended_at IS NULL)
        """
    )
    op.execute("CREATE INDEX ix_workflows_xid ON workflows (xid) WHERE xid IS NOT NULL")
    op.execute(
        """
        CREATE TABLE workflow_events (
            workflow_id bigint NOT NULL, seq int NOT NULL, at timestamptz NOT NULL DEFAULT now(),
            xid xid8 NOT NULL DEFAULT pg_current_xact_id(), kind text NOT NULL, step text, message text NOT NULL DEFAULT '',
            actor text NOT NULL DEFAULT '', CONSTRAINT pk_workflow_events PRIMARY KEY (workflow_id, seq)
        )
        """
    )
    op.execute("CREATE INDEX ix_workflow_events_at ON workflow_events (at)")
    op.execute("COMMENT ON TABLE workflow_events IS 'What happened to workflows and to their steps. Insert-only.'")
    op.execute(
        "COMMENT ON TABLE outbox IS 'Webhook messages, written with their cause; deleted when delivered, kept with dead_at when given"
        " up. job_id: below zero the key of a workflow, with its sign changed.'"
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
