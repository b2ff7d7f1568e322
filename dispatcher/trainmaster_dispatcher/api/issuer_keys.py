"""The keys that an OpenID Connect issuer signs with, as it publishes them (RFC 7517). With the client's, the worker's and the
leader's, the only place with httpx.

One read serves all callers. While an issuer does not answer, the keys that were read before go on counting, and only tokens that are
signed with other ones wait for the read.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
import orjson
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from trainmaster.protocol.errors import Code, ProblemError, TrainmasterError
from trainmaster_dispatcher.domain.id_claims import Issuer, is_protected

log = logging.getLogger(__name__)

_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
_LEAST_RSA_BITS = 2048
_PAUSE_SECONDS = 5.0
"""The least time between two reads, however many tokens with unknown keys are shown: these wait for the next one together."""
_KEPT_SECONDS = 3600.0
"""The age of keys at which they are read again, while calls go on with them."""
_KEPT_OF_FILE_SECONDS = 30.0
"""The same for keys of a file, which are read at no cost for anybody else."""
_READ_SECONDS = 5.0
"""The time-out of a whole read."""
_MOST_BYTES = 1024 * 1024
_MOST_KEYS = 100
_DISCOVERY = "/.well-known/openid-configuration"
_ACCEPTED: Final = "application/json, application/jwk-set+json"
"""The second one is of RFC 7517: a Kubernetes API server answers 406 with its keys where it alone is missing."""
_BY_FORM: Final = "client_secret_post"
_BY_HEADER: Final = "client_secret_basic"


class UnreadableCertificatesError(TrainmasterError):
    """The file with the certificates to verify an issuer by cannot be read."""


class _ReadError(Exception):
    """An answer of an issuer that has no keys."""


@dataclass(frozen=True, slots=True)
class _PublishedKey:
    """A published key: its id, the algorithm that it is for, if it says so, and its values."""

    kid: str | None
    algorithm: str | None
    values: Mapping[str, Any]

    def fits(self, kid: str | None, algorithm: str) -> bool:
        """Return whether a token with these headers may be signed with the key."""
        if kid is not None and self.kid is not None and kid != self.kid:
            return False
        if self.algorithm is not None and self.algorithm != algorithm:
            return False
        kty, curve = self.values.get("kty"), self.values.get("crv")
        if algorithm == "EdDSA":
            return kty == "OKP" and curve in ("Ed25519", "Ed448")
        if algorithm in _CURVES:
            return kty == "EC" and curve == _CURVES[algorithm]
        return kty == "RSA"


class IssuerKeys:
    """The keys of one issuer. ``version`` rises when they change."""

    def __init__(self, issuer: Issuer, clock: Callable[[], float] = time.monotonic) -> None:
        """Raise UnreadableCertificatesError."""
        self.issuer = issuer
        self._clock = clock
        self._kept_seconds = _KEPT_OF_FILE_SECONDS if issuer.jwks_file else _KEPT_SECONDS
        self._http = httpx.AsyncClient(timeout=_READ_SECONDS, verify=_certificates(issuer), follow_redirects=False)
        self._discovery: Mapping[str, Any] | None = None
        self._keys: tuple[_PublishedKey, ...] = ()
        self._parsed: dict[tuple[int, str], PyJWK | None] = {}
        self._read_at = self._tried_at = -inf
        self._failure = ""
        self._reading: asyncio.Task[None] | None = None
        self.version = 0

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        await self._http.aclose()

    async def find(self, kid: str | None, algorithm: str, *, may_read: bool = True) -> list[PyJWK]:
        """Return the keys with which a token with these headers may be signed; none if the issuer publishes no such key.

        ``may_read`` False: among those that were read before. Raises ProblemError ISSUER_AWAY if the issuer does not answer.
        """
        found = self._fitting(kid, algorithm)
        if found:
            if self._clock() - self._read_at >= self._kept_seconds:
                self._begin()
            return found
        if may_read and not self._failed_lately():
            await asyncio.shield(self._begin())
            found = self._fitting(kid, algorithm)
        if not found and self._failure:
            raise ProblemError(
                Code.ISSUER_AWAY,
                f"the token is signed with a key that is not known yet, and {self._failure}; try again in a moment",
                retry_after=_PAUSE_SECONDS,
            )
        return found

    def _fitting(self, kid: str | None, algorithm: str) -> list[PyJWK]:
        found = [self._parse(index, algorithm) for index, key in enumerate(self._keys) if key.fits(kid, algorithm)]
        return [key for key in found if key is not None]

    def _parse(self, index: int, algorithm: str) -> PyJWK | None:
        """Return a key for an algorithm; None where it is too weak or cannot be read."""
        place = index, algorithm
        if place not in self._parsed:
            try:
                key = PyJWK(dict(self._keys[index].values), algorithm=algorithm)
            except (PyJWTError, ValueError, TypeError) as error:
                log.warning("a key of %s cannot be read: %s", self.issuer.url, error)
                self._parsed[place] = None
            else:
                is_weak = self._keys[index].values["kty"] == "RSA" and key.key.key_size < _LEAST_RSA_BITS
                self._parsed[place] = None if is_weak else key
        return self._parsed[place]

    async def endpoint(self, name: str) -> str:
        """Return an address of the issuer, by its name in the discovery document. Raises ProblemError ISSUER_AWAY."""
        discovery = await self.discovery()
        address = discovery.get(name)
        if not isinstance(address, str) or not is_protected(address):
            raise self._away(f"the issuer {self.issuer.url} has no {name} of https://, {address!r}")
        return address

    async def discovery(self) -> Mapping[str, Any]:
        """Return the discovery document of the issuer. Raises ProblemError ISSUER_AWAY."""
        if self._discovery is None and not self._failed_lately():
            await asyncio.shield(self._begin())
        if self._discovery is None:
            raise self._away(self._failure or f"the issuer {self.issuer.url} has no discovery document")
        return self._discovery

    async def ask_for_tokens(self, form: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        """Send a form to the token endpoint, as the client of browsers; return status and body. Raises ProblemError ISSUER_AWAY."""
        url, client, secret = (
            await self.endpoint("token_endpoint"),
            self.issuer.browser_client,
            self.issuer.browser_secret,
        )
        methods = (await self.discovery()).get("token_endpoint_auth_methods_supported") or [_BY_HEADER]
        by_header = bool(secret) and not (_BY_HEADER not in methods and _BY_FORM in methods)
        auth = httpx.BasicAuth(quote(client, safe=""), quote(secret, safe="")) if by_header else None
        named = {} if by_header else {"client_id": client} | ({"client_secret": secret} if secret else {})
        try:
            async with asyncio.timeout(_READ_SECONDS):
                request = self._http.build_request(
                    "POST", url, data={**form, **named}, headers={"Accept": "application/json"}
                )
                answer = await self._http.send(request, auth=auth, stream=True)
                try:
                    return answer.status_code, await _body_of(answer, url)
                finally:
                    await answer.aclose()
        except TimeoutError as error:
            raise self._away(f"the issuer {self.issuer.url} does not answer in time") from error
        except httpx.HTTPError as error:
            raise self._away(
                f"the issuer {self.issuer.url} cannot be reached: {error or type(error).__name__}"
            ) from error
        except _ReadError as error:
            raise self._away(f"the issuer {self.issuer.url} gives no token: {error}") from error

    def _away(self, why: str) -> ProblemError:
        return ProblemError(Code.ISSUER_AWAY, f"{why}; try again in a moment", retry_after=_PAUSE_SECONDS)

    def begin(self) -> None:
        """Begin to read the keys, so that the first token need not wait for them."""
        self._begin()

    def _begin(self) -> "asyncio.Task[None]":
        """Return the read that is under way or waits for its time, or a new one."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="issuer-keys")
        return self._reading

    def _failed_lately(self) -> bool:
        return bool(self._failure) and self._clock() - self._tried_at < _PAUSE_SECONDS

    async def _read(self) -> None:
        """Read the keys, some seconds after the last read at the earliest. What goes wrong is logged and noted in ``_failure``."""
        await asyncio.sleep(max(0.0, self._tried_at + _PAUSE_SECONDS - self._clock()))
        self._tried_at = self._clock()
        url = self.issuer.url
        try:
            async with asyncio.timeout(_READ_SECONDS):
                keys = await self._published()
        except TimeoutError:
            self._failure = f"the issuer {url} does not answer in time"
        except httpx.HTTPError as error:
            self._failure = f"the issuer {url} cannot be reached: {error or type(error).__name__}"
        except _ReadError as error:
            self._failure = f"the issuer {url} has published no keys: {error}"
        else:
            self._failure, self._read_at = "", self._clock()
            if keys != self._keys:
                self._keys, self._parsed = keys, {}
                self.version += 1
            return
        log.warning("%s", self._failure)

    async def _published(self) -> tuple[_PublishedKey, ...]:
        """Return the published keys, of the issuer, of a file or of the settings. Raises _ReadError."""
        if self.issuer.jwks or self.issuer.jwks_file:
            return _keys_in(await self._given(), self.issuer.jwks_file or "jwks")
        url = self.issuer.url
        found = await self._get(url.rstrip("/") + _DISCOVERY)
        if found.get("issuer") != url:
            raise _ReadError(
                f"it says that it is {found.get('issuer')!r}, which its address in the settings has to be exactly"
            )
        address = found.get("jwks_uri")
        if not isinstance(address, str) or not is_protected(address):
            raise _ReadError(f"its jwks_uri is no address of https://, {address!r}")
        self._discovery = found
        return _keys_in(await self._get(address), address)

    async def _given(self) -> dict[str, Any]:
        """Return the keys of the settings or of their file. Raises _ReadError."""
        if self.issuer.jwks:
            return _object_of(self.issuer.jwks.encode(), "jwks")
        file = self.issuer.jwks_file
        try:
            data = await asyncio.to_thread(_read_file, file)
        except OSError as error:
            raise _ReadError(f"{file} cannot be read: {error.strerror or error}") from error
        return _object_of(data, file)

    async def _get(self, url: str) -> dict[str, Any]:
        async with self._http.stream("GET", url, headers={"Accept": _ACCEPTED}) as answer:
            if answer.status_code != httpx.codes.OK:
                raise _ReadError(f"{url} answers {answer.status_code}")
            return await _body_of(answer, url)


