"""What the agent creates for a run, and what it passes to its members: scenarios of runs, and the manifests that come of them."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from tests.unit.test_placement_golden import KAI, KUEUE, NATIVE, VOLCANO, YUNIKORN
from tests.unit.workload_manifests import SAMPLES
from trainmaster.protocol.admission import AdmissionPolicy, check_pod_template
from trainmaster.protocol.agent import HOST_LEVEL, StartRun
from trainmaster.protocol.files import MemberFiles
from trainmaster.protocol.quantities import parse_resources
from trainmaster.workload_kinds.specification import translated
from trainmaster_agent.capacity.shared_gpus import GpuParts
from trainmaster_agent.kube.pods import LABEL_INDEX, LABEL_ROLE, LABEL_ROUND, LABEL_RUN, RESULTS_PATH
from trainmaster_agent.placement.coscheduling import Coscheduling
from trainmaster_agent.placement.gates import GATE, Gates
from trainmaster_agent.placement.kueue import Kueue
from trainmaster_agent.placement.native import Native
from trainmaster_agent.placement.port import PlacementPort
from trainmaster_agent.placement.queues import QueueRules
from trainmaster_agent.runtime.kubernetes.config import AwaitNames, FilesConfig, ImageEntryPoints
from trainmaster_agent.runtime.kubernetes.environment import MOST_LISTED
from trainmaster_agent.runtime.kubernetes.manifests import Manifests, roster_name
from trainmaster_agent.runtime.kubernetes.record import KubeRunRecord, Progress
from trainmaster_agent.runtime.kubernetes.run_spec import facts_of

RUN = "bert-7k2p9xq-r3"
PORT = 29500
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PLACEMENTS: tuple[PlacementPort, ...] = (NATIVE, Gates(), VOLCANO, KAI, YUNIKORN, Coscheduling(), KUEUE)
TEMPLATE: dict[str, Any] = {"image": "train:1", "command": ["python", "train.py"], "resources": {"cpu": "4"}}
POD: dict[str, Any] = {
    "metadata": {"labels": {"team": "nlp"}, "annotations": {"note": "x"}},
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "train:1",
                "ports": [{"containerPort": 4000}],
                "env": [{"name": "RANK", "value": "mine"}, {"name": "LOG", "value": "debug"}],
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
                "resources": {"requests": {"cpu": "1"}},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            },
            {
                "name": "sidecar",
                "image": "logs:1",
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            },
        ],
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    },
}


def role(name: str = "worker", replicas: int = 1, **fields: Any) -> dict[str, Any]:
    own = {} if "podTemplate" in fields else {"template": TEMPLATE | fields.pop("template", {})}
    return {"name": name, "replicas": replicas, **own, **fields}


def made(
    *roles: dict[str, Any],
    placement: PlacementPort | None = None,
    policy: AdmissionPolicy | None = None,
    progress: Progress | None = None,
    run_as_user: int | None = None,
    await_names: AwaitNames | None = None,
    files: FilesConfig | None = None,
    entry_points: ImageEntryPoints | None = None,
    reads_entry_point: bool = False,
    levels: dict[str, str] | None = None,
    pins: dict[str, dict[str, int]] | None = None,
    products: dict[str, tuple[str, str]] | None = None,
    holder: str = "",
    prefers_nodes: bool = False,
    gpu_parts: GpuParts | None = None,
    **spec: Any,
) -> Manifests:
    start = StartRun(
        run=RUN,
        job="bert-7k2p9xq",
        queue="research/nlp",
        attempt=3,
        token=7,
        generation=1,
        spec={"kind": "Job", "name": "bert", "queue": "research/nlp", "roles": list(roles), **spec},
        sizes={one["name"]: one["replicas"] for one in roles},
        pins=pins or {},
        placement_timeout_seconds=300,
        member_files=MemberFiles(url="http://agent:8471/v1/files/RUN", token="secret") if files else None,
        reads_entry_point=reads_entry_point or entry_points is not None,
    )

    def products_of(groups: Iterable[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for label, product in ((products or {})[group] for group in groups if group in (products or {})):
            found.setdefault(label, []).append(product)
        return found

    return Manifests(
        KubeRunRecord(start, "jobs", term=2, progress=progress or Progress(), owner_uid="uid-of-namespace"),
        facts_of(start),
        placement or Native("v1alpha2"),
        agent="north",
        levels=levels or {},
        policy=policy or AdmissionPolicy(),
        priority_class="trainmaster",
        port=PORT,
        products=products_of,
        run_as_user=run_as_user,
        await_names=await_names,
        files=files,
        entry_points=entry_points,
        holder=holder,
        prefers_nodes=prefers_nodes,
        gpu_parts=gpu_parts,
    )


def env_of(pod: dict[str, Any], container: int = 0) -> dict[str, str]:
    listed = pod["spec"]["containers"][container]["env"]
    assert len({one["name"] for one in listed}) == len(listed), "a variable is there twice"
    return {one["name"]: one["value"] for one in listed}


def member_env(manifests: Manifests, role: str = "worker", index: int = 0) -> dict[str, str]:
    return env_of(manifests.pod(role, index))


class TestAMemberAlone:
    def test_the_whole_manifest(self) -> None:
        pod = made(role(), timeLimit="1h").pod("worker", 0)
        del pod["spec"]["containers"][0]["env"]
        assert pod == {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "bert-7k2p9xq-r3-worker-0",
                "namespace": "jobs",
                "labels": {
                    "app.kubernetes.io/managed-by": "trainmaster",
                    "trainmaster.dev/agent": "north",
                    "trainmaster.dev/run": RUN,
                    "trainmaster.dev/job": "bert-7k2p9xq",
                    "trainmaster.dev/role": "worker",
                    "trainmaster.dev/index": "0",
                },
                "annotations": {
                    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                    "trainmaster.dev/queue": "research/nlp",
                },
                # Without "controller", kubectl drain NODE refuses: "cannot delete Pods that declare no controller".
                "ownerReferences": [
                    {
                        "apiVersion": "v1",
                        "kind": "Namespace",
                        "name": "jobs",
                        "uid": "uid-of-namespace",
                        "controller": True,
                    }
                ],
            },
            "spec": {
                "restartPolicy": "Never",
                "priorityClassName": "trainmaster",
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "terminationGracePeriodSeconds": 10,
                "activeDeadlineSeconds": 3660,
                "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}, "runAsNonRoot": True},
                "containers": [
                    {
                        "name": "main",
                        "image": "train:1",
                        "command": ["python", "train.py"],
                        "resources": {"requests": {"cpu": "4"}, "limits": {"cpu": "4"}},
                        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                        "terminationMessagePath": RESULTS_PATH,
                    }
                ],
            },
        }

    def test_needs_neither_service_nor_roster_nor_a_group_of_the_scheduler(self) -> None:
        manifests = made(role())
        assert manifests.objects() == ()
        assert manifests.shared() == ()

    def test_meets_itself_at_localhost(self) -> None:
        env = member_env(made(role()))
        assert (env["MASTER_ADDR"], env["JAX_COORDINATOR_ADDRESS"]) == ("localhost", f"localhost:{PORT}")
        assert "TRAINMASTER_HOSTFILE" not in env

    def test_tells_how_often_it_was_started_again(self) -> None:
        again = Progress(round=2, gang_restarts=2, restarts={"worker-0": 3})
        pod = made(role(), progress=again).pod("worker", 0)
        assert env_of(pod)["TRAINMASTER_RESTARTS"] == "5"
        assert pod["metadata"]["labels"][LABEL_ROUND] == "2"


class TestAGang:
    def test_has_the_schedulers_group_then_its_roster_then_a_service_that_names_members_before_they_are_ready(
        self,
    ) -> None:
        group, roster, service = made(role(replicas=2)).objects()
        assert (group.resource.kind, group.body["metadata"]["name"]) == ("PodGroup", RUN)
        assert (roster.resource.kind, roster.body["metadata"]["name"]) == ("ConfigMap", roster_name(RUN))
        assert service.body["spec"] == {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {LABEL_RUN: RUN},
        }
        for one in (group, roster, service):
            assert one.body["metadata"]["ownerReferences"][0]["uid"] == "uid-of-namespace"
            assert one.body["metadata"]["namespace"] == "jobs"

    def test_every_member_has_a_stable_name_and_the_roster_mounted(self) -> None:
        pod = made(role("launcher"), role(replicas=2)).pod("worker", 1)
        spec = pod["spec"]
        assert (spec["hostname"], spec["subdomain"]) == ("worker-1", RUN)
        assert spec["schedulingGroup"] == {"podGroupName": RUN}
        assert spec["volumes"] == [{"name": "trainmaster-roster", "configMap": {"name": roster_name(RUN)}}]
        assert spec["containers"][0]["volumeMounts"] == [
            {"name": "trainmaster-roster", "mountPath": "/etc/trainmaster", "readOnly": True}
        ]

    def test_manifests_share_nothing_so_that_one_may_be_changed(self) -> None:
        manifests = made(role(replicas=2))
        first = manifests.pod("worker", 0)
        first["metadata"]["labels"]["changed"] = "yes"
        first["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "0"
        second = manifests.pod("worker", 1)
        assert "changed" not in second["metadata"]["labels"]
        assert second["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "4"}
        assert second["metadata"]["labels"][LABEL_INDEX] == "1"

    def test_of_gates_is_held_by_one_and_has_no_group(self) -> None:
        manifests = made(role(replicas=2), placement=Gates())
        assert [one.resource.kind for one in manifests.objects()] == ["ConfigMap", "Service"]
        assert manifests.pod("worker", 0)["spec"]["schedulingGates"] == [{"name": GATE}]

    def test_a_member_that_comes_to_a_gang_at_work_is_a_plain_pod_in_the_gangs_domain(self) -> None:
        manifests = made(role(replicas=2, template={"nodeSelector": {"pool": "a"}}))
        spec = manifests.pod("worker", 1, beside={"rack": "r7"})["spec"]
        assert "schedulingGroup" not in spec
        assert spec["nodeSelector"] == {"pool": "a", "rack": "r7"}

    def test_a_topology_level_is_told_to_the_scheduler_by_the_label_that_nodes_here_have(self) -> None:
        levels = {"rack": "example.com/rack"}
        assert made(role(replicas=2), levels=levels, topology={"required": "rack"}).gang.required == "example.com/rack"
        assert made(role(replicas=2), topology={"required": HOST_LEVEL}).gang.required == HOST_LEVEL

    def test_its_size_is_that_after_the_last_resize(self) -> None:
        manifests = made(role(replicas=4, minReplicas=1), progress=Progress(sizes={"worker": 2}), elastic={})
        assert manifests.size == 2
        assert member_env(manifests)["WORLD_SIZE"] == "2"
        roster, _ = manifests.shared()
        assert roster.body["data"]["addresses"].count("\n") == 2


class TestFrameworks:
    """What members of a run with a launcher and two workers get."""

    GANG = (role("launcher"), role(replicas=2, template={"ports": [{"name": "rdzv", "port": 4321}]}))

    def test_pytorch(self) -> None:
        env = member_env(made(*self.GANG), index=1)
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "PET_NNODES", "PET_NODE_RANK")
        assert [env[name] for name in names] == ["2", "3", "0", f"launcher-0.{RUN}", str(PORT), "3", "2"]

    def test_jax(self) -> None:
        env = member_env(made(*self.GANG), index=1)
        assert {name: value for name, value in env.items() if name.startswith("JAX_")} == {
            "JAX_COORDINATOR_ADDRESS": f"launcher-0.{RUN}:{PORT}",
            "JAX_COORDINATOR_PORT": str(PORT),
            "JAX_NUM_PROCESSES": "3",
            "JAX_PROCESS_ID": "2",
        }

    def test_mpi(self) -> None:
        manifests = made(*self.GANG)
        env = member_env(manifests, "launcher")
        for name in ("TRAINMASTER_HOSTFILE", "OMPI_MCA_orte_default_hostfile", "I_MPI_HYDRA_HOST_FILE"):
            assert env[name] == "/etc/trainmaster/hostfile"
        roster, _ = manifests.shared()
        hosts = [f"launcher-0.{RUN}", f"worker-0.{RUN}", f"worker-1.{RUN}"]
        assert roster.body["data"] == {
            "hostfile": "".join(f"{host} slots=1\n" for host in hosts),
            "addresses": f"{hosts[0]}:{PORT}\n{hosts[1]}:4321\n{hosts[2]}:4321\n",
        }

    def test_tensorflow_takes_all_members_for_workers_where_a_role_is_none_of_its_own(self) -> None:
        config = json.loads(member_env(made(*self.GANG), index=1)["TF_CONFIG"])
        assert config == {
            "cluster": {"worker": [f"launcher-0.{RUN}:{PORT}", f"worker-0.{RUN}:4321", f"worker-1.{RUN}:4321"]},
            "task": {"type": "worker", "index": 2},
        }

    def test_tensorflow_knows_its_own_roles(self) -> None:
        config = json.loads(member_env(made(role("chief"), role("ps", 2), role(replicas=2)), "ps", 1)["TF_CONFIG"])
        assert {kind: len(hosts) for kind, hosts in config["cluster"].items()} == {"chief": 1, "ps": 2, "worker": 2}
        assert config["task"] == {"type": "ps", "index": 1}

    def test_tensorflow_calls_a_master_chief(self) -> None:
        config = json.loads(member_env(made(role("master"), role()), "master")["TF_CONFIG"])
        assert config["task"] == {"type": "chief", "index": 0}

    @pytest.mark.parametrize(
        ("roles", "head"),
        [
            ((role(replicas=2), role("head")), f"head-0.{RUN}:6379"),
            ((role(replicas=2),), f"worker-0.{RUN}:6379"),
            ((role(),), "localhost:6379"),
        ],
        ids=["the role called head", "else the first member", "a member alone is its own"],
    )
    def test_ray(self, roles: tuple[dict[str, Any], ...], head: str) -> None:
        assert member_env(made(*roles))["TRAINMASTER_RAY_HEAD"] == head


class TestALargeGang:
    """Of more than 64 members: lists of all of them are files alone, so that a member's manifest does not grow with the gang."""

    def test_up_to_64_every_address_is_a_variable(self) -> None:
        env = member_env(made(role(replicas=MOST_LISTED)), index=9)
        assert env["TRAINMASTER_ADDRESSES"].count(",") == MOST_LISTED - 1
        assert env["TRAINMASTER_ADDRESS_WORKER_63"] == f"worker-63.{RUN}:{PORT}"
        assert "TF_CONFIG" in env

    def test_beyond_them_a_member_knows_the_first_itself_and_the_numbers(self) -> None:
        env = member_env(made(role("launcher"), role(replicas=1000)), index=41)
        assert [env[name] for name in ("RANK", "WORLD_SIZE", "PET_NNODES", "TRAINMASTER_WORLD_SIZE")] == [
            "42",
            "1001",
            "1001",
            "1001",
        ]
        assert (env["TRAINMASTER_ROLE_SIZE"], env["JAX_NUM_PROCESSES"]) == ("1000", "1001")
        assert env["MASTER_ADDR"] == f"launcher-0.{RUN}"
        assert {name for name in env if name.startswith("TRAINMASTER_ADDRESS")} == {
            "TRAINMASTER_ADDRESS",
            "TRAINMASTER_ADDRESSES_FILE",
            "TRAINMASTER_ADDRESS_LAUNCHER_0",
            "TRAINMASTER_ADDRESS_WORKER_41",
        }
        assert "TF_CONFIG" not in env

    def test_the_first_member_is_told_like_the_others(self) -> None:
        env = member_env(made(role(replicas=65)))
        assert (env["RANK"], env["WORLD_SIZE"], env["TRAINMASTER_ROLE_SIZE"]) == ("0", "65", "65")

    def test_a_members_manifest_does_not_grow_with_the_gang_and_the_roster_fits_a_config_map(self) -> None:
        huge, large = made(role(replicas=10_000)), made(role(replicas=100))
        assert len(json.dumps(huge.pod("worker", 9))) < len(json.dumps(large.pod("worker", 9))) + 100
        roster, _ = huge.shared()
        assert sum(map(len, roster.body["data"].values())) < 2**20


