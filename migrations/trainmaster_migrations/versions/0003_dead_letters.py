"""An index for the dead letters of a job: its view counts them, and retention removes them with the job.

Rules: see script.py.mako. The outbox is empty until processes of this release fill it, so the index is made in place.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_outbox_dead_job", "outbox", ["job_id"], postgresql_where=sa.text("dead_at IS NOT NULL"))


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
