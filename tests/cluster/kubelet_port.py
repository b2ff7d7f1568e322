"""The kubelet's HTTPS port, as far as logs and streams go: what ``kubectl logs`` and ``kubectl exec`` ask for through the API server.

Commands in containers are those of ``fake_kube.execs``: the members of these tests survive the signals that they send.
"""

import asyncio
import hashlib
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from aiohttp import web

from tests.cluster.certificates import Certificates
from tests.cluster.sandbox import Container
from tests.fake_kube.execs import answer_attach, answer_exec, answer_ports, run_command

Find = Callable[[str, str, str], Container | None]
"""By namespace, pod and container."""
_LOOK_SECONDS = 0.05


class KubeletPort:
    """Serves ``containerLogs``, ``exec``, ``attach`` and ``portForward`` of pods at a free port of loopback."""

    def __init__(self, find: Find) -> None:
        self._find = find
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._serve_logs)
        app.router.add_get("/exec/{namespace}/{pod}/{container}", self._serve_exec)
        app.router.add_get("/attach/{namespace}/{pod}/{container}", self._serve_attach)
        app.router.add_get("/portForward/{namespace}/{pod}", self._serve_ports)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        self.port = 0

    async def start(self, certificates: Certificates) -> None:
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trust.load_cert_chain(certificates.server, certificates.server_key)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=trust)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()

    def _container(self, request: web.Request) -> Container:
        names = request.match_info
        container = self._find(names["namespace"], names["pod"], names["container"])
        if container is None:
            raise web.HTTPNotFound(
                text=f"container {names['container']} of pod {names['pod']} does not exist on this node"
            )
        return container

    async def _serve_exec(self, request: web.Request) -> web.StreamResponse:
        command = request.query.getall("command")
        status, _ = run_command(self._running(request).image, command)
        return await answer_exec(request, command, status)

    async def _serve_attach(self, request: web.Request) -> web.StreamResponse:
        self._running(request)
        return await answer_attach(request, request.match_info["pod"])

    async def _serve_ports(self, request: web.Request) -> web.StreamResponse:
        return await answer_ports(request)

    def _running(self, request: web.Request) -> Container:
        container = self._container(request)
        if container.started is None or container.exit is not None:
            raise web.HTTPInternalServerError(text=f"container {container.name} does not run")
        return container

    async def _serve_logs(self, request: web.Request) -> web.StreamResponse:
        names = request.match_info
        container = self._container(request)
        query = request.query
        if query.get("previous") == "true":
            raise web.HTTPBadRequest(text=f"previous terminated container {container.name} not found")
        if container.is_lost():
            # With status 200, as if the program had said it.
            identity = hashlib.sha256(f"{names['pod']}-{container.number}".encode()).hexdigest()
            return web.Response(text=f"unable to retrieve container logs for containerd://{identity}")
        answer = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await answer.prepare(request)
        left = int(query.get("limitBytes", 2**62))
        at = _first_line(container, query.get("tailLines"), _since(query.get("sinceTime"), query.get("sinceSeconds")))
        while left > 0:
            if container.is_lost() and request.transport is not None:
                request.transport.abort()
                break
            over = container.exit is not None or query.get("follow") != "true"  # looked at before the lines are
            for when, line in container.log[at:]:
                stamp = when.strftime("%Y-%m-%dT%H:%M:%S.%fZ ") if query.get("timestamps") == "true" else ""
                piece = f"{stamp}{line}\n".encode()[:left]
                left -= len(piece)
                at += 1
                if piece:
                    await answer.write(piece)
            if over:
                break
            await asyncio.sleep(_LOOK_SECONDS)
        return answer


def _since(since_time: str | None, since_seconds: str | None) -> datetime | None:
    if since_time:
        return datetime.fromisoformat(since_time)
    return datetime.now(UTC) - timedelta(seconds=int(since_seconds)) if since_seconds else None


def _first_line(container: Container, tail: str | None, since: datetime | None) -> int:
    first = 0
    if since is not None:
        first = sum(when < since for when, _ in container.log)
    if tail is not None:
        first = max(first, len(container.log) - int(tail))
    return first
