"""${message}

Rules for every migration (CONTRIBUTING.md tells why):
* Expand, then contract: this release and the one before must run on the schema after it; on the schema before it only where EARLIER_SCHEMAS
  says so. Add columns nullable or with a constant default; drop or rename only what the previous release no longer reads,
  and set schema_compatibility.oldest_release then.
* Lock and statement time-outs are set by env.py; a migration that waits for a lock fails and can be run again.
* Indexes on big tables: CREATE INDEX CONCURRENTLY, in a migration of its own, in ``op.get_context().autocommit_block()``.
* No data is rewritten here in one statement; back-fill in batches by a side job.
* Never import the tables of the running code: a migration must mean the same for ever.
"""

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
