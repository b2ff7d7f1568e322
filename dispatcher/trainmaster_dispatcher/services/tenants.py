"""Admin actions: hooks of queues, priority classes, clusters, datasets and reservations, and API keys."""

import hashlib
import secrets
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from trainmaster import __version__
from trainmaster.protocol.base import format_time
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.permissions import NEED_QUEUES, ROLE_PERMISSIONS, TAKE_QUEUES, Permission, roles_with
from trainmaster.protocol.role_bindings import RoleBindingSpec
from trainmaster.protocol.states import KeyRole
from trainmaster.protocol.suggestions import did_you_mean, suggestion
from trainmaster.protocol.tenants import (
    ClusterSpec,
    DatasetSpec,
    KeySpec,
    PriorityClassSpec,
    QueueSpec,
    ReservationSpec,
    RotateKeySpec,
)
from trainmaster_dispatcher.domain.role_bindings import rights_of
from trainmaster_dispatcher.services import pricing
from trainmaster_dispatcher.services.ownership import clusters_of
from trainmaster_dispatcher.services.references import (
    Checks,
    Reference,
    check_references,
    each_checked,
    names_like,
    unknown_clusters,
    unknown_queues,
)
from trainmaster_dispatcher.store import agents, bursts, keys, notices, outbox, prices
from trainmaster_dispatcher.store import tenants as store
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.declared import Columns

KEY_PREFIX = "tmk_"


def hash_key(secret: str) -> bytes:
    """Return the stored hash of an API key. Keys are 256 random bits, so that a plain hash cannot be reversed by guessing."""
    return hashlib.sha256(secret.encode()).digest()


def hint_of(secret: str) -> str:
    """Return the beginning of an API key, by which people distinguish it from others."""
    return secret[: len(KEY_PREFIX) + 4]


async def check_queues(tx: Transaction, specs: Sequence[QueueSpec]) -> Checks:
    """Return the parent of each queue; or the error where it is missing or holds jobs itself, or a class is unknown.

    Locks the parents.
    """
    parents = await store.lock_queues(tx, [spec.parent for spec in specs if spec.parent is not None])
    names_classes = any(spec.priority_classes or spec.default_priority_class is not None for spec in specs)
    classes = [row.spec.name for row in await store.CLASSES.every(tx)] if names_classes else []

    def check(spec: QueueSpec) -> Columns:
        parent_id = None
        missing: list[Reference] = []
        if spec.parent is not None:
            parent = parents.get(spec.parent)
            if parent is None:
                message = f"there is no queue {spec.parent!r}; make the parent first"
                missing.append(Reference("Queue", spec.parent, "path", Code.UNKNOWN_QUEUE, message))
            elif parent.has_jobs and not parent.has_children:
                raise ProblemError(
                    Code.IN_USE,
                    f"queue {spec.parent!r} holds jobs of its own; a queue has either jobs or queues below it",
                )
            else:
                parent_id = parent.id
        named = [(f"priorityClasses[{index}]", name) for index, name in enumerate(spec.priority_classes)]
        if spec.default_priority_class is not None:
            named.insert(0, ("defaultPriorityClass", spec.default_priority_class))
        missing += unknown_classes(classes, named)
        check_references(missing)
        return {"parent_id": parent_id}

    return each_checked(specs, check)


def unknown_classes(names: Sequence[str], named: Sequence[tuple[str, str]]) -> list[Reference]:
    """Return those of these paths with names of priority classes whose class is not one of ``names``, which are all."""
    if not named:
        return []
    there = f"; there are: {', '.join(names)}"
    return [
        Reference(
            "PriorityClass",
            name,
            path,
            Code.UNKNOWN_PRIORITY_CLASS,
            f"there is no priority class {name!r}{did_you_mean(name, names)}{there}",
        )
        for path, name in named
        if name not in names
    ]


async def check_queue_is_unused(tx: Transaction, path: str) -> None:
    """Raise ProblemError IN_USE where a queue contains something or is named. Locks the queue's row, so that nothing is added."""
    row = await store.lock_queue(tx, path)
    if row is None:
        return
    if row.has_children or row.has_jobs:
        if row.has_children:
            raise ProblemError(Code.IN_USE, f"queue {path!r} still has queues below it")
        message = (
            "jobs, ended ones included; declare it with state: stopped until they are removed, a time after their end"
        )
        raise ProblemError(Code.IN_USE, f"queue {path!r} still has {message}")
    if row.has_schedules:
        raise ProblemError(Code.IN_USE, f"queue {path!r} still has schedules; delete those first")
    if row.has_reservations:
        raise ProblemError(Code.IN_USE, f"nodes are reserved for queue {path!r}; remove the reservation first")
    named = [policy.spec.name for policy in await bursts.POLICIES.every(tx) if path in policy.spec.queues]
    if named:
        raise ProblemError(Code.IN_USE, f"queue {path!r} is named by burst policy {named[0]}; take it out there first")


