"""`ApiServer`: requests to one API server in raw JSON, with a bound on how many run at once.

429 and Retry-After hold back every request of this client, as the server is busy for all of them. No other failure is retried here:
only the caller knows whether repeating a change does harm.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any, Self

import aiohttp
import orjson

from trainmaster.protocol.member_streams import COMMANDS, Channel
from trainmaster_agent.kube.access import ApiServerAccess, KeyAccess
from trainmaster_agent.kube.errors import TooManyRequestsError, UnavailableError, refused
from trainmaster_agent.kube.paths import LEASES, PODS, Resource

log = logging.getLogger(__name__)

MERGE_PATCH = "application/merge-patch+json"

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 30.0
_MOST_PATIENCE = 120.0
"""Total seconds that a request waits for a server that answers that it is too busy."""
_LONGEST_RETRY_AFTER = 30.0
_PAGE = 500
_EXEC_SECONDS = 10.0
_FINAL_FOR_STREAMS = (401, 403)
"""Statuses of an opened stream that a retry does not change."""
_STATUS_CHANNEL = bytes((Channel.STATUS,))
_TOO_MANY, _FIRST_ERROR, _FIRST_SERVER_ERROR = 429, 400, 500
_NETWORK_ERRORS = (aiohttp.ClientError, TimeoutError, OSError)
_FIRST_CLASS = f"/apis/{LEASES.version}/"
"""Requests for Leases wait for no slot: behind those of a large gang the agent's own Lease would expire."""


