"""Plans of the local runtime grow with the gang and not with its square, and a node has a maximum number of members."""

import orjson
import pytest

from trainmaster.cluster_model.packing import PackingShortfall
from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.jobs import JobSpec
from trainmaster_agent.member_env import member_environment, seats
from trainmaster_agent.runtime.local.config import LocalCluster, LocalNodes
from trainmaster_agent.runtime.local.layout import RunPlan
from trainmaster_agent.runtime.local.local_capacity import LocalCapacity
from trainmaster_agent.runtime.local.plan import make_plan
from trainmaster_agent.runtime.local.records import LocalRecord


def gang(members: int) -> tuple[StartRun, JobSpec]:
    half = members // 2
    roles = [
        {"name": "first", "replicas": half, "template": {"command": ["true"], "env": {"WORLD_SIZE": "mine", "A": "1"}}},
        {"name": "second", "replicas": members - half, "template": {"command": ["true"]}},
    ]
    spec = JobSpec.model_validate({"name": "gang", "queue": "q", "roles": roles})
    start = StartRun(
        run="gang-7k2p9xq-r1",
        job="gang-7k2p9xq",
        queue="q",
        attempt=1,
        token=1,
        generation=1,
        spec=spec.to_wire(),
        sizes={"first": half, "second": members - half},
        placement_timeout_seconds=300,
    )
    return start, spec


def plan_of(members: int) -> tuple[StartRun, RunPlan]:
    start, spec = gang(members)
    record = LocalRecord(start=start, accepted_at=0.0, boot="boot")
    nodes = {"node": dict(start.sizes)}
    return start, make_plan(record, spec, 1, nodes, {}, {}, list(range(20_000, 20_000 + members)))


def test_a_plan_of_ten_times_as_many_members_is_ten_times_as_large() -> None:
    small, large = (len(orjson.dumps(plan_of(members)[1])) for members in (200, 2_000))
    assert large < 12 * small


def test_each_member_is_told_what_it_was_told_before() -> None:
    start, plan = plan_of(6)
    everyone = seats(start)
    addresses = {seat: ("127.0.0.1", 20_000 + seat.rank) for seat in everyone}
    for seat, member in zip(everyone, plan["members"], strict=True):
        env = {**plan["env"], **member["env"]}
        expected = member_environment(start, seat, everyone, addresses, processes={})
        if seat.role == "first":
            expected |= {"WORLD_SIZE": "mine", "A": "1"}
        assert {name: env.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("nodes", "most"),
    [
        (LocalNodes(allocatable={"cpu": "2"}), 128),
        (LocalNodes(allocatable={"cpu": "500m"}), 64),
        (LocalNodes(allocatable={"memory": "1Gi"}), 64),
        (LocalNodes(allocatable={"cpu": "2"}, members=5), 5),
    ],
)
def test_a_node_takes_so_many_members_though_they_request_nothing(nodes: LocalNodes, most: int) -> None:
    capacity = LocalCapacity(LocalCluster(nodes=(nodes,)))
    start, spec = gang(most)
    found = capacity.find(spec, start.sizes)
    assert not isinstance(found, PackingShortfall)
    capacity.take(start.run, capacity.use(spec, found))
    one_more, small = gang(2)
    assert isinstance(capacity.find(small, one_more.sizes), PackingShortfall)
    capacity.give_back(start.run)
    assert not isinstance(capacity.find(small, one_more.sizes), PackingShortfall)
    too_many, large = gang(most + 1)
    lack = capacity.find(large, too_many.sizes, empty=True)
    assert isinstance(lack, PackingShortfall)
    assert "pods" in str(lack)


def test_what_a_cluster_reports_has_no_pods_that_nobody_requests() -> None:
    (group,) = LocalCapacity(LocalCluster(nodes=(LocalNodes(allocatable={"cpu": "2"}),))).report().groups
    assert group.free == {"cpu": 2000}


def test_devices_are_given_as_far_as_the_configuration_declares_their_class() -> None:
    gpu = "deviceclass.resource.kubernetes.io/gpu"
    capacity = LocalCapacity(LocalCluster(nodes=(LocalNodes(allocatable={"cpu": "2", gpu: "3"}),)))
    template = {"command": ["true"], "devices": [{"name": "gpu", "class": "gpu", "count": 2}]}
    spec = JobSpec.model_validate(
        {"kind": "Job", "name": "j", "queue": "q", "roles": [{"name": "main", "template": template}]}
    )
    found = capacity.find(spec, {"main": 1})
    assert not isinstance(found, PackingShortfall)
    capacity.take("j-1-r1", capacity.use(spec, found))
    lack = capacity.find(spec, {"main": 1})
    assert isinstance(lack, PackingShortfall)
    assert gpu in str(lack)


def test_devices_that_members_share_are_used_once() -> None:
    resource = "deviceclass.resource.kubernetes.io/gpu"
    capacity = LocalCapacity(LocalCluster(nodes=(LocalNodes(count=2, allocatable={"cpu": "4", resource: "1"}),)))
    template = {
        "command": ["x"],
        "resources": {"cpu": "1"},
        "devices": [{"name": "gpu", "class": "gpu", "sharedBy": 2}],
    }
    spec = JobSpec.model_validate(
        {"name": "a", "queue": "q", "roles": [{"name": "worker", "replicas": 4, "template": template}]}
    )
    places = capacity.find(spec, {"worker": 4})
    assert not isinstance(places, PackingShortfall)
    assert sorted(roles["worker"] for roles in places.values()) == [2, 2]
    used = capacity.use(spec, places)
    assert all(amounts == {"cpu": 2000, resource: 1, "pods": 2} for amounts in used.values())
    capacity.take("a-r1", used)
    assert isinstance(capacity.find(spec, {"worker": 2}), PackingShortfall)
    capacity.give_back("a-r1")
    assert not isinstance(capacity.find(spec, {"worker": 4}), PackingShortfall)