async def forget_webhook_secret(tx: Transaction, path: str) -> None:
    """Rotate the webhook secret of a removed queue's path: a later queue of this path may belong to somebody else."""
    await outbox.rotate_secret(tx, path, 0.0)


async def replace_default_class(tx: Transaction, specs: Sequence[PriorityClassSpec]) -> Checks:
    """Return the stored columns beside each class. A new default, of which there is at most one, replaces the old one."""
    for spec in specs:
        if spec.default:
            await store.unset_default_class(tx, spec.name)
    return [{"value": spec.value, "is_default": spec.default} for spec in specs]


async def check_class_is_unused(tx: Transaction, name: str) -> None:
    """Raise ProblemError IN_USE where a job has this class, or a queue or a burst policy names it."""
    if await store.class_in_use(tx, name):
        raise ProblemError(Code.IN_USE, f"jobs of priority class {name!r} exist, ended ones included")
    queues = [row.spec.path for row in await store.QUEUES.every(tx) if name in _classes_of(row.spec)]
    if queues:
        raise ProblemError(
            Code.IN_USE, f"priority class {name!r} is named by queue {queues[0]}; take it out there first"
        )
    policies = [row.spec.name for row in await bursts.POLICIES.every(tx) if row.spec.when.class_at_least == name]
    if policies:
        raise ProblemError(
            Code.IN_USE, f"priority class {name!r} is named by burst policy {policies[0]}; take it out there first"
        )


def _classes_of(spec: QueueSpec) -> tuple[str | None, ...]:
    return (spec.default_priority_class, *spec.priority_classes)


async def check_clusters(tx: Transaction, specs: Sequence[ClusterSpec]) -> Checks:
    """Return the kind of each cluster; or the error where it names a price book or a queue that does not exist."""
    named = [spec.price_book for spec in specs if spec.price_book is not None]
    books = await prices.hold_books(tx, named)
    every_book = await names_like(tx, prices.BOOKS, named, books)
    paths = [path for spec in specs for path in spec.only_queues]
    there = await store.QUEUES.by_name(tx, paths) if paths else {}
    every = await names_like(tx, store.QUEUES, paths, there)

    def check(spec: ClusterSpec) -> Columns:
        pricing.check_book(spec.price_book, books, every_book)
        check_references(unknown_queues(spec.only_queues, "onlyQueues", there, every))
        return {"kind": spec.cluster_kind.value}

    return each_checked(specs, check)


async def prepare_clusters(tx: Transaction, cluster_ids: Sequence[int]) -> None:
    """Create the rows of the agent contact of these clusters, and record the prices of clusters from now on."""
    await store.add_contacts(tx, cluster_ids)
    await prices.note_tariffs(tx)


async def cordon(tx: Transaction, caller: keys.Caller, name: str, cordoned: bool) -> None:
    if await store.cordon(tx, name, cordoned) is None:
        raise await unknown_cluster(tx, caller, name)


async def unknown_cluster(tx: Transaction, caller: keys.Caller, name: str) -> ProblemError:
    """Return the error for a cluster that does not exist; for an admin, who may know all names, with the most similar one."""
    near = suggestion(name, await store.CLUSTERS.wire(tx)) if caller.has_every_queue else ""
    return ProblemError(Code.NOT_FOUND, f"there is no cluster {name!r}{near}")


async def remove_cluster(tx: Transaction, name: str) -> bool:
    """Remove a cluster with its agent's keys; return whether it existed.

    Raises ProblemError IN_USE while runs are live there, and CLUSTER_IN_CONTACT while its agent acts for it and may start runs.
    """
    cluster_id = await store.cluster_id(tx, name)
    # The contact is locked first, in the lock order of a new session.
    is_in_contact = cluster_id is not None and await agents.lock_contact(tx, cluster_id)
    row = await store.lock_cluster(tx, name)
    if row is None:
        return False
    if row.live_runs:
        many = "1 live run" if row.live_runs == 1 else f"{row.live_runs} live runs"
        raise ProblemError(
            Code.IN_USE,
            f"cluster {name!r} has {many}: stop them with: trainmaster clusters drain {name} --wait; or, if nothing of it"
            f" runs any more: trainmaster clusters declare-lost {name}",
            extra={"liveRuns": row.live_runs},
        )
    if is_in_contact and not row.cordoned:
        raise ProblemError(
            Code.CLUSTER_IN_CONTACT,
            f"the agent of cluster {name!r} is in contact, and jobs may be sent there; close it first: trainmaster clusters drain"
            f" {name} --wait",
        )
    if row.has_runs:
        await store.retire_cluster(tx, row.id)
    else:
        await store.delete_cluster(tx, row.id)
    return True


