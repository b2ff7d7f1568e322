"""The extension API server: verifies that a request comes from the cluster's API server, lets the cluster decide whether its user may
do it, and passes it on to the dispatcher on behalf of the user. It keeps nothing.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import orjson
from aiohttp import web
from yarl import URL

from trainmaster_agent.aggregation.access_reviews import AccessReviews
from trainmaster_agent.aggregation.requests import OPEN_PATHS, FrontProxy, User, attributes_of
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import KubeError
from trainmaster_agent.kube.paths import Resource

log = logging.getLogger(__name__)

_CONFIG_MAPS = Resource("v1", "configmaps")
_LOOK_SECONDS = 60.0
_CONNECT_SECONDS = 5.0
_MOST_BODY = 3 * 1024 * 1024
"""Bytes, as of an API server."""
_HEALTH = ("/healthz", "/livez", "/readyz")
_REQUEST_HEADERS = ("Accept", "Content-Type", "User-Agent", "If-None-Match")
_ANSWER_HEADERS = ("Content-Type", "Warning", "Retry-After", "Cache-Control", "ETag", "Last-Modified")
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _UNAVAILABLE, _NOT_ALLOWED = 401, 403, 404, 503, 405
_REASONS = {
    _UNAUTHORIZED: "Unauthorized",
    _FORBIDDEN: "Forbidden",
    _NOT_FOUND: "NotFound",
    _NOT_ALLOWED: "MethodNotAllowed",
    _UNAVAILABLE: "ServiceUnavailable",
}


@dataclass(frozen=True, slots=True)
class DispatcherAccess:
    """The dispatcher's api, and the key by which it is called: one that may act on behalf of users."""

    url: str
    key: str


@dataclass(frozen=True, slots=True)
class Listening:
    """The address and the certificate, whose files may be replaced meanwhile."""

    host: str
    port: int
    certificate: Path
    key: Path

    def context(self, proxy: FrontProxy) -> ssl.SSLContext:
        """Return how TLS is spoken. Raises OSError for files that cannot be read, ssl.SSLError for what is no certificate."""
        found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        found.load_cert_chain(self.certificate, self.key)
        found.verify_mode = ssl.CERT_OPTIONAL  # kubelets look at its health without a certificate
        found.load_verify_locations(cadata=proxy.authority)
        return found

    def files(self) -> tuple[bytes, bytes]:
        return self.certificate.read_bytes(), self.key.read_bytes()


async def read_front_proxy(api: ApiServer) -> FrontProxy:
    """Return how the cluster's API server tells of users. Raises KubeError."""
    found = await api.get(_CONFIG_MAPS, "kube-system", "extension-apiserver-authentication")
    data = found.get("data") or {}
    lists = {}
    for field, text in data.items():
        with suppress(orjson.JSONDecodeError):
            if isinstance(value := orjson.loads(text), list):
                lists[field] = [str(one) for one in value]
    try:
        return FrontProxy.read(data, lists)
    except KeyError as error:
        message = (
            f"the cluster's API server has no front proxy: kube-system/extension-apiserver-authentication lacks {error}"
        )
        raise KubeError(message) from error


