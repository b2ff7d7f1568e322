"""Streams to members: a command in one, its first process, its ports; for users, through the connection that its agent opens.

    user ──WebSocket──▶ api A ◀──WebSocket── api B ◀──WebSocket── agent ──▶ member

The user's api stores the stream; the cluster's agent gets it with its desired state and connects to whatever api it reaches. Where
that is another one, it copies the agent's frames to the user's api, at the address that was stored with the stream. An agent's
connection removes the stream from the store, so that a command is never run twice.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from secrets import token_hex, token_urlsafe
from typing import Any, Protocol

from pydantic import ValidationError

from trainmaster.bulk_turns import BulkTurns
from trainmaster.cluster_model.capabilities import Capability
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.ids import RunRef
from trainmaster.protocol.member_streams import MemberStreamKind, MemberStreamOpening, MemberStreamOptions
from trainmaster_dispatcher.services import job_actions
from trainmaster_dispatcher.services.agents import superseded
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.store import agents, runs
from trainmaster_dispatcher.store import jobs as job_store
from trainmaster_dispatcher.store import member_streams as store
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.member_streams import ApiAddress
from trainmaster_dispatcher.store.redis_channels import CLUSTERS

bulk_turns = BulkTurns()
"""Of all streams of this process."""
_CONNECT_SECONDS = 20.0
"""Seconds for a cluster's agent to connect a stream."""
_OPEN_SECONDS = 30.0
"""Seconds for its first message, which says whether it was opened; agents give up earlier."""
_CHECK_SECONDS = 2.0
_CAPABILITIES = {
    MemberStreamKind.EXEC: Capability.EXEC,
    MemberStreamKind.ATTACH: Capability.ATTACH,
    MemberStreamKind.PORT_FORWARD: Capability.PORT_FORWARD,
}
_WORDS = {
    MemberStreamKind.EXEC: "run commands in members",
    MemberStreamKind.ATTACH: "attach to members",
    MemberStreamKind.PORT_FORWARD: "connect to ports of members",
}


class FrameLine(Protocol):
    """One side of a stream."""

    async def receive(self) -> bytes | str | None:
        """Return the next frame or text; None after the last one."""
        ...

    async def send(self, data: bytes | str) -> None:
        """Send a frame or a text; wait while the peer cannot take it. What nobody receives any more is dropped."""
        ...

    async def close(self, why: str = "") -> None:
        """Close; ``why``: the failure, if it is one."""
        ...

    @property
    def failure(self) -> str:
        """The reason for which the peer has closed, where it was a failure; else empty."""
        ...


@dataclass(frozen=True, slots=True)
class WantedMember:
    """The member that a stream goes to. ``role`` None: the job's first one; ``attempt`` None: its newest run."""

    job: str
    role: str | None = None
    index: int = 0
    attempt: int | None = None


@dataclass(slots=True)
class AgentLine:
    """The connection of an agent at the api of a stream's user. ``over`` is set when nobody uses it any more."""

    line: FrameLine
    over: asyncio.Event = field(default_factory=asyncio.Event)
    lost: str = ""
    """Why its user is gone, where nobody has closed the stream."""


Listen = Callable[[], Awaitable[tuple[str | None, int]]]
"""Begins to listen for other apis; returns host and port, None for a host that means all addresses."""


class MemberStreamMeetings:
    """Streams of this process's users that wait for their agents."""

    def __init__(self) -> None:
        self.process = token_hex(8)
        self.secret = token_urlsafe(32)
        self.listen: Listen | None = None
        """None while this process is starting or stopping."""
        self._address: tuple[str | None, int] | None = None
        self._starting = asyncio.Lock()
        self._waiting: dict[str, asyncio.Future[AgentLine]] = {}

    async def address(self) -> ApiAddress:
        """Return where other apis connect to this one, which listens from the first stream on. Raises ProblemError TOO_BUSY."""
        async with self._starting:
            if self.listen is None:
                raise ProblemError(Code.TOO_BUSY, "this api is about to start or to stop; try again", retry_after=1.0)
            if self._address is None:
                self._address = await self.listen()
            return ApiAddress(self.process, *self._address, self.secret)

    @contextmanager
    def waiting(self, stream: str) -> Iterator["asyncio.Future[AgentLine]"]:
        """Wait for the agent's connection of a stream while the block runs."""
        met: asyncio.Future[AgentLine] = asyncio.get_running_loop().create_future()
        self._waiting[stream] = met
        try:
            yield met
        finally:
            del self._waiting[stream]
            met.cancel()

    async def meet(self, stream: str, line: FrameLine) -> str:
        """Hand an agent's connection to the user who waits for it; return when the stream is over, with its failure or nothing."""
        met = self._waiting.get(stream)
        if met is None or met.done():
            return "nobody waits for this stream any more"
        agent = AgentLine(line)
        met.set_result(agent)
        await agent.over.wait()
        return agent.lost


