"""The address of a dispatcher as people give it: one check for the command line, the SDK and agents.

Imports little, because the command line reads it at each start.
"""

import re
from urllib.parse import urlsplit

_LOOKS_LIKE = "it looks like https://trainmaster.example.org"
_CREDENTIALS = re.compile(r"//[^/?#]*@")
_API = "/v1"
"""Path of the API, which people copy from its reference; calls add it themselves."""


def checked_address(text: str) -> str:
    """Return an address without ``/`` or ``/v1`` at its end. Raises ConfigurationError, which does not repeat a password."""
    from trainmaster.client.errors import ConfigurationError

    shown = _CREDENTIALS.sub("//...@", text)
    if shown != text:
        raise ConfigurationError(f"{shown!r} has a user or a password in it; the API key is given by itself")
    try:
        parts = urlsplit(text)
        host = parts.hostname
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https") or any(sign.isspace() for sign in text):
        raise ConfigurationError(f"{shown!r} is not the address of a dispatcher; {_LOOKS_LIKE}")
    if parts.query or parts.fragment:
        raise ConfigurationError(
            f"{shown!r} has a query or a fragment, as no address of a dispatcher has; {_LOOKS_LIKE}"
        )
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ConfigurationError(f"{shown!r} has a port that is none; a port is a number from 1 to 65535")
    return text.rstrip("/").removesuffix(_API).rstrip("/")
