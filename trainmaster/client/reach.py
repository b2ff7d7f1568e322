"""The way to a dispatcher, step by step: name, connection, TLS, HTTP. Sends no key.

For people who look for the step that fails; calls themselves report only that a dispatcher is unreachable.
"""

import http.client
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass, urlopen

from trainmaster.client.config import is_this_machine
from trainmaster.client.wire import trusted_certificates
from trainmaster.protocol.health import HealthCheck, clock_check, error, fine, warning

_SECONDS = 5.0
_DAY = 86_400.0
_SOON_DAYS = 21
_DATE_SECONDS = 2.0
"""The header Date has whole seconds, and servers write it anew once a second."""
_LONGEST = 4096
_LARGEST_PAGE = 8 * 1024 * 1024


class _BrokenOffError(Exception):
    """A step failed, so that the ones after it make no sense."""

    def __init__(self, check: HealthCheck) -> None:
        super().__init__(check.message)
        self.check = check


@dataclass(slots=True)
class _Way:
    parts: SplitResult
    host: str
    port: int


def examine_way(url: str) -> Iterator[HealthCheck]:
    """Yield what each step on the way to ``url`` finds; the first error is the last check."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    way = _Way(parts, host, parts.port or (443 if parts.scheme == "https" else 80))
    proxy = getproxies().get(parts.scheme)
    if proxy and not is_this_machine(url) and not proxy_bypass(host):
        shown = urlsplit(proxy)
        yield fine("proxy", f"calls go through {shown.hostname}:{shown.port}, so the way beyond it is not checked")
        return
    try:
        yield _name(way)
        with _connection(way) as plain:
            yield fine("connection", f"{way.host}, port {way.port}, takes connections")
            if parts.scheme == "https":
                with _secured(way, url, plain) as secured:
                    yield _certificate(secured)
                    yield from _http(way, secured)
            else:
                yield from _http(way, plain)
    except _BrokenOffError as broken:
        yield broken.check


def _name(way: _Way) -> HealthCheck:
    try:
        found = socket.getaddrinfo(way.host, way.port, type=socket.SOCK_STREAM)
    except OSError as problem:
        advice = "correct the address, or the name service of this machine"
        raise _BrokenOffError(error("name", f"{way.host} has no address: {problem.strerror}", advice)) from problem
    return fine("name", f"{way.host} is {', '.join(dict.fromkeys(str(one[4][0]) for one in found))}")


def _connection(way: _Way) -> socket.socket:
    try:
        return socket.create_connection((way.host, way.port), timeout=_SECONDS)
    except OSError as problem:
        said = problem.strerror or f"no answer within {_SECONDS:.0f} s"
        advice = "check that the dispatcher runs there, and firewalls on the way"
        message = f"{way.host}, port {way.port}, takes no connection: {said}"
        raise _BrokenOffError(error("connection", message, advice)) from problem


def _secured(way: _Way, url: str, plain: socket.socket) -> ssl.SSLSocket:
    try:
        return trusted_certificates(url).wrap_socket(plain, server_hostname=way.host)
    except ssl.SSLCertVerificationError as problem:
        message = f"the certificate is refused: {problem.verify_message}"
        advice = "for an authority of your own, set SSL_CERT_FILE to its certificate"
        raise _BrokenOffError(error("tls", message, advice)) from problem
    except ssl.SSLError as problem:
        message = f"port {way.port} does not speak TLS ({problem.reason})"
        raise _BrokenOffError(
            error("tls", message, "if the dispatcher has no TLS there, its address begins with http://")
        ) from problem
    except OSError as problem:
        raise _BrokenOffError(
            error("tls", f"the connection broke: {problem}", "try again; look at the proxy there")
        ) from problem


def _certificate(secured: ssl.SSLSocket) -> HealthCheck:
    ends = str((secured.getpeercert() or {}).get("notAfter", ""))
    days = (ssl.cert_time_to_seconds(ends) - time.time()) / _DAY if ends else 0.0
    message = f"{secured.version()}, the certificate is valid for {days:.0f} more days"
    return fine("tls", message) if days > _SOON_DAYS else warning("tls", message, "renew it")


def _http(way: _Way, connected: socket.socket) -> Iterator[HealthCheck]:
    call = http.client.HTTPConnection(way.host, way.port, timeout=_SECONDS)
    call.sock = connected
    began = time.time()
    try:
        call.request("GET", f"{way.parts.path}/readyz", headers={"Connection": "close"})
        answer = call.getresponse()
        body = answer.read(_LONGEST).decode(errors="replace")
    except (OSError, http.client.HTTPException) as problem:
        advice = "if the dispatcher has TLS there, its address begins with https://"
        message = f"port {way.port} does not answer HTTP: {problem or type(problem).__name__}"
        raise _BrokenOffError(error("http", message, advice)) from problem
    ended, date = time.time(), answer.getheader("Date")
    if answer.status == http.HTTPStatus.OK:
        yield fine("http", "the api answers and is ready")
    elif answer.status == http.HTTPStatus.SERVICE_UNAVAILABLE:
        yield error("http", f"the api answers and is not ready: {' '.join(body.split())[:200]}", "look at its stores")
    else:
        message = f"the answer is {answer.status} {answer.reason}: this seems to be no api of Trainmaster"
        raise _BrokenOffError(error("http", message, "correct the address; a path before /v1 belongs to it"))
    if date is not None:
        at = parsedate_to_datetime(date).timestamp()
        yield clock_check("clock", at - ended, at + _DATE_SECONDS - began, "the clocks of this machine and the api")


def read_page(url: str, path: str) -> str:
    """Return a page that needs no key, such as ``/metrics``. Raises OSError."""
    with urlopen(f"{url}{path}", timeout=_SECONDS, context=trusted_certificates(url)) as answer:  # noqa: S310 - http or https
        return str(answer.read(_LARGEST_PAGE).decode(errors="replace"))
