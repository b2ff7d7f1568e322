"""An init container that reads the entry point of a member's image from its registry. Pure.

It has the agent's image. The file that it writes is all that the member's container gets of it: what it reads registries with, such as
pull secrets of the namespace, is mounted into this container alone.
"""

from typing import Any

from trainmaster_agent.images.program import AWAY, CERTIFICATES, REFUSED
from trainmaster_agent.runtime.kubernetes.config import ImageEntryPoints
from trainmaster_agent.runtime.kubernetes.name_wait import without_devices

NAME = "read-entry-point"
FOLDER = "/run/trainmaster-image"
FILE = f"{FOLDER}/entrypoint.json"
FAILURES = (REFUSED, AWAY)
_REGISTRY_FOLDER = "/run/trainmaster-registry"
_VOLUME, _REGISTRY_VOLUME = "trainmaster-image", "trainmaster-registry"
_PROGRAM = ("python", "-I", "-m", "trainmaster_agent.images.program")


def add_entry_point(spec: dict[str, Any], config: ImageEntryPoints) -> None:
    """Add the container, with the resources of the member so that the pod needs no more, and the file to the member's container."""
    container = spec["containers"][0]
    sources: list[dict[str, Any]] = [
        {"secret": _source(name, ".dockerconfigjson", f"{number:02}.json")}
        for number, name in enumerate(config.pull_secrets)
    ]
    if config.ca_config_map is not None:
        sources.append({"configMap": _source(config.ca_config_map, CERTIFICATES, CERTIFICATES)})
    volumes: list[dict[str, Any]] = [{"name": _VOLUME, "emptyDir": {"sizeLimit": "8Mi"}}]
    mounts: list[dict[str, Any]] = [{"name": _VOLUME, "mountPath": FOLDER}]
    if sources:
        volumes.append({"name": _REGISTRY_VOLUME, "projected": {"sources": sources}})
        mounts.append({"name": _REGISTRY_VOLUME, "mountPath": _REGISTRY_FOLDER, "readOnly": True})
    registries = [word for pair in config.registries.items() for word in ("--registry", "=".join(pair))]
    made = {
        "name": NAME,
        "image": config.image,
        "command": [
            *(*_PROGRAM, f"--image={container['image']}", "--file", FILE, "--folder", _REGISTRY_FOLDER),
            *registries,
        ],
        "resources": without_devices(container.get("resources") or {}),
        "volumeMounts": mounts,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    spec["initContainers"] = [made, *(spec.get("initContainers") or [])]
    spec["volumes"] = [*(spec.get("volumes") or []), *volumes]
    mount = {"name": _VOLUME, "mountPath": FOLDER, "readOnly": True}
    container["volumeMounts"] = [*(container.get("volumeMounts") or []), mount]


def _source(name: str, key: str, path: str) -> dict[str, Any]:
    """Return a source of a volume: an entry that may be missing, as in namespaces that have no such secret."""
    return {"name": name, "optional": True, "items": [{"key": key, "path": path}]}
