"""httpx for all transports: its setup, and the mapping of its values and errors to ours."""

import asyncio
import os
import socket
import ssl
import sys
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import urlsplit

import httpx

from trainmaster.client import sign_in
from trainmaster.client.config import checked_key, file_of, is_this_machine
from trainmaster.client.core import USER_AGENT, Request, Response
from trainmaster.client.errors import AddressError, ConfigurationError, CutError, SilentError, UnknownHostError
from trainmaster.protocol.errors import UnreachableError
from trainmaster.tracing.context import parse_traceparent

CONNECT_SECONDS = 5.0
LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=60.0)
"""Idle seconds after which a connection is closed, before the api closes it after 75 s."""
_PROBE_SECONDS = 2.0
_IDEMPOTENCY_KEY, _TRACEPARENT = "Idempotency-Key", "TRACEPARENT"
"""Calls with such a key create or change something; they carry the position in a trace."""
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
"""OpenSSL's reasons for an answer that is not TLS; which one depends on its version and on the first bytes."""
_TLS_ALERT = r"\x15\x03"
"""The begin of an alert of TLS, as h11 quotes it in place of a status line."""
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""Of these variables, httpx heeds the first one that is set."""
_SPEAKS_TLS = "this port speaks TLS; use {}"
_EXPIRED, _OTHER_NAME, _OTHER_ADDRESS = 10, 62, 64
"""OpenSSL's codes of verification: X509_V_ERR_CERT_HAS_EXPIRED, X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH."""


def headers(key: str) -> dict[str, str]:
    """Return the headers of each request. Raises ConfigurationError for a key that cannot be one."""
    return {"Authorization": f"Bearer {checked_key(key, 'key=')}", "User-Agent": USER_AGENT}


class TokenAuthentication(httpx.Auth):
    """The token of a person, replaced by a new one before it ends; or what a file has, as it is when a call begins."""

    def __init__(self, token: str, url: str) -> None:
        self._token = token
        self._url = url

    def sync_auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        self._token = sign_in.lasting(self._token, self._url)
        request.headers["Authorization"] = f"Bearer {self._token}"
        yield request

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        self._token = await asyncio.to_thread(sign_in.lasting, self._token, self._url)
        request.headers["Authorization"] = f"Bearer {self._token}"
        yield request


def authentication(key: str, url: str) -> httpx.Auth | None:
    """Return what authenticates calls by a token, or by what a file has; None for any other key, which the headers have."""
    return TokenAuthentication(key, url) if sign_in.is_token(key) or file_of(key) else None


def current_traceparent() -> str:
    """Return the position in a trace that this program is at: that of OpenTelemetry, if the program uses it, or ``TRACEPARENT`` of the
    environment; empty without one.
    """
    opentelemetry = sys.modules.get("opentelemetry.trace")
    if opentelemetry is not None:
        context = opentelemetry.get_current_span().get_span_context()
        if context.is_valid:
            return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    given = os.environ.get(_TRACEPARENT, "")
    return given.strip() if given and parse_traceparent(given) is not None else ""


def timeouts(seconds: float) -> httpx.Timeout:
    """Return time-outs: ``seconds`` for the answer, and at most five for the connection."""
    return httpx.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS))


def goes_through_proxies(url: str) -> bool:
    """Return whether the environment's proxies apply: not for this machine itself."""
    return not is_this_machine(url)


def trusted_certificates(url: str) -> ssl.SSLContext:
    """Return what a server is verified by. ``SSL_CERT_FILE`` and ``SSL_CERT_DIR`` hold for this machine's own names, too, which
    httpx would only heed together with its proxies. Nothing is trusted, nor loaded for 40 ms, where the server has no TLS.

    Raises ConfigurationError where these variables name nothing that can be read.
    """
    if urlsplit(url).scheme != "https":
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        return httpx.create_ssl_context()
    except OSError as error:
        given = next((f"{name}={os.environ[name]}" for name in _CERTIFICATES if os.environ.get(name)), "httpx")
        why = error.strerror or error
        raise ConfigurationError(f"{given}: the certificates to verify {url} by cannot be read: {why}") from error


