"""Containers beside a member's own that fetch its inputs and store its outputs. Pure.

An init container extracts the inputs to a volume that the member has as its working directory. In the pod of rank 0 a sidecar, an
init container that is restarted always, waits until the member has ended: the kubelet sends it SIGTERM only then, and the pod has
not ended before it has. Both have the agent's image; the member's own needs nothing for that.
"""

from collections.abc import Mapping
from typing import Any

from trainmaster.protocol.files import MemberFiles
from trainmaster_agent.files.program import TOKEN, URL
from trainmaster_agent.runtime.kubernetes.config import FilesConfig
from trainmaster_agent.runtime.kubernetes.name_wait import without_devices

FETCH, STORE = "fetch-files", "store-files"
DEFAULT_FOLDER = "/work"
_VOLUME, _TEMPORARY = "trainmaster-files", "trainmaster-files-tmp"
_PROGRAM = ("python", "-I", "-m", "trainmaster_agent.files.program")
_SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def add_folder(spec: dict[str, Any]) -> None:
    """Give the member's container a volume as its working directory: at the one that it names, or at ``/work``."""
    container = spec["containers"][0]
    folder = container.setdefault("workingDir", DEFAULT_FOLDER)
    spec["volumes"] = [
        *(spec.get("volumes") or []),
        {"name": _VOLUME, "emptyDir": {}},
        {"name": _TEMPORARY, "emptyDir": {}},
    ]
    container["volumeMounts"] = [*(container.get("volumeMounts") or []), {"name": _VOLUME, "mountPath": folder}]


def add_inputs(spec: dict[str, Any], config: FilesConfig, files: MemberFiles) -> None:
    """Add the init container that fetches the inputs. It has the resources of the member, so that the pod needs no more."""
    made = _container(FETCH, "fetch", spec, config, files)
    made["resources"] = without_devices(spec["containers"][0].get("resources") or {})
    spec["initContainers"] = [made, *(spec.get("initContainers") or [])]


def add_outputs(spec: dict[str, Any], config: FilesConfig, files: MemberFiles) -> None:
    """Add the sidecar that stores the outputs. It requests nothing: the member shall fit where it was planned to be.

    The pod's grace is how long it may take. Deletions give a grace of their own.
    """
    made = _container(STORE, "store", spec, config, files)
    made["restartPolicy"] = "Always"
    spec["initContainers"] = [*(spec.get("initContainers") or []), made]
    spec["terminationGracePeriodSeconds"] = max(spec["terminationGracePeriodSeconds"], config.upload_seconds)


def _container(
    name: str, action: str, spec: Mapping[str, Any], config: FilesConfig, files: MemberFiles
) -> dict[str, Any]:
    folder = spec["containers"][0]["workingDir"]
    return {
        "name": name,
        "image": config.image,
        "command": [*_PROGRAM, action, "--folder", folder],
        "env": [{"name": URL, "value": files.url}, {"name": TOKEN, "value": files.token}],
        "volumeMounts": [{"name": _VOLUME, "mountPath": folder}, {"name": _TEMPORARY, "mountPath": "/tmp"}],  # noqa: S108
        "securityContext": dict(_SECURITY),
    }
