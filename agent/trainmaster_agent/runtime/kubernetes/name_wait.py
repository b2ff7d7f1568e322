"""An init container that delays the start of a gang's member until the names of its peers resolve. Pure.

A name exists once its member has an address, up to a second after that of the first member; programs that look a peer up once fail
until then, and a lookup that came too early is remembered by the cluster's DNS for up to 30 seconds.
"""

from collections.abc import Mapping
from typing import Any

from trainmaster.protocol.durations import parse_duration
from trainmaster_agent.runtime.kubernetes.config import AwaitNames
from trainmaster_agent.runtime.kubernetes.environment import MOST_LISTED, ROSTER_PATH

NAME = "await-names"
_SCRIPT = """\
ends=$(($(date +%s) + SECONDS_AT_MOST))
sleep 2
for host in $(head -n NAMES /etc/trainmaster/addresses | cut -d: -f1); do
  until getent hosts "$host" >/dev/null; do
    if [ "$(date +%s)" -ge "$ends" ]; then echo "$host has no address after SECONDS_AT_MOST s; starting without it"; exit 0; fi
    sleep 1
  done
done
"""
"""The first pause lets the names of members that start together appear before the first lookup."""


def init_container(
    config: AwaitNames, members: int, mount: Mapping[str, Any], container: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the container. ``mount``: of the list of members. ``container``: of the member, whose resources it takes as they are,
    so that the pod needs no more and keeps its quality of service.

    In a gang of more than 64 members each waits for the first alone, which frameworks rendezvous by: the lookups of all would grow
    with the square of its size.
    """
    names = members if members <= MOST_LISTED else 1
    seconds = f"{parse_duration(config.timeout):.0f}"
    script = _SCRIPT.replace("SECONDS_AT_MOST", seconds).replace("NAMES", str(names))
    return {
        "name": NAME,
        "image": config.image,
        "command": ["sh", "-c", script.replace("/etc/trainmaster", ROSTER_PATH)],
        "resources": without_devices(container.get("resources") or {}),
        "volumeMounts": [dict(mount)],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def without_devices(resources: Any) -> dict[str, Any]:
    """Return resources without those of devices, which an init container does not need."""
    if not isinstance(resources, Mapping):
        return {}
    kinds = ((kind, resources.get(kind)) for kind in ("requests", "limits"))
    return {
        kind: {name: value for name, value in amounts.items() if "/" not in name}
        for kind, amounts in kinds
        if isinstance(amounts, Mapping)
    }