def build(http: httpx.Client | httpx.AsyncClient, request: Request, seconds: float) -> httpx.Request:
    """Return ``request`` as httpx sends it, with ``seconds`` for the answer and for each piece of it."""
    headers = dict(request.headers)
    if _IDEMPOTENCY_KEY in headers and (traceparent := current_traceparent()):
        headers["traceparent"] = traceparent
    return http.build_request(
        request.method,
        request.path,
        params=httpx.QueryParams(request.query) if request.query else None,
        headers=headers,
        content=request.body,
        timeout=timeouts(seconds),
    )


def head(answer: httpx.Response) -> Response:
    """Return the response of an answer whose body is read in pieces."""
    return Response(answer.status_code, {name.lower(): value for name, value in answer.headers.items()}, b"")


def to_response(answer: httpx.Response) -> Response:
    return replace(head(answer), body=answer.content)


@contextmanager
def mapped_errors(url: str) -> Iterator[None]:
    """Raise errors of httpx as UnreachableError, with the address and the cause in a few words."""
    try:
        yield
    except httpx.ReadTimeout as error:
        raise SilentError(f"{url} does not answer in time") from error
    except httpx.TimeoutException as error:
        raise UnreachableError(f"cannot reach {url}: it does not answer in time") from error
    except (httpx.RemoteProtocolError, httpx.ReadError) as error:
        if _TLS_ALERT in str(error):
            raise AddressError(f"cannot reach {url}: {_SPEAKS_TLS.format(_other_scheme(url))}") from error
        raise CutError(f"the connection to {url} was cut") from error
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise AddressError(f"cannot reach {url}: {_root(error)}") from error
    except (httpx.HTTPError, httpx.StreamError) as error:
        raise _final(url, error) or UnreachableError(f"cannot reach {url}: {_root(error)}") from error


def _final(url: str, error: Exception) -> AddressError | None:
    """Return the error where a later try would fail in the same way; None where it may succeed."""
    for cause in _causes(error):
        if isinstance(cause, socket.gaierror) and cause.errno in (socket.EAI_NONAME, socket.EAI_NODATA):
            return UnknownHostError(f"cannot reach {url}: there is no host {urlsplit(url).hostname!r}")
        if isinstance(cause, ssl.SSLCertVerificationError):
            return AddressError(f"cannot reach {url}: {_certificate_mistake(cause)}")
        if isinstance(cause, ssl.SSLError) and cause.reason in _NOT_TLS:
            return AddressError(
                f"cannot reach {url}: this port does not speak TLS; if that is right, use {_other_scheme(url)}"
            )
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _certificate_mistake(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code == _EXPIRED:
        return "the certificate of the server has expired"
    if error.verify_code in (_OTHER_NAME, _OTHER_ADDRESS):
        return f"the certificate of the server is for another name: {error.verify_message.rstrip('.')}"
    return (
        f"the certificate of the server is not trusted ({error.verify_message});"
        " name the file with the certificate of its authority in SSL_CERT_FILE"
    )


def _other_scheme(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{'http' if scheme == 'https' else 'https'}://{rest}"


def check_plain(url: str) -> None:
    """Raise AddressError where the port of an ``http://`` address speaks TLS. Opens a connection of its own, for at most 2 s.

    Some servers only cut a connection on which TLS is missing, as one that crashes does.
    """
    parts = urlsplit(url)
    if parts.scheme != "http":
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 80), _PROBE_SECONDS) as line:
            context.wrap_socket(line).close()
    except (OSError, ValueError):
        return
    raise AddressError(f"cannot reach {url}: {_SPEAKS_TLS.format(_other_scheme(url))}")


def _root(error: BaseException) -> str:
    """Return the reason of an error in words: that of the operating system where it has one, such as ``no route to host``."""
    number = _errno_of(error)
    if number is not None:
        words = os.strerror(number)
        return words[:1].lower() + words[1:]
    text = str(error) or type(error).__name__
    return "connection refused" if "Connection refused" in text or "All connection attempts failed" in text else text


def _errno_of(error: BaseException) -> int | None:
    """Return the operating system's number of the error that led to this one; of several attempts the first one's counts."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        # Names that cannot be resolved have negative numbers.
        if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError) and (cause.errno or 0) > 0:
            return cause.errno
        cause = cause.__cause__
    return None