@dataclass(frozen=True, slots=True)
class OpenedStream:
    """A stream that its agent has opened. ``opening`` says whether the member was reached."""

    cluster: str
    opening: MemberStreamOpening
    agent: AgentLine
    job_key: int


Audit = Callable[[Transaction, str, Mapping[str, Any]], Awaitable[None]]
"""Writes the audit line of an opened stream: its job and details."""


async def open_stream(
    stores: Stores,
    meetings: MemberStreamMeetings,
    caller: Caller,
    wanted: WantedMember,
    options: MemberStreamOptions,
    audit: Audit,
) -> OpenedStream:
    """Open a stream to a running member. Whoever calls this ends the stream with ``close``.

    Raises ProblemError: NOT_FOUND, JOB_OF_ANOTHER, WRONG_STATE where the member does not run or its cluster is unreachable, and
    METHOD_NOT_ALLOWED where the cluster offers no such stream.
    """
    api, stream = await meetings.address(), token_hex(16)
    with meetings.waiting(stream) as met:
        async with stores.database.transaction() as tx:
            ref, role, row = await check_stream(tx, caller, wanted, options.kind)
            version = (await runs.raise_desired(tx, [row.cluster_id]))[row.cluster_id]
            await store.insert(
                tx,
                stream,
                cluster_id=row.cluster_id,
                job_id=ref.job_key,
                attempt=ref.attempt,
                role=role,
                index=wanted.index,
                options=options.model_dump(mode="json", by_alias=True) | {"user": caller.name},
                api=api,
                desired=version,
                seconds=_CONNECT_SECONDS,
            )
            details = {"member": f"{role}-{wanted.index}", "run": ref.attempt, "cluster": row.cluster}
            await audit(tx, wanted.job, details | _shown(options))
        stores.channels.wake(CLUSTERS, [row.cluster_id])
        opened = None
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                agent = await asyncio.shield(met)
            opened = OpenedStream(row.cluster, await _opening(agent.line), agent, ref.job_key)
        except TimeoutError as error:
            message = f"cluster {row.cluster} did not connect the stream in time; try again"
            raise ProblemError(Code.TOO_BUSY, message, retry_after=5.0) from error
        finally:
            if opened is None:
                await _give_up(stores, stream, met)
    return opened


async def _give_up(stores: Stores, stream: str, met: "asyncio.Future[AgentLine]") -> None:
    """Let go of a stream that was not opened, whether its agent has connected or not."""
    if met.done() and not met.cancelled():
        met.result().over.set()
        return
    with suppress(ProblemError):
        async with stores.database.transaction() as tx:
            await store.remove(tx, stream)


def _shown(options: MemberStreamOptions) -> dict[str, Any]:
    """Return what the audit says of a stream. Input and output of a command are not recorded."""
    if options.kind is MemberStreamKind.PORT_FORWARD:
        return {"ports": list(options.ports)}
    return (
        {"command": " ".join(options.command)[:1000], "tty": options.tty} if options.command else {"tty": options.tty}
    )


