"""Programs of other projects, as each ships them, on the control plane of a test; nothing is downloaded or built here.

A variable names a folder with a folder for each of them: ``VERSION`` (the release), ``manifests/*.yaml`` (the objects of
the project's chart or manifests) and the programs under the names that they have in the project's images.

Programs run as the administrator, as processes instead of pods, with the configuration of the manifests. What a project's own
installation would do with pods (Deployments, Services, Jobs of its chart, an operator of operators) is done by starting its programs.
"""

import asyncio
import os
import signal
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.api import ApiClient, ApiError
from tests.cluster.control_plane import ControlPlane
from tests.cluster.processes import Daemon
from tests.waiting import eventually

_CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"
_PATHS = {
    "CustomResourceDefinition": _CRD,
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps",
    "Secret": "/api/v1/namespaces/{namespace}/secrets",
}
"""The objects that are created at first, in this order. Webhooks are created once who answers them runs."""


@dataclass
class Installed:
    """A project's programs that run on a control plane."""

    name: str
    version: str
    plane: ControlPlane
    assets: Path
    folder: Path
    namespace: str
    documents: list[dict[str, Any]]
    placement: dict[str, Any] = field(default_factory=dict)
    """The ``placement`` of the agent's configuration for it, where it is a scheduler."""
    daemons: dict[str, Daemon] = field(default_factory=dict)
    """By program."""

    def config(self, name: str, key: str) -> str:
        """Return an entry of a ConfigMap of the manifests."""
        for one in self.documents:
            if one["kind"] == "ConfigMap" and one["metadata"]["name"] == name:
                return str(one["data"][key])
        raise KeyError(f"{self.name} ships no ConfigMap {name}")

    def write(self, name: str, content: str) -> Path:
        path = self.folder / name
        path.write_text(content)
        return path

    def serving_certificates(self) -> Path:
        """Return a folder with the control plane's certificate and key, under the names that webhooks of controllers have.

        It is where they look for it if ``TMPDIR`` is the folder of this installation.
        """
        keys = self.folder / "k8s-webhook-server" / "serving-certs"
        keys.mkdir(parents=True, exist_ok=True)
        (keys / "tls.crt").write_bytes(self.plane.certificates.server.read_bytes())
        (keys / "tls.key").write_bytes(self.plane.certificates.server_key.read_bytes())
        return keys

    def run(
        self,
        program: str,
        *words: object,
        behind: tuple[str, ...] = (),
        of: Path | None = None,
        **environment: str,
    ) -> Daemon:
        """Start a program as the administrator of the cluster.

        ``behind``: a command that runs it. ``of``: its folder, where the project does not ship it.
        """
        variables = {"KUBECONFIG": str(self.plane.kubeconfig), "POD_NAMESPACE": self.namespace, **environment}
        daemon = Daemon(
            [*behind, str((of or self.assets) / program), *map(str, words)],
            self.folder / f"{program}.log",
            os.environ | variables,
        )
        self.daemons[program] = daemon
        daemon.start()
        return daemon

    async def answers(self, program: str, port: int) -> None:
        """Wait until a program listens. Raises RuntimeError if it ends."""
        daemon = self.daemons[program]

        async def listens() -> bool:
            if not daemon.alive:
                raise RuntimeError(f"{program} of {self.name} ended; {daemon.log} ends with\n{daemon.last_words()}")
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return True
            return False

        await eventually(listens, 60)

    async def restart(self, program: str) -> None:
        """Kill a program with SIGKILL and start it again."""
        await self.daemons[program].stop(signal.SIGKILL)
        self.daemons[program].start()

    async def create_webhooks(self, port: int, *names: str, prefix: str = "") -> None:
        """Create the webhooks of the manifests, all or those whose configurations have these names, with the program that listens on
        ``port`` to answer them; also conversions between versions of a kind.

        ``prefix`` comes before the names of the configurations: a program that writes certificates of its own into them by their names
        does not find them.
        """
        async with self.plane.client() as api:
            for one in self.documents:
                if one["kind"].endswith("WebhookConfiguration") and (not names or one["metadata"]["name"] in names):
                    for webhook in one["webhooks"]:
                        webhook["clientConfig"] = self._answered_by(port, webhook["clientConfig"])
                    one["metadata"]["name"] = prefix + one["metadata"]["name"]
                    await api.post(f"{_WEBHOOKS}/{one['kind'].lower()}s", one)

    def _answered_by(self, port: int, client: Mapping[str, Any]) -> dict[str, Any]:
        path = client.get("service", {}).get("path", "/")
        return {
            "url": f"https://127.0.0.1:{port}{path}",
            "caBundle": b64encode(self.plane.ca_file.read_bytes()).decode(),
        }

    async def create_objects(self, conversions: int | None = None) -> None:
        """Create the kinds, PriorityClasses and configuration of the manifests, and wait until the kinds are served.

        ``conversions``: the port on which a program converts between versions of kinds.
        """
        async with self.plane.client() as api:
            with suppress(ApiError):
                await api.post("/api/v1/namespaces", {"metadata": {"name": self.namespace}})
            for kind, path in _PATHS.items():
                for one in self.documents:
                    if one["kind"] == kind:
                        namespace = one["metadata"].get("namespace", self.namespace)
                        webhook = (one.get("spec") or {}).get("conversion", {}).get("webhook")
                        if webhook and conversions is not None:
                            webhook["clientConfig"] = self._answered_by(conversions, webhook["clientConfig"])
                        await api.post(path.format(namespace=namespace), one)
            await eventually(lambda: _are_served(api), 30)


async def _are_served(api: ApiClient) -> bool:
    kinds = (await api.get(_CRD))["items"]
    conditions = ((one.get("status") or {}).get("conditions") or [] for one in kinds)
    return all(any(each["type"] == "Established" and each["status"] == "True" for each in of) for of in conditions)


@dataclass(frozen=True)
class Shipped:
    """Where the programs of a project are installed, and how they are started."""

    namespace: str
    start: Callable[[Installed], Awaitable[None]]
    placement: dict[str, Any] = field(default_factory=dict)


def folder_of(variable: str, name: str) -> Path | None:
    """Return the folder of a project below that which a variable of the environment names, or None without one."""
    folder = Path(os.environ.get(variable) or "/nonexistent") / name
    return folder if (folder / "VERSION").exists() else None


def release_of(variable: str, name: str) -> str:
    """Return the release of a project; empty without its folder."""
    folder = folder_of(variable, name)
    return (folder / "VERSION").read_text().strip() if folder else ""


def documents_in(folder: Path) -> list[dict[str, Any]]:
    """Return the objects of the manifests in a project's folder."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    paths = sorted((folder / "manifests").glob("*.yaml"))
    return [one for path in paths for one in yaml.load_all(path.read_text(), loader) if one]


@asynccontextmanager
async def running(
    variable: str, name: str, shipped: Shipped, plane: ControlPlane, folder: Path
) -> AsyncIterator[Installed]:
    """Run a project's programs on a control plane. Raises RuntimeError without their folder, or where they do not start."""
    assets = folder_of(variable, name)
    if assets is None:
        raise RuntimeError(f"{variable} names no folder with {name}/VERSION")
    it = Installed(
        name=name,
        version=release_of(variable, name),
        plane=plane,
        assets=assets,
        folder=folder,
        namespace=shipped.namespace,
        documents=documents_in(assets),
        placement=shipped.placement,
    )
    try:
        await shipped.start(it)
        yield it
    finally:
        await asyncio.gather(*(daemon.stop(signal.SIGKILL) for daemon in it.daemons.values()))
