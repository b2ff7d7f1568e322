"""Defaults that hold for most in-cluster schedulers; each placement overrides what differs. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from trainmaster.workload_kinds.kind import WorkloadKind
from trainmaster_agent.kube.paths import Resource
from trainmaster_agent.kube.pods import PodSight
from trainmaster_agent.placement.manifests import run_of_label
from trainmaster_agent.placement.port import Gang, KubeObject, PlacementPort


class PlacementDefaults:
    """A real gang scheduler that recognises gangs by our labels and lets recreated members rejoin."""

    __slots__ = ()

    @property
    def emulated(self) -> bool:
        return False

    @property
    def holders(self) -> tuple[Resource, ...]:
        return ()

    @property
    def restarts(self) -> bool:
        return True

    @property
    def rejoins(self) -> bool:
        return True

    @property
    def for_shared_claims(self) -> PlacementPort | None:
        return None

    @property
    def follows_numa_of_nodes(self) -> bool:
        return False

    @property
    def requests_nodes(self) -> bool:
        return False

    def dress_alone(self, pod: dict[str, Any]) -> None:
        """Add nothing: the default scheduler places it."""

    @property
    def for_workloads(self) -> PlacementPort | None:
        return cast(PlacementPort, self)  # what derives from this class is one

    def takes_object(self, kind: WorkloadKind) -> bool:
        return True

    def dress_object(self, gang: Gang, kind: WorkloadKind, body: dict[str, Any]) -> None:
        """Add nothing: the templates have all that is needed."""

    @property
    def watched(self) -> tuple[Resource, ...]:
        return ()

    @property
    def created(self) -> tuple[Resource, ...]:
        return self.watched

    def run_of(self, obj: Mapping[str, Any]) -> str | None:
        return run_of_label(obj)

    def objects(self, gang: Gang) -> tuple[KubeObject, ...]:
        return ()

    def tries_again_after(self, gang: Gang, pods: Sequence[PodSight]) -> Resource | None:
        return None

    def explained_by_events(self, objects: Sequence[Mapping[str, Any]]) -> str:
        return ""
