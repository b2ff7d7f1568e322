"""What each placement writes, whole, beside files that were read by people. TRAINMASTER_WRITE_GOLDEN=1 writes them again."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.test_placement_gangs import ALONE, ELASTIC, ELASTIC_WORKERS, ON_A_RACK, RACK, WHOLE, a_pod
from trainmaster_agent.placement.coscheduling import Coscheduling
from trainmaster_agent.placement.gates import Gates
from trainmaster_agent.placement.kai import Kai
from trainmaster_agent.placement.kueue import Kueue
from trainmaster_agent.placement.native import Native
from trainmaster_agent.placement.port import Gang, PlacementPort
from trainmaster_agent.placement.queues import QueueRules
from trainmaster_agent.placement.volcano import Volcano
from trainmaster_agent.placement.yunikorn import YuniKorn

FOLDER = Path(__file__).parent / "golden" / "placement"

NATIVE = Native("v1alpha2", topology=True, priority_class="trainmaster")
NATIVE_1_37 = Native("v1beta1", topology=True, priority_class="trainmaster")
VOLCANO = Volcano(queues=QueueRules(default="default"), priority_class="trainmaster", tiers={RACK: 1}, numa=True)
KAI = Kai(priority_class="trainmaster", topologies={RACK: "cluster-topology"})
YUNIKORN = YuniKorn(queues=QueueRules({"research": "root.research"}))
KUEUE = Kueue(queues=QueueRules(default="user-queue"), levels=(RACK,))

GANGS: dict[str, tuple[PlacementPort, Gang]] = {
    "native-gang": (NATIVE, ON_A_RACK),
    "native-alone": (NATIVE, ALONE),
    "native-elastic": (NATIVE, ELASTIC_WORKERS),
    "native-1.37-gang": (NATIVE_1_37, ON_A_RACK),
    "gates-gang": (Gates(), ON_A_RACK),
    "gates-alone": (Gates(), ALONE),
    "gates-elastic": (Gates(), ELASTIC),
    "volcano-gang": (VOLCANO, ON_A_RACK),
    "volcano-alone": (VOLCANO, ALONE),
    "volcano-elastic": (VOLCANO, ELASTIC),
    "kai-gang": (KAI, ON_A_RACK),
    "kai-alone": (KAI, ALONE),
    "kai-elastic": (KAI, ELASTIC),
    "yunikorn-gang": (YUNIKORN, WHOLE),
    "yunikorn-alone": (YUNIKORN, ALONE),
    "yunikorn-elastic": (YUNIKORN, ELASTIC),
    "coscheduling-gang": (Coscheduling(), WHOLE),
    "coscheduling-alone": (Coscheduling(), ALONE),
    "coscheduling-elastic": (Coscheduling(), ELASTIC_WORKERS),
    "kueue-gang": (KUEUE, ON_A_RACK),
    "kueue-alone": (KUEUE, ALONE),
}


def manifests_of(placement: PlacementPort, gang: Gang) -> list[dict[str, Any]]:
    """Return the objects, then the first pod of each role."""
    pods = []
    for role in gang.roles:
        pod = a_pod(gang, role)
        placement.dress(gang, role, pod)
        pods.append(pod)
    return [*(one.body for one in placement.objects(gang)), *pods]


@pytest.mark.parametrize("name", GANGS)
def test_what_is_written_for(name: str) -> None:
    placement, gang = GANGS[name]
    path = FOLDER / f"{name}.yaml"
    written = manifests_of(placement, gang)
    if os.environ.get("TRAINMASTER_WRITE_GOLDEN"):
        path.write_text(yaml.dump_all(written, Dumper=_Plain, sort_keys=False, width=120))
    assert placement.lacks(gang) is None
    assert written == list(yaml.safe_load_all(path.read_text()))


def test_there_is_a_gang_for_each_file() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == GANGS.keys()


@pytest.mark.parametrize("name", GANGS)
def test_objects_have_the_labels_and_the_owner_of_the_run(name: str) -> None:
    placement, gang = GANGS[name]
    for resource, body in placement.objects(gang):
        assert (body["apiVersion"], body["kind"]) == (resource.version, resource.kind)
        metadata = body["metadata"]
        assert (metadata["name"], metadata["namespace"]) == (gang.run, gang.namespace)
        assert metadata["ownerReferences"] == [gang.owner]
        assert placement.run_of(body) == gang.run


@pytest.mark.parametrize("name", GANGS)
def test_labels_are_short_enough_for_the_longest_run(name: str) -> None:
    placement, gang = GANGS[name]
    for manifest in manifests_of(placement, replace(gang, run="r" * 63)):
        assert all(len(value) <= 63 for value in manifest["metadata"]["labels"].values())


class _Plain(yaml.SafeDumper):
    """Without anchors: what several objects share is written in each."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
