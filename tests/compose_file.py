"""docker-compose.yml as Compose reads it: merged, with variables replaced, services in the order in which they start."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docker-compose.yml"

_VARIABLE = re.compile(r"\$\{(?P<name>[A-Z_]+)(?::-(?P<default>[^}]*)|:\?(?P<error>[^}]*))?\}")


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume of a service. ``source`` is a path of the checkout or the name of a volume."""

    source: str
    target: str
    read_only: bool

    @property
    def is_path(self) -> bool:
        return self.source.startswith(("./", "/"))


def read() -> dict[str, Any]:
    """Return the file as it is, its anchors merged."""
    value: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return value


def with_variables(value: Any, variables: Mapping[str, str]) -> Any:
    """Return ``value`` with ``${NAME}``, ``${NAME:-default}`` and ``${NAME:?error}`` replaced everywhere."""
    if isinstance(value, dict):
        return {key: with_variables(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [with_variables(item, variables) for item in value]
    return _VARIABLE.sub(lambda match: _value(match, variables), value) if isinstance(value, str) else value


def _value(match: "re.Match[str]", variables: Mapping[str, str]) -> str:
    given = variables.get(match["name"])
    if given is None and match["default"] is None:
        raise KeyError(f"{match['name']}: {match['error']}")
    return given or match["default"] or ""


def required_variables() -> set[str]:
    """Return variables without which Compose refuses the file."""
    return {match["name"] for match in _VARIABLE.finditer(FILE.read_text()) if match["default"] is None}


def mounts(service: Mapping[str, Any]) -> Iterator[Mount]:
    for text in service.get("volumes", ()):
        source, target, *mode = text.split(":")
        yield Mount(source, target, mode == ["ro"])


def is_ours(service: Mapping[str, Any]) -> bool:
    """Return whether the service runs the image that the Dockerfile builds."""
    return "build" in service


def starting_order(services: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return list(
        TopologicalSorter({name: service.get("depends_on", {}) for name, service in services.items()}).static_order()
    )
