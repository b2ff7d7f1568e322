"""What admins do: queues, priority classes, clusters, reservations, keys."""

import hashlib
import secrets
from datetime import UTC, datetime, timedelta
from typing import Any

from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.states import KeyRole
from trainmaster.protocol.tenants import (
    ClusterSpec,
    DatasetSpec,
    KeySpec,
    PriorityClassSpec,
    QueueSpec,
    ReservationSpec,
)
from trainmaster_dispatcher.services import pricing
from trainmaster_dispatcher.store import bursts, datasets, keys, outbox, prices
from trainmaster_dispatcher.store import tenants as store
from trainmaster_dispatcher.store.database import Transaction

KEY_PREFIX = "tmk_"


def hash_key(secret: str) -> bytes:
    """What is stored of an API key. Keys are 256 random bits, so a plain hash cannot be guessed back."""
    return hashlib.sha256(secret.encode()).digest()


def hint_of(secret: str) -> str:
    """The beginning of an API key, by which people tell it from others."""
    return secret[: len(KEY_PREFIX) + 4]


async def put_queue(tx: Transaction, spec: QueueSpec) -> None:
    """Make or change a queue. Raises ProblemError when its parent is missing or holds jobs itself, or its class is unknown."""
    parent_id = None
    if spec.parent is not None:
        parent = await store.lock_queue(tx, spec.parent)
        if parent is None:
            raise ProblemError(Code.UNKNOWN_QUEUE, f"there is no queue {spec.parent!r}; make the parent first")
        if parent.has_jobs and not parent.has_children:
            raise ProblemError(
                Code.IN_USE, f"queue {spec.parent!r} holds jobs of its own; a queue has either jobs or queues below it"
            )
        parent_id = parent.id
    own = () if spec.default_priority_class is None else (spec.default_priority_class,)
    if named := (*own, *spec.priority_classes):
        names = [row.spec.name for row in await store.classes(tx)]
        unknown = next((name for name in named if name not in names), None)
        if unknown is not None:
            raise ProblemError(
                Code.UNKNOWN_PRIORITY_CLASS,
                f"there is no priority class {unknown!r}; there are: {', '.join(names)}",
            )
    await store.put_queue(tx, spec, parent_id)


async def has_queues(tx: Transaction) -> bool:
    return bool(await store.queues(tx))


async def delete_queue(tx: Transaction, path: str) -> None:
    row = await store.lock_queue(tx, path)
    if row is None:
        raise ProblemError(Code.NOT_FOUND, f"there is no queue {path!r}")
    if row.has_children or row.has_jobs:
        what = "queues below it" if row.has_children else "jobs, ended ones included"
        raise ProblemError(Code.IN_USE, f"queue {path!r} still has {what}")
    if row.has_reservations:
        raise ProblemError(Code.IN_USE, f"nodes are reserved for queue {path!r}; remove the reservation first")
    named = [policy.spec.name for policy in await bursts.policies(tx) if path in policy.spec.queues]
    if named:
        raise ProblemError(Code.IN_USE, f"queue {path!r} is named by burst policy {named[0]}; take it out there first")
    await store.delete_queue(tx, row.id)
    await outbox.rotate_secret(tx, path, 0.0)  # another queue of this path may be somebody else's


async def put_class(tx: Transaction, spec: PriorityClassSpec) -> None:
    await store.put_class(tx, spec)


async def delete_class(tx: Transaction, name: str) -> None:
    found = {row.spec.name: row for row in await store.classes(tx)}.get(name)
    if found is None:
        raise ProblemError(Code.NOT_FOUND, f"there is no priority class {name!r}")
    if await store.class_in_use(tx, found.id):
        raise ProblemError(Code.IN_USE, f"jobs of priority class {name!r} exist, ended ones included")
    await store.delete_class(tx, found.id)


async def put_cluster(tx: Transaction, spec: ClusterSpec) -> None:
    """Make or change a cluster. Raises ProblemError where it names a price book that is not there."""
    await pricing.check_book(tx, spec.price_book)
    await store.put_cluster(tx, spec)
    await prices.note_tariffs(tx)


