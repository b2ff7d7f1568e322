"""Arrays: jobs whose members run many elements, and the states of these.

The previous release stores no such job: it refuses the field. It starts none either, as no agent offers it `arrays`.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0053"
down_revision = "0052"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE jobs ADD COLUMN elements integer")
    op.execute("COMMENT ON COLUMN jobs.elements IS 'Number of elements of an array; NULL: it is none.'")
    op.execute(
        """
        CREATE TABLE arrays (
            job_id bigint NOT NULL, token text NOT NULL,
            succeeded integer NOT NULL DEFAULT 0, failed integer NOT NULL DEFAULT 0, cancelled integer NOT NULL DEFAULT 0,
            running integer NOT NULL DEFAULT 0,
            CONSTRAINT pk_arrays PRIMARY KEY (job_id)
        )
        """
    )
    op.execute(
        "COMMENT ON TABLE arrays IS 'Arrays of which something has happened: numbers of elements by state. token: secret of the"
        " members that run elements.'"
    )
    op.execute(
        """
        CREATE TABLE array_blocks (
            job_id bigint NOT NULL, block integer NOT NULL,
            succeeded bytea NOT NULL, failed bytea NOT NULL, cancelled bytea NOT NULL,
            CONSTRAINT pk_array_blocks PRIMARY KEY (job_id, block)
        )
        """
    )
    op.execute(
        "COMMENT ON TABLE array_blocks IS 'Bitmaps of the ended elements of arrays, 32768 elements in each block.'"
    )
    op.execute(
        """
        CREATE TABLE array_failures (
            job_id bigint NOT NULL, element integer NOT NULL,
            exit_code integer, signal smallint, message text NOT NULL,
            CONSTRAINT pk_array_failures PRIMARY KEY (job_id, element)
        )
        """
    )
    op.execute(
        "COMMENT ON TABLE array_failures IS 'What is known of failed elements; of many of an array, of some only.'"
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
