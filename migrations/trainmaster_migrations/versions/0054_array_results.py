"""What elements of arrays returned.

The previous release refuses the field by which it is kept, and stores none.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0054"
down_revision = "0053"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE array_results (
            job_id bigint NOT NULL, id bigint GENERATED ALWAYS AS IDENTITY, elements text NOT NULL,
            CONSTRAINT pk_array_results PRIMARY KEY (job_id, id)
        )
        """
    )
    op.execute(
        "COMMENT ON TABLE array_results IS 'What elements of arrays returned, in the order in which it came. elements: a JSON list of"
        " [element, value].'"
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
