"""A node on this machine: a process whose namespaces are the node's, with containerd and a kubelet in them.

The first process of the node ends with the tests, and all others with it: no mount, no interface and no container outlives them.
Its groups for resources (cgroups) are removed by ``remove``.
"""

import asyncio
import itertools
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL

import psutil
import yaml

from tests.cluster.control_plane import ControlPlane
from tests.cluster.processes import Daemon
from tests.nodes.cgroups import KernelUse, kernel_use
from tests.nodes.images import PAUSE
from tests.nodes.network import GATEWAY, address_of, connect, link_of, pods_of, run
from tests.waiting import eventually_sync

PROGRAMS = ("containerd", "ctr", "runc", "ip", "nsenter", "unshare", "mount")
_CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
_CNI_PLUGINS = ("bridge", "host-local", "loopback")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CGROUPS = Path("/sys/fs/cgroup")
_CPU_SHARES = "16384"
"""A node counts as sixteen processes outside of it, so that its containers are not starved on a busy machine."""
_SOCKET = "/run/containerd/containerd.sock"
_numbers = itertools.count()
"""Of the machines of this process: a machine of another system has the same name."""
_FIRST_PROCESS = """
set -e
hostname "$0"
mount --bind "$2" /etc/resolv.conf
mount --make-rshared /
mount -t tmpfs tmpfs /run
mkdir -p /run/netns /run/containerd /var/lib/cni
mount -t tmpfs tmpfs /var/lib/cni
mount -t tmpfs tmpfs /var/log
ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
touch "$1"
while :; do sleep 1000 & wait $!; done
"""
"""The shell of this script also buries orphans."""
LEASE_SECONDS = 8
"""A kubelet renews its lease four times in this time."""


def cni_folder() -> Path | None:
    """Return the folder of the network plugins, or None where one of them is missing."""
    return next((one for one in _CNI_FOLDERS if all((one / name).exists() for name in _CNI_PLUGINS)), None)


@dataclass(frozen=True)
class Parts:
    """What all nodes are made of: the control plane, the folder of ``kubelet``, and the archives of the images."""

    plane: ControlPlane
    programs: Path
    archives: Sequence[Path]


