"""Groups of pods that are submitted one by one, and become one job once all of them have been.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE pod_groups (
            id bigint GENERATED ALWAYS AS IDENTITY, queue_id int NOT NULL, name text NOT NULL, submitter text NOT NULL,
            total int NOT NULL, many int NOT NULL DEFAULT 0, job_id bigint, created_at timestamptz NOT NULL DEFAULT now(),
            CONSTRAINT pk_pod_groups PRIMARY KEY (id)
        )
        """
    )
    op.execute(
        "COMMENT ON TABLE pod_groups IS 'Groups of pods that were created one by one. submitter: who created its first pod; many: its"
        " pods that have been created; job_id: the job that they are, once there are total of them.'"
    )
    op.execute(
        """
        CREATE TABLE grouped_pods (
            group_id bigint NOT NULL, queue_id int NOT NULL, name text NOT NULL, role text, member int, labels jsonb,
            annotations jsonb, spec jsonb NOT NULL, managed_fields jsonb, job_spec jsonb NOT NULL,
            created_at timestamptz NOT NULL DEFAULT now(), deleted_at timestamptz,
            CONSTRAINT pk_grouped_pods PRIMARY KEY (group_id, name)
        )
        """
    )
    op.execute(
        "COMMENT ON TABLE grouped_pods IS 'Pods of groups. spec: as it was written; job_spec: specification of the job that the pod"
        " would be by itself; role, member: of the job of its group. With deleted_at, the pod is gone once that job has ended.'"
    )
    op.execute("CREATE INDEX ix_pod_groups_name ON pod_groups (name, queue_id)")
    op.execute("CREATE UNIQUE INDEX uq_pod_groups_job_id ON pod_groups (job_id) WHERE job_id IS NOT NULL")
    op.execute("CREATE UNIQUE INDEX uq_grouped_pods_name_queue_id ON grouped_pods (name, queue_id)")


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
