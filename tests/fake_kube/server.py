"""The fake as a server: plain HTTP on a free port of the loopback, with faults on demand."""

from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import Any, Self

import orjson
from aiohttp import web

from tests.fake_kube import discovery
from tests.fake_kube.answers import Answers
from tests.fake_kube.errors import ApiError
from tests.fake_kube.execs import Execs
from tests.fake_kube.faults import Call, Faults
from tests.fake_kube.garbage import GarbageCollector, NamespaceController
from tests.fake_kube.logs import Logs
from tests.fake_kube.objects import Object
from tests.fake_kube.paths import Target, read_target, split_version
from tests.fake_kube.pod_use import PodUses
from tests.fake_kube.reading import Query
from tests.fake_kube.resources import NAMESPACES, PODS, Table
from tests.fake_kube.store import Store
from tests.fake_kube.verbs import Verbs
from tests.fake_kube.watching import Watch, error_line

_LARGEST_BODY = 3 * 2**20
"""Bytes; what a real server takes."""


_STREAMS = {"exec": Execs.serve, "attach": Execs.attach, "portforward": Execs.forward}


class FakeKube:
    """A Kubernetes API server in this process: ``async with FakeKube() as kube`` serves at ``kube.url``.

    ``history`` bounds how many changes of each resource are remembered for watches; ``bookmark_seconds`` is the time
    between bookmarks. The store outlives ``stop``; controllers and fake nodes go on meanwhile.
    """

    def __init__(self, *, history: int = 10_000, bookmark_seconds: float = 1.0, git_version: str = "v1.35.0") -> None:
        self.store = Store(history)
        self.table = Table()
        self.faults = Faults()
        self.verbs = Verbs(self.store, self.table)
        self.logs = Logs()
        self.execs = Execs()
        self.uses = PodUses(self.store, self.faults)
        self.calls: list[Call] = []
        """Every request for objects so far, those that were refused among them."""
        self.bookmark_seconds = bookmark_seconds
        self.git_version = git_version
        self.expired_as_status = False
        """Whether a watch of a forgotten version is refused with 410, or (as servers do) begins and tells it as an event."""
        self.port = 0
        GarbageCollector(self.store, self.table, self.verbs.deletion)
        NamespaceController(self.store, self.table, self.verbs.deletion)
        self._answers = Answers(self.store, self.verbs, self.faults)
        self._watches: set[Watch] = set()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen; again on the same port after a ``stop``."""
        if not self.store.scan(NAMESPACES.id):
            for name in ("default", "kube-system"):
                self.add_namespace(name)
        app = web.Application(client_max_size=_LARGEST_BODY)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Cut all connections and refuse new ones, as when the control plane is down."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            for site in tuple(runner.sites):
                await site.stop()
            self._cut(runner)
            await runner.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def add_namespace(self, name: str) -> None:
        self.verbs.create(NAMESPACES, "", {"metadata": {"name": name}})

    def serve(self, group_version: str, plurals: Iterable[str]) -> None:
        """See ``Table.serve``."""
        self.table.serve(group_version, plurals)

    def withdraw(self, group_version: str) -> None:
        """See ``Table.withdraw``."""
        self.table.withdraw(group_version)

    def expire_history(self) -> None:
        """See ``Store.expire_history``: watches and pages of the past get 410 Gone."""
        self.store.expire_history()

    def throttle(self, requests: int, retry_after: int = 1) -> None:
        """See ``Faults.throttle``."""
        self.faults.throttle(requests, retry_after)

    def fail_next(self, verb: str, resource: str, status: int, times: int = 1) -> None:
        """See ``Faults.fail_next``."""
        self.faults.fail_next(verb, resource, status, times)

    def lose_next_answer(self, verb: str, resource: str) -> None:
        """See ``Faults.lose_next_answer``."""
        self.faults.lose_next_answer(verb, resource)

    def deny(self, verb: str, resource: str) -> None:
        """See ``Faults.deny``."""
        self.faults.deny(verb, resource)

    def allow(self, verb: str, resource: str) -> None:
        """See ``Faults.allow``."""
        self.faults.allow(verb, resource)

    def drop_connections(self) -> None:
        """Cut every open connection, watches and idle ones too; new ones are taken at once."""
        if self._runner is not None:
            self._cut(self._runner)

    def end_watches(self) -> None:
        """Let all watches end cleanly, as a server does when their time is over."""
        for watch in self._watches:
            watch.end()

    @property
    def watching(self) -> int:
        """The number of open watches."""
        return len(self._watches)

    def _cut(self, runner: web.AppRunner) -> None:
        for handler in tuple(runner.server.connections) if runner.server else ():
            if handler.transport is not None:
                handler.transport.abort()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._dispatch(request)
        except ApiError as error:
            headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
            return _answer(error.code, error.body(), headers)

    async def _dispatch(self, request: web.Request) -> web.StreamResponse:
        if (used := await self.uses.answer(request.path)) is not None:
            return _answer(200, used)
        version = split_version(request.path)
        if version is None or not version[1]:
            self.faults.check(Call("get", request.path), "")
            answer = self._about(request.path) if version is None else discovery.resource_list(self.table, version[0])
            return web.Response(status=404, text="404 page not found\n") if answer is None else _answer(200, answer)
        group_version, steps = version
        if not self.table.serves(group_version):
            return web.Response(status=404, text="404 page not found\n")
        target = read_target(self.table, request.method, group_version, steps, request.query)
        call = Call(target.verb, target.qualified, target.namespace, target.name)
        self.calls.append(call)
        self.faults.check(call, target.resource.group)
        if target.verb == "watch":
            return await self._watch(request, target)
        if (serve := _STREAMS.get(target.subresource)) is not None:
            return await serve(self.execs, request, self.verbs.get(PODS, target.namespace, target.name))
        if target.subresource == "log":
            pod = self.verbs.get(PODS, target.namespace, target.name)
            return await self._stream(request, self.logs.read(pod, request.query), "text/plain")
        code, body = self._answers.answer(
            target, request.query, request.headers.get("Content-Type", ""), await _body(request)
        )
        if self.faults.loses(call) and request.transport is not None:
            request.transport.abort()
        return _answer(code, body)

    def _about(self, path: str) -> Object | None:
        match [step for step in path.split("/") if step]:
            case ["version"]:
                return discovery.version_info(self.git_version)
            case ["healthz" | "livez" | "readyz"]:
                return {"status": "ok"}
            case ["api"]:
                return discovery.core_versions()
            case ["apis"]:
                return discovery.group_list(self.table)
            case ["apis", name]:
                return discovery.group(self.table, name)
            case _:
                return None

    async def _watch(self, request: web.Request, target: Target) -> web.StreamResponse:
        try:
            watch = Watch(self.store, Query(target.resource, target.namespace, request.query), self.bookmark_seconds)
        except ApiError as error:
            if error.code != 410 or self.expired_as_status:
                raise
            return web.Response(body=error_line(error), content_type="application/json")
        self._watches.add(watch)
        try:
            return await self._stream(request, watch.lines(), "application/json")
        finally:
            self._watches.discard(watch)
            watch.close()

    async def _stream(
        self, request: web.Request, pieces: AsyncIterator[bytes], content_type: str
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": content_type})
        try:
            await response.prepare(request)
            async for piece in pieces:
                if piece:
                    await response.write(piece)
            await response.write_eof()
        except ConnectionError:  # the client has gone, or what speaks has
            if request.transport is not None:
                request.transport.abort()
        return response


async def _body(request: web.Request) -> Any:
    data = await request.read()
    try:
        return orjson.loads(data) if data else {}
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"the body of the request cannot be read: {error}") from error


def _answer(code: int, body: Object, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=code, body=orjson.dumps(body), content_type="application/json", headers=headers)