class ApiServer:
    """``parallel`` is the most requests at once; watches and log streams do not count."""

    def __init__(self, access: ApiServerAccess | KeyAccess, *, parallel: int = 32) -> None:
        self._access = access
        self._slots = asyncio.Semaphore(parallel)
        self._parallel = parallel
        self._session: aiohttp.ClientSession | None = None
        self._sockets: aiohttp.ClientSession | None = None
        self._resume_at = 0.0
        """Time on the loop's clock before which no request is sent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        for session in (self._session, self._sockets):
            if session is not None:
                await session.close()
        self._session = self._sockets = None

    # -- single objects

    async def get(self, resource: Resource, namespace: str | None, name: str) -> dict[str, Any]:
        """Return one object. Like all calls here, raises KubeError; NotFoundError where the object does not exist."""
        return await self.call("GET", resource.path(namespace, name))

    async def create(
        self, resource: Resource, namespace: str | None, body: Mapping[str, Any], *, strict: bool = False
    ) -> dict[str, Any]:
        """Create an object and return it as stored. Raises ConflictError where one of that name exists.

        ``strict``: a field that the API server does not know is refused, as by kubectl; else it is dropped.
        """
        query = {"fieldValidation": "Strict"} if strict else None
        return await self.call("POST", resource.path(namespace), query=query, body=body)

    async def replace(
        self, resource: Resource, namespace: str | None, name: str, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Replace a whole object; with a resource version in it, raises ConflictError where that is not the newest."""
        return await self.call("PUT", resource.path(namespace, name), body=body)

    async def patch(
        self, resource: Resource, namespace: str | None, name: str, body: Any, kind: str = MERGE_PATCH
    ) -> dict[str, Any]:
        """Change part of an object; by a merge patch unless ``kind`` says otherwise."""
        return await self.call("PATCH", resource.path(namespace, name), body=body, content_type=kind)

    async def delete(
        self, resource: Resource, namespace: str | None, name: str, *, uid: str | None = None, grace: int | None = None
    ) -> None:
        """Delete one object, with ``uid`` only if it has that uid. Raises NotFoundError, and ConflictError for another uid."""
        body: dict[str, Any] = {"propagationPolicy": "Background"}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        await self.call("DELETE", resource.path(namespace, name), body=body)

    async def delete_all(self, resource: Resource, namespace: str, selector: str, *, grace: int | None = None) -> None:
        """Delete all objects of a namespace with these labels, in one call."""
        body: dict[str, Any] = {"propagationPolicy": "Background"}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        await self.call("DELETE", resource.path(namespace), query={"labelSelector": selector}, body=body)

    async def pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        selector: str = "",
        name: str = "",
        fields: str = "",
        page: int = _PAGE,
    ) -> AsyncIterator[tuple[list[dict[str, Any]], str]]:
        """Yield all objects by pages, each with the resource version to watch from. Raises GoneError when listing took too long.

        ``name``: of the only object that is listed; ``fields``: a field selector.
        """
        query = {"limit": str(page)}
        if name or fields:
            query["fieldSelector"] = fields or f"metadata.name={name}"
        if selector:
            query["labelSelector"] = selector
        while True:
            answer = await self.call("GET", resource.path(namespace), query=query)
            metadata = answer["metadata"]
            yield answer.get("items") or [], metadata["resourceVersion"]
            if not metadata.get("continue"):
                return
            query["continue"] = metadata["continue"]

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        """Send one request and return its JSON answer. Raises KubeError."""
        data = None if body is None else orjson.dumps(body)
        urgent = path.startswith(_FIRST_CLASS)
        loop = asyncio.get_running_loop()
        patience = loop.time() + _MOST_PATIENCE
        while True:
            wait = self._resume_at - loop.time()
            if wait > 0 and not urgent:
                await asyncio.sleep(wait * random.uniform(1.0, 1.3))
            async with nullcontext() if urgent else self._slots:
                try:
                    async with await self._send(method, path, query, data, content_type) as answer:
                        raw = await answer.read()
                except _NETWORK_ERRORS as error:
                    raise UnavailableError(_words(error)) from error
            if answer.status < _FIRST_ERROR:
                return _parse(raw)
            retry_after = _seconds(answer.headers.get("Retry-After"))
            if answer.status == _TOO_MANY or (answer.status >= _FIRST_SERVER_ERROR and retry_after is not None):
                self._resume_at = max(self._resume_at, loop.time() + (retry_after or 1.0))
                if self._resume_at > patience:
                    raise TooManyRequestsError(f"the API server is too busy: {_said(raw)}")
                log.info("the API server is busy (%d), requests are held back", answer.status)
                continue
            if answer.status >= _FIRST_SERVER_ERROR:
                raise UnavailableError(f"the API server answered {answer.status}: {_said(raw)}")
            raise refused(answer.status, _parse(raw, lenient=True))

    # -- streams

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], *, silence: float
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """Stream an answer's body. Raises KubeError; UnavailableError when nothing comes for ``silence`` seconds."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=silence)
        try:
            async with await self._send("GET", path, query, None, "application/json", timeout) as answer:
                if answer.status >= _FIRST_ERROR:
                    raw = await answer.read()
                    if answer.status == _TOO_MANY or answer.status >= _FIRST_SERVER_ERROR:
                        raise UnavailableError(f"the API server answered {answer.status}: {_said(raw)}")
                    raise refused(answer.status, _parse(raw, lenient=True))
                yield answer.content
        except _NETWORK_ERRORS as error:
            raise UnavailableError(_words(error)) from error

    async def execute(self, namespace: str, pod: str, container: str, command: Sequence[str]) -> None:
        """Run a command in a container and wait for its end, as ``kubectl exec`` does (sub-protocol ``v5.channel.k8s.io``, KEP-4006).

        Raises KubeError: UnavailableError where it did not run, RefusedError where it ended with an error.
        """
        query = [
            ("container", container),
            ("stdout", "true"),
            ("stderr", "true"),
            *(("command", one) for one in command),
        ]
        try:
            async with asyncio.timeout(_EXEC_SECONDS):
                async with await self.web_socket(PODS.path(namespace, pod, "exec"), query, COMMANDS) as socket:
                    async for message in socket:
                        if message.type is aiohttp.WSMsgType.BINARY and message.data[:1] == _STATUS_CHANNEL:
                            status = _parse(message.data[1:], lenient=True)
                            if status.get("status") != "Success":
                                raise refused(int(status.get("code") or 500), status)
                            return
        except UnavailableError as error:
            raise UnavailableError(f"the command did not run in pod {pod}: {error}") from error
        except _NETWORK_ERRORS as error:
            raise UnavailableError(f"the command did not run in pod {pod}: {_words(error)}") from error

    async def web_socket(
        self, path: str, query: Sequence[tuple[str, str]], protocols: Sequence[str]
    ) -> aiohttp.ClientWebSocketResponse:
        """Open a WebSocket. Raises KubeError; RefusedError where a retry would not change the answer.

        It sends no pings: while its reader waits for somebody else, their answers are not read either.
        """
        headers = {}
        authorization = await self._access.authorization()
        if authorization is not None:
            headers["Authorization"] = authorization
        if self._sockets is None:
            self._sockets = self._make_session(raise_for_status=_refuse_socket)
        try:
            return await self._sockets.ws_connect(
                self._access.host + path,
                params=query,
                protocols=protocols,
                headers=headers,
                server_hostname=self._access.server_name,
                proxy=self._access.proxy,
                max_msg_size=0,
            )
        except aiohttp.WSServerHandshakeError as error:
            raise UnavailableError(f"the API server answered {error.status} ({error.message})") from error
        except _NETWORK_ERRORS as error:
            raise UnavailableError(_words(error)) from error

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        data: bytes | None,
        content_type: str,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            self._session = self._make_session()
        headers = {"Accept": "application/json"}
        if data is not None:
            headers["Content-Type"] = content_type
        authorization = await self._access.authorization()
        if authorization is not None:
            headers["Authorization"] = authorization
        return await self._session.request(
            method,
            self._access.host + path,
            params=query,
            data=data,
            headers=headers,
            timeout=timeout or _TIMEOUT,
            server_hostname=self._access.server_name,
            proxy=self._access.proxy,
        )

    def _make_session(self, **options: Any) -> aiohttp.ClientSession:
        tls = self._access.tls
        # Streams hold connections for long, so the number of requests is bounded and the pool is not.
        connector = aiohttp.TCPConnector(limit=0, ssl=tls if tls is not None else True, keepalive_timeout=60)
        return aiohttp.ClientSession(connector=connector, read_bufsize=2**18, auto_decompress=True, **options)


_TIMEOUT = aiohttp.ClientTimeout(total=_ANSWER_SECONDS, sock_connect=_CONNECT_SECONDS)


async def _refuse_socket(answer: aiohttp.ClientResponse) -> None:
    """Raise KubeError with the API server's own words where it has not opened a WebSocket; aiohttp drops them."""
    if answer.status < _FIRST_ERROR:
        return
    words = f"the API server answered {answer.status}: {_said(await answer.read())}"
    if answer.status in _FINAL_FOR_STREAMS:
        raise refused(answer.status, {"message": words})
    raise UnavailableError(words)


def _parse(raw: bytes, *, lenient: bool = False) -> dict[str, Any]:
    if not raw:
        return {}
    try:
        value: dict[str, Any] = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        if lenient:
            return {"message": raw[:300].decode(errors="replace").strip()}
        raise UnavailableError("the API server's answer is not JSON") from error
    return value


def _said(raw: bytes) -> str:
    return str(_parse(raw, lenient=True).get("message") or "no reason given")


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else min(_LONGEST_RETRY_AFTER, max(0.1, float(text)))
    except ValueError:
        return 1.0


def _words(error: BaseException) -> str:
    text = str(error).strip()
    return f"no answer from the API server: {text or type(error).__name__}"
