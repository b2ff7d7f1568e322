"""``support-bundle``: one file with what is needed to find a fault, without secrets, specifications and members' output."""

import json
import os
import platform
import sys
import tarfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import distributions
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster import __version__
from trainmaster.cli import config
from trainmaster.cli.data_option import DEFAULT_DATA, data_option
from trainmaster.cli.doctor import examine
from trainmaster.cli.errors import UsageError
from trainmaster.cli.output import data_of, note
from trainmaster.cli.secret_masking import masked, masked_setting
from trainmaster.client.config import TOKEN_FILE_VARIABLE

if TYPE_CHECKING:
    from trainmaster.client.http import Client

_LOG_BYTES = 256 * 1024
"""Of the end of each log."""
_MOST_LOGS = 32
_PATIENCE_SECONDS = 3.0
_MOST_ENTRIES = 500
_SHOWN_SETTINGS = (
    "DATABASE_URL",
    "REDIS_URL",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
)
_AUDIT_FIELDS = ("at", "actor", "action", "target", "address", "requestId")
"""Without details, which may hold values of specifications."""


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("support-bundle")(support_bundle)


def support_bundle(
    ctx: typer.Context,
    out: Annotated[
        Path | None, typer.Option(help="File to write; must not exist. trainmaster-support-TIME.tar.gz unless given.")
    ] = None,
    data: Annotated[
        Path,
        data_option("Folder of 'trainmaster up', whose logs are included."),
    ] = DEFAULT_DATA,
) -> None:
    """Write one file for whoever helps with a fault: versions, findings of doctor, settings, clusters, queues, audit, metrics, logs.

    Secrets are masked, and no specification and no member's output is in it. Look at it before you pass it on: manifest.json lists
    its parts. Only its owner can read it.

    Example: trainmaster support-bundle --out bundle.tar.gz
    """
    path = out or Path(f"trainmaster-support-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar.gz")
    flags = ctx.obj if isinstance(ctx.obj, config.Flags) else config.Flags()
    secrets = _known_secrets(flags, data)
    parts: dict[str, str] = {}
    missing: dict[str, str] = {}
    for name, text in _texts(flags, data, missing):
        parts[name] = masked(text, secrets)
    missing = {name: masked(reason, secrets) for name, reason in missing.items()}
    try:
        _write(path, parts, missing)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    for name, reason in missing.items():
        note(f"without {name}: {reason}")
    print(f"{path}: {len(parts)} parts, {path.stat().st_size / 1024:.0f} KiB; look at it before you pass it on")


def _known_secrets(flags: config.Flags, data: Path) -> set[str]:
    """Return the secrets that can be found from here, so that they are masked wherever they stand."""
    from urllib.parse import unquote, urlsplit

    found = {flags.key or ""}
    for name, value in os.environ.items():
        if any(word in name.upper() for word in ("KEY", "SECRET", "TOKEN", "PASSWORD")):
            found |= {value, *(part.strip() for part in value.split(","))}
        if "://" in value:
            try:
                password = urlsplit(value).password
            except ValueError:
                password = None
            found |= {password or "", unquote(password or "")}
    token_files = [Path(named)] if (named := os.environ.get(TOKEN_FILE_VARIABLE)) else []
    for path in (config.config_path(), *token_files, *sorted((data / "keys").glob("*"))):
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError):
            continue
        found |= {text.strip(), *(word.strip("'\"") for word in text.split())}
    return {secret for secret in found if secret and not secret.startswith(("http:", "https:"))} - {"url:", "key:"}


def _texts(flags: config.Flags, data: Path, missing: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the parts by name, not masked yet; add to ``missing`` what could not be had, with the reason."""
    from trainmaster.client.core import Retries
    from trainmaster.client.http import Client
    from trainmaster.protocol.errors import TrainmasterError

    yield "versions.json", _json(_versions())
    yield "settings.json", _json(_settings())
    yield "doctor.json", _json([data_of(check) for check in examine(flags, data)])
    try:
        context = config.load(flags)
        with Client(context.url, context.key, retries=Retries(deadline_seconds=_PATIENCE_SECONDS)) as client:
            for name, ask in _QUESTIONS.items():
                try:
                    yield name, ask(client)
                except (TrainmasterError, OSError) as error:
                    missing[name] = str(error)
    except TrainmasterError as error:
        missing["what the api knows"] = str(error)
    logs = sorted((data / "logs").glob("*.log"))
    if not logs:
        missing["logs"] = (
            f"there are none in {data / 'logs'}; --data names the folder of 'trainmaster up',"
            " and other processes have their logs elsewhere"
        )
    for log in logs[_MOST_LOGS:]:
        missing[f"logs/{log.name}"] = f"only the first {_MOST_LOGS} logs are taken"
    for log in logs[:_MOST_LOGS]:
        try:
            yield f"logs/{log.name}", _end_of(log)
        except OSError as error:
            missing[f"logs/{log.name}"] = str(error.strerror)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _versions() -> dict[str, Any]:
    packages = {str(one.metadata["Name"]): one.version for one in distributions()}
    return {
        "trainmaster": __version__,
        "python": sys.version.split()[0],
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": dict(sorted(packages.items())),
    }


def _settings() -> dict[str, str]:
    """Return the settings of the environment of this command: numbers and switches; of all others only that they are set."""
    wanted = (name for name in sorted(os.environ) if name.startswith("TRAINMASTER_") or name.upper() in _SHOWN_SETTINGS)
    return {name: masked_setting(os.environ[name]) for name in wanted}


def _clusters(client: "Client") -> str:
    return _json([data_of(cluster) for cluster in client.clusters()])


def _queues(client: "Client") -> str:
    return _json([data_of(queue) for queue in client.queues(usage=False)])


def _audit(client: "Client") -> str:
    entries = [data_of(entry) for entry in islice(client.audit(), _MOST_ENTRIES)]
    return _json([{name: entry[name] for name in _AUDIT_FIELDS if name in entry} for entry in entries])


def _metrics(client: "Client") -> str:
    from trainmaster.client.reach import read_page

    return read_page(client.url, "/metrics")


_QUESTIONS: dict[str, "Callable[[Client], str]"] = {
    "clusters.json": _clusters,
    "queues.json": _queues,
    "audit.json": _audit,
    "metrics.txt": _metrics,
}


def _end_of(log: Path) -> str:
    """Return the end of a log, from the begin of a line."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _LOG_BYTES))
        text = file.read(_LOG_BYTES).decode(errors="replace")
    return text if size <= _LOG_BYTES else text.partition("\n")[2]


def _write(path: Path, parts: dict[str, str], missing: dict[str, str]) -> None:
    """Write the archive, readable by its owner only. Raises OSError, also where the file exists."""
    manifest = {
        "kind": "trainmaster-support-bundle",
        "release": __version__,
        "madeAt": datetime.now(UTC).isoformat(timespec="seconds"),
        "parts": {name: len(text.encode()) for name, text in parts.items()},
        "missing": missing,
    }
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in {"manifest.json": _json(manifest), **parts}.items():
            content = text.encode()
            entry = tarfile.TarInfo(f"trainmaster-support/{name}")
            entry.size, entry.mode = len(content), 0o600
            archive.addfile(entry, BytesIO(content))