def results_of(pod: dict[str, Any], container: int = 0) -> tuple[str | None, str | None]:
    """Return where a container may leave results, as its pod and its environment say it."""
    path = pod["spec"]["containers"][container].get("terminationMessagePath")
    return path, env_of(pod, container).get("TRAINMASTER_RESULTS")


class TestResults:
    def test_are_left_by_the_first_container_of_the_first_member_alone(self) -> None:
        manifests = made(role("a", 2, podTemplate=POD), role("b"))
        assert results_of(manifests.pod("a", 0)) == (RESULTS_PATH, RESULTS_PATH)
        for container, name, index in ((1, "a", 0), (0, "a", 1), (0, "b", 0)):
            assert results_of(manifests.pod(name, index), container) == (None, None)

    @pytest.mark.parametrize(
        "own", [{"terminationMessagePath": "/dev/own"}, {"terminationMessagePolicy": "FallbackToLogsOnError"}]
    )
    def test_a_container_with_a_message_of_its_own_keeps_it(self, own: dict[str, str]) -> None:
        containers = [POD["spec"]["containers"][0] | own]
        pod = made(role(podTemplate={"spec": POD["spec"] | {"containers": containers}})).pod("worker", 0)
        assert results_of(pod) == (own.get("terminationMessagePath"), None)
        assert own.items() <= pod["spec"]["containers"][0].items()


