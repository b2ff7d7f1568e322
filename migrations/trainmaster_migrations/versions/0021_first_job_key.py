"""Each new installation counts its jobs from a place of its own, so that two of them do not make the same ids.

Ids are made from keys by a scramble that is the same everywhere: with keys from 1 on, the first job of every installation had the
same suffix, and two installations that share a cluster made pods of the same names. Keys beyond the start stay short enough for
17,000,000,000 ids of seven characters. An installation that has had jobs goes on counting where it is.

Rules: see script.py.mako.
"""

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        SELECT setval('jobs_id_seq', 1 + floor(random() * 2^34)::bigint, false)
        WHERE NOT EXISTS (SELECT FROM jobs) AND NOT (SELECT is_called FROM jobs_id_seq)
        """
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
