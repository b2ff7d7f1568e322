"""What a member gets: who it is and where the others are."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.jobs import JobSpec
from trainmaster_agent.member_env import LocalSeat, Seat, local_seats, member_environment, processes_per_member, seats


def run(*roles: tuple[str, int], sizes: dict[str, int] | None = None) -> StartRun:
    spec: dict[str, Any] = {"roles": [{"name": name, "replicas": size} for name, size in roles]}
    return StartRun(
        run="bert-7k2p9xq-r3",
        job="bert-7k2p9xq",
        queue="research/nlp",
        attempt=3,
        token=3,
        generation=1,
        spec=spec,
        sizes=dict(roles) if sizes is None else sizes,
        placement_timeout_seconds=300,
    )


def environments(start: StartRun, restarts: int = 0, processes: dict[str, int] | None = None) -> list[dict[str, str]]:
    everyone = seats(start)
    addresses = {seat: (f"host{seat.rank}", 20_000 + seat.rank) for seat in everyone}
    return [
        member_environment(start, seat, everyone, addresses, restarts, processes=processes or {}) for seat in everyone
    ]


TWO_ROLES = run(("launcher", 1), ("worker", 2))


def test_ranks_count_over_all_roles_in_the_order_of_the_specification() -> None:
    assert seats(TWO_ROLES) == (Seat("launcher", 0, 0), Seat("worker", 0, 1), Seat("worker", 1, 2))


def test_ranks_have_no_gap_where_an_elastic_job_starts_small() -> None:
    small = run(("launcher", 1), ("extra", 4), ("worker", 8), sizes={"launcher": 1, "worker": 2, "extra": 0})
    assert [(seat.role, seat.rank) for seat in seats(small)] == [("launcher", 0), ("worker", 1), ("worker", 2)]
    assert [env["WORLD_SIZE"] for env in environments(small)] == ["3", "3", "3"]
    assert [env["TRAINMASTER_ROLE_SIZE"] for env in environments(small)] == ["1", "2", "2"]


def test_a_member_knows_who_it_is() -> None:
    env = environments(TWO_ROLES, restarts=2)[2]
    assert {
        key.removeprefix("TRAINMASTER_"): value for key, value in env.items() if key.startswith("TRAINMASTER_")
    } == {
        "JOB_ID": "bert-7k2p9xq",
        "RUN_ID": "bert-7k2p9xq-r3",
        "RUN_TOKEN": "3",
        "ATTEMPT": "3",
        "QUEUE": "research/nlp",
        "MEMBER": "bert-7k2p9xq-r3-worker-1",
        "ROLE": "worker",
        "ROLE_INDEX": "1",
        "ROLE_SIZE": "2",
        "RANK": "2",
        "WORLD_SIZE": "3",
        "ADDRESS": "host2:20002",
        "HOST": "host2",
        "PORT": "20002",
        "ADDRESSES": "host0:20000,host1:20001,host2:20002",
        "RESTARTS": "2",
        "PROCESSES": "1",
        "ADDRESS_LAUNCHER_0": "host0:20000",
        "ADDRESS_WORKER_0": "host1:20001",
        "ADDRESS_WORKER_1": "host2:20002",
    }


def test_pytorch_finds_what_it_reads() -> None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    assert [[env[name] for name in names] for env in environments(TWO_ROLES)] == [
        [str(rank), "3", "0", "1", "host0", "20000"] for rank in range(3)
    ]


@pytest.mark.parametrize(
    ("option", "value"), [("NNODES", "3"), ("NODE_RANK", "1"), ("NPROC_PER_NODE", "1"), ("MASTER_ADDR", "host0")]
)
def test_torchrun_takes_its_options_from_the_environment(option: str, value: str) -> None:
    assert environments(TWO_ROLES)[1][f"PET_{option}"] == value


@pytest.mark.parametrize(
    ("resources", "processes"),
    [
        ({"cpu": "4"}, "1"),
        ({"nvidia.com/gpu": "8", "cpu": "64"}, "8"),
        ({"amd.com/gpu": "4"}, "4"),
        ({"gpu.intel.com/xe": "2"}, "2"),
        ({"nvidia.com/mig-1g.10gb": "3"}, "3"),
        ({"nvidia.com/gpu.shared": "2"}, "2"),
        ({"habana.ai/gaudi": "8"}, "8"),
        ({"huawei.com/Ascend910": "8"}, "8"),
        ({"aws.amazon.com/neuroncore": "16"}, "16"),
        ({"nvidia.com/gpu": "8", "rdma/hca": "8"}, "8"),
        ({"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "4000"}, "1"),
        ({"rdma/hca": "2"}, "1"),
        ({"vpc.amazonaws.com/efa": "4"}, "1"),
    ],
)
@pytest.mark.parametrize("is_pod", [False, True])
def test_torchrun_starts_a_process_for_each_gpu_of_its_member(
    resources: dict[str, str], processes: str, *, is_pod: bool
) -> None:
    container = {"name": "main", "image": "example.com/train", "resources": {"requests": resources}}
    wide = (
        {"podTemplate": {"spec": {"containers": [container]}}}
        if is_pod
        else {"template": {"command": ["true"], "resources": resources}}
    )
    launcher = {"name": "launcher", "template": {"command": ["true"]}}
    spec = JobSpec.model_validate({"name": "bert", "queue": "q", "roles": [launcher, {"name": "worker", **wide}]})
    first, second = environments(run(("launcher", 1), ("worker", 1)), processes=processes_per_member(spec))
    assert (first["PET_NPROC_PER_NODE"], second["PET_NPROC_PER_NODE"]) == ("1", processes)
    assert (first["TRAINMASTER_PROCESSES"], second["TRAINMASTER_PROCESSES"]) == ("1", processes)
    assert second["LOCAL_WORLD_SIZE"] == "1", "without torchrun a member is one process"


@pytest.mark.parametrize(
    ("devices", "processes"),
    [
        ([("gpu.nvidia.com", 8)], 8),
        ([("mig.nvidia.com", 2)], 2),
        ([("gpu.nvidia.com", 4), ("dranet-nic", 4)], 4),
        ([("h100-for-research", 4)], 4),
        ([("dranet-nic", 4)], 1),
        ([("large", 1), ("small", 2)], 1),
    ],
)
def test_devices_by_claims_are_processes_as_well(devices: list[tuple[str, int]], processes: int) -> None:
    """Devices of a class whose name says nothing count if there are no others."""
    requests = [{"name": f"r{number}", "class": name, "count": many} for number, (name, many) in enumerate(devices)]
    worker = {"name": "worker", "template": {"command": ["true"], "devices": requests}}
    spec = JobSpec.model_validate({"name": "bert", "queue": "q", "roles": [worker]})
    assert processes_per_member(spec) == {"worker": processes}


def test_devices_by_claims_of_a_pod_template_are_processes_as_well() -> None:
    claim = {"name": "gpus", "resourceClaimTemplateName": "two-gpus"}
    container = {"name": "main", "image": "train:1", "resources": {"claims": [{"name": "gpus"}]}}
    pod = {"spec": {"containers": [container], "resourceClaims": [claim]}}
    worker = {"name": "worker", "podTemplate": pod, "claimTemplates": {"two-gpus": {"gpu.nvidia.com": 2}}}
    spec = JobSpec.model_validate({"name": "bert", "queue": "q", "roles": [worker]})
    assert processes_per_member(spec) == {"worker": 2}


def test_members_of_one_node_are_ranked_among_themselves() -> None:
    first, second, third = seats(TWO_ROLES)
    found = local_seats({third: "a", first: "a", second: "b"})
    assert found == {first: LocalSeat(0, 2), third: LocalSeat(1, 2), second: LocalSeat(0, 1)}


def test_a_local_rank_is_given_only_where_the_node_is_known() -> None:
    everyone = seats(TWO_ROLES)
    addresses = dict.fromkeys(everyone, ("h", 1))
    given = member_environment(TWO_ROLES, everyone[1], everyone, addresses, processes={}, local=LocalSeat(1, 2))
    assert (given["TRAINMASTER_LOCAL_RANK"], given["TRAINMASTER_LOCAL_SIZE"]) == ("1", "2")
    assert given["LOCAL_RANK"] == "0", "a member sees its own devices only"
    assert not any("TRAINMASTER_LOCAL_" in name for env in environments(TWO_ROLES) for name in env)


def test_roles_with_dashes_have_variables_that_shells_can_name() -> None:
    env = environments(run(("param-server", 1), ("w", 2), ("w-1", 1)))[0]
    assert env["TRAINMASTER_ADDRESS_PARAM_SERVER_0"] == "host0:20000"
    assert env["TRAINMASTER_ADDRESS_W_1"] == "host2:20002"
    assert env["TRAINMASTER_ADDRESS_W_1_0"] == "host3:20003"


names = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,10}[a-z0-9])?", fullmatch=True)


@given(st.lists(st.tuples(names, st.integers(1, 4)), min_size=1, max_size=4, unique_by=lambda role: role[0]))
def test_everyone_has_a_rank_of_their_own_and_all_agree_on_who_is_where(roles: list[tuple[str, int]]) -> None:
    all_of_them = environments(run(*roles))
    assert sorted(int(env["RANK"]) for env in all_of_them) == list(range(sum(size for _, size in roles)))
    assert len({env["TRAINMASTER_MEMBER"] for env in all_of_them}) == len(all_of_them)
    for name in ("TRAINMASTER_ADDRESSES", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"):
        assert len({env[name] for env in all_of_them}) == 1
    for env in all_of_them:
        assert env["TRAINMASTER_ADDRESSES"].split(",")[int(env["RANK"])] == env["TRAINMASTER_ADDRESS"]
        role = env["TRAINMASTER_ROLE"].upper().replace("-", "_")
        assert env[f"TRAINMASTER_ADDRESS_{role}_{env['TRAINMASTER_ROLE_INDEX']}"] == env["TRAINMASTER_ADDRESS"]