class TestMaxPerNode:
    """Members are divided into as many sets, called hands, as may share a node; members of one hand never share a node."""

    @staticmethod
    def hand(pod: dict[str, Any]) -> str | None:
        labels: dict[str, str] = pod["metadata"]["labels"]
        return labels.get("trainmaster.dev/hand")

    def test_hands_are_dealt_in_turn(self) -> None:
        manifests = made(role(replicas=5, maxPerNode=2))
        assert [self.hand(manifests.pod("worker", index)) for index in range(5)] == [
            f"worker-{number}" for number in (0, 1, 0, 1, 0)
        ]

    def test_members_of_a_hand_keep_apart_by_host(self) -> None:
        pod = made(role(replicas=5, maxPerNode=2)).pod("worker", 3)
        assert pod["spec"]["affinity"]["podAntiAffinity"] == {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "labelSelector": {"matchLabels": {LABEL_RUN: RUN, "trainmaster.dev/hand": "worker-1"}},
                    "topologyKey": HOST_LEVEL,
                }
            ]
        }

    def test_node_affinity_stays_beside_it(self) -> None:
        terms = [{"key": "zone", "operator": "In", "values": ["a"]}]
        spec = made(role(replicas=2, maxPerNode=1, template={"nodeAffinity": terms})).pod("worker", 0)["spec"]
        assert set(spec["affinity"]) == {"nodeAffinity", "podAntiAffinity"}

    def test_as_many_as_there_are_need_no_rule(self) -> None:
        pod = made(role(replicas=2, maxPerNode=2)).pod("worker", 0)
        assert self.hand(pod) is None
        assert "affinity" not in pod["spec"]

    def test_roles_do_not_keep_apart_from_one_another(self) -> None:
        manifests = made(role("ps", 2, maxPerNode=1), role(replicas=2, maxPerNode=1))
        assert self.hand(manifests.pod("ps", 0)) != self.hand(manifests.pod("worker", 0))


