"""A real Kubernetes control plane from the programs in ``KUBEBUILDER_ASSETS``; it downloads and builds nothing.

Several run at once: each has its own ports, folder, certificates and etcd. Gang scheduling (KEP-4671) is on as Kubernetes 1.36
serves it. Nodes are the business of ``tests.cluster.kubelet``.
"""

import asyncio
import os
import secrets
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import orjson

from tests.cluster.api import ApiClient, ApiError
from tests.cluster.certificates import FRONT_PROXY, Certificates
from tests.cluster.processes import Daemon, reserve_port
from tests.waiting import eventually

ETCD, API_SERVER = "etcd", "kube-apiserver"
SCHEDULER, CONTROLLER_MANAGER = "kube-scheduler", "kube-controller-manager"
GATES = "--feature-gates=GenericWorkload=true,GangScheduling=true,TopologyAwareWorkloadScheduling=true"
_FAST_CLIENT = ("--kube-api-qps=1000", "--kube-api-burst=2000")
_CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "pod-garbage-collector-controller",
    "podgroup-protection-controller",
    "resourceclaim-controller",
    "resourcequota-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "taint-eviction-controller",
)
"""The controllers that act on pods, their claims of devices, Jobs, nodes and gangs; all others would only cost time."""
_USERS = {
    "admin": "system:masters",
    SCHEDULER: "",
    CONTROLLER_MANAGER: "system:masters",  # its controllers share one identity, which no single built-in role covers
}


def assets(*programs: str) -> Path | None:
    """Return the folder with these programs, etcd and an API server, or None where one is missing: tests that need it are skipped."""
    folder = Path(os.environ.get("KUBEBUILDER_ASSETS") or "/nonexistent")
    return folder if all((folder / name).exists() for name in (ETCD, API_SERVER, *programs)) else None