class Machine:
    """Node ``node-NUMBER``, which is off until it is booted. What its disk has outlives a crash, as on any machine."""

    def __init__(self, number: int, folder: Path, parts: Parts) -> None:
        self.number = number
        self.name = f"node-{number}"
        self.folder = folder
        self._parts = parts
        self._cgroup = f"tests-{os.getpid()}-{next(_numbers)}-{self.name}"
        self._first: Daemon | None = None
        self._pid = 0
        self._daemons: dict[str, Daemon] = {}
        for name in ("containerd", "kubelet", "certificates", "pods", "cni", "addresses", "volumeplugins"):
            (folder / name).mkdir(parents=True)
        self._write_settings()

    def boot(self) -> None:
        """Start the machine, its container runtime and its kubelet; the node is ready some seconds later."""
        booted = self.folder / "booted"
        booted.unlink(missing_ok=True)
        namespaces = ("--mount", "--net", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc")
        first = [
            "unshare",
            *namespaces,
            "bash",
            "-c",
            _FIRST_PROCESS,
            self.name,
            str(booted),
            str(self.folder / "node-resolv.conf"),
        ]
        self._first = self._daemon("first", first)
        self._first.start()
        eventually_sync(booted.exists)
        (self._pid,) = (child.pid for child in psutil.Process(self._first.pid).children())
        connect(self.number, self._pid)
        self._make_cgroups()
        self._add("containerd", "containerd", "--config", str(self.folder / "containerd.toml"))
        eventually_sync(self._runtime_answers)
        self.import_images()
        self._add("kubelet", str(self._parts.programs / "kubelet"), *self._kubelet_flags())

    def crash(self) -> None:
        """End all processes of the machine at once, as when its power is cut."""
        if self._first is None:
            return
        run("ip", "link", "del", link_of(self.number))
        for daemon in (self._first, *self._daemons.values()):
            asyncio.run(daemon.stop(SIGKILL))
        self._first = None

    def import_images(self) -> None:
        """Give the machine all images; a kubelet that lacks disk has perhaps removed some."""
        for archive in self._parts.archives:
            run(*self._inside("ctr", "--address", _SOCKET, "--namespace", "k8s.io", "images", "import", str(archive)))

    def configure_kubelet(self, **fields: object) -> None:
        """Start the kubelet again, with other values of these fields of its configuration; without any, as it was at first."""
        self.stop_kubelet()
        (self.folder / "kubelet.yaml").write_text(yaml.safe_dump({**self._kubelet(), **fields}))
        self.start_kubelet()

    def add_daemon(self, name: str, script: str) -> None:
        """Run one more program on the machine, by a shell script that ends with its ``exec``."""
        self._add(name, "bash", "-ec", script)

    def stop_kubelet(self) -> None:
        """Kill the kubelet alone; containers continue."""
        asyncio.run(self._daemons["kubelet"].stop(SIGKILL))

    def start_kubelet(self) -> None:
        self._daemons["kubelet"].start()

    def cut(self) -> None:
        """Cut the machine's cable; what runs there continues."""
        run("ip", "link", "set", link_of(self.number), "down")

    def plug_in(self) -> None:
        """Mend the cut cable. The route to the pods of the machine is gone with it."""
        run("ip", "link", "set", link_of(self.number), "up")
        run("ip", "route", "replace", pods_of(self.number), "via", address_of(self.number))

    def remove(self) -> None:
        """End the machine for good."""
        self.crash()
        eventually_sync(self._without_cgroups)

    def last_words(self) -> str:
        """Return the ends of the logs, for messages."""
        return "\n".join(f"{name}: {daemon.last_words()}" for name, daemon in self._daemons.items())

    def kernel_use(self, uid: str) -> KernelUse:
        """Return what the kernel counts of the containers of a pod on this machine."""
        return kernel_use(self._hierarchies(), uid)

    # Its parts

    def _daemon(self, name: str, command: Iterable[str]) -> Daemon:
        return Daemon(list(command), self.folder / f"{name}.log", {"PATH": _PATH})

    def _add(self, name: str, *command: str) -> None:
        self._daemons[name] = self._daemon(name, self._inside(*command))
        self._daemons[name].start()

    def _inside(self, *command: str) -> list[str]:
        namespaces = ("--mount", "--net", "--pid", "--uts")
        return ["nsenter", "--target", str(self._pid), *namespaces, "--", *command]

    def _runtime_answers(self) -> bool:
        try:
            run(*self._inside("ctr", "--address", _SOCKET, "--connect-timeout", "1s", "version"))
        except AssertionError:
            return False
        return True

    def _hierarchies(self) -> list[Path]:
        """Return the folders of the node's cgroups: one, or with cgroup v1 one for each controller."""
        if (_CGROUPS / "cgroup.controllers").exists():
            return [_CGROUPS / self._cgroup]
        found = (one for one in _CGROUPS.iterdir() if one.is_dir() and not one.is_symlink())
        return [one / self._cgroup for one in found]

    def _make_cgroups(self) -> None:
        for folder in self._hierarchies():
            folder.mkdir(exist_ok=True)
        shares = _CGROUPS / "cpu" / self._cgroup / "cpu.shares"
        if shares.exists():
            shares.write_text(_CPU_SHARES)
        cpuset = _CGROUPS / "cpuset"
        if cpuset.is_dir():
            for name in ("cpuset.cpus", "cpuset.mems"):
                (cpuset / self._cgroup / name).write_text((cpuset / name).read_text())

    def _without_cgroups(self) -> bool:
        for folder in self._hierarchies():
            for path, _, _ in os.walk(folder, topdown=False):
                try:
                    Path(path).rmdir()
                except OSError:
                    return False
        return True

    def _kubelet_flags(self) -> list[str]:
        return [
            f"--config={self.folder / 'kubelet.yaml'}",
            f"--kubeconfig={self.folder / 'kubeconfig'}",
            f"--root-dir={self.folder / 'kubelet'}",
            f"--cert-dir={self.folder / 'certificates'}",
            f"--hostname-override={self.name}",
            f"--node-ip={address_of(self.number)}",
        ]

    def _write_settings(self) -> None:
        plugins = cni_folder()
        assert plugins is not None, "there are no network plugins"
        (self.folder / "resolv.conf").write_text("search .\n")
        (self.folder / "node-resolv.conf").write_text(
            f"nameserver {GATEWAY}\n"
        )  # says at once that a registry does not exist
        (self.folder / "containerd.toml").write_text(_containerd(self.folder, plugins))
        (self.folder / "cni" / "10-bridge.conflist").write_text(json.dumps(_cni(self.folder, self.number)))
        (self.folder / "kubelet.yaml").write_text(yaml.safe_dump(self._kubelet()))
        (self.folder / "kubeconfig").write_text(yaml.safe_dump(self._kubeconfig()))

    def _kubelet(self) -> dict[str, object]:
        authority = str(self._parts.plane.certificates.authority)
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": address_of(self.number),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": authority},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._cgroup}",
            "clusterDNS": [GATEWAY],
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": f"unix://{_SOCKET}",
            "enforceNodeAllocatable": ["pods"],
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "failCgroupV1": False,
            "failSwapOn": False,
            "imageGCHighThresholdPercent": 100,
            "nodeLeaseDurationSeconds": LEASE_SECONDS,
            "nodeStatusUpdateFrequency": "2s",
            "podLogsDir": str(self.folder / "pods"),
            "resolvConf": str(self.folder / "resolv.conf"),
            "volumePluginDir": str(self.folder / "volumeplugins"),
        }

    def _kubeconfig(self) -> dict[str, object]:
        certificates = self._parts.plane.certificates
        own, key = self.folder / "certificates" / "client.crt", self.folder / "certificates" / "client.key"
        certificates.sign(own, key, "subjectAltName=DNS:node", f"system:node:{self.name}/O=system:nodes", "clientAuth")
        port = self._parts.plane.url.rpartition(":")[2]
        cluster = {
            "server": f"https://{GATEWAY}:{port}",
            "certificate-authority": str(certificates.authority),
            "tls-server-name": "kubernetes.default.svc",
        }
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"client-certificate": str(own), "client-key": str(key)}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }


def _containerd(folder: Path, plugins: Path) -> str:
    """Return the settings of containerd. Where a process may not lower its oom_score_adj, containers get the lowest that they may."""
    return f"""
version = 2
root = "{folder / "containerd"}"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper",
]
[grpc]
  address = "{_SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder / "opt"}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{folder / "cni"}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "{shutil.which("runc", path=_PATH)}"
      SystemdCgroup = false
"""


def _cni(folder: Path, number: int) -> dict[str, object]:
    addresses = {
        "type": "host-local",
        "dataDir": str(folder / "addresses"),
        "ranges": [[{"subnet": pods_of(number)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "hairpinMode": True,
        "ipMasq": False,
        "ipam": addresses,
    }
    return {"cniVersion": "0.4.0", "name": "nodes", "plugins": [bridge]}
