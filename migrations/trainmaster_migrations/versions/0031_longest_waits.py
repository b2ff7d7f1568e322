"""A longest wait for each of the shipped priority classes that is still as it was shipped.

Without one, nothing is ever kept for a job that needs more than what is freed at once. The previous release reads the field as this
one does, except for the order of urgent jobs of different classes.

Rules: see script.py.mako.
"""

from alembic import op
from sqlalchemy import text

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

_SHIPPED = {
    "high": ('{"name": "high", "value": 100}', "10m"),
    "normal": ('{"name": "normal", "value": 0, "default": true}', "30m"),
    "low": ('{"name": "low", "value": -100}', "2h"),
}


def upgrade() -> None:
    statement = text(
        "UPDATE priority_classes SET spec = spec || jsonb_build_object('longestWait', CAST(:wait AS text))"
        " WHERE name = :name AND spec = CAST(:shipped AS jsonb)"
    )
    for name, (shipped, wait) in _SHIPPED.items():
        op.execute(statement.bindparams(name=name, shipped=shipped, wait=wait))


def downgrade() -> None:
    raise NotImplementedError("restore a backup: going back would lose what was written since")
