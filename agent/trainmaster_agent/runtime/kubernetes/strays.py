"""Pods of runs of which this agent has no record, because the record was deleted or another agent created it."""

import contextlib
import logging

from trainmaster.protocol.agent import StopRun
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import ConflictError, ForbiddenError, NotFoundError
from trainmaster_agent.kube.lease import LeaseKeeper
from trainmaster_agent.kube.paths import NAMESPACES, PODS
from trainmaster_agent.kube.pods import LABEL_RUN
from trainmaster_agent.runtime.kubernetes.record import LABEL_AGENT

log = logging.getLogger(__name__)

_SYSTEM_NAMESPACE = "kube-system"
"""A namespace that exists in every cluster for its whole life, so its uid is used as the identity of the cluster."""
_ENDED = ("Succeeded", "Failed")


async def identity_of_cluster(api: ApiServer) -> str:
    """Return the identity of this Kubernetes cluster; empty where the agent may not read it. Raises KubeError."""
    try:
        return str((await api.get(NAMESPACES, None, _SYSTEM_NAMESPACE))["metadata"]["uid"])
    except (ForbiddenError, NotFoundError) as error:
        log.warning("may not read namespace kube-system, so the cluster is reported without an identity: %s", error)
        return ""


async def no_pods_of(api: ApiServer, lease: LeaseKeeper, agent: str, stop: StopRun) -> bool:
    """Return whether no pod of the run is alive in any namespace; delete those that are, with its grace. Raises KubeError.

    Pods of an agent with another name are alive as well, and are left alone: this agent may have been renamed, or they are of another
    installation with a run of the same id.
    """
    alive = False
    async for pods, _ in api.pages(PODS, None, selector=f"{LABEL_RUN}={stop.run}"):
        for pod in pods:
            if pod.get("status", {}).get("phase") in _ENDED:
                continue
            alive = True
            metadata = pod["metadata"]
            owner = metadata.get("labels", {}).get(LABEL_AGENT, "")
            if owner != agent:
                log.warning(
                    "pod %s of this run is of an agent for cluster %r, this one is for %r: it is left alone, and the run counts"
                    " as alive. If this agent was renamed, give it its earlier name again (cluster in its configuration)",
                    metadata["name"],
                    owner,
                    agent,
                    extra={"run_id": stop.run},
                )
                continue
            if metadata.get("deletionTimestamp"):
                continue
            log.warning("deleting pod %s: its run has no record here", metadata["name"], extra={"run_id": stop.run})
            await lease.confirm()
            with contextlib.suppress(NotFoundError, ConflictError):
                await api.delete(
                    PODS, metadata["namespace"], metadata["name"], uid=metadata["uid"], grace=round(stop.grace_seconds)
                )
    return not alive