async def cordon(tx: Transaction, name: str, cordoned: bool) -> None:
    if await store.cordon(tx, name, cordoned) is None:
        raise ProblemError(Code.NOT_FOUND, f"there is no cluster {name!r}")


async def put_dataset(tx: Transaction, spec: DatasetSpec) -> None:
    """Declare data, or change what was declared. Raises ProblemError when one of its clusters is unknown."""
    for name in spec.clusters:
        if await store.cluster_id(tx, name) is None:
            raise ProblemError(Code.NOT_FOUND, f"there is no cluster {name!r}")
    await datasets.put_dataset(tx, spec)


async def delete_dataset(tx: Transaction, name: str) -> None:
    """Raises ProblemError where it is not there."""
    if not await datasets.delete_dataset(tx, name):
        raise ProblemError(Code.NOT_FOUND, f"there is no dataset {name!r}")


async def put_reservation(tx: Transaction, spec: ReservationSpec) -> None:
    """Make or change a reservation. Raises ProblemError when its queue or one of its clusters is unknown."""
    queue = await store.lock_queue(tx, spec.queue)
    if queue is None:
        raise ProblemError(Code.UNKNOWN_QUEUE, f"there is no queue {spec.queue!r}")
    for name in spec.clusters:
        if await store.cluster_id(tx, name) is None:
            raise ProblemError(Code.NOT_FOUND, f"there is no cluster {name!r}")
    await store.put_reservation(tx, spec, queue.id)


async def delete_reservation(tx: Transaction, name: str) -> None:
    if not await store.delete_reservation(tx, name):
        raise ProblemError(Code.NOT_FOUND, f"there is no reservation {name!r}")


async def make_key(tx: Transaction, spec: KeySpec, secret: str | None = None) -> dict[str, Any]:
    """A new API key, its secret included; only the hash is stored. ``secret`` is for installations that bring their own."""
    cluster_id = None
    if spec.role is KeyRole.AGENT:
        if spec.cluster is None:
            raise ProblemError(Code.INVALID_PARAMETER, "an agent's key needs a cluster")
        cluster_id = await store.cluster_id(tx, spec.cluster)
        if cluster_id is None:
            raise ProblemError(Code.NOT_FOUND, f"there is no cluster {spec.cluster!r}")
    elif spec.cluster is not None:
        raise ProblemError(Code.INVALID_PARAMETER, f"only an agent's key has a cluster, this one is for a {spec.role}")
    if spec.role is KeyRole.USER and not spec.queues:
        raise ProblemError(Code.INVALID_PARAMETER, "a user's key needs at least one queue")
    if spec.role is not KeyRole.USER and spec.queues:
        raise ProblemError(Code.INVALID_PARAMETER, f"only a user's key has queues, this one is for {spec.role}")
    missing = sorted(set(spec.queues) - (await store.queues_by_path(tx, spec.queues)).keys())
    if missing:
        raise ProblemError(Code.UNKNOWN_QUEUE, f"there is no queue {missing[0]!r}")
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
        expires_at=expires_at,
    )
    return {"id": key_id, "name": spec.name, "role": spec.role.value, "key": secret}


async def list_keys(tx: Transaction) -> list[dict[str, Any]]:
    return [
        {
            "id": row.id,
            "name": row.name,
            "hint": row.hint + "...",
            "role": row.role,
            "queues": list(row.queues),
            "cluster": row.cluster,
            "createdAt": row.created_at.isoformat(),
            "expiresAt": row.expires_at.isoformat() if row.expires_at else None,
            "revokedAt": row.revoked_at.isoformat() if row.revoked_at else None,
        }
        for row in await keys.listing(tx)
    ]


async def revoke_key(tx: Transaction, key_id: int) -> None:
    if not await keys.revoke(tx, key_id):
        raise ProblemError(Code.NOT_FOUND, f"there is no key {key_id}")