async def check_stream(
    tx: Transaction, caller: Caller, wanted: WantedMember, kind: MemberStreamKind
) -> tuple[RunRef, str, runs.ShownRun]:
    """Return the run of the wanted member, its role, and the run's row. Raises ProblemError as ``open_stream`` does."""
    job = await job_actions.find_job(tx, caller, wanted.job)
    await job_actions.check_may_change(tx, caller, job.id)
    spec = (await job_store.specs(tx, [job.spec_id]))[job.spec_id]
    names = [str(role["name"]) for role in spec["roles"]]
    role = names[0] if wanted.role is None else wanted.role
    if role not in names:
        raise ProblemError(Code.NOT_FOUND, f"{wanted.job} has no role {role!r}; it has: {', '.join(names)}")
    attempts = {row.attempt: row for row in await runs.of_job(tx, job.id)}
    attempt = wanted.attempt or max(attempts, default=0)
    row = attempts.get(attempt)
    if row is None or row.state.is_terminal:
        run = (
            f"its run {attempt} has ended"
            if row is not None
            else "it has no such run"
            if attempt
            else "it has no run yet"
        )
        raise ProblemError(Code.WRONG_STATE, f"{wanted.job} is {job.state}, and {run}: no member of it runs")
    await _check_offered(tx, row.cluster_id, kind)
    return RunRef(job.id, attempt), role, row


async def _check_offered(tx: Transaction, cluster_id: int, kind: MemberStreamKind) -> None:
    cluster = await store.cluster_of(tx, cluster_id)
    if cluster is None or not cluster.is_reachable:
        name = "its cluster" if cluster is None else f"cluster {cluster.name}"
        raise ProblemError(Code.WRONG_STATE, f"{name} is unreachable at the moment; the job goes on there")
    if _CAPABILITIES[kind] not in (cluster.capabilities or ()):
        raise ProblemError(
            Code.METHOD_NOT_ALLOWED,
            f"cluster {cluster.name} does not let users {_WORDS[kind]}: its runtime offers none, its agent is older, or its owner has"
            " switched it off (memberStreams)",
        )


async def _opening(line: FrameLine) -> MemberStreamOpening:
    """Return the first message of an agent."""
    async with asyncio.timeout(_OPEN_SECONDS):
        data = await line.receive()
    try:
        return MemberStreamOpening.model_validate_json(data or b"")
    except ValidationError:
        return MemberStreamOpening(message="the connection to the cluster's agent was cut")


async def claim(stores: Stores, caller: Caller, session: str, stream: str) -> ApiAddress:
    """Return the api of a stream that an agent connects. Raises ProblemError STREAM_CLOSED where it waits no more."""
    if caller.cluster_id is None:
        raise ProblemError(Code.FORBIDDEN, "only an agent's key opens the agent calls")
    async with stores.database.transaction() as tx:
        if not await agents.is_current(tx, caller.cluster_id, session):
            raise superseded()
        api = await store.claim(tx, stream, caller.cluster_id)
    if api is None:
        raise ProblemError(Code.STREAM_CLOSED, "nobody waits for this stream any more")
    return api


class NotedLine:
    """A user's side of a stream that notes each use of it. ``note`` is called for each frame, either way, and ``passed`` with its
    length, which may wait.
    """

    def __init__(self, line: FrameLine, note: Callable[[], None], passed: Callable[[int], Awaitable[None]]) -> None:
        self._line = line
        self._note = note
        self._passed = passed

    @property
    def failure(self) -> str:
        """The reason for which the peer has closed, where it was a failure; else empty."""
        return self._line.failure

    async def receive(self) -> bytes | str | None:
        """Return the next frame or text; None after the last one."""
        data = await self._line.receive()
        if data is not None:
            self._note()
            await self._passed(len(data))
        return data

    async def send(self, data: bytes | str) -> None:
        """Send a frame or a text."""
        self._note()
        await self._line.send(data)
        await self._passed(len(data))

    async def close(self, why: str = "") -> None:
        """Close; ``why``: the failure, if it is one."""
        await self._line.close(why)


async def copy_both(user: FrameLine, agent: FrameLine, check: Callable[[], None]) -> str:
    """Copy frames both ways until one side has closed; return why the stream has failed, empty where it has ended well.

    ``check`` raises ProblemError once the user may not go on; it is called every few seconds.
    """
    sending = asyncio.create_task(_copy(agent, user))
    receiving = asyncio.create_task(_copy(user, agent))
    try:
        while True:
            check()
            done, _ = await asyncio.wait(
                (sending, receiving), timeout=_CHECK_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                return agent.failure if sending in done else ""
    except ProblemError as error:
        return error.detail
    finally:
        for task in (sending, receiving):
            task.cancel()
        await asyncio.gather(sending, receiving, return_exceptions=True)


async def _copy(source: FrameLine, target: FrameLine) -> None:
    while (data := await source.receive()) is not None:
        await bulk_turns.take(len(data))
        await target.send(data)
