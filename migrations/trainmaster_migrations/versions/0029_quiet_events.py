"""The transactions of quiet events, which the scheduler does not read: streams of the events of many jobs do.

The previous release neither reads nor writes the column. Events without it come to such a stream with the next event of their job.

Rules: see script.py.mako.
"""

from typing import Any

from alembic import op
from sqlalchemy import Column
from sqlalchemy.types import UserDefinedType

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


class Xid8(UserDefinedType[str]):
    """A 64-bit transaction id."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "xid8"


def upgrade() -> None:
    op.add_column("events", Column("quiet_xid", Xid8(), nullable=True))


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
