"""Where the output after a kept tail begins, in the member's own bytes.

The text of a tail may be longer than the bytes it stands for, as what is no UTF-8 is replaced; so the end cannot be worked out from
it. Null in rows from before: their end is the length of the text.

Rules: see script.py.mako.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("run_tails", sa.Column("next", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
