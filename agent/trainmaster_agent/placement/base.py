"""What holds for most in-cluster schedulers; each placement says where it differs. Pure."""

from collections.abc import Mapping
from typing import Any

from trainmaster_agent.kube.paths import Resource
from trainmaster_agent.placement.manifests import run_of_label
from trainmaster_agent.placement.port import Gang, KubeObject


class Usual:
    """A real gang scheduler that is asked by labels of ours, and takes members back into their gang."""

    __slots__ = ()

    @property
    def emulated(self) -> bool:
        return False

    @property
    def rejoins(self) -> bool:
        return True

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
