"""Submitters of jobs that schedules and workflows submit later, with the rights that they have then."""

from collections.abc import Iterable
from typing import NamedTuple

from trainmaster.protocol.states import KeyRole
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller


class SubmitterRow(NamedTuple):
    """A key as which jobs are submitted, with the key whose rights count: the same, or the one through which a user's jobs come,
    or a valid one of the same name. ``rights_id`` is None where none is valid.
    """

    key_id: int
    name: str
    is_user: bool
    rights_id: int | None
    rights_name: str | None
    role: KeyRole | None
    queues: list[str] | None
    on_behalf_of: list[str] | None


async def submitters(tx: Transaction, key_ids: Iterable[int]) -> dict[int, SubmitterRow]:
    """Return the submitters of jobs with these keys, as they are now."""
    rows = await tx.all_of(
        SubmitterRow,
        """
        SELECT k.id AS key_id, k.name, k.through_id IS NOT NULL AS is_user, v.id AS rights_id, v.name AS rights_name, v.role, v.queues,
               v.on_behalf_of
        FROM api_keys k LEFT JOIN api_keys t ON t.id = k.through_id
        LEFT JOIN LATERAL (
            SELECT r.* FROM api_keys r
            WHERE r.name = coalesce(t.name, k.name) AND r.role IN ('admin', 'user') AND r.clusters IS NULL AND r.through_id IS NULL
            AND r.revoked_at IS NULL AND (r.expires_at IS NULL OR r.expires_at > now())
            ORDER BY r.id = coalesce(t.id, k.id) DESC, r.id DESC LIMIT 1) AS v ON true
        WHERE k.id = ANY(:ids)
        """,
        ids=sorted(set(key_ids)),
    )
    return {row.key_id: row for row in rows}


def caller_of(row: SubmitterRow) -> tuple[Caller, Caller | None] | None:
    """Return whose jobs these are, and the caller who submits them on behalf of another, if one does; None where no valid key has the
    right.
    """
    if row.rights_id is None or row.rights_name is None or row.role is None:
        return None
    rights = Caller(
        row.rights_id, row.rights_name, row.role, tuple(row.queues or ()), on_behalf_of=tuple(row.on_behalf_of or ())
    )
    if not row.is_user:
        return rights, None
    if not rights.may_submit_for(row.name):
        return None
    user = Caller(
        row.key_id, row.name, rights.role, rights.queues, on_behalf_of=rights.on_behalf_of, through=rights.name
    )
    return user, rights
