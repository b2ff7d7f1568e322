"""The index of the transactions of quiet events.

Postgres cannot build an index of a partitioned table concurrently: it is built for each partition, and then attached. A partition
that is made meanwhile gets it by itself.

Rules: see script.py.mako.
"""

from alembic import op
from sqlalchemy import text

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

_PARTITIONS = """
    SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'events'::regclass AND NOT EXISTS (
        SELECT 1 FROM pg_index x JOIN pg_inherits a ON a.inhrelid = x.indexrelid
        WHERE x.indrelid = c.oid AND a.inhparent = 'ix_events_quiet'::regclass)
    ORDER BY c.relname
"""


def upgrade() -> None:
    on = "(quiet_xid) WHERE quiet_xid IS NOT NULL"
    with op.get_context().autocommit_block():
        connection = op.get_bind()
        connection.execute(text(f"CREATE INDEX IF NOT EXISTS ix_events_quiet ON ONLY events {on}"))
        for partition in connection.execute(text(_PARTITIONS)).scalars().all():
            index = f"{partition}_quiet_xid_idx"
            # One that an interrupted migration has left may be unfinished.
            connection.execute(text(f"DROP INDEX IF EXISTS {index}"))
            connection.execute(text(f"CREATE INDEX CONCURRENTLY {index} ON {partition} {on}"))
            connection.execute(text(f"ALTER INDEX ix_events_quiet ATTACH PARTITION {index}"))


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
