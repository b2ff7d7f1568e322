"""The dispatcher's address and the API key: given ones, else the environment, else a context of a file.

Imports little, because the command line reads it at each start.
"""

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from trainmaster.client.address import checked_address
from trainmaster.protocol.suggestions import suggestion

if TYPE_CHECKING:
    from trainmaster.client.errors import ConfigurationError

URL_VARIABLE = "TRAINMASTER_URL"
KEY_VARIABLE = "TRAINMASTER_API_KEY"
TOKEN_FILE_VARIABLE = "TRAINMASTER_TOKEN_FILE"  # noqa: S105 - a name
CONTEXT_VARIABLE = "TRAINMASTER_CONTEXT"
CONFIG_VARIABLE = "TRAINMASTER_CONFIG"
DEFAULT = "default"
"""Name of the context that is not given one."""
PLAIN_HTTP_VARIABLE = "TRAINMASTER_PLAIN_HTTP"


@dataclass(frozen=True, slots=True)
class Context:
    """A dispatcher's address and its key. ``kubernetes``: its address for kubectl, where that is another one; ``authority``: the file
    with the certificate of its authority, where this machine does not trust it anyway. ``issuer``, ``client_id``, ``client_secret``,
    ``id_token``, ``refresh_token``: of a person who has signed in through OpenID Connect in place of a key.
    """

    url: str
    key: str
    kubernetes: str = ""
    authority: str = ""
    issuer: str = ""
    client_id: str = ""
    client_secret: str = ""
    id_token: str = ""
    refresh_token: str = ""
    token_file: str = ""
    """The file that the credential is from, and is read of again when it changes. In no configuration file."""

    @property
    def credential(self) -> str:
        """The key, or the token that was stored last; empty where there is neither."""
        return self.key or self.id_token


_FIELDS = (
    *("url", "key", "kubernetes", "authority"),
    *("issuer", "client_id", "client_secret", "id_token", "refresh_token"),
)
"""The fields of a context, in a file too."""


def config_path() -> Path:
    given = os.environ.get(CONFIG_VARIABLE)
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(given).expanduser() if given else Path(base).expanduser() / "trainmaster" / "config.yaml"


@dataclass(frozen=True, slots=True)
class Contexts:
    """Content of the configuration file: dispatchers by name, with the key of each, and the name of the one in use."""

    by_name: Mapping[str, Context] = field(default_factory=dict)
    current: str = ""

    def named(self, name: str) -> Context:
        """Return a context. Raises ConfigurationError with the nearest name."""
        if name not in self.by_name:
            there_are = f"; there are: {', '.join(self.by_name)}" if self.by_name else ""
            raise _wrong(f"there is no context {name!r} in {config_path()}{suggestion(name, self.by_name)}{there_are}")
        return self.by_name[name]

    def at(self, url: str) -> str:
        """Return the name of a context with this address, the one in use before others; empty where there is none."""
        names = [self.current, *self.by_name]
        return next((name for name in names if name in self.by_name and _is_same(self.by_name[name].url, url)), "")

    def having(self, name: str, context: Context) -> "Contexts":
        """Return these contexts and another one, which is in use."""
        return Contexts({**self.by_name, name: context}, name)

    def without(self, name: str) -> "Contexts":
        """Return these contexts without one of them."""
        left = {key: context for key, context in self.by_name.items() if key != name}
        return Contexts(left, "" if self.current == name else self.current)


