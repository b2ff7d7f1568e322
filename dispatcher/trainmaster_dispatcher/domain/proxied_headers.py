"""Headers of requests and answers that are passed on between a browser and a port of a member. Pure."""

from collections.abc import Iterable, Sequence
from http.cookies import SimpleCookie

Headers = Sequence[tuple[bytes, bytes]]

COOKIE = "trainmaster-session"
"""The name of the cookie over plain HTTP."""
_SECURE_COOKIE = f"__Host-{COOKIE}"
"""The name over TLS: browsers take it from this very host alone, and send it nowhere else."""
_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"expect",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
"""RFC 9110, section 7.6.1, and what a proxy answers by itself."""
_FORWARDED = (b"forwarded", b"x-forwarded-")
_WEB_SOCKET = b"sec-websocket-"
_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
_FOREIGN_SITES = (b"same-site", b"cross-site")


def value_of(headers: Headers, name: bytes) -> bytes:
    """Return the first value of a header; empty where there is none."""
    return next((value for key, value in headers if key.lower() == name), b"")


def cookie_name(*, is_secure: bool) -> str:
    return _SECURE_COOKIE if is_secure else COOKIE


def cookies_of(headers: Headers, *, is_secure: bool) -> list[str]:
    """Return the secrets of this proxy's cookies; another host of the domain may have set some that are none."""
    name = cookie_name(is_secure=is_secure)
    found = []
    for part in _cookie_parts(headers):
        key, equals, value = part.partition("=")
        if equals and key.strip() == name:
            found.append(value.strip().strip('"'))
    return found


def set_cookie(secret: str, seconds: float, *, is_secure: bool) -> bytes:
    """Return the value of ``Set-Cookie`` for a cookie of this host alone."""
    jar: SimpleCookie = SimpleCookie()
    jar[cookie_name(is_secure=is_secure)] = secret
    (morsel,) = jar.values()
    morsel.update({"path": "/", "max-age": str(round(seconds)), "httponly": "1", "samesite": "Lax"})
    if is_secure:
        morsel["secure"] = "1"
    return morsel.OutputString().encode()


def request_headers(
    headers: Headers, *, scheme: str, client: str, for_web_socket: bool = False
) -> list[tuple[bytes, bytes]]:
    """Return the headers of a browser's request as the member gets them: without this proxy's cookies, and of this hop alone.

    ``for_web_socket``: without those of the handshake, which is made anew.
    """
    named = _named_by_connection(headers)
    passed = []
    for name, value in headers:
        key = name.lower()
        if key in _HOP_BY_HOP or key in named or key.startswith(_FORWARDED) or key == b"cookie":
            continue
        if for_web_socket and (key.startswith(_WEB_SOCKET) or key == b"host"):
            continue
        passed.append((key, value))
    if cookies := _others(headers):
        passed.append((b"cookie", cookies))
    passed.append((b"x-forwarded-proto", scheme.encode()))
    passed.append((b"x-forwarded-host", value_of(headers, b"host")))
    if client:
        passed.append((b"x-forwarded-for", client.encode()))
    return passed


def answer_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return the headers of a member's answer as the browser gets them. None sets a cookie of this proxy."""
    named = _named_by_connection(headers)
    return [
        (name, value)
        for name, value in headers
        if (key := name.lower()) not in _HOP_BY_HOP
        and key not in named
        and not (key == b"set-cookie" and value.lstrip().lower().startswith(_OWN_COOKIES))
    ]


def is_foreign(method: str, headers: Headers, *, is_web_socket: bool = False) -> bool:
    """Return whether a page of another host makes the request, as one of another session could with the cookie of this one.

    Links are followed from anywhere: they only show a page.
    """
    origin, host = value_of(headers, b"origin").lower(), value_of(headers, b"host").lower()
    if origin and origin.partition(b"://")[2] != host and (is_web_socket or method not in _SAFE):
        return True
    is_other_site = value_of(headers, b"sec-fetch-site").lower() in _FOREIGN_SITES
    is_link = value_of(headers, b"sec-fetch-mode").lower() == b"navigate" and method in _SAFE
    return is_other_site and not is_link


_OWN_COOKIES = tuple(f"{cookie_name(is_secure=secure)}=".lower().encode() for secure in (False, True))


def _named_by_connection(headers: Headers) -> set[bytes]:
    """Return the headers that ``Connection`` says are of this hop alone."""
    return {
        part.strip().lower() for key, value in headers if key.lower() == b"connection" for part in value.split(b",")
    }


def _cookie_parts(headers: Headers) -> Iterable[str]:
    for key, value in headers:
        if key.lower() == b"cookie":
            yield from value.decode("latin-1").split(";")


def _others(headers: Headers) -> bytes:
    """Return the cookies that are not this proxy's, as one header."""
    kept = [part.strip() for part in _cookie_parts(headers)]
    return "; ".join(part for part in kept if not part.lower().encode("latin-1").startswith(_OWN_COOKIES)).encode(
        "latin-1"
    )
