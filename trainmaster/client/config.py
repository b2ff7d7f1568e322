"""The dispatcher's address and the API key: given ones, else the environment, else a file.

Imports little, because the command line reads it at each start.
"""

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from trainmaster.client.errors import ConfigurationError

URL_VARIABLE = "TRAINMASTER_URL"
KEY_VARIABLE = "TRAINMASTER_API_KEY"
PLAIN_HTTP_VARIABLE = "TRAINMASTER_PLAIN_HTTP"


@dataclass(frozen=True, slots=True)
class Context:
    """A dispatcher's address and its key."""

    url: str
    key: str


def config_path() -> Path:
    given = os.environ.get("TRAINMASTER_CONFIG")
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(given).expanduser() if given else Path(base).expanduser() / "trainmaster" / "config.yaml"


def load(url: str | None = None, key: str | None = None, *, given_as: tuple[str, str] = ("url=", "key=")) -> Context:
    """Return the context in use. Raises ConfigurationError; ``given_as`` names the two arguments in its message.

    The file's key is sent only to the file's own address, so that another address never sees it.
    """
    path = config_path()
    url, key = url or os.environ.get(URL_VARIABLE), key or os.environ.get(KEY_VARIABLE)
    filed = {} if url and key else _read(path)
    url = _checked_url(url or filed.get("url") or "", given_as[0])
    if not key and url == filed.get("url", "").rstrip("/"):
        key = filed.get("key")
    if not key:
        kept = f"; the key in {path} is for {filed['url']}" if filed.get("key") and filed.get("url") else ""
        raise _wrong(f"no API key for {url}: give {given_as[1]} or {KEY_VARIABLE}{kept}")
    return Context(url, key)


def _checked_url(url: str, given_as: str) -> str:
    if not url:
        raise _wrong(
            f"no dispatcher is configured: give {given_as} or {URL_VARIABLE}, "
            f"put 'url' and 'key' into {config_path()}, or start one here with: trainmaster up"
        )
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _wrong(f"{url!r} is not the address of a dispatcher; it looks like https://trainmaster.example.org")
    return url.rstrip("/")


def plain_http_warning(url: str) -> str:
    """Return what to say before an API key goes to ``url``; empty where it is encrypted, or does not leave this machine, or that is
    wanted."""
    parts = urlsplit(url)
    if parts.scheme != "http" or is_this_machine(url) or os.environ.get(PLAIN_HTTP_VARIABLE):
        return ""
    return (
        f"the API key goes to {parts.hostname} over plain HTTP, where others on the network may read it; "
        f"use https://, or set {PLAIN_HTTP_VARIABLE}=1 if that network is your own"
    )


def is_this_machine(url: str) -> bool:
    """Return whether a URL's host is a name or an address of this machine itself."""
    from ipaddress import ip_address

    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read(path: Path) -> dict[str, str]:
    import yaml

    try:
        value: Any = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _wrong(f"cannot read {path}: {error}") from error
    if value is None:
        return {}
    if not isinstance(value, dict) or any(not isinstance(value.get(name, ""), str) for name in ("url", "key")):
        raise _wrong(f"{path} has to be a mapping with the texts 'url' and 'key'")
    return {name: value[name] for name in ("url", "key") if name in value}


def _wrong(text: str) -> "ConfigurationError":
    from trainmaster.client.errors import ConfigurationError

    return ConfigurationError(text)


def write_context(url: str, key: str) -> None:
    """Make this dispatcher the default of commands and scripts. The file is private to its owner and written atomically."""
    import yaml

    path = config_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".config-")  # created with mode 0600
    try:
        with os.fdopen(handle, "w") as file:
            yaml.safe_dump({"url": url, "key": key}, file, sort_keys=False)
        Path(draft).replace(path)
    except OSError:
        with suppress(OSError):
            Path(draft).unlink()
        raise
