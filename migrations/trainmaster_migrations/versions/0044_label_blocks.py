"""The labels that all jobs of a range of keys have, by which lists of jobs without a label skip the others.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE TABLE label_blocks (block bigint NOT NULL, common jsonb, begun xid8 NOT NULL,"
        " CONSTRAINT pk_label_blocks PRIMARY KEY (block))"
    )
    op.execute(
        "COMMENT ON TABLE label_blocks IS 'Blocks of 256 keys of jobs, in which no new job comes any more once all transactions below"
        " begun have ended. common: the labels that all jobs of the block have, each with its values, or null if they are too many;"
        " NULL: not known.'"
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