def load(
    url: str | None = None,
    key: str | None = None,
    context: str | None = None,
    *,
    given_as: tuple[str, str] = ("url=", "key="),
) -> Context:
    """Return the context in use. Raises ConfigurationError; ``given_as`` names the two first arguments in its message.

    A given context comes before the environment's address and key, these before the environment's context, and that before the one in
    use; with an address and no key, a context chooses among the keys for that address. A key of the file is sent only to its own
    address, so that another address never sees it. An empty key is a mistake, never the same as none: a script whose variable is not
    set would act with the rights of the file's key. So is an empty address or context: it would act at another dispatcher.
    """
    given = key
    if key is not None:
        key = _given_key(key, given_as[1])
    elif context is None and (found := os.environ.get(KEY_VARIABLE)) is not None:
        key = _given_key(found, KEY_VARIABLE)
    token_file = _token_file() if given is None and context is None else ""
    if token_file:
        if key:
            raise _wrong(
                f"both {KEY_VARIABLE} and {TOKEN_FILE_VARIABLE} are set, and only one can count; unset the other one"
            )
        key = read_token_file(token_file)
    url, context = _stated(url, given_as[0]), _stated(context, "the context")
    if context is None:
        url = url or _stated(os.environ.get(URL_VARIABLE), URL_VARIABLE)
        if url and key:
            return Context(_checked_url(url, given_as[0]), key, token_file=token_file)
        # With an address too, which the contexts of several keys may share.
        context = _stated(os.environ.get(CONTEXT_VARIABLE), CONTEXT_VARIABLE)
    contexts = read_contexts()
    named = context or (contexts.current if not url else "")
    chosen = contexts.named(named) if named else contexts.by_name.get(contexts.current, Context("", ""))
    url = _checked_url(url or chosen.url, given_as[0])
    if not key:
        name = contexts.at(url)
        key = chosen.credential if _is_same(chosen.url, url) else contexts.by_name[name].credential if name else ""
        key = checked_key(key, str(config_path())) if key else ""
    if not key:
        kept = (
            f"; the key in {config_path()} is for {chosen.url}"
            if chosen.credential and not _is_same(chosen.url, url)
            else ""
        )
        raise _wrong(
            f"no API key for {url}: give {given_as[1]} or {KEY_VARIABLE}, or use: trainmaster login {url}{kept}"
        )
    if _is_same(chosen.url, url):
        return replace(chosen, url=url, key=key, token_file=token_file)
    return Context(url, key, token_file=token_file)


def _token_file() -> str:
    """Return the path that the environment names; empty where it names none. Raises ConfigurationError for an empty one."""
    path = os.environ.get(TOKEN_FILE_VARIABLE)
    return "" if path is None else str(_stated(path, TOKEN_FILE_VARIABLE))


_followed: dict[str, str] = {}
"""The files of tokens and keys that this process has read of files, the oldest first: by these it finds the file again."""
_MOST_FOLLOWED = 1000


def read_token_file(path: str) -> str:
    """Return the token or key that a file has now. Raises ConfigurationError, never with what the file has."""
    try:
        text = Path(path).read_text(encoding="ascii")
    except UnicodeDecodeError as error:
        raise _wrong(f"{TOKEN_FILE_VARIABLE}: {path} has no token: it is no text of ASCII") from error
    except OSError as error:
        raise _wrong(f"{TOKEN_FILE_VARIABLE}: cannot read {path}: {error.strerror or error}") from error
    token = checked_key(text, f"{TOKEN_FILE_VARIABLE}: {path}")
    while len(_followed) >= _MOST_FOLLOWED:
        _followed.pop(next(iter(_followed)), None)
    _followed[token] = path
    return token


def file_of(credential: str) -> str:
    """Return the file that this process has read a credential of; empty where there is none."""
    return _followed.get(credential, "")


def _stated(text: str | None, origin: str) -> str | None:
    """Return a text, or None where there is none. Raises ConfigurationError for an empty one."""
    if text is not None and not text.strip():
        raise _wrong(f"{origin} is empty; leave it out to use what is stored")
    return text


def _is_same(one: str, other: str) -> bool:
    return one.rstrip("/") == other.rstrip("/")


def _checked_url(url: str, given_as: str) -> str:
    if not url:
        raise _wrong(
            f"no dispatcher is configured: give {given_as} or {URL_VARIABLE}, "
            f"use: trainmaster login URL, or start one here with: trainmaster up"
        )
    return checked_address(url)


def _given_key(key: str, origin: str) -> str:
    if not key.strip():
        raise _wrong(f"{origin} is empty; give a key, which looks like tmk_..., or leave it out to use the stored one")
    return checked_key(key, origin)


