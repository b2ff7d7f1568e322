"""Workflows: jobs in steps, of which the scheduler submits each once its conditions are met.

The previous release does not know them: it submits no further steps, and leaves the jobs of those that have begun alone.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0050"
down_revision = "0049"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE workflows (
            id bigint GENERATED ALWAYS AS IDENTITY, queue_id int NOT NULL, name text NOT NULL, api_key_id int NOT NULL,
            spec jsonb NOT NULL, labels jsonb, state text NOT NULL DEFAULT 'running', wish text, attempt int NOT NULL DEFAULT 1,
            created_at timestamptz NOT NULL DEFAULT now(), ended_at timestamptz, next_look timestamptz,
            CONSTRAINT pk_workflows PRIMARY KEY (id)
        )
        """
    )
    op.execute("CREATE INDEX ix_workflows_queue ON workflows (queue_id, id)")
    op.execute("CREATE INDEX ix_workflows_running ON workflows (api_key_id) WHERE ended_at IS NULL")
    op.execute("CREATE INDEX ix_workflows_next_look ON workflows (next_look) WHERE next_look IS NOT NULL")
    op.execute("CREATE INDEX ix_workflows_ended_at ON workflows (ended_at) WHERE ended_at IS NOT NULL")
    op.execute(
        "COMMENT ON TABLE workflows IS 'Jobs in steps. api_key_id: whose jobs they are. wish: cancel, or cancel_all with its cleanup"
        " steps; NULL: it runs on. attempt: one more with each resume. next_look: when a step is tried again whose jobs could not be"
        " submitted.'"
    )
    op.execute(
        """
        CREATE TABLE workflow_steps (
            workflow_id bigint NOT NULL, step smallint NOT NULL, state text NOT NULL DEFAULT 'waiting',
            message text NOT NULL DEFAULT '', total int, items jsonb, started_at timestamptz, ended_at timestamptz,
            CONSTRAINT pk_workflow_steps PRIMARY KEY (workflow_id, step)
        )
        """
    )
    op.execute(
        "COMMENT ON TABLE workflow_steps IS 'Steps of workflows, by their place in the specification. total: the number of its jobs"
        " in the end, NULL until it is started; items: their elements, NULL for one job without.'"
    )
    op.execute(
        """
        CREATE TABLE workflow_jobs (
            job_id bigint NOT NULL, workflow_id bigint NOT NULL, step smallint NOT NULL, element int NOT NULL,
            CONSTRAINT pk_workflow_jobs PRIMARY KEY (job_id)
        )
        """
    )
    op.execute("CREATE UNIQUE INDEX uq_workflow_jobs_workflow_id ON workflow_jobs (workflow_id, step, element)")
    op.execute("COMMENT ON TABLE workflow_jobs IS 'Jobs of steps, at most one for each element.'")
    op.execute(
        """
        CREATE TABLE workflow_wakes (
            id bigint GENERATED ALWAYS AS IDENTITY, workflow_id bigint NOT NULL,
            CONSTRAINT pk_workflow_wakes PRIMARY KEY (id)
        )
        """
    )
    op.execute("CREATE INDEX ix_workflow_wakes_workflow_id ON workflow_wakes (workflow_id)")
    op.execute(
        "COMMENT ON TABLE workflow_wakes IS 'Workflows of which something has changed that the scheduler has not dealt with. Rows are"
        " inserted and deleted, never updated, so that those who end jobs do not wait for each other.'"
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