class ExtensionServer:
    """Serves from ``start`` to ``stop``."""

    def __init__(self, api: ApiServer, dispatcher: DispatcherAccess, listening: Listening) -> None:
        self._api = api
        self._dispatcher = dispatcher
        self._listening = listening
        self._reviews = AccessReviews(api)
        self._proxy: FrontProxy | None = None
        self._files: tuple[bytes, bytes] | None = None
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until stopped; look for new certificates meanwhile. Raises KubeError or OSError if it cannot begin."""
        application = web.Application(client_max_size=_MOST_BODY, middlewares=[_errors_as_status])
        application.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=2.0)
        try:
            await self._runner.setup()
            await self._listen()
            while not stop.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), _LOOK_SECONDS)
                if not stop.is_set():
                    try:
                        await self._listen()
                    except (KubeError, OSError) as error:
                        log.warning("certificates could not be read: %s; going on with those before", error)
        finally:
            await self._runner.cleanup()
            if self._session is not None:
                await self._session.close()

    async def _listen(self) -> None:
        """Listen, unless nothing has changed: with a new certificate or authority, at the same port."""
        proxy, files = await read_front_proxy(self._api), self._listening.files()
        if (proxy, files) == (self._proxy, self._files) or self._runner is None:
            return
        context = self._listening.context(proxy)
        if self._site is not None:
            await self._site.stop()
        self._site = web.TCPSite(self._runner, self._listening.host, self._listening.port, ssl_context=context)
        await self._site.start()
        self._proxy, self._files = proxy, files
        log.info("serving %s at port %d", self._dispatcher.url, self._listening.port)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path in _HEALTH:
            return web.Response(text="ok")
        proxy = self._proxy
        certificate = request.get_extra_info("peercert")
        if proxy is None or not proxy.admits(certificate):
            return _status(_UNAUTHORIZED, "this server takes requests from the cluster's API server only")
        user = proxy.user(list(request.headers.items()))
        if user is None:
            return _status(_UNAUTHORIZED, "the request names no user")
        path = request.rel_url.raw_path
        if path in OPEN_PATHS:
            if request.method != "GET":
                return _status(_NOT_ALLOWED, "the server does not allow this method on the requested resource")
            return await self._pass_on(request, None)
        wanted = attributes_of(request.method, path, request.query)
        if wanted is None:
            return _status(_NOT_FOUND, "the server could not find the requested resource")
        try:
            decision = await self._reviews.decide(user, wanted)
        except KubeError as error:
            return _status(
                _UNAVAILABLE, f"the cluster's API server does not say whether {user.name!r} may do this: {error}"
            )
        if not decision.is_allowed:
            return _status(_FORBIDDEN, wanted.refusal(user.name, decision.reason))
        return await self._pass_on(request, user)

    def _calls(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
                connector=aiohttp.TCPConnector(limit=0),
            )
        return self._session

    async def _pass_on(self, request: web.Request, user: User | None) -> web.StreamResponse:
        """Answer with what the dispatcher answers, as it comes."""
        headers = {name: request.headers[name] for name in _REQUEST_HEADERS if name in request.headers}
        headers |= {"Authorization": f"Bearer {self._dispatcher.key}", "Accept-Encoding": "identity"}
        if user is not None:
            headers["Impersonate-User"] = user.name
        # Sent as it came: what was authorized is what is done.
        url = self._dispatcher.url.rstrip("/") + request.rel_url.raw_path_qs
        body = await request.read()
        try:
            answer = await self._calls().request(
                request.method,
                URL(url, encoded=True),
                headers=headers,
                data=body or None,
                allow_redirects=False,
                # A call without a type of its content, such as kubectl's of a scale, gets none on its way.
                skip_auto_headers=("Content-Type",),
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.warning("the dispatcher does not answer: %s", error)
            return _status(_UNAVAILABLE, f"the dispatcher at {self._dispatcher.url} does not answer; try again")
        async with answer:
            if answer.status == _UNAUTHORIZED:
                log.error("the dispatcher does not accept the key of this server")
                return _status(
                    _UNAVAILABLE, "the dispatcher does not accept the key of this cluster's extension API server"
                )
            response = web.StreamResponse(status=answer.status)
            for name in _ANSWER_HEADERS:
                for value in answer.headers.getall(name, []):
                    response.headers.add(name, value)
            await response.prepare(request)
            with suppress(ConnectionResetError):  # of the caller, who has gone
                try:
                    async for part in answer.content.iter_any():
                        await response.write(part)
                except (aiohttp.ClientPayloadError, TimeoutError) as error:
                    # The caller sees that the answer is not whole, and a watch goes on from where it was.
                    log.warning("the dispatcher broke off an answer: %s", error)
                    if request.transport is not None:
                        request.transport.abort()
            return response


@web.middleware
async def _errors_as_status(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer errors of the server itself as a Status, which kubectl can read."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _status(error.status, error.reason)
    except ConnectionError:
        raise
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return _status(500, "an error inside the extension API server; its log has it")


def _status(code: int, message: str) -> web.Response:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": _REASONS.get(code, "InternalError" if code >= 500 else "BadRequest"),
        "code": code,
    }
    return web.Response(body=orjson.dumps(body), status=code, content_type="application/json")