class TestATemplate:
    def test_everything_that_it_may_say(self) -> None:
        full = {
            "args": ["--fast"],
            "workingDir": "/src",
            "env": {"DATA": "/data"},
            "ports": [{"name": "http", "port": 8080}],
            "resources": {"cpu": "500m", "memory": "1Gi", "nvidia.com/gpu": "2"},
            "nodeSelector": {"pool": "a"},
            "nodeAffinity": [{"key": "zone", "operator": "Exists"}],
            "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}, {"operator": "Exists"}],
        }
        manifests = made(role(template=full))
        spec = manifests.pod("worker", 0)["spec"]
        container = spec["containers"][0]
        assert (container["args"], container["workingDir"]) == (["--fast"], "/src")
        assert container["ports"] == [{"name": "http", "containerPort": 8080}]
        assert container["resources"]["requests"] == container["resources"]["limits"] == full["resources"]
        assert spec["nodeSelector"] == {"pool": "a"}
        assert spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] == {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]
        }
        assert spec["tolerations"] == [
            {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"operator": "Exists"},
        ]
        env = member_env(manifests)
        assert (env["DATA"], env["TRAINMASTER_PORT"]) == ("/data", "8080")
        assert manifests.gang.roles[0].requests == parse_resources(full["resources"])  # type: ignore[arg-type]

    def test_what_its_env_says_counts_before_what_the_agent_says(self) -> None:
        assert member_env(made(role(template={"env": {"RANK": "mine"}})))["RANK"] == "mine"

    def test_it_is_held_to_the_restricted_level(self) -> None:
        spec = made(role()).pod("worker", 0)["spec"]
        assert spec["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}, "runAsNonRoot": True}
        assert spec["containers"][0]["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }

    def test_under_the_baseline_policy_images_may_run_as_root(self) -> None:
        spec = made(role(), policy=AdmissionPolicy(level="baseline")).pod("worker", 0)["spec"]
        assert spec["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}

    def test_the_grace_of_its_pod_is_at_least_a_second(self) -> None:
        assert made(role(), stopGrace="100ms").pod("worker", 0)["spec"]["terminationGracePeriodSeconds"] == 1


PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
PRODUCT = "nvidia.com/gpu.product"
PLANNED: dict[str, Any] = {
    "pins": {"a100-1": {"worker": 1}, "cpu": {"launcher": 1}},
    "products": {"a100-1": (PRODUCT, "A100"), "v100-1": (PRODUCT, "V100")},
}
A_GPU = {"resources": {"cpu": "1", "nvidia.com/gpu": "1"}}


class TestThePlannedProduct:
    def test_is_preferred_by_members_that_take_a_device(self) -> None:
        manifests = made(role(template=A_GPU), role("launcher"), **PLANNED)
        terms = [{"key": PRODUCT, "operator": "In", "values": ["A100"]}]
        assert manifests.pod("worker", 0)["spec"]["affinity"] == {
            "nodeAffinity": {PREFERRED: [{"weight": 100, "preference": {"matchExpressions": terms}}]}
        }
        assert "affinity" not in manifests.pod("launcher", 0)["spec"]

    def test_stands_beside_what_the_job_requires(self) -> None:
        template = A_GPU | {"nodeAffinity": [{"key": "zone", "operator": "Exists"}]}
        affinity = made(role(template=template), **PLANNED).pod("worker", 0)["spec"]["affinity"]["nodeAffinity"]
        assert sorted(affinity) == [PREFERRED, "requiredDuringSchedulingIgnoredDuringExecution"]

    def test_gives_way_to_what_a_pod_prefers_itself(self) -> None:
        own = {"nodeAffinity": {PREFERRED: [{"weight": 1, "preference": {"matchExpressions": []}}]}}
        container = {"name": "main", "image": "i", "resources": {"requests": {"nvidia.com/gpu": "1"}}}
        template = {"spec": {"containers": [container], "affinity": own}}
        assert made(role(podTemplate=template), **PLANNED).pod("worker", 0)["spec"]["affinity"] == own

    @pytest.mark.parametrize("affinity", ["x", ["a"], {"nodeAffinity": "x"}, {"nodeAffinity": ["a"]}])
    def test_leaves_what_is_no_affinity_to_the_api_server(self, affinity: Any) -> None:
        container = {"name": "main", "image": "i", "resources": {"requests": {"nvidia.com/gpu": "1"}}}
        template = {"spec": {"containers": [container], "affinity": affinity}}
        assert made(role(podTemplate=template), **PLANNED).pod("worker", 0)["spec"]["affinity"] == affinity

    def test_says_nothing_where_it_is_not_known(self) -> None:
        manifests = made(role(template=A_GPU), pins={"gone": {"worker": 1}}, products=PLANNED["products"])
        assert "affinity" not in manifests.pod("worker", 0)["spec"]


class TestAPodTemplate:
    def test_is_kept_and_its_containers_all_know_who_they_are(self) -> None:
        pod = made(role(replicas=2, podTemplate=POD)).pod("worker", 1)
        assert pod["metadata"]["labels"]["team"] == "nlp"
        assert pod["metadata"]["labels"][LABEL_ROLE] == "worker"
        assert pod["metadata"]["annotations"] == {
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            "note": "x",
            "trainmaster.dev/queue": "research/nlp",
        }
        assert [env_of(pod, number)["WORLD_SIZE"] for number in range(2)] == ["2", "2"]
        assert (env_of(pod)["RANK"], env_of(pod)["LOG"]) == ("mine", "debug")
        assert env_of(pod, 1)["RANK"] == "1"

    def test_may_let_the_autoscaler_move_its_members(self) -> None:
        annotation = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
        pod = made(role(podTemplate={**POD, "metadata": {"annotations": annotation}})).pod("worker", 0)
        assert annotation.items() <= pod["metadata"]["annotations"].items()

    def test_declares_the_record_as_its_controller(self) -> None:
        owner = made(role(podTemplate=POD)).pod("worker", 0)["metadata"]["ownerReferences"][0]
        assert (owner["controller"], "blockOwnerDeletion" in owner) == (True, False)

    def test_keeps_its_volumes_beside_the_roster(self) -> None:
        pod = made(role(replicas=2, podTemplate=POD)).pod("worker", 1)
        assert [volume["name"] for volume in pod["spec"]["volumes"]] == ["scratch", "trainmaster-roster"]
        mounts = [[one["mountPath"] for one in container["volumeMounts"]] for container in pod["spec"]["containers"]]
        assert mounts == [["/scratch", "/etc/trainmaster"], ["/etc/trainmaster"]]

    def test_its_first_port_is_where_ranks_meet(self) -> None:
        assert member_env(made(role(replicas=2, podTemplate=POD)))["MASTER_PORT"] == "4000"

    def test_is_not_changed(self) -> None:
        before = json.dumps(POD)
        made(role(replicas=2, podTemplate=POD)).pod("worker", 0)
        assert json.dumps(POD) == before

    def test_one_that_the_policy_allows_has_no_mistakes(self) -> None:
        assert made(role(podTemplate=POD)).mistakes() == ()

    @pytest.mark.parametrize(
        ("spec", "where"),
        [
            ({"hostNetwork": True}, "spec.hostNetwork"),
            ({"serviceAccountName": "admin"}, "spec.serviceAccountName"),
            ({"priorityClassName": "high"}, "spec.priorityClassName"),
            ({"securityContext": {}}, "runAsNonRoot"),
            ({"volumes": [{"name": "root", "hostPath": {"path": "/"}}]}, "hostPath"),
        ],
        ids=["the network of its host", "a service account", "a priority", "root", "a path of its host"],
    )
    def test_what_opens_a_door_is_a_mistake_with_its_place(self, spec: dict[str, Any], where: str) -> None:
        wanted = {"metadata": {}, "spec": POD["spec"] | spec}
        mistakes = made(role("launcher"), role(podTemplate=wanted)).mistakes()
        assert any(one.path.startswith("roles.worker.podTemplate.") and where in one.path for one in mistakes), mistakes

    def test_the_baseline_policy_refuses_less(self) -> None:
        rooted = {"spec": POD["spec"] | {"securityContext": {}}}
        assert made(role(podTemplate=rooted)).mistakes()
        assert made(role(podTemplate=rooted), policy=AdmissionPolicy(level="baseline")).mistakes() == ()

    def test_a_plain_template_cannot_be_mistaken(self) -> None:
        assert made(role()).mistakes() == ()


class TestWhatATemplateReachesAndTakes:
    """Namespaces are shared: what a template says of pods holds for those of its own run, and nothing is used unrequested."""

    @staticmethod
    def spec_of(**spec: Any) -> Any:
        template = {"metadata": {"labels": {"team": "nlp"}}, "spec": POD["spec"] | spec}
        manifests = made(role(podTemplate=template))
        assert manifests.mistakes() == ()
        return manifests.pod("worker", 0)["spec"]

    def test_terms_about_pods_select_those_of_the_run_alone(self) -> None:
        term = {"labelSelector": {"matchLabels": {"team": "nlp"}}, "topologyKey": "topology.kubernetes.io/zone"}
        rules = {REQUIRED: [term], PREFERRED: [{"weight": 1, "podAffinityTerm": {**term, "labelSelector": {}}}]}
        spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
        spec = self.spec_of(
            affinity={"podAffinity": rules, "podAntiAffinity": rules}, topologySpreadConstraints=[spread]
        )
        for kind in ("podAffinity", "podAntiAffinity"):
            (required,), (preferred,) = spec["affinity"][kind][REQUIRED], spec["affinity"][kind][PREFERRED]
            assert required["labelSelector"] == {"matchLabels": {"team": "nlp", LABEL_RUN: RUN}}
            assert preferred["podAffinityTerm"]["labelSelector"] == {"matchLabels": {LABEL_RUN: RUN}}
        assert spec["topologySpreadConstraints"][0]["labelSelector"] == {"matchLabels": {LABEL_RUN: RUN}}

    def test_another_run_that_a_term_names_gives_way_to_the_own_one(self) -> None:
        other = {"matchLabels": {LABEL_RUN: "other-0000001-r1"}}
        term = {"labelSelector": other, "topologyKey": "zone", "matchLabelKeys": ["team", LABEL_RUN]}
        rules = {PREFERRED: [{"weight": 1, "podAffinityTerm": term}]}
        (found,) = self.spec_of(affinity={"podAntiAffinity": rules})["affinity"]["podAntiAffinity"][PREFERRED]
        assert found["podAffinityTerm"]["labelSelector"] == {"matchLabels": {LABEL_RUN: RUN}}
        assert found["podAffinityTerm"]["matchLabelKeys"] == ["team"]

    def test_a_term_without_a_selector_selects_nothing_as_before(self) -> None:
        spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
        assert self.spec_of(topologySpreadConstraints=[spread])["topologySpreadConstraints"] == [spread]

    @pytest.mark.parametrize(
        "spec",
        [
            {"topologySpreadConstraints": "x"},
            {"topologySpreadConstraints": [1, {"labelSelector": {"matchLabels": "x"}}]},
            {"affinity": {"podAffinity": {REQUIRED: {"a": 1}, PREFERRED: [{"podAffinityTerm": []}]}}},
            {"tolerations": [1], "initContainers": [{"resources": {"requests": {"memory": "1"}, "limits": None}}]},
        ],
    )
    def test_what_has_a_wrong_shape_is_a_mistake_and_raises_nothing(self, spec: dict[str, Any]) -> None:
        assert made(role(podTemplate={"spec": POD["spec"] | spec})).mistakes()

    def test_memory_and_disk_are_limited_to_what_a_container_requests(self) -> None:
        containers = [
            {**POD["spec"]["containers"][1], "name": name, "resources": resources}
            for name, resources in {
                "a": {"requests": {"cpu": "1", "memory": "2Gi", "ephemeral-storage": "50Gi"}},
                "b": {"requests": {"memory": "1Gi"}, "limits": {"memory": "4Gi", "cpu": "2"}},
                "c": {},
            }.items()
        ]
        spec = self.spec_of(containers=containers, initContainers=[{**containers[0], "name": "d"}])
        limits = {one["name"]: one["resources"].get("limits") for one in spec["containers"] + spec["initContainers"]}
        assert limits["a"] == limits["d"] == {"memory": "2Gi", "ephemeral-storage": "50Gi"}
        assert limits["b"] == {"memory": "4Gi", "cpu": "2"}
        assert limits["c"] is None, "the LimitRange of the namespace says"

    def test_containers_share_the_limit_of_their_pod(self) -> None:
        container = {**POD["spec"]["containers"][1], "resources": {"requests": {"memory": "1Gi"}}}
        spec = self.spec_of(containers=[container], volumes=[], resources={"limits": {"memory": "4Gi"}})
        assert spec["containers"][0]["resources"] == {"requests": {"memory": "1Gi"}}

    def test_a_plain_template_may_ask_for_disk(self) -> None:
        spec = made(role(template={"resources": {"cpu": "1", "ephemeral-storage": "50Gi"}})).pod("worker", 0)["spec"]
        resources = spec["containers"][0]["resources"]
        assert resources["limits"]["ephemeral-storage"] == resources["requests"]["ephemeral-storage"] == "50Gi"

    @pytest.mark.parametrize("placement", PLACEMENTS, ids=lambda one: type(one).__name__)
    def test_each_label_that_the_agent_sets_is_reserved(self, placement: PlacementPort) -> None:
        manifests = made(
            role(replicas=4, maxPerNode=2, podTemplate=POD), placement=placement, progress=Progress(round=1), holder="h"
        )
        alone = made(role(podTemplate=POD), placement=placement, topology={"exclusive": "node"})
        pods = (manifests.pod("worker", 0), alone.pod("worker", 0))
        set_by_agent = {key for pod in pods for key in pod["metadata"]["labels"]} - {"team"}
        assert len(set_by_agent) >= 6
        template = {"metadata": {"labels": dict.fromkeys(set_by_agent, "x")}, "spec": POD["spec"]}
        found = check_pod_template(template, AdmissionPolicy(labels=("*",)))
        assert {one.path for one in found} == {f'metadata.labels["{key}"]' for key in set_by_agent}


class TestTheUserOfMembers:
    """Most images run as root, which the level restricted forbids."""

    def test_a_member_that_names_none_is_the_agents_with_a_home(self) -> None:
        pod = made(role(), run_as_user=65532).pod("worker", 0)
        context = pod["spec"]["securityContext"]
        assert context["runAsNonRoot"] is True
        assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (65532, 65532, 65532)
        assert (env_of(pod)["HOME"], env_of(pod)["USER"]) == ("/tmp", "nonroot")

    def test_a_member_may_say_itself(self) -> None:
        template = {"runAsUser": 1000, "runAsGroup": 50, "env": {"HOME": "/home/trainer"}}
        pod = made(role(template=template), run_as_user=65532).pod("worker", 0)
        context = pod["spec"]["securityContext"]
        assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (1000, 50, 50)
        assert env_of(pod)["HOME"] == "/home/trainer"
        assert "USER" not in env_of(pod)

    def test_an_agent_may_leave_it_to_the_image(self) -> None:
        pod = made(role()).pod("worker", 0)
        assert "runAsUser" not in pod["spec"]["securityContext"]
        assert not {"HOME", "USER"} & set(env_of(pod))

    @pytest.mark.parametrize(("own", "user", "group"), [({}, 1000, 100), ({"runAsUser": 7, "runAsGroup": 8}, 7, 8)])
    def test_ray_runs_as_the_user_of_its_images(self, own: dict[str, int], user: int, group: int) -> None:
        container = {"name": "ray-head", "image": "rayproject/ray:2.52.0"}
        head = {"template": {"spec": {"containers": [container], "securityContext": own}}}
        spec = translated(
            {
                "apiVersion": "ray.io/v1",
                "kind": "RayCluster",
                "metadata": {"name": "ray", "annotations": {"trainmaster.dev/queue": "research/nlp"}},
                "spec": {"headGroupSpec": head},
            }
        ).spec
        for run_as_user, expected in ((65532, (user, group)), (None, (own.get("runAsUser"), own.get("runAsGroup")))):
            cluster = made(*spec["roles"], run_as_user=run_as_user, workload=spec["workload"]).workload()
            pod = cluster.body["spec"]["headGroupSpec"]["template"]["spec"]
            context = pod["securityContext"]
            assert (context.get("runAsUser"), context.get("runAsGroup")) == expected
            assert not {"HOME", "USER"} & {one["name"] for one in pod["containers"][0].get("env", [])}

    def test_root_is_refused_where_the_policy_is_restricted(self) -> None:
        rooted = role(template={"runAsUser": 0})
        assert [one.path for one in made(rooted).mistakes()] == ["roles.worker.template.runAsUser"]
        assert made(rooted, policy=AdmissionPolicy(level="baseline")).mistakes() == ()


class TestDevices:
    GPUS: Mapping[str, Any] = {
        "name": "gpu",
        "class": "gpu.example.com",
        "count": 2,
        "selectors": ["device.driver == 'x'"],
    }

    REQUEST: Mapping[str, Any] = {
        "name": "gpu",
        "exactly": {
            "deviceClassName": "gpu.example.com",
            "allocationMode": "ExactCount",
            "count": 2,
            "selectors": [{"cel": {"expression": "device.driver == 'x'"}}],
        },
    }

    def test_each_member_of_a_role_has_a_claim_of_the_roles_template(self) -> None:
        manifests = made(role(template={"devices": [self.GPUS]}), role("plain"))
        (template,) = [one.body for one in manifests.objects() if one.resource.plural == "resourceclaimtemplates"]
        assert template["metadata"]["name"] == f"{RUN}-worker"
        assert template["metadata"]["labels"][LABEL_RUN] == template["spec"]["metadata"]["labels"][LABEL_RUN] == RUN
        assert template["metadata"]["ownerReferences"]
        assert template["spec"]["spec"]["devices"]["requests"] == [self.REQUEST]
        pod = manifests.pod("worker", 0)["spec"]
        assert pod["resourceClaims"] == [{"name": "devices", "resourceClaimTemplateName": f"{RUN}-worker"}]
        assert pod["containers"][0]["resources"]["claims"] == [{"name": "devices"}]
        assert pod["containers"][0]["resources"]["requests"] == {"cpu": "4"}
        assert "resourceClaims" not in manifests.pod("plain", 0)["spec"]

    def test_members_that_share_devices_name_the_claim_of_their_group(self) -> None:
        manifests = made(role(replicas=4, template={"devices": [{**self.GPUS, "sharedBy": 2}]}), role("plain"))
        claims = [one.body for one in manifests.objects() if one.resource.plural == "resourceclaims"]
        assert [one["metadata"]["name"] for one in claims] == [f"{RUN}-worker-0", f"{RUN}-worker-1"]
        for one in claims:
            assert (one["apiVersion"], one["kind"]) == ("resource.k8s.io/v1", "ResourceClaim")
            assert one["metadata"]["labels"][LABEL_RUN] == RUN
            assert one["metadata"]["ownerReferences"]
            assert one["spec"]["devices"]["requests"] == [self.REQUEST]
        assert not [one for one in manifests.objects() if one.resource.plural == "resourceclaimtemplates"]
        pods = [manifests.pod("worker", index)["spec"] for index in range(4)]
        assert [pod["resourceClaims"] for pod in pods] == [
            [{"name": "devices", "resourceClaimName": f"{RUN}-worker-{number}"}] for number in (0, 0, 1, 1)
        ]
        assert all(pod["containers"][0]["resources"]["claims"] == [{"name": "devices"}] for pod in pods)
        assert "resourceClaims" not in manifests.pod("plain", 0)["spec"]

    @pytest.mark.parametrize("placement", PLACEMENTS)
    def test_schedulers_are_asked_for_what_pods_request_by_name(self, placement: PlacementPort) -> None:
        manifests = made(role(replicas=2, template={"devices": [self.GPUS]}), placement=placement)
        assert all(role.requests == {"cpu": 4000} for role in manifests.gang.roles)
        objects = [one.body for one in manifests.objects() if one.resource.plural != "resourceclaimtemplates"]
        assert "gpu.example.com" not in json.dumps(objects)

    def test_claims_that_were_not_counted_are_refused(self) -> None:
        claims = [{"name": "gpus", "resourceClaimTemplateName": "two-gpus"}]
        pod = {**POD, "spec": {**POD["spec"], "resourceClaims": claims}}
        policy = AdmissionPolicy(resource_claims=("*",))
        (mistake,) = made(role(podTemplate=pod), policy=policy).mistakes()
        assert mistake.path == "roles.worker.podTemplate.spec.resourceClaims[0].resourceClaimTemplateName"
        counted = role(podTemplate=pod, claimTemplates={"two-gpus": {"gpu": 2}})
        assert made(counted, policy=policy).mistakes() == ()


@pytest.mark.parametrize(
    ("kind", "path"), [("batch/v1 Job", ("suspend",)), ("kubeflow.org/v1 PyTorchJob", ("runPolicy", "suspend"))]
)
def test_an_object_that_kueue_is_to_admit_is_made_suspended(kind: str, path: tuple[str, ...]) -> None:
    spec = translated(SAMPLES[kind].manifest).spec
    placement = Kueue(queues=QueueRules(default="user-queue")).for_workloads
    body = made(*spec["roles"], workload=spec["workload"], placement=placement).workload().body
    suspended = body["spec"]
    for step in path:
        suspended = suspended[step]
    assert suspended is True
    assert body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "user-queue"
    assert "kueue.x-k8s.io" not in json.dumps(body["spec"]), "no pod group of plain pods"
    assert "schedulingGates" not in json.dumps(body["spec"])
