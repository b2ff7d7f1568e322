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
from typing import Any, Final

import httpx
import orjson
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from trainmaster.protocol.errors import Code, ProblemError, TrainmasterError
from trainmaster_dispatcher.domain.id_claims import Issuer, is_protected

log = logging.getLogger(__name__)

ALGORITHMS: Final = (
    *(f"{family}{bits}" for family in ("RS", "ES", "PS") for bits in (256, 384, 512)),
    "EdDSA",
)
"""Signatures that count. All are of key pairs: with a secret that both sides have (HS256), or without a signature (none), whoever
knows the public key could make tokens."""
_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
_LEAST_RSA_BITS = 2048
_PAUSE_SECONDS = 5.0
"""The least time between two reads, however many tokens with unknown keys are shown: these wait for the next one together."""
_KEPT_SECONDS = 3600.0
"""The age of keys at which they are read again, while calls go on with them."""
_READ_SECONDS = 5.0
"""The time-out of a whole read."""
_MOST_BYTES = 1024 * 1024
_MOST_KEYS = 100
_DISCOVERY = "/.well-known/openid-configuration"


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
        self._issuer = issuer
        self._clock = clock
        self._http = httpx.AsyncClient(timeout=_READ_SECONDS, verify=_certificates(issuer), follow_redirects=False)
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
            if self._clock() - self._read_at >= _KEPT_SECONDS:
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
                log.warning("a key of %s cannot be read: %s", self._issuer.url, error)
                self._parsed[place] = None
            else:
                is_weak = self._keys[index].values["kty"] == "RSA" and key.key.key_size < _LEAST_RSA_BITS
                self._parsed[place] = None if is_weak else key
        return self._parsed[place]

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
        url = self._issuer.url
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
        """Return the published keys. Raises _ReadError."""
        url = self._issuer.url
        found = await self._get(url.rstrip("/") + _DISCOVERY)
        if found.get("issuer") != url:
            raise _ReadError(
                f"it says that it is {found.get('issuer')!r}, which TRAINMASTER_OIDC_ISSUER has to be exactly"
            )
        address = found.get("jwks_uri")
        if not isinstance(address, str) or not is_protected(address):
            raise _ReadError(f"its jwks_uri is no address of https://, {address!r}")
        keys = (await self._get(address)).get("keys")
        if not isinstance(keys, list):
            raise _ReadError(f"{address} has no list of keys")
        return tuple(key for one in keys[:_MOST_KEYS] if (key := _read_key(one)) is not None)

    async def _get(self, url: str) -> dict[str, Any]:
        body = bytearray()
        async with self._http.stream("GET", url, headers={"Accept": "application/json"}) as answer:
            if answer.status_code != httpx.codes.OK:
                raise _ReadError(f"{url} answers {answer.status_code}")
            async for piece in answer.aiter_bytes():
                body += piece
                if len(body) > _MOST_BYTES:
                    raise _ReadError(f"{url} has more than {_MOST_BYTES} bytes")
        try:
            value = orjson.loads(bytes(body))
        except orjson.JSONDecodeError as error:
            raise _ReadError(f"{url} is no JSON: {error}") from error
        if not isinstance(value, dict):
            raise _ReadError(f"{url} is no object of JSON")
        return value


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
            f"TRAINMASTER_OIDC_CA_FILE: the certificates in {issuer.ca_file} cannot be read: {error.strerror or error}"
        ) from error