async def check_cluster_is_out_of_contact(tx: Transaction, name: str) -> None:
    """Raise ProblemError CLUSTER_IN_CONTACT where an agent acts for a cluster: with the cluster, its key would be gone."""
    cluster_id = await store.cluster_id(tx, name)
    if cluster_id is not None and await agents.lock_contact(tx, cluster_id):
        raise ProblemError(
            Code.CLUSTER_IN_CONTACT,
            f"the agent of cluster {name!r} is in contact; remove the agent first, or the cluster by name:"
            f" trainmaster clusters remove {name}",
        )


async def check_datasets(tx: Transaction, specs: Sequence[DatasetSpec]) -> Checks:
    """Return no columns for each dataset; or the error where one of its clusters is unknown."""
    there = await _clusters_of(tx, specs)
    every = await names_like(tx, store.CLUSTERS, [name for spec in specs for name in spec.clusters], there)

    def check(spec: DatasetSpec) -> Columns:
        check_references(unknown_clusters(spec.clusters, there, every))
        return {}

    return each_checked(specs, check)


async def _clusters_of(tx: Transaction, specs: Iterable[DatasetSpec | ReservationSpec]) -> Container[str]:
    """Return those of the clusters that are named which exist."""
    names = [name for spec in specs for name in spec.clusters]
    return await store.CLUSTERS.wire(tx, names) if names else ()


async def check_reservations(tx: Transaction, specs: Sequence[ReservationSpec]) -> Checks:
    """Return the queue and the window of each reservation; or the error where its queue or one of its clusters is unknown, or
    its end has passed. Locks the queues.
    """
    queues = await store.lock_queues(tx, [spec.queue for spec in specs])
    there = await _clusters_of(tx, specs)
    every = await names_like(tx, store.CLUSTERS, [name for spec in specs for name in spec.clusters], there)
    every_queue = await names_like(tx, store.QUEUES, [spec.queue for spec in specs], queues)

    def check(spec: ReservationSpec) -> Columns:
        queue = queues.get(spec.queue)
        missing = unknown_clusters(spec.clusters, there, every)
        if queue is None:
            message = f"there is no queue {spec.queue!r}{suggestion(spec.queue, every_queue)}"
            missing.insert(0, Reference("Queue", spec.queue, "queue", Code.UNKNOWN_QUEUE, message))
        check_references(missing)
        if spec.end <= datetime.now(UTC):
            message = "has passed: nothing would be reserved"
            raise ProblemError(Code.INVALID_SPEC, f"end {message}", mistakes=(Mistake(path="end", message=message),))
        return {"queue_id": None if queue is None else queue.id, "starts_at": spec.start, "ends_at": spec.end}

    return each_checked(specs, check)


async def make_named_key(tx: Transaction, spec: KeySpec) -> dict[str, Any]:
    """Create an API key whose name no other valid key has, and return it with its secret. An agent's keys share their name.

    Raises ProblemError CONFLICT.
    """
    if spec.role is not KeyRole.AGENT and (other := await keys.valid_named(tx, spec.name)) is not None:
        raise ProblemError(
            Code.CONFLICT,
            f"key {other} has the name {spec.name!r} and is valid; give this one another name, or revoke key {other} first",
        )
    made = await make_key(tx, spec)
    if spec.role is not KeyRole.AGENT:
        await notices.take_over(tx, spec.name, made["id"])
    return made