@dataclass(frozen=True)
class _Layout:
    """Where one control plane keeps and finds things."""

    programs: Path
    folder: Path
    certificates: Certificates
    tokens: dict[str, str]
    api_port: int
    etcd_port: int

    @property
    def etcd_url(self) -> str:
        return f"http://127.0.0.1:{self.etcd_port}"

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.api_port}"

    def kubeconfig(self, name: str, token: str, namespace: str = "default") -> Path:
        """Write a kubeconfig that acts under ``token``, and return its path. It is JSON, which every reader of YAML takes."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [
                {
                    "name": "test",
                    "cluster": {"server": self.url, "certificate-authority": str(self.certificates.authority)},
                }
            ],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": namespace}}],
        }
        path = self.folder / f"{name}.kubeconfig"
        path.write_bytes(orjson.dumps(config, option=orjson.OPT_INDENT_2))
        path.chmod(0o600)
        return path

    def write_tokens(self) -> Path:
        path = self.folder / "tokens.csv"
        users = (
            (token, "admin" if name == "admin" else f"system:{name}", _USERS[name])
            for name, token in self.tokens.items()
        )
        path.write_text("".join(f'{token},{user},{user},"{groups}"\n' for token, user, groups in users))
        return path


class ControlPlane:
    """etcd, an API server with RBAC and, where asked for and present, scheduler and controller manager."""

    def __init__(self, layout: _Layout, daemons: dict[str, Daemon]) -> None:
        self._layout = layout
        self.daemons = daemons
        """By program; in the order in which they start."""
        self.folder = layout.folder
        self.certificates = layout.certificates
        self.url = layout.url
        self.etcd_url = layout.etcd_url
        self.ca_file = layout.certificates.authority
        self.admin_token = layout.tokens["admin"]
        self.kubeconfig = layout.kubeconfig("admin", self.admin_token)
        """The administrator's."""
        self.version = ""

    @classmethod
    async def start(
        cls,
        folder: Path,
        scheduler: bool = True,
        controller_manager: bool = True,
        node_grace_seconds: int = 86_400,
        flags: Mapping[str, Sequence[str]] | None = None,
    ) -> "ControlPlane":
        """Return once the API server is ready; ``flags`` are added to those of a program, by its name, or replace those of the same
        name unless these are lists. ``@URL@`` in one is the address of the API server.

        ``node_grace_seconds``: the controller manager calls a node unreachable after this time without a report from it. With the
        default the kubelet need not renew leases.
        """
        wanted = [SCHEDULER] * scheduler + [CONTROLLER_MANAGER] * controller_manager
        programs = assets(*wanted)
        if programs is None:
            raise RuntimeError(f"KUBEBUILDER_ASSETS names no folder with {', '.join((ETCD, API_SERVER, *wanted))}")
        layout = _Layout(
            programs=programs,
            folder=folder,
            certificates=Certificates.make(folder / "certificates"),
            tokens={name: secrets.token_hex(16) for name in _USERS},
            api_port=reserve_port(),
            etcd_port=reserve_port(),
        )
        commands = {ETCD: _etcd(layout), API_SERVER: _api_server(layout, controller_manager)}
        if scheduler:
            commands[SCHEDULER] = _scheduler(layout)
        if controller_manager:
            commands[CONTROLLER_MANAGER] = _controller_manager(layout, node_grace_seconds)
        daemons = {
            name: Daemon(
                [str(programs / name), *_with_flags(command, (flags or {}).get(name, ()), layout)],
                folder / f"{name}.log",
            )
            for name, command in commands.items()
        }
        plane = cls(layout, daemons)
        try:
            daemons[ETCD].start()
            await plane.start_api_server()
            for daemon in daemons.values():
                daemon.start()
        except BaseException:
            await plane.stop()
            raise
        return plane

    def client(self, token: str | None = None, connections: int = 64) -> ApiClient:
        """Return a client, the administrator's unless a token is given; the caller closes it."""
        return ApiClient(self.url, self.ca_file, token or self.admin_token, connections)

    async def stop(self) -> None:
        """Kill all programs; nothing of them is used again."""
        await asyncio.gather(*(daemon.stop(signal.SIGKILL) for daemon in self.daemons.values()))

    async def stop_api_server(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Stop the API server with a signal and wait for its end.

        SIGTERM lets it end requests first; watches of Go programs may hold it for a minute, so it is killed after 6 s.
        """
        await self.daemons[API_SERVER].stop(number)

    async def start_api_server(self) -> None:
        """Start the API server, with the port and data it had before, and return once it is ready.

        A controller manager that began while the API server was down has ended after 10 s: the other programs that were started
        before are started again.
        """
        also = [daemon for daemon in self.daemons.values() if daemon.was_started]
        api_server = self.daemons[API_SERVER]
        api_server.start()
        async with self.client() as api:

            async def ready() -> bool:
                for daemon in (self.daemons[ETCD], api_server):
                    if not daemon.alive:
                        raise RuntimeError(
                            f"{daemon.name} ended by itself; {daemon.log} ends with\n{daemon.last_words()}"
                        )
                try:
                    await api.get("/readyz")
                    self.version = (await api.get("/version"))["gitVersion"]
                except (ApiError, aiohttp.ClientError, TimeoutError):
                    return False
                return True

            await eventually(ready, 30)
        for daemon in also:
            daemon.start()

    def pause(self, *names: str) -> None:
        """Freeze programs (SIGSTOP), all unless some are named; connections to them stay open."""
        for name in names or self.daemons:
            self.daemons[name].signal(signal.SIGSTOP)

    def resume(self, *names: str) -> None:
        for name in names or self.daemons:
            self.daemons[name].signal(signal.SIGCONT)

    def kubeconfig_for_token(self, token: str, namespace: str = "default", name: str | None = None) -> Path:
        """Return a new kubeconfig; ``name`` is that of the file, without its suffix."""
        return self._layout.kubeconfig(name or f"token-{secrets.token_hex(4)}", token, namespace)

    async def service_account_token(
        self, namespace: str, account: str, seconds: int = 3600, audiences: Sequence[str] = ()
    ) -> str:
        """Return a token of an existing ServiceAccount, from the TokenRequest API; at least 600 s long. Without ``audiences`` it is
        for the API server.
        """
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds, "audiences": list(audiences)},
        }
        async with self.client() as api:
            answer = await api.post(f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token", body)
        return str(answer["status"]["token"])

    async def service_account_kubeconfig(self, namespace: str, account: str, seconds: int = 3600) -> Path:
        """Return a kubeconfig that acts as the ServiceAccount, with the rights its role bindings give and no others."""
        token = await self.service_account_token(namespace, account, seconds)
        return self.kubeconfig_for_token(token, namespace, f"{namespace}-{account}")


_LISTS = {"--controllers", "--authorization-mode", "--enable-admission-plugins", "--feature-gates", "--runtime-config"}
"""Flags of which each one adds to those before it."""


def _with_flags(command: Sequence[str], flags: Sequence[str], layout: _Layout) -> list[str]:
    names = {flag.partition("=")[0] for flag in flags} - _LISTS
    kept = [one for one in command if one.partition("=")[0] not in names]
    return [*kept, *(flag.replace("@URL@", layout.url) for flag in flags)]


def _etcd(layout: _Layout) -> list[str]:
    """Return the command of etcd, without fsync: the data of tests need not survive the machine."""
    return [
        f"--data-dir={layout.folder / 'etcd'}",
        f"--listen-client-urls={layout.etcd_url}",
        f"--advertise-client-urls={layout.etcd_url}",
        f"--listen-peer-urls=http://127.0.0.1:{reserve_port()}",
        "--unsafe-no-fsync",
    ]


def _api_server(layout: _Layout, controller_manager: bool) -> list[str]:
    """Return the command of the API server, without the admission plugins that need a controller.

    Without a controller manager nobody makes the default ServiceAccount that pods need, so its admission is off then. Nodes are
    created ready, so the taint that new nodes get until a controller saw them ready is off too.
    """
    certificates = layout.certificates
    disabled = ["TaintNodesByCondition"] if controller_manager else ["TaintNodesByCondition", "ServiceAccount"]
    return [
        f"--etcd-servers={layout.etcd_url}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",
        f"--secure-port={layout.api_port}",
        f"--tls-cert-file={certificates.server}",
        f"--tls-private-key-file={certificates.server_key}",
        f"--token-auth-file={layout.write_tokens()}",
        f"--client-ca-file={certificates.authority}",
        f"--kubelet-client-certificate={certificates.to_kubelet}",
        f"--kubelet-client-key={certificates.to_kubelet_key}",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={certificates.accounts_public}",
        f"--service-account-signing-key-file={certificates.accounts_key}",
        "--service-cluster-ip-range=10.96.0.0/16",
        f"--disable-admission-plugins={','.join(disabled)}",
        f"--requestheader-client-ca-file={certificates.authority}",
        f"--requestheader-allowed-names={FRONT_PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={certificates.front_proxy}",
        f"--proxy-client-key-file={certificates.front_proxy_key}",
        "--kubelet-preferred-address-types=InternalIP",
        "--runtime-config=scheduling.k8s.io/v1alpha2=true",
        "--max-requests-inflight=4000",
        "--max-mutating-requests-inflight=2000",
        "--profiling=false",
        GATES,
    ]


def _scheduler(layout: _Layout) -> list[str]:
    config = layout.kubeconfig(SCHEDULER, layout.tokens[SCHEDULER])
    return [
        f"--kubeconfig={config}",
        "--leader-elect=false",
        "--secure-port=0",
        "--profiling=false",
        *_FAST_CLIENT,
        GATES,
    ]


def _controller_manager(layout: _Layout, node_grace_seconds: int) -> list[str]:
    """Return the command of the controller manager.

    It evicts unreachable nodes at once rather than one in ten seconds, however many of a zone are unreachable.
    """
    config = layout.kubeconfig(CONTROLLER_MANAGER, layout.tokens[CONTROLLER_MANAGER])
    return [
        f"--kubeconfig={config}",
        "--leader-elect=false",
        "--secure-port=0",
        "--profiling=false",
        f"--controllers={','.join(_CONTROLLERS)}",
        f"--service-account-private-key-file={layout.certificates.accounts_key}",
        f"--root-ca-file={layout.certificates.authority}",
        "--node-monitor-period=1s",
        f"--node-monitor-grace-period={node_grace_seconds}s",
        "--node-eviction-rate=1000",
        "--secondary-node-eviction-rate=1000",
        "--large-cluster-size-threshold=0",
        *_FAST_CLIENT,
        GATES,
    ]
