"""The store's records of streams to members: opened by users, each until its cluster's agent connects it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from trainmaster_dispatcher.store.database import Transaction, dumps


class ApiAddress(NamedTuple):
    """Where the api listens that a stream's user is connected to. ``host`` None: the one from which the store sees the api connect."""

    process: str
    """Identity of the api's process."""
    host: str | None
    port: int
    secret: str


class DesiredMemberStream(NamedTuple):
    """A stream that a cluster's agent is to connect. ``options``: those of ``OpenMemberStream`` in wire form."""

    id: str
    job_id: int
    attempt: int
    role: str
    member_index: int
    options: dict[str, Any]
    name: str


class StreamCluster(NamedTuple):
    """A cluster as streams to its members need it. ``capabilities``: those that its agent has reported."""

    name: str
    is_reachable: bool
    capabilities: list[str] | None


async def cluster_of(tx: Transaction, cluster_id: int) -> StreamCluster | None:
    return await tx.first_of(
        StreamCluster,
        """
        SELECT c.name, coalesce(k.lease_until > now(), false) AS is_reachable, p.report->'capabilities' AS capabilities
        FROM clusters c LEFT JOIN cluster_contacts k ON k.cluster_id = c.id LEFT JOIN capacity p ON p.cluster_id = c.id
        WHERE c.id = :cluster
        """,
        cluster=cluster_id,
    )


async def insert(
    tx: Transaction,
    stream: str,
    *,
    cluster_id: int,
    job_id: int,
    attempt: int,
    role: str,
    index: int,
    options: dict[str, Any],
    api: ApiAddress,
    desired: int,
    seconds: float,
) -> None:
    """Add a stream, which an agent may connect within ``seconds``; remove those that no agent has connected in time."""
    await tx.run("DELETE FROM member_streams WHERE expires_at < now() - interval '1 minute'")
    await tx.run(
        """
        INSERT INTO member_streams (id, cluster_id, job_id, attempt, role, member_index, options, api, desired_version, expires_at)
        VALUES (:id, :cluster, :job, :attempt, :role, :index, CAST(:options AS jsonb), jsonb_build_object(
                    'process', CAST(:process AS text),
                    'host', coalesce(CAST(:host AS text), host(inet_client_addr()), '127.0.0.1'),
                    'port', CAST(:port AS int), 'secret', CAST(:secret AS text)),
                :version, now() + make_interval(secs => :seconds))
        """,
        id=stream,
        cluster=cluster_id,
        job=job_id,
        attempt=attempt,
        role=role,
        index=index,
        options=dumps(options),
        process=api.process,
        host=api.host,
        port=api.port,
        secret=api.secret,
        version=desired,
        seconds=seconds,
    )


async def desired(tx: Transaction, cluster_id: int, after: int) -> Sequence[DesiredMemberStream]:
    """Return the streams that a cluster's agent is to connect, of versions above ``after``."""
    return await tx.all_of(
        DesiredMemberStream,
        """
        SELECT s.id, s.job_id, s.attempt, s.role, s.member_index, s.options, j.name
        FROM member_streams s JOIN jobs j ON j.id = s.job_id
        WHERE s.cluster_id = :cluster AND s.desired_version > :after AND s.expires_at > now()
        """,
        cluster=cluster_id,
        after=after,
    )


async def claim(tx: Transaction, stream: str, cluster_id: int) -> ApiAddress | None:
    """Remove a stream that an agent connects, so that no other connection is one of it; return its api, None where it is not open."""
    row = await tx.first(
        "DELETE FROM member_streams WHERE id = :id AND cluster_id = :cluster AND expires_at > now() RETURNING api",
        id=stream,
        cluster=cluster_id,
    )
    return None if row is None else ApiAddress(**row.api)


async def remove(tx: Transaction, stream: str) -> None:
    """Remove a stream that its user has given up."""
    await tx.run("DELETE FROM member_streams WHERE id = :id", id=stream)
