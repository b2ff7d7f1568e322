"""AppWrappers: the pods of their components, names on a cluster, Services between the pods, and what is refused."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import pytest

from tests.unit.test_kubernetes_manifests import RUN as RUN_ID
from tests.unit.test_kubernetes_manifests import made as manifests_of
from tests.unit.workload_manifests import SAMPLES, condition, manifest, template
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.json_limits import JsonNode
from trainmaster.workload_kinds.kind import WorkloadKind, at, put
from trainmaster.workload_kinds.registry import KINDS, kind_by_name
from trainmaster.workload_kinds.specification import (
    ManifestError,
    assembled,
    capabilities_of,
    check_workload,
    late_roles,
    path_in_manifest,
    translated,
)
from trainmaster.workload_kinds.wrapped_services import renamed
from trainmaster_agent.kube.pods import LABEL_ROLE, LABEL_RUN
from trainmaster_agent.placement.gates import GATE, Gates

Wire = dict[str, Any]
NAME = "workload.codeflare.dev/v1beta2 AppWrapper"
RUN = {"trainmaster.dev/run": "example-abc123-1"}
NOT_WRAPPED = ("SparkApplication", "TrainJob", "AppWrapper")
WRAPPED = [kind for kind in KINDS if kind.kind not in NOT_WRAPPED]


def the_kind() -> WorkloadKind:
    kind = kind_by_name(NAME)
    assert kind is not None
    return kind


def kind_of(name: str) -> WorkloadKind:
    return next(kind for kind in KINDS if kind.kind == name)


def component(api_version: str, kind: str, spec: Wire, name: str = "part", **fields: Any) -> Wire:
    value = {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec}
    return {"template": value, **fields}


def of_kind(kind: WorkloadKind, name: str = "part") -> Wire:
    return component(kind.api_version, kind.kind, deepcopy(SAMPLES[kind.name].manifest["spec"]), name)


def job(name: str = "part", **spec: Any) -> Wire:
    return component("batch/v1", "Job", {"parallelism": 2, "template": template(), **spec}, name)


def service(name: str = "store", **spec: Any) -> Wire:
    given = {"selector": {"app": "store"}, "ports": [{"port": 2379}], **spec}
    return component("v1", "Service", given, name)


def server(kind: str = "Deployment", **spec: Any) -> Wire:
    labels = {"app": "store"}
    pod = {"metadata": {"labels": labels}, "spec": template(restartPolicy="Always")["spec"]}
    return component("apps/v1", kind, {"replicas": 3, "selector": {"matchLabels": labels}, "template": pod, **spec})


def wrapper(*components: Wire, **metadata: Any) -> Wire:
    return manifest("workload.codeflare.dev/v1beta2", "AppWrapper", {"components": list(components)}, **metadata)


def spec_of(value: Wire) -> JobSpec:
    return JobSpec.model_validate(translated(value).spec)


def roles_of(value: Wire) -> dict[str, int]:
    return {role.name: role.replicas for role in spec_of(value).roles}


def mistakes(value: Wire) -> list[tuple[str, str]]:
    """Return the mistakes of a manifest, or of the specification that it becomes, by their paths in the manifest."""
    try:
        made = translated(value)
    except ManifestError as error:
        return [(one.path, one.message) for one in error.mistakes]
    found = check_workload(JobSpec.model_validate(made.spec))
    return [(path_in_manifest(one.path, made.paths), one.message) for one in found]


def made_of(value: Wire) -> Wire:
    """Return the object that an agent creates."""
    spec = spec_of(value)
    assert spec.workload is not None
    templates: dict[str, Wire] = {role.name: deepcopy(role.pod_template or {}) for role in spec.roles}
    for one in templates.values():
        one["metadata"] = {"labels": {**(at(one, ("metadata", "labels")) or {}), **RUN}}
    body = assembled(spec.workload, templates)
    body["metadata"] = {"name": "example-abc123-1", "labels": RUN}
    return the_kind().named(body, RUN)


def templates_of(value: Wire) -> list[Wire]:
    return [one["template"] for one in value["spec"]["components"]]


@pytest.mark.parametrize("kind", WRAPPED, ids=lambda kind: kind.name)
def test_each_wrapped_kind_is_counted_as_it_is_by_itself(kind: WorkloadKind) -> None:
    by_itself = spec_of(SAMPLES[kind.name].manifest)
    wrapped = spec_of(wrapper(of_kind(kind)))
    assert [(role.name, role.replicas) for role in wrapped.roles] == [
        (role.name, role.replicas) for role in by_itself.roles
    ]
    assert [at(role.pod_template, ("spec",)) for role in wrapped.roles] == [
        at(role.pod_template, ("spec",)) for role in by_itself.roles
    ]
    assert check_workload(wrapped) == ()
    assert wrapped.workload is not None
    assert by_itself.workload is not None
    assert late_roles(wrapped.workload) == late_roles(by_itself.workload)
    assert capabilities_of(wrapped) == (f"workload:{NAME.replace(' ', '/')}", *capabilities_of(by_itself))


@pytest.mark.parametrize("kind", WRAPPED, ids=lambda kind: kind.name)
def test_a_component_is_created_as_it_is_with_the_templates_of_the_roles_and_the_name_of_the_run(
    kind: WorkloadKind,
) -> None:
    given = wrapper(of_kind(kind))
    (made,) = templates_of(made_of(given))
    assert (made["apiVersion"], made["kind"], made["metadata"]["name"]) == (
        kind.api_version,
        kind.kind,
        "example-abc123-1",
    )
    for one in the_kind().pod_sets(JsonNode(given, "", [])):
        path = one.path[4:]
        assert at(made, (*path, "metadata", "labels", "trainmaster.dev/run")) == "example-abc123-1"
        assert at(made, (*path, "spec", "containers", 0, "image")) == "registry.example.com/train:1"
    if kind.kind != "Pod":
        assert "trainmaster.dev/run" not in (made["metadata"].get("labels") or {}), "it is not the object of a run"


def test_an_agent_names_components_after_the_run_and_knows_all_pods_by_their_labels() -> None:
    spec = translated(wrapper(service(), job("first"), component("v1", "Pod", template()["spec"], "second"))).spec
    manifests = manifests_of(*spec["roles"], placement=Gates(), workload=spec["workload"])
    made = manifests.workload().body
    name = made["metadata"]["name"]
    assert made["metadata"]["labels"][LABEL_RUN] == RUN_ID
    found, first, second = templates_of(made)
    assert [one["metadata"]["name"] for one in (found, first, second)] == [f"{name}-{index}" for index in range(3)]
    assert found["spec"]["selector"] == {"app": "store", LABEL_RUN: RUN_ID}
    assert LABEL_RUN not in (first["metadata"].get("labels") or {}), "a Job with it would be the object of the run"
    for role, pod in (("first", first["spec"]["template"]), ("second", second)):
        labels = pod["metadata"]["labels"]
        assert (labels[LABEL_RUN], labels[LABEL_ROLE]) == (RUN_ID, role)
        assert pod["spec"]["schedulingGates"] == [{"name": GATE}]
        assert (pod["spec"]["priorityClassName"], pod["spec"]["restartPolicy"]) == ("trainmaster", "Never")
    assert manifests.gang.least == 3, "no pod starts before there is a place for all"


def test_several_components_are_roles_of_one_gang() -> None:
    given = wrapper(job("first"), job("second", parallelism=3), of_kind(kind_of("PyTorchJob")), job("second"))
    assert roles_of(given) == {"first": 2, "second": 3, "master": 1, "worker": 3, "second-2": 2}
    spec = spec_of(given)
    assert spec.workload is not None
    assert late_roles(spec.workload) == frozenset()
    names = [one["metadata"]["name"] for one in templates_of(made_of(given))]
    assert names == [f"example-abc123-1-{index}" for index in range(4)]


def test_pods_that_its_controller_does_not_find_by_itself_are_declared_to_it() -> None:
    (made,) = made_of(wrapper(of_kind(kind_of("TFJob"))))["spec"]["components"]
    begin = "template.spec.tfReplicaSpecs"
    assert made["podSets"] == [
        {"path": f"{begin}.Chief.template", "replicas": 1},
        {"path": f"{begin}.PS.template", "replicas": 2},
        {"path": f"{begin}.Worker.template", "replicas": 2},
    ]
    assert "podSets" not in made_of(wrapper(job()))["spec"]["components"][0], "without them it looks by itself"


def test_declared_pods_are_those_of_the_object() -> None:
    path = "template.spec.template"
    place = "spec.components[0].podSets"
    assert mistakes(wrapper({**job(), "podSets": [{"path": path, "replicas": 2}]})) == []
    assert mistakes(wrapper({**job(), "podSets": [{"path": path}]})) == [
        (f"{place}[0].replicas", "must be 2, as the Job itself says")
    ]
    ((first, message), (second, missing)) = mistakes(
        wrapper({**job(), "podSets": [{"path": "template.spec", "replicas": 2}]})
    )
    assert (first, second) == (f"{place}[0].path", place)
    assert path in message
    assert path in missing
    ((twice, _),) = mistakes(wrapper({**job(), "podSets": [{"path": path, "replicas": 2}] * 2}))
    assert twice == f"{place}[1].path"
    ray = of_kind(kind_of("RayJob"))
    cluster = "template.spec.rayClusterSpec"
    ray["podSets"] = [
        {"path": f"{cluster}.headGroupSpec.template"},
        {"path": f"{cluster}.workerGroupSpecs[0].template", "replicas": 2},
        {"path": f"{cluster}.workerGroupSpecs[1].template", "replicas": 4},
        {"path": f"{cluster}.workerGroupSpecs[2].template", "replicas": 0},
    ]
    assert mistakes(wrapper(ray)) == []


def test_what_its_controller_and_ours_would_both_do_is_left_out_of_the_object() -> None:
    prefix = "workload.codeflare.dev.appwrapper"
    annotations = {f"{prefix}/successTTLDuration": "1h", f"{prefix}/retryLimit": "1"}
    inner = job(ttlSecondsAfterFinished=60)
    inner["template"]["metadata"]["namespace"] = "team"
    given = wrapper(inner, annotations=annotations, namespace="team")
    spec = spec_of(given)
    assert spec.workload is not None
    assert spec.workload.manifest["metadata"]["annotations"] == {f"{prefix}/retryLimit": "1"}
    assert check_workload(spec) == ()
    (made,) = templates_of(made_of(given))
    assert "ttlSecondsAfterFinished" not in made["spec"], "a component that is gone is a failure of its AppWrapper"
    assert made["metadata"] == {"name": "example-abc123-1"}, "the namespace is that of the cluster"


REFUSED: list[tuple[Wire, str, str]] = [
    (wrapper(component("apps/v1", "DaemonSet", {})), "spec.components[0].template.kind", "cannot be in an AppWrapper"),
    (wrapper(server(paused=True)), "spec.components[0].template.spec.paused", "makes no pods"),
    (wrapper(server("StatefulSet")), "spec.components[0].template.spec.podManagementPolicy", "must be Parallel"),
    (
        wrapper(server("StatefulSet", podManagementPolicy="Parallel", volumeClaimTemplates=[{}])),
        "spec.components[0].template.spec.volumeClaimTemplates",
        "claims",
    ),
    (wrapper(server(replicas=0)), "spec", "has no pods"),
    (wrapper(server(replicas="2")), "spec.components[0].template.spec.replicas", "must be a whole number"),
    (
        wrapper(job(), component("rbac.authorization.k8s.io/v1", "RoleBinding", {}, podSets=[{"path": "template"}])),
        "spec.components[1].template.kind",
        "cannot be in an AppWrapper",
    ),
    (wrapper(job(), component("v1", "Secret", {})), "spec.components[1].template.kind", "v1 Service"),
    (
        wrapper(job(), component("scheduling.x-k8s.io/v1alpha1", "PodGroup", {})),
        "spec.components[1].template.kind",
        "cannot be in an AppWrapper",
    ),
    (wrapper(wrapper(job()) | {"template": wrapper(job())}), "spec.components[0].apiVersion", "unknown field"),
    (wrapper({"template": wrapper(job())}), "spec.components[0].template.kind", "cannot be in an AppWrapper"),
    (wrapper(job(), {}), "spec.components[1].template.kind", "null null"),
    (wrapper({**job(), "podSetInfos": [{"labels": {"a": "b"}}]}), "spec.components[0].podSetInfos", "Kueue's"),
    (wrapper({**job(), "annotations": {"a": 1}}), "spec.components[0].annotations.a", "must be a text"),
    (wrapper(job(suspend=True)), "spec.components[0].template.spec.suspend", "spec.suspend"),
    (
        wrapper(job(managedBy="kueue.x-k8s.io/multikueue")),
        "spec.components[0].template.spec.managedBy",
        "leave it out",
    ),
    (
        wrapper(job(manualSelector=True)),
        "spec.components[0].template.spec.manualSelector",
        "cannot be honoured",
    ),
    (
        wrapper(component("ray.io/v1", "RayJob", {"shutdownAfterJobFinishes": True})),
        "spec.components[0].template.spec.shutdownAfterJobFinishes",
        "starts again",
    ),
    (
        wrapper(component("kubeflow.org/v1", "PyTorchJob", {"runPolicy": {"cleanPodPolicy": "All"}})),
        "spec.components[0].template.spec.runPolicy.cleanPodPolicy",
        "starts again",
    ),
    (wrapper(job(parallelism="2")), "spec.components[0].template.spec.parallelism", "must be a whole number"),
    (
        wrapper(component("v1", "Pod", template(restartPolicy="Always")["spec"])),
        "spec.components[0].template.spec.restartPolicy",
        "must be Never",
    ),
    (
        wrapper(
            job(),
            annotations={"workload.codeflare.dev.appwrapper/deletionOnFailureGracePeriodDuration": "1h"},
        ),
        'metadata.annotations["workload.codeflare.dev.appwrapper/deletionOnFailureGracePeriodDuration"]',
        "leaves its cluster at once",
    ),
    (wrapper(*(job(f"part-{index}") for index in range(9))), "spec.components", "has 9 sets of pods"),
    (wrapper(service()), "spec", "has no pods"),
    (wrapper(), "spec", "has no pods"),
    (wrapper(job(), service(type="LoadBalancer")), "spec.components[1].template.spec.type", "cannot be honoured"),
    (wrapper(job(), service(clusterIP="10.0.0.1")), "spec.components[1].template.spec.clusterIP", "gives the address"),
    (
        wrapper(job(), service(externalIPs=["10.0.0.1"])),
        "spec.components[1].template.spec.externalIPs",
        "cannot be honoured",
    ),
    (wrapper(job(), service(selector={})), "spec.components[1].template.spec.selector", "labels of the pods"),
    (wrapper(job(), service(selector={"a": 1})), "spec.components[1].template.spec.selector.a", "must be a text"),
    (wrapper(job(), service("A")), "spec.components[1].template.metadata.name", "must be the name of a Service"),
    (wrapper(job(), service(), service()), "spec.components[2].template.metadata.name", "another Service"),
    (wrapper(job(), {**service(), "podSets": [{"path": "template"}]}), "spec.components[1].podSets", "no pods"),
]


@pytest.mark.parametrize(("given", "path", "words"), REFUSED, ids=[f"{path}: {words}" for _, path, words in REFUSED])
def test_what_cannot_be_honoured_is_refused_where_it_is(given: Wire, path: str, words: str) -> None:
    found = mistakes(given)
    assert path in [one for one, _ in found], found
    assert any(words in message for place, message in found if place == path), found


@pytest.mark.parametrize(
    ("metadata", "path"),
    [
        ({"namespace": "kube-system"}, "namespace"),
        ({"labels": {"kueue.x-k8s.io/queue-name": "all"}}, 'labels["kueue.x-k8s.io/queue-name"]'),
        ({"finalizers": ["a"]}, "finalizers"),
        ({"ownerReferences": [{}]}, "ownerReferences"),
        ({"name": 7}, "name"),
    ],
)
def test_metadata_of_a_component_is_as_bounded_as_that_of_an_object(metadata: Wire, path: str) -> None:
    given = job()
    given["template"]["metadata"] |= metadata
    assert [place for place, _ in mistakes(wrapper(given, namespace="team"))] == [
        f"spec.components[0].template.metadata.{path}"
    ]


def test_annotations_of_a_service_are_refused() -> None:
    given = service()
    given["template"]["metadata"]["annotations"] = {"external-dns.alpha.kubernetes.io/hostname": "example.com"}
    ((path, _),) = mistakes(wrapper(job(), given))
    assert path.startswith("spec.components[1].template.metadata.annotations[")


def test_a_pod_template_may_not_have_the_label_by_which_pods_are_counted() -> None:
    given = job()
    given["template"]["spec"]["template"]["metadata"] = {"labels": {"workload.codeflare.dev/appwrapper": "other"}}
    ((path, _),) = mistakes(wrapper(given))
    assert path == 'spec.components[0].template.spec.template.metadata.labels["workload.codeflare.dev/appwrapper"]'


def test_servers_beside_a_job_select_the_pods_of_their_run_alone() -> None:
    stateful = server("StatefulSet", podManagementPolicy="Parallel", serviceName="store")
    given = wrapper(service(), server(replicas=2), stateful, job("client"))
    assert roles_of(given) == {"part": 2, "part-2": 3, "client": 2}
    assert capabilities_of(spec_of(given)) == (
        "workload:workload.codeflare.dev/v1beta2/AppWrapper",
        "workload:batch/v1/Job",
    )
    found, deployment, stateful, _ = templates_of(made_of(given))
    for one in (deployment, stateful):
        assert one["spec"]["selector"] == {"matchLabels": {"app": "store", **RUN}}
    assert stateful["spec"]["serviceName"] == found["metadata"]["name"]
    assert mistakes(wrapper(server("StatefulSet", replicas=1))) == []


def with_texts(args: Sequence[str] = (), **env: str) -> Wire:
    given = template(subdomain="store")
    container = given["spec"]["containers"][0]
    container["args"] = list(args)
    container["env"] = [{"name": name, "value": value} for name, value in env.items()]
    return given


def test_a_service_selects_the_pods_of_its_run_which_find_it_by_its_new_name() -> None:
    args = ["--rdzv-endpoint=store:29500", "http://store:2379/v2", "--name", "restore", "$(STORE)"]
    given = wrapper(
        service(), job(template=with_texts(args, STORE="store", PEERS="a.store:1,b.store:1", OTHER="my-store"))
    )
    assert mistakes(given) == []
    found, made = templates_of(made_of(given))
    assert found["metadata"]["name"] == "example-abc123-1-0"
    assert found["spec"]["selector"] == {"app": "store", **RUN}
    assert made["metadata"]["name"] == "example-abc123-1", "the only one with pods has the name of the AppWrapper"
    pod = made["spec"]["template"]["spec"]
    new = "example-abc123-1-0"
    assert pod["subdomain"] == new
    container = pod["containers"][0]
    assert container["args"] == [
        f"--rdzv-endpoint={new}:29500",
        f"http://{new}:2379/v2",
        "--name",
        "restore",
        "$(STORE)",
    ]
    values = {one["name"]: one["value"] for one in container["env"]}
    assert values == {"STORE": new, "PEERS": f"a.{new}:1,b.{new}:1", "OTHER": "my-store"}


@pytest.mark.parametrize(
    "text", ["store", "curl http://store:2379 && python train.py", "store.default.svc", "wait-for store:1"]
)
def test_a_text_that_may_name_a_service_or_not_is_refused(text: str) -> None:
    ((path, message),) = mistakes(wrapper(service(), job(template=with_texts([text]))))
    assert path == "spec.components[1].template.spec.template.spec.containers[0].args[0]"
    assert "$(VARIABLE)" in message


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("store", "new"),
        ("store:1", "new:1"),
        ("tcp://store:1/a", "tcp://new:1/a"),
        ("rank-0.store:1", "rank-0.new:1"),
        ("a,store", "a,new"),
        ("restore", "restore"),
        ("store-2", "store-2"),
        ("store.py", None),
        ("the store", None),
    ],
)
def test_names_of_services_in_variables(text: str, found: str | None) -> None:
    assert renamed(text, {"store": "new"}, is_value=True) == found


def test_new_names_are_not_renamed_again() -> None:
    assert renamed("a:1,b:1", {"a": "b", "b": "c"}, is_value=True) == "b:1,c:1"


def test_a_failure_has_the_words_of_its_controller() -> None:
    failed = {"phase": "Failed", **condition("Unhealthy", "FoundFailedPods", "")}
    end = the_kind().end_of({"status": failed})
    assert end is not None
    assert (end.has_succeeded, end.message) == (False, "FoundFailedPods")
    for phase in ("Suspended", "Resuming", "Running", "Resetting", "Suspending", "Terminating", ""):
        assert the_kind().end_of({"status": {"phase": phase}}) is None


def test_what_kueue_has_set_was_not_submitted() -> None:
    stored = wrapper({**job(), "podSetInfos": [{"nodeSelector": {"a": "b"}}]})
    assert the_kind().as_submitted(stored) == wrapper(job())["spec"]
    assert the_kind().as_submitted({"spec": {"components": "none"}}) == {"components": "none"}


@pytest.mark.parametrize("wrong", [None, [], "text", 7, {}])
@pytest.mark.parametrize("path", ["template", "template.metadata", "template.spec", "podSets", "annotations"])
def test_any_shape_of_a_component_is_answered(path: str, wrong: Any) -> None:
    for value in (job(), service(), component("v1", "Pod", template()["spec"])):
        made = deepcopy(value)
        put(made, path.split("."), deepcopy(wrong))
        for given in (wrapper(job(), made), wrapper(made)):
            mistakes(given)
