"""Usage by priority class, what is charged for it (cost times the price factors of class and queue), and how long jobs waited.

The previous release counts what has ended in ``usage`` as before, without class and at factor 1; both tables are reported. It does
not count how long jobs waited.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE runs ADD COLUMN price_factor numeric")
    op.execute(
        """
        CREATE TABLE class_usage (
            hour timestamptz NOT NULL, queue_id int NOT NULL, class_id int NOT NULL, api_key_id int NOT NULL,
            cluster_id int NOT NULL, labels jsonb NOT NULL, resource text NOT NULL, product text NOT NULL, spot boolean NOT NULL,
            amount numeric NOT NULL, cost numeric NOT NULL, charge numeric NOT NULL,
            CONSTRAINT pk_class_usage PRIMARY KEY
                (hour, queue_id, class_id, api_key_id, cluster_id, labels, resource, product, spot)
        )
        """
    )
    op.execute(
        "COMMENT ON TABLE class_usage IS 'As usage, by priority class; charge: the cost times the factors of class and queue."
        " Usage that releases before this table counted is in usage.'"
    )
    op.execute(
        """
        CREATE TABLE class_waits (
            month timestamptz NOT NULL, queue_id int NOT NULL, class_id int NOT NULL, met bigint NOT NULL, missed bigint NOT NULL,
            held bigint NOT NULL, seconds_late double precision NOT NULL, most_seconds_late double precision NOT NULL,
            CONSTRAINT pk_class_waits PRIMARY KEY (month, queue_id, class_id)
        )
        """
    )
    op.execute(
        "COMMENT ON TABLE class_waits IS 'Jobs that first had nodes in a month, by whether that was within their class''s"
        " longestWait after submission. held: later, but held before. seconds_late: the sum of the time beyond it of those that"
        " missed it.'"
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