async def rotate_key(tx: Transaction, caller: keys.Caller, key_id: int, spec: RotateKeySpec) -> dict[str, Any]:
    """Make a new key of the same name, role and rights as a valid one, which stays valid for the overlap; return it with its secret.

    Raises ProblemError NOT_FOUND, and FORBIDDEN for the key of another where the caller may not make keys.
    """
    may_make = caller.has(Permission.KEYS_WRITE)
    row = next((row for row in await keys.listing(tx) if row.id == key_id), None)
    if not may_make and key_id != caller.key_id:
        raise ProblemError(
            Code.FORBIDDEN,
            f"{caller.title} may rotate the key {caller.key_id} alone, the own one; those of others need the permission"
            f" {Permission.KEYS_WRITE} (roles: {roles_with(Permission.KEYS_WRITE)})",
        )
    now = datetime.now(UTC)
    if (
        row is None
        or row.issuer is not None
        or row.revoked_at is not None
        or (row.expires_at and row.expires_at <= now)
    ):
        raise ProblemError(Code.NOT_FOUND, f"there is no valid API key {key_id}")
    if row.role is KeyRole.AGENT:
        message = f"key {key_id} is of the agent of a cluster: trainmaster clusters rotate {row.cluster}"
        raise ProblemError(Code.INVALID_PARAMETER, message)
    lifetime = spec.expires_in
    if lifetime is None and row.expires_at is not None:
        lifetime = f"{max(1, round((row.expires_at - row.created_at).total_seconds()))}s"
    made = await make_key(
        tx,
        KeySpec(
            name=row.name,
            role=row.role,
            queues=tuple(row.queues),
            clusters=tuple(row.clusters),
            on_behalf_of=tuple(row.on_behalf_of),
            expires_in=lifetime,
        ),
    )
    await keys.end_after(tx, key_id, parse_duration(spec.overlap))
    await notices.take_over(tx, row.name, made["id"])
    return made


async def make_key(tx: Transaction, spec: KeySpec, secret: str | None = None) -> dict[str, Any]:
    """Create an API key and return it with its secret, of which only the hash is stored. ``secret``: None creates one."""
    cluster_id = None
    if spec.role is KeyRole.AGENT:
        if spec.cluster is None:
            raise ProblemError(Code.INVALID_PARAMETER, "an agent's key needs a cluster: --cluster NAME")
        cluster_id = await store.cluster_id(tx, spec.cluster)
        if cluster_id is None:
            near = suggestion(spec.cluster, await store.CLUSTERS.wire(tx))
            raise ProblemError(Code.UNKNOWN_CLUSTER, f"there is no cluster {spec.cluster!r}{near}")
    elif spec.cluster is not None:
        more = "; an owner's has a list, clusters" if spec.role is KeyRole.OWNER else ""
        raise ProblemError(
            Code.INVALID_PARAMETER, f"only an agent's key has one cluster, this one is for {spec.role}{more}"
        )
    if spec.role in NEED_QUEUES and not spec.queues:
        raise ProblemError(
            Code.INVALID_PARAMETER, f"a key for the role {spec.role} needs at least one queue, in queues (--queue)"
        )
    if spec.role not in TAKE_QUEUES and spec.queues:
        raise ProblemError(Code.INVALID_PARAMETER, f"a key for the role {spec.role} has no queues")
    if spec.on_behalf_of and Permission.JOBS_SUBMIT not in ROLE_PERMISSIONS[spec.role]:
        raise ProblemError(
            Code.INVALID_PARAMETER,
            f"only keys that may submit have a list of users for whom they may, this one is for {spec.role}",
        )
    if spec.on_behalf_of and spec.role is KeyRole.ADMIN:
        raise ProblemError(
            Code.INVALID_PARAMETER, "an admin's key has no list of users for whom it may submit: it may for everybody"
        )
    missing = sorted(set(spec.queues) - (await store.QUEUES.by_name(tx, spec.queues)).keys())
    if missing:
        near = suggestion(missing[0], await store.QUEUES.wire(tx))
        raise ProblemError(Code.UNKNOWN_QUEUE, f"there is no queue {missing[0]!r}{near}")
    owned = await _owned_clusters(tx, spec)
    secret = secret or KEY_PREFIX + secrets.token_urlsafe(32)
    expires_at = None
    if spec.expires_in is not None:
        expires_at = datetime.now(UTC) + timedelta(seconds=parse_duration(spec.expires_in))
    key_id = await keys.insert(
        tx,
        name=spec.name,
        key_hash=hash_key(secret),
        hint=hint_of(secret),
        role=spec.role,
        queues=spec.queues,
        cluster_id=cluster_id,
        clusters=owned,
        on_behalf_of=spec.on_behalf_of,
        expires_at=expires_at,
    )
    return {"id": key_id, "name": spec.name, "role": spec.role.value, "key": secret}


async def _owned_clusters(tx: Transaction, spec: KeySpec) -> list[int] | None:
    """Return the ids of the clusters of an owner's key; None for other keys. Raises ProblemError."""
    if spec.role is not KeyRole.OWNER:
        if spec.clusters:
            raise ProblemError(
                Code.INVALID_PARAMETER, f"only an owner's key has a list of clusters, this one is for {spec.role}"
            )
        return None
    if not spec.clusters:
        raise ProblemError(Code.INVALID_PARAMETER, "an owner's key needs at least one cluster: --cluster NAME")
    there = await store.hold_clusters(tx, spec.clusters)
    if len(there) < len(set(spec.clusters)):
        check_references(unknown_clusters(spec.clusters, there, await store.CLUSTERS.wire(tx)))
    return sorted(there.values())


