"""The limit that an agent is compared with: bare requests to the same API server, as fast as it answers."""

import asyncio
import ssl
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import aiohttp
import orjson

from tests.cluster.control_plane import ControlPlane

JSON, MERGE_PATCH = "application/json", "application/merge-patch+json"
_FIRST_ERROR = 400


class Call(NamedTuple):
    method: str
    path: str
    body: bytes | None = None
    kind: str = JSON


class BareKube:
    """``parallel`` connections that send one request after the other; answers are read, and nothing is made of them."""

    def __init__(self, plane: ControlPlane, parallel: int) -> None:
        self._url = plane.url
        self._parallel = parallel
        trust = ssl.create_default_context(cafile=str(plane.ca_file))
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=trust),
            headers={"Authorization": f"Bearer {plane.admin_token}", "Accept": JSON},
        )

    async def __aenter__(self) -> "BareKube":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def one(self, call: Call) -> bytes:
        """Send one call and return the answer. Raises RuntimeError for a refusal."""
        async with self._session.request(
            call.method, self._url + call.path, data=call.body, headers={"Content-Type": call.kind}
        ) as answer:
            raw = await answer.read()
            if answer.status >= _FIRST_ERROR:
                raise RuntimeError(f"{call.method} {call.path}: {answer.status} {raw[:300].decode(errors='replace')}")
            return raw

    async def make(self, path: str, body: Any) -> dict[str, Any]:
        """Create one object and return it as it is stored."""
        stored: dict[str, Any] = orjson.loads(await self.one(Call("POST", path, orjson.dumps(body))))
        return stored

    async def seconds_for(self, chains: Iterable[Sequence[Call]]) -> float:
        """Make all calls, those of one chain one after the other, and return the seconds that they take."""
        left = iter(chains)

        async def work() -> None:
            for chain in left:
                for call in chain:
                    await self.one(call)

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(self._parallel)))
        return time.perf_counter() - began
