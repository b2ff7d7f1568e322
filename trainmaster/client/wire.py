"""httpx for all transports: its setup, and the mapping of its values and errors to ours."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import urlsplit

import httpx

from trainmaster.client.config import is_this_machine
from trainmaster.client.core import USER_AGENT, Request, Response
from trainmaster.client.errors import AddressError, SilentError
from trainmaster.protocol.errors import UnreachableError

CONNECT_SECONDS = 5.0
LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=60.0)
"""Idle seconds after which a connection is closed, before the api closes it after 75 s."""


def headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", "User-Agent": USER_AGENT}


def timeouts(seconds: float) -> httpx.Timeout:
    """Return time-outs: ``seconds`` for the answer, and at most five for the connection."""
    return httpx.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS))


def goes_through_proxies(url: str) -> bool:
    """Return whether the environment's proxies apply: not for this machine itself."""
    return not is_this_machine(url)


def trusted_certificates(url: str) -> ssl.SSLContext:
    """Return what a server is verified by. ``SSL_CERT_FILE`` and ``SSL_CERT_DIR`` hold for this machine's own names, too, which
    httpx would only heed together with its proxies. Nothing is trusted, nor loaded for 40 ms, where the server has no TLS."""
    return httpx.create_ssl_context() if urlsplit(url).scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def build(http: httpx.Client | httpx.AsyncClient, request: Request, seconds: float) -> httpx.Request:
    """Return ``request`` as httpx sends it, with ``seconds`` for the answer and for each piece of it."""
    return http.build_request(
        request.method,
        request.path,
        params=httpx.QueryParams(request.query) if request.query else None,
        headers=dict(request.headers),
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
        raise UnreachableError(f"the connection to {url} was cut") from error
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise AddressError(f"cannot reach {url}: {_root(error)}") from error
    except (httpx.HTTPError, httpx.StreamError) as error:
        raise UnreachableError(f"cannot reach {url}: {_root(error)}") from error


def _root(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return "connection refused" if "Connection refused" in text or "All connection attempts failed" in text else text
