"""Submitters of jobs that schedules and workflows submit later, with the rights that they have then."""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from trainmaster.protocol.permissions import Permission
from trainmaster.protocol.states import KeyRole
from trainmaster_dispatcher.domain.role_bindings import Rights, rights_of
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.tenants import ROLE_BINDINGS


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
    issuer: str | None
    groups: list[str] | None


class Submitter(NamedTuple):
    """A submitter with the rights that role bindings give where it is a person."""

    row: SubmitterRow
    rights: Rights | None


async def submitters(tx: Transaction, key_ids: Iterable[int]) -> dict[int, Submitter]:
    """Return the submitters of jobs with these keys, as they are now."""
    rows = await tx.all_of(
        SubmitterRow,
        """
        SELECT k.id AS key_id, k.name, k.through_id IS NOT NULL AS is_user, v.id AS rights_id, v.name AS rights_name,
               coalesce(v.granted_role, v.role::text) AS role,
               CASE WHEN v.granted_role IS NULL THEN v.queues ELSE v.granted_queues END AS queues, v.on_behalf_of, v.issuer, v.groups
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
    is_person = any(row.issuer is not None for row in rows)
    bindings = [one.spec for one in await ROLE_BINDINGS.every(tx)] if is_person else []
    return {
        row.key_id: Submitter(
            row, None if row.issuer is None else rights_of(bindings, row.rights_name or "", row.groups or ())
        )
        for row in rows
    }


def caller_of(submitter: Submitter) -> tuple[Caller, Caller | None] | None:
    """Return whose jobs these are, and the caller who submits them on behalf of another, if one does; None where no valid key has the
    right.
    """
    row, bound = submitter
    if row.rights_id is None or row.rights_name is None or row.role is None:
        return None
    if row.issuer is not None and bound is None:
        return None
    rights = Caller(
        row.rights_id,
        row.rights_name,
        KeyRole(row.role) if bound is None else bound.role,
        tuple(row.queues or ()) if bound is None else bound.queues,
        on_behalf_of=tuple(row.on_behalf_of or ()),
        issuer=row.issuer,
        grants=() if bound is None else bound.grants,
    )
    if not rights.has(Permission.JOBS_SUBMIT):
        return None
    rights = rights.with_permission(Permission.JOBS_SUBMIT)
    if not row.is_user:
        return rights, None
    if not rights.may_submit_for(row.name):
        return None
    user = replace(rights, key_id=row.key_id, name=row.name, through=rights.name)
    return user, rights
