"""Browsers at ports of members: who may enter, and connections to the members, which are used again.

A request is let in by a cookie. Its user's rights are checked again at least each half minute, and a revoked key counts no longer
after a second.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import h11

from trainmaster.metrics import definitions as metrics
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.member_streams import PORTS, MemberStreamKind, MemberStreamOptions
from trainmaster.protocol.permissions import Permission
from trainmaster.protocol.sessions import NamedHost
from trainmaster_dispatcher.api.context import State
from trainmaster_dispatcher.api.limits import CALL, Call, CountedStream, StreamKind
from trainmaster_dispatcher.services import session_access
from trainmaster_dispatcher.services.member_connections import MemberConnection, MemberPortError
from trainmaster_dispatcher.services.member_streams import WantedMember, open_stream
from trainmaster_dispatcher.services.session_access import OpenedPort
from trainmaster_dispatcher.services.tenants import hash_key
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import AuditLine, Caller, note_lines
from trainmaster_dispatcher.store.sessions import SessionLink

CHECK_SECONDS = 30.0
_IDLE_SECONDS = 20.0
"""Time for which a connection to a member is kept that no request uses."""
_MOST_IDLE = 8
_MOST_CACHED = 10_000
_LARGEST_HEAD = 64 * 1024


@dataclass(slots=True)
class Entry:
    """A cookie that was checked. ``until``: when it is checked again, by the clock of the gate."""

    host: NamedHost
    link: SessionLink
    caller: Caller
    port: OpenedPort
    until: float
    idle: list["Upstream"] = field(default_factory=list)


class Upstream:
    """An HTTP connection to a port of a member."""

    def __init__(self, connection: MemberConnection, call: Call, stream: CountedStream) -> None:
        self.connection = connection
        self.http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_LARGEST_HEAD)
        self._call = call
        self._stream = stream
        self._idle: asyncio.Task[None] | None = None
        self.is_closed = False

    def check(self) -> None:
        """Raise ProblemError UNAUTHENTICATED when the user's key is no longer valid."""
        self._stream.check()

    async def passed(self, size: int) -> None:
        """Count bytes that were passed on, and wait where the user's streams have passed on more than they may."""
        await self._stream.passed(size)

    async def send(self, event: Any) -> None:
        """Send an event of h11; wait while the member does not take it."""
        if data := self.http.send(event):
            await self.connection.write(data)

    async def next_event(self) -> Any:
        """Return the next event of h11. Raises h11.RemoteProtocolError, and MemberPortError at an end where none may be."""
        while True:
            event = self.http.next_event()
            if event is h11.NEED_DATA:
                self.http.receive_data(await self.connection.read())
            elif isinstance(event, h11.ConnectionClosed):
                raise MemberPortError(self.connection.failure or "the member closed the connection without an answer")
            else:
                return event

    def renew(self) -> bool:
        """Prepare the connection for another request; return whether it takes one."""
        if self.is_closed or self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
            return False
        self.http.start_next_cycle()
        return True

    def rest(self, drop: Callable[[], None]) -> None:
        """Wait for another request, and close the connection if none comes soon, or the member or its agent closes it before.

        ``drop`` is called then.
        """

        async def wait() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_IDLE_SECONDS):
                    await self.connection.read()
            drop()
            self.close()

        self._idle = asyncio.create_task(wait(), name="idle session connection")

    async def resume(self) -> bool:
        """Take the connection for another request; return False where it is closed."""
        if self._idle is not None:
            idle, self._idle = self._idle, None
            idle.cancel()
            await asyncio.gather(idle, return_exceptions=True)
        return not self.is_closed

    def close(self) -> None:
        idle, self._idle = self._idle, None
        if idle is not None and idle is not asyncio.current_task():
            idle.cancel()
        if not self.is_closed:
            self.is_closed = True
            metrics.member_streams.labels(MemberStreamKind.PORT_FORWARD.value).dec()
            self.connection.close()
            self._call.end()


