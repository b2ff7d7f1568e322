"""Indexes for lists of jobs by name, submitter and cluster: rare ones are found without reading all jobs.

The columns do not change once a job or run is stored, so that most updates remain in the page of the row.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0065"
down_revision = "0064"
branch_labels = None
depends_on = None

_INDEXES = (
    ("ix_jobs_name", "jobs (name text_pattern_ops, id)"),
    ("ix_jobs_submitter", "jobs (api_key_id, id)"),
    ("ix_runs_cluster", "runs (cluster_id, job_id)"),
)


def upgrade() -> None:
    with op.get_context().autocommit_block():
        for name, of in _INDEXES:
            # One that an interrupted migration has left may be unfinished.
            op.execute(f"DROP INDEX IF EXISTS {name}")
            op.execute(f"CREATE INDEX CONCURRENTLY {name} ON {of}")


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
