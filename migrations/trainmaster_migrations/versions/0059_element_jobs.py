"""Arrays whose elements are jobs of their own, and arrays whose elements wait for those of others.

The previous release refuses such an array. Its scheduler starts none: the shape asks for `elementJobs`, which no agent offers.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0059"
down_revision = "0058"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE jobs ADD COLUMN has_element_jobs boolean")
    op.execute(
        "COMMENT ON COLUMN jobs.has_element_jobs IS 'Whether its elements are jobs of their own; NULL: they are not.'"
    )
    op.execute("ALTER TABLE arrays ADD COLUMN suspended boolean NOT NULL DEFAULT false")
    op.execute("ALTER TABLE arrays ADD COLUMN message text NOT NULL DEFAULT ''")
    op.execute("ALTER TABLE arrays ADD COLUMN next_look timestamptz")
    op.execute(
        "COMMENT ON TABLE arrays IS 'Arrays of which something has happened: numbers of elements by state. token: secret of the"
        " members that run elements. Of those whose elements are jobs: suspended: these were suspended with the array; message: why no"
        " further ones are submitted; next_look: when that is tried again.'"
    )
    op.execute("CREATE INDEX ix_arrays_next_look ON arrays (next_look) WHERE next_look IS NOT NULL")
    op.execute(
        """
        CREATE TABLE element_jobs (
            array_id bigint NOT NULL, element int NOT NULL, job_id bigint NOT NULL, counted boolean NOT NULL DEFAULT false,
            CONSTRAINT pk_element_jobs PRIMARY KEY (array_id, element)
        )
        """
    )
    op.execute("CREATE UNIQUE INDEX uq_element_jobs_job_id ON element_jobs (job_id)")
    op.execute("CREATE INDEX ix_element_jobs_open ON element_jobs (array_id) WHERE NOT counted")
    op.execute(
        "COMMENT ON TABLE element_jobs IS 'Jobs of the elements of arrays, the latest of each. counted: its end is in the bitmaps of"
        " the array.'"
    )
    op.execute(
        """
        CREATE TABLE array_predecessors (
            job_id bigint NOT NULL, on_job_id bigint NOT NULL, condition text NOT NULL, on_failure text NOT NULL,
            CONSTRAINT pk_array_predecessors PRIMARY KEY (job_id, on_job_id, condition)
        )
        """
    )
    op.execute("CREATE INDEX ix_array_predecessors_on_job_id ON array_predecessors (on_job_id)")
    op.execute(
        "COMMENT ON TABLE array_predecessors IS 'Arrays whose elements those of an array wait for, each for the one with its index.'"
    )
    op.execute(
        """
        CREATE TABLE array_wakes (
            id bigint GENERATED ALWAYS AS IDENTITY, array_id bigint NOT NULL, CONSTRAINT pk_array_wakes PRIMARY KEY (id)
        )
        """
    )
    op.execute("CREATE INDEX ix_array_wakes_array_id ON array_wakes (array_id)")
    op.execute(
        "COMMENT ON TABLE array_wakes IS 'Arrays of which something has changed that the scheduler has not dealt with. Rows are"
        " inserted and deleted, never updated, so that those who end jobs do not wait for each other.'"
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
