"""History over time: series, samples of the last hours, and values by series and span of time.

The previous release neither writes nor reads them.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0067"
down_revision = "0066"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE IF NOT EXISTS series (
            id int GENERATED ALWAYS AS IDENTITY, metric text NOT NULL, cluster text NOT NULL, queue text NOT NULL,
            product text NOT NULL, policy text NOT NULL, seen_at timestamptz NOT NULL DEFAULT now(),
            CONSTRAINT pk_series PRIMARY KEY (id),
            CONSTRAINT uq_series_labels UNIQUE (metric, cluster, queue, product, policy)
        )
        """
    )
    op.execute(
        "COMMENT ON TABLE series IS 'Time series by metric and labels, by name: those of an object that was removed stay. seen_at:"
        " when a scheduler last looked up the id.'"
    )
    op.execute(
        """
        CREATE TABLE IF NOT EXISTS series_samples (
            at timestamptz NOT NULL, ids bytea NOT NULL, vals bytea NOT NULL,
            CONSTRAINT pk_series_samples PRIMARY KEY (at)
        )
        """
    )
    op.execute(
        "COMMENT ON TABLE series_samples IS 'Values of all series in a minute, until they are rolled up: 32-bit ids and floats,"
        " little-endian, in the same order.'"
    )
    op.execute(
        """
        CREATE TABLE IF NOT EXISTS series_values (
            series_id int NOT NULL, grain smallint NOT NULL, begin timestamptz NOT NULL, vals bytea NOT NULL,
            CONSTRAINT pk_series_values PRIMARY KEY (series_id, grain, begin)
        )
        """
    )
    op.execute("CREATE INDEX IF NOT EXISTS ix_series_values_grain ON series_values (grain, begin)")
    op.execute(
        "COMMENT ON TABLE series_values IS 'Values of a series, one each grain seconds: of an hour for grain 60, of a day for 600 and"
        " 3600. vals: 32-bit floats, little-endian; a single one where all are the same; NaN is unknown.'"
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
