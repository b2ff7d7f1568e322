"""A tiny client of a Kubernetes API server: raw JSON over aiohttp. It must not know the product's own client."""

import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp
import orjson

type_of_patch = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
}

Json = dict[str, Any]
Query = Mapping[str, str | int]


class ApiError(Exception):
    """The API server's refusal."""

    def __init__(self, method: str, path: str, status: int, message: str) -> None:
        super().__init__(f"{method} {path}: {status} {message}")
        self.status = status


class ApiClient:
    """Requests to one API server under one token; connections are kept and bounded."""

    def __init__(self, url: str, ca_file: Path, token: str, connections: int = 64) -> None:
        self.url = url
        self._trust = ssl.create_default_context(cafile=str(ca_file))
        self._token = token
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "ApiClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._connections, ssl=self._trust),
                headers={"Authorization": f"Bearer {self._token}"},
            )
        return self._session

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        kind: str = "application/json",
        query: Query | None = None,
    ) -> Any:
        """Send a request; return the answer as JSON, or as text if it is not JSON. Raises ApiError for status 400 and above."""
        async with self._open().request(
            method,
            self.url + path,
            params=query,
            data=None if body is None else orjson.dumps(body),
            headers={"Content-Type": kind},
            timeout=aiohttp.ClientTimeout(total=60),
        ) as answer:
            content = await answer.read()
            if answer.status >= 400:
                raise ApiError(method, path, answer.status, content.decode(errors="replace")[:500])
            return orjson.loads(content) if answer.content_type == "application/json" else content.decode()

    async def get(self, path: str, query: Query | None = None) -> Any:
        return await self.request("GET", path, query=query)

    async def post(self, path: str, body: object) -> Json:
        answer: Json = await self.request("POST", path, body)
        return answer

    async def patch(self, path: str, body: object, kind: str = "merge") -> Json:
        """Send a patch of ``kind`` merge, strategic or json."""
        answer: Json = await self.request("PATCH", path, body, type_of_patch[kind])
        return answer

    async def delete(self, path: str, body: object = None, query: Query | None = None) -> Json:
        answer: Json = await self.request("DELETE", path, body, query=query)
        return answer

    async def watch(self, path: str, version: str, query: Query | None = None) -> AsyncIterator[Json]:
        """Yield events after a resource version, until the server ends the watch or the connection breaks."""
        async with self._open().get(
            self.url + path,
            params={"watch": "1", "resourceVersion": version, **(query or {})},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
        ) as answer:
            if answer.status >= 400:
                raise ApiError("WATCH", path, answer.status, (await answer.text())[:500])
            rest = b""
            async for piece in answer.content.iter_any():
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    yield orjson.loads(line)