async def _body_of(answer: httpx.Response, url: str) -> dict[str, Any]:
    """Return the object of JSON that an answer has. Raises _ReadError."""
    body = bytearray()
    async for piece in answer.aiter_bytes():
        body += piece
        if len(body) > _MOST_BYTES:
            raise _ReadError(f"{url} has more than {_MOST_BYTES} bytes")
    return _object_of(bytes(body), url)


def _read_file(file: str) -> bytes:
    with Path(file).open("rb") as opened:
        return opened.read(_MOST_BYTES)


def _object_of(data: bytes, origin: str) -> dict[str, Any]:
    """Return the object of JSON that ``origin`` has. Raises _ReadError."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise _ReadError(f"{origin} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise _ReadError(f"{origin} is no object of JSON")
    return value


def _keys_in(value: Mapping[str, Any], origin: str) -> tuple[_PublishedKey, ...]:
    """Return the keys for signatures of a set of keys. Raises _ReadError."""
    keys = value.get("keys")
    if not isinstance(keys, list):
        raise _ReadError(f"{origin} has no list of keys")
    return tuple(key for one in keys[:_MOST_KEYS] if (key := _read_key(one)) is not None)


def _read_key(value: Any) -> _PublishedKey | None:
    """Return a published key for signatures; None for any other one."""
    if not isinstance(value, dict) or value.get("use") not in (None, "sig"):
        return None
    kid, algorithm = value.get("kid"), value.get("alg")
    if not isinstance(kid, str | None) or not isinstance(algorithm, str | None):
        return None
    return _PublishedKey(kid, algorithm, value)


def _certificates(issuer: Issuer) -> ssl.SSLContext:
    if not issuer.url.startswith("https:"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not issuer.ca_file:
        return httpx.create_ssl_context()
    try:
        return ssl.create_default_context(cafile=issuer.ca_file)
    except OSError as error:
        raise UnreadableCertificatesError(
            f"the certificates in {issuer.ca_file}, to verify the issuer {issuer.url} by, cannot be read:"
            f" {error.strerror or error}"
        ) from error