def checked_key(key: str, origin: str) -> str:
    """Return an API key without white space around it. Raises ConfigurationError, never with the key, for what cannot be one.

    ``origin`` says where the key is from.
    """
    key = key.strip()
    if not key:
        raise _wrong(f"{origin}: the API key is empty; a key looks like tmk_...")
    for place, sign in enumerate(key, 1):
        if not "!" <= sign <= "~":
            found = _NO_KEY_SIGNS.get(sign, "not printable ASCII")
            raise _wrong(
                f"{origin}: this is no API key: its character {place} of {len(key)} is {found};"
                " a key looks like tmk_..., with letters, digits, - and _"
            )
    return key


_NO_KEY_SIGNS = {" ": "a space", "\t": "a tab", "\n": "a line break", "\r": "a carriage return"}


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


def read_contexts() -> Contexts:
    """Return what the configuration file holds; nothing where there is no file. Raises ConfigurationError.

    A file with ``url`` and ``key`` alone, as earlier versions wrote it, holds one context, named ``default``.
    """
    import yaml

    path = config_path()
    try:
        value: Any = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        return Contexts()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise _wrong(f"{path}{place}: this is no YAML: {error.problem}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _wrong(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if value is None:
        return Contexts()
    _check_fields(value, (*_FIELDS, "current", "contexts"), str(path))
    given: Any = value.get("contexts", {}) if isinstance(value, dict) else None
    entries = {DEFAULT: value} | given if isinstance(given, dict) and "url" in value else given
    if not isinstance(entries, dict) or not all(map(_is_entry, entries.items())):
        raise _wrong(
            f"{path} has to be a mapping with the texts 'url' and 'key', or with such a mapping for each of 'contexts'"
        )
    for name, entry in given.items():
        _check_fields(entry, _FIELDS, f"{path}: context {name!r}")
    by_name = {name: Context(*(entry.get(field, "") for field in _FIELDS)) for name, entry in entries.items()}
    current = value.get("current", DEFAULT if "url" in value else "")
    if not isinstance(current, str):
        raise _wrong(f"{path}: current has to be the name of a context")
    return Contexts(by_name, current)


def _check_fields(given: object, known: tuple[str, ...], place: str) -> None:
    """Raise ConfigurationError for a field that is not known: a mistyped one would be left out silently."""
    for name in given if isinstance(given, dict) else ():
        if name not in known:
            raise _wrong(f"{place}: the field {name!r} is not known{suggestion(str(name), known)}")


def _is_entry(item: tuple[object, Any]) -> bool:
    name, entry = item
    return (
        isinstance(name, str)
        and isinstance(entry, dict)
        and all(isinstance(entry.get(field, ""), str) for field in _FIELDS)
    )


def _wrong(text: str) -> "ConfigurationError":
    from trainmaster.client.errors import ConfigurationError

    return ConfigurationError(text)


def write_context(url: str, key: str, kubernetes: str = "", authority: str = "") -> None:
    """Make this dispatcher the default of commands and scripts, beside the other contexts of the file."""
    contexts = read_contexts()
    name = contexts.at(url)
    if not name:
        present = contexts.by_name.get(DEFAULT)
        name = DEFAULT if present is None or is_this_machine(present.url) else "local"
    write_contexts(contexts.having(name, Context(url, key, kubernetes, authority)))


def write_contexts(contexts: Contexts) -> None:
    """Write the configuration file: private to its owner, and atomically."""
    import yaml

    entries = {
        name: {field: text for field in _FIELDS if (text := getattr(one, field))}
        for name, one in contexts.by_name.items()
    }
    value: dict[str, Any] = {"current": contexts.current, "contexts": entries}
    if list(entries) == [DEFAULT] and contexts.current == DEFAULT:
        value = entries[DEFAULT]  # the form that earlier versions read, too
    path = config_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".config-")  # created with mode 0600
    try:
        with os.fdopen(handle, "w") as file:
            yaml.safe_dump(value, file, sort_keys=False)
        Path(draft).replace(path)
    except OSError:
        with suppress(OSError):
            Path(draft).unlink()
        raise
