"""People who sign in with an account of the OpenID Connect issuer: their rows beside API keys, and the role bindings that give them
rights.
"""

from collections.abc import Sequence
from typing import Any

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.role_bindings import RoleBindingSpec
from trainmaster_dispatcher.domain.id_claims import PersonAccount
from trainmaster_dispatcher.domain.role_bindings import binds
from trainmaster_dispatcher.services.references import (
    Checks,
    check_references,
    each_checked,
    names_like,
    unknown_clusters,
    unknown_queues,
)
from trainmaster_dispatcher.store import keys
from trainmaster_dispatcher.store import tenants as store
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.declared import Columns

_MOST_NAMED = 20
"""The most groups that a message names."""


async def list_bindings(tx: Transaction, caller: keys.Caller) -> list[dict[str, Any]]:
    """Return role bindings; of those who may use some queues, those for these queues alone and those that name the caller."""
    found = await store.ROLE_BINDINGS.every(tx)
    if not caller.has_every_queue:
        is_person = caller.issuer is not None
        found = [
            one
            for one in found
            if (is_person and binds(one.spec, caller.name, caller.groups))
            or (one.spec.queues and all(map(caller.may_use, one.spec.queues)))
        ]
    return [one.as_declared() for one in found]


async def check_bindings(tx: Transaction, specs: Sequence[RoleBindingSpec]) -> Checks:
    """Return no columns for each role binding; or the error where one of its queues or clusters is unknown."""
    paths = [path for spec in specs for path in spec.queues]
    queues = await store.QUEUES.by_name(tx, paths) if paths else {}
    every_queue = await names_like(tx, store.QUEUES, paths, queues)
    names = [name for spec in specs for name in spec.clusters]
    clusters = await store.CLUSTERS.wire(tx, names) if names else {}
    every_cluster = await names_like(tx, store.CLUSTERS, names, clusters)

    def check(spec: RoleBindingSpec) -> Columns:
        check_references(
            [
                *unknown_queues(spec.queues, "queues", queues, every_queue),
                *unknown_clusters(spec.clusters, clusters, every_cluster),
            ]
        )
        return {}

    return each_checked(specs, check)


async def put_person(tx: Transaction, account: PersonAccount) -> None:
    """Store a person who shows a token.

    Jobs belong to names, so no person may have the name of a valid API key or of another person. Raises ProblemError FORBIDDEN.
    """
    issuer, name, subject = account.issuer, account.name, account.subject
    other = await keys.valid_named(tx, name, issuer=issuer, subject=subject)
    if other is not None:
        raise ProblemError(
            Code.FORBIDDEN,
            f"{name!r} is the name of an API key or of another account: number {other} of trainmaster keys, whose jobs would be yours;"
            f" an admin has to revoke it first: trainmaster keys revoke {other}",
        )
    await keys.put_person(tx, issuer, subject, name, account.groups, account.email)


async def restore_person(tx: Transaction, key_id: int) -> None:
    """Let the tokens of a person who was revoked count again.

    Raises ProblemError NOT_FOUND where no person has this number, also for API keys, whose secrets others may have by now; and
    CONFLICT where a valid key or another person has the name meanwhile.
    """
    person = next((one for one in await keys.people(tx) if one.id == key_id), None)
    if person is None:
        raise ProblemError(
            Code.NOT_FOUND, f"there is no person {key_id}; an API key that was revoked stays so: make another one"
        )
    other = await keys.valid_named(tx, person.name, issuer=person.issuer, subject=person.subject)
    if other is not None:
        raise ProblemError(
            Code.CONFLICT, f"key {other} has the name {person.name!r} and is valid; revoke key {other} first"
        )
    await keys.restore_person(tx, key_id)


def unbound(name: str, groups: Sequence[str]) -> ProblemError:
    """Return the error for a person whom no role binding names."""
    named = ", ".join(groups[:_MOST_NAMED]) + (", ..." if len(groups) > _MOST_NAMED else "")
    of = f"in the groups {named}" if groups else "in no groups"
    return ProblemError(
        Code.FORBIDDEN,
        f"no role binding names the user {name!r}, who is {of}: an admin has to bind a role to the user or to one of the groups,"
        " with a document of the kind RoleBinding",
    )
