"""Posting to addresses that tenants chose. With the client's and the api's ``leader.py``, the only place with httpx.

The host's name is looked up here, every address behind it is checked, and the connection goes to one of these
addresses, with the name in the ``Host`` header and in TLS. No redirects, no cookies, no proxies, nothing from the
environment.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from types import TracebackType
from typing import Self

import httpx

from trainmaster import __version__
from trainmaster_dispatcher.domain.webhooks import AddressPolicy, RefusedAddressError, Target
from trainmaster_dispatcher.services.webhooks import DeliveryError

Address = IPv4Address | IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]

_MOST_ANSWER_BYTES = 64 * 1024
_MOST_TRIED = 3
_LOOKED_UP_SECONDS = 20.0
_LOOKING = ThreadPoolExecutor(64, "look-up")
"""Names that never get an answer occupy a thread each for the resolver's own time; the default pool has few threads."""


async def look_up(host: str, port: int) -> list[Address]:
    """Return the addresses of a host, in the system's order of preference. Raises OSError."""
    ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_LOOKING, ask)
    return list(dict.fromkeys(ip_address(str(address[0])) for *_, address in found))


class Poster:
    """Posts messages; reuses connections. Implements ``services.webhooks.Post``.

    ``timeout``: seconds for the look-up, to connect, and between two pieces of an answer. ``whole``: seconds for all of
    a post.
    """

    def __init__(
        self,
        policy: AddressPolicy,
        timeout: float = 5.0,
        whole: float = 15.0,
        *,
        at_once: int = 32,
        resolve: Resolve = look_up,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._policy = policy
        self._timeout = timeout
        self._whole = whole
        self._resolve = resolve
        self._tls = tls or ssl.create_default_context()
        self._limits = httpx.Limits(max_connections=None, max_keepalive_connections=at_once, keepalive_expiry=5)
        self._addresses: dict[tuple[str, int], tuple[float, asyncio.Task[list[Address]]]] = {}
        self._transports: dict[tuple[str, str, int], httpx.AsyncHTTPTransport] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        looking, transports = [task for _, task in self._addresses.values()], list(self._transports.values())
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, *(one.aclose() for one in transports), return_exceptions=True)

    async def __call__(self, target: Target, headers: Mapping[str, str], body: bytes) -> None:
        """Post a message. Raises DeliveryError unless the answer is a success (2xx)."""
        try:
            async with asyncio.timeout(self._whole):
                status = await self._post(target, headers, body)
        except TimeoutError as error:
            raise DeliveryError(f"{target.host} took longer than {self._whole:g} s") from error
        except RefusedAddressError as error:
            raise _nowhere(target) from error
        except OSError as error:
            raise _nowhere(target) from error
        except httpx.TimeoutException as error:
            raise DeliveryError(f"{target.host} did not answer within {self._timeout:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise DeliveryError(f"{target.host}: {error or type(error).__name__}") from error
        if 300 <= status < 400:
            raise DeliveryError(f"{target.host} answered {status}; redirects are not followed")
        if not 200 <= status < 300:
            raise DeliveryError(f"{target.host} answered {status}")

    async def _post(self, target: Target, headers: Mapping[str, str], body: bytes) -> int:
        *others, last = (await self._checked(target))[:_MOST_TRIED]
        for address in others:
            with suppress(httpx.ConnectError, httpx.ConnectTimeout):
                return await self._post_to(address, target, headers, body)
        return await self._post_to(last, target, headers, body)

    async def _checked(self, target: Target) -> list[Address]:
        """Return the addresses of a host, all of them allowed; cached for a while, and looked up once for concurrent callers."""
        key, now = (target.host, target.port), asyncio.get_running_loop().time()
        began, looking = self._addresses.get(key, (-_LOOKED_UP_SECONDS, None))
        if looking is None or now - began >= _LOOKED_UP_SECONDS or (looking.done() and looking.exception() is not None):
            looking = asyncio.create_task(self._look_up(*key))
            self._addresses[key] = (now, looking)
        return await asyncio.shield(looking)

    async def _look_up(self, host: str, port: int) -> list[Address]:
        try:
            async with asyncio.timeout(self._timeout):
                found = list(await self._resolve(host, port))
        except TimeoutError as error:
            raise OSError(f"no answer within {self._timeout:g} s") from error
        if not found:
            raise OSError("it has no addresses")
        for address in found:
            self._policy.check(address)
        return found

    async def _post_to(self, address: Address, target: Target, headers: Mapping[str, str], body: bytes) -> int:
        url = httpx.URL(scheme=target.scheme, host=str(address), port=target.port, raw_path=target.path.encode())
        wanted = {
            "Host": target.host_header,
            "User-Agent": f"trainmaster/{__version__}",
            "Accept": "*/*",
            **headers,
        }
        extensions = {"timeout": httpx.Timeout(self._timeout).as_dict(), "sni_hostname": target.host}
        request = httpx.Request("POST", url, headers=wanted, content=body, extensions=extensions)
        response = await self._transport(target).handle_async_request(request)
        try:
            # The status is enough: an answer whose body breaks off does not turn an accepted message into a failure.
            with suppress(httpx.HTTPError):
                read = 0
                async for piece in response.aiter_raw():
                    read += len(piece)
                    if read > _MOST_ANSWER_BYTES:
                        break
        finally:
            await response.aclose()
        return response.status_code

    def _transport(self, target: Target) -> httpx.AsyncHTTPTransport:
        """Return connections for one name only: connections of another name were made under that name's certificate."""
        key = (target.scheme, target.host, target.port)
        if key not in self._transports:
            self._transports[key] = httpx.AsyncHTTPTransport(verify=self._tls, trust_env=False, limits=self._limits)
        return self._transports[key]


def _nowhere(target: Target) -> DeliveryError:
    """Return the same error for a name that does not exist and for one of an address that is not allowed.

    A submitter reads this error, and must not learn which names exist inside the network, nor what they resolve to.
    """
    return DeliveryError(f"{target.host} has no address that messages may go to")
