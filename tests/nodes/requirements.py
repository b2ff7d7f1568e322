"""The programs without which no real node can be made."""

import os
import shutil
from pathlib import Path

import pytest

from tests.cluster.control_plane import API_SERVER, CONTROLLER_MANAGER, ETCD, SCHEDULER
from tests.nodes.images import static_busybox
from tests.nodes.machine import PROGRAMS, cni_folder

_OF_KUBERNETES = (ETCD, API_SERVER, SCHEDULER, CONTROLLER_MANAGER, "kubectl", "helm", "kubelet")


def missing() -> str | None:
    """Return the first thing that is missing, or None. ``KUBE_BIN`` names the folder of Kubernetes."""
    folder = Path(os.environ.get("KUBE_BIN") or "/nonexistent")
    if not all((folder / name).exists() for name in _OF_KUBERNETES):
        return f"KUBE_BIN names no folder with {', '.join(_OF_KUBERNETES)}"
    if os.geteuid() != 0:
        return "only root can make namespaces"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"the program {absent[0]} is missing"
    if cni_folder() is None:
        return "the network plugins bridge, host-local and loopback are missing"
    return None if static_busybox() else "there is no static busybox to make images of"


def need_real_nodes() -> None:
    """Skip the module that calls this at its top where something is missing."""
    reason = missing()
    if reason is not None:
        pytest.skip(f"no real nodes: {reason}", allow_module_level=True)
