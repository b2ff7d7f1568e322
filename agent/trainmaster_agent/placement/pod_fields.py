"""Fields of pods that a placement sets, for objects whose APIs have a place for some of them only. Pure."""

from typing import Any

from trainmaster_agent.placement.port import Gang, GangRole, PlacementPort

_ROLE = GangRole("main", 2, 2, {})
_GANG = Gang(run="run", namespace="jobs", queue="default", labels={}, owner={}, roles=(_ROLE,), least=2)


def pod_fields(placement: PlacementPort) -> frozenset[str]:
    """Return the fields of a pod's specification that a placement sets in the members of a gang."""
    pod: dict[str, Any] = {"metadata": {}, "spec": {}}
    placement.dress(_GANG, _ROLE, pod)
    return frozenset(pod["spec"])
