"""The program of an init container: it reads the entry point of the member's image from its registry, for the worker in the member.

A kubelet knows the entry point of an image that it has pulled, and tells it to nobody: not to a container of that image either.
"""

import argparse
import json
import os
import platform
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from trainmaster_agent.images.credentials import find_credentials
from trainmaster_agent.images.references import BadReferenceError, parse_reference, place_of
from trainmaster_agent.images.registry import (
    EntryPoint,
    ImageRefusedError,
    RegistryAwayError,
    RegistryClient,
    architecture_of,
)

REFUSED, AWAY = 82, 83
"""Exit codes where the entry point cannot be read, and where the registry did not answer for some time."""
CERTIFICATES = "ca.crt"
"""File of trusted certificates, in the folder with the credentials: other files of that folder are credentials."""
_MESSAGE = Path("/dev/termination-log")
"""Where a kubelet finds the message of a container that has ended."""
_MOST_MESSAGE = 2000


def read_configs(folder: Path) -> list[Any]:
    """Return the credentials in a folder, by the names of their files. What cannot be read has none."""
    found = []
    for file in sorted(folder.glob("*.json")):
        try:
            found.append(json.loads(file.read_bytes()))
        except (OSError, ValueError, RecursionError) as error:
            sys.stderr.write(f"credentials {file.name} cannot be read: {error}\n")
    return found


def read_entry_point(image: str, addresses: dict[str, str], folder: Path) -> EntryPoint:
    """Return what an image executes on this machine. ``folder``: with credentials and certificates, where there are any.

    Raises ImageRefusedError and RegistryAwayError.
    """
    try:
        reference = parse_reference(image)
    except BadReferenceError as error:
        raise ImageRefusedError(str(error)) from error
    place = place_of(reference, addresses)
    credentials = find_credentials(read_configs(folder), place.host, place.repository)
    certificates = folder / CERTIFICATES
    try:
        client = RegistryClient(place, credentials, str(certificates) if certificates.exists() else None)
    except OSError as error:
        raise ImageRefusedError(f"the certificates in {CERTIFICATES} cannot be read: {error}") from error
    return client.entry_point(reference, architecture_of(platform.machine()))


def _give_up(code: int, error: Exception) -> NoReturn:
    message = str(error)[:_MOST_MESSAGE]
    sys.stderr.write(f"{message}\n")
    try:
        _MESSAGE.write_text(message)
    except OSError as failure:
        sys.stderr.write(f"the kubelet does not get that: {failure}\n")
    sys.exit(code)


def main() -> None:
    """Write the entry point of an image into a file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--image", required=True)
    parser.add_argument("--file", type=Path, required=True, help="where the entry point is written")
    parser.add_argument("--folder", type=Path, required=True, help="has credentials and certificates")
    parser.add_argument("--registry", action="append", default=[], help="HOST=ADDRESS where it is not https://HOST")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(128 + signal.SIGTERM))
    addresses = dict(one.split("=", 1) for one in given.registry)
    try:
        found = read_entry_point(given.image, addresses, given.folder)
    except ImageRefusedError as error:
        _give_up(REFUSED, error)
    except RegistryAwayError as error:
        _give_up(AWAY, error)
    given.file.write_text(json.dumps({"entrypoint": found.entrypoint, "cmd": found.cmd}))
    os.chmod(given.file, 0o444)  # noqa: PTH101


if __name__ == "__main__":
    main()
