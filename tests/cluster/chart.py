"""The agent's chart on a real API server: what it renders is applied, and the agent acts as its ServiceAccount.

Rendering needs ``helm``, on PATH or in the folder of ``KUBEBUILDER_ASSETS``.
"""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.cluster.api import ApiClient, ApiError
from tests.cluster.control_plane import ControlPlane
from tests.waiting import eventually

CHARTS = Path(__file__).parents[2] / "deploy" / "charts"
RELEASE = NAMESPACE = "trainmaster-agent"
JOBS = "trainmaster-jobs-default"
"""The namespace for jobs of queue ``default`` and of all queues below it."""
_KEY = "tmk_" + "x" * 32


def helm() -> str | None:
    """Return the path of the program, or None if it is not installed."""
    own = Path(os.environ.get("KUBEBUILDER_ASSETS") or "/nonexistent") / "helm"
    return str(own) if own.exists() else shutil.which("helm")


async def render(chart: str, release: str, namespace: str, *sets: str) -> list[dict[str, Any]]:
    """Return all documents of a chart; ``sets`` as ``--set`` takes them."""
    program = helm()
    assert program is not None, "helm is needed"
    options = [word for one in sets for word in ("--set", one)]
    process = await asyncio.create_subprocess_exec(
        program,
        "template",
        release,
        str(CHARTS / chart),
        "--namespace",
        namespace,
        *options,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, said = await process.communicate()
    assert process.returncode == 0, said.decode()
    return [document for document in yaml.safe_load_all(out) if document]


class Installed(NamedTuple):
    """What the agent needs: a kubeconfig that acts as the chart's ServiceAccount, and the agent's configuration."""

    kubeconfig: Path
    config: dict[str, Any]


async def install_agent(plane: ControlPlane, cluster: str, *sets: str) -> Installed:
    """Apply the agent's chart as an owner would; return what the agent needs."""
    wanted = (f"cluster={cluster}", "url=http://127.0.0.1:1", f"joinToken={_KEY}", "olderNamespaces=null", *sets)
    documents = await render("agent", RELEASE, NAMESPACE, *wanted)
    async with plane.client() as api:
        await _make_namespace(api, NAMESPACE)
        for document in sorted(documents, key=lambda one: one["kind"] != "Namespace"):
            await apply(api, document, NAMESPACE)
    config = next(
        yaml.safe_load(one["data"]["agent.yaml"]) for one in documents if "agent.yaml" in (one.get("data") or {})
    )
    return Installed(await plane.service_account_kubeconfig(NAMESPACE, RELEASE, 24 * 3600), config)


async def apply(api: ApiClient, document: dict[str, Any], namespace: str) -> dict[str, Any]:
    """Create an object, or merge it into the existing one. Raises ApiError if the API server refuses it."""
    group, _, version = document["apiVersion"].rpartition("/")
    base = f"/apis/{group}/{version}" if group else f"/api/{version}"
    listing = await api.get(base)
    resource = next(one for one in listing["resources"] if one["kind"] == document["kind"] and "/" not in one["name"])
    metadata = document["metadata"]
    where = f"{base}/namespaces/{metadata.get('namespace', namespace)}" if resource["namespaced"] else base
    path = f"{where}/{resource['name']}"
    try:
        created: dict[str, Any] = await api.post(f"{path}?fieldValidation=Strict", document)
    except ApiError as error:
        if error.status != 409:
            raise
        created = await api.patch(f"{path}/{metadata['name']}", document, kind="merge")
    return created


async def _make_namespace(api: ApiClient, name: str) -> None:
    try:
        await api.post("/api/v1/namespaces", {"metadata": {"name": name}})
    except ApiError as error:
        if error.status != 409:
            raise

    async def has_account() -> bool:
        accounts = await api.get(f"/api/v1/namespaces/{name}/serviceaccounts")
        return bool(accounts["items"])

    await eventually(has_account)
