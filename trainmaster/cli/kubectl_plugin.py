"""The command line as a plugin of kubectl: ``kubectl trainmaster why JOB``, for the dispatcher of the kubeconfig in use."""

import atexit
import os
import sys
import tempfile
from base64 import b64decode
from itertools import pairwise
from pathlib import Path
from typing import Any

from trainmaster.client.config import (
    CONFIG_VARIABLE,
    CONTEXT_VARIABLE,
    KEY_VARIABLE,
    TOKEN_FILE_VARIABLE,
    URL_VARIABLE,
)

_KEY_PREFIX = "tmk_"
_PROGRAM = "trainmaster"
_NAME = "kubectl trainmaster"


def main() -> None:
    """Run the command line with the dispatcher that kubectl speaks with, unless arguments or the environment name another one."""
    from trainmaster.cli import errors, start
    from trainmaster.client.errors import ConfigurationError

    sys.argv[0] = _NAME  # as help and errors name the program
    if not any(name in os.environ for name in (URL_VARIABLE, KEY_VARIABLE, TOKEN_FILE_VARIABLE, CONTEXT_VARIABLE)):
        try:
            os.environ.update(_environment())
        except ConfigurationError as error:
            sys.exit(errors.report(error))
    start.main()


def _environment() -> dict[str, str]:
    """Return the variables for the dispatcher of the kubeconfig in use; none if its cluster is another one, whose token is no API key.

    Raises ConfigurationError.
    """
    context, cluster, user = _in_use()
    if context and (found := _asks_this_program(user)):
        return _with_authority(found, cluster)
    server, token = str(cluster.get("server", "")), _token(user)
    if not context or not server or not token.startswith(_KEY_PREFIX):
        return {}
    return _with_authority({URL_VARIABLE: server, KEY_VARIABLE: token}, cluster)


def _asks_this_program(user: dict[str, Any]) -> dict[str, str]:
    """Return the variables of the context whose credential kubectl asks this program for; none if it asks another one, or none."""
    plugin = user.get("exec")
    if not isinstance(plugin, dict) or Path(str(plugin.get("command", ""))).name != _PROGRAM:
        return {}
    words = [str(word) for word in plugin.get("args") or ()]
    named = dict(pairwise(words)).get("--context")
    given = plugin.get("env") or ()
    found = {str(one.get("name")): str(one.get("value")) for one in given if isinstance(one, dict)}
    config = {CONFIG_VARIABLE: found[CONFIG_VARIABLE]} if CONFIG_VARIABLE in found else {}
    return config | {CONTEXT_VARIABLE: named} if named else {}


def _with_authority(found: dict[str, str], cluster: dict[str, Any]) -> dict[str, str]:
    """Return variables and the file with the certificate of a cluster's authority, if it names one."""
    if authority := _authority(cluster):  # before that of the environment, as kubectl has it
        found["SSL_CERT_FILE"] = authority
    return found


def _token(user: dict[str, Any]) -> str:
    if path := user.get("tokenFile"):
        try:
            return Path(str(path)).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise _wrong(f"cannot read {path}, which the kubeconfig names: {error}") from error
    return str(user.get("token", ""))


def _authority(cluster: dict[str, Any]) -> str:
    """Return the file with the certificate of a cluster's authority; empty if it names none."""
    data = cluster.get("certificate-authority-data")
    if not data:
        return str(cluster.get("certificate-authority", ""))
    try:
        text = b64decode(str(data), validate=True)
    except ValueError as error:
        raise _wrong("the kubeconfig's certificate-authority-data is not base64") from error
    handle, path = tempfile.mkstemp(prefix="trainmaster-", suffix=".pem")
    atexit.register(Path(path).unlink, missing_ok=True)
    with os.fdopen(handle, "wb") as file:
        file.write(text)
    return path


def _in_use() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the context in use with its cluster and user, of all files that ``KUBECONFIG`` names: of each name the first counts."""
    current = ""
    by_name: dict[str, dict[str, dict[str, Any]]] = {"contexts": {}, "clusters": {}, "users": {}}
    given = os.environ.get("KUBECONFIG", "")
    for path in given.split(os.pathsep) if given else [Path("~/.kube/config").expanduser()]:
        value = _read(Path(path))
        current = current or str(value.get("current-context") or "")
        for kind, found in by_name.items():
            entries = value.get(kind)
            for one in entries if isinstance(entries, list) else ():
                content = one.get(kind[:-1]) if isinstance(one, dict) else None
                if isinstance(content, dict):
                    found.setdefault(str(one.get("name")), content)
    context = by_name["contexts"].get(current, {})
    return (
        context,
        by_name["clusters"].get(str(context.get("cluster")), {}),
        by_name["users"].get(str(context.get("user")), {}),
    )


def _read(path: Path) -> dict[str, Any]:
    """Return the content of a kubeconfig; nothing where there is no file. Raises ConfigurationError."""
    import yaml

    try:
        value = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _wrong(f"cannot read the kubeconfig {path}: {getattr(error, 'strerror', None) or error}") from error
    return value if isinstance(value, dict) else {}


def _wrong(text: str) -> Exception:
    from trainmaster.client.errors import ConfigurationError

    return ConfigurationError(text)