async def list_keys(tx: Transaction, caller: keys.Caller) -> list[dict[str, Any]]:
    """Return all API keys without their secrets, and people with the rights that role bindings give them now; for an owner, the
    keys of the agents of the owner's clusters.
    """
    bindings = [one.spec for one in await store.ROLE_BINDINGS.every(tx)] if caller.has_every_queue else []
    return [
        {
            "id": row.id,
            "name": row.name,
            "hint": "" if row.issuer else row.hint + "...",
            **_rights_in(row, bindings),
            "cluster": row.cluster,
            "issuer": row.issuer,
            "groups": list(row.groups),
            "onBehalfOf": list(row.on_behalf_of),
            "email": row.email,
            "createdAt": format_time(row.created_at),
            "expiresAt": format_time(row.expires_at) if row.expires_at else None,
            "revokedAt": format_time(row.revoked_at) if row.revoked_at else None,
            "lastUsedAt": format_time(row.last_used_at) if row.last_used_at else None,
        }
        for row in await keys.listing(tx)
        if caller.has_every_queue or _is_of_own_agent(row, caller)
    ]


def _rights_in(row: keys.ListedKey, bindings: Sequence[RoleBindingSpec]) -> dict[str, Any]:
    """Return role, queues and clusters of a key or a person as lists show them; a person without rights has the role of a user."""
    role, queues, clusters = row.role, list(row.queues), list(row.clusters)
    if row.issuer is not None and (rights := rights_of(bindings, row.name, row.groups)) is not None:
        role, queues, clusters = rights.role, list(rights.every_queue), list(rights.clusters)
    return {"role": role, "queues": queues, "clusters": clusters}


def _is_of_own_agent(row: keys.ListedKey, caller: keys.Caller) -> bool:
    return row.cluster is not None and caller.owns(row.cluster)


async def find_key(tx: Transaction, key_id: str) -> Mapping[str, Any] | None:
    """Return an API key as the audit has it."""
    row = next((row for row in await keys.listing(tx) if str(row.id) == key_id), None)
    if row is None:
        return None
    fields = {"name": row.name, "role": row.role, "queues": list(row.queues), "cluster": row.cluster}
    fields |= {"clusters": list(row.clusters)} if row.clusters else {}
    return fields | {"revoked": row.revoked_at is not None}


async def whoami(tx: Transaction, caller: keys.Caller) -> dict[str, Any]:
    """Return the caller's key, or the caller's account, its roles and permissions, and this release."""
    row = next((row for row in await keys.listing(tx) if row.id == caller.key_id), None)
    until = caller.expires_at or (None if row is None else row.expires_at)
    grants = () if caller.is_owner else caller.all_grants
    return {
        "id": caller.key_id,
        "name": caller.name,
        "role": caller.role.value,
        "queues": sorted({queue for one in grants for queue in one.queues}),
        "clusters": list(caller.clusters),
        "roles": [{"role": one.role.value, "queues": list(one.queues)} for one in grants],
        "permissions": [one.value for one in Permission if caller.has(one)],
        "onBehalfOf": list(caller.on_behalf_of),
        "issuer": caller.issuer,
        "groups": list(caller.groups),
        "expiresAt": None if until is None else format_time(until),
        "version": __version__,
    }


async def revoke_key(tx: Transaction, caller: keys.Caller, key_id: int, *, force: bool = False) -> None:
    """Revoke a key. Raises ProblemError IN_USE for the last valid key of an admin, unless ``force`` is given, and FORBIDDEN where an
    owner's call names a key that is not of an agent of the owner's clusters.
    """
    if caller.is_owner:
        row = next((row for row in await keys.listing(tx) if row.id == key_id), None)
        if row is not None and not _is_of_own_agent(row, caller):
            raise ProblemError(
                Code.FORBIDDEN,
                f"key {key_id} is none of an agent of {clusters_of(caller)}, of which {caller.title} has the role owner;"
                " an admin may revoke it",
            )
    admins = await keys.lock_valid_admins(tx)
    if admins == [key_id] and not force:
        raise ProblemError(
            Code.IN_USE,
            f"key {key_id} is the last valid key of an admin: without it nobody administers this installation;"
            " make another one first, or insist with force=true (--force)",
        )
    if not await keys.revoke(tx, key_id):
        raise ProblemError(Code.NOT_FOUND, f"there is no key {key_id}")
