"""The clusters of an owner's API key.

The previous release neither reads nor writes the column: to it such a key is a user's key without queues.

Rules: see script.py.mako.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    comment = "Clusters of an owner's key, whose role is stored as user; null: the key is no owner's."
    op.add_column("api_keys", sa.Column("clusters", ARRAY(sa.Integer()), nullable=True, comment=comment))


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
