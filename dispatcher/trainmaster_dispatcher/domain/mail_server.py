"""The mail server of an installation, by its URL. No I/O."""

from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

_PORTS = {"smtp": 587, "smtps": 465}


class MailServer(NamedTuple):
    """A mail server. ``is_tls``: TLS from the first byte; else STARTTLS, without which nothing is sent unless ``may_be_plain``.
    ``user``: empty where the server asks for none; ``ca_file``: certificates that it is verified by, empty: those of the system.
    """

    host: str
    port: int
    is_tls: bool
    may_be_plain: bool
    user: str = ""
    password: str = ""
    ca_file: str = ""


def read_mail_server(url: str) -> MailServer:
    """Return the mail server of a URL. Raises ValueError, whose text has no part of the URL: a password may be in it."""
    wrong = (
        "must be smtp://HOST:PORT or smtps://HOST:PORT, with USER:PASSWORD@ before the host where the server needs that"
    )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(wrong) from error
    if parts.scheme not in _PORTS or not host or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(wrong)
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if not (user + password).isprintable():
        raise ValueError("must have no control characters in its user and password")
    is_tls = parts.scheme == "smtps"
    return MailServer(host, port or _PORTS[parts.scheme], is_tls, _is_this_machine(host), user, password)


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
