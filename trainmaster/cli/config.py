"""Which dispatcher is meant, and with which API key: from flags, else the environment, else a file."""

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import typer

from trainmaster.cli.errors import UsageError

if TYPE_CHECKING:
    from trainmaster.client.http import Client
    from trainmaster.protocol.errors import TrainmasterError


@dataclass(frozen=True, slots=True)
class Flags:
    """What was given with ``--url`` and ``--key`` or in the environment."""

    url: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """A dispatcher's address and the key to use there."""

    url: str
    key: str


def config_path() -> Path:
    given = os.environ.get("TRAINMASTER_CONFIG")
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(given).expanduser() if given else Path(base).expanduser() / "trainmaster" / "config.yaml"


def load(flags: Flags) -> Context:
    """The context in use. Raises UsageError that says what is missing.

    The file's key goes to the file's own address only, so that another ``--url`` never gets to see it.
    """
    path = config_path()
    filed = {} if flags.url and flags.key else _read(path)
    url = _checked_url(flags.url or filed.get("url") or "")
    key = flags.key
    if not key and url == filed.get("url", "").rstrip("/"):
        key = filed.get("key")
    if not key:
        kept = f"; the key in {path} is for {filed['url']}" if filed.get("key") and filed.get("url") else ""
        raise UsageError(f"no API key for {url}: give --key or TRAINMASTER_API_KEY{kept}")
    return Context(url, key)


def _checked_url(url: str) -> str:
    if not url:
        raise UsageError(
            "no dispatcher is named: give --url or TRAINMASTER_URL, "
            f"put 'url' and 'key' into {config_path()}, or start one here with: trainmaster up"
        )
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is not the address of a dispatcher; it looks like https://trainmaster.example.org")
    return url.rstrip("/")


def _read(path: Path) -> dict[str, str]:
    import yaml

    try:
        value: Any = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    if value is None:
        return {}
    if not isinstance(value, dict) or any(not isinstance(value.get(name, ""), str) for name in ("url", "key")):
        raise UsageError(f"{path} has to be a mapping with the texts 'url' and 'key'")
    return {name: value[name] for name in ("url", "key") if name in value}


def write_context(url: str, key: str) -> None:
    """Make this dispatcher the one that commands use. The file is for its owner's eyes only, and never half written."""
    import yaml

    path = config_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".config-")  # made with mode 0600
    try:
        with os.fdopen(handle, "w") as file:
            yaml.safe_dump({"url": url, "key": key}, file, sort_keys=False)
        Path(draft).replace(path)
    except OSError:
        with suppress(OSError):
            Path(draft).unlink()
        raise


def connect(ctx: typer.Context) -> "Client":
    """A client for the context in use. Raises UsageError."""
    return open_client(load(ctx.obj if isinstance(ctx.obj, Flags) else Flags()))


def open_client(context: Context) -> "Client":
    from trainmaster.client.http import Client

    return Client(context.url, context.key, on_retry=_tell_retry)


def _tell_retry(error: "TrainmasterError", seconds: float) -> None:
    from trainmaster.cli.output import note

    note(f"{error}; trying again in {seconds:.1f} s")