class SessionGate:
    """Cookies and connections of one process."""

    def __init__(self, state: State, clock: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._clock = clock
        self._entries: dict[bytes, Entry] = {}

    async def enter(self, host: NamedHost, ticket: str, address: str, request_id: str) -> tuple[str, str]:
        """Return the secret of a cookie for a ticket, which counts no longer then, and the port's first page. Raises ProblemError."""
        self._count(address)
        database = self._state.stores.database
        async with database.transaction() as tx:
            link = await session_access.take_ticket(tx, ticket) if ticket else None
        caller = None if link is None else await self._state.keyring.caller_by_id(link.api_key_id)
        if link is None or caller is None or not session_access.opens(link, host):
            raise ProblemError(Code.UNAUTHENTICATED, "this link was used already, is older than a minute, or is none")
        caller = caller.with_permission(Permission.JOBS_CONNECT)
        async with database.transaction() as tx:
            port = await session_access.resolve_port(tx, caller, host)
            details = {"port": port.number, "host": host.label}
            await note_lines(
                tx, [AuditLine(caller.key_id, caller.name, "open port", host.job, request_id, address, details)]
            )
            return await session_access.make_cookie(tx, link), port.path

    async def admit(self, host: NamedHost, secrets: list[str], address: str) -> Entry:
        """Return the checked cookie of a request. Raises ProblemError UNAUTHENTICATED, and as ``resolve_port`` does."""
        for secret in secrets:
            key = hash_key(secret)
            entry = self._entries.get(key)
            if entry is not None and entry.host == host:
                await self._check(key, entry)
                return entry
        for secret in secrets:
            self._count(address)
            async with self._state.stores.database.transaction() as tx:
                link = await session_access.read_cookie(tx, secret)
            if link is not None and session_access.opens(link, host):
                return await self._remembered(hash_key(secret), host, link)
        raise ProblemError(Code.UNAUTHENTICATED, "this browser has no access to the page, or not any more")

    async def check(self, entry: Entry) -> None:
        """Check the rights behind a request that lasts. Raises ProblemError."""
        if entry.until <= self._clock():
            entry.caller, entry.port = await self._rights(entry.host, entry.link)
            entry.until = self._clock() + CHECK_SECONDS

    def note_use(self, entry: Entry) -> None:
        self._state.active_jobs.note(entry.port.job_key)

    async def connect(self, entry: Entry) -> Upstream:
        """Return a new connection to the member. Raises ProblemError."""
        call = Call(entry.caller)
        opened_one: list[Upstream] = []

        def wake() -> None:
            for one in opened_one:
                # Later: whoever ends streams goes through all of them.
                asyncio.get_running_loop().call_soon(one.close)

        stream = self._state.limits.open_stream({CALL: call}, StreamKind.MEMBERS, wake)
        try:
            options = MemberStreamOptions(
                kind=MemberStreamKind.PORT_FORWARD, protocols=PORTS[:1], ports=(entry.port.number,)
            )
            meetings, wanted = self._state.member_streams, WantedMember(entry.host.job)
            opened = await open_stream(self._state.stores, meetings, entry.caller, wanted, options, _no_audit)
        except BaseException:
            call.end()
            raise
        if not opened.opening.protocol:
            opened.agent.over.set()
            call.end()
            raise ProblemError(Code.WRONG_STATE, f"cluster {opened.cluster}: {opened.opening.message}")
        metrics.member_streams.labels(MemberStreamKind.PORT_FORWARD.value).inc()
        upstream = Upstream(MemberConnection(opened), call, stream)
        opened_one.append(upstream)
        return upstream

    async def take_idle(self, entry: Entry) -> Upstream | None:
        """Return a connection that an earlier request of the browser has used; None where there is none."""
        while entry.idle:
            upstream = entry.idle.pop()
            if await upstream.resume():
                return upstream
        return None

    def give_back(self, entry: Entry, upstream: Upstream) -> None:
        """Keep a connection for the next request of the browser, if it takes one."""
        if len(entry.idle) >= _MOST_IDLE or not upstream.renew():
            upstream.close()
            return
        entry.idle.append(upstream)

        def drop() -> None:
            if upstream in entry.idle:
                entry.idle.remove(upstream)

        upstream.rest(drop)

    async def _remembered(self, key: bytes, host: NamedHost, link: SessionLink) -> Entry:
        caller, port = await self._rights(host, link)
        while len(self._entries) >= _MOST_CACHED:
            self._forget(next(iter(self._entries)))
        entry = self._entries[key] = Entry(host, link, caller, port, self._clock() + CHECK_SECONDS)
        return entry

    async def _check(self, key: bytes, entry: Entry) -> None:
        """Check a cookie that was checked before, its key each time. Raises ProblemError."""
        try:
            if await self._state.keyring.caller_by_id(entry.link.api_key_id) is None:
                raise _not_valid()
            if entry.until <= self._clock():
                async with self._state.stores.database.transaction() as tx:
                    if not await session_access.counts(tx, key):
                        raise _not_valid()
            await self.check(entry)
        except ProblemError:
            self._forget(key)
            raise

    def _forget(self, key: bytes) -> None:
        entry = self._entries.pop(key, None)
        for upstream in entry.idle if entry is not None else ():
            upstream.close()

    async def _rights(self, host: NamedHost, link: SessionLink) -> tuple[Caller, OpenedPort]:
        caller = await self._state.keyring.caller_by_id(link.api_key_id)
        if caller is None:
            raise _not_valid()
        caller = caller.with_permission(Permission.JOBS_CONNECT)
        async with self._state.stores.database.transaction() as tx:
            return caller, await session_access.resolve_port(tx, caller, host)

    def _count(self, address: str) -> None:
        """Count a ticket or cookie that is not known here. Raises ProblemError TOO_MANY_REQUESTS."""
        if problem := self._state.limits.keyless(address, "session-links"):
            raise problem


def _not_valid() -> ProblemError:
    return ProblemError(Code.UNAUTHENTICATED, "the API key with which this page was opened was revoked or has expired")


async def _no_audit(tx: Transaction, job: str, details: Any) -> None:
    """Write nothing: the audit has who opened the port, and not each of a browser's connections."""
